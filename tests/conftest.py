"""Shared by the tests: how to run the command, and demo runs that several tests look at."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from harness import __main__
from harness.core import startup
from tests.support import warm_process
from tests.support.warm_process import Started, Warm, cold

settings.register_profile("busy", deadline=None)  # how long an example takes is the machine's business
settings.load_profile("busy")
ROOT = Path(__file__).parent.parent
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and their children, ignore it
# On a CPU vLLM runs the model in a separate process; without it, as on one GPU, an engine starts in half the time.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}  # a locale that is not UTF-8
SECRET = "neverwritethisdown"
TOKEN = "hf_" + SECRET
NESTED = {"nested": {"Authorization": f"Bearer {SECRET}1", "creds": f"{SECRET}2", "private_key": f"{SECRET}3"}}
SECRETS = ("--engine-arg", f"additional_config={json.dumps(NESTED)}")


ENGINE_FIXTURES = {"offline", "server", "singlestream", "whole", "part", "place", "verdicts", "interactive"}
SAME_RUNS = (
    "results/test_compliance",
    "runs/test_whole_runs",
    "submission/test_submission",
    "commands/test_mlflow",
)
LOST_ENGINES = ("runs/test_failed_runs", "mmlu/test_evaluation", "engines/test_parallel", "sweep/test_loop")
TOGETHER = {  # test files that belong into one process
    **dict.fromkeys(SAME_RUNS, "look at the same runs"),
    **dict.fromkeys(LOST_ENGINES, "look for engines that lost their run"),
}
CORES = os.sched_getaffinity(0)


def patience(seconds: float) -> float:
    """How long something may take that takes so many seconds on free cores: longer where others want them, too."""
    return 2 * seconds * max(1.0, os.getloadavg()[0] / len(CORES))


def pytest_configure() -> None:
    """Gives each of several test processes cores of its own: engines that share one slow each other down tenfold."""
    worker, count = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if worker and len(CORES) >= count:
        os.sched_setaffinity(0, sorted(CORES)[int(worker.removeprefix("gw")) % count :: count])


def pytest_itemcollected(item: pytest.Item) -> None:
    """What looks at a run that a fixture makes starts an engine, too."""
    if ENGINE_FIXTURES & set(getattr(item, "fixturenames", ())):
        item.add_marker("engine")


class ByFile(LoadScopeScheduling):
    """Gives a process whole files, and those that belong together."""

    def _split_scope(self, nodeid: str) -> str:
        name = nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")
        return TOGETHER.get(name, name)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadscope" else None


def ended(*words: str) -> subprocess.CompletedProcess[str]:
    """A command of Python in its own process, to its end."""
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=patience(120))


def called(main: Callable[[], object] | str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command, or the sub-command of a name, in this process, as `ended`: what starting Python would add is tested
    elsewhere.
    """
    out, err = io.StringIO(), io.StringIO()
    with signals_kept(), pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", list(words))
        patch.setattr(startup, "restart_in_utf8", lambda: None)  # which may start the command over
        with pytest.raises(SystemExit) as end:
            __main__.main(main) if isinstance(main, str) else main()
    return subprocess.CompletedProcess(words, end.value.code or 0, out.getvalue(), err.getvalue())  # type: ignore[arg-type]


def tells(text: object, *parts: str) -> bool:
    """Whether a line of a text has these parts in this order: what carries its meaning, however it is worded."""
    assert all(len(part) > 1 for part in parts), "one text, taken apart by letters"
    return re.search(".*".join(map(re.escape, parts)), str(text)) is not None


@dataclass(frozen=True)
class Finished:
    """A `run.py` that has ended."""

    code: int
    output: str
    seconds: float
    results: Path
    folder: Path

    @property
    def summary(self) -> Any:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def status(self) -> Any:
        return json.loads((self.folder / "status.json").read_text())


def pytest_collection_finish(session: pytest.Session) -> None:
    """What commands of these tests import beforehand: vLLM only where one of them starts it."""
    if any(item.get_closest_marker("engine") for item in session.items):
        warm_process.preload += warm_process.VLLM


@contextmanager
def signals_kept() -> Iterator[None]:
    """What a command does to signals in this process ends with it: a process begun later would inherit it."""
    before = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    with signals_kept():
        yield


def nothing(pid: int) -> None: ...


def launch(
    script: str,
    results: Path,
    *flags: str,
    when: str = "",
    then: Callable[[int], None] = nothing,
    start: Callable[[list[str], Mapping[str, str], Path], Started] = Warm,
) -> tuple[int, str, float]:
    """Runs `script --model demo` with `flags` to its end: exit code, output, seconds.

    Calls `then` with its pid once a line of its output begins with `when`, behind the time, and counts the seconds from
    there.
    """
    results.mkdir(parents=True, exist_ok=True)
    screen = results / "screen.txt"
    command = [script, "--model", "demo", "--results-dir", str(results), *flags]
    process = start(command, os.environ | {"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}, screen)
    begin = time.monotonic()
    if when:
        begun = re.compile(rf"^(\d\d:\d\d:\d\d )?{re.escape(when)}", re.M)
        while not begun.search(screen_text(screen)) and process.poll() is None and time.monotonic() - begin < 240:
            time.sleep(0.05)
        assert process.poll() is None, screen_text(screen)
        begin = time.monotonic()
        then(process.pid)
    code = process.wait(timeout=400)
    return code, screen_text(screen), time.monotonic() - begin


def screen_text(screen: Path) -> str:
    return screen.read_text() if screen.exists() else ""


def run(results: Path, *flags: str, **how: Any) -> Finished:
    """A run of the benchmark, as `launch` has it."""
    ended = launch("run.py", results, *flags, **how)
    return Finished(*ended, results, max(results.glob("2*"), default=results))


@pytest.fixture(scope="session")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """datacenter, offline, both, with everything on auto, TEST06, begun as a user begins it."""
    flags = ("--extra-metrics", "--compliance", "test06")
    return run(tmp_path_factory.mktemp("results"), *flags, *SECRETS, start=cold)


@pytest.fixture(scope="session")
def server(offline: Finished) -> Finished:
    """datacenter, server, both and TEST06, after the offline run and in the same results folder."""
    return run(offline.results, "--scenario", "server", "--compliance", "test06", *SECRETS)


@pytest.fixture(scope="session")
def singlestream(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """edge, singlestream, both."""
    return run(tmp_path_factory.mktemp("results"), "--category", "edge", "--scenario", "singlestream")
