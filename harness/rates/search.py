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
from harness.rates.goal import Goal
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

    Without a time limit, the measurements are repeated if the load changed the server.
    """
    measurements.lone = bench.lone_request()
    if measurements.lone.is_over(measurements.goal):
        measurements.lone = bench.lone_request()  # The server may have been cold.
    if measurements.lone.is_over(measurements.goal):  # No rate keeps the limits.
        return
    for _ in range(MOST_MEASUREMENTS):
        # Probes of an earlier pass show the server before it changed.
        bench.discard(measurements.probes)
        measurements.probes.clear()
        saturate(bench, measurements, saturated_s)
        before = measurements.lone
        measurements.lone = bench.lone_request()
        # If a lone request takes clearly more or less time than before, the load changed the server.
        has_changed = abs(before.latency_s / measurements.lone.latency_s - 1) > LASTING_DRIFT
        has_time_limit = bench.left_s < inf  # Repeating would take the time of the next steps.
        if not has_changed or has_time_limit:
            break


def saturate(bench: SearchBench, measurements: Measurements, least_s: float) -> None:
    """Probe the server for `least_s` seconds or longer, until it is saturated or no further probe is possible.

    A burst gives the first rate. A probe that saturated the server, but is not reliable, is repeated at greater length.
    """
    goal = measurements.goal
    is_estimate = bench.may_shorten
    repeats_left = 0 if is_estimate else MOST_REPEATS  # An estimate has no time for repetitions.
    expected_qps = burst_qps(bench, measurements)
    # An answer takes at least a lone request's time, so the requests in flight complete at most this rate.
    most_completed_qps = bench.at_once / measurements.lone.latency_s
    most_qps = OVERLOAD_RATIO * most_completed_qps
    rate = min(OVERLOAD_RATIO * expected_qps, most_qps)  # More than the server seems to complete saturates it.
    next_probe: Candidate | None
    next_probe = Candidate(rate, "saturates the server: what it completes", probe_s(rate, goal, least_s))
    while next_probe and len(measurements.probes) < MOST_PROBES:
        seconds = time_for(bench, next_probe.seconds, expected_qps)
        if not seconds:  # No probe fits in the time left.
            break
        made_probe = next_probe._replace(seconds=seconds)
        outcome = probe(bench, made_probe)
        measurements.probes.append(outcome)
        if not is_saturated(outcome, measurements):
            next_probe = faster_probe(made_probe, outcome, goal, most_qps, least_s)
        elif repeats_left:
            next_probe = longer_probe(made_probe, outcome, goal)
            repeats_left -= 1
        else:
            break


def faster_probe(
    made_probe: Candidate, outcome: Outcome, goal: Goal, most_qps: float, least_s: float
) -> Candidate | None:
    """Return the probe that follows one with which the server kept up; None if that one was at `most_qps`."""
    if made_probe.rate == most_qps:  # A faster rate would not put more requests in flight.
        return None
    rate = min(rise_ratio(outcome, goal) * made_probe.rate, most_qps)
    return Candidate(rate, "the server kept up: a faster one", probe_s(rate, goal, least_s))


def longer_probe(made_probe: Candidate, outcome: Outcome, goal: Goal) -> Candidate | None:
    """Return a longer probe at the rate of a saturated one. None if that one is reliable, or as long as a full test."""
    doubt, full_s = doubt_of(outcome), goal.full_s(made_probe.rate)
    if not doubt or made_probe.seconds >= full_s:
        return None
    return Candidate(made_probe.rate, f"{doubt}: longer", min(LONGER_RATIO * made_probe.seconds, full_s))


def rise_ratio(kept_up: Outcome, goal: Goal) -> float:
    """Return the ratio of the next probe's rate to that of a probe with which the server kept up."""
    is_far_below_limits = max(goal.shares(kept_up)) < FAR_SHARE
    return MUCH_FASTER_RATIO if is_far_below_limits else FASTER_RATIO


def burst_qps(bench: SearchBench, measurements: Measurements) -> float:
    """Send bursts (requests sent all at once) until one shows a limit of the server, and return its queries/s.

    Notes the last burst in `measurements`, and tells the user what it shows.
    """
    lone = measurements.lone
    size = burst_size(BURST_REQUESTS, bench.at_once, lone)
    while True:
        burst = bench.burst(size)
        if burst.refused:  # From now on, no more requests are in flight than were answered.
            bench.limit_in_flight(max(1, burst.answered))
        larger = burst_size(LARGER_BURST_RATIO * size, bench.at_once, lone)
        if burst.has_limit(lone) or larger <= size:  # No larger burst is needed, or none is allowed.
            break
        size = larger
    measurements.burst = burst
    qps: float = burst.qps(lone)
    if burst.has_limit(lone):
        bench.say(f"about {number(qps)} queries/s, by {size} requests at once")
    else:
        bench.say(f"{size} requests at once take as long as one: no limit is in sight yet")
    return qps


def time_for(bench: SearchBench, seconds: float, expected_qps: float) -> float:
    """Return the length of a probe that fits in the time left: `seconds` or, for an estimate, less.

    Returns 0 if no probe fits.
    """
    left_s = bench.left_s
    is_estimate = bench.may_shorten
    if not is_estimate:  # A search ends with a full test, which must fit after the probe.
        left_s -= bench.goal.reserved_s(expected_qps)
    most_s = left_s / DRAIN_RATIO  # The last answers of a probe come after its last query.
    if seconds <= most_s:
        return seconds
    if is_estimate and most_s >= SHORTEST_PROBE_S:  # LoadGen gives so short a probe no verdict: none is needed.
        return most_s
    return 0.0


def is_saturated(probe: Outcome, measurements: Measurements) -> bool:
    """Tell whether a probe saturated the server.

    That is so if queries always waited and more came than were completed. It is also so from the `sharing_capacity` of
    the server on: the rate at which running queries slow each other so much that ever more run at once.
    """
    if probe.queue is None:  # The probe had too few queries to show a queue.
        return False
    return is_overloaded(probe, measurements.goal) or probe.rate >= measurements.server.sharing_capacity


def doubt_of(probe: Outcome) -> str:
    """Return why a saturated probe is not reliable; empty if it is reliable, or had no queue to judge.

    A probe is unreliable if the server's speed changed, or if the rate of completions has a large error.
    """
    queue = probe.queue
    if queue is None:
        return ""
    if queue.drift:
        return f"{drift_text(queue.drift)} meanwhile"
    shows_completion_rate = queue.completed and probe.has_waited  # Only a server with waiting queries is fully busy.
    if shows_completion_rate and completed_error(queue) > MOST_IMPLIED_ERROR:
        return "completions are uneven"
    return ""


def probe(bench: SearchBench, candidate: Candidate) -> Outcome:
    """Probe a rate. If the server refuses requests because it is full, keep fewer in flight and repeat the probe.

    Raises EndpointError if the number cannot become smaller, and OutOfTimeError if the time is over.
    """
    refused_probes = 0
    while True:
        outcome: Outcome = bench.probe(candidate)
        if not outcome.refused:
            return outcome
        refused_probes += 1
        before = bench.at_once
        # As many as the server was answering when it refused others (`full_at`), and at least one less than before.
        most_in_flight = min(outcome.full_at or 1, before - 1)
        if refused_probes >= MOST_REFUSED:  # So many probes were refused that smaller steps would take too long.
            most_in_flight //= 2
        bench.limit_in_flight(max(1, most_in_flight))
        if bench.at_once >= before:
            raise EndpointError(f"the server refuses requests even with {before:,} in flight: see its log.")
        if bench.left_s <= 0:
            raise OutOfTimeError


def estimate(bench: SearchBench) -> Measurements:
    """Take the measurements for `--quick`: the first steps of a search, then a short probe at the candidate.

    If the time ends meanwhile, returns the measurements so far.
    """
    measurements = Measurements(bench.goal)
    with suppress(OutOfTimeError):
        measure(bench, measurements, PROBE_S)
        if measurements.has_queue:  # A probe had enough queries to show how the server works.
            probe_candidate(bench, measurements)
    return measurements


def probe_candidate(bench: SearchBench, measurements: Measurements) -> None:
    """Probe the candidate: the rate that a full test should keep by all measurements so far.

    No probe is needed if no rate is expected to keep the limits, or if the last probe was at the candidate already.
    `is_candidate_probed` stays False only if the probe does not fit in the time left.
    """
    candidate = measurements.candidate
    if candidate.rate and abs(candidate.rate / measurements.last.load - 1) > SAME_RATE_SHARE:
        seconds = time_for(bench, probe_s(candidate.rate, measurements.goal), candidate.rate)
        if not seconds:
            return
        measurements.probes.append(probe(bench, candidate._replace(seconds=seconds)))
    measurements.is_candidate_probed = True


def search(bench: SearchBench) -> Measurements:
    """Measure a server until the candidate (the rate for the full test) agrees with the rate of the last probe.

    Returns the measurements so far if a further probe would not help, or does not fit in the time left.
    """
    measurements, repeats_left = Measurements(bench.goal), MOST_REPEATS
    measure(bench, measurements, SATURATED_S)
    if not measurements.has_queue:  # The first probes do not show how the server works.
        return measurements
    while len(measurements.probes) < MOST_PROBES:
        candidate = measurements.candidate
        if not candidate.rate:  # No rate keeps the limits.
            break
        last = measurements.last
        has_changed_speed = bool(last.queue and last.queue.drift)
        must_repeat = has_changed_speed and repeats_left > 0
        is_same_rate = abs(candidate.rate / last.load - 1) <= SAME_RATE_SHARE
        # A late probe, over TTFT's limit without a queue that grew, confirms nothing.
        is_confirmed = is_same_rate and not must_repeat and not measurements.is_late(last)
        if is_confirmed:
            break
        seconds = measurements.confirming_s(candidate.rate)
        if 2 * seconds > measurements.goal.full_s(candidate.rate):  # The full test shows as much for little more time.
            break
        if not time_for(bench, seconds, candidate.rate):  # The probe does not fit in the time left.
            break
        if must_repeat:
            repeats_left -= 1
        measurements.probes.append(probe(bench, candidate._replace(seconds=seconds)))
    return measurements
