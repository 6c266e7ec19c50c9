"""The results folder: open a run, keep its status, finish it; latest, history, index, retention."""

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness import rules
from harness.config import Plan
from harness.errors import BenchmarkError, UsageError
from harness.pages import render

SPARE_BYTES = 2**23
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
        write_json(self.path / "status.json", {"status": status, "reason": reason, "time": now()})

    def give_up(self, status: Literal["failed", "interrupted"], reason: str = "") -> None:
        """Marks a run that ended early; one that is complete stays so, whatever happens to it afterwards."""
        if read_json(self.path / "status.json").get("status") != "complete":
            self.set_status(status, reason)

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
    settings["config"]["engine_arg"] = [hide_secret(pair) for pair in plan.config.engine_arg]
    loadgen = {"model": plan.loadgen_model, "scenario": rules.LOADGEN_SCENARIO[plan.config.scenario]}
    note(run, **facts, shortcomings=plan.shortcomings, loadgen=loadgen, plan=settings)


def facts_of(folder: Path) -> dict[str, Any]:
    """What config.json keeps of a run of run.py. Raises UsageError for any other folder."""
    facts = read_json(folder / "config.json")
    if not facts:
        raise UsageError(f"{folder}: no config.json in it; not a run folder.")
    if "plan" not in facts:
        raise UsageError(f"{folder}: not a folder of run.py, but of mmlu.py or another.")
    if "running" not in facts["plan"]:
        made = facts["system"]["git_revision"] or "an older version"
        raise UsageError(f"{folder}: made by {made}, which kept less; use that version for it.")
    return dict(facts)


def note(run: RunFolder, **facts: Any) -> None:
    """Adds facts to config.json, beside those it holds."""
    path = run.path / "config.json"
    write_json(path, json.loads(json.dumps(read_json(path) | facts, default=str)))


def hide_secret(word: str) -> str:
    """A command-line word with the value of anything like a token or password left out."""
    hidden = re.sub(r"(?is)((?:token|(?:secret|password|api[-_]?key)[\w-]*)[\"']?\s*[:=]\s*).*", r"\1***", word)
    hidden = re.sub(r"(//[^/@\s:]*):[^/@\s]+@", r"\1:***@", hidden)
    return re.sub(r"\bhf_[A-Za-z0-9]{16,}", "***", hidden)


def check_space(path: Path) -> None:
    """Raises BenchmarkError when the disk is about full: LoadGen would lose its logs without a word."""
    if shutil.disk_usage(path).free < SPARE_BYTES:
        raise BenchmarkError(f"the disk of {path} is full: free some space, or choose another --results-dir.")


def made(path: Path) -> bool:
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def finish(run: RunFolder, line: dict[str, Any], keep_all: bool = True, say: Callable[[str], None] = print) -> None:
    """Marks a run complete: its line joins the history, `latest` moves to it, and older runs go if asked.

    What cannot be written, moved or deleted takes nothing from the run: `say` is told.
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
    return [
        folder
        for folder in folders
        if folder != run.path
        and not folder.is_symlink()
        and read_json(folder / "status.json").get("status") != "running"
    ]


def append_line(path: Path, text: str) -> None:
    """Adds a line of its own, also after one that was cut short."""
    whole = not path.exists() or path.read_bytes().endswith(b"\n") or path.stat().st_size == 0
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
        lines = (results_dir / "history.jsonl").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("run"), str):
            yield entry


def write_index(results_dir: Path, template: str, columns: Sequence[str]) -> None:
    """Renders results_dir/index.md, newest run first, from the history; `columns` may be missing from old lines."""
    empty = dict.fromkeys(columns)
    lines = [empty | line | {"kept": os.path.isdir(results_dir / line["run"])} for line in history(results_dir)]
    write_text(results_dir / "index.md", render(template, runs=lines[::-1]))


@contextmanager
def whole_or_nothing(folder: Path) -> Iterator[Path]:
    """A place to write several files of `folder`; they appear in it once all are written, or none does."""
    place = folder / ".new"
    place.mkdir()
    try:
        yield place
        for path in place.iterdir():
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def write_json(path: Path, data: Any) -> None:
    """Writes a whole file or none: readers never meet half of one."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            file.write(text)
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def read_json(path: Path) -> Any:
    """The file's content, or {} where there is none that can be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def now() -> str:
    """The time here, with its zone (`TZ` decides)."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
