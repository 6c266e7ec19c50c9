"""A sweep's folder -> its table, findings in words, plots and report.md. Everything from sweep.json."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean

from harness.common import files
from harness.common.coerce import as_flag
from harness.common.errors import UsageError
from harness.common.files import write_text
from harness.common.markdown import Column, Finished, Table, cell, code, escape, number, render
from harness.config import mlperf
from harness.results import metrics
from harness.results.metrics import Metric
from harness.runs import folder as results
from harness.sweep import plots
from harness.sweep.experiment import ExperimentRecord
from harness.sweep.file import BASELINE
from harness.sweep.lanes import SHARING_NOTE
from harness.sweep.paired import Paired, pair_scores
from harness.sweep.rows import (
    BRIEF_S,
    SCORE,
    SPEED,
    WORDS,
    Effect,
    ExperimentResult,
    State,
    fixed_rate,
    gain,
    rows,
    unlike,
)

VERDICTS = {None: "–", True: "VALID", False: "INVALID"}


@dataclass(frozen=True)
class Report:
    state: State
    rows: tuple[ExperimentResult, ...]  # of experiments that were begun or skipped
    finals: tuple[ExperimentResult, ...] = ()  # of those that ran again at full length
    paired: Mapping[str, Paired] = field(default_factory=dict)  # scores against the baseline's, sample by sample

    def result(self, name: str) -> ExperimentResult | None:
        return next((result for result in self.rows if result.name == name), None)

    @property
    def stack(self) -> list[ExperimentResult]:
        """The baseline and every stacked experiment that has a speed, in order."""
        rows = [result for result in self.rows if result.experiment.kind == "stacked" or result.name == BASELINE]
        rows = [result for result in rows if result.ratio is not None]
        return rows if len(rows) > 1 else []


def read(folder: Path) -> State:
    """The state a sweep's folder holds. Raises UsageError."""
    path = folder / "sweep.json"
    if not path.exists():
        raise UsageError(f"{folder}: no sweep.json in it; not a sweep's folder.")
    data = files.read_json(path)
    if isinstance(data, dict) and "schema_version" not in data:
        raise UsageError(f"{folder}: written in an older format; use the version that wrote it.")
    return files.parse_as(path, data, State)


def build(folder: Path, state: State | None = None) -> Report:
    """Writes plots/ and report.md into a sweep's folder, of the state that it holds."""
    state = state or read(folder)
    found = tuple(rows(state))
    report = Report(state, found, tuple(rows(state, final=True)), pair_scores(folder, found))
    pictures = draw_sweep(report, folder / "plots")
    page = render(
        "sweep.md.j2",
        sweep=state.sweep,
        state=state,
        tables={"All experiments": table(report.rows, report.paired)}
        | ({"At full length": table(report.finals, {})} if report.finals else {}),
        findings=list(findings(report)),
        rounds=max((record.round + 1 for record in state.records), default=0),
        plots=pictures,
        ended=results.ended_early(folder, reported=True),
        **deviations(folder, state.records),
    )
    write_text(folder / "report.md", page)
    return report


def table(found: Sequence[ExperimentResult], judged: Mapping[str, Paired]) -> Table:
    """A line for each experiment, with the metrics that any of them has."""
    base = next((result for result in found if result.name == BASELINE), None)
    measured = [
        m for m in metrics.metrics_of("sweep") if any(result.numbers.get(m.name) is not None for result in found)
    ]
    pairs = {name: f"({each.said})" for name, each in judged.items()}
    columns: dict[str, Column] = {
        "experiment": lambda result: result.name,
        "description": experiment_text,
        "change": change_text,
        **{m.label: partial(value, metric=m, base=base) for m in measured},
        "LoadGen": lambda result: VERDICTS[result.valid] if result.complete else result.trouble,
        "accuracy": lambda result: " ".join(filter(None, (result.accuracy, pairs.get(result.name)))),
        "bound by": lambda result: result.bound or "–",
    }
    return Table.of(found, columns)


def change_text(result: ExperimentResult) -> str:
    """Its change; struck out where its speed does not count."""
    found = "–" if result.name == BASELINE else spread(result)
    return found if result.usable or not result.ratio else f"~~{found}~~"


def experiment_text(result: ExperimentResult) -> str:
    """What an experiment is for, and what it changes."""
    about, changes = result.experiment.about, " ".join(result.experiment.changes)
    parts = [escape(cell(about)) if about else "", f"(`{code(cell(changes))}`)" if changes else ""]
    return Finished(" ".join(filter(None, parts)))


def value(result: ExperimentResult, metric: Metric, base: ExperimentResult | None) -> str:
    """A metric in the table: speeds that do not count are struck out, scores have their distance from the baseline."""
    found = result.numbers.get(metric.name)
    if found is None:
        return "–"
    if metric.name == SPEED and not result.usable:
        return f"~~{number(found)}~~ not usable"
    start = base.numbers.get(metric.name) if base else None
    if metric.name in mlperf.SCORES and start is not None and result.name != BASELINE:
        return f"{number(found)} ({found - start:+.2f})"
    return number(found)


def change(ratio: float) -> str:
    """A ratio as people say it: +12.3 %."""
    return f"{100 * (ratio - 1):+.1f} %"


def line(record: ExperimentRecord) -> str:
    """One experiment's outcome in one line."""
    run = record.outcome
    if record.status != "complete":
        return f"{record.status}: {record.reason}"
    speed, score = run.get(SPEED), run.get(SCORE)
    parts = [f"{number(speed)} output tokens/s, {'VALID' if run.valid else 'INVALID'}"] if speed else []
    if run.verdict:
        parts.append(f"{WORDS[run.verdict]}, {mlperf.SCORES[SCORE]} {number(score)}")
    return "; ".join([*parts, f"{record.seconds:.0f} s"])


def findings(report: Report) -> Iterator[str]:
    """What helped, what hurt, what is unsafe, in sentences that follow from the numbers."""
    base = report.result(BASELINE)
    timed = any(result.speeds for result in report.rows)
    if base is None or not base.complete or (timed and not base.usable):
        yield "The baseline has no speed that counts, so there is nothing to compare with."
    elif timed and fixed_rate(base.experiment):
        yield "The baseline's speed is its target rate: what compares is TTFT and TPOT at the same rate."
    measured = sorted(
        (result for result in report.rows if result.effect != "unknown" and result.usable), key=gain, reverse=True
    )
    titles: dict[Effect, str] = {
        "helped": "Helped",
        "hurt": "Hurt",
        "no difference": "Made no difference",
        "unclear": "Not clear, more rounds would tell",
        "busy machine": "Other programs used the machine, so nothing can be said of",
        "too short": f"Tests under {BRIEF_S:g} s, too short to tell",
    }
    for effect, title in titles.items():
        if some := [f"{result.name} ({spread(result)})" for result in measured if result.effect == effect]:
            yield f"{title}: {', '.join(some)}."
    if base is not None:
        for result in report.rows:
            other = [as_flag(each.name) for each in unlike(result.experiment, base.experiment) if each.aspect == "work"]
            if result.speed and other:
                yield f"{result.name} is not compared: it is other work than the baseline's ({', '.join(other)})."
    if not timed and (safe := [result.name for result in report.rows if result.accuracy == "SAFE"]):
        yield f"Safe: {', '.join(safe)}."
    if unsafe := [f"{result.name} ({loss(result, base)})" for result in report.rows if result.accuracy == "UNSAFE"]:
        yield f"Unsafe{', whatever the speed' if timed else ''}: {', '.join(unsafe)}."
    if invalid := [result.name for result in report.rows if result.valid is False]:
        yield f"INVALID by LoadGen, so no speed to go by: {', '.join(invalid)}."
    for verdict, title in (("holds", "Accuracy as the baseline's"), ("lost", "Accuracy below the baseline's")):
        if judged := [f"{name} ({each.said})" for name, each in report.paired.items() if each.verdict == verdict]:
            yield f"{title}, by the same samples: {'; '.join(judged)}."
    clear = {name for name, each in report.paired.items() if each.verdict != "not clear"}
    if unsure := [result.name for result in measured if result.accuracy != "SAFE" and result.name not in clear]:
        yield f"Accuracy not shown to hold: {', '.join(unsure)}."
    if steps := [
        f"{result.name} {number(result.speed)}{'' if result.usable else ' (not usable)'}" for result in report.stack
    ]:
        yield f"Stacked: {' → '.join(steps)} output tokens/s."
    yield from against_references(report)
    if report.state.note:
        yield f"Not run: {report.state.note}; --resume goes on."
    if base is not None and any(record.gpu for record in base.records):
        yield SHARING_NOTE + cards(base)
    if best := max(
        (result for result in report.finals if result.usable and result.speed),
        key=lambda result: result.speed or 0,
        default=None,
    ):
        yield f"The fastest at full length: {best.name}, {number(best.speed)} output tokens/s."
    for result in report.rows:
        if result.trouble:
            yield f"{result.name} {result.trouble}"


def against_references(report: Report) -> Iterator[str]:
    """The fastest experiment whose speed counts, held against speeds known from elsewhere."""
    counts = [result for result in report.rows if result.counts]
    speed, best = max(((result.speed, result.name) for result in counts if result.speed), default=(0.0, ""))
    for name, other in report.state.sweep.references.items():
        if best:
            yield f"The fastest, {best} ({number(speed)} output tokens/s), has {speed / other:.3f} times {name}."


def cards(base: ExperimentResult) -> str:
    """What the baselines of the GPUs came to, so that one sees how far the cards differ."""
    by_gpu: dict[str, list[float]] = {}
    for (_, gpu), speed in base.speeds.items():
        by_gpu.setdefault(gpu, []).append(speed)
    found = [f"GPU {gpu} {number(mean(speeds))}" for gpu, speeds in sorted(by_gpu.items())]
    return f" The baselines: {', '.join(found)} output tokens/s." if len(found) > 1 else ""


def spread(result: ExperimentResult) -> str:
    """The change of an experiment, with its range where it was repeated."""
    if result.ratio is None:
        return "–"
    if result.ratio.interval:
        low, high = result.ratio.interval
        return f"{change(result.ratio.mean)}, 95 % interval {change(low)} to {change(high)}"
    between = f", {change(result.ratio.low)} to {change(result.ratio.high)}" if result.ratio.rounds > 1 else ""
    return change(result.ratio.mean) + between


def loss(result: ExperimentResult, base: ExperimentResult | None) -> str:
    lost, start = result.score, base.score if base else None
    if lost is None or start is None or result is base:
        return "the gate fails"
    return f"{mlperf.SCORES[SCORE]} {lost - start:+.2f}"


def deviations(folder: Path, records: Sequence[ExperimentRecord]) -> dict[str, object]:
    """Why the numbers are not MLPerf's: `shared` by all runs, and each run's `own`."""
    runs = [record.run for record in records if record.run and record.status == "complete"]
    paths = {run: folder / run / "config.json" for run in runs}
    found = {run: results.facts_of(path.parent).deviations if path.exists() else [] for run, path in paths.items()}
    every = dict.fromkeys(reason for reasons in found.values() for reason in reasons)
    shared = [reason for reason in every if all(reason in reasons for reasons in found.values())]
    own = {run: [reason for reason in reasons if reason not in shared] for run, reasons in found.items()}
    return {"shared": shared, "own": own}


def on_axis(rows: Sequence[ExperimentResult], turned: plots.Knob) -> list[plots.SweepPoint]:
    """The rows of a sweep over one number, those that have it."""
    axis = [(x, result) for result in rows if (x := turned.values.get(result.name)) is not None]
    return [
        plots.SweepPoint(
            x, list(result.speeds.values()), result.usable, not result.background_load, plots.tails(result.numbers)
        )
        for x, result in axis
    ]


def draw_sweep(report: Report, folder: Path) -> dict[str, str]:
    """Draws what there is data for; name -> path relative to the sweep's folder."""
    from harness.reporting.style import save

    folder.mkdir(exist_ok=True)
    drawn = {}
    bars = [
        (result.name, result.ratio.mean, result.ratio.low, result.ratio.high, result.usable, result.counts)
        for result in report.rows
        if result.ratio
    ]
    turned, references = plots.knob(report.state.sweep), report.state.sweep.references
    if turned and any(result.speed for result in report.rows):
        drawn["speedups"] = plots.by_number(as_flag(turned.name), on_axis(report.rows, turned), references)
    elif len(bars) > 1 and (base := report.result(BASELINE)) and base.speed:
        drawn["speedups"] = plots.speedups(bars, references, base.speed)
    free = [result for result in report.rows if not fixed_rate(result.experiment)]
    points = [
        (result.name, result.speed, result.score, result.usable, not result.background_load)
        for result in free
        if result.speed and result.score is not None
    ]
    if len(points) > 1:
        drawn["pareto"] = plots.trade_off(points)
    if report.stack:
        drawn["stack"] = plots.path(
            [(result.name, result.speed or 0, result.usable) for result in report.stack], references
        )
    return save(drawn, folder)
