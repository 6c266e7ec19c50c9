"""Requests of a test as bars, in the order of issue: when each was sent, answered and complete."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.loadgen.requests import Request
from harness.report.charts import Scale, Tick

# Requests of a test as bars: what is known of each, side by side in the order of issue.
SHOWN, SLOWEST = 200, 20  # requests in the picture; of them the slowest of the test, the others evenly from all
AXIS_HEIGHT_PX, CAP_HEIGHT_PX = 220, 4  # pixels of the axis, and of the cap above a slow request's bar
AXIS_TIMES = 5  # times that are named below the axis
BarPart = tuple[str, float, float, float]


class RequestBars(NamedTuple):
    """For each request its parts (name, ms, pixels from the top, height); ticks in pixels from the top, and times
    (percent, seconds of the test); the number of all requests; `names` of the parts.
    """

    bars: list[tuple[Request, list[BarPart]]]
    ticks: list[Tick]
    times: list[tuple[float, float]]
    requests: int
    names: list[str]


def bars(requests: Sequence[Request]) -> RequestBars | None:
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
    scale = Scale(0.0, ranked[-1].latency_ms or 1.0)
    rows = [(each, list(parts(each, scale, each.order in slow))) for each in picked]
    places = (
        [n * len(picked) // AXIS_TIMES for n in range(AXIS_TIMES)] if timed[0].issued_s != timed[-1].issued_s else []
    )
    times = [(100 * place / len(picked), picked[place].begin_s) for place in places]
    names = list(dict.fromkeys(name for _, each in rows for name, *_ in each if name != "slow"))
    return RequestBars(rows, scale.levels(AXIS_HEIGHT_PX), times, len(requests), names)


def parts(request: Request, scale: Scale, is_slow: bool) -> Iterator[BarPart]:
    """Yield what is known of the milliseconds since a request was issued, part by part, and the cap of a slow one."""
    whole = request.latency_ms or 0.0
    first = whole if request.ttft_ms is None else min(request.ttft_ms, whole)
    ends = {} if request.sent_ms is None else {"client delay": min(request.sent_ms, first)}
    marks = {"wait for the first token": first, "decode": whole}
    begin, bottom = 0.0, float(AXIS_HEIGHT_PX)
    for name, end in (ends | ({"until its answer": whole} if request.ttft_ms is None else marks)).items():
        top = scale.top(end, AXIS_HEIGHT_PX)
        yield name, end - begin, top, round(bottom - top, 1)
        begin, bottom = end, top
    if is_slow:
        yield "slow", 0.0, bottom - 1.5 * CAP_HEIGHT_PX, CAP_HEIGHT_PX
