"""Runs that end badly end soon, with one line, the right exit code, and nothing left behind."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from harness.core.system import cpu_flags
from tests.conftest import ROOT, Finished, run, tells
from tests.support.warm_process import Warm

pytestmark = pytest.mark.engine

SOON_S = 15


@pytest.fixture(autouse=True)
def with_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model in a process below the engine's, as vLLM has it by itself: one more that must not be left behind."""
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING")


def check(done: Finished, code: int, status: str, *words: str, soon: float = SOON_S) -> None:
    """What holds for every run that did not finish."""
    assert done.code == code, done.output
    assert done.seconds < soon
    assert done.status["status"] == status
    for word in words:
        assert word in done.output
        assert word in done.status["reason"]
    assert "Traceback" not in done.output
    assert not (done.results / "latest").exists()
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(done.results) in " ".join(p.info["cmdline"] or [])]
    assert not engines()


def engines(parent: int | None = None) -> list[psutil.Process]:
    """vLLM's processes: those below `parent`, or those these tests began that no longer have a run above them."""
    if parent is not None:
        return [p for p in psutil.Process(parent).children(recursive=True) if "VLLM" in p.name() or "VLLM" in title(p)]
    return [p for p in psutil.process_iter() if "VLLM::" in title(p) and p.ppid() == 1 and begun_here(p)]


def begun_here(process: psutil.Process) -> bool:
    """Whether a process was started from this checkout since these tests began: others have engines, too."""
    try:
        return Path(process.cwd()) == ROOT and process.create_time() >= psutil.Process().create_time()
    except psutil.Error:
        return False


def title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_killed_engine(tmp_path: Path) -> None:
    def kill(pid: int) -> None:
        for process in engines(pid):
            process.kill()

    done = run(tmp_path, when="accuracy test", then=kill)
    check(done, 3, "failed", "engine process ended unexpectedly", "engine.log")
    assert (done.folder / "Accuracy" / "mlperf_log_detail.txt").exists()


def test_a_worker_that_dies_by_a_signal(tmp_path: Path) -> None:
    def kill(pid: int) -> None:
        workers = [process for process in engines(pid) if "Worker" in title(process)]
        assert len(workers) == 1
        workers[0].send_signal(signal.SIGILL)

    done = run(tmp_path, when="accuracy test", then=kill)
    check(done, 3, "failed", "worker 0 died by SIGILL (illegal instruction) in ", "engine.log")
    assert "cancelled" not in done.status["reason"]
    assert "Injected <class 'harness.engines.worker.Extension'>" in (done.folder / "engine.log").read_text()
    assert "worker_extension_cls" not in (done.folder / "config.json").read_text()


@pytest.mark.skipif("amx_tile" not in cpu_flags(), reason="this CPU has no AMX")
@pytest.mark.parametrize("tokens", [1, 4, 20])
def test_a_short_first_prompt_where_the_cpu_has_amx(tokens: int, tmp_path: Path) -> None:
    work = ("--mode", "performance", "--input-len", str(tokens), "--output-len", "8", "--total-sample-count", "64")
    done = run(tmp_path, *work, "--offline-expected-qps", "20", "--min-duration", "1")
    assert done.code == 0, done.output


def test_ctrl_c(tmp_path: Path) -> None:
    done = run(tmp_path, when="accuracy test", then=lambda pid: os.kill(pid, signal.SIGINT))
    check(done, 130, "interrupted", "interrupted")


def test_ctrl_c_while_the_engine_starts(tmp_path: Path) -> None:
    done = run(tmp_path, when="starting vLLM", then=lambda pid: os.kill(pid, signal.SIGINT))
    check(done, 130, "interrupted", "interrupted")


def test_an_estimate_that_is_interrupted_has_no_report(tmp_path: Path) -> None:
    done = run(
        tmp_path, "--scenario", "server", "--quick", when="probe at", then=lambda pid: os.kill(pid, signal.SIGINT)
    )
    check(done, 130, "interrupted", "interrupted")
    assert "No result" not in done.output and not [*tmp_path.rglob("report.html")]


def on_a_terminal(name: str, hangup: signal.Handlers) -> None:
    """Makes it this process's, as a shell does; `hangup` is what its end means, by nohup or without."""
    os.setsid()
    terminal = os.open(name, os.O_RDWR)
    for stream in range(3):
        os.dup2(terminal, stream)
    signal.signal(signal.SIGHUP, hangup)


@pytest.mark.parametrize(
    ("hangup", "code", "status"), [(signal.SIG_DFL, 130, "interrupted"), (signal.SIG_IGN, 0, "complete")]
)
def test_a_lost_terminal(tmp_path: Path, hangup: signal.Handlers, code: int, status: str) -> None:
    """It ends the run as Ctrl-C does, but not under nohup."""
    terminal, theirs = pty.openpty()
    few = ("--mode", "accuracy", "--total-sample-count", "64", "--no-exit-on-accuracy-fail")
    command = ["run.py", "--model", "demo", "--results-dir", str(tmp_path), *few]
    before = partial(on_a_terminal, os.ttyname(theirs), hangup)
    process = Warm(command, os.environ, tmp_path / "screen.txt", before)
    while b"accuracy test" not in os.read(terminal, 10_000):
        pass
    assert engines(process.pid)
    os.close(theirs)
    os.close(terminal)
    assert process.wait(120) == code
    (folder,) = tmp_path.glob("2*")
    assert json.loads((folder / "status.json").read_text())["status"] == status
    assert (tmp_path / "latest").exists() == (status == "complete")
    assert not engines()


def test_an_engine_that_hangs(tmp_path: Path) -> None:
    def stop(pid: int) -> None:
        for process in engines(pid):
            process.send_signal(signal.SIGSTOP)

    flags = ("--mode", "accuracy", "--stall-timeout", "2")
    done = run(tmp_path, *flags, when="accuracy test", then=stop)
    check(done, 3, "failed", "no response from vLLM for 8 s", "--stall-timeout (now 2)", soon=8 + SOON_S)
    assert not engines()


def test_too_little_memory(tmp_path: Path) -> None:
    done = run(tmp_path, "--gpu-memory-utilization", "1.0")
    assert done.code == 3, done.output
    assert "vLLM did not start" in done.status["reason"]
    assert "emory" in done.status["reason"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting a small file system takes root")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    def fill(pid: int) -> None:
        with (small_disk / "filler").open("wb") as file:
            free = os.statvfs(small_disk)
            file.write(b"\0" * (free.f_bavail * free.f_frsize - 2**20))

    done = run(small_disk, when="accuracy test", then=fill)
    check(done, 3, "failed", "is full")


def test_an_unknown_engine_argument_names_near_ones(tmp_path: Path) -> None:
    done = run(tmp_path, "--engine-arg", "enable_prefix_cashing=true")
    assert done.code == 2
    assert "enable_prefix_caching" in done.output


def test_what_vllm_refuses_is_said_in_its_own_words(tmp_path: Path) -> None:
    done = run(tmp_path, "--quantization", "foo")
    assert done.code == 2
    assert tells(done.output, "vLLM refuses ", ": Unknown quantization method: foo.")


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("int8_per_channel_weight_only", "quantizes nothing"),
        ("fp8", "fp8 on a CPU"),
    ],
)
def test_quantization_in_vain_is_refused(tmp_path: Path, method: str, message: str) -> None:
    done = run(tmp_path, "--quantization", method)
    assert done.code == 2
    assert message in done.output


def test_prompts_that_do_not_fit(tmp_path: Path) -> None:
    done = run(tmp_path, "--max-model-len", "512")
    assert done.code == 2
    assert "--max-model-len" in done.output
