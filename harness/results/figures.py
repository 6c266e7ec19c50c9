"""Speeds and latencies of a test, or of its steady part."""

from collections.abc import Sequence

from harness.config.mlperf import LatencyLimits
from harness.core.formatting import Measured
from harness.core.schema import FrozenModel
from harness.loadgen.log import Latency
from harness.loadgen.requests import Request, successful_requests
from harness.loadgen.steady_window import SteadyWindow
from harness.loadgen.test_run import TestRun


class Figures(FrozenModel):
    """Speeds and latencies of a whole test, or of its steady part: from as many answers as are computed at once until
    as few are left. Of a steady part, the figures from `input_tokens_per_sec` on, except `trend`, are known only at
    fixed concurrency.
    """

    begin_s: Measured = None
    """The beginning of the steady part, in seconds since the first request was sent; null in summaries of older
    versions."""
    seconds: Measured = None
    share_percent: Measured = None
    """Percent of the test's duration."""
    tokens_per_sec: Measured = None
    """Output tokens per second: over LoadGen's duration, or of the answers that ended in the steady part."""
    input_tokens_per_sec: Measured = None
    """Prompt tokens of the same answers per second."""
    total_tokens_per_sec: Measured = None
    """Prompt and output tokens of the same answers."""
    samples_per_sec: Measured = None
    trend: Measured = None
    """The rate of the steady part's second half divided by that of its first half."""
    requests: int | None = None
    """Requests that were sent and answered in the steady part. Its latencies are of these."""
    latency_ms: Latency | None = None
    ttft_ms: Latency | None = None
    """Time to the first token."""
    tpot_ms: Latency | None = None
    """Time per output token after the first."""
    slo_attainment: Measured = None
    """Percent of the requests that kept both limits; null if there are no limits, and if TTFT and TPOT are those of a
    buffer, not of the engine."""
    goodput: Measured = None
    """Requests that kept both limits, a second."""
    tokens_per_sec_per_user: Measured = None
    """1,000 / TPOT p90 in ms, over the steady part."""

    @property
    def ends_s(self) -> tuple[float, float] | None:
        """The begin and end of the steady part, in seconds since the first request was sent; None for a whole test."""
        if self.begin_s is None or self.seconds is None:
            return None
        return self.begin_s, self.begin_s + self.seconds


def figures_of_test(test: TestRun, limits: LatencyLimits | None) -> Figures:
    """Return the figures of a whole test, ramps included. Rates are over LoadGen's duration.

    `limits` are those of TTFT and TPOT; without them there is no attainment and no goodput.
    """
    result = test.result
    attainment = slo_attainment(test.requests, limits, test.is_buffered)
    goodput = None
    if attainment is not None and result.samples_per_sec:
        # The attainment is a share of all requests, while LoadGen's rate is of answered requests only.
        requests_per_answer = 1.0
        if test.answered_requests:
            requests_per_answer = len(test.requests) / len(test.answered_requests)
        requests_per_sec = result.samples_per_sec * requests_per_answer
        goodput = requests_per_sec * attainment / 100
    return Figures(
        tokens_per_sec=result.tokens_per_sec,
        input_tokens_per_sec=test.input_tokens_per_sec,
        total_tokens_per_sec=test.total_tokens_per_sec,
        samples_per_sec=result.samples_per_sec,
        latency_ms=result.latency_ms,
        ttft_ms=result.ttft_ms,
        tpot_ms=result.tpot_ms,
        slo_attainment=attainment,
        goodput=goodput,
    )


def figures_of_steady_part(test: TestRun, limits: LatencyLimits | None) -> Figures | None:
    """Return the figures of a test without its ramps; None if it has no steady part or its duration is not known."""
    steady_part, duration_s = test.steady, test.result.duration_s
    if steady_part is None or not duration_s:
        return None
    speeds = Figures(
        begin_s=steady_part.begin_s,
        seconds=steady_part.seconds,
        share_percent=100 * steady_part.seconds / duration_s,
        tokens_per_sec=steady_part.tokens_per_sec,
        trend=steady_part.trend,
    )
    # At a fixed concurrency, the result is that of the steady part, so all its figures are needed.
    is_result = test.window is not None
    if not (is_result and steady_part.requests):
        return speeds
    further_figures = request_figures(test, steady_part, limits)
    return Figures.model_validate(dict(speeds) | further_figures)


def request_figures(test: TestRun, steady_part: SteadyWindow, limits: LatencyLimits | None) -> dict[str, object]:
    """Return the figures of the requests in a steady part that counts, by the names of fields of Figures."""
    result = test.counted_result
    attainment = slo_attainment(steady_part.whole_requests, limits, test.is_buffered)
    goodput = None
    if attainment is not None:
        share_within_limits = attainment / 100
        goodput = share_within_limits * len(steady_part.ended_requests) / steady_part.seconds
    tokens_per_sec_per_user = None
    if result.tpot_ms and result.tpot_ms.p90 and not test.is_buffered:
        tokens_per_sec_per_user = 1000 / result.tpot_ms.p90  # as MLPerf Endpoints defines it
    return dict(
        input_tokens_per_sec=steady_part.input_tokens_per_sec or None,  # 0: the prompts' tokens are not known
        total_tokens_per_sec=steady_part.total_tokens_per_sec,
        samples_per_sec=result.samples_per_sec,
        requests=len(steady_part.requests),
        latency_ms=result.latency_ms,
        ttft_ms=result.ttft_ms,
        tpot_ms=result.tpot_ms,
        slo_attainment=attainment,
        goodput=goodput,
        tokens_per_sec_per_user=tokens_per_sec_per_user,
    )


def slo_attainment(requests: Sequence[Request], limits: LatencyLimits | None, is_buffered: bool) -> Measured:
    """Return the percentage of requests that kept the limits of both TTFT and TPOT. Failed requests kept neither.

    None without limits or requests, if a buffer delivered the tokens, or if the TTFT of an answer is not known.
    """
    if limits is None or is_buffered or not requests:
        return None
    kept_count = 0
    for request in successful_requests(requests):
        if request.ttft_ms is None:
            return None
        keeps_ttft = request.ttft_ms <= limits.ttft
        keeps_tpot = request.tpot_ms is None or request.tpot_ms <= limits.tpot  # An answer of one token has no TPOT.
        if keeps_ttft and keeps_tpot:
            kept_count += 1
    return 100 * kept_count / len(requests)
