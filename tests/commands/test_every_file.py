"""Every file of a run's folder that a command reads back, damaged in every way."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.core.document import Picture
from harness.report import charts, pictures
from harness.report import report as rendering
from tests.commands.test_every_path import LONGEST_S, alarm
from tests.conftest import called, ended, patience


def nested(path: Path) -> None:
    path.write_text("[" * 100_000)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(6 * 2**30)


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def retyped(path: Path) -> None:
    """Numbers become text, texts numbers."""
    turned = path.read_text().replace(": 1", ': "x1').replace(",1", ",x")
    path.write_text(turned)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_text(""),
    "half": half,
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
    "null": lambda path: path.write_text("null"),
    "a list": lambda path: path.write_text("[1, 2]"),
    "a number": lambda path: path.write_text("5"),
    "one line": lambda path: path.write_text(path.read_text(errors="replace").splitlines()[0] + "\n"),
    "twice": lambda path: path.write_bytes(path.read_bytes() * 2),
    "other types": retyped,
    "nested": nested,
    "gone": lambda path: path.unlink(),
    "a folder": folder,
    "a FIFO": fifo,
    "huge": sparse,
}
WAYS = {
    "report": ("report", "{run}"),
    "compare": ("report", "--compare", "{run}", "{other}"),
    "gate": (
        "report",
        "{run}",
        "--baseline",
        "{other}",
        "--fail-if",
        "tokens_per_sec<-3%",
        "--fail-if",
        "answers changed",
    ),
    "system": ("submission", "system", "--run", "{run}", "--out", "{place}/system.json"),
    "build": (
        "submission",
        "build",
        "--runs",
        "{run}",
        "--submitter",
        "x",
        "--system",
        "x.json",
        "--out",
        "{place}/out",
    ),
    "mlflow": ("mlflow", "{run}", "--results-dir", "{place}"),
}

OF_JSON = ("null", "a list", "a number", "nested", "other types")  # which say nothing of other files
OF_LINES = ("one line", "twice")
EVERYWHERE = ("half", "other types")  # tried with every command, the others with the first


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of the echo engine: Offline with accuracy, Server, and a curve."""
    place = tmp_path_factory.mktemp("runs")
    short = ("--model", "demo", "--backend", "echo", "--min-duration", "1", "--extra-metrics")
    kinds = {
        "offline": ("--mode", "both", "--no-exit-on-accuracy-fail"),
        "server": ("--mode", "performance", "--scenario", "server", "--server-target-qps", "600"),
        "curve": ("--mode", "performance", "--concurrency", "1,4"),
    }
    found = {}
    for name, flags in kinds.items():
        done = ended("run.py", *short, *flags, "--results-dir", str(place / name))
        assert done.returncode == 0, done.stderr
        found[name] = (place / name / "latest").resolve()
    return found


def readable(run: Path) -> list[str]:
    """The files of a run that a command may read back."""
    kinds = {".json", ".csv", ".txt", ".jsonl", ".gz"}
    return sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.suffix in kinds and path.is_file())


def attempt(words: tuple[str, ...], run: Path, other: Path, place: Path) -> str:
    """What is wrong with how a command ended; empty where nothing is."""
    line = [word.format(run=run, other=other, place=place) for word in words]
    try:
        with alarm(patience(LONGEST_S)):
            done = called(main, "llama31-mlperf", *line)
    except BaseException as error:  # also an alarm
        return f"{type(error).__name__}: {error}"
    if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr:
        return f"exit code {done.returncode}: {done.stderr[-300:]}"
    if done.returncode == 2 and not done.stdout and done.stderr.count("\n") != 1:
        return f"no line: {done.stderr!r}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "damage"),
    [("offline", damage) for damage in DAMAGE] + [(k, d) for k in ("server", "curve") for d in ("half",)],
)
def test_a_damaged_file_ends_in_one_line(
    runs: dict[str, Path], kind: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = pictures.draw_pictures
    monkeypatch.setattr(
        charts, "save_pictures", lambda drawn, folder, words="": {}
    )  # drawing is tried where tables are damaged
    drawn = {"scores": Picture("scores", "", "x.png", [])}
    monkeypatch.setattr(rendering, "draw_pictures", lambda *given: draw(*given) if name.endswith(".csv") else drawn)
    wrong: list[Any] = []
    cases = 0
    ways = WAYS if damage in EVERYWHERE else {"report": WAYS["report"]}
    run = tmp_path / "run"
    shutil.copytree(runs[kind], run)
    for name in readable(runs[kind]):
        if damage in (OF_LINES if name.endswith(".json") else OF_JSON if not name.endswith(".csv") else ()):
            continue
        for way, words in ways.items():
            if way == "mlflow" and "/" in name:  # which reads none of them
                continue
            cases += 1
            try:
                DAMAGE[damage](run / name)
            except (OSError, IndexError):
                continue
            if fault := attempt(words, run, runs[kind], tmp_path):
                wrong.append((name, way, fault))
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(runs[kind], run)
    assert not wrong, json.dumps(wrong, indent=1)
    assert cases
