"""Several copies of the model, and one copy split: vLLM's own processes, on the CPU."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.conftest import CORES, ROOT, patience, run
from tests.runs.test_failed_runs import engines
from tests.support.warm_process import Warm

pytestmark = pytest.mark.engine

REPLICAS = ("--data-parallel-size", "2")
ALL_CORES = partial(Warm, before=partial(os.sched_setaffinity, 0, CORES))  # each process of the engine takes one


def test_replicas_share_the_load(tmp_path: Path) -> None:
    cache = ("--engine-arg", "enable_prefix_caching=true")
    few = ("--total-sample-count", "64", "--min-duration", "1", "--offline-expected-qps", "4")
    done = run(tmp_path, *REPLICAS, *cache, *few, start=ALL_CORES)
    assert done.code == 0, done.output
    assert done.summary["run"]["accuracy"]["samples"] == 64
    assert done.summary["run"]["performance"]["valid"]
    log = (done.folder / "engine.log").read_text()
    for copy in ("DP0", "DP1"):  # both are there, and each forgets before each of the two tests
        assert sum(copy in line and "reset prefix cache" in line for line in log.splitlines()) >= 2


def test_a_lost_replica_ends_the_run(tmp_path: Path) -> None:
    def kill(pid: int) -> None:
        children = psutil.Process(pid).children(recursive=True)
        (last,) = (child for child in children if child.name().endswith("EngineCore_DP1"))
        last.send_signal(signal.SIGKILL)

    test = ("--mode", "performance", "--offline-expected-qps", "4")
    done = run(tmp_path, *REPLICAS, *test, when="performance test", then=kill, start=ALL_CORES)
    assert (done.code, done.status["status"]) == (3, "failed"), done.output
    assert "vLLM's engine process ended unexpectedly" in done.status["reason"]
    assert done.seconds < patience(60)
    assert not engines()


def test_one_copy_split_answers_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = sorted(CORES)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cores[0]}|{cores[-1]}")
    done = run(tmp_path, "--category", "edge", "--tensor-parallel-size", "2", "--mode", "accuracy", start=ALL_CORES)
    assert done.code == 0, done.output
    split = done.summary["run"]["accuracy"]
    assert split["verdict"] == "PASS"
    whole = json.loads((ROOT / "demo" / "reference.json").read_text())["edge"]  # measured on one
    assert split["scores"]["rouge1"] == pytest.approx(whole["rouge1"], abs=0.1)
