"""What came of each experiment over all its rounds, compared with the baseline: numbers, change, verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Literal

from harness.config.comparability import CONFIGURED, INVALID, NOT_COUNTED, Comparable, Difference, differences
from harness.config.mlperf import SCENARIO, SCORES, SHORT_SCORES
from harness.config.models import DEFAULT_MODEL
from harness.config.run import RunConfig
from harness.core.coerce import as_flag
from harness.core.document import Document, Line, Section, Tone
from harness.core.markdown import number
from harness.core.schema import SCHEMA, gpu_names
from harness.core.screen import clock
from harness.core.statistics import PairedChange, ratio_interval
from harness.core.system import System
from harness.report import answer, compare
from harness.results import metrics
from harness.runs.folder import FOLDER
from harness.sweep.experiment import SHARING_NOTE, ExperimentOutcome, ExperimentRecord
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
SPEED, SCORE = "tokens_per_sec", SHORT_SCORES[0]
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
    """One experiment over all its rounds; `base` is the baseline, where the speed of that counts."""

    experiment: Experiment
    records: tuple[ExperimentRecord, ...]
    base: "ExperimentResult | None" = None

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
    def numbers(self) -> dict[str, float | None]:
        """Of each metric the mean of the complete rounds that have it."""
        names = [metric.name for metric in metrics.metrics_of("sweep")]
        found = {name: [v for run in self.complete if (v := run.values.get(name)) is not None] for name in names}
        return {name: mean(values) if values else None for name, values in found.items()}

    @property
    def speeds(self) -> dict[tuple[int, str], float]:
        """Output tokens per second by round and GPU."""
        return {(each.round, each.place): speed for each in self.done if (speed := each.outcome.values.get(SPEED))}

    @cached_property
    def ratio(self) -> Ratio | None:
        """None where no baseline's speed counts, or its work is not the baseline's."""
        if self.base is None or unlike(self.experiment, self.base.experiment):
            return None
        theirs = self.base.speeds
        ratios = [speed / theirs[place] for place, speed in self.speeds.items() if place in theirs]
        if not ratios:
            return None
        interval = ratio_interval(ratios)[1:] if len(ratios) >= FEWEST_ROUNDS else None
        return Ratio(mean(ratios), min(ratios), max(ratios), len(ratios), interval)

    @property
    def bound(self) -> str:
        """What set its speed in the first of its runs that tells, in words."""
        return next((run.ran_out[0].what for run in self.complete if run.ran_out), "")

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
        before = self.base.background_load if self.base else []
        return [*before, *(said for run in self.complete for said in run.background_load)]

    @property
    def is_usable(self) -> bool:
        """Whether its speed counts: VALID, within the limits, undisputed, and no failed gate."""
        return self.is_valid is True and self.accuracy != "UNSAFE" and not self.flaws

    @property
    def flaws(self) -> list[str]:
        """What keeps the figures of any round from being compared, whatever LoadGen calls it."""
        return list(dict.fromkeys(flaw for run in self.complete for flaw in run.flaws if flaw != INVALID))

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
        if self.base is None or self.ratio is None or self.name == BASELINE:
            return "unknown"
        if self.background_load:
            return "busy machine"
        if self.is_brief:
            return "too short"
        if self.ratio.interval:
            return clear(self.ratio.mean, *self.ratio.interval)
        answers = {run.answers for run in (*self.complete, *self.base.complete)}
        is_alike = len(answers) == 1 and None not in answers  # as many, and all of one length
        is_steady = (is_alike or self.seconds >= LONG_S) and not is_rated(self.experiment)
        noise = NOISE if is_steady else SHORT_NOISE
        if self.ratio.mean > 1 + noise and self.ratio.low > 1:
            return "helped"
        return "hurt" if self.ratio.mean < 1 - noise and self.ratio.high < 1 else "no difference"

    @property
    def failure(self) -> ExperimentRecord | None:
        """The first of its runs that did not finish."""
        return next((record for record in self.records if record.status != "complete"), None)


def clear(mean: float, low: float, high: float) -> Effect:
    """The verdict of an interval."""
    if abs(mean - 1) > SMALLEST_EFFECT and (low > 1 or high < 1):
        return "helped" if low > 1 else "hurt"
    return "no difference" if low >= 1 - NOISE and high <= 1 + NOISE else "unclear"


def experiment_rows(state: State, final: bool = False) -> list[ExperimentResult]:
    """A row for each experiment that was begun or skipped; ratios where the baseline's speed counts.

    `final`: of the runs at full length alone, else of all others.
    """
    kept = [record for record in state.records if record.final == final]
    every = [(item, tuple(each for each in kept if each.experiment == item.name)) for item in state.experiments]
    found = [ExperimentResult(item, records) for item, records in every if records]
    base = next((result for result in found if result.name == BASELINE and result.is_usable), None)
    return [replace(result, base=base) for result in found]


def gain(result: ExperimentResult) -> float:
    return result.ratio.mean if result.ratio else 0.0


def finalists(found: Sequence[ExperimentResult], count: int) -> list[str]:
    """The experiments that are worth a run at full length: the fastest that count and are no slower than the baseline,
    and the baseline."""
    faster = [result for result in found if result.is_usable and result.name != BASELINE and gain(result) >= 1]
    return [BASELINE, *(result.name for result in sorted(faster, key=gain, reverse=True)[:count])]


def is_rated(item: Experiment) -> bool:
    """Whether its requests are sent at a rate."""
    return SCENARIO[str(item.settings.get("scenario", "offline"))].pattern.is_rated


def unlike(item: Experiment, base: Experiment) -> list[Difference]:
    """Why the speed of an experiment has no ratio to the baseline's, by what their file says of them."""
    found = []
    for each in (item, base):
        settings = {name: info.default for name, info in RunConfig.model_fields.items()} | each.settings
        work = {name: str(settings[name]) for name in RunConfig.affecting("work")}
        found.append(Comparable(work, validity={CONFIGURED: True} if has_fixed_rate(each) else {}))
    mine, theirs = found
    return differences(mine, theirs, IGNORED)


def has_fixed_rate(item: Experiment) -> bool:
    """Whether its speed follows from a configured rate, rather than from what the engine can do."""
    return is_rated(item) and item.settings.get("server_target_qps") != "max"


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
        return f"{SCORES[SCORE]} {self.change:+.2f} against the baseline, {between}: {self.verdict}"


def pair_scores(folder: Path, rows: Sequence[ExperimentResult]) -> dict[str, Paired]:
    """By experiment, where the gate is inconclusive and the baseline answered the same samples. Raises UsageError for a
    damaged file."""
    base = next((accuracy_test(folder, result) for result in rows if result.name == BASELINE), None)
    unsure = [result for result in rows if result.name != BASELINE and result.accuracy == "INCONCLUSIVE"]
    tests = {result.name: mine for result in unsure if (mine := accuracy_test(folder, result))}
    both = {name: tables for name, mine in tests.items() if base and (tables := compare.read_tables(base, mine))}
    return {name: Paired(**vars(compare.score_changes(tables)[SCORE])) for name, tables in both.items()}


def accuracy_test(folder: Path, result: ExperimentResult) -> Path | None:
    """That of the first run that kept its samples."""
    tests = [folder / record.run / FOLDER["accuracy"] for record in result.records if record.run]
    return next((path for path in tests if (path / compare.SAMPLES).exists()), None)


# What a sweep found, the answer first: which change helped, which hurt, which must not be used.
EFFECTS: dict[Effect, tuple[str, str, Tone]] = {  # the label of a line, what it says after the names, and its tone
    "helped": ("helped", "", "good"),
    "no difference": ("no difference", "", ""),
    "hurt": ("hurt", "", "bad"),
    "unclear": ("unclear", ": more rounds would tell", "unknown"),
    "busy machine": ("careful", ": other programs used the machine, so the speeds cannot be compared", "careful"),
    "too short": ("too short", f": tests under {BRIEF_S:g} s are not compared", "unknown"),
}


@dataclass(frozen=True)
class Report:
    state: State
    rows: tuple[ExperimentResult, ...]  # of experiments that were begun or skipped
    finals: tuple[ExperimentResult, ...] = ()  # of those that ran again at full length
    paired: Mapping[str, Paired] = field(default_factory=dict)  # scores against the baseline's, sample by sample

    @cached_property
    def baseline(self) -> ExperimentResult | None:
        return next((result for result in self.rows if result.name == BASELINE), None)

    @property
    def is_timed(self) -> bool:
        """Whether any experiment measured a speed."""
        return any(result.speeds for result in self.rows)

    @property
    def judged(self) -> list[ExperimentResult]:
        """The changes whose speed was compared with the baseline's, the fastest first."""
        return sorted((r for r in self.rows if r.effect != "unknown" and r.is_usable), key=gain, reverse=True)


def document(report: Report, sections: Sequence[Section] = (), more: Sequence[Line] = ()) -> Document:
    """The finding of a sweep, and what must be known of it."""
    found = list(lines(report))
    tone: Tone = "good" if any(line.label == "helped" for line in found) else ""
    return Document(title(report, found), subject(report), [*found, *more], tone=tone, sections=sections)


def title(report: Report, found: Sequence[Line]) -> str:
    base, best = report.baseline, next((r for r in report.judged if r.effect == "helped"), None)
    if base is None or not base.complete:
        return "the baseline did not complete, so no speedup can be given"
    if report.is_timed and not base.is_usable:
        return "the baseline has no valid throughput, so no speedup can be given"
    if report.is_timed and has_fixed_rate(base.experiment):
        return "every experiment was sent the same rate: compare TTFT and TPOT, not speeds"
    if not report.is_timed:
        lost = [result.name for result in report.rows if result.accuracy == "UNSAFE"]
        return f"{' and '.join(lost)} lost accuracy" if lost else "accuracy is all that was measured"
    if best:
        percent = number(100 * (gain(best) - 1), 3)
        return f"{best.name} helped: {percent} % faster ({speed(best)}; baseline {number(base.speed)})"
    labels = dict.fromkeys(line.label for line in found if line.label in {label for label, *_ in EFFECTS.values()})
    if [*labels] == ["careful"]:
        return "the speeds cannot be compared: other programs used the machine"
    return f"no change helped: {', '.join(labels)}" if labels else "no change was measured"


def subject(report: Report) -> str:
    state = report.state
    settings = state.sweep.experiments[0].settings
    model = answer.model_name(str(settings.get("model", DEFAULT_MODEL)))
    machine = gpu_names(state.system.gpus) if state.system.gpus else f"{state.system.cores} CPU cores"
    seconds = sum(record.seconds for record in state.records)
    size = f"{len(state.experiments)} experiments in {clock(seconds)}"
    backend = str(settings.get("backend", "auto"))
    engine = f"vLLM {state.system.vllm_version or 'unknown'}" if backend in ("auto", "vllm") else backend
    return f'Sweep "{state.sweep.name}", {size}, {model}, {machine}, {engine}'


def lines(report: Report) -> Iterator[Line]:
    """What helped, what hurt, what is unsafe: sentences that follow from the numbers."""
    for effect, (label, said, tone) in EFFECTS.items():
        if some := [f"{result.name} {spread(result)}" for result in report.judged if result.effect == effect]:
            yield Line(label, f"{', '.join(some)}{said}", tone)
    yield from accuracy(report)
    base = report.baseline
    for result in report.rows:
        other = (
            [as_flag(e.name) for e in unlike(result.experiment, base.experiment) if e.aspect == "work"] if base else []
        )
        if result.speed and other:
            yield Line("not compared", f"{result.name}: its work is not the baseline's ({', '.join(other)})", "careful")
    if invalid := [result.name for result in report.rows if result.is_valid is False]:
        yield Line("INVALID", f"{', '.join(invalid)}, by LoadGen: no valid speed", "bad")
    yield from (Line("not counted", f"{r.name}: {'; '.join(r.flaws)}", "bad") for r in report.rows if r.flaws)
    stack = [r for r in report.rows if r.ratio and (r.experiment.kind == "stacked" or r.name == BASELINE)]
    if len(stack) > 1:
        steps = (f"{r.name} {number(r.speed)}{'' if r.is_usable else ' (not usable)'}" for r in stack)
        yield Line("stacked", f"{' → '.join(steps)} output tokens/s")
    yield from references(report)
    if full := [result for result in report.finals if result.is_usable and result.speed]:
        best = max(full, key=lambda result: result.speed or 0)
        of = f" is the fastest of {len(full)}" if len(full) > 1 else ""
        yield Line("full length", f"{best.name}{of}: {speed(best)}", "good")
    if base is not None and any(record.gpu for record in base.records):
        yield Line("careful", SHARING_NOTE + cards(base), "careful")
    for result in report.rows:
        if found := result.failure:
            yield Line(found.status, f"{result.name}: {found.reason}", "bad" if found.status == "failed" else "unknown")
    if report.state.note:
        yield Line("careful", report.state.note, "careful")


def accuracy(report: Report) -> Iterator[Line]:
    base = report.baseline
    safe = [result.name for result in report.rows if result.accuracy == "SAFE"]
    if safe and not report.is_timed:
        yield Line("safe", ", ".join(safe), "good")
    if unsafe := [f"{result.name} ({loss(result, base)})" for result in report.rows if result.accuracy == "UNSAFE"]:
        yield Line("unsafe", ", ".join(unsafe) + (", whatever the speed" if report.is_timed else ""), "bad")
    tones: dict[str, Tone] = {"holds": "good", "lost": "bad"}
    for verdict, tone in tones.items():
        if judged := [f"{name} ({each.text})" for name, each in report.paired.items() if each.verdict == verdict]:
            yield Line("accuracy", "; ".join(judged), tone)
    clear = {name for name, each in report.paired.items() if each.verdict != "not clear"}
    if unsure := [r.name for r in report.judged if r.accuracy != "SAFE" and r.name not in clear]:
        yield Line("accuracy", f"not shown to hold: {', '.join(unsure)}", "unknown")


def references(report: Report) -> Iterator[Line]:
    """The fastest experiment whose speed counts, compared with speeds known from elsewhere."""
    counts = [result for result in report.rows if result.is_counted]
    fastest, best = max(((result.speed, result.name) for result in counts if result.speed), default=(0.0, ""))
    for name, other in report.state.sweep.references.items():
        if best:
            yield Line(
                "reference", f"{best} ({number(fastest)} output tokens/s) has {fastest / other:.3f} times {name}"
            )


def cards(base: ExperimentResult) -> str:
    """The baseline's speed on each GPU, so that one sees how far the cards differ."""
    by_gpu: dict[str, list[float]] = {}
    for (_, gpu), each in base.speeds.items():
        by_gpu.setdefault(gpu, []).append(each)
    found = [f"GPU {gpu} {number(mean(speeds))}" for gpu, speeds in sorted(by_gpu.items())]
    return f" The baselines: {', '.join(found)} output tokens/s." if len(found) > 1 else ""


def speed(result: ExperimentResult) -> str:
    return f"{number(result.speed)} output tokens/s"


def change(ratio: float) -> str:
    """A ratio as people say it: +12.3 %."""
    return f"{100 * (ratio - 1):+.1f} %"


def spread(result: ExperimentResult) -> str:
    """The change of an experiment, with its range where it was repeated."""
    if result.ratio is None:
        return "–"
    ratio = result.ratio
    if ratio.interval:
        low, high = map(change, ratio.interval)
        return f"{change(ratio.mean)} (95 % interval {low} to {high})"
    return change(ratio.mean) + (f" ({change(ratio.low)} to {change(ratio.high)})" if ratio.rounds > 1 else "")


def loss(result: ExperimentResult, base: ExperimentResult | None) -> str:
    """How far a score lies below the baseline's."""
    lost, start = result.score, base.score if base else None
    if lost is None or start is None or result is base:
        return "the gate fails"
    return f"{SCORES[SCORE]} {number(lost)}, {lost - start:+.2f} against the baseline"
