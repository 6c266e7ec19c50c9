"""A sweep's folder -> its table, findings in words, plots and report.md. Everything from sweep.json."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from harness.config.comparability import Comparable, differences
from harness.config.mlperf import SCORES
from harness.core import files, processes
from harness.core.document import Code, Line, Picture, Section, to_markdown
from harness.core.errors import UsageError
from harness.core.formatting import cell, joined, listed, number, plural
from harness.core.markdown import Finished, code, escape
from harness.core.tables import Column, Table
from harness.report import answer, compare, page, regression
from harness.report.charts import HOLLOW, RING, Bar, Bars, Lines, Panel, Part, Point, Scale, Series, save
from harness.results.benchmark_run import facts_of
from harness.results.change import Change
from harness.results.metrics import Metric, metrics_of
from harness.runs.run_folder import FOLDER, RunFolder, ended_early, open_run
from harness.sweep.experiment import ExperimentRecord, State
from harness.sweep.file import BASELINE, Sweep
from harness.sweep.findings import (
    ESTIMATED,
    KEPT,
    SCORE,
    SPEED,
    WORDS,
    ExperimentResult,
    Results,
    SweepReport,
    document,
    experiment_rows,
)

# The pictures of a sweep: speed against the baseline, speed against accuracy.
MOST_LABELLED = 10  # points that can all have their names beside them


def draw(report: SweepReport, folder: Path) -> dict[str, Picture]:
    """Draws the pictures that have data, by name."""
    drawn = dict[str, tuple[str, list[Panel]]]()
    if len(bars := [result for result in report.rows if result.gain or result is report.baseline]) > 1:
        drawn["speedups"] = "Speed of each experiment", [speedups(bars)]
    points = [r for r in report.rows if r.speed and r.score is not None and not r.experiment.has_fixed_rate]
    if len(points) > 1:
        drawn["pareto"] = "Speed against accuracy", [trade_off(points)]
    return save(drawn, folder)


def speedups(found: Results) -> Bars:
    """Speed of each experiment relative to the baseline's; what is not conclusive is hollow."""
    rows = []
    for result in found:
        gain = result.gain or Change(1.0, 1.0, 1.0)  # of the baseline
        is_clear = result.is_usable and not result.doubt and result.effect != "unclear"
        part = Part(0.0, gain.mean, "blue" if result.is_usable else "red", not is_clear)
        ends = (gain.low, gain.high) if gain.high > gain.low else ()
        rows.append(Bar(result.name, f"{gain.mean:.2f}", [part], ends))
    note = "red: not usable" * any(not result.is_usable for result in found)
    return Bars("Speed against the baseline", joined("; ", "speed, baseline = 1", note), rows, [1.0])


def trade_off(found: Results) -> Lines:
    """Accuracy against speed. What other programs slowed down is on no front."""
    points = {result.name: (result.speed or 0.0, result.score or 0.0) for result in found}
    front = pareto([points[result.name] for result in found if result.is_usable and not result.background_load])
    series = [Series("Pareto front", front, "amber", "o", is_hollow=True, size=RING)] if front else []
    for result in found:
        point, mark = points[result.name], "o" if result.is_usable else "X"
        is_named = len(found) <= MOST_LABELLED or mark == "X" or result.name == BASELINE or point in front
        color, texts = "blue" if result.is_usable else "red", [result.name] if is_named else []
        series.append(Series("", [point], color, mark, "", bool(result.background_load), texts=texts))
    crosses = "crosses: not usable" * any(not result.is_usable for result in found)
    hollow = HOLLOW * any(result.background_load for result in found)
    across, down = map(Scale.around, zip(*points.values(), strict=True))
    return Lines(
        joined("; ", "Speed against accuracy", crosses, hollow),
        "output tokens/s",
        SCORES[SCORE],
        series,
        across,
        down,
        inches=4.0,
    )


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in both coordinates, by the first."""
    front = list[Point]()
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


STATE = TypeAdapter(State)
IGNORED = ("work", "settings", "busyness", "validity", "rate")  # of the machines of one sweep
VERDICTS = {None: "–", True: "VALID", False: "INVALID"}


def read(folder: Path) -> State:
    """The state a sweep's folder holds. Raises UsageError."""
    return files.read(folder / "sweep.json", State)


def write(folder: Path, state: State) -> None:
    """Keeps a sweep's state in its folder."""
    files.write_json(folder / "sweep.json", STATE.dump_python(state, by_alias=True))


def build(folder: Path, state: State | None = None) -> SweepReport:
    """Writes plots/ and report.md into a sweep's folder, of the state that it holds."""
    state = state or read(folder)
    found = experiment_rows(state)
    report = SweepReport(state, found, experiment_rows(state, final=True), pairs_of(folder, state, found))
    pictures = draw(report, folder / "plots")
    ended = ended_early(folder, reported=True)
    shared, own = deviations(folder, state.records)
    more = [Line("did not finish", ended or "", "bad"), Line(answer.NOT_COMPARABLE, "; ".join(shared), "careful")]
    page_of = document(report, [*sections(report, own, pictures)], more)
    files.write_text(folder / "report.md", to_markdown(page_of))
    files.write_text(folder / "report.html", page.page(page_of))
    return report


def pairs_of(folder: Path, state: State, rows: Results) -> dict[str, compare.Pair]:
    """The answers of experiments beside the baseline's, where the gate is inconclusive, or servers were asked for the
    same and gave them. Raises UsageError for a damaged file."""
    tests = {  # of each the first of its runs that kept its samples
        each.name: path
        for each in rows
        for record in reversed(each.records)
        if record.run and ((path := folder / record.run / FOLDER["accuracy"]) / compare.SAMPLES).exists()
    }
    base = tests.pop(BASELINE, None)
    wanted = {each.name for each in rows if state.sweep.is_of_servers or each.accuracy == "INCONCLUSIVE"}
    return {
        name: pair
        for name, test in tests.items()
        if base and name in wanted and (pair := compare.answers(base, test, same_splitter=True))
    }


def sections(report: SweepReport, own: dict[str, list[str]], pictures: dict[str, Picture]) -> Iterator[Section]:
    """All experiments, their runs with their `own` deviations, and the command."""
    state, system = report.state, report.state.system
    if pictures:
        yield Section("In pictures", "", [*pictures.values()], is_open=True)
    yield Section("About", "how it was measured", [*about(report)])
    tables = {"All experiments": (report.rows, report.scores), "At full length": (report.finals, {})}
    for title, (found, judged) in tables.items():
        if found:
            yield Section(title, plural(len(found), "experiment"), [table(found, judged), SAFETY])
    rows = []
    for record in state.records:
        reasons = own.get(record.run or "")
        unlike = f" (not comparable: {'; '.join(reasons)})" if reasons else ""
        link = Finished(f"[{record.run.rpartition('/')[2]}]({record.run}/report.md)") if record.run else "–"
        round_name = "full length" if record.final else record.number
        outcome = f"{joined(': ', record.status, record.reason)}{unlike}"
        rows.append([record.experiment + record.where, round_name, outcome, f"{record.seconds:.0f}", link])
    runs = Table(["experiment", "round", "outcome", "seconds", "folder"], rows)
    statuses = [record.status for record in state.records]
    yield Section("Runs", f"{plural(len(statuses), 'run')}, {statuses.count('complete')} complete", [runs])
    gpus = ", ".join(system.gpus) or "no GPU"
    machine = f"{gpus}; {system.cpu}, {system.cores} cores; {listed(system.packages)}"
    data = Finished(f"{escape(machine)}. Started {state.started}; all data: [sweep.json](sweep.json).")
    yield Section("Reproduce", "one command", [Code(state.command), data])


SAFETY = (
    "SAFE: the accuracy gate passes; UNSAFE: it fails, so the speed does not count; INCONCLUSIVE: too few samples to "
    'decide; against the baseline on the same samples an experiment "holds" if it loses at most 1 % of the score, by '
    "the whole 95 % interval."
)


def about(report: SweepReport) -> Iterator[str]:
    """What the sweep is of, and what its changes rest on."""
    rounds = max((record.number for record in report.state.records), default=0)
    yield from filter(None, [report.state.sweep.about])
    scatter = " `--repeat 3` shows the scatter." * (rounds < 3)
    yield Finished(
        f"{plural(rounds, 'round')}; a change is the mean over the rounds, each against the baseline of the same round "
        f"and GPU.{scatter}"
    )


def table(found: Results, judged: dict[str, regression.Judgement]) -> Table:
    base = next((result for result in found if result.name == BASELINE), None)
    measured = [m for m in metrics_of("sweep") if any(m.name in result.numbers for result in found)]
    pairs = {name: f"({SCORES[SCORE]} {one.change}: {KEPT[one.verdict]})" for name, one in judged.items()}
    columns: dict[str, Column] = {
        "experiment": lambda result: result.name,
        **({"group": lambda result: result.experiment.group or "–"} if any(r.experiment.group for r in found) else {}),
        "description": experiment_text,
        "change": change_text,
        **{m.label: partial(value, metric=m, base=base) for m in measured},
        "LoadGen": lambda result: (
            VERDICTS[result.is_valid] if result.complete else result.failure and result.failure.failed
        ),
        "accuracy": lambda result: joined(" ", result.accuracy, pairs.get(result.name)),
        "bound by": lambda result: result.bound or "–",
    }
    return Table.of(found, columns)


def change_text(result: ExperimentResult) -> str:
    """Its change; struck out where its speed does not count."""
    if not result.gain:
        return "–"
    return result.gain.signed if result.is_usable else f"~~{result.gain.signed}~~"


def experiment_text(result: ExperimentResult) -> str:
    about, changes = result.experiment.about, " ".join(result.experiment.changes)
    return Finished(joined(" ", about and escape(cell(about)), changes and f"(`{code(cell(changes))}`)"))


def value(result: ExperimentResult, metric: Metric, base: ExperimentResult | None) -> str:
    """A metric in the table: speeds that do not count are struck out, scores have their distance from the baseline."""
    found = result.numbers.get(metric.name)
    if found is None:
        return "–"
    if metric is SPEED and not result.is_usable:
        return f"~~{number(found)}~~ not usable"
    start = base.numbers.get(metric.name) if base else None
    if metric.name in SCORES and start is not None and result.name != BASELINE:
        return f"{number(found)} ({found - start:+.2f})"
    return number(found)


HEAD = (*(metric.short for metric in metrics_of("sweep row")), "seconds", "experiment")


def cells(label: str, record: ExperimentRecord) -> list[str]:
    """One experiment's outcome as a row under HEAD, latencies in ms."""
    run = record.outcome
    about = f"about {number(found)} queries/s" if (found := run.values.get(ESTIMATED.name)) else ""
    verdicts = (run.verdict and WORDS[run.verdict], "INVALID" * (run.valid is False), about)
    said = joined(", ", *verdicts) if record.status == "complete" else record.failed
    measured = (run.values.get(metric.name) for metric in metrics_of("sweep row"))
    figures = (*measured, round(record.seconds) or None)
    return [*map(number, figures), f"{label}: {said}" if said else label]


def deviations(folder: Path, records: Sequence[ExperimentRecord]) -> tuple[list[str], dict[str, list[str]]]:
    """Why the numbers are not MLPerf's: what all runs share, and each run's own."""
    found = {
        run: [*map(str, facts_of(folder / run).deviations)] if (folder / run / "config.json").exists() else []
        for record in records
        if (run := record.run) and record.status == "complete"
    }
    shared = answer.shared(found.values()) if found else []
    own = {run: [reason for reason in reasons if reason not in shared] for run, reasons in found.items()}
    return shared, own


# One report of a sweep whose experiments ran as tasks, each in a folder with a baseline on the same node.


def gather(sweep: Sweep, results_dir: Path) -> RunFolder:
    """The folder of one sweep with the records of all tasks below `results_dir`, each in the folder of its name.

    Raises UsageError where there are none, or tasks of another sweep.
    """
    tasks = {path.parent: read(path.parent) for path in sorted(results_dir.glob("*/sweeps/2*/sweep.json"))}
    if not tasks:
        raise UsageError(f"--gather {results_dir}: no task left a sweep.json in {results_dir}/EXP/sweeps/.")
    for path, state in tasks.items():
        if state.sweep != sweep:
            raise UsageError(f"--gather {path} has tasks of another sweep or file version: use one folder per array.")
    folder = open_run(results_dir / "sweeps", sweep.name)
    records = [each for path, state in tasks.items() for each in relocate(path, state, folder.path)]
    first = next(iter(tasks.values()))
    state = State(processes.command_line(), first.started, first.system, sweep, tuple(records), notes(tasks))
    write(folder.path, state)
    build(folder.path, state)
    folder.set_status("complete")
    return folder


def relocate(path: Path, state: State, folder: Path) -> Iterator[ExperimentRecord]:
    """The records of a task, as seen from the folder of all: a baseline counts for its task alone."""
    for record in state.records:
        run = os.path.relpath(path / record.run, folder) if record.run else None
        yield replace(record, node=joined("/", record.node, path.parents[1].name), run=run)


def notes(tasks: dict[Path, State]) -> str:
    """What has no result yet, and how the nodes differ, in words."""
    states = list(tasks.values())
    done = {record.experiment for state in states for record in state.records if record.status == "complete"}
    missing = [item.name for item in states[0].sweep.experiments if item.name not in {*done, BASELINE}]
    first = Comparable.on(states[0].system)
    unlike = {each.name for one in states for each in differences(first, Comparable.on(one.system), IGNORED)}
    said = [f"no result of {', '.join(missing)}: submit the array again"] if missing else []
    if unlike:
        said.append(
            f"the nodes differ in {', '.join(sorted(unlike))}: each change is against the baseline of the same node, "
            "and do not compare speeds across nodes"
        )
    return "; ".join(said)
