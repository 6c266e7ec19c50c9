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
    """Measure a lone request and a saturated server, by probes of at least `saturated_s` seconds.

    If a lone request is over a limit twice, no rate keeps the limit, and nothing else is measured. A lone request is
    measured again after the probes. If its latency differs clearly from the one before, the load changed the server. So
    the probes are repeated once, unless the time is limited.
    """
    measurements.lone = bench.lone_request()
    if measurements.lone.is_over(measurements.goal):
        measurements.lone = bench.lone_request()  # The server may have been cold.
    if measurements.lone.is_over(measurements.goal):
        return
    for _ in range(MOST_MEASUREMENTS):
        measurements.probes.clear()  # In a second round, the probes so far show the server before it changed.
        saturate(bench, measurements, saturated_s)
        before, measurements.lone = measurements.lone, bench.lone_request()
        has_changed = abs(before.latency_s / measurements.lone.latency_s - 1) > LASTING_DRIFT
        if not has_changed or bench.left_s < inf:
            break


def saturate(bench: SearchBench, measurements: Measurements, least_s: float) -> None:
    """Probe the server for `least_s` seconds or longer, until it is saturated.

    A burst gives the first rate. If the server keeps up, the next probe is faster. The highest rate is a little above
    the rate that the allowed requests in flight can complete. If a saturated probe is not reliable, it is repeated for
    longer, except for an estimate (`may_shorten`). The probes end early if the next one does not fit in the time left.
    """
    goal, repeats = measurements.goal, 0
    most_repeats = 0 if bench.may_shorten else MOST_REPEATS
    expected_qps = burst_qps(bench, measurements)
    # An answer takes at least a lone request's time, so the requests in flight complete at most this rate.
    most_completed_qps = bench.at_once / measurements.lone.latency_s
    most_qps = OVERLOAD_RATIO * most_completed_qps
    rate = min(OVERLOAD_RATIO * expected_qps, most_qps)
    seconds, reason = probe_s(rate, goal, least_s), "saturates the server: what it completes"
    while len(measurements.probes) < MOST_PROBES:
        seconds = time_for(bench, seconds, expected_qps)
        if not seconds:
            break
        last = probe(bench, Candidate(rate, reason, seconds))
        measurements.probes.append(last)
        if not is_saturated(last, measurements):
            if rate == most_qps:  # A faster rate would not put more requests in flight.
                break
            is_far_below_limits = max(goal.shares(last)) < FAR_SHARE
            ratio = MUCH_FASTER_RATIO if is_far_below_limits else FASTER_RATIO
            rate = min(ratio * rate, most_qps)
            seconds, reason = probe_s(rate, goal, least_s), "the server kept up: a faster one"
            continue
        doubt = doubt_of(last)
        if not doubt or repeats >= most_repeats or seconds >= goal.full_s(rate):
            break
        repeats += 1
        seconds, reason = min(LONGER_RATIO * seconds, goal.full_s(rate)), f"{doubt}: longer"


def burst_qps(bench: SearchBench, measurements: Measurements) -> float:
    """Send bursts until one shows a limit of the server, and return the queries/s that the last burst shows.

    A burst that shows no limit is followed by a larger one, up to the largest that is allowed. If the server refuses
    part of a burst, only as many requests as it answered are kept in flight from then on. Notes the last burst in
    `measurements`, and tells the user what it shows.
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
    """Return the length of a probe that fits in the time left: `seconds`, less for an estimate, 0 if no probe fits.

    In a search, a full test at the expected rate must fit after the probe. For an estimate, no full test follows, and a
    probe may be shorter than LoadGen needs for a verdict.
    """
    left_s = bench.left_s
    if not bench.may_shorten:  # a search
        left_s -= bench.goal.reserved_s(expected_qps)
    most_s = left_s / DRAIN_RATIO  # The last answers of a probe come after its last query.
    if seconds <= most_s:
        return seconds
    if bench.may_shorten and most_s >= SHORTEST_PROBE_S:
        return most_s
    return 0.0


def is_saturated(probe: Outcome, measurements: Measurements) -> bool:
    """Tell whether a probe saturated the server.

    It did if queries always waited and more came than were completed, or if they came at the rate at which concurrent
    answers slow each other down without end. A probe with too few queries to measure a queue did not.
    """
    if probe.queue is None:
        return False
    return is_overloaded(probe, measurements.goal) or probe.rate >= measurements.server.sharing_capacity


def doubt_of(probe: Outcome) -> str:
    """Return why a saturated probe is not reliable; empty if it is reliable, or had no queue to judge.

    It is unreliable if the server's speed changed, or if the rate of completions has a large error.
    """
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

    After several refused probes, the number in flight is also halved each time. Raises EndpointError if the number
    cannot become smaller, and OutOfTimeError if the time is over.
    """
    refused_probes = 0
    while True:
        outcome: Outcome = bench.probe(candidate)
        if not outcome.refused:
            return outcome
        refused_probes += 1
        # As many as the server was answering when it refused others, and at least one less than before.
        most_in_flight = min(outcome.full_at or 1, bench.at_once - 1)
        if refused_probes >= MOST_REFUSED:
            most_in_flight //= 2
        before = bench.at_once
        bench.limit_in_flight(max(1, most_in_flight))
        if bench.at_once >= before:
            raise EndpointError(f"the server refuses requests even with {before:,} in flight: see its log.")
        if bench.left_s <= 0:
            raise OutOfTimeError


def estimate(bench: SearchBench) -> Measurements:
    """Take the measurements for `--quick`: the first steps of a search, then a short probe at the candidate.

    If the time ends meanwhile, returns the measurements so far. The candidate is not probed if no probe before it had
    enough queries to show how the server works.
    """
    measurements = Measurements(bench.goal)
    with suppress(OutOfTimeError):
        measure(bench, measurements, PROBE_S)
        if measurements.has_queue:
            confirm(bench, measurements)
    return measurements


def confirm(bench: SearchBench, measurements: Measurements) -> None:
    """Probe the candidate rate and note that it is confirmed, so that the estimate can give a narrow range around it.

    No probe is needed if the candidate is 0, or if the last probe had nearly the same rate. If the probe does not fit
    in the time left, the candidate stays unconfirmed.
    """
    candidate = measurements.candidate
    if not candidate.rate or abs(candidate.rate / measurements.last.load - 1) <= SAME_RATE_SHARE:
        measurements.has_confirmed = True
        return
    seconds = time_for(bench, probe_s(candidate.rate, measurements.goal), candidate.rate)
    if seconds:
        measurements.probes.append(probe(bench, candidate._replace(seconds=seconds)))
        measurements.has_confirmed = True


def search(bench: SearchBench) -> Measurements:
    """Measure a server until the candidate (the rate for the full test) agrees with the rate of the last probe.

    Ends earlier after MOST_PROBES probes, if no rate keeps the limits, if the first probes show no queue, or if a probe
    would not fit in the time or would take about as long as the full test. A probe in which the server's speed changed
    is repeated, at most MOST_REPEATS times.
    """
    measurements, repeats = Measurements(bench.goal), 0
    measure(bench, measurements, SATURATED_S)
    if not measurements.has_queue:
        return measurements
    while len(measurements.probes) < MOST_PROBES:
        chosen = measurements.candidate
        if not chosen.rate:
            break
        seconds = measurements.confirming_s(chosen.rate)
        if 2 * seconds > measurements.goal.full_s(chosen.rate):  # The full test shows as much and takes little longer.
            break
        queue = measurements.last.queue
        must_repeat = bool(queue and queue.drift and repeats < MOST_REPEATS)  # The server's speed changed meanwhile.
        is_same_rate = abs(chosen.rate / measurements.last.load - 1) <= SAME_RATE_SHARE
        # A probe in which each query waited too long does not confirm its rate, so it is repeated, too.
        if is_same_rate and not must_repeat and not measurements.is_late(measurements.last):
            break
        if not time_for(bench, seconds, chosen.rate):
            break
        repeats += must_repeat
        measurements.probes.append(probe(bench, chosen._replace(seconds=seconds)))
    return measurements
