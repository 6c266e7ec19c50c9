"""A sweep's folder -> its table, findings in words, plots and report.md. Everything from sweep.json."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean

from harness.common import files
from harness.common.coerce import as_flag
from harness.common.errors import UsageError
from harness.common.files import write_text
from harness.common.markdown import number, render
from harness.config import mlperf
from harness.results import metrics
from harness.results.metrics import Metric
from harness.runs import folder as results
from harness.sweep import plots
from harness.sweep.experiment import Record
from harness.sweep.file import BASELINE
from harness.sweep.knob import Knob, knob
from harness.sweep.lanes import SHARED
from harness.sweep.paired import Paired, paired
from harness.sweep.rows import BRIEF_S, SCORE, SPEED, WORDS, Effect, Row, State, fixed_rate, other_work, rows


@dataclass(frozen=True)
class Report:
    state: State
    rows: tuple[Row, ...]  # of experiments that were begun or skipped
    finals: tuple[Row, ...] = ()  # of those that ran again at full length
    paired: Mapping[str, Paired] = field(default_factory=dict)  # scores against the baseline's, sample by sample

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    @property
    def stack(self) -> list[Row]:
        """The baseline and every stacked experiment that has a speed, in order."""
        rows = [row for row in self.rows if row.experiment.kind == "stacked" or row.name == BASELINE]
        rows = [row for row in rows if row.ratio is not None]
        return rows if len(rows) > 1 else []


def read(folder: Path) -> State:
    """The state a sweep's folder holds. Raises UsageError."""
    path = folder / "sweep.json"
    if not path.exists():
        raise UsageError(f"{folder}: no sweep.json in it; not a sweep's folder.")
    data = files.read_json(path)
    if isinstance(data, dict) and "schema_version" not in data:
        raise UsageError(f"{folder}: written in an older format; use the version that wrote it.")
    return files.parsed(path, data, State)


def build(folder: Path) -> Report:
    """Writes plots/ and report.md into a sweep's folder."""
    state = read(folder)
    found = tuple(rows(state))
    report = Report(state, found, tuple(rows(state, final=True)), paired(folder, found))
    pictures = draw(report, folder / "plots")
    page = render(
        "sweep.md.j2",
        sweep=state.sweep,
        state=state,
        tables=[table for table in (shown("", report.rows), shown("At full length", report.finals)) if table.rows],
        findings=list(findings(report)),
        paired=report.paired,
        rounds=max((record.round + 1 for record in state.records), default=0),
        plots=pictures,
        spread=spread,
        ended=results.ended_early(folder, reported=True),
        **deviations(folder, state.records),
    )
    write_text(folder / "report.md", page)
    return report


@dataclass(frozen=True)
class Table:
    """A table of the report: the experiments, the metrics that any of them has, and how a value is written."""

    title: str
    rows: tuple[Row, ...]
    metrics: tuple[Metric, ...]
    value: Callable[[Row, Metric], str]


def shown(title: str, found: tuple[Row, ...]) -> Table:
    known = tuple(m for m in metrics.shown("sweep") if any(row.numbers.get(m.name) is not None for row in found))
    base = next((row for row in found if row.name == BASELINE), None)
    return Table(title, found, known, partial(value, base=base))


def finalists(state: State, count: int) -> list[str]:
    """The experiments that are worth a run at full length: the fastest that count and are no slower than the baseline,
    and the baseline."""
    counting = [row for row in rows(state) if row.usable and row.ratio and row.name != BASELINE and gain(row) >= 1]
    return [BASELINE, *(row.name for row in sorted(counting, key=gain, reverse=True)[:count])]


def value(row: Row, metric: Metric, base: Row | None) -> str:
    """A metric in the table: speeds that do not count are struck out, scores have their distance from the baseline."""
    found = row.numbers.get(metric.name)
    if found is None:
        return "–"
    if metric.name == SPEED and not row.usable:
        return f"~~{number(found)}~~ not usable"
    start = base.numbers.get(metric.name) if base else None
    if metric.name in mlperf.SCORES and start is not None and row.name != BASELINE:
        return f"{number(found)} ({found - start:+.2f})"
    return number(found)


def change(ratio: float) -> str:
    """A ratio as people say it: +12.3 %."""
    return f"{100 * (ratio - 1):+.1f} %"


def line(record: Record) -> str:
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
    base = report.row(BASELINE)
    timed = any(row.speeds for row in report.rows)
    if base is None or not base.complete or (timed and not base.usable):
        yield "The baseline has no speed that counts, so there is nothing to compare with."
    elif timed and fixed_rate(base.experiment):
        yield "The baseline's speed is its target rate: what compares is TTFT and TPOT at the same rate."
    measured = sorted((row for row in report.rows if row.effect != "unknown" and row.usable), key=gain, reverse=True)
    titles: dict[Effect, str] = {
        "helped": "Helped",
        "hurt": "Hurt",
        "no difference": "Made no difference",
        "unclear": "Not clear, more rounds would tell",
        "busy machine": "Other programs used the machine, so nothing can be said of",
        "too short": f"Tests under {BRIEF_S:g} s, too short to tell",
    }
    for effect, title in titles.items():
        if some := [f"{row.name} ({spread(row)})" for row in measured if row.effect == effect]:
            yield f"{title}: {', '.join(some)}."
    if base is not None:
        for row in report.rows:
            if row.speed and (names := other_work(row.experiment, base.experiment)):
                yield f"{row.name} is not compared: it is other work than the baseline's ({', '.join(names)})."
    if not timed and (safe := [row.name for row in report.rows if row.accuracy == "SAFE"]):
        yield f"Safe: {', '.join(safe)}."
    if unsafe := [f"{row.name} ({loss(row, base)})" for row in report.rows if row.accuracy == "UNSAFE"]:
        yield f"Unsafe{', whatever the speed' if timed else ''}: {', '.join(unsafe)}."
    if invalid := [row.name for row in report.rows if row.valid is False]:
        yield f"INVALID by LoadGen, so no speed to go by: {', '.join(invalid)}."
    for verdict, title in (("holds", "Accuracy as the baseline's"), ("lost", "Accuracy below the baseline's")):
        if known := [f"{name} ({each.said})" for name, each in report.paired.items() if each.verdict == verdict]:
            yield f"{title}, by the same samples: {'; '.join(known)}."
    clear = {name for name, each in report.paired.items() if each.verdict != "not clear"}
    if unsure := [row.name for row in measured if row.accuracy != "SAFE" and row.name not in clear]:
        yield f"Accuracy not shown to hold: {', '.join(unsure)}."
    if steps := [f"{row.name} {number(row.speed)}{'' if row.usable else ' (not usable)'}" for row in report.stack]:
        yield f"Stacked: {' → '.join(steps)} output tokens/s."
    yield from beside_references(report)
    if report.state.note:
        yield f"Not run: {report.state.note}; --resume goes on."
    if base is not None and any(record.gpu for record in base.records):
        yield SHARED + cards(base)
    if best := max(
        (row for row in report.finals if row.usable and row.speed), key=lambda row: row.speed or 0, default=None
    ):
        yield f"The fastest at full length: {best.name}, {number(best.speed)} output tokens/s."
    for row in report.rows:
        if row.trouble:
            yield f"{row.name} {row.trouble}"


def beside_references(report: Report) -> Iterator[str]:
    """The fastest experiment whose speed counts, held against speeds known from elsewhere."""
    counts = [row for row in report.rows if row.usable and not row.brief and not row.others]
    speed, best = max(((row.speed, row.name) for row in counts if row.speed), default=(0.0, ""))
    for name, other in report.state.sweep.references.items():
        if best:
            yield f"The fastest, {best} ({number(speed)} output tokens/s), has {speed / other:.3f} times {name}."


def cards(base: Row) -> str:
    """What the baselines of the GPUs came to, so that one sees how far the cards differ."""
    by_gpu: dict[str, list[float]] = {}
    for (_, gpu), speed in base.speeds.items():
        by_gpu.setdefault(gpu, []).append(speed)
    found = [f"GPU {gpu} {number(mean(speeds))}" for gpu, speeds in sorted(by_gpu.items())]
    return f" The baselines: {', '.join(found)} output tokens/s." if len(found) > 1 else ""


def gain(row: Row) -> float:
    return row.ratio.mean if row.ratio else 0.0


def spread(row: Row) -> str:
    """The change of an experiment, with its range where it was repeated."""
    if row.ratio is None:
        return "–"
    if row.ratio.interval:
        low, high = row.ratio.interval
        return f"{change(row.ratio.mean)}, 95 % interval {change(low)} to {change(high)}"
    between = f", {change(row.ratio.low)} to {change(row.ratio.high)}" if row.ratio.rounds > 1 else ""
    return change(row.ratio.mean) + between


def loss(row: Row, base: Row | None) -> str:
    lost, start = row.score, base.score if base else None
    if lost is None or start is None or row is base:
        return "the gate fails"
    return f"{mlperf.SCORES[SCORE]} {lost - start:+.2f}"


def deviations(folder: Path, records: Sequence[Record]) -> dict[str, object]:
    """Why the numbers are not MLPerf's: `shared` by all runs, and each run's `own`."""
    runs = [record.run for record in records if record.run and record.status == "complete"]
    paths = {run: folder / run / "config.json" for run in runs}
    found = {run: results.facts_of(path.parent).deviations if path.exists() else [] for run, path in paths.items()}
    every = dict.fromkeys(reason for reasons in found.values() for reason in reasons)
    shared = [reason for reason in every if all(reason in reasons for reasons in found.values())]
    own = {run: [reason for reason in reasons if reason not in shared] for run, reasons in found.items()}
    return {"shared": shared, "own": own}


def on_axis(rows: Sequence[Row], turned: Knob) -> list[plots.Point]:
    """The rows of a sweep over one number, those that have it."""
    axis = [(x, row) for row in rows if (x := turned.values.get(row.name)) is not None]
    return [
        plots.Point(x, list(row.speeds.values()), row.usable, not row.others, plots.tails(row.numbers))
        for x, row in axis
    ]


def draw(report: Report, folder: Path) -> dict[str, str]:
    """Draws what there is data for; name -> path relative to the sweep's folder."""
    from harness.reporting.style import save

    folder.mkdir(exist_ok=True)
    drawn = {}
    bars = [(row.name, row.ratio.mean, row.ratio.low, row.ratio.high, row.usable) for row in report.rows if row.ratio]
    turned, references = knob(report.state.sweep), report.state.sweep.references
    if turned and any(row.speed for row in report.rows):
        drawn["speedups"] = plots.by_number(as_flag(turned.name), on_axis(report.rows, turned), references)
    elif len(bars) > 1 and (base := report.row(BASELINE)) and base.speed:
        drawn["speedups"] = plots.speedups(bars, references, base.speed)
    free = [row for row in report.rows if not fixed_rate(row.experiment)]
    points = [
        (row.name, row.speed, row.score, row.usable, not row.others)
        for row in free
        if row.speed and row.score is not None
    ]
    if len(points) > 1:
        drawn["pareto"] = plots.trade_off(points)
    if report.stack:
        drawn["stack"] = plots.path([(row.name, row.speed or 0, row.usable) for row in report.stack], references)
    return save(drawn, folder)
