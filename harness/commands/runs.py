"""List finished runs in order, or delete runs with their lines: `python -m harness runs`."""

import sys
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from harness.core import given_values, last_screen, progress, tables
from harness.core.command import make_command, option, take_several
from harness.core.errors import UsageError
from harness.core.formatting import joined_text
from harness.core.message_text import say, warn
from harness.results.metrics import METRIC_NAMES, Metric, metric_named, value_at
from harness.runs import find, history


def runs(
    by: str = option("tokens_per_sec", "Metric to sort by, the best first.", "METRIC"),
    delete: list[str] = option((), "Runs or labels to delete with their lines.", "RUN ..."),
    results_dir: Path = option(Path("results"), "Folder with the runs.", "PATH"),
) -> None:
    """List finished runs, of each scenario the best first and flawed ones last, or delete runs and their lines."""
    from harness.report.report import write_index

    if not results_dir.is_dir():
        raise UsageError(f"--results-dir {results_dir}: no such folder.")
    metric = metric_named(by)
    if metric is None:
        raise UsageError(f"--by {by}: no such metric{given_values.spelling_hint(by, METRIC_NAMES)}")
    if delete:
        for name in history.delete_runs(find.folders(delete, results_dir), results_dir):
            say(f"deleted {name}")
        write_index(results_dir)
        return
    lines = []
    for line in history.read_history(results_dir):
        # The history also has the lines of runs whose folders are gone.
        if (results_dir / str(line["run"])).is_dir():
            lines.append(line)
    if not lines:
        warn(f"{results_dir}: no finished runs in its history.jsonl")
        return
    show_table(run_table(lines, metric))


def run_table(lines: Iterable[Mapping[str, Any]], metric: Metric) -> tables.Table:
    """Return a table with a row for each run. The runs of each scenario are together, the best first.

    `lines` are those of the history. Runs whose figures do not count come last in their scenario; among runs of a kind,
    those without the metric come last.
    """

    def rank(line: Mapping[str, Any]) -> tuple[str, bool, float]:
        is_flawed = bool(line.get("flaws")) or line.get("verdict") == "FAIL"
        value = line.get(metric.name)
        if value is None:
            order = inf
        elif metric.better == "higher":
            order = -value  # The best is first.
        else:
            order = value
        return str(line.get("scenario")), is_flawed, order

    rows = []
    for line in sorted(lines, key=rank):
        engine, value = value_at(line, ("setup", "backend")), line.get(metric.name)
        rows.append([line["run"], line.get("label"), engine, result_text(line), value])
    # There is no column for the scenario, since it is a part of the run's name.
    return tables.Table(["run", "label", "engine", "result", metric.label], rows)


def result_text(line: Mapping[str, Any]) -> str:
    """Return a run's result in words: its test's verdict, a failed accuracy gate, and whether the machine was busy.

    A run without a performance test has the verdict of its accuracy gate alone.
    """
    verdict, gate = line.get("result"), line.get("verdict")
    texts = [verdict or ""]
    if gate and (gate == "FAIL" or not verdict):
        texts.append(f"accuracy {gate}")
    if line.get("others"):  # the load of other programs
        texts.append("busy")
    return joined_text(", ", *texts)


def show_table(table: tables.Table) -> None:
    """Print a table: as a grid on a terminal, else as Markdown."""
    if sys.stdout.isatty():
        progress.failsafe_console(sys.stdout.fileno()).print(last_screen.grid(table, whole_columns=1))
    else:
        say(table)


command = make_command(runs, rewrite=take_several("--delete"))
