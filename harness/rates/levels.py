"""How many requests in flight: levels one after the other, or the highest that keeps both limits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isqrt

from harness.config.flags import MOST_AT_ONCE
from harness.config.patterns import SURE_P90_QUERIES
from harness.config.plan import Plan, TestPart, minutes
from harness.core.document import number, plural
from harness.core.errors import NotAcceptedError
from harness.loadgen.outcome import Outcome
from harness.rates.bench import OFFLINE_MARGIN, Bench, RateSource, as_probe
from harness.rates.law import Goal
from harness.rates.probing import TRIAL_S, Trial
from harness.rates.search import PROBE_S

LEVEL_RATIO = 4  # the ratio of one level to the next, of those that are chosen here
FINAL_RATIO = 1.1  # the lowest level too high over the highest that held, where the search ends
MOST_PROBES = 16  # probes of a search
TYPICAL_LEVELS = 8  # of a search: a few to either side, then half of the gap each time
CLEAR = 1.5  # times a limit, or a limit over a latency: beyond, one probe tells


class LevelCurve(RateSource):
    """The highest level of concurrency; the others are separate tests before it, as long as it."""

    def outlook(self, plan: Plan) -> TestPart | None:
        if not plan.config.levels:
            text = "up to what the engine computes at once, each as long as the last"
            return TestPart("a test at each power of four", text, None)
        *lower, _ = plan.config.levels
        lengths = [plan.pattern.length(plan.with_concurrency(level)) for level in lower]
        seconds = sum(length[1] if length else plan.min_duration_s for length in lengths)
        each = f"each of {SURE_P90_QUERIES} requests or more, after a trial of at most {minutes(TRIAL_S)}"
        text, name = f"at least {minutes(seconds)}, {each}", plural(len(lower), "lower level")
        return TestPart(name, text, seconds, "at least ") if lower else None

    def find(self, bench: Bench) -> Plan:
        plan = bench.plan
        *before, last = levels_of(plan.config.levels, bench.at_once)
        for level in before:
            short = after_trial(bench, level)
            if level == before[0]:
                bench.run.display.say(self.total(short))
            bench.test(short)
        return after_trial(bench, last)


class LevelSearch(RateSource):
    """The highest concurrency that keeps both limits, by short tests."""

    before = TestPart(
        "search for the highest concurrency",
        f"{TYPICAL_LEVELS} levels or so of at least {minutes(PROBE_S)}, each after a trial of at most "
        f"{minutes(TRIAL_S)}",  # which tells LoadGen its rate
        TYPICAL_LEVELS * (PROBE_S + TRIAL_S),
    )

    def find(self, bench: Bench) -> Plan:
        def probe(level: int) -> Outcome:
            return bench.test(as_probe(after_trial(bench, level)))

        found = highest(probe, Goal.of(bench.plan), max(1, bench.at_once // 4), MOST_AT_ONCE)
        if not found:
            raise NotAcceptedError("a single request in flight exceeds the limits: see Probes/ in the run's folder.")
        return after_trial(bench, found)


def levels_of(given: Sequence[int], concurrency: int) -> list[int]:
    """The levels to test: those given, or else powers of four up to what the engine computes at once."""
    powers = [LEVEL_RATIO**n for n in range(20) if LEVEL_RATIO**n < concurrency]
    return list(given) or [*powers, concurrency]


def after_trial(bench: Bench, level: int) -> Plan:
    """The plan of a test with so many requests in flight, after a short trial."""
    return at_level(bench.plan, level, bench.trial(replace(bench.plan, concurrency=level)))


def at_level(plan: Plan, level: int, found: Trial) -> Plan:
    """The plan with its concurrency, and the rate that LoadGen has to expect there."""
    rate = OFFLINE_MARGIN * found.samples_per_sec
    note = f"concurrency {level:,}: {number(rate)} samples/s expected ({OFFLINE_MARGIN} x {found})"
    return plan.with_note(note, concurrency=level, target_qps=rate)


def highest(probe: Callable[[int], Outcome], goal: Goal, first: int, most: int) -> int | None:
    """The most in flight that keep the limits, by probes; None where a single one does not.

    Latencies of a few hundred requests are noisy: near a limit a level holds, and one is too many, if a second probe of
    it says so too; a probe that is far from it counts twice. Levels double from `first` until one is too many, then
    halve the gap.
    """
    verdicts = dict[int, list[bool]]()

    def is_held(level: int) -> bool:
        """Tests a level once, and again where the first time does not agree with a second; two of three decide."""
        said = verdicts.setdefault(level, [])
        while True:
            found = probe(level)
            # Near it, by chance it could be on the other side of the limit.
            is_near = 1 / CLEAR < max(goal.shares(found)) < CLEAR
            said.extend([not found.why] * (1 if is_near else 2))
            if said != [False] and (len(said) != 2 or said[0] == said[1]):
                return 2 * sum(said) > len(said)

    low, high, level = 0, most + 1, min(first, most)
    while high - low > 1 and not (low and high / low <= FINAL_RATIO) and len(verdicts) < MOST_PROBES:
        if is_held(level):
            low = level
        else:
            high = level
        level = min(2 * level, most) if high > most else isqrt(max(low, 1) * high)
        level = min(max(level, low + 1), high - 1)
    while low and len(verdicts[low]) < 2 and not is_held(low):  # once was chance
        low = max((level for level, said in verdicts.items() if level < low and said[0]), default=0)
    return low or None
