"""The result of an experiment over all its rounds, compared with the baseline."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import inf
from statistics import mean
from typing import Literal

from harness.config.comparability import DISQUALIFYING_FLAWS, INVALID, Comparable, Difference, differences
from harness.config.mlperf import SCORES, SHORT_SCORES
from harness.config.run import RunConfig, scenario_of
from harness.core.formatting import Measured, plural
from harness.results.change import FEWEST_PAIRS, Change
from harness.results.metrics import METRIC_BY_NAME, Metric, metrics_of
from harness.results.round_changes import changes_by_rounds
from harness.sweep.experiment import ExperimentOutcome, ExperimentRecord, State
from harness.sweep.file import BASELINE, Experiment

# Experiments that differ in these may be compared: a sweep changes settings, and the change of a speed that does not
# count is shown struck out.
IGNORED_BETWEEN_EXPERIMENTS = ("settings", "machine", "software", "busyness", "rate", *DISQUALIFYING_FLAWS)
BRIEF_TEST_S = 5.0  # tests of a second were seen to differ by a fifth with the same settings on a CPU
# The words for the verdicts of the accuracy gate, the worst first.
GATE_WORDS = {"FAIL": "UNSAFE", "INCONCLUSIVE": "INCONCLUSIVE", "NOT JUDGED": "not judged", "PASS": "SAFE"}
SPEED_METRIC = METRIC_BY_NAME["tokens_per_sec"]
LATENCY_METRIC = METRIC_BY_NAME["latency_p50_ms"]  # judges experiments whose speed follows from a configured rate
ESTIMATE_METRIC, CAP_METRIC = METRIC_BY_NAME["estimated_qps"], METRIC_BY_NAME["most_running"]  # metrics of --quick
SCORE_METRIC = SHORT_SCORES[0]
RoundAndPlace = tuple[int, str]  # the round of a run, and the node and GPU that it ran on
RunPair = tuple[ExperimentOutcome, ExperimentOutcome]  # the baseline's run and an experiment's of one round and place
Effect = Literal["helped", "hurt", "no difference", "unclear", "too short", "busy machine", "unknown"]
# The effect on speed, by the direction of the change.
EFFECT_BY_SIDE: dict[str, Effect] = {"above": "helped", "below": "hurt", "equal": "no difference", "unclear": "unclear"}


@dataclass(frozen=True)
class ExperimentResult:
    """One experiment over all its rounds, compared with the baseline.

    Against a baseline whose speed does not count there is no `change` but a `void_change`, which is shown struck out
    with `void_reason` and judges nothing.
    """

    experiment: Experiment
    records: Sequence[ExperimentRecord]
    base: "ExperimentResult | None" = None  # the baseline, if its speed counts
    change: Change | None = None
    void_change: Change | None = None
    void_reason: str = ""

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def done(self) -> list[ExperimentRecord]:
        """The records of its complete runs."""
        return [record for record in self.records if record.status == "complete"]

    @property
    def complete(self) -> list[ExperimentOutcome]:
        """The outcomes of its complete runs."""
        return [record.outcome for record in self.done]

    @cached_property
    def numbers(self) -> dict[str, float]:
        """The mean of each metric over the runs that the figures are based on. Metrics without a value are left out.

        A score is the mean over all complete runs, as load of other programs does not change answers.
        """
        means = {}
        for metric in metrics_of("sweep"):
            runs = self.runs
            if metric.name in SCORES:
                runs = self.complete
            values = values_of(runs, metric)
            if values:
                means[metric.name] = mean(values)
        return means

    @cached_property
    def counted(self) -> dict[RoundAndPlace, ExperimentOutcome]:
        """The complete runs that the figures are based on, by round and place (the node and the GPU).

        If any runs have a counted baseline run in the same round and place, only these runs count. Of them, runs with a
        flaw or under the load of other programs are left out if enough others remain.
        """
        runs = {(record.round, record.place): record.outcome for record in self.done}
        if self.base:
            comparable_runs = {key: run for key, run in runs.items() if key in self.base.counted}
            runs = comparable_runs or runs
        sound_runs = {key: run for key, run in runs.items() if run.is_sound}
        if len(sound_runs) < FEWEST_PAIRS:
            return runs
        return sound_runs

    @property
    def runs(self) -> list[ExperimentOutcome]:
        """The runs that the figures are based on."""
        return [*self.counted.values()]

    @property
    def paired_runs(self) -> dict[RoundAndPlace, RunPair]:
        """The baseline's run and this experiment's run of each round and place in which both count.

        Empty without a baseline.
        """
        if not self.base:
            return {}
        base_runs = self.base.counted
        return {key: (base_runs[key], run) for key, run in self.counted.items() if key in base_runs}

    @property
    def pairs(self) -> list[RunPair]:
        """The baseline's run and this experiment's run of each round and place in which both count."""
        return [*self.paired_runs.values()]

    @property
    def compared_runs(self) -> list[ExperimentOutcome]:
        """The runs of the baseline and of this experiment that are compared with each other; empty without pairs."""
        return [*chain.from_iterable(self.pairs)]

    @property
    def left_out(self) -> str:
        """How many complete runs the figures are not based on, and why, in words; empty if they are based on all."""
        count = len(self.done) - len(self.runs)
        if not count:
            return ""
        reasons = [*greatest_load(self.complete), *flaws_of(self.complete)]
        # A run with neither load nor flaws is left out only if no run of the baseline in its round can be compared.
        reason = "; ".join(reasons) or "the baseline's of the same round does not count"
        return f"{count} of {plural(len(self.done), 'run')} of {self.name}: {reason}"

    def values(self, metric: Metric) -> list[tuple[float, float]]:
        """Return a metric of each pair of runs: the baseline's value and this experiment's.

        Pairs without both are left out.
        """
        values = []
        for base_run, run in self.pairs:
            before, after = base_run.values.get(metric.name), run.values.get(metric.name)
            if before is not None and after is not None:
                values.append((before, after))
        return values

    @property
    def metric(self) -> Metric:
        """The metric by which the experiment is judged.

        An estimate is judged by its estimated rate. If the user gave the rate, it sets the speed, so the latency is
        judged. Any other experiment is judged by its speed.
        """
        if self.experiment.is_estimate:
            return ESTIMATE_METRIC
        if self.experiment.has_fixed_rate:
            return LATENCY_METRIC
        return SPEED_METRIC

    @property
    def figure(self) -> Measured:
        """The mean of the metric by which the experiment is judged; None if it was not measured."""
        return self.numbers.get(self.metric.name)

    def ratios(self, metric: Metric) -> dict[RoundAndPlace, float]:
        """Return a metric as a share of the baseline's, by round and place.

        A pair without both values, or with a value that is not above 0, has no ratio and is left out.
        """
        ratios = {}
        for round_and_place, (base_run, run) in self.paired_runs.items():
            before = base_run.values.get(metric.name)
            after = run.values.get(metric.name)
            if before is None or after is None:
                continue
            if min(before, after) > 0:
                ratios[round_and_place] = after / before
        return ratios

    @property
    def gain(self) -> Change | None:
        """The change as a change of speed, in which more is better; None if there is no change that counts."""
        if self.change is None:
            return None
        return self.change.speed_change(self.metric)

    @property
    def void_gain(self) -> Change | None:
        """The change of speed against a baseline whose own speed does not count. Reports show it struck out.

        None if the baseline's speed counts.
        """
        return self.void_change.speed_change(self.metric) if self.void_change else None

    @property
    def bound(self) -> str:
        """What limited the speed most, in words, in the first of the runs that recorded it; empty if none did."""
        for run in self.complete:
            if run.ran_out:
                strongest_limit = run.ran_out[0]
                return strongest_limit.what
        return ""

    @property
    def speed(self) -> Measured:
        """The mean output tokens per second of the rounds; None if no speed was measured."""
        return self.numbers.get(SPEED_METRIC.name)

    @property
    def score(self) -> Measured:
        """The mean of the main score over the rounds; None without an accuracy test."""
        return self.numbers.get(SCORE_METRIC)

    @property
    def accuracy(self) -> str:
        """The worst verdict of the accuracy gate over the rounds, in the words of GATE_WORDS,
        such as UNSAFE; or "not run".
        """
        verdicts = {run.verdict for run in self.complete}
        for verdict, word in GATE_WORDS.items():  # the worst verdict first
            if verdict in verdicts:
                return word
        return "not run"

    @property
    def is_valid(self) -> bool | None:
        """Tell whether LoadGen calls every run VALID; None if nothing was measured."""
        verdicts = [run.valid for run in self.runs if run.valid is not None]
        if not verdicts:
            return None
        return all(verdicts)

    @property
    def background_load(self) -> list[str]:
        """The greatest load of other programs among those runs of this experiment and of the baseline that are compared
        with each other, in words.

        If no runs are compared, it is the greatest among all complete runs of this experiment.
        """
        return greatest_load(self.compared_runs or self.complete)

    @property
    def has_known_load(self) -> bool:
        """Tell whether each compared test recorded how much of the engine's time other programs took."""
        return all(run.others_cpu_share is not None for run in self.compared_runs)

    def on_busy_machine(self, change: Change, metric: Metric) -> Change:
        """Return a change with an interval that allows for what other programs took during the
        tests, as far as it is known.

        `metric` is the metric of the change.
        """
        # The largest share of the processors that other programs took during a run: of the baseline, of the experiment.
        before = max((base_run.others_cpu_share or 0.0 for base_run, _run in self.pairs), default=0.0)
        after = max((run.others_cpu_share or 0.0 for _base_run, run in self.pairs), default=0.0)
        return change.of_metric_on_busy_machine(metric, before, after)

    @property
    def is_usable(self) -> bool:
        """Tell whether the speed counts.

        A speed counts if it is from a VALID run or an estimate, if the figures have no flaws, and if no accuracy gate
        failed.
        """
        has_speed = bool(self.is_valid or self.numbers.get(ESTIMATE_METRIC.name))
        return has_speed and self.accuracy != "UNSAFE" and not self.flaws

    @property
    def flaws(self) -> list[str]:
        """The reasons why the figures may not be compared, without LoadGen's INVALID, since `is_valid` tells it."""
        flaws = flaws_of(self.compared_runs or self.runs)  # The compared runs are those of the baseline, too.
        return [flaw for flaw in flaws if flaw != INVALID]

    @property
    def doubt(self) -> Effect | None:
        """Why the speed is not judged: the machine was busy, or the tests were too short. None if it is judged.

        Short tests are judged if there are enough rounds to show their scatter. An unknown duration counts as long.
        """
        if self.background_load:
            return "busy machine"
        seconds = self.numbers.get("duration_s") or inf
        if seconds < BRIEF_TEST_S and len(self.done) < FEWEST_PAIRS:
            return "too short"
        return None

    @property
    def effect(self) -> Effect:
        """The effect of the experiment's change on the speed, or why it is not judged; "unknown"
        without a change that counts.
        """
        if self.gain is None:
            return "unknown"
        return self.doubt or EFFECT_BY_SIDE[self.gain.effect]

    @property
    def failure(self) -> ExperimentRecord | None:
        """The record of the first of its runs that did not finish; None if all did."""
        for record in self.records:
            if record.status != "complete":
                return record
        return None


Results = Sequence[ExperimentResult]


def experiment_rows(state: State, final: bool = False) -> list[ExperimentResult]:
    """Return a result for each experiment that was begun or skipped, with its change against the baseline.

    With `final`, the results are of the runs at full length, else of all other runs. A void change is shown struck out.
    """
    results = results_without_base(state, final)
    base = result_named(results, BASELINE)
    if base is None:
        return results
    results_with_base = [replace(result, base=base) for result in results]
    changes = changes_from(base, results_with_base, state.error_rate)
    if base.is_usable:
        return [replace(result, change=changes.get(result.name)) for result in results_with_base]
    reason = why_unusable(base)
    # Without `base`, nothing else of these results is compared with the baseline.
    return [replace(result, void_change=changes.get(result.name), void_reason=reason) for result in results]


def why_unusable(base: ExperimentResult) -> str:
    """Return in words why no change from this baseline counts: its accuracy, its flaws, or its speed."""
    if base.accuracy == "UNSAFE":
        return "the baseline's accuracy gate failed"
    if base.flaws:
        return f"the baseline: {'; '.join(base.flaws)}"
    return "the baseline is INVALID" if base.is_valid is False else "the baseline has no speed"


def changes_from(base: ExperimentResult, results: Results, error: float) -> dict[str, Change]:
    """Return the change of each result that did the same work as the baseline, by name.

    `error` is the highest chance that any experiment is called a change although it equals the baseline. A result
    without a ratio has no change.
    """
    ratios = {}
    for result in results:
        if result.name == BASELINE or work_differences(result.experiment, base.experiment):
            continue
        ratios_of_rounds = result.ratios(result.metric)
        if ratios_of_rounds:
            ratios[result.name] = ratios_of_rounds
    changes = changes_by_rounds(ratios, error)
    for result in results:
        if result.background_load and result.name in changes:
            changes[result.name] = changes[result.name].on_busy_machine()
    return changes


def results_without_base(state: State, final: bool) -> list[ExperimentResult]:
    """Return the experiments that have records, not yet compared with the baseline, in their order in the sweep.

    With `final` the records are those at full length, else all others.
    """
    items = list(state.sweep.experiments)
    # The sweep itself may have added an experiment to those of the file: the one with the best estimate, once more with
    # a cap on its requests.
    if state.capped:
        items.append(state.capped)
    records: dict[str, list[ExperimentRecord]] = {item.name: [] for item in items}
    for record in state.records:
        if record.final == final and record.experiment in records:
            records[record.experiment].append(record)
    return [ExperimentResult(item, records[item.name]) for item in items if records[item.name]]


def result_named(results: Results, name: str) -> ExperimentResult | None:
    """Return the result of the experiment of this name; None if it has no records."""
    for result in results:
        if result.name == name:
            return result
    return None


def values_of(runs: Iterable[ExperimentOutcome], metric: Metric) -> list[float]:
    """Return a metric of the runs that have it."""
    values = []
    for run in runs:
        value = run.values.get(metric.name)
        if value is not None:
            values.append(value)
    return values


def greatest_load(runs: Sequence[ExperimentOutcome]) -> list[str]:
    """Return what other programs took during the run in which they took most, in words; empty if none ran.

    Between runs, the load differs mostly in its numbers, so one run's load stands for all.
    """
    busy_runs = [run for run in runs if run.background_load]
    greatest = max(busy_runs, key=cpu_share_of_others, default=None)
    return list(greatest.background_load) if greatest else []


def cpu_share_of_others(run: ExperimentOutcome) -> float:
    """Return the share of the engine's cores that other programs took; 0 if it is not known."""
    return run.others_cpu_share or 0.0


def flaws_of(runs: Sequence[ExperimentOutcome]) -> list[str]:
    """Return the reasons why the figures of these runs may not be compared.

    Flaws such as INVALID come first, then disagreements.
    """
    names = list[str]()
    disagreements = list[str]()
    for run in runs:
        names += [flaw for flaw in run.flaws if flaw in DISQUALIFYING_FLAWS]
        run_disagreements = [flaw for flaw in run.flaws if flaw not in DISQUALIFYING_FLAWS]
        # A disagreement is a sentence with numbers, such as that two counts of tokens differ by 3 %. Those of several
        # runs say nearly the same, so those of one run stand for all.
        if len(run_disagreements) > len(disagreements):
            disagreements = run_disagreements
    return [*dict.fromkeys(names), *disagreements]


def are_all_narrow(state: State, rounds: int) -> bool:
    """Tell whether, after the first `rounds` rounds, the intervals of all changes are narrower than --within asks.

    False if an experiment has no change.
    """
    records = tuple(record for record in state.records if record.round < rounds)
    for result in experiment_rows(replace(state, records=records)):
        if result.name == BASELINE:
            continue
        change = result.change
        if not change:
            return False
        percent_of_baseline = 100 * (change.high - change.low)  # The ends of an interval are ratios to the baseline.
        if percent_of_baseline >= state.within:
            return False
    return True


def speedup(result: ExperimentResult) -> float:
    """Return an experiment's speed as a multiple of the baseline's, for sorting.

    0 if there is no change that counts.
    """
    if result.gain is None:
        return 0.0
    return result.gain.mean


def finalist_names(results: Results, count: int) -> list[str]:
    """Return the names of the experiments worth a run at full length, the baseline first.

    They are the `count` fastest usable experiments that are at least as fast as the baseline.
    """
    faster = []
    for result in results:
        if result.is_usable and result.name != BASELINE and speedup(result) >= 1:
            faster.append(result)
    fastest = sorted(faster, key=speedup, reverse=True)[:count]
    return [BASELINE, *(result.name for result in fastest)]


def best_estimate(results: Results) -> ExperimentResult | None:
    """Return the usable result with the highest estimated rate, for a sweep of estimates.

    None if no estimate counts.
    """
    usable = [result for result in results if result.is_usable]
    return max(usable, key=figure_or_zero, default=None)


def figure_or_zero(result: ExperimentResult) -> float:
    return result.figure or 0.0


def work_differences(item: Experiment, base: Experiment) -> list[Difference]:
    """Return the differences in work that keep an experiment's speed from being compared with the baseline's.

    Empty if it can be compared.
    """
    return differences(comparable_work(item), comparable_work(base), IGNORED_BETWEEN_EXPERIMENTS)


def comparable_work(item: Experiment) -> Comparable:
    """Return an experiment's work (what is asked of the engine) in the form in which two runs are compared.

    The other aspects stay empty. A setting that is not given counts as its default.
    """
    names = [*RunConfig.flags_by_effect("work")]
    if item.has_fixed_rate:
        names.append("server_target_qps")
    defaults = {name: info.default for name, info in RunConfig.model_fields.items()}
    scenario = scenario_of(item.settings)  # Some flags, such as a fixed rate, imply a scenario that no setting names.
    settings = {**defaults, **item.settings, "scenario": scenario}
    return Comparable(work={name: str(settings[name]) for name in names})
