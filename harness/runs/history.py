"""The finished runs of a results folder: their history and index, the link `latest`, and their deletion."""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from shutil import rmtree

from pydantic import ValidationError

from harness.core import reading, templates
from harness.core.errors import UsageError
from harness.core.files import append_line, write_text
from harness.core.message_text import system_reason
from harness.core.schema import File
from harness.runs import run_lock
from harness.runs.run_folder import RunFolder, ended_early, readable_status
from harness.runs.run_order import seconds_of, start_of

RENAMED_FIELDS = {"tokens_per_s": "tokens_per_sec", "samples_per_s": "samples_per_sec"}  # in lines of format 1


def finish(run: RunFolder, line: dict[str, object], keep_all: bool = True, say: Callable[[str], None] = print) -> None:
    """Mark a run complete: add its line to the history, move `latest` to it, and delete older runs unless `keep_all`.

    If a file cannot be changed, `say` gets a message.
    """
    run.set_status("complete")
    with report_os_error(say, f"{run.results_dir / 'history.jsonl'} could not be written"):
        append_line(run.results_dir / "history.jsonl", json.dumps({"run": run.name, **line}))
    with report_os_error(say, f"{run.results_dir / 'latest'} could not be moved"):
        point_latest(run)
    if keep_all:
        return
    for folder in older_runs(run):
        with report_os_error(say, f"{folder} could not be deleted"):
            rmtree(folder)


def delete_runs(folders: Sequence[Path], results_dir: Path) -> list[str]:
    """Delete runs that are over, with their lines of the history. Return the names of the runs.

    Raises UsageError, before any run is deleted, if a folder is no run of `results_dir` that is over.
    """
    for folder in folders:
        refusal = why_not_deleted(folder, results_dir)
        if refusal:
            raise UsageError(f"{folder}: {refusal}; nothing was deleted.")
    names = [folder.resolve().name for folder in folders]
    for name in names:
        rmtree(results_dir / name)
    path = results_dir / "history.jsonl"
    if path.exists():
        lines = reading.read_text(path, errors="replace").splitlines(keepends=True)
        write_text(path, "".join(line for line in lines if not is_line_of_runs(line, names)))
    mend_latest(results_dir)  # `latest` moves to the newest run that is left.
    return names


def is_line_of_runs(line: str, names: Iterable[str]) -> bool:
    """Tell whether a line of the history belongs to one of the runs with these names.

    The name is searched in the text: a damaged line cannot be parsed, and damaged lines of other runs must stay.
    """
    return any(f'"run": "{name}"' in line for name in names)


def why_not_deleted(folder: Path, results_dir: Path) -> str:
    """Return why a folder may not be deleted, in words; empty if it is a run of `results_dir` that is over."""
    status = readable_status(folder)  # None: it cannot be read, so it is not known whether this is a run at all
    if folder.is_symlink() or folder.resolve().parent != results_dir.resolve() or status is None:
        return f"not a run in {results_dir} that is over"
    if status.status != "running":  # Of a run that is known to be killed, `readable_status` has corrected the status.
        return ""
    if run_lock.life_of(folder) == "running":
        return "it still runs"
    return (
        "it is not known whether it still runs (another host, container or version began it, or this mount has no "
        f"locks): if it does not, remove it by hand, as with rm -r {shlex.quote(str(folder))}"
    )


def mend_latest(results_dir: Path) -> None:
    """If `latest` leads nowhere, move it to the newest complete run, or remove it if there is none.

    Nothing is done if it leads to a run, or is no link.
    """
    link = results_dir / "latest"
    if not link.is_symlink() or link.exists():
        return
    complete_runs = [path.parent for path in results_dir.glob("*/status.json") if ended_early(path.parent) is None]
    link.unlink()
    if complete_runs:
        newest = max(complete_runs, key=start_of)
        point_latest(RunFolder(results_dir, newest.name))


@contextmanager
def report_os_error(say: Callable[[str], None], trouble: str) -> Iterator[None]:
    """Pass an OSError that is raised in the block to `say`, and go on after the block.

    The message is `trouble`, such as "results/index.md could not be written", and the system's reason.
    """
    try:
        yield
    except OSError as error:
        say(f"{trouble}: {system_reason(error)}")


def older_runs(run: RunFolder) -> list[Path]:
    """Return the folders of the runs in the same results folder that began before this one and are over."""
    begin = start_of(run.path)
    older_folders = []
    for status_file in run.results_dir.glob("*/status.json"):
        folder = status_file.parent
        if not folder.is_symlink() and start_of(folder) < begin and is_over(folder):
            older_folders.append(folder)
    return older_folders


def is_over(folder: Path) -> bool:
    """Tell whether a run is over. False if its status cannot be read, so that the run is left alone."""
    status = readable_status(folder)
    return status is not None and status.status != "running"


def point_latest(run: RunFolder) -> None:
    """Move the `latest` link to a run in one step, so that it always leads to a finished run.

    Raises OSError if the link cannot be moved, for example because `latest` is a folder.
    """
    new_link = run.results_dir / f".latest-{os.getpid()}"
    new_link.unlink(missing_ok=True)
    new_link.symlink_to(run.name)
    try:
        new_link.replace(run.results_dir / "latest")
    except OSError:
        new_link.unlink()
        raise


def read_history(results_dir: Path) -> Iterator[dict[str, object]]:
    """Yield the records of the finished runs in the order in which they began, each once, without damaged lines."""
    records = dict(stored_lines(results_dir))  # the record of each line, by the line's text
    dated, began_s = [], 0.0
    for record in records.values():
        # A line of an older version has no time, and stays behind the line before.
        began_s = seconds_of(record) or began_s
        dated.append((began_s, record))
    for _began_s, record in sorted(dated, key=itemgetter(0)):
        yield record


def stored_lines(results_dir: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the text of each undamaged line of the history, and the record in it, with today's names of its fields.

    Nothing is yielded if the history cannot be read.
    """
    with suppress(OSError):
        for text in reading.read_text(results_dir / "history.jsonl", errors="replace").splitlines():
            with suppress(ValueError, RecursionError):  # The line is not JSON.
                match json.loads(text):
                    case {"run": str()} as entry:
                        record = {}
                        for key, value in entry.items():
                            record[RENAMED_FIELDS.get(str(key), str(key))] = value
                        yield text, record


def write_index(results_dir: Path, template: str, kind: type[File], **more: object) -> None:
    """Write results_dir/index.md, newest run first, from the lines of the history that fit the pydantic model `kind`.

    The file `template` gets each line with whether the run's folder is still there, and the values in `more`.
    """
    runs = []
    for record in read_history(results_dir):
        with suppress(ValidationError):
            has_folder = os.path.isdir(results_dir / str(record["run"]))
            runs.append((kind.model_validate(record), has_folder))
    newest_first = runs[::-1]
    write_text(results_dir / "index.md", f"{templates.render(template, runs=newest_first, **more)}\n")
