"""The results folder: open a run, keep its status, finish or fail it; latest, history, index, retention."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from textwrap import shorten
from typing import Any, Literal, NamedTuple, NoReturn, Self

from pydantic import ValidationError
from rich.console import Console

from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import formatting, locations, reading, secrets, software, statements, system, templates
from harness.core.errors import DONE, ENGINE_FAILED, INTERRUPTED, BenchmarkError, EngineError, UsageError, as_input
from harness.core.files import (
    append_line,
    check_space,
    existing,
    parse_as,
    read_if_any,
    read_json,
    write_json,
    write_text,
)
from harness.core.given_values import did_you_mean
from harness.core.message_text import LONGEST_QUOTE, first_line, line_of, plain, why
from harness.core.processes import by_signal, command_line, command_of, end_children, ignore_signals
from harness.core.progress import Display
from harness.core.schema import SCHEMA, File
from harness.loadgen.outcome import RunFacts, RunStatus, Status

STATUS_BYTES, SHORT_REASON = 1024, 200  # of status.json; characters of a reason that fit into it
RENAMED = {"tokens_per_s": "tokens_per_sec", "samples_per_s": "samples_per_sec"}  # in lines of format 1
STAMP = len("20260131-101500")  # of a run's name: when it began
Test = Literal["accuracy", "performance", "test06"]
MLFLOW_S = 90.0  # that a command waits for MLflow
FOLDER = {"accuracy": "Accuracy", "performance": "Performance", "test06": "Compliance/TEST06"}


class RunFolder(NamedTuple):
    results_dir: Path
    name: str

    @property
    def path(self) -> Path:
        return self.results_dir / self.name

    @property
    def shown(self) -> Path:
        """The folder as it is shown: `latest`, where that leads to it."""
        latest = self.results_dir / "latest"
        return latest if latest.is_symlink() and os.readlink(latest) == self.name else self.path

    def set_status(self, status: Status, reason: str = "") -> None:
        write_text(self.path / "status.json", self.status_json(status, reason))

    def status_json(self, status: Status, reason: str) -> str:
        """What status.json holds, with room for what it may have to hold at the end."""
        kept = RunStatus(schema_version=SCHEMA, status=status, reason=reason, time=now())
        return (json.dumps(secrets.hide(kept.model_dump()), indent=2) + "\n").ljust(STATUS_BYTES)

    def fail(self, status: Status, reason: str = "") -> None:
        """Marks a run that ended early; one that is complete stays so, whatever happens to it afterwards."""
        before = readable_status(self.path)  # a damaged one is replaced
        if before is None or before.status != "complete":
            try:
                self.set_status(status, reason)
            except OSError:  # a full disk: the bytes of the status before are there
                with (self.path / "status.json").open("r+b") as file:
                    file.write(self.status_json(status, reason[:SHORT_REASON]).encode()[:STATUS_BYTES])

    def sub(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def open_run(results_dir: Path, label: str) -> RunFolder:
    """Makes a new run folder, `<time>-<label>`, and marks it running. Raises UsageError where it cannot write.

    Without a label, `<time>`.
    """
    stem = formatting.joined("-", time.strftime("%Y%m%d-%H%M%S"), label)
    with writing_to(results_dir):
        results_dir.mkdir(parents=True, exist_ok=True)
        run = RunFolder(results_dir, new_folder(results_dir, stem).name)
    try:
        run.set_status("running")
    except OSError:
        rmtree(run.path, ignore_errors=True)
        raise
    return run


@contextmanager
def writing_to(results_dir: Path) -> Iterator[None]:
    """What fails within names the flag. Raises UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"--results-dir {results_dir}: cannot write there: {why(error)}.") from None


def check_writable(results_dir: Path) -> None:
    """Raises UsageError where no run folder could be made, BenchmarkError on a full disk; leaves nothing behind."""
    there = existing(results_dir)
    with writing_to(results_dir), tempfile.TemporaryDirectory(dir=there, prefix=".try-"):
        check_space(there)


def first_facts() -> dict[str, Any]:
    """What a record begins with: the command, the time, the machine and its software."""
    return {
        "schema_version": SCHEMA,
        "command": command_line(),
        "started": now(),
        "system": system.detect(),
        "installed": software.installed_packages(),
    }


def status_of(folder: Path) -> RunStatus | None:
    """How far a run came; None where it left no status. Raises UsageError for a status that cannot be read."""
    return read_if_any(folder / "status.json", RunStatus)


def readable_status(folder: Path) -> RunStatus | None:
    """How far a run came; None also for a status that cannot be read."""
    with suppress(UsageError):
        return status_of(folder)
    return None


def ended_early(folder: Path, reported: bool = False) -> str | None:
    """Why a run ended before its end, in words; None for one that is complete, or about to be (`reported`)."""
    status = readable_status(folder)
    if status is None or status.status == "complete":
        return None
    if status.status == "running":
        return None if reported else "it was killed, or still runs"
    return status.status if status.reason in ("", status.status) else f"{status.status}: {status.reason}"


def facts_of(folder: Path) -> RunFacts:
    """What config.json keeps of a run of run.py. Raises UsageError for any other folder."""
    path = folder / "config.json"
    if not path.exists():
        is_kept = (folder / "summary.json").exists()
        what = "the summary that was kept of a run, without its logs" if is_kept else "no config.json in it"
        raise UsageError(f"{folder}: {what}; not a run folder.")
    match facts := read_json(path):
        case {"plan": {**plan}} if "running" not in plan:
            raise UsageError(f"{folder}: written in an older format; use the version that wrote it.")
        case {**found} if "plan" not in found:
            raise UsageError(f"{folder}: not a run.py results folder (from mmlu.py?).")
    return parse_as(path, facts, RunFacts)


def new_folder(parent: Path, name: str) -> Path:
    """A new folder of this name; with a number, too, where there is one."""
    path, number = parent / name, 1
    while True:
        with suppress(FileExistsError):
            path.mkdir()
            return path
        number += 1
        path = parent / f"{name}-{number}"


def finish(run: RunFolder, line: dict[str, object], keep_all: bool = True, say: Callable[[str], None] = print) -> None:
    """Marks a run complete: its line joins the history, `latest` moves to it, and older runs go if asked.

    What cannot be written, moved or deleted takes nothing from the run: `say` gets a line.
    """
    run.set_status("complete")
    with or_say(say, f"{run.results_dir / 'history.jsonl'} could not be written"):
        append_line(run.results_dir / "history.jsonl", json.dumps({"run": run.name, **line}))
    with or_say(say, f"{run.results_dir / 'latest'} could not be moved"):
        point_latest(run)
    for folder in [] if keep_all else older_runs(run):
        with or_say(say, f"{folder} could not be deleted"):
            rmtree(folder)


def send_to_mlflow(folder: Path, wanted: bool, results_dir: Path, say: Callable[[str], None]) -> None:
    """Sends a finished folder if MLflow is asked for; in its own process, so that nothing there can fail a run."""
    if not wanted and not os.environ.get("MLFLOW_TRACKING_URI"):
        return
    places = (str(folder.resolve()), "--results-dir", str(results_dir.resolve()))
    elsewhere = "" if results_dir == Path("results") else f" --results-dir {results_dir}"
    again = f"`{command_of('mlflow')} {folder}{elsewhere}` sends it later"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "mlflow", *places],
            cwd=locations.ROOT,
            capture_output=True,
            text=True,
            timeout=MLFLOW_S,
        )
        is_sent, text = done.returncode == DONE, done.stderr if done.returncode else done.stdout
        said = text.strip().rpartition("\n")[2].removeprefix("error: ") or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        is_sent, said = False, f"no end after {MLFLOW_S:g} s"
    say(f"MLflow: {said}" if is_sent else f"MLflow: not sent: {said}; {again}")


def delete_runs(folders: Sequence[Path], results_dir: Path) -> list[str]:
    """Deletes runs that are over, with their lines of the history; `latest` moves to the newest that is left, or goes.
    Raises UsageError, before any is deleted, for a folder that is no such run of `results_dir`."""
    for folder in folders:
        if folder.is_symlink() or folder.resolve().parent != results_dir.resolve() or not is_over(folder):
            raise UsageError(f"{folder}: not a run in {results_dir} that is over; nothing was deleted.")
    names = [folder.resolve().name for folder in folders]
    for name in names:
        rmtree(results_dir / name)
    if (path := results_dir / "history.jsonl").exists():  # other lines stay as they are, damaged ones, too
        gone = [f'"run": "{name}"' for name in names]
        lines = reading.read_text(path, errors="replace").splitlines(keepends=True)
        write_text(path, "".join(line for line in lines if not any(each in line for each in gone)))
    mend_latest(results_dir)
    return names


def mend_latest(results_dir: Path) -> None:
    """Moves `latest`, where it leads nowhere, to the newest finished run, or removes it."""
    link = results_dir / "latest"
    if link.is_symlink() and not link.exists():
        done = [path.parent.name for path in results_dir.glob("*/status.json") if ended_early(path.parent) is None]
        link.unlink()
        if done:
            point_latest(RunFolder(results_dir, max(done, key=start_of)))


@contextmanager
def or_say(say: Callable[[str], None], trouble: str) -> Iterator[None]:
    """Says what the operating system refuses, and goes on."""
    try:
        yield
    except OSError as error:
        say(f"{trouble}: {why(error)}")


def older_runs(run: RunFolder) -> list[Path]:
    """The folders of runs that began before this one and have ended."""
    folders = (status.parent for status in run.results_dir.glob("*/status.json") if not status.parent.is_symlink())
    return [folder for folder in folders if start_of(folder.name) < start_of(run.name) and is_over(folder)]


def start_of(name: str) -> tuple[str, int]:
    """When a run's folder was made, by its name; those of one second are numbered from the second on."""
    number = re.search(r"-(\d{1,3})$", name[STAMP:])
    return name[:STAMP], int(number[1]) if number else 1


def is_over(folder: Path) -> bool:
    """Whether a run is over; one whose status cannot be read is left alone."""
    status = readable_status(folder)
    return status is not None and status.status != "running"


def point_latest(run: RunFolder) -> None:
    """Moves the `latest` link in one step, so that it always points to a finished run."""
    link = run.results_dir / f".latest-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(run.name)
    try:
        link.replace(run.results_dir / "latest")
    except OSError:
        link.unlink()
        raise


def history(results_dir: Path) -> Iterator[dict[str, object]]:
    """Finished runs, oldest first; lines that are not whole are passed over."""
    with suppress(OSError):
        for line in reading.read_text(results_dir / "history.jsonl", errors="replace").splitlines():
            with suppress(ValueError, RecursionError):
                match json.loads(line):
                    case {"run": str()} as entry:
                        yield {RENAMED.get(str(key), str(key)): value for key, value in entry.items()}


def now() -> str:
    """The time here, with its zone (`TZ` decides)."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def write_index(results_dir: Path, template: str, kind: type[File], **more: Any) -> None:
    """Renders results_dir/index.md, newest run first, from the lines of the history that are of this `kind`."""
    lines = []
    for line in history(results_dir):
        with suppress(ValidationError):
            lines.append((kind.model_validate(line), os.path.isdir(results_dir / str(line["run"]))))
    write_text(results_dir / "index.md", f"{templates.render(template, runs=lines[::-1], **more)}\n")


# The names of runs: a path, `latest`, a run's id, or a label that one run or several were given.
def folders(words: Sequence[str], results_dir: Path) -> list[Path]:
    """The folders that the words name, each once, in their order. Raises UsageError for a word that names none."""
    return list({folder.resolve(): folder for word in words for folder in find_runs(word, results_dir)}.values())


def find_run(words: Sequence[str], results_dir: Path, rule: str) -> Path:
    """The one folder that the words name. Raises UsageError, with the `rule`, where they name several."""
    (first, *more) = folders(words, results_dir)
    if more:
        raise UsageError(f"{' '.join(words)}: {1 + len(more)} runs; {rule}")
    return first


def find_runs(word: str, results_dir: Path) -> list[Path]:
    """The folder at a path; or in `results_dir` the run with this id, or `latest`; or all finished runs with this
    label, oldest first, and without any those that ended early. Raises UsageError where there is none."""
    with suppress(OSError):
        mend_latest(results_dir)
    for path in (Path(word), results_dir / word):
        if path.exists():
            return [path]
    labels = runs_by_label(results_dir)
    if found := labels.get(word):
        return [folder for folder in found if ended_early(folder) is None] or found
    if "/" in word:
        return [Path(word)]
    words = ["latest", *labels, *(path.parent.name for path in results_dir.glob("*/config.json"))]
    raise UsageError(f"{word}: no path, and no run or label in {results_dir}{did_you_mean(word, words)}")


def runs_by_label(results_dir: Path) -> dict[str, list[Path]]:
    """The runs that are complete or have a summary by their label, oldest first; those that cannot be read are left
    out."""
    found = dict[str, list[Path]]()
    for path in sorted(results_dir.glob("*/config.json")):
        folder, status = path.parent, readable_status(path.parent)
        is_made = status and (status.status == "complete" or (folder / "summary.json").exists())
        if is_made and not folder.is_symlink():
            with suppress(UsageError):
                match read_json(path):
                    case {"plan": {"config": {"label": str(label)}}} if label:
                        found.setdefault(label, []).append(folder)
    return found


# A run under way: its folder, the screen, and what is known of it.
class BenchmarkRun(NamedTuple):
    """One run under way: its folder, the screen, and what is known of it, which config.json always holds."""

    folder: RunFolder
    display: Display
    facts: RunFacts

    @classmethod
    def begin(cls, plan: Plan, folder: RunFolder, display: Display) -> Self:
        """A run whose settings are known as far as they can be before its samples are read."""
        run = cls(folder, display, RunFacts(plan=plan, deviations=[], **first_facts()))
        run.adopt(plan)
        return run

    @property
    def plan(self) -> Plan:
        return self.facts.plan

    @property
    def config(self) -> RunConfig:
        return self.plan.config

    def adopt(self, plan: Plan) -> None:
        """Takes the plan as it is known now, and says what is new in it: a rate, or why nothing can be compared."""
        if plan.notes != self.plan.notes:
            self.display.done(plan.notes[-1])
        told = self.facts.deviations
        self.facts.adopt(plan)
        self.save()
        if new := [reason for reason in plan.deviations if reason not in told]:
            self.display.say(f"not comparable with MLPerf results: {statements.merge_by_remedy(new)}", style="yellow")

    def save(self) -> None:
        """Keeps config.json: every resolved setting, how it came about, and what else is known of the run."""
        kept = self.facts.model_dump(mode="json")
        kept["plan"]["config"]["engine_arg"] = [secrets.hide_word(pair) for pair in self.config.engine_arg]
        write_json(self.folder.path / "config.json", kept)

    def warn_short(self) -> None:
        if self.plan.too_short:
            self.display.say(self.plan.too_short, style="yellow")


# How a command ends: its reason in one line, kept in the status; nothing left behind.
def fail(error: BaseException, run: RunFolder, errors: Console) -> int:
    """Says in one line, on `errors`, why a run cannot go on, keeps it in the status, and returns the exit code."""
    ignore_signals()
    if isinstance(error, EngineError | OSError):
        try:
            check_space(run.path)
        except BenchmarkError as cause:
            error = cause
    error = as_input(error)
    if isinstance(error, UsageError) and run.name in str(error):  # the run's own folder: no wrong input, but its disk
        error = BenchmarkError(str(error))
    interrupted = isinstance(error, KeyboardInterrupt)
    if interrupted:
        code, line = INTERRUPTED, "interrupted"
    elif isinstance(error, BenchmarkError):
        code, line = error.exit_code, str(error)
        if isinstance(error, EngineError):
            line = explain(error, run.path / "engine.log")
    else:
        traceback.print_exception(error)  # to engine.log
        code, line = ENGINE_FAILED, f"{type(error).__name__}: {first_line(error)}"
    line = plain(line_of(secrets.hide_text(line)))
    with suppress(OSError):  # a full disk must not keep the process alive
        run.fail("interrupted" if interrupted else "failed", line)
    errors.print(line if interrupted else f"error: {line}", style="red", markup=False, soft_wrap=True)
    if run.path.is_dir():
        errors.print(f"partial results: {run.path}", markup=False, soft_wrap=True)
    return code


def exit(code: int, log: Path) -> NoReturn:
    """Ends this process and all it started, at once: threads in C++ may still wait for answers that never come.

    What engines wrote to `log` of secrets is hidden first. The engine's thread may be starting a process just
    now: what is forked from here on ends itself, what was begun otherwise is ended last.
    """
    os.register_at_fork(after_in_child=partial(os._exit, code))
    end_children()
    with suppress(OSError):
        secrets.scrub(log)
        sys.stdout.flush()
        sys.stderr.flush()
    end_children()
    os._exit(code)


def explain(error: EngineError, log: Path) -> str:
    """The error with its root cause, which vLLM's processes tell only to their log."""
    cause, said = root_cause(log), str(error).replace(" See root cause above.", "")
    more = f"; more in {log}" if log.exists() and log.stat().st_size else ""
    return f"{said}{f' ({cause})' if cause and cause not in said else ''}{more}"


def death(text: str) -> tuple[str, bool]:
    """The first of the engine's processes that died, by its log: which, where Python was; and whether by a signal."""
    ended = re.search(r"Worker proc \D*(\d+) died unexpectedly(?: \(exit code: -(\d+)\))?", text)
    fatal = re.search(r"(?m)^Fatal Python error: (.+)$", text)
    named = (number for number in signal.valid_signals() if fatal and signal.strsignal(number) == fatal[1])
    number = int(ended[2]) if ended and ended[2] else next(named, None)
    if not ended and not number:
        return "", False
    said = f"{f'worker {ended[1]}' if ended else 'a process of it'} {by_signal(number) if number else 'died'}"
    where = re.search(r'(?m)^Current thread .*\n  File "(.+)", line (\d+) in (\S+)', text)
    return f"{said} in {where[3]}, {where[1]}:{where[2]}" if fatal and where else said, bool(number)


def root_cause(log: Path) -> str:
    """What ended the engine's own processes, by their `log`, as one line: a signal, else the first exception; empty
    where it does not say."""
    try:
        text = reading.read_text(log, errors="replace")
    except OSError:
        return ""
    died, signalled = death(text)
    found = re.findall(r"(?m)^(?:.*\] )?((?:\w+\.)*\w*(?:Error|Exception)): (.+)$", text)
    vague = ("Engine core initialization failed", "See stack trace (above)", "cancelled")
    causes = (f"{name}: {what}" for name, what in found if not any(word in what for word in vague))
    return shorten(died if signalled else next(causes, died), LONGEST_QUOTE, placeholder=" ...")
