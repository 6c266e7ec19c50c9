"""The result of an experiment over all its rounds, compared with the baseline."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from statistics import mean
from typing import Literal

from harness.config.comparability import INVALID, NOT_COUNTED, Comparable, Difference, differences
from harness.config.mlperf import SCORES, SHORT_SCORES
from harness.config.run import RunConfig, scenario_of
from harness.core.formatting import Measured, plural
from harness.results.change import FEWEST_PAIRS, Change
from harness.results.metrics import METRIC_BY_NAME, Metric, metrics_of
from harness.results.round_changes import paired
from harness.sweep.experiment import ExperimentOutcome, ExperimentRecord, State
from harness.sweep.file import BASELINE, Experiment

# The settings are what a sweep changes; of a speed that does not count, the change is given and struck out.
IGNORED_BETWEEN_EXPERIMENTS = ("settings", "machine", "software", "busyness", "rate", *NOT_COUNTED)
BRIEF_S = 5.0  # tests of a second were seen to differ by a fifth with the same settings on a CPU
WORDS = {"FAIL": "UNSAFE", "INCONCLUSIVE": "INCONCLUSIVE", "NOT JUDGED": "not judged", "PASS": "SAFE"}  # worst first
SPEED_METRIC, LATENCY_METRIC = (
    METRIC_BY_NAME["tokens_per_sec"],
    METRIC_BY_NAME["latency_p50_ms"],
)  # the speed follows a rate that is given
ESTIMATE_METRIC, CAP_METRIC = METRIC_BY_NAME["estimated_qps"], METRIC_BY_NAME["most_running"]  # metrics of --quick
SCORE_METRIC = SHORT_SCORES[0]
Effect = Literal["helped", "hurt", "no difference", "unclear", "too short", "busy machine", "unknown"]
EFFECT: dict[str, Effect] = {"above": "helped", "below": "hurt", "equal": "no difference", "unclear": "unclear"}


@dataclass(frozen=True)
class ExperimentResult:
    """One experiment over all its rounds; `base` is the baseline, where the speed of that counts, and `change` the one
    against it.
    """

    experiment: Experiment
    records: Sequence[ExperimentRecord]
    base: "ExperimentResult | None" = None
    change: Change | None = None

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def done(self) -> list[ExperimentRecord]:
        return [record for record in self.records if record.status == "complete"]

    @property
    def complete(self) -> list[ExperimentOutcome]:
        return [record.outcome for record in self.done]

    @cached_property
    def numbers(self) -> dict[str, float]:
        """The mean of each metric over the runs that have it; of a score over all."""
        found = {}
        for metric in metrics_of("sweep"):
            runs = self.complete if metric.name in SCORES else self.runs
            if values := [value for run in runs if (value := run.values.get(metric.name)) is not None]:
                found[metric.name] = mean(values)
        return found

    @cached_property
    def counted(self) -> dict[tuple[int, str], ExperimentOutcome]:
        """Its runs that its figures are of, by round and place: those beside one of the baseline that counts, if any
        are, and the sound ones alone, where these are enough.
        """
        every = {(record.round, record.place): record.outcome for record in self.done}
        every = {at: run for at, run in every.items() if self.base and at in self.base.counted} or every
        sound = {at: run for at, run in every.items() if run.is_sound}
        return sound if len(sound) >= FEWEST_PAIRS else every

    @property
    def runs(self) -> list[ExperimentOutcome]:
        return [*self.counted.values()]

    @property
    def paired_runs(self) -> dict[tuple[int, str], tuple[ExperimentOutcome, ExperimentOutcome]]:
        """The baseline's run and its own, by round and place."""
        theirs = self.base.counted if self.base else {}
        return {at: (theirs[at], run) for at, run in self.counted.items() if at in theirs}

    @property
    def pairs(self) -> list[tuple[ExperimentOutcome, ExperimentOutcome]]:
        """The baseline's run and its own of each round and place."""
        return [*self.paired_runs.values()]

    @property
    def left_out(self) -> str:
        """Return how many of its runs no figure is of, and why."""
        count = len(self.done) - len(self.runs)
        why = distinct(said for run in self.complete for said in (*run.background_load, *run.flaws))
        said = "; ".join(why) or "the baseline's of the same round does not count"
        return f"{count} of {plural(len(self.done), 'run')} of {self.name}: {said}" if count else ""

    def values(self, metric: Metric) -> list[tuple[float, float]]:
        """A metric of the baseline and of its own, by pairs that have both."""
        found = ([run.values.get(metric.name) for run in pair] for pair in self.pairs)
        return [(theirs, mine) for theirs, mine in found if theirs is not None and mine is not None]

    @property
    def metric(self) -> Metric:
        """The metric by which it is judged."""
        if self.experiment.is_estimate:
            return ESTIMATE_METRIC
        return LATENCY_METRIC if self.experiment.has_fixed_rate else SPEED_METRIC

    @property
    def figure(self) -> Measured:
        """The mean of that."""
        return self.numbers.get(self.metric.name)

    def ratios(self, metric: Metric) -> dict[tuple[int, str], float]:
        """Return a metric as a share of the baseline's, by round and place, where both have one above 0."""
        found = {}
        for at, (theirs, mine) in self.paired_runs.items():
            before, after = theirs.values.get(metric.name), mine.values.get(metric.name)
            if before is not None and after is not None and min(before, after) > 0:
                found[at] = after / before
        return found

    @property
    def gain(self) -> Change | None:
        """The change of its speed."""
        return self.change.speed_change(self.metric) if self.change else None

    @property
    def bound(self) -> str:
        """Return what set its speed in the first of its runs that tells, in words."""
        return next((run.ran_out[0].what for run in self.complete if run.ran_out), "")

    @property
    def speed(self) -> Measured:
        """Output tokens per second, the mean of the rounds."""
        return self.numbers.get(SPEED_METRIC.name)

    @property
    def score(self) -> Measured:
        """The score that stands for all, the mean of the rounds."""
        return self.numbers.get(SCORE_METRIC)

    @property
    def accuracy(self) -> str:
        """SAFE, UNSAFE, INCONCLUSIVE, not judged or not run: the worst of the rounds."""
        verdicts = [run.verdict for run in self.complete]
        return next((word for verdict, word in WORDS.items() if verdict in verdicts), "not run")

    @property
    def is_valid(self) -> bool | None:
        """LoadGen's verdict on every run; None where nothing was measured."""
        found = [run.valid for run in self.runs if run.valid is not None]
        return all(found) if found else None

    @property
    def background_load(self) -> list[str]:
        """Return what other programs took of the machine during its tests, or during the baseline's."""
        runs = [run for pair in self.pairs for run in pair] or self.complete
        return distinct(load for run in runs for load in run.background_load)

    @property
    def is_usable(self) -> bool:
        """Tell whether its speed counts: VALID or an estimate, within the limits, undisputed, and no failed gate."""
        return (
            bool(self.is_valid or self.numbers.get(ESTIMATE_METRIC.name))
            and self.accuracy != "UNSAFE"
            and not self.flaws
        )

    @property
    def flaws(self) -> list[str]:
        """Return what keeps the figures of any run from being compared, whatever LoadGen calls it."""
        runs = [run for pair in self.pairs for run in pair] or self.runs
        return distinct(flaw for run in runs for flaw in run.flaws if flaw != INVALID)

    @property
    def doubt(self) -> Effect | None:
        """Return why its speed is not judged; rounds enough show themselves what they scatter."""
        is_brief = (self.numbers.get("duration_s") or inf) < BRIEF_S and len(self.done) < FEWEST_PAIRS
        return "busy machine" if self.background_load else "too short" if is_brief else None

    @property
    def effect(self) -> Effect:
        return (self.doubt or EFFECT[self.gain.effect]) if self.gain else "unknown"

    @property
    def failure(self) -> ExperimentRecord | None:
        """The first of its runs that did not finish."""
        return next((record for record in self.records if record.status != "complete"), None)


Results = Sequence[ExperimentResult]


def experiment_rows(state: State, final: bool = False) -> list[ExperimentResult]:
    """A row for each experiment that was begun or skipped; changes where the baseline's speed counts.

    `final`: of the runs at full length alone, else of all others.
    """
    kept = [record for record in state.records if record.final == final]
    found = [
        ExperimentResult(item, records)
        for item in (*state.sweep.experiments, *filter(None, [state.capped]))
        if (records := [each for each in kept if each.experiment == item.name])
    ]
    base = next((result for result in found if result.name == BASELINE and result.is_usable), None)
    found = [replace(result, base=base) for result in found]
    ratios = {
        each.name: ratios
        for each in found
        if base and each.name != BASELINE and not incomparable_reason(each.experiment, base.experiment)
        if (ratios := each.ratios(each.metric))
    }
    changes = paired(ratios, state.error)
    return [replace(result, change=changes.get(result.name)) for result in found]


def distinct(found: Iterable[str]) -> list[str]:
    """Each statement once, though its figures differ from run to run."""
    return [*{re.sub(r"\d[\d.,]*", "", text): text for text in found}.values()]


def is_known(state: State, rounds: int) -> bool:
    """Tell whether the intervals after so many rounds are as narrow as was asked for."""
    before = tuple(record for record in state.records if record.round < rounds)
    changes = [each.change for each in experiment_rows(replace(state, records=before)) if each.name != BASELINE]
    return all(change and 100 * (change.high - change.low) < state.within for change in changes)


def speedup(result: ExperimentResult) -> float:
    return result.gain.mean if result.gain else 0.0


def finalists(found: Results, count: int) -> list[str]:
    """The experiments that are worth a run at full length: the fastest that count and are no slower than the baseline,
    and the baseline.
    """
    faster = [result for result in found if result.is_usable and result.name != BASELINE and speedup(result) >= 1]
    return [BASELINE, *(result.name for result in sorted(faster, key=speedup, reverse=True)[:count])]


def best_estimate(found: Results) -> ExperimentResult | None:
    """The one with the highest estimated rate; None where no estimate counts."""
    return max((each for each in found if each.is_usable), key=lambda each: each.figure or 0.0, default=None)


def incomparable_reason(item: Experiment, base: Experiment) -> list[Difference]:
    """Return why the speed of an experiment has no ratio to the baseline's, by what their file says of them."""
    found = []
    for each in (item, base):
        settings = {name: info.default for name, info in RunConfig.model_fields.items()} | each.settings
        settings["scenario"] = scenario_of(each.settings)
        names = (*RunConfig.affecting("work"), *("server_target_qps",) * each.has_fixed_rate)
        found.append(Comparable({name: str(settings[name]) for name in names}))
    mine, theirs = found
    return differences(mine, theirs, IGNORED_BETWEEN_EXPERIMENTS)
