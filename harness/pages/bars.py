"""Requests of a test as bars: what is known of each, side by side in the order of issue."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.loadgen.requests import Request
from harness.pages.loads import steps

SHOWN, SLOWEST = 200, 20  # requests in the picture; of them the slowest of the test, the others evenly from all
HEIGHT, CAP = 220, 4  # pixels of the axis, and of the cap above a slow request's bar
TIMES = 5  # that are named below the axis
Part = tuple[str, float, float, float]


@dataclass(frozen=True)
class Bars:
    """For each request its parts (name, ms, pixels from the top, height); ticks (pixels from the top, ms) and times
    (percent, seconds of the test); the number of all requests; `names` of the parts."""

    bars: list[tuple[Request, list[Part]]]
    ticks: list[tuple[float, float]]
    times: list[tuple[float, float]]
    requests: int
    names: list[str]


def bars(requests: Sequence[Request]) -> Bars | None:
    """Those picked by a rule: the slowest of all, and others evenly over the order of issue. None without times."""
    timed = [request for request in requests if request.latency_ms and request.issued_s is not None]
    if not timed:
        return None
    ranked = sorted(timed, key=lambda request: request.latency_ms or 0.0)
    slow = {request.order for request in ranked[-SLOWEST:]}
    rest = [request for request in timed if request.order not in slow]
    count = SHOWN - SLOWEST
    even = {rest[n * len(rest) // count].order for n in range(count)} if rest else set()
    picked = [request for request in timed if request.order in slow | even]
    scale = HEIGHT / (ranked[-1].latency_ms or 1.0)
    found = [(each, list(parts(each, scale, each.order in slow))) for each in picked]
    ticks = [(HEIGHT - scale * tick, tick) for tick in steps(0.0, HEIGHT / scale)]
    places = [n * len(picked) // TIMES for n in range(TIMES)] if timed[0].issued_s != timed[-1].issued_s else []
    times = [(100 * place / len(picked), picked[place].issued_s or 0.0) for place in places]
    names = list(dict.fromkeys(name for _, each in found for name, *_ in each if name != "slow"))
    return Bars(found, ticks, times, len(requests), names)


def split(waits: Mapping[str, float]) -> list[Part]:
    """The parts of a mean wait as one bar: name, ms, percent where each begins and percent of its length."""
    scale, begin, found = 100 / (sum(waits.values()) or 1.0), 0.0, []
    for name, ms in waits.items():
        found.append((name, ms, round(scale * begin, 2), round(scale * ms, 2)))
        begin += ms
    return found


def segments(request: Request) -> Iterator[tuple[str, float]]:
    """Each part that is known with its end, in milliseconds since the request was issued."""
    whole = request.latency_ms or 0.0
    first = whole if request.ttft_ms is None else min(request.ttft_ms, whole)
    if request.sent_ms is not None:
        yield "client delay", min(request.sent_ms, first)
    if request.ttft_ms is None:
        yield "until its answer", whole
    else:
        yield "wait for the first token", first
        yield "decode", whole


def parts(request: Request, scale: float, is_slow: bool) -> Iterator[Part]:
    begin = 0.0
    for name, end in segments(request):
        yield name, end - begin, round(HEIGHT - scale * end, 1), round(scale * (end - begin), 1)
        begin = end
    if is_slow:
        yield "slow", 0.0, round(HEIGHT - scale * begin - 1.5 * CAP, 1), CAP
