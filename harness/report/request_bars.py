"""Requests of a test as bars, in the order of issue: when each was sent, answered and complete."""

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from harness.loadgen.requests import Request
from harness.report.charts import Scale, Tick

SHOWN_REQUESTS = 200  # requests in the picture
SLOWEST_REQUESTS = 20  # the slowest of the test among these; the rest are taken evenly from all
AXIS_HEIGHT_PX, CAP_HEIGHT_PX = 220, 4  # pixels of the axis, and of the cap above a slow request's bar
AXIS_TIMES = 5  # times that are named below the axis
BarPart = tuple[str, float, float, float]  # name, milliseconds, pixels from the top, height in pixels


class RequestBars(NamedTuple):
    """The picture of a test's requests: a bar for each shown request."""

    bars: list[tuple[Request, list[BarPart]]]
    ticks: list[Tick]  # in pixels from the top
    times: list[tuple[float, float]]  # places across in percent, and the seconds of the test there
    requests: int  # the number of all requests
    names: list[str]  # the names of the parts


def bars(requests: Sequence[Request]) -> RequestBars | None:
    """Return bars of selected requests of a test: the slowest ones, and others evenly over the order of issue.

    None if the times of no request are known. The axis has no times if all requests were issued at once.
    """
    timed = [request for request in requests if request.latency_ms and request.issued_s is not None]
    if not timed:
        return None
    # A request's `order` is its place in the order of issue.
    slowest_requests = sorted(timed, key=attrgetter("latency_ms"))[-SLOWEST_REQUESTS:]
    slowest = slowest_requests[-1]
    slow_orders = {request.order for request in slowest_requests}
    other_orders = [request.order for request in timed if request.order not in slow_orders]
    shown_orders = slow_orders | evenly_picked(other_orders)
    shown_requests = [request for request in timed if request.order in shown_orders]
    scale = Scale(0.0, slowest.latency_ms or 1.0)
    rows, names = list[tuple[Request, list[BarPart]]](), dict[str, None]()
    for request in shown_requests:
        parts = list(parts_of(request, scale, request.order in slow_orders))
        rows.append((request, parts))
        # The part "slow" is the cap above a slow request's bar, which has its own legend.
        names |= dict.fromkeys(name for name, *_ in parts if name != "slow")
    is_issued_at_once = timed[0].issued_s == timed[-1].issued_s
    times = [] if is_issued_at_once else axis_times(shown_requests)
    return RequestBars(rows, scale.upright_ticks(AXIS_HEIGHT_PX), times, len(requests), list(names))


def axis_times(requests: Sequence[Request]) -> list[tuple[float, float]]:
    """Return the times that stand below the axis: the place of each in percent across, and its seconds.

    The bars are divided into AXIS_TIMES equal parts. Each time is that of the first request of a part.
    """
    times = []
    for number in range(AXIS_TIMES):
        place = number * len(requests) // AXIS_TIMES
        percent_across = 100 * place / len(requests)
        times.append((percent_across, requests[place].begin_s))
    return times


def evenly_picked(request_numbers: Sequence[int]) -> set[int]:
    """Pick the requests that are shown beside the slowest ones, at equal distances; all of them if they are few.

    Requests are numbered in the order of issue. The result has the numbers of those that are picked.
    """
    if not request_numbers:
        return set()
    count = SHOWN_REQUESTS - SLOWEST_REQUESTS
    # If the requests are fewer than `count`, some are picked again, which the set leaves out.
    return {request_numbers[place * len(request_numbers) // count] for place in range(count)}


def parts_of(request: Request, scale: Scale, is_slow: bool) -> Iterator[BarPart]:
    """Yield the parts of a request's bar, upwards from the axis, and a cap on the bar of a slow request.

    Each has its name, its milliseconds, its pixels from the top, and its height in pixels.
    """
    begin, bottom = 0.0, float(AXIS_HEIGHT_PX)
    for name, end in ends_of_parts(request):
        top = scale.top(end, AXIS_HEIGHT_PX)
        yield name, end - begin, top, round(bottom - top, 1)
        begin, bottom = end, top
    if is_slow:
        # Between the bar and its cap is a gap of half the cap's height.
        yield "slow", 0.0, bottom - 1.5 * CAP_HEIGHT_PX, CAP_HEIGHT_PX


def ends_of_parts(request: Request) -> Iterator[tuple[str, float]]:
    """Yield each known part of a request's time, with its end in milliseconds since the request was issued.

    No part ends after the next one.
    """
    latency_ms = request.latency_ms or 0.0
    first_token_ms = latency_ms
    if request.ttft_ms is not None:
        first_token_ms = min(request.ttft_ms, latency_ms)
    if request.sent_ms is not None:
        yield "client delay", min(request.sent_ms, first_token_ms)
    if request.ttft_ms is None:
        yield "until the complete answer", latency_ms
    else:
        yield "wait for the first token", first_token_ms
        yield "decode", latency_ms
