"""Each option and argument that takes a path, in one command, with every path that is none; found by type."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.config.pretrained import load_tokenizer
from harness.config.run import RunConfig
from harness.core.given_values import flag_name
from harness.core.secrets import hide_text
from harness.mmlu.mmlu_config import MMLUConfig
from harness.runs import ending
from tests.conftest import called, ended, patience
from tests.support.hostile_files import command_words, commands, end

PATHS = re.compile(r"\b(PATH|FILE|DIR|RUN|LOG|LOG_DIR|RUN_DIR|DATASET|MODEL|FILE)\b|\w+\.(json|yaml|csv|png)")
ALSO = {"--workload", "--arrivals", "--client", "--model"}  # which take other words, too
OUTPUTS = {"--out", "--plot", "--csv", "--results-dir"}  # where a path that is not there is made
LONGEST_S = 10.0


def takes_path(parameter: Any) -> bool:
    names = {*parameter.opts}
    return parameter.bare_type() == "Path" or bool(PATHS.search(str(parameter.metavar or ""))) or bool(names & ALSO)


def loop(place: Path) -> str:
    (place / "loop").symlink_to("loop")
    return str(place / "loop")


def fifo(place: Path) -> str:
    os.mkfifo(place / "fifo")
    return str(place / "fifo")


def below_a_file(place: Path) -> str:
    (place / "file").write_text("x")
    return str(place / "file" / "below")


def sparse(place: Path) -> str:
    with (place / "huge.json").open("wb") as file:
        file.truncate(6 * 2**30)
    return str(place / "huge.json")


def empty_folder(place: Path) -> str:
    (place / "folder").mkdir()
    return str(place / "folder")


ADDRESS = "http://user:hidden1@host/?api_key=hidden2&mine=hidden3"
FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT", "TMPDIR")
HOSTILE: dict[str, Callable[[Path], str]] = {
    "not there": lambda place: str(place / "nothing" / "there"),
    "a folder": empty_folder,
    "below a file": below_a_file,
    "a link to itself": loop,
    "in /proc": lambda place: "/proc/self/nothing",
    "not ours to write": lambda place: "/sys/nothing/at/all",
    "a FIFO": fifo,
    "a device": lambda place: "/dev/zero",
    "a line end": lambda place: str(place / "a\nb"),
    "an escape": lambda place: str(place / "a\x1b[31m"),
    "no UTF-8": lambda place: str(place / "a\udcff"),
    "5,000 characters": lambda place: str(place / ("x" * 5000)),
    "a huge file": sparse,
    "NUL": lambda place: str(place / "a\0b"),
    "an address": lambda place: ADDRESS,
}
UNNAMEABLE = {
    "an address",
    "a line end",
    "an escape",
    "no UTF-8",
    "5,000 characters",
    "NUL",
    "a link to itself",
    "below a file",
}
READERS = [(words, each) for words, command in commands() for each in command.params if takes_path(each)]
CASES = [*{each.opts[0]: (words, each) for words, each in reversed(READERS)}.values()]


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Ends what is within after so many seconds, however it hangs."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What a command imports once, so that no alarm falls into it."""
    load_tokenizer(RunConfig(model="demo"))


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize(("words", "parameter"), CASES, ids=lambda value: getattr(value, "name", value))
def test_a_path_that_is_none_ends_in_one_line(
    words: str,
    parameter: Any,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "hostile").mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(ending, "exit", end)
    path = HOSTILE[kind](tmp_path / "hostile")
    begin = time.monotonic()
    with alarm(patience(LONGEST_S) + 5):
        done = called(main, "llama31-mlperf", *command_words(words, parameter, path, work))
    assert time.monotonic() - begin < patience(LONGEST_S)
    assert "Traceback" not in done.stderr, done.stderr
    is_output = bool(OUTPUTS & set(parameter.opts)) or (words, parameter.name) == ("endpoints run", "folder")
    if kind in UNNAMEABLE or not (is_output or kind == "a folder"):
        assert done.returncode == 2, (done.returncode, done.stdout[-300:], done.stderr)
    said = done.stderr + capfd.readouterr().err  # a run writes past Python's own streams
    lines = [line for line in said.splitlines() if not line.startswith(("partial results: ", "run folder: "))]
    assert len(lines) == (1 if done.returncode in (2, 3) else 0), said
    if kind == "an address":
        assert "hidden" not in said and "host" not in said
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]


FIELDS = [
    (words, name)
    for words, kind in (("run", RunConfig), ("mmlu", MMLUConfig))
    for name, info in kind.model_fields.items()
    if info.annotation in (Path, Path | None) or flag_name(name) in ALSO
]


@pytest.mark.parametrize(("words", "name"), FIELDS)
def test_an_address_for_a_path_in_a_file_of_settings(words: str, name: str, tmp_path: Path) -> None:
    (path := tmp_path / "settings.yaml").write_text(
        f"model: demo\n{name}: {ADDRESS}\n".replace("model: demo\nmodel", "model")
    )
    done = called(main, "llama31-mlperf", words, "--config", str(path))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: {flag_name(name)} takes no address") and "hidden" not in done.stderr


@pytest.mark.parametrize("name", FOLDERS)
def test_an_address_for_a_folder_in_the_environment(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, ADDRESS)
    done = called(main, "llama31-mlperf", "report", "latest", "--results-dir", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {name} takes no address") and "hidden" not in done.stderr


def test_an_address_for_a_log() -> None:
    done = ended("util_logs.py", ADDRESS)
    assert (done.returncode, done.stderr) == (
        2,
        "error: LOG_DIR takes no address, but a path: download the file first if it is to be read.\n",
    )


def test_an_address_that_was_made_a_path_is_hidden() -> None:
    said = hide_text(f"{Path(ADDRESS)}: not there; {Path('/a:b/c@d')}")
    assert "hidden" not in said and "host" in said and "/a:b/c@d" in said
