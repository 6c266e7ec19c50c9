"""Finished runs in order, and those that are named deleted with their lines: `python -m harness runs`."""

import sys
from math import inf
from pathlib import Path
from typing import Any

from harness.core import given_values, last_screen, progress, tables
from harness.core.command import make_command, option, take_several
from harness.core.errors import UsageError
from harness.core.message_text import say
from harness.runs import find, history


def runs(
    by: str = option("tokens_per_sec", "Metric to sort by, the best first.", "METRIC"),
    delete: list[str] = option((), "Runs or labels to delete with their lines.", "RUN ..."),
    results_dir: Path = option(Path("results"), "Folder with the runs.", "PATH"),
) -> None:
    """List finished runs, of each scenario the best first and flawed ones last, or delete runs and their lines."""
    from harness.report.report import write_index
    from harness.results.metrics import METRIC_BY_NAME, value_at

    if not results_dir.is_dir():
        raise UsageError(f"--results-dir {results_dir}: no such folder.")
    if by not in METRIC_BY_NAME:
        raise UsageError(f"--by {by}: no such metric{given_values.spelling_hint(by, [*METRIC_BY_NAME])}")
    if delete:
        for name in history.delete_runs(find.folders(delete, results_dir), results_dir):
            say(f"deleted {name}")
        write_index(results_dir)
        return
    metric = METRIC_BY_NAME[by]
    sign = 1 if metric.better == "higher" else -1

    def rank(line: dict[str, Any]) -> tuple[str, bool, float]:
        value = line.get(by)
        return str(line.get("scenario")), bool(line.get("flaws")), inf if value is None else -sign * value

    existing = (line for line in history.read_history(results_dir) if (results_dir / str(line["run"])).is_dir())
    names = ("run", "label", "scenario", "engine", "result", by)
    rows = [
        [*map({**line, "engine": value_at(line, ("setup", "backend"))}.get, names)]
        for line in sorted(existing, key=rank)
    ]
    table = tables.Table([*names[:-1], metric.label], rows)
    if sys.stdout.isatty():
        progress.failsafe_console(sys.stdout.fileno()).print(last_screen.grid(table))
    else:
        say(table)


command = make_command(runs, rewrite=take_several("--delete"))
