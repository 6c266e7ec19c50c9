"""One report of a sweep whose experiments ran as tasks, each in a folder with a baseline on the same node."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness.config.comparability import Comparable, differences
from harness.core import processes
from harness.core.errors import UsageError
from harness.core.formatting import joined_text
from harness.runs.run_folder import RunFolder, open_run
from harness.sweep.experiment import ExperimentRecord, State
from harness.sweep.file import BASELINE, Sweep
from harness.sweep.report import IGNORED_BETWEEN_MACHINES, build_report, read_state, write_state


def read_tasks(sweep: Sweep, results_dir: Path) -> dict[Path, State]:
    """Return the state of each task of a sweep below `results_dir`, by the task's folder. Copies of a task count once.

    Raises UsageError if there are no tasks, or tasks of another sweep.
    """
    tasks: dict[Path, State] = {}
    for path in sorted(results_dir.glob("*/sweeps/2*/sweep.json")):  # A sweep's folder begins with the year.
        state = read_state(path.parent)
        if state not in tasks.values():  # Otherwise it is a copy of a task.
            tasks[path.parent] = state
    if not tasks:
        raise UsageError(f"--gather {results_dir}: no task left a sweep.json in {results_dir}/EXP/sweeps/.")
    for path, state in tasks.items():
        if state.sweep != sweep:
            raise UsageError(f"--gather {path} has tasks of another sweep or file version: use one folder per array.")
    return tasks


def gather(sweep: Sweep, results_dir: Path) -> RunFolder:
    """Gather the records of all tasks below `results_dir` into a new folder of one sweep, and write its report.

    A task is a job of a cluster that ran some of the experiments. Raises UsageError if there are no tasks, or tasks of
    another sweep.
    """
    tasks = read_tasks(sweep, results_dir)
    folder = open_run(results_dir / "sweeps", sweep.name)
    records = list[ExperimentRecord]()
    for path, state in tasks.items():
        records += relocated_records(path, state, folder.path)
    first = next(iter(tasks.values()))
    state = State(
        command=processes.command_line(),
        started=first.started,
        system=first.system,
        sweep=sweep,
        records=tuple(records),
        note=notes_text(tasks),
    )
    write_state(folder.path, state)
    build_report(folder.path, state)
    folder.set_status("complete")
    return folder


def relocated_records(path: Path, state: State, folder: Path) -> Iterator[ExperimentRecord]:
    """Yield the records of a task with paths relative to `folder`, the common folder.

    `path` is the folder of the task's sweep. The task's name becomes part of the node, so that experiments are compared
    only with the baseline of their task.
    """
    task = path.parents[1].name  # The path is .../TASK/sweeps/<sweep>.
    for record in state.records:
        run = record.run
        if run:
            run = os.path.relpath(path / run, folder)
        yield replace(record, node=joined_text("/", record.node, task), run=run)


def notes_text(tasks: dict[Path, State]) -> str:
    """Return which experiments have no complete run yet, and in what the tasks' machines differ, in words.

    Empty if neither. `tasks` has the state of each task by its folder. All tasks are parts of one sweep, so they have
    the same experiments.
    """
    first_task = next(iter(tasks.values()))
    machine = Comparable.of_machine(first_task.system)
    complete_names = {BASELINE}  # Each task has a baseline of its own, so it is not named as missing.
    differing_names = set[str]()
    for state in tasks.values():
        complete_names.update(record.experiment for record in state.records if record.status == "complete")
        changes = differences(machine, Comparable.of_machine(state.system), IGNORED_BETWEEN_MACHINES)
        differing_names.update(difference.name for difference in changes)
    missing = [item.name for item in first_task.sweep.experiments if item.name not in complete_names]
    texts = []
    if missing:
        texts.append(f"no result of {', '.join(missing)}: submit the array again")
    if differing_names:
        texts.append(
            f"the nodes differ in {', '.join(sorted(differing_names))}: each change is against the baseline of the "
            "same node, and do not compare speeds across nodes"
        )
    return "; ".join(texts)
