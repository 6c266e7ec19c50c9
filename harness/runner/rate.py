"""Where a run's load comes from: the history, a trial, short tests or a search, of rates or of how many requests are in
flight; said before, and corrected after.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import ceil, inf, isqrt
from typing import Any, NamedTuple

from harness.config.comparability import Comparable, differences
from harness.config.mlperf import SCENARIOS
from harness.config.patterns import SURE_P90_QUERIES, SURE_QUERIES, Burst, ClosedLoop, Poisson, Schedule, Sequential
from harness.config.plan import Plan, TestPart, minutes
from harness.config.run import RunConfig
from harness.config.setting_types import MOST_CONCURRENT
from harness.core import files, nvml
from harness.core.errors import NotAcceptedError
from harness.core.formatting import number, plural
from harness.loadgen.log import TestResult
from harness.loadgen.session import LoadGenSession
from harness.rates import quick, search
from harness.rates.law import Goal
from harness.rates.probing import OFFLINE_MARGIN, TRIAL_S, TYPICAL_PROBES, Bench, Trial, as_probe, at_rate, probes
from harness.rates.search import PROBE_S
from harness.results.benchmark_run import BenchmarkRun
from harness.results.outcome import Outcome
from harness.runs.history import read_history

LEVEL_RATIO = 4  # the ratio of one level to the next, of those that are chosen here
FINAL_RATIO = 1.1  # the lowest level too high over the highest that held, where the search ends
MOST_LEVEL_PROBES = 16  # probes of a search
TYPICAL_LEVELS = 8  # of a search: a few to either side, then half of the gap each time
CLEAR = 1.5  # times a limit, or a limit over a latency: beyond, one probe tells


class DoneTests(NamedTuple):
    """What a run has tested: its probes, and its full tests, the last of which has just ended."""

    probes: Sequence[Outcome] = ()
    attempts: Sequence[Outcome] = ()

    @property
    def all(self) -> list[Outcome]:
        return [*self.probes, *self.attempts]


class RateSource:
    """Where a run's load comes from. As it is, the load was given: there is nothing to find and nothing to correct."""

    corrections = 0  # attempts with another load, at most
    before: TestPart | None = None  # the performance test, whatever the plan

    def outlook(self, plan: Plan) -> TestPart | None:
        """What comes before the performance test; None for nothing."""
        return self.before

    def find(self, bench: Bench) -> Plan:
        """The plan with its load, and a note of it; tests on the way are recorded at once. Raises NotAcceptedError
        where no load keeps the limits.
        """
        return bench.plan

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        """The plan for another attempt after the last test; None where another would not help."""
        return None

    def conclude(self, plan: Plan, tests: DoneTests) -> Plan:
        """The plan of the attempt that counts, with what all of them came to; the last, unless another is better."""
        return plan

    def total(self, plan: Plan) -> str:
        """What a run is going to do after its engine is up, in one line with the sum of its times."""
        return plan.total(self.outlook(plan), "after the engine has started")


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
        *before, last = levels_of(bench.plan.config.levels, bench.at_once)
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
        found = highest(
            lambda level: bench.test(as_probe(after_trial(bench, level))),
            bench.goal,
            max(1, bench.at_once // 4),
            MOST_CONCURRENT,
        )
        if not found:
            raise NotAcceptedError("a single request in flight exceeds the limits: see Probes/ in the run's folder.")
        return after_trial(bench, found)


def levels_of(given: Sequence[int], concurrency: int) -> list[int]:
    """The levels to test: those given, or else powers of four up to what the engine computes at once."""
    powers = [LEVEL_RATIO**n for n in range(20) if LEVEL_RATIO**n < concurrency]
    return list(given) or [*powers, concurrency]


def after_trial(bench: Bench, level: int) -> Plan:
    """The plan of a test with so many requests in flight, and the rate that LoadGen has to expect there, by a short
    trial.
    """
    found = bench.trial(replace(bench.plan, concurrency=level))
    rate = OFFLINE_MARGIN * found.samples_per_sec
    return bench.plan.with_note(
        f"concurrency {level:,}: {number(rate)} samples/s expected ({OFFLINE_MARGIN} x {found})",
        concurrency=level,
        target_qps=rate,
    )


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
    while high - low > 1 and not (low and high / low <= FINAL_RATIO) and len(verdicts) < MOST_LEVEL_PROBES:
        if is_held(level):
            low = level
        else:
            high = level
        level = min(2 * level, most) if high > most else isqrt(max(low, 1) * high)
        level = min(max(level, low + 1), high - 1)
    while low and len(verdicts[low]) < 2 and not is_held(low):  # once was chance
        low = max((level for level, said in verdicts.items() if level < low and said[0]), default=0)
    return low or None


# Rates.
# LoadGen generates 2 x duration / latency queries for SingleStream and issues them all.
LATENCY_MARGIN = 1.5
# Of an Offline run that tells the rate of another scenario: what leaves requests/s as they are.
IGNORED = ("scenario", "total_sample_count", "samples_per_query", "software", "busyness", "rate")


class TrialRate(RateSource):
    """What a short trial on the loaded engine shows, in Offline the rate for which LoadGen has to plan; where the test
    ran short by it, what the test itself shows.
    """

    corrections = 1
    before = TestPart("calibration", f"at most {minutes(TRIAL_S)}", TRIAL_S, "at most ")

    def find(self, bench: Bench) -> Plan:
        return self.planned(bench.plan, bench.trial(bench.plan))

    def planned(self, plan: Plan, trial: Trial) -> Plan:
        """The plan with what LoadGen has to expect by a trial, and a note that says where it comes from."""
        rate = OFFLINE_MARGIN * trial.samples_per_sec
        return plan.with_note(
            f"offline_expected_qps = {number(rate)} samples/s ({OFFLINE_MARGIN} x {trial})", target_qps=rate
        )

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        if not (result.ran_short and result.samples and result.samples_per_sec):
            return None
        again = self.planned(plan, Trial(result.samples, result.samples / result.samples_per_sec))
        note = f"the test ended after {result.duration_s:.1f} s; retrying with {again.notes[-1]}"
        return replace(again, notes=(*plan.notes, note))


class LatencyTrial(TrialRate):
    """The latency of a query that LoadGen has to expect; with the most samples per query, where several numbers of them
    were given: the others are short tests before.
    """

    def outlook(self, plan: Plan) -> TestPart | None:
        count = len(plan.config.batches) - 1
        return probes(f"{count} smaller batch{'es' * (count > 1)}", count) if count > 0 else super().outlook(plan)

    def find(self, bench: Bench) -> Plan:
        plan = bench.plan
        *before, last = sorted(plan.config.batches) or [plan.samples_per_query]
        for size in before:
            short = as_probe(replace(plan, samples_per_query=size))
            bench.test(self.planned(short, bench.trial(short)))
        whole = replace(plan, samples_per_query=last)
        return self.planned(whole, bench.trial(whole))

    def planned(self, plan: Plan, trial: Trial) -> Plan:
        mean = 1000 * plan.samples_per_query / trial.samples_per_sec
        expected = LATENCY_MARGIN * mean
        of = f"queries of {plan.samples_per_query} samples" if plan.samples_per_query > 1 else "samples"
        return plan.with_note(
            f"expected latency = {number(expected)} ms ({LATENCY_MARGIN} x {number(mean)} ms, the mean of "
            f"{ceil(trial.samples / plan.samples_per_query)} {of})",
            expected_latency_ms=expected,
        )


def known_offline(plan: Plan, gpus: list[str] | None, history: Iterable[dict[str, Any]]) -> tuple[float, str] | None:
    """Requests/s of the last VALID Offline run of this set-up on `gpus`, and where that comes from; None where the
    history has none.
    """
    offline = next(rules.name for rules in SCENARIOS.values() if isinstance(rules.pattern, Burst))
    mine = Comparable(plan.work, plan.setup | {"category": plan.config.category, "batch_size": None}, {"gpus": gpus})
    last = None
    for line in history:
        theirs = Comparable.from_history(line)
        theirs = theirs._replace(work=theirs.work or plan.work)
        is_alike = line.get("scenario") == offline and not differences(mine, theirs, IGNORED)
        match line:
            case {"tokens_per_sec": int() | float() as speed, "mean_new_tokens": int() | float() as each} if is_alike:
                if speed > 0 and each > 0:
                    of = f"{speed:,.1f} tokens/s / {each:.1f} tokens per request, from Offline run {line['run']}"
                    last = speed / each, of
    return last


class HistoryRate(TrialRate):
    """A share of the rate that the last Offline run of this set-up reached, or else a trial."""

    corrections = 0

    def find(self, bench: Bench) -> Plan:
        config = bench.plan.config
        gpus = None if config.endpoint else [gpu.name for gpu in nvml.gpus()]
        offline = known_offline(bench.plan, gpus, read_history(config.results_dir))
        return share_of(bench.plan, *offline) if offline else super().find(bench)

    def planned(self, plan: Plan, trial: Trial) -> Plan:
        return share_of(plan, trial.samples_per_sec, f"{trial}; the history has no Offline run of this set-up")


def share_of(plan: Plan, full: float, origin: str) -> Plan:
    """The plan with a share of the rate at which the engine completes a full load."""
    share = plan.config.scenario_rules.offline_share or 1.0
    return plan.with_note(
        f"server_target_qps = {number(share * full)} queries/s ({share} x {origin})", target_qps=share * full
    )


class SearchedRate(RateSource):
    """The highest rate that a full test should keep; a lower one where it did not, a higher one where it had room."""

    corrections = 2
    before = probes("search for the highest rate", TYPICAL_PROBES)

    def find(self, bench: Bench) -> Plan:
        return from_search(bench.plan, search.search(bench))

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        before, last = plan.target_qps, tests.attempts[-1]
        unsure = "early_stopping" in result.failed and (result.queries or 0) >= SURE_QUERIES  # else it was too short
        if not before or not (result.valid or unsure or "latency" in result.failed):
            return None
        held = f"{number(before)} queries/s was {last.verdict.word} over {result.duration_s:.1f} s"
        if given(plan):
            rate = None if result.valid else best_given(plan, tests.all, below=before)
        elif len(tests.attempts) > 1 and any(one.has_held for one in tests.attempts):  # room was tried once
            return None
        else:
            rate = search.rate_after(tests.all, Goal.of(plan))
        if not rate:
            return None
        why = " with room" if last.has_held else f" ({last.why})" if last.why else ""
        return plan.with_note(f"{held}{why}; retrying at {number(rate)}", target_qps=rate)

    def conclude(self, plan: Plan, tests: DoneTests) -> Plan:
        held = [one for one in tests.attempts if one.valid]
        if given(plan) or not held:
            return plan
        best = max(held, key=lambda one: one.load)
        return plan.with_note(search.bracket(best, tests.all, Goal.of(plan)), target_qps=best.load)


class QuickEstimate(RateSource):
    """No rate, but what the first measurements of a search tell of it."""

    before = probes("two facts and what follows", 2, search.SATURATED_S)

    def find(self, bench: Bench) -> Plan:
        plan, facts = bench.plan, search.estimate(bench)
        found = quick.estimate_of(facts, quick.goals(plan), bench.run.facts.command)
        files.write_json(bench.run.folder.path / quick.FILE, found.model_dump())
        return plan.with_note(str(found))


class CurveRate(SearchedRate):
    """The best of the rates that were given, each a short test."""

    def outlook(self, plan: Plan) -> TestPart | None:
        lengths = {rate: search.probe_s(rate, Goal.of(plan)) for rate in given(plan)}
        queries, seconds = round(min(rate * each for rate, each in lengths.items())), sum(lengths.values())
        return TestPart(f"{len(lengths)} rates", f"of {queries:,} queries or more, about {minutes(seconds)}", seconds)

    def find(self, bench: Bench) -> Plan:
        plan, rates = bench.plan, given(bench.plan)
        for qps in rates:
            bench.test(at_rate(plan, qps))
        if all(one.has_held for one in bench.run.facts.probes):  # the capacity is still to be told
            bench.test(at_rate(plan, search.HIGHER * rates[-1]))
        return from_curve(plan, bench.run.facts.probes)


def given(plan: Plan) -> list[float]:
    """The rates that the user gave, in order."""
    rates = plan.config.server_target_qps
    return sorted(rates) if isinstance(rates, tuple) else []


def from_search(plan: Plan, facts: search.SearchFacts) -> Plan:
    """The plan with the highest rate that a full test is expected to keep. Raises NotAcceptedError where a request
    alone is over a limit.
    """
    chosen, loads = facts.chosen, [probe.load for probe in facts.probes]
    if not chosen.rate:
        raise NotAcceptedError(
            f"a single request is over the limits (TTFT {number(1000 * facts.alone.ttft_s)} ms and TPOT "
            f"{number(1000 * facts.alone.tpot_s)} ms): no rate keeps them; see --tpot-limit."
        )
    ends = " to ".join(dict.fromkeys((number(min(loads)), number(max(loads)))))
    return plan.with_note(
        f"server_target_qps = {number(chosen.rate)} queries/s ({chosen.reason}, after {plural(len(loads), 'probe')} at "
        f"{ends} queries/s)",
        target_qps=chosen.rate,
    )


def from_curve(plan: Plan, tried: list[Outcome]) -> Plan:
    """The plan with the highest of the given rates that is VALID and leaves a full test steady; the lowest where none
    is.
    """
    rate, lowest = best_given(plan, tried), min(probe.load for probe in tried)
    asked = given(plan)
    top = max((probe.load for probe in tried if probe.has_held and probe.load in asked), default=0.0)
    found = "the highest that is VALID" if rate else "the lowest, since none is VALID,"
    most = f"; {number(top)} would not last: the engine's capacity is too near" if rate and top > rate else ""
    return plan.with_note(
        f"server_target_qps = {number(rate or lowest)} queries/s ({found} of {len(asked)} rates{most})",
        target_qps=rate or lowest,
    )


def best_given(plan: Plan, tried: list[Outcome], below: float = inf) -> float | None:
    """The highest of the rates that the user gave, under `below`, that held and that the engine's capacity allows."""
    most, held = search.rate_by_waits(tried, Goal.of(plan)), {probe.load for probe in tried if probe.has_held}
    return max((rate for rate in given(plan) if rate in held and rate < below and rate <= most), default=None)


def rate_source(config: RunConfig) -> RateSource:  # noqa: PLR0911
    """Where the load of a run comes from: by its pattern, and by what was given for it."""
    pattern = config.scenario_rules.pattern
    if config.mode == "accuracy" and not (pattern.is_rated and pattern.is_paced):  # LoadGen paces it by its rate
        return RateSource()
    match pattern, getattr(config, pattern.rate_flag):
        case Poisson(), _ if config.quick:
            return QuickEstimate()
        case Burst(), "auto":
            return TrialRate()
        case Sequential(), _:
            return LatencyTrial()
        case Poisson(), tuple():
            return CurveRate()
        case Poisson(), "max":
            return SearchedRate()
        case Poisson() | Schedule(), "auto" if not config.has_own_rate:
            return HistoryRate()
        case ClosedLoop(), "max":
            return LevelSearch()
        case ClosedLoop(), _:
            return LevelCurve()
    return RateSource()


def find_rate(run: BenchmarkRun, session: LoadGenSession) -> None:
    """Completes the plan with its target rate, where it was not given."""
    found = rate_source(run.config).find(Bench(run, session))
    if found is run.plan:
        return
    run.adopt(found)
    if run.config.quick:
        return
    run.display.say(found.total())
    run.warn_short()
