"""A sweep's folder -> its table, findings in words, plots and report.md. Everything from sweep.json."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Literal

from harness.common import files
from harness.common.coerce import as_flag
from harness.common.errors import UsageError
from harness.common.files import write_text
from harness.common.markdown import number, render
from harness.common.schema import SCHEMA
from harness.common.system import System
from harness.config import rules
from harness.config.engine import affecting
from harness.config.run import RunConfig
from harness.results import metrics
from harness.results.metrics import Metric
from harness.runs import folder as results
from harness.sweep import plots
from harness.sweep.experiment import Outcome, Record
from harness.sweep.file import BASELINE, Experiment, Sweep
from harness.sweep.knob import Knob, knob

# Differences below these are called none: the second where the performance test lasts less than LONG_S, since the
# demo's baselines, a few seconds long, were seen to differ by 4 % from each other, and where the rate was searched for,
# since a search ends within 3 % of the limit and its run may be repeated 3 % lower. Tests of a second were seen to
# differ by a fifth with settings that change nothing on a CPU: one shorter than BRIEF_S tells nothing.
NOISE, SHORT_NOISE, LONG_S, BRIEF_S = 0.02, 0.06, 60.0, 5.0
WORDS = {"FAIL": "UNSAFE", "INCONCLUSIVE": "INCONCLUSIVE", "NOT JUDGED": "not judged", "PASS": "SAFE"}  # worst first
SPEED, SCORE = "tokens_per_sec", rules.SHORT_SCORES[0]
Effect = Literal["helped", "hurt", "no difference", "too short", "busy machine", "unknown"]


@dataclass(frozen=True)
class State:
    """sweep.json: what was asked for, and what came of it so far."""

    command: str
    started: str
    system: System
    sweep: Sweep
    records: tuple[Record, ...]
    schema_version: int = SCHEMA


@dataclass(frozen=True)
class Ratio:
    """Tokens per second against the baseline of the same round: mean, lowest and highest of so many rounds."""

    mean: float
    low: float
    high: float
    rounds: int


@dataclass(frozen=True)
class Row:
    """One experiment over all its rounds; `numbers` are means of the complete ones, by metric."""

    experiment: Experiment
    records: tuple[Record, ...]
    numbers: dict[str, float | None]
    ratio: Ratio | None = None
    baseline_others: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def complete(self) -> list[Outcome]:
        return [record.outcome for record in self.records if record.status == "complete"]

    @property
    def speeds(self) -> dict[int, float]:
        """Output tokens per second by round."""
        done = [record for record in self.records if record.status == "complete"]
        return {record.round: speed for record in done if (speed := record.outcome.get(SPEED))}

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
    def valid(self) -> bool | None:
        """LoadGen's verdict on every round; None where nothing was measured."""
        found = [run.valid for run in self.complete if run.valid is not None]
        return all(found) if found else None

    @property
    def others(self) -> list[str]:
        """What other programs took of the machine during its tests, or during the baseline's."""
        return [*self.baseline_others, *(said for run in self.complete for said in run.others)]

    @property
    def usable(self) -> bool:
        """Whether its speed counts: VALID, and no failed gate."""
        return self.valid is True and self.accuracy != "UNSAFE"

    @property
    def seconds(self) -> float:
        """How long its performance tests took, the mean of the rounds."""
        return self.numbers.get("duration_s") or 0.0

    @property
    def brief(self) -> bool:
        """Whether its tests were so short that their speed tells nothing."""
        return self.seconds < BRIEF_S

    @property
    def effect(self) -> Effect:
        if self.ratio is None or self.name == BASELINE:
            return "unknown"
        if self.others:
            return "busy machine"
        if self.brief:
            return "too short"
        long = self.seconds >= LONG_S and not scenario(self.experiment).fixed_rate
        noise = NOISE if long else SHORT_NOISE
        if self.ratio.mean > 1 + noise and self.ratio.low > 1:
            return "helped"
        return "hurt" if self.ratio.mean < 1 - noise and self.ratio.high < 1 else "no difference"

    @property
    def trouble(self) -> str:
        """Why it did not run to its end, in one line; empty where it did."""
        return next((f"{record.status}: {record.reason}" for record in self.records if record.status != "complete"), "")


@dataclass(frozen=True)
class Report:
    state: State
    rows: tuple[Row, ...]  # of experiments that were begun or skipped

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
    report = Report(state, tuple(rows(state)))
    pictures = draw(report, folder / "plots")
    page = render(
        "sweep.md.j2",
        sweep=state.sweep,
        state=state,
        rows=report.rows,
        metrics=[m for m in metrics.shown("sweep") if any(row.numbers.get(m.name) is not None for row in report.rows)],
        value=partial(value, base=report.row(BASELINE)),
        findings=list(findings(report)),
        rounds=max((record.round + 1 for record in state.records), default=0),
        plots=pictures,
        spread=spread,
        ended=results.ended_early(folder, reported=True),
        **deviations(folder, state.records),
    )
    write_text(folder / "report.md", page)
    return report


def rows(state: State) -> list[Row]:
    """A row for each experiment that was begun or skipped; ratios where the baseline's speed counts."""
    found = []
    for item in state.sweep.experiments:
        if records := tuple(record for record in state.records if record.experiment == item.name):
            found.append(Row(item, records, means(records)))
    base = next((row for row in found if row.name == BASELINE and row.usable), None)
    if base is None:
        return found
    return [replace(row, ratio=against(row, base), baseline_others=tuple(base.others)) for row in found]


def value(row: Row, metric: Metric, base: Row | None) -> str:
    """A metric in the table: speeds that do not count are struck out, scores have their distance from the baseline."""
    found = row.numbers.get(metric.name)
    if found is None:
        return "–"
    if metric.name == SPEED and not row.usable:
        return f"~~{number(found)}~~ not usable"
    start = base.numbers.get(metric.name) if base else None
    if metric.name in rules.SCORES and start is not None and row.name != BASELINE:
        return f"{number(found)} ({found - start:+.2f})"
    return number(found)


def scenario(item: Experiment) -> rules.Scenario:
    return rules.SCENARIO[str(item.settings.get("scenario", "offline"))]


def other_work(item: Experiment, base: Experiment) -> list[str]:
    """The flags by which an experiment asks something else of the engine than the baseline: speeds do not compare."""
    unset = {each.name: each.default for each in fields(RunConfig)}
    mine, theirs = unset | item.settings, unset | base.settings
    return [as_flag(name) for name in affecting(RunConfig, "work") if str(mine[name]) != str(theirs[name])]


def fixed_rate(item: Experiment) -> bool:
    """Whether its speed follows from a configured rate, rather than from what the engine can do."""
    return scenario(item).fixed_rate and item.settings.get("server_target_qps") != "max"


def means(records: Sequence[Record]) -> dict[str, float | None]:
    done = [record.outcome for record in records if record.status == "complete"]
    return {metric.name: average([run.get(metric.name) for run in done]) for metric in metrics.shown("sweep")}


def against(row: Row, base: Row) -> Ratio | None:
    given = fixed_rate(row.experiment) or fixed_rate(base.experiment)
    if given or other_work(row.experiment, base.experiment):
        return None
    ratios = [speed / base.speeds[turn] for turn, speed in row.speeds.items() if turn in base.speeds]
    return Ratio(mean(ratios), min(ratios), max(ratios), len(ratios)) if ratios else None


def average(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


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
        parts.append(f"{WORDS[run.verdict]}, {rules.SCORES[SCORE]} {number(score)}")
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
    if unsure := [row.name for row in measured if row.accuracy != "SAFE"]:
        yield f"Accuracy not shown to hold: {', '.join(unsure)}."
    if steps := [f"{row.name} {number(row.speed)}{'' if row.usable else ' (not usable)'}" for row in report.stack]:
        yield f"Stacked: {' → '.join(steps)} output tokens/s."
    yield from beside_references(report)
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


def gain(row: Row) -> float:
    return row.ratio.mean if row.ratio else 0.0


def spread(row: Row) -> str:
    """The change of an experiment, with its range where it was repeated."""
    if row.ratio is None:
        return "–"
    between = f", {change(row.ratio.low)} to {change(row.ratio.high)}" if row.ratio.rounds > 1 else ""
    return change(row.ratio.mean) + between


def loss(row: Row, base: Row | None) -> str:
    lost, start = row.score, base.score if base else None
    if lost is None or start is None or row is base:
        return "the gate fails"
    return f"{rules.SCORES[SCORE]} {lost - start:+.2f}"


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
