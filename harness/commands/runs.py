"""List finished runs in order, or delete runs with their lines: `python -m harness runs`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from harness.core import last_screen, progress, tables
from harness.core.command import make_command, option, take_several
from harness.core.errors import UsageError
from harness.core.formatting import joined_text
from harness.core.message_text import say, warn
from harness.core.reading import setting_text
from harness.results.metrics import METRIC_NAMES, Metric, metric_named, unknown_metric
from harness.runs import find, history


def runs(
    by: str = option("tokens_per_sec", "Metric to sort by, the best value first.", "METRIC"),
    delete: list[str] = option((), "Runs or labels to delete, with their lines in the index.", "RUN ..."),
    results_dir: Path = option(Path("results"), "Folder with the runs.", "PATH"),
) -> None:
    """List finished runs by scenario, the fastest first and flawed ones last, or delete runs and their lines."""
    from harness.report.report import write_index

    if not results_dir.is_dir():
        problem = "no folder, but a file" if results_dir.exists() else "no such folder"
        raise UsageError(f"--results-dir {results_dir}: {problem}.")
    metric = metric_named(by)
    if metric is None:
        raise UsageError(f"--by {by}: {unknown_metric(by, METRIC_NAMES)}")
    if delete:
        for name in history.delete_runs(find.folders(delete, results_dir, with_failed=True), results_dir):
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
    """Return a table with a row for each of the history's `lines`, sorted by scenario, the best run of each first."""

    def rank(line: Mapping[str, Any]) -> tuple[str, bool, float]:
        """Return the key by which a line is sorted: its scenario, whether its figures do not count, then the metric."""
        has_failed_gate = line.get("verdict") == "FAIL"  # the verdict of the accuracy gate
        is_flawed = bool(line.get("flaws")) or has_failed_gate
        value = line.get(metric.name)
        if value is None:
            order = inf  # Runs that do not have the metric are last.
        elif metric.better == "higher":
            order = -value  # The best is first.
        else:
            order = value
        return str(line.get("scenario")), is_flawed, order

    sorted_lines = sorted(lines, key=rank)
    differing = differing_settings(sorted_lines)
    rows = []
    for line in sorted_lines:
        setup, value = settings_of(line), line.get(metric.name)
        settings = [f"{name}={setting_text(setup[name])}" for name in differing if setup.get(name) is not None]
        rows.append(
            [line["run"], line.get("label"), result_text(line), value, line.get("samples"), ", ".join(settings)]
        )
    # There is no column for the scenario, since it is a part of the run's name.
    return tables.Table(["run", "label", "result", metric.label, "samples", "settings that differ"], rows)


def settings_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that may change its speed or its answers, by name.

    Empty if its line of the history has none, as a line of an older version.
    """
    setup = line.get("setup")
    return setup if isinstance(setup, dict) else {}


def differing_settings(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the settings that do not have the same value in all runs."""
    setups = [settings_of(line) for line in lines]
    names = dict.fromkeys(chain.from_iterable(setups))
    return [name for name in names if any(setup.get(name) != setups[0].get(name) for setup in setups)]


def result_text(line: Mapping[str, Any]) -> str:
    """Return in words the result of a run, from its `line` of the history.

    With a performance test, the verdict of the accuracy gate is given only if it is FAIL.
    """
    performance_verdict, accuracy_verdict = line.get("result"), line.get("verdict")
    texts = [performance_verdict or ""]
    if line.get("is_disputed"):  # Other figures of the run contradict its result.
        texts.append("disputed")
    has_failed_gate = accuracy_verdict == "FAIL"
    if accuracy_verdict and (has_failed_gate or not performance_verdict):
        texts.append(f"accuracy {accuracy_verdict}")
    has_background_load = bool(line.get("others"))  # other programs were busy on the machine
    if has_background_load:
        texts.append("machine busy")
    return joined_text(", ", *texts)


def show_table(table: tables.Table) -> None:
    """Print a table: as a grid on a terminal, else as Markdown."""
    if sys.stdout.isatty():
        progress.failsafe_console(sys.stdout.fileno()).print(last_screen.grid(table, whole_columns=1))
    else:
        say(table)


command = make_command(runs, rewrite=take_several("--delete"))
