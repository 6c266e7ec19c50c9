"""The search for the highest rate that a full test will keep: its measurements and their order.

First what a lone request takes and what a saturated server completes. A candidate follows from these (`measurements`).
A probe at the candidate measures the same again where it counts, until rate and candidate agree. `--quick` takes the
same first steps. `bench` is a `bench.Bench`, or a simulated one of benchmarks.search.
"""

from contextlib import suppress
from math import inf

from harness.core.errors import EndpointError, OutOfTimeError
from harness.core.formatting import number
from harness.rates.first_requests import BURST_REQUESTS, LARGER_BURST_RATIO, burst_size
from harness.rates.measurements import PROBE_S, SAME_RATE_SHARE, Candidate, Measurements, probe_s
from harness.rates.search_bench import SearchBench
from harness.rates.server_model import completed_error, is_overloaded
from harness.rates.state_left import drift_text
from harness.results.outcome import Outcome
from harness.results.queue_fit import LASTING_DRIFT

# Each constant was chosen by the cases of benchmarks.search that it names.
# The shortest saturated probe in seconds: long enough to show how the GPU's clock falls ("hotter by 4 % in minutes").
SATURATED_S = 60.0
OVERLOAD_RATIO = 1.3  # the rate of a saturated probe over the rate that the server seems to complete
FASTER_RATIO = 2.0  # the next rate over the last for a server that kept up
# If both p99 are below this share of their limits, the next rate rises by the second ratio ("TPOT, 300/s").
FAR_SHARE, MUCH_FASTER_RATIO = 0.5, 4.0
MOST_PROBES = 8
MOST_IMPLIED_ERROR = 0.08  # Completions whose standard error is a larger share of them are measured again.
MOST_MEASUREMENTS = 2  # the most times that lone requests and a saturated server are measured
MOST_REPEATS = 2  # the most repetitions of a probe that is not reliable
LONGER_RATIO = 3.0  # the length of a repeated probe over that of the last ("an H200, Server")
MOST_REFUSED = 3  # After this many probes with refusals, the requests in flight are halved.
DRAIN_RATIO = 1.5  # the time of a probe with its last answers over the time in which its queries come
SHORTEST_PROBE_S = 10.0  # A shorter probe tells nothing.


def measure(bench: SearchBench, measurements: Measurements, saturated_s: float) -> None:
    """Measure a lone request and a saturated server. The bench is idle again before each measurement.

    Both are repeated if a lone request takes another time afterward, unless the time is limited. If a lone request is
    over a limit, no rate keeps it, and nothing else is measured.
    """
    measurements.lone = bench.lone_request()
    if measurements.lone.is_over(measurements.goal):
        measurements.lone = bench.lone_request()  # The server may have been cold.
    if measurements.lone.is_over(measurements.goal):
        return
    for _ in range(MOST_MEASUREMENTS):
        measurements.probes.clear()
        saturate(bench, measurements, saturated_s)
        before, measurements.lone = measurements.lone, bench.lone_request()
        has_changed = abs(before.latency_s / measurements.lone.latency_s - 1) > LASTING_DRIFT
        if not has_changed or bench.left_s < inf:
            break


def saturate(bench: SearchBench, measurements: Measurements, least_s: float) -> None:
    """Probe the server for `least_s` seconds or longer, until it is saturated.

    If it keeps up, the next probe is faster; if its completions are uneven, longer.
    """
    goal, repeats = measurements.goal, 0
    most_repeats = 0 if bench.may_shorten else MOST_REPEATS
    expected_qps = burst_qps(bench, measurements)
    rate = OVERLOAD_RATIO * expected_qps
    most_qps = (
        OVERLOAD_RATIO * bench.at_once / measurements.lone.latency_s
    )  # More is not completed with so many in flight.
    rate = min(rate, most_qps)
    seconds, reason = probe_s(rate, goal, least_s), "saturates the server: what it completes"
    while len(measurements.probes) < MOST_PROBES:
        seconds = time_for(bench, seconds, expected_qps)
        if not seconds:
            break
        last = probe(bench, Candidate(rate, reason, seconds))
        measurements.probes.append(last)
        if not is_saturated(last, measurements):
            if rate == most_qps:
                break
            is_far = max(goal.shares(last)) < FAR_SHARE
            rate = min((MUCH_FASTER_RATIO if is_far else FASTER_RATIO) * rate, most_qps)
            seconds, reason = probe_s(rate, goal, least_s), "the server kept up: a faster one"
        elif repeats < most_repeats and seconds < goal.full_s(rate) and (why := doubt_of(last)):
            repeats += 1
            seconds, reason = min(LONGER_RATIO * seconds, goal.full_s(rate)), f"{why}: longer"
        else:
            break


def burst_qps(bench: SearchBench, measurements: Measurements) -> float:
    """Return the queries/s that a burst shows. A burst that shows no limit is followed by a larger one.

    If the server refuses part of a burst, fewer requests are kept in flight from then on.
    """
    lone = measurements.lone
    size = burst_size(BURST_REQUESTS, bench.at_once, lone)
    while True:
        burst = bench.burst(size)
        if burst.refused:
            bench.limit_in_flight(max(1, burst.answered))
        larger = burst_size(LARGER_BURST_RATIO * size, bench.at_once, lone)
        if burst.has_limit(lone) or larger <= size:
            break
        size = larger
    measurements.burst = burst
    if burst.has_limit(lone):
        bench.say(f"about {number(burst.qps(lone))} queries/s, by {size} requests at once")
    else:
        bench.say(f"{size} requests at once take as long as one: no limit is in sight yet")
    qps: float = burst.qps(lone)
    return qps


def time_for(bench: SearchBench, seconds: float, expected_qps: float) -> float:
    """Return the seconds of a probe that fit in the time left; 0 if no probe fits.

    A full test at the expected rate must fit after it, unless only an estimate is wanted.
    """
    left_s = bench.left_s
    if not bench.may_shorten:
        left_s -= bench.goal.reserved_s(expected_qps)
    most_s = left_s / DRAIN_RATIO
    if seconds <= most_s:
        return seconds
    if bench.may_shorten and most_s >= SHORTEST_PROBE_S:
        return most_s
    return 0.0


def is_saturated(probe: Outcome, measurements: Measurements) -> bool:
    """Tell whether a probe saturated the server: queries always waited, or more came than answers can share."""
    if probe.queue is None:
        return False
    return is_overloaded(probe, measurements.goal) or probe.rate >= measurements.server.sharing_capacity


def doubt_of(probe: Outcome) -> str:
    """Return why a saturated probe is not reliable; empty if it is."""
    queue = probe.queue
    if queue is None:
        return ""
    if queue.drift:
        return f"{drift_text(queue.drift)} meanwhile"
    if queue.completed and probe.has_waited and completed_error(queue) > MOST_IMPLIED_ERROR:
        return "completions are uneven"
    return ""


def probe(bench: SearchBench, candidate: Candidate) -> Outcome:
    """Probe a rate. If the server refuses requests because it is full, keep fewer in flight and repeat the probe.

    Raises EndpointError if the server refuses requests with the fewest in flight, OutOfTimeError if the time is over.
    """
    refused = 0
    while True:
        outcome: Outcome = bench.probe(candidate)
        if not outcome.refused:
            return outcome
        refused += 1
        most = min(outcome.full_at or 1, bench.at_once - 1)
        if refused >= MOST_REFUSED:
            most //= 2
        before = bench.at_once
        bench.limit_in_flight(max(1, most))
        if bench.at_once >= before:
            raise EndpointError(f"the server refuses requests even with {before:,} in flight: see its log.")
        if bench.left_s <= 0:
            raise OutOfTimeError


def estimate(bench: SearchBench) -> Measurements:
    """Take the measurements for `--quick`: the first steps of a search, then a short probe at the candidate.

    Leaves out what does not fit in the time.
    """
    measurements = Measurements(bench.goal)
    with suppress(OutOfTimeError):
        measure(bench, measurements, PROBE_S)
        if measurements.has_queue:
            confirm(bench, measurements)
    return measurements


def confirm(bench: SearchBench, measurements: Measurements) -> None:
    """Probe the candidate, unless a probe at nearly the same rate has just been run, or there is no time for it."""
    candidate = measurements.candidate
    if not candidate.rate or abs(candidate.rate / measurements.last.load - 1) <= SAME_RATE_SHARE:
        measurements.has_confirmed = True
        return
    seconds = time_for(bench, probe_s(candidate.rate, measurements.goal), candidate.rate)
    if seconds:
        measurements.probes.append(probe(bench, candidate._replace(seconds=seconds)))
        measurements.has_confirmed = True


def search(bench: SearchBench) -> Measurements:
    """Measure a server until the candidate for the full test agrees with the rate of the last probe."""
    measurements, repeats = Measurements(bench.goal), 0
    measure(bench, measurements, SATURATED_S)
    if not measurements.has_queue:
        return measurements
    while len(measurements.probes) < MOST_PROBES:
        chosen = measurements.candidate
        if not chosen.rate:
            break
        seconds = measurements.confirming_s(chosen.rate)
        if 2 * seconds > measurements.goal.full_s(chosen.rate):  # The full test tells as much.
            break
        queue = measurements.last.queue
        has_changed = bool(queue and queue.drift and repeats < MOST_REPEATS)
        is_same = abs(chosen.rate / measurements.last.load - 1) <= SAME_RATE_SHARE
        if is_same and not has_changed and not measurements.is_late(measurements.last):
            break
        if not time_for(bench, seconds, chosen.rate):
            break
        repeats += has_changed
        measurements.probes.append(probe(bench, chosen._replace(seconds=seconds)))
    return measurements
