"""What asks a command to end while its report is written costs nothing that was measured."""

import json
import os
import signal
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.core import processes
from harness.core.progress import Display
from harness.sweep import file as sweep_file
from harness.sweep import loop
from harness.sweep import report as sweep_report
from harness.sweep.experiment import ExperimentRecord
from harness.sweep.file import BASELINE
from harness.sweep.lanes import Lane
from tests.conftest import launch
from tests.support.example_sweeps import SHORT, opened, written
from tests.support.fake_servers import Fake, serving
from tests.support.warm_process import Warm

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def interrupt(module: str, name: str) -> None:
    """Every signal that ends a command comes while a function of a module, which takes a while, is at work."""
    place = import_module(module)
    work = getattr(place, name)

    def slow(*given: Any, **named: Any) -> Any:
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        time.sleep(0.2)
        return work(*given, **named)

    setattr(place, name, slow)


def check(place: Path) -> None:
    """The run is complete, and the newest."""
    (folder,) = (path for path in place.glob("2*") if path.is_dir())
    assert (place / "latest").resolve() == folder.resolve()
    assert json.loads((folder / "status.json").read_text())["status"] == "complete"
    assert {"report.md", "report.html"} <= {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    begun = partial(Warm, before=partial(interrupt, "harness.report.report", "build_report"))
    flags = ("--backend", "echo", "--mode", "performance", "--min-duration", "1")
    code, output, _ = launch("run.py", tmp_path, *flags, start=begun)
    assert code == 0 and "interrupted" not in output, output
    check(tmp_path)
    assert (tmp_path / "latest" / "summary.json").exists()


@pytest.mark.slow
def test_an_evaluation(tmp_path: Path) -> None:
    begun = partial(Warm, before=partial(interrupt, "harness.mmlu.evaluation", "write_results"))
    with serving(Fake(scores=(-3.0, -1.0, -5.0, -9.0))) as fake:
        flags = ("--subjects", "anatomy", "--num-fewshot", "1", "--endpoint", fake.address)
        code, output, _ = launch("mmlu.py", tmp_path, *flags, start=begun)
    assert code == 0 and "interrupted" not in output, output
    check(tmp_path / "mmlu")


def test_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = sweep_file.load_sweep(written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n"))
    state = opened(few, tmp_path)
    monkeypatch.setattr(sweep_report, "build_report", sweep_report.build_report)  # as it was, afterwards
    monkeypatch.setattr(processes, "guards", {os.getpid(): None})  # this process is not to be guarded
    processes.install_signal_handlers()
    interrupt("harness.sweep.report", "build_report")
    with Display(Console(quiet=True)) as display:
        ran = {BASELINE: "complete", "a": "complete"}
        loop.run_sweep(state, [Lane()], display, lambda job, *_: ExperimentRecord(job.item.name, 0, ran[job.item.name]))
    check(tmp_path / "sweeps")
