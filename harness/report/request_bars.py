"""Requests of a test as bars, in the order of issue: when each was sent, answered and complete."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from harness.loadgen.requests import Request
from harness.report.charts import Scale, Tick

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
    """Return bars of selected requests: the slowest ones, and others evenly over the order of issue.

    None without times.
    """
    timed = [request for request in requests if request.latency_ms and request.issued_s is not None]
    if not timed:
        return None
    ranked = sorted(timed, key=attrgetter("latency_ms"))
    slow = {request.order for request in ranked[-SLOWEST:]}
    orders = slow | evenly_picked([request.order for request in timed if request.order not in slow])
    picked = [request for request in timed if request.order in orders]
    scale = Scale(0.0, ranked[-1].latency_ms or 1.0)
    rows, names = list[tuple[Request, list[BarPart]]](), dict[str, None]()
    for request in picked:
        row = list(parts_of(request, scale, request.order in slow))
        rows.append((request, row))
        names |= dict.fromkeys(name for name, *_ in row if name != "slow")
    times = []
    if timed[0].issued_s != timed[-1].issued_s:
        for number in range(AXIS_TIMES):
            place = number * len(picked) // AXIS_TIMES
            times.append((100 * place / len(picked), picked[place].begin_s))
    return RequestBars(rows, scale.levels(AXIS_HEIGHT_PX), times, len(requests), list(names))


def evenly_picked(orders: Sequence[int]) -> set[int]:
    """Return as many of the requests as are shown beside the slowest, evenly over the order of issue."""
    if not orders:
        return set()
    count = SHOWN - SLOWEST
    return {orders[number * len(orders) // count] for number in range(count)}


def parts_of(request: Request, scale: Scale, is_slow: bool) -> Iterator[BarPart]:
    """Yield what is known of the milliseconds since a request was issued, part by part, and the cap of a slow one."""
    begin, bottom = 0.0, float(AXIS_HEIGHT_PX)
    for name, end in ends_of_parts(request):
        top = scale.top(end, AXIS_HEIGHT_PX)
        yield name, end - begin, top, round(bottom - top, 1)
        begin, bottom = end, top
    if is_slow:
        yield "slow", 0.0, bottom - 1.5 * CAP_HEIGHT_PX, CAP_HEIGHT_PX


def ends_of_parts(request: Request) -> Iterator[tuple[str, float]]:
    """Yield each part of a request with the time at which it ended."""
    whole = request.latency_ms or 0.0
    first = whole
    if request.ttft_ms is not None:
        first = min(request.ttft_ms, whole)
    if request.sent_ms is not None:
        yield "client delay", min(request.sent_ms, first)
    if request.ttft_ms is None:
        yield "until its answer", whole
    else:
        yield "wait for the first token", first
        yield "decode", whole
