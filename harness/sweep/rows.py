"""What came of each experiment over all its rounds, compared with the baseline: numbers, change, verdict."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean
from typing import Literal

from harness.common.schema import SCHEMA
from harness.common.statistics import PairedChange, ratio_interval
from harness.common.system import System
from harness.config import mlperf
from harness.config.comparability import CONFIGURED, NOT_COUNTED, Comparable, Difference, differences
from harness.config.engine import affecting
from harness.config.run import RunConfig
from harness.reporting import paired as answers
from harness.results import metrics
from harness.runs.folder import FOLDER
from harness.sweep.experiment import ExperimentOutcome, ExperimentRecord
from harness.sweep.file import BASELINE, Experiment, Sweep

# From FEWEST_ROUNDS on the verdict is that of a 95 % interval of the rounds' changes (Student's t of their logarithms):
# a change within SMALLEST_EFFECT is none, and an interval that reaches beyond NOISE without leaving none out is
# unclear. With fewer rounds, differences below NOISE are called none: 64 answers of one length, one after the other,
# scattered by 2 % between H200s. Where more varies, below SHORT_NOISE: the number or lengths of the answers of tests
# that last less than LONG_S (the demo's baselines, a few seconds long, were seen to differ by 4 %), or a rate that was
# searched for: a search ends within 3 % of the limit and its run may be repeated 3 % lower. Tests of a second were seen
# to differ by a fifth with settings that change nothing on a CPU: one shorter than BRIEF_S tells nothing.
NOISE, SHORT_NOISE, LONG_S, BRIEF_S = 0.02, 0.06, 60.0, 5.0
# The settings are what a sweep changes; of a speed that does not count, the ratio is given and struck out.
IGNORED = ("settings", "machine", "software", "busyness", "rate", *NOT_COUNTED)
SMALLEST_EFFECT, FEWEST_ROUNDS = 0.005, 3
WORDS = {"FAIL": "UNSAFE", "INCONCLUSIVE": "INCONCLUSIVE", "NOT JUDGED": "not judged", "PASS": "SAFE"}  # worst first
SPEED, SCORE = "tokens_per_sec", mlperf.SHORT_SCORES[0]
LOSS = 0.01  # of the baseline's score, that MLPerf's gate allows of the reference's
Effect = Literal["helped", "hurt", "no difference", "unclear", "too short", "busy machine", "unknown"]


@dataclass(frozen=True)
class State:
    """sweep.json: the experiments, and what came of them so far."""

    command: str
    started: str
    system: System
    sweep: Sweep
    records: tuple[ExperimentRecord, ...]
    note: str = ""  # of the sweep as a whole: what its time limit left out
    combined: Experiment | None = None  # made of what helped
    schema_version: int = SCHEMA

    @property
    def experiments(self) -> tuple[Experiment, ...]:
        return (*self.sweep.experiments, *([self.combined] if self.combined else []))


@dataclass(frozen=True)
class Ratio:
    """Tokens per second against the baseline of the same round and GPU: mean, lowest and highest of so many rounds, and
    from FEWEST_ROUNDS on the 95 % interval of the mean."""

    mean: float
    low: float
    high: float
    rounds: int
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class ExperimentResult:
    """One experiment over all its rounds; `numbers` are means of the complete ones, by metric."""

    experiment: Experiment
    records: tuple[ExperimentRecord, ...]
    numbers: dict[str, float | None]
    ratio: Ratio | None = None
    baseline_load: tuple[str, ...] = ()
    is_alike: bool = False  # its answers are as many as the baseline's, and all of both of one length

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def complete(self) -> list[ExperimentOutcome]:
        return [record.outcome for record in self.records if record.status == "complete"]

    @property
    def speeds(self) -> dict[tuple[int, str], float]:
        """Output tokens per second by round and GPU."""
        done = [record for record in self.records if record.status == "complete"]
        return {(record.round, record.place): speed for record in done if (speed := record.outcome.values.get(SPEED))}

    @property
    def bound(self) -> str:
        """What set its speed in the first of its runs that tells, in words."""
        return next((run.ran_out[0] for run in self.complete if run.ran_out), "").partition(":")[0]

    @property
    def speed(self) -> float | None:
        """Output tokens per second, the mean of the rounds."""
        return self.numbers.get(SPEED)

    @property
    def score(self) -> float | None:
        """The score that stands for all, the mean of the rounds."""
        return self.numbers.get(SCORE)

    @property
    def accuracy(self) -> str:
        """SAFE, UNSAFE, INCONCLUSIVE, not judged or not run: the worst of the rounds."""
        verdicts = [run.verdict for run in self.complete]
        return next((word for verdict, word in WORDS.items() if verdict in verdicts), "not run")

    @property
    def is_valid(self) -> bool | None:
        """LoadGen's verdict on every round; None where nothing was measured."""
        found = [run.valid for run in self.complete if run.valid is not None]
        return all(found) if found else None

    @property
    def background_load(self) -> list[str]:
        """What other programs took of the machine during its tests, or during the baseline's."""
        return [*self.baseline_load, *(said for run in self.complete for said in run.background_load)]

    @property
    def is_usable(self) -> bool:
        """Whether its speed counts: VALID, and no failed gate."""
        return self.is_valid is True and self.accuracy != "UNSAFE"

    @property
    def seconds(self) -> float:
        """How long its performance tests took, the mean of the rounds."""
        return self.numbers.get("duration_s") or 0.0

    @property
    def is_brief(self) -> bool:
        """Whether its tests were so short that their speed tells nothing."""
        return self.seconds < BRIEF_S

    @property
    def is_counted(self) -> bool:
        """Whether its speed may be compared with the baseline's."""
        return self.is_usable and not self.background_load and not self.is_brief

    @property
    def is_telling(self) -> bool:
        """Whether its change is conclusive: of the baseline that its speed counts."""
        return self.is_counted and self.effect != "unclear"

    @property
    def effect(self) -> Effect:
        if self.ratio is None or self.name == BASELINE:
            return "unknown"
        if self.background_load:
            return "busy machine"
        if self.is_brief:
            return "too short"
        if self.ratio.interval:
            return clear(self.ratio.mean, *self.ratio.interval)
        is_steady = (self.is_alike or self.seconds >= LONG_S) and not is_rated(self.experiment)
        noise = NOISE if is_steady else SHORT_NOISE
        if self.ratio.mean > 1 + noise and self.ratio.low > 1:
            return "helped"
        return "hurt" if self.ratio.mean < 1 - noise and self.ratio.high < 1 else "no difference"

    @property
    def trouble(self) -> str:
        """Why it did not finish, in one line; empty where it did."""
        return next((f"{record.status}: {record.reason}" for record in self.records if record.status != "complete"), "")


def clear(mean: float, low: float, high: float) -> Effect:
    """The verdict of an interval."""
    if abs(mean - 1) > SMALLEST_EFFECT and (low > 1 or high < 1):
        return "helped" if low > 1 else "hurt"
    return "no difference" if low >= 1 - NOISE and high <= 1 + NOISE else "unclear"


def rows(state: State, final: bool = False) -> list[ExperimentResult]:
    """A row for each experiment that was begun or skipped; ratios where the baseline's speed counts.

    `final`: of the runs at full length alone, else of all others.
    """
    found = []
    for item in state.experiments:
        records = tuple(r for r in state.records if r.experiment == item.name and r.final == final)
        if records:
            found.append(ExperimentResult(item, records, means(records)))
    base = next((result for result in found if result.name == BASELINE and result.is_usable), None)
    if base is None:
        return found
    shared, load = {run.answers for run in base.complete}, tuple(base.background_load)
    return [
        replace(
            result,
            ratio=against(result, base),
            baseline_load=load,
            is_alike=len(shared | {run.answers for run in result.complete}) == 1 and None not in shared,
        )
        for result in found
    ]


def gain(result: ExperimentResult) -> float:
    return result.ratio.mean if result.ratio else 0.0


def finalists(found: Sequence[ExperimentResult], count: int) -> list[str]:
    """The experiments that are worth a run at full length: the fastest that count and are no slower than the baseline,
    and the baseline."""
    faster = [result for result in found if result.is_usable and result.name != BASELINE and gain(result) >= 1]
    return [BASELINE, *(result.name for result in sorted(faster, key=gain, reverse=True)[:count])]


def is_rated(item: Experiment) -> bool:
    """Whether its requests are sent at a rate."""
    return mlperf.SCENARIO[str(item.settings.get("scenario", "offline"))].pattern.is_rated


def unlike(item: Experiment, base: Experiment) -> list[Difference]:
    """Why the speed of an experiment has no ratio to the baseline's, by what their file says of them."""
    found = []
    for each in (item, base):
        settings = {setting.name: setting.default for setting in fields(RunConfig)} | each.settings
        work = {name: str(settings[name]) for name in affecting(RunConfig, "work")}
        found.append(Comparable(work, validity={CONFIGURED: True} if has_fixed_rate(each) else {}))
    mine, theirs = found
    return differences(mine, theirs, IGNORED)


def has_fixed_rate(item: Experiment) -> bool:
    """Whether its speed follows from a configured rate, rather than from what the engine can do."""
    return is_rated(item) and item.settings.get("server_target_qps") != "max"


def means(records: Sequence[ExperimentRecord]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for metric in metrics.metrics_of("sweep"):
        values = [record.outcome.values.get(metric.name) for record in records if record.status == "complete"]
        measured = [value for value in values if value is not None]
        found[metric.name] = mean(measured) if measured else None
    return found


def against(result: ExperimentResult, base: ExperimentResult) -> Ratio | None:
    if unlike(result.experiment, base.experiment):
        return None
    ratios = [speed / base.speeds[place] for place, speed in result.speeds.items() if place in base.speeds]
    if not ratios:
        return None
    interval = ratio_interval(ratios)[1:] if len(ratios) >= FEWEST_ROUNDS else None
    return Ratio(mean(ratios), min(ratios), max(ratios), len(ratios), interval)


class Paired(PairedChange):
    """The change of a score against the baseline's on the same samples."""

    @property
    def verdict(self) -> Literal["holds", "lost", "not clear"]:
        """Whether at most LOSS is lost, by the whole interval."""
        most = -LOSS * self.before
        return "holds" if self.low >= most else "lost" if self.high < most and not self.few else "not clear"

    @property
    def text(self) -> str:
        between = f"{self.low:+.2f} to {self.high:+.2f}"
        return f"{mlperf.SCORES[SCORE]} {self.change:+.2f} against the baseline, {between}: {self.verdict}"


def pair_scores(folder: Path, rows: Sequence[ExperimentResult]) -> dict[str, Paired]:
    """By experiment, where the gate is inconclusive and the baseline answered the same samples. Raises UsageError for a
    damaged file."""
    base = next((accuracy_test(folder, result) for result in rows if result.name == BASELINE), None)
    unsure = [result for result in rows if result.name != BASELINE and result.accuracy == "INCONCLUSIVE"]
    tests = {result.name: mine for result in unsure if (mine := accuracy_test(folder, result))}
    both = {name: tables for name, mine in tests.items() if base and (tables := answers.read_tables(base, mine))}
    return {name: Paired(**vars(answers.score_changes(tables)[SCORE])) for name, tables in both.items()}


def accuracy_test(folder: Path, result: ExperimentResult) -> Path | None:
    """That of the first run that kept its samples."""
    tests = [folder / record.run / FOLDER["accuracy"] for record in result.records if record.run]
    return next((path for path in tests if (path / answers.SAMPLES).exists()), None)
