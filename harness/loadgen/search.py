"""The highest rate that a full test will keep: from short tests on the loaded engine, by their limits and its capacity.

LoadGen's verdict on a probe says what it held for its half a minute. An overload of a few percent breaks no limit in
that time and every limit in ten minutes, so the rate is the smaller of what the limits and what the measured capacity
allow (`estimate`), and the last candidate is confirmed by a longer probe where a short one cannot tell.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.config.mlperf import SURE_QUERIES
from harness.loadgen.queueing import shared, sustainable, telling_s
from harness.runs.probe import SETTLED, Probe, Queue

STEP = 1.2  # while one side alone is known; the second is this squared, and so on up to 2
LOWEST = 0.1  # of the first rate; where that does not hold either, the limits are out of reach
CLOSE = 1.02  # of the estimate: a rate confirmed within this ends the search
BRACKET = 1.04  # ratio of the lowest rate too fast to the highest that held at which it ends, too
SHARP, OVERLOAD, SHARP_S = 0.01, 1.15, 90.0  # a capacity known no better than this is measured again, so, for so long
LASTING_S = 54.0  # of a probe whose waits are more than chance
AGAIN, SAME = 2, 1.005  # a rate within this that fell is tried for so many times as long, if at all
NEAR = 1.06  # of the highest rate that held: an estimate within this, though no queue tells it, is worth a long probe
MOST = 12
MARGIN = 0.993  # of a rate that just did not hold, or where a limit is just reached: a full test sees more than a probe
PROBE_S, LONG_S = 30.0, 120.0  # three and one of them in four minutes
PROBE_QUERIES, LONG_QUERIES = 600, 2400
PROLONGED = 4  # times as long, at most, where early stopping alone wants more queries
ROOM = 30  # queries that fit into the wait that is allowed; with fewer, the queue's model says nothing of real servers


@dataclass(frozen=True)
class Goal:
    """What the full test is held to: its length, and the p99 limits in milliseconds."""

    seconds: float
    queries: int
    ttft_ms: float
    tpot_ms: float

    def lasts(self, qps: float) -> float:
        """Seconds at this rate."""
        return max(self.seconds, max(self.queries, SURE_QUERIES) / qps)

    def short(self, qps: float) -> float:
        """Seconds of a probe at this rate: no longer than the full test."""
        return min(max(PROBE_S, PROBE_QUERIES / qps), self.lasts(qps))


def search(start: float, probe: Callable[[float, float], Probe], goal: Goal) -> list[Probe]:
    """Probes, each of a rate and so many seconds, until the best rate is known closely; all of them, in order."""
    done: list[Probe] = []
    next_: tuple[float, float] | None = (start, goal.short(start))
    while next_ and len(done) < MOST:
        done.append(probe(*next_))
        next_ = following(goal, done, start)
    return done


def following(goal: Goal, done: Sequence[Probe], start: float) -> tuple[float, float] | None:
    """The rate to try next, and for how many seconds; None where the best is known, or nothing holds."""
    last, least = done[-1], settled_s(done)
    if longer := prolonged(last, goal):
        return last.load, longer
    low, high = bracket(goal, done)
    fastest = max(done, key=lambda probe: (probe.load, probe.seconds or 0.0))
    measured = capacity(done)
    if high is None or (measured is None and queued(fastest, goal)):
        rate = fastest.load * (step(len(done)) if high is None else STEP)
        return rate, max(goal.short(rate), least)
    if (
        measured
        and measured.completed_error > SHARP * measured.completed
        and not any(long(probe) and probe.load > measured.completed for probe in done)
    ):
        return OVERLOAD * measured.completed, max(SHARP_S, goal.short(measured.completed), least)
    rate = wanted(goal, done)
    if low is None:
        lowest = LOWEST * start
        return None if high.load <= lowest else (max(rate, lowest), max(goal.short(rate), least))
    if any(tells(probe, rate, goal, done) for probe in done):
        return None
    sure = measured is not None or rate <= NEAR * low.rate or by_sharing(goal, trusted(done)) is not None
    seconds = confirm_s(rate, goal, done) if sure else goal.short(rate)
    fell = max((probe.seconds or 0.0 for probe in done if not probe.held and probe.load <= SAME * rate), default=0.0)
    return rate, max(seconds, least, min(AGAIN * fell, goal.lasts(rate)))


def long(probe: Probe) -> bool:
    """Whether a probe lasted for so long that its waits are more than chance."""
    return (probe.seconds or math.inf) >= LASTING_S


def step(count: int) -> float:
    """The ratio of the next rate to this one while only one side is known, after so many probes."""
    return float(min(STEP**2 ** min(count - 1, 9), 2.0))


def beyond(goal: Goal, done: Sequence[Probe]) -> float | None:
    """The rate that measures the capacity, where every given one held and none tells it; else None."""
    low, high = bracket(goal, done)
    return STEP * low.load if low and high is None else None


def wanted(goal: Goal, probes: Sequence[Probe]) -> float:
    """The rate that is worth a full test by all that is known: the estimate, below what was too fast."""
    low, high = bracket(goal, probes)
    rate = estimate(goal, probes)
    if high is None or rate <= MARGIN * too_fast(high, goal):
        return rate
    if low is None:
        return high.rate / step(sum(not probe.held for probe in probes))
    return math.sqrt(low.load * high.load) if high.load > BRACKET * low.load else min(low.load, MARGIN * high.load)


def too_fast(probe: Probe, goal: Goal) -> float:
    """The rate that a probe showed to be too fast: as sent, which chance makes higher or lower than the one wanted, or
    the wanted one, if a full test would not send it otherwise."""
    full = (probe.seconds or math.inf) >= 0.9 * goal.lasts(probe.load)
    return min(probe.rate, probe.load) if full else probe.rate


def settled_s(probes: Sequence[Probe]) -> float:
    """Seconds after which as many queries run as ever will: some latencies, of what is not kept waiting."""
    return SETTLED * min((probe.latency_p50 for probe in probes if probe.latency_p50), default=0.0) / 1000


def queued(probe: Probe, goal: Goal) -> bool:
    """Whether a probe fell because queries waited, though for too short to tell the server's capacity."""
    return not probe.grew and (probe.ttft_p99 or 0.0) > goal.ttft_ms and (probe.tpot_p99 or 0.0) <= goal.tpot_ms


def prolonged(probe: Probe, goal: Goal) -> float | None:
    """How long to repeat a probe that early stopping alone calls INVALID: it kept both limits, and was too short.

    None for any other, and where a full test has too few queries, too.
    """
    queries = probe.rate * (probe.seconds or 0)
    if probe.held or probe.grew or not probe.more or not queries:
        return None
    times = 1.2 * (1 + probe.more / queries)
    longer = times * (probe.seconds or 0)
    return longer if times <= PROLONGED and longer <= goal.lasts(probe.rate) else None


def estimate(goal: Goal, probes: Sequence[Probe]) -> float:
    """The highest rate that a full test is expected to keep, queries/s: infinite where nothing was too fast."""
    return MARGIN * min(by_capacity(goal, probes), by_limits(goal, probes))


def capacity(probes: Sequence[Probe]) -> Queue | None:
    """The best measurement of what the server completes at most: not of its slow start, since it kept up with more."""
    queues = [probe.queue for probe in probes if probe.queue and probe.capacity]
    kept = [queue for queue in queues if not any(outdone(queue.completed, probe) for probe in probes)]
    return min(kept, key=lambda queue: queue.completed_error, default=None)


def outdone(completed: float, probe: Probe) -> bool:
    """Whether a probe kept up with more than what was taken for the capacity, for so long that it would have shown."""
    if not (probe.held and probe.settled and probe.seconds and probe.rate > completed):
        return False
    if probe.queue and probe.queue.completed - probe.queue.completed_error <= completed:
        return False
    return probe.seconds >= telling_s(probe.rate, 1 - completed / probe.rate)


def by_capacity(goal: Goal, probes: Sequence[Probe]) -> float:
    """The rate at which random arrivals, over a full test, wait no longer than TTFT's limit allows."""
    measured = capacity(probes)
    if measured is None:
        return math.inf
    least = measured.completed - measured.completed_error / 2
    first = min((probe.ttft_min or 0.0 for probe in probes), default=0.0) / 1000
    room = goal.ttft_ms / 1000 - first
    alone = first * measured.completed > 1 / 2
    if least * room < ROOM and not alone:
        return least
    return sustainable(least, room, goal.seconds, goal.queries, min(measured.dispersion, 1.0))


def by_limits(goal: Goal, probes: Sequence[Probe]) -> float:
    """The rate at which the first limit is reached."""
    measured = capacity(probes)
    most = measured.completed if measured else None
    told = trusted(probes)
    # Where the capacity is known, waiting follows from it: only a long probe with a steady queue knows better.
    waits = [probe for probe in told if measured is None or (long(probe) and not probe.grew)]
    ttft = [(probe.answered, goal.ttft_ms / probe.ttft_p99) for probe in waits if probe.ttft_p99]
    tpot = [(probe.answered, goal.tpot_ms / probe.tpot_p99) for probe in told if probe.tpot_p99]
    return min(crossing(ttft, most), by_sharing(goal, told) or crossing(tpot, most))


def by_sharing(goal: Goal, probes: Sequence[Probe]) -> float | None:
    """The rate at which queries hold each other up to TPOT's limit; from the probe that came nearest to it.

    None where waiting is a good part of a query's time, or what runs beside it costs nothing.
    """
    best, nearest = None, math.inf
    for probe in probes:
        if not (probe.queue and probe.queue.each_s > 0 and probe.latency_p50 and probe.tpot_p50 and probe.tpot_p99):
            continue
        off = abs(math.log(probe.tpot_p99 / goal.tpot_ms))
        if off < nearest and not probe.waited:
            best, nearest = probe, off
    if best is None or best.queue is None:
        return None
    limit_s = goal.tpot_ms * (best.latency_p50 or 0.0) / (best.tpot_p50 or math.inf) / 1000
    return shared(best.queue.base_s, best.queue.each_s, limit_s, goal.seconds, goal.queries)


def crossing(points: Sequence[tuple[float, float]], most: float | None) -> float:
    """The rate at which limit over latency falls to 1; it falls about evenly, and to nothing at the capacity `most`."""
    kept = max(((rate, ratio) for rate, ratio in points if ratio >= 1), default=None)
    lost = min(((rate, ratio) for rate, ratio in points if ratio < 1), default=None)
    full = (most, 0.0) if most else None
    if lost is None:
        return between(kept, full) if kept and full else math.inf
    if kept is None:
        far = between(lost, full) if full and full[0] > lost[0] else lost[0] * lost[1]
        return min(max(far, lost[0] / 2), 0.9 * lost[0])
    return between(kept, lost)


def between(kept: tuple[float, float], lost: tuple[float, float]) -> float:
    """The rate at which the line through both points is at 1."""
    (slow, more), (fast, less) = kept, lost
    if slow >= fast or more <= less:
        return min(slow, fast)
    return slow + (more - 1) / (more - less) * (fast - slow)


def confirm_s(rate: float, goal: Goal, probes: Sequence[Probe]) -> float:
    """Seconds of the probe that confirms a rate: until an overload as large as its distance to the capacity shows."""
    measured = capacity(probes)
    needed = telling_s(rate, max(1 - rate / measured.completed, 0.001)) if measured else LONG_S
    return max(goal.short(rate), min(needed, max(LONG_S, LONG_QUERIES / rate), goal.lasts(rate)))


def tells(probe: Probe, wanted: float, goal: Goal, probes: Sequence[Probe]) -> bool:
    """Whether a probe held about the rate that is wanted, for long enough to confirm it."""
    lasted = probe.seconds is None or probe.seconds >= 0.9 * confirm_s(wanted, goal, probes)
    return probe.held and lasted and max(probe.load, probe.rate) >= wanted / CLOSE


def trusted(probes: Sequence[Probe]) -> list[Probe]:
    """All but those that something else disturbed: a higher rate held for about as long."""
    held = [probe for probe in probes if probe.held]
    return [
        probe
        for probe in probes
        if probe.held
        or not any(one.load > probe.load and (one.seconds or 0) >= 0.9 * (probe.seconds or 0) for one in held)
    ]


def bracket(goal: Goal, probes: Sequence[Probe]) -> tuple[Probe | None, Probe | None]:
    """The highest that held below the lowest that was too fast, and that one."""
    held = [probe for probe in probes if probe.held]
    lost = [probe for probe in trusted(probes) if not (probe.held or prolonged(probe, goal))]
    high = min(lost, key=lambda probe: probe.load, default=None)
    return highest([probe for probe in held if high is None or probe.load < high.load]), high


def highest(probes: Sequence[Probe]) -> Probe | None:
    """The best of those that held."""
    return max((probe for probe in probes if probe.held), key=lambda probe: probe.load, default=None)


def chosen(goal: Goal, probes: Sequence[Probe]) -> float | None:
    """The rate of the full test: what held, or less where the estimate says so; None where nothing held."""
    best, _ = bracket(goal, probes)
    return None if best is None else min(max(best.load, best.rate), wanted(goal, probes))
