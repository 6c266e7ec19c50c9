"""Requests of a test as bars: what is known of each, side by side in the order of issue."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.common.markdown import number
from harness.loadgen.requests import Request
from harness.pages.loads import MOST_TICKS, nice

SHOWN, SLOWEST = 200, 20  # requests in the picture; of them the slowest of the test, the others evenly from all
HEIGHT = 220  # pixels of the axis


@dataclass(frozen=True)
class Bar:
    """One request: what it says, and its parts as (name, pixels from the top, height)."""

    words: str
    is_slow: bool
    parts: list[tuple[str, float, float]]


@dataclass(frozen=True)
class Bars:
    """The bars from left to right, ticks (pixels from the top, ms), and marks (percent, seconds of the test)."""

    bars: list[Bar]
    ticks: list[tuple[float, float]]
    marks: list[tuple[float, str]]
    requests: int
    names: list[str]
    height: int = HEIGHT


def bars(requests: Sequence[Request]) -> Bars | None:
    """Those picked by a rule: the slowest of all, and others evenly over the order of issue. None without times."""
    timed = [request for request in requests if request.latency_ms is not None and request.issued_s is not None]
    if not timed:
        return None
    slow = sorted(timed, key=lambda request: -(request.latency_ms or 0.0))[:SLOWEST]
    slowest = {request.order for request in slow}
    rest = [request for request in timed if request.order not in slowest]
    count = min(len(rest), SHOWN - len(slow))
    picked = sorted(slow + [rest[n * len(rest) // count] for n in range(count)], key=lambda request: request.order)
    most = slow[0].latency_ms or 1.0
    step = nice(most / MOST_TICKS)
    found = [Bar(words(each), each.order in slowest, list(parts(each, most))) for each in picked]
    ticks = [(HEIGHT * (1 - n * step / most), n * step) for n in range(int(most / step) + 1)]
    at_once = all(request.issued_s == timed[0].issued_s for request in timed)
    places = range(0, 0 if at_once else len(picked), len(picked) // 5 or 1)
    marks = [(100 * n / len(picked), number(picked[n].issued_s)) for n in places]
    names = list(dict.fromkeys(name for bar in found for name, *_ in bar.parts))
    return Bars(found, ticks, marks, len(requests), names)


def segments(request: Request) -> Iterator[tuple[str, float]]:
    """Each part that is known with its end, in milliseconds since the request was issued."""
    whole = request.latency_ms or 0.0
    first = min(request.ttft_ms, whole) if request.ttft_ms is not None else None
    if request.sent_ms is not None:
        yield "client delay", min(request.sent_ms, whole if first is None else first)
    if first is not None:
        yield "wait for the first token", first
        yield "decode", whole
    else:
        yield "until its answer", whole


def parts(request: Request, most: float) -> Iterator[tuple[str, float, float]]:
    begin = 0.0
    for name, end in segments(request):
        yield name, round(HEIGHT * (1 - end / most), 1), round(HEIGHT * (end - begin) / most, 1)
        begin = end


def words(request: Request) -> str:
    begin, found = 0.0, []
    for name, end in segments(request):
        found.append(f"{name} {number(end - begin)} ms")
        begin = end
    failed = "; it failed" if request.failure else ""
    tokens = f"{number(request.prompt_tokens)} + {number(request.output_tokens)} tokens"
    return f"request {number(request.order + 1)}, {tokens}: {', '.join(found)}{failed}"
