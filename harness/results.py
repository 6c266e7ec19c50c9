"""The results folder: open a run, keep its status, finish it; latest, history, index, retention."""

import csv
import errno
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from harness import files
from harness.errors import BenchmarkError, UsageError
from harness.facts import SCHEMA, File, RunFacts, RunStatus
from harness.pages import render
from harness.plan import Plan
from harness.secrets import hide, hide_known, hide_word

Kind = TypeVar("Kind")
SPARE_BYTES = 2**23
LARGEST_FILE = 2**30  # bytes of a run folder's JSON or CSV, and of the history
STATUS_BYTES, SHORT_REASON = 1024, 200  # of status.json; characters of a reason that fit into it
RENAMED = {"tokens_per_s": "tokens_per_sec", "samples_per_s": "samples_per_sec"}  # in lines of format 1
Status = Literal["running", "complete", "failed", "interrupted"]
Test = Literal["accuracy", "performance", "test04", "test06"]
FOLDER: dict[Test, str] = {
    "accuracy": "Accuracy",
    "performance": "Performance",
    "test04": "Compliance/TEST04",
    "test06": "Compliance/TEST06",
}


@dataclass(frozen=True)
class RunFolder:
    """One run's folder: results_dir/name."""

    results_dir: Path
    name: str

    @property
    def path(self) -> Path:
        return self.results_dir / self.name

    def set_status(self, status: Status, reason: str = "") -> None:
        write_text(self.path / "status.json", self.said(status, reason))

    def said(self, status: Status, reason: str) -> str:
        """What status.json holds, with room for what it may have to hold at the end."""
        kept = RunStatus(schema_version=SCHEMA, status=status, reason=reason, time=now())
        return (json.dumps(hide(kept.model_dump()), indent=2) + "\n").ljust(STATUS_BYTES)

    def fail(self, status: Literal["failed", "interrupted"], reason: str = "") -> None:
        """Marks a run that ended early; one that is complete stays so, whatever happens to it afterwards."""
        known = known_status(self.path)  # a damaged one is replaced
        if known is None or known.status != "complete":
            try:
                self.set_status(status, reason)
            except OSError:  # a full disk: the bytes of the status before are there
                with (self.path / "status.json").open("r+b") as file:
                    file.write(self.said(status, reason[:SHORT_REASON]).encode()[:STATUS_BYTES])

    def sub(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def open_run(results_dir: Path, label: str) -> RunFolder:
    """Makes a new run folder, `<time>-<label>`, and marks it running. Raises UsageError where it cannot write.

    Without a label, `<time>`.
    """
    try:
        results_dir.mkdir(parents=True, exist_ok=True)
        stem = time.strftime("%Y%m%d-%H%M%S") + (f"-{label}" if label else "")
        names = (stem + (f"-{n}" if n > 1 else "") for n in range(1, 1000))
        run = next(RunFolder(results_dir, name) for name in names if made(results_dir / name))
        run.set_status("running")
    except OSError as error:
        raise UsageError(f"--results-dir {results_dir}: cannot write there: {error.strerror}.") from None
    return run


def record(run: RunFolder, plan: Plan, **facts: Any) -> None:
    """Keeps config.json: every resolved setting, how it came about, and whatever `facts` are new of the run."""
    settings = asdict(plan)
    settings["config"]["engine_arg"] = [hide_word(pair) for pair in plan.config.engine_arg]
    loadgen = {"model": plan.loadgen_model, "scenario": plan.config.row.loadgen}
    note(run, **facts, deviations=plan.deviations, loadgen=loadgen, plan=settings)


def status_of(folder: Path) -> RunStatus | None:
    """How far a run came; None where it left no status. Raises UsageError for a status that cannot be read."""
    path = folder / "status.json"
    return read(path, RunStatus) if path.exists() else None


def known_status(folder: Path) -> RunStatus | None:
    """How far a run came; None also for a status that cannot be read."""
    try:
        return status_of(folder)
    except UsageError:
        return None


def ended_early(folder: Path, reported: bool = False) -> str | None:
    """When and why a run ended before its end, in words; None for one that is complete, or about to be (`reported`)."""
    known = known_status(folder)
    if known is None or known.status == "complete":
        return None
    if known.status == "running":
        return None if reported else "it was killed, or still runs"
    why = f": {known.reason}" if known.reason not in ("", known.status) else ""
    return f"{known.status}{f' at {known.time}' if known.time else ''}{why}"


def facts_of(folder: Path) -> RunFacts:
    """What config.json keeps of a run of run.py. Raises UsageError for any other folder."""
    path = folder / "config.json"
    if not path.exists():
        raise UsageError(f"{folder}: no config.json in it; not a run folder.")
    facts = read_json(path)
    plan = facts.get("plan", {}) if isinstance(facts, dict) else None
    if plan == {}:
        raise UsageError(f"{folder}: not a folder of run.py, but of mmlu.py or another.")
    if isinstance(plan, dict) and "running" not in plan:
        raise UsageError(f"{folder}: written in an older format; use the version that wrote it.")
    return parsed(path, facts, RunFacts)


def note(run: RunFolder, **facts: Any) -> None:
    """Adds facts to config.json, beside those it holds."""
    path = run.path / "config.json"
    known = read_json(path) if path.exists() else {}
    write_json(path, {"schema_version": SCHEMA} | known | json.loads(json.dumps(facts, default=str)))


def check_space(path: Path) -> None:
    """Raises BenchmarkError when the disk is about full, or away: LoadGen would lose its logs without a word."""
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        raise BenchmarkError(f"{path}: {error.strerror}: the run's own folder is gone, and its logs with it.") from None
    if free < SPARE_BYTES:
        raise BenchmarkError(f"the disk of {path} is full: free some space, or choose another --results-dir.")


def made(path: Path) -> bool:
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def finish(run: RunFolder, line: dict[str, object], keep_all: bool = True, say: Callable[[str], None] = print) -> None:
    """Marks a run complete: its line joins the history, `latest` moves to it, and older runs go if asked.

    What cannot be written, moved or deleted takes nothing from the run: `say` gets a line.
    """
    run.set_status("complete")
    with or_say(say, f"{run.results_dir / 'history.jsonl'} could not be written"):
        append_line(run.results_dir / "history.jsonl", json.dumps({"run": run.name, **line}))
    with or_say(say, f"{run.results_dir / 'latest'} could not be moved"):
        point_latest(run)
    for folder in [] if keep_all else older(run):
        with or_say(say, f"{folder} could not be deleted"):
            shutil.rmtree(folder)


@contextmanager
def or_say(say: Callable[[str], None], trouble: str) -> Iterator[None]:
    """Says what the operating system refuses, and goes on."""
    try:
        yield
    except OSError as error:
        say(f"{trouble}: {error.strerror}")


def older(run: RunFolder) -> list[Path]:
    """The folders of other runs that have ended."""
    folders = [status.parent for status in run.results_dir.glob("*/status.json")]
    return [folder for folder in folders if folder != run.path and not folder.is_symlink() and ended(folder)]


def ended(folder: Path) -> bool:
    """Whether a run is over; one whose status cannot be read is left alone."""
    known = known_status(folder)
    return known is not None and known.status != "running"


def append_line(path: Path, text: str) -> None:
    """Adds a line of its own, also after one that was cut short."""
    whole = True
    if path.exists():
        files.check_regular(path, LARGEST_FILE)
        with path.open("rb") as before:
            before.seek(-min(1, path.stat().st_size), os.SEEK_END)
            whole = before.read() in (b"", b"\n")
    with path.open("a") as file:
        file.write(("" if whole else "\n") + text + "\n")


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


def history(results_dir: Path) -> Iterator[dict[str, Any]]:
    """Finished runs, oldest first; lines that are not whole are passed over."""
    try:
        with files.opened(results_dir / "history.jsonl", LARGEST_FILE, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and isinstance(entry.get("run"), str):
            yield {RENAMED.get(str(key), str(key)): value for key, value in entry.items()}


def write_index(results_dir: Path, template: str, kind: type[File], **more: Any) -> None:
    """Renders results_dir/index.md, newest run first, from the lines of the history that are of this `kind`."""
    lines = []
    for line in history(results_dir):
        with suppress(ValidationError):
            lines.append((kind.model_validate(line), os.path.isdir(results_dir / line["run"])))
    write_text(results_dir / "index.md", render(template, runs=lines[::-1], **more))


@contextmanager
def whole_or_nothing(folder: Path) -> Iterator[Path]:
    """A folder to write several files of `folder`; they appear in it once all are written, or none does."""
    fresh = folder / ".new"
    fresh.mkdir()
    try:
        yield fresh
        for path in fresh.iterdir():
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write_json(path: Path, data: Any) -> None:
    """Writes a whole file or none: readers never meet half of one. Secrets are left out."""
    write_text(path, json.dumps(hide(data), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():  # a pipe or a device is written into, not replaced
        path.write_text(hide_known(text))
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            file.write(hide_known(text))
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def read_json(path: Path) -> Any:
    """The file's content. Raises UsageError, naming the file, where there is none or it is no JSON."""
    try:
        return json.loads(files.read_text(path, LARGEST_FILE))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8, a number too long, deep nesting
        raise UsageError(f"{path}: not JSON: {' '.join(str(error).split())}.") from None


def read(path: Path, kind: type[Kind]) -> Kind:
    """The file as what it should hold. Raises UsageError, naming the file and what is wrong in it."""
    return parsed(path, read_json(path), kind)


def parsed(path: Path, data: Any, kind: type[Kind]) -> Kind:
    """Data of a file as what it should hold. Raises UsageError, naming the file and the first fault."""
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        faults = sorted(error.errors(include_url=False), key=lambda fault: fault["loc"] != ("schema_version",))
        where = ".".join(map(str, faults[0]["loc"]))
        said = "not an object" if faults[0]["type"] in ("model_type", "dataclass_type") else faults[0]["msg"]
        raise UsageError(f"{path}: {f'{where}: ' if where else ''}{said}.") from None
    except UsageError as error:  # a setting that this version refuses
        raise UsageError(f"{path}: {error}") from None


def read_columns(path: Path, names: Sequence[str] = ()) -> dict[str, list[float | None]]:
    """The columns of numbers in a CSV file, all or those named; an empty cell is None.

    Raises UsageError, naming the line, where a column is missing or a cell is no number.
    """
    try:
        with files.opened(path, LARGEST_FILE) as file:
            lines: list[dict[str, str]] = list(csv.DictReader(file, restkey="", restval=""))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}.") from None
    except (ValueError, csv.Error) as error:
        raise UsageError(f"{path}: not a table: {error}.") from None
    wanted = names or [name for name in (lines[0] if lines else {}) if name]
    columns: dict[str, list[float | None]] = {name: [] for name in wanted}
    for number, line in enumerate(lines, start=2):
        for name in wanted:
            try:
                columns[name].append(finite(line[name]))
            except (KeyError, ValueError, TypeError):
                raise UsageError(f"{path}:{number}: {name}: not a number: {line.get(name)!r}.") from None
    return columns


def finite(text: str) -> float | None:
    """A cell's number; None for an empty one. Raises ValueError, also for infinities."""
    value = float(text) if text else None
    if value is not None and not math.isfinite(value):
        raise ValueError(text)
    return value


def now() -> str:
    """The time here, with its zone (`TZ` decides)."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
