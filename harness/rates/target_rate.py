"""LoadGen's target rates, which it needs before a test: found on the loaded engine or in earlier runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isqrt
from typing import Any

from harness.config.comparability import Comparable, differences
from harness.config.mlperf import SCENARIO, Limits
from harness.config.patterns import SURE_QUERIES, Burst, Need
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core.errors import NotAcceptedError
from harness.core.markdown import number
from harness.loadgen.log import TestResult
from harness.rates.probing import Trial
from harness.rates.search import PROBE_S, Capacity, Evidence, Goal, best_rate, highest_held
from harness.runs.outcome import Outcome

# LoadGen plans for 1.1 x duration x rate. A trial sees the ramps at both ends more than a long run does, so the
# engine may prove faster than the trial; too few samples would make the run INVALID, too many only longer.
OFFLINE_MARGIN = 1.1
# LoadGen generates 2 x duration / latency queries for SingleStream and issues them all.
LATENCY_MARGIN = 1.5
LOWER = 0.97  # of a rate that did not hold a whole test, at most
# Of an Offline run that tells the rate of another scenario: what leaves requests/s as they are.
IGNORED = ("scenario", "total_sample_count", "samples_per_query", "software", "busyness", "rate")


def rate_needed(config: RunConfig) -> Need:
    """Which rate is `auto` and will be wanted."""
    pattern = config.scenario_rules.pattern
    if config.has_own_rate:
        return "nothing"
    return pattern.need(getattr(config, pattern.rate_flag), config.mode == "accuracy")


@dataclass(frozen=True)
class OfflineRun:
    """The last VALID Offline run of the same set-up on the same GPUs."""

    run: str
    tokens_per_sec: float
    tokens_per_request: float

    @property
    def requests_per_sec(self) -> float:
        return self.tokens_per_sec / self.tokens_per_request


def known_offline(plan: Plan, gpus: list[str] | None, history: Iterable[Mapping[str, Any]]) -> OfflineRun | None:
    """What the history tells of the speed of this set-up on `gpus`; None where it tells nothing."""
    offline = next(rules.name for rules in SCENARIO.values() if rules.pattern == Burst())
    mine = Comparable(plan.work, plan.setup | {"category": plan.config.category, "batch_size": None}, {"gpus": gpus})
    last = None
    for line in history:
        theirs = Comparable.of_line(line)
        theirs = replace(theirs, work=theirs.work or plan.work)
        is_alike = line.get("scenario") == offline and not differences(mine, theirs, IGNORED)
        if is_alike and line.get("tokens_per_sec") and line.get("mean_new_tokens"):
            last = OfflineRun(str(line["run"]), float(line["tokens_per_sec"]), float(line["mean_new_tokens"]))
    return last


def from_history(plan: Plan, offline: OfflineRun) -> Plan:
    """The plan with a share of the rate that an Offline run reached."""
    share = plan.config.scenario_rules.offline_share or 1.0
    qps = share * offline.requests_per_sec
    return plan.with_note(
        f"server_target_qps = {number(qps)} queries/s ({share} x {offline.tokens_per_sec:,.1f} tokens/s / "
        f"{offline.tokens_per_request:.1f} tokens per request, from Offline run {offline.run})",
        target_qps=qps,
    )


def expected_latency(plan: Plan, trial: Trial) -> Plan:
    """The plan with the latency of a query that LoadGen has to expect, and a note that says where it comes from."""
    queries = trial.samples // plan.samples_per_query
    mean = 1000 * trial.seconds / queries
    expected = LATENCY_MARGIN * mean
    of = f"queries of {plan.samples_per_query} samples" if plan.samples_per_query > 1 else "samples"
    return plan.with_note(
        f"expected latency = {number(expected)} ms ({LATENCY_MARGIN} x {number(mean)} ms, the mean of {queries} {of})",
        expected_latency_ms=expected,
    )


def offline_rate(plan: Plan, trial: Trial) -> Plan:
    """The plan with the rate for which LoadGen has to plan in Offline."""
    rate = OFFLINE_MARGIN * trial.samples_per_sec
    return plan.with_note(
        f"offline_expected_qps = {number(rate)} samples/s ({OFFLINE_MARGIN} x {trial})", target_qps=rate
    )


def share_of_trial(plan: Plan, trial: Trial) -> Plan:
    """The plan with a share of the rate at which the engine completes a full load."""
    share = plan.config.scenario_rules.offline_share
    rate = (share or 1.0) * trial.samples_per_sec
    return plan.with_note(
        f"server_target_qps = {number(rate)} queries/s "
        f"({share} x {trial}; the history has no Offline run of this set-up)",
        target_qps=rate,
    )


def from_search(plan: Plan, tried: list[Outcome]) -> Plan:
    """The plan with the highest rate that a full test is expected to keep. Raises NotAcceptedError where none held."""
    loads = [probe.load for probe in tried]
    ends = " to ".join(dict.fromkeys((number(min(loads)), number(max(loads)))))
    range_ = f"{len(tried)} probe{'s' if len(tried) > 1 else ''} at {ends} queries/s"
    evidence = Evidence(Goal.of(plan), tried)
    rate, best = best_rate(evidence), evidence.low
    if rate is None or best is None:
        raise NotAcceptedError(f"no tested rate was VALID ({range_}; logs in Probes/): give a rate to run anyway.")
    most = f"; the engine completes {number(evidence.capacity.qps)} a second at most" if evidence.capacity else ""
    found = f"the highest that a full test should keep, by {range_}: {number(best.load)} held{most}"
    return plan.with_note(f"server_target_qps = {number(rate)} queries/s ({found})", target_qps=rate)


def from_curve(plan: Plan, tried: list[Outcome]) -> Plan:
    """The plan with the highest of the given rates that is VALID and leaves a full test steady; the lowest where none
    is."""
    rate = best_given(plan, tried)
    lowest = min(probe.load for probe in tried)
    capacity, top = Capacity.of(tried), highest_held(tried)
    found = "the highest that is VALID" if rate else "the lowest, since none is VALID,"
    most = ""
    if capacity and rate and top and top.load > rate:
        most = f"; {number(top.load)} would not last: the engine completes {number(capacity.qps)} a second at most"
    note = f"server_target_qps = {number(rate or lowest)} queries/s ({found} of {len(tried)} rates{most})"
    return plan.with_note(note, target_qps=rate or lowest)


def best_given(plan: Plan, tried: Sequence[Outcome], below: float = inf) -> float | None:
    """The highest of the rates that the user gave, under `below`, that held and that the engine's capacity allows."""
    given = plan.config.server_target_qps
    capacity = Capacity.of(tried)
    most = capacity.rate(Goal.of(plan)) if capacity else inf
    held = {probe.load for probe in tried if probe.has_held}
    rates = [rate for rate in (given if isinstance(given, tuple) else held) if rate in held and rate < below]
    return max((rate for rate in rates if rate <= most), default=None)


def at_rate(plan: Plan, qps: float, seconds: float | None = None) -> Plan:
    """The plan of a short test at a rate, on as many samples as it takes: LoadGen takes whole passes of them."""
    length = seconds or Goal.of(plan).probe_s(qps)
    queries = ceil(qps * length)
    samples = ceil(queries / ceil(queries / plan.samples))
    return replace(plan, target_qps=qps, min_duration_s=length, samples=samples)


def as_probe(plan: Plan) -> Plan:
    """The plan of a short test of the same load."""
    return replace(plan, min_duration_s=min(PROBE_S, plan.min_duration_s))


def correct_plan(plan: Plan, result: TestResult, tests: Sequence[Outcome] = ()) -> Plan | None:
    """The plan for another attempt: the measured rate was so low that LoadGen had too few queries for its duration, or
    the rate that a search found did not hold for a whole run. None where another attempt would not help.

    `tests` are the probes and, last, the test of this result.
    """
    unsure = "early_stopping" in result.failed and (result.queries or 0) >= SURE_QUERIES  # else it was too short
    if plan.config.has_several_rates and plan.target_qps:
        return lower_rate(plan, result, tests) if unsure or "latency" in result.failed else None
    correct = BY_TRIAL.get(rate_needed(plan.config))
    if not (result.ran_short and result.samples_per_sec and correct):
        return None
    return correct(plan, result.samples_per_sec, f"the test ended after {result.duration_s:.1f} s; retrying")


def with_lower_latency(plan: Plan, rate: float, ended: str) -> Plan:
    expected = LATENCY_MARGIN * 1000 * plan.samples_per_query / rate
    note = f"the expected latency was too high: {ended} with {number(expected)} ms"
    return plan.with_note(note, expected_latency_ms=expected)


def with_higher_rate(plan: Plan, rate: float, ended: str) -> Plan:
    note = f"the expected rate was too low: {ended} at {number(OFFLINE_MARGIN * rate)} samples/s"
    return plan.with_note(note, target_qps=OFFLINE_MARGIN * rate)


# What a trial found too low, or too high, is corrected by what the test measured.
BY_TRIAL: dict[Need, Callable[[Plan, float, str], Plan]] = {
    "offline": with_higher_rate,
    "latency": with_lower_latency,
    "batches": with_lower_latency,
}


def lower_rate(plan: Plan, result: TestResult, tests: Sequence[Outcome]) -> Plan | None:
    """The plan with a rate below its own, by what its test measured; the next lower one where several were given."""
    before = plan.target_qps or 0.0
    if rate_needed(plan.config) == "curve":
        rate = best_given(plan, tests, below=before)
    else:
        rate = min(LOWER * before, Evidence(Goal.of(plan), tests).candidate.rate if tests else inf)
    if rate is None:
        return None
    why = f" ({tests[-1].why})" if tests and tests[-1].why else ""
    note = f"{number(before)} queries/s was INVALID over {result.duration_s:.1f} s{why}; retrying at {number(rate)}"
    return plan.with_note(note, target_qps=rate)


# Levels of fixed concurrency: which ones are tested, how long, and the highest that keeps its limits.
LEVEL_RATIO = 4  # the ratio of one level to the next, of those that are chosen here
FINAL_RATIO = 1.1  # the lowest level too high over the highest that held, where the search ends
MOST_PROBES = 16  # probes of a search
CLEAR = 1.5  # times a limit, or a limit over a latency: beyond, one probe tells


def levels_of(given: Sequence[int], concurrency: int) -> list[int]:
    """The levels to test: those given, or else powers of four up to what the engine computes at once."""
    if given:
        return list(given)
    powers = [LEVEL_RATIO**n for n in range(20) if LEVEL_RATIO**n < concurrency]
    return [*powers, concurrency]


def at_level(plan: Plan, level: int, found: Trial) -> Plan:
    """The plan with its concurrency, and the rate that LoadGen has to expect there."""
    rate = OFFLINE_MARGIN * found.samples_per_sec
    note = f"concurrency {level:,}: {number(rate)} samples/s expected ({OFFLINE_MARGIN} x {found})"
    return plan.with_note(note, concurrency=level, target_qps=rate)


def highest(probe: Callable[[int], Outcome], limits: Limits, first: int, most: int) -> int | None:
    """The most in flight that keep the limits, by probes; None where a single one does not.

    Latencies of a few hundred requests are noisy: near a limit a level holds, and one is too many, if a second probe of
    it says so too; a probe that is far from it counts twice. Levels double from `first` until one is too many, then
    halve the gap.
    """
    verdicts: dict[int, list[bool]] = {}

    def is_held(level: int) -> bool:
        """Tests a level once, and again where the first time does not agree with a second; two of three decide."""
        said = verdicts.setdefault(level, [])

        def test() -> None:
            found = probe(level)
            said.extend([not found.why] * (1 if is_near(found, limits) else 2))

        test()
        if not said[0] and len(said) == 1:
            test()
        if len(said) == 2 and said[0] != said[1]:
            test()
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


def is_near(probe: Outcome, limits: Limits) -> bool:
    """Whether the latency that is nearest to its limit, or farthest beyond it, could be on its other side by chance."""
    shares = ((probe.ttft_ms.p99 or 0.0) / limits.ttft, (probe.tpot_ms.p99 or 0.0) / limits.tpot)
    return 1 / CLEAR < max(shares) < CLEAR
