"""What a user can type: names that are too long, values without end, folders with nothing in them; a line each."""

import errno
import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.config.lengths import Lengths, lengths
from harness.core.errors import UsageError
from harness.runs import ending
from harness.sweep import file as sweep_file
from tests.conftest import ROOT, called, ended, patience, tells
from tests.support import example_runs
from tests.support.hostile_files import end

LONG = "x" * 300
HUGE = "9" * 100_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run.py", "--model", "demo", "--seed", HUGE], "--seed takes a whole number from 0 to 4,294,967,295; got "),
        (["run.py", "--model", "demo", "--results-dir", "/tmp/none", "--dataset-path", LONG], "File name too long"),
        (["run.py", "--model", "demo", "--mode", "performance", "--workload", LONG], "File name too long"),
        (["run.py", "--model", "demo", "--endpoint", f"http://{'h' * 64}:1/v1"], "--endpoint takes an address"),
        (["report.py", LONG], "File name too long"),
        (["report.py", "--compare", LONG, "b"], "File name too long"),
        (["report.py", "--last", HUGE[:5000]], "--last takes a whole number"),
        (["-m", "harness", "submission", HUGE], "no such command '999"),
        (["util_logs.py"], "not 0; usage: "),
        (["util_logs.py", LONG], "File name too long"),
    ],
    ids=lambda item: " ".join(item)[:60] if isinstance(item, list) else "",
)
def test_a_name_or_value_that_is_too_long(words: list[str], said: str, tmp_path: Path) -> None:
    words = [word.replace("/tmp/none", str(tmp_path / "results")) for word in words]
    if words[0] in ("run.py", "mmlu.py") and "--results-dir" not in words:
        words += ["--results-dir", str(tmp_path / "results")]
    done = ended(*words)
    assert done.returncode == 2, done.stderr[-500:]
    assert said in done.stderr and "Traceback" not in done.stderr
    assert all(len(line) <= 1000 for line in (done.stdout + done.stderr).splitlines())


def test_an_empty_folder_has_no_last_runs(tmp_path: Path) -> None:
    done = ended("report.py", "--last", "5", "--results-dir", str(tmp_path))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert tells(done.stderr, "error: --last 5", f"{tmp_path} holds 0 ")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_comparison_is_written_into_a_pipe(tmp_path: Path) -> None:
    for name in "ab":
        example_runs.rendered(tmp_path / name)
    for flag, name in (("--csv", "table.csv"), ("--plot", "plot.png")):
        pipe = tmp_path / name
        os.mkfifo(pipe)
        reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
        done = ended("report.py", "--compare", str(tmp_path / "a"), str(tmp_path / "b"), flag, str(pipe))
        written, _ = reader.communicate(timeout=30)
        assert done.returncode == 0, done.stderr
        assert len(written) > 100 and not pipe.is_file()


def test_a_device_that_is_full_is_named(tmp_path: Path) -> None:
    for name in "ab":
        example_runs.rendered(tmp_path / name)
    for flag, name in (("--csv", "table.csv"), ("--plot", "plot.png")):
        (tmp_path / name).symlink_to("/dev/full")
        done = ended("report.py", "--compare", str(tmp_path / "a"), str(tmp_path / "b"), flag, str(tmp_path / name))
        assert done.returncode == 3
        assert done.stderr.startswith("error: /dev/full: ") or name in done.stderr
        assert done.stderr.endswith(f": {os.strerror(errno.ENOSPC)}.\n")
        assert (tmp_path / name).is_symlink() and not Path("/dev/full").is_file()


@pytest.mark.parametrize(
    "text",
    [
        'isolation: [{name: a, env: {A: "x\\0y"}}]\n',
        'extends: "a\\0b"\n',
        '"a\\0b": 1\n',
        'isolation: [{name: "a\\0"}]\n',
    ],
)
def test_no_value_of_a_yaml_file_holds_a_nul(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"s.yaml:1: .*NUL"):
        sweep_file.load_sweep(tmp_path / "s.yaml")
    done = ended("run.py", "--model", "demo", "--config", str(tmp_path / "s.yaml"), "--dry-run")
    assert done.returncode == 2 and tells(done.stderr, f"error: --config {tmp_path}/s.yaml: ", "NUL")


def test_an_unknown_workload_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    words = (
        "--model",
        "demo",
        "--mode",
        "performance",
        "--workload",
        "chta",
        "--results-dir",
        str(tmp_path / "results"),
    )
    done = called("run", "run.py", *words)
    assert done.returncode == 2 and tells(done.stderr, "error: --workload chta: ", "did you mean chat")
    assert not (tmp_path / "results").exists()


GATE = ("--baseline", "{place}/b", "--fail-if", "answers changed")
RUN = ("run", "--model", "demo", "--mode", "performance", "--dry-run")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*RUN, "--workload", "hf:json"), "json is a format"),
        ((*RUN, "--workload", "hf:csv:train"), "csv is a format"),
        ((*RUN, "--arrivals", "{place}/far.csv"), "far.csv: line 3: seconds"),
        (("sweep", "sweeps/demo.yaml", "--gpus", "side-by-side", "--results-dir", "{place}/sweeps"), "side-by-side"),
        (("report", "{place}/a", *GATE, "--may-differ", "nosuch"), "--may-differ nosuch"),
        ((*RUN, "--config", "{place}/escape.yaml"), "escape.yaml: not YAML: a control character"),
        ((*RUN, "--config", "{place}/lines.yaml"), "--label: control characters"),
        ((*RUN, "--label", "a\x01b"), "--label: control characters"),
        ((*RUN, "--label=a\x01b"), "--label: control characters"),
        ((*RUN, "--config", "{place}/twice.yaml"), "'seed' is given twice"),
        ((*RUN, "--config", "{place}/spelt.yaml"), "min_duration is given twice"),
        ((*RUN, "--config", "{place}/sixty.yaml"), "1:30 "),
        ((*RUN, "--json"), "--json"),
        ((*RUN, "--concurrency", "1,2,1"), "--concurrency: a number is given twice"),
        ((*RUN, "--samples-per-query", "8,8"), "--samples-per-query: a number is given twice"),
        ((*RUN, "--results-dir", ""), "--results-dir needs a non-empty path"),
        ((*RUN, "--results-dir="), "--results-dir needs a non-empty path"),
        ((*RUN, "--config", ""), "--config needs a non-empty value"),
        ((*RUN, "--arrivals="), "--arrivals needs a non-empty value"),
        (("compare", "http://a:1/v1", "http://b:1/v1", "--mode", "accuracy"), "compare measures speed"),
        (("report", "{place}/a", "--matrix", "gpu,gpu"), "--matrix gpu,gpu: an axis is named twice"),
        ((*RUN, "--workload", "{place}/long.jsonl"), "15,000,000 characters"),
        (("run", "--label", "a\udcff"), "invalid UTF-8"),
        (("accuracy", "nope.json", "DS"), "No such file"),
    ],
    ids=lambda item: " ".join(item)[:40] if isinstance(item, tuple) else "",
)
def test_what_nothing_can_be_made_of(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        example_runs.rendered(tmp_path / name)
    (tmp_path / "far.csv").write_text(f"seconds,input_tokens,output_tokens\n0,20,4\n{10**18},20,4\n")
    settings = {
        "escape": 'label: "a\\eb"',
        "lines": 'label: "a\\nb"',
        "twice": "seed: 1\nseed: 2",
        "sixty": "seed: 1:30",
    }
    settings["spelt"] = "min-duration: 3\nmin_duration: 4"
    for name, text in settings.items():
        (tmp_path / f"{name}.yaml").write_text(f"{text}\n")
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "word " * 3_000_000}) + "\n")
    before = sorted(tmp_path.iterdir())
    done = called(main, "llama31-mlperf", *(word.format(place=tmp_path) for word in words))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said.format(place=tmp_path) in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_bounds_that_hardly_any_draw_falls_into_are_kept() -> None:
    source = random.Random(1)
    assert {lengths("--input-len", "64~1000000:64-64").draw(source) for _ in range(200)} == {64}
    for median, sigma, low, high in ((10, 0.1, 9000, 10000), (10**6, 5.0, 1, 3), (9, 2.0, 1, 3)):
        drawn = [Lengths(median, sigma, low, high).draw(source) for _ in range(200)]
        assert low <= min(drawn) and max(drawn) <= high


def test_a_full_standard_output_is_named_and_a_reader_that_left_ends_a_help() -> None:
    for words in ("run.py -h", "-m harness -h", "-m harness logs docs/runs/demo/Performance"):
        with open("/dev/full", "w") as full:
            command = [sys.executable, *words.split()]
            done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (3, "error: standard output: No space left on device.\n")
    line = f"{sys.executable} run.py -h | true; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True).returncode in (0, 141)


@pytest.mark.parametrize(
    "words",
    [
        "run.py --model demo --backend echo",
        "run.py --model demo --backend echo --results-dir {place}",
        "mmlu.py --model demo",
        "sweep.py {root}/sweeps/demo.yaml",
        "report.py latest",
        "util_logs.py log",
        "-m harness doctor",
    ],
)
def test_a_current_folder_that_was_deleted(words: str, tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    words = words.format(place=tmp_path / "results", root=ROOT)
    command = words if words.startswith("-m") else f"{ROOT}/{words}"
    line = f"rmdir {gone}; exec {sys.executable} {command}"
    how = {"cwd": gone, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "timeout": patience(60)}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, **how)  # type: ignore[call-overload]
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("error: ") and "No such file or directory" in done.stderr
    assert not list(tmp_path.iterdir())


ECHO = ("run.py", "--model", "demo", "--backend", "echo", "--mode", "performance", "--min-duration", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{run} >/dev/full", 0, ""),
        ("{run} | head -n 1; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("{run} >&-", 0, ""),
        (
            "{run} --json 2>&1 >/dev/full | tail -n 1 >&2; exit ${{PIPESTATUS[0]}}",
            3,
            "error: standard output: No space",
        ),
    ],
    ids=["full", "head", "closed", "json"],
)
def test_a_run_is_complete_whoever_reads_what_it_says(shell: str, code: int, said: str, tmp_path: Path) -> None:
    """Only the JSON that was asked for is a result that standard output alone would have had."""
    command = shell.format(run=shlex.join([sys.executable, *ECHO, "--results-dir", str(tmp_path)]))
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code and done.stderr.startswith(said) and bool(done.stderr) == bool(said), done.stderr
    assert {"report.md", "report.html", "summary.json"} <= {path.name for path in (tmp_path / "latest").iterdir()}
    assert json.loads((tmp_path / "latest" / "status.json").read_text())["status"] == "complete"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk without a byte of room."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "full", str(tmp_path)], capture_output=True).returncode:
        pytest.skip("only root may mount a disk")
    (tmp_path / "filler").write_bytes(b"x" * 4096)
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "--model", "demo", "--backend", "echo", "--results-dir", "{disk}"), 3),
        (("run", "--model", "demo", "--backend", "echo", "--results-dir", "{disk}", "--dry-run"), 2),
        (("mmlu", "--model", "demo", "--results-dir", "{disk}"), 3),
        (("sweep", "sweeps/demo.yaml", "--results-dir", "{disk}"), 3),
        (("submission", "system", "--out", "{disk}/system.json"), 3),
    ],
    ids=lambda item: " ".join(item)[:30] if isinstance(item, tuple) else "",
)
def test_a_disk_without_room_ends_in_one_line(
    words: tuple[str, ...],
    code: int,
    full_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ending, "exit", end)
    done = called(main, "llama31-mlperf", *(word.format(disk=full_disk) for word in words))
    said = done.stderr + capfd.readouterr().err
    assert (done.returncode, said.count("\n")) == (code, 1), said
    assert str(full_disk) in said
