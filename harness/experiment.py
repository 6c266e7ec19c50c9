"""One experiment of a sweep: a `run.py` process of its own, and what it left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from harness import ending, results, system
from harness.config import ROOT
from harness.errors import DONE, NOT_ACCEPTED
from harness.sweep_file import Experiment

Status = Literal["complete", "failed", "timeout", "interrupted", "skipped"]
ENDED: tuple[Status, ...] = ("complete", "failed", "timeout", "skipped")
SCREEN = "screen.txt"
LAST_CALL_S = 20.0  # run.py ends its engine within a few seconds of being asked
MEMORY_WAIT_S = 60.0
MEMORY_SLACK = 2**30


@dataclass(frozen=True)
class Metrics:
    """What run.py measured, for the sweep's table; None where it was not. Times in milliseconds, ROUGE x100."""

    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    duration_s: float | None = None
    valid: bool | None = None
    invalid_reasons: tuple[str, ...] = ()
    latency_p50: float | None = None
    latency_p99: float | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    tpot_p50: float | None = None
    tpot_p99: float | None = None
    verdict: str | None = None
    rouge1: float | None = None
    rougeL: float | None = None
    engine_start_s: float | None = None
    peak_memory_gib: float | None = None


@dataclass(frozen=True)
class Record:
    """One experiment run once. `run` is its run folder, relative to the sweep's; `reason` one line where it failed."""

    experiment: str
    round: int
    status: Status
    reason: str = ""
    seconds: float = 0.0
    run: str | None = None
    metrics: Metrics = Metrics()


def run(item: Experiment, turn: int, place: Path, timeout: float, lock: int, watch: Callable[[str], None]) -> Record:
    """Runs `item` in `place`/<name>, for at most `timeout` seconds; `watch` gets the last line it printed.

    An interruption ends the experiment's processes too and comes back as its status. The process inherits the file
    descriptor `lock`, so that a sweep's lock is held as long as one of its runs lives.
    """
    folder = place / item.name
    folder.mkdir(exist_ok=True)
    config = folder / "config.yaml"
    results.write_json(config, item.settings)  # JSON is YAML
    command = [sys.executable, str(ROOT / "run.py"), "--config", str(config), "--results-dir", str(folder)]
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"} | item.env
    before = set(folder.iterdir())
    begin = time.monotonic()
    stopped: Status | None = None
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True, "pass_fds": (lock,)}
    with (folder / SCREEN).open("w") as screen:
        try:
            process = subprocess.Popen(command, env=environment, stdout=screen, stderr=screen, **options)
        except (OSError, ValueError) as error:  # a variable's value that none can have, say
            return Record(item.name, turn, "failed", f"run.py could not be started: {error}")
        try:
            while process.poll() is None and time.monotonic() - begin < timeout:
                watch(last_line(folder / SCREEN))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
            if process.poll() is None:
                stopped = "timeout"
        except KeyboardInterrupt:
            stopped = "interrupted"
            ending.ignore_signals()
        finally:
            end(process)
    seconds = round(time.monotonic() - begin, 1)
    made = [
        path for path in set(folder.iterdir()) - before if (path / "status.json").exists() and not path.is_symlink()
    ]
    left = max(made, default=None)
    outcome = results.read_json(left / "status.json") if left else {}
    whole = outcome.get("status") == "complete" and process.returncode in (DONE, NOT_ACCEPTED)
    status: Status = stopped or ("complete" if whole else "failed")
    reason = {"complete": "", "timeout": f"ended after {timeout:g} s (--timeout)", "interrupted": "interrupted"}.get(
        status
    )
    if reason is None and process.returncode < 0:
        reason = f"run.py was ended by {signal.Signals(-process.returncode).name}: {last_line(folder / SCREEN)}"
    if reason is None:
        reason = (
            outcome.get("reason") or last_line(folder / SCREEN) or f"run.py ended with exit code {process.returncode}"
        )
    if left and outcome.get("status") == "running":
        results.RunFolder(folder, left.name).set_status("failed", reason)
    found = metrics(results.read_json(left / "summary.json")) if left else Metrics()
    return Record(item.name, turn, status, reason, seconds, str(left.relative_to(place)) if left else None, found)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends run.py, which is asked first, and then whatever is left of its process group, also after a hard death."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LAST_CALL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def settled(record: Record, before: int) -> Record:
    """The record, once no more GPU memory is taken than the bytes `before` its run; it says so if that stays."""
    until = time.monotonic() + MEMORY_WAIT_S
    while system.gpu_memory_used() > before + MEMORY_SLACK:
        if time.monotonic() > until:
            said = f"GPU memory was still taken {MEMORY_WAIT_S:g} s after its end"
            return replace(record, reason="; ".join(filter(None, (record.reason, said))))
        time.sleep(0.5)
    return record


def last_line(path: Path) -> str:
    """The last line of text in a file, read from its end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("what there is so far:")]
    return said[-1].removeprefix("error: ") if said else ""


def metrics(summary: dict[str, Any]) -> Metrics:
    """The table's numbers out of a summary.json; {} gives none."""
    if not summary:
        return Metrics()
    test, score = summary["run"].get("performance", {}), summary["run"].get("accuracy", {})
    times = {
        f"{kind}_{point}": (test.get(f"{kind}_ms") or {}).get(point)
        for kind in ("latency", "ttft", "tpot")
        for point in ("p50", "p99")
    }
    return Metrics(
        tokens_per_s=test.get("tokens_per_sec"),
        samples_per_s=test.get("samples_per_sec"),
        duration_s=test.get("duration_s"),
        valid=test.get("valid"),
        invalid_reasons=tuple(test.get("invalid_reasons", ())),
        verdict=score.get("verdict"),
        rouge1=score.get("scores", {}).get("rouge1"),
        rougeL=score.get("scores", {}).get("rougeL"),
        engine_start_s=summary["meta"].get("engine_start_s"),
        peak_memory_gib=test.get("peak_memory_gib"),
        **times,
    )
