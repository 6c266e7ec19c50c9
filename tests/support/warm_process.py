"""Commands in processes that have imported the large libraries already.

Importing vLLM takes a command some 17 s of a CPU and each process of the engine another 10 s, in every one of fifty
runs; what a run without it imports takes 6 s. Here one server process imports once, and every command is a fork of that
process: the same files, flags, exit codes and signals as `python run.py ...`. The engine's processes are forks of the
command, as they are on a GPU; on a CPU vLLM begins each in a new interpreter. Some runs of the tests are `cold`: begun
as a user begins them.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from multiprocessing import context
from pathlib import Path
from typing import Protocol

from harness.core.locations import ROOT

LIGHT = (
    "datasets",
    "matplotlib.pyplot",
    "mlperf_loadgen",
    "rouge_score.rouge_scorer",
    "transformers.models.auto.tokenization_auto",
)
VLLM = (
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
)
preload = [*LIGHT]  # with vLLM where a test of this process starts it: conftest.py says so


class Started(Protocol):
    """A command that runs."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...


class Warm:
    """A fork that runs a script; `before` is called in it first."""

    def __init__(
        self, command: list[str], env: Mapping[str, str], screen: Path, before: Callable[[], object] = int
    ) -> None:
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(preload)
        self.process = server.Process(target=run, args=(command, dict(env), screen, before))
        self.process.start()
        self.pid = self.process.pid or 0

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, timeout: float) -> int:
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"still running after {timeout:.0f} s"
        return self.process.exitcode


def cold(command: list[str], env: Mapping[str, str], screen: Path) -> Started:
    """The script in its own interpreter."""
    with screen.open("w") as output:
        return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=env, stdout=output, stderr=output)


def run(command: list[str], env: dict[str, str], screen: Path, before: Callable[[], object]) -> None:
    """What the fork does: become the command, with its environment and its screen."""
    import setproctitle

    setproctitle.setproctitle(" ".join(command))
    with screen.open("w") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(env)
    os.chdir(ROOT)
    contexts = context._concrete_contexts  # type: ignore[attr-defined]
    contexts["spawn"] = contexts["fork"]
    before()
    sys.argv = command
    runpy.run_path(str(ROOT / command[0]), run_name="__main__")
