"""What a user can type: names that are too long, values without end, folders with nothing in them; a line each."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.common import files
from harness.common.errors import EngineError, UsageError, line_of, why
from harness.common.schema import SCHEMA
from harness.config import checkpoint
from harness.config.plan import resolve
from harness.config.run import RunConfig
from harness.monitoring.watchdog import PAUSED_S, StartWatch, Watchdog
from harness.reporting import report
from harness.results.verdicts import ScoresFile
from harness.runs import folder as results
from harness.runs.folder import RunFolder
from harness.sweep import file as sweep_file
from harness.workloads import custom
from tests import made
from tests.conftest import ROOT
from tests.test_summary import ACCURACY

LONG = "x" * 300
HUGE = "9" * 100_000


def ended(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run.py", "--model", "demo", "--seed", HUGE], "100,000 characters"),
        (["run.py", "--model", "demo", "--results-dir", "/tmp/none", "--dataset-path", LONG], "File name too long"),
        (["run.py", "--model", "demo", "--mode", "performance", "--workload", LONG], "File name too long"),
        (["run.py", "--model", "demo", "--endpoint", f"http://{'h' * 64}:1/v1"], "--endpoint takes an address"),
        (["mmlu.py", "--model", "demo", "--compare", LONG], "no finished evaluation"),
        (["report.py", LONG], "File name too long"),
        (["report.py", "--compare", LONG, "b"], "File name too long"),
        (["report.py", "--last", HUGE[:5000]], "argument --last: invalid int value: '999"),
        (["-m", "harness.submission", HUGE[:5000]], "invalid choice: '999"),
        (["-m", "harness.submission", HUGE], "100,000 characters"),
        (["util_logs.py"], "error: name one folder, not 0; usage: "),
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


def test_a_line_ends_whatever_was_given() -> None:
    assert line_of(f"--seed {HUGE}: no number") == f"--seed {'9' * 200}...: no number".replace("...:", "...")
    path = "/" + "a/" * 2000
    assert line_of(f"{path}: no such file") == f"{path}: no such file"
    assert len(line_of("ab " * 40_000)) <= 1000
    assert why(OSError()) == "OSError" and why(OSError(2, "gone")) == "gone"


def test_an_empty_folder_has_no_last_runs(tmp_path: Path) -> None:
    done = ended("report.py", "--last", "5", "--results-dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (
        2,
        f"error: --last 5: {tmp_path} holds 0 finished runs; a comparison takes two or more.\n",
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_comparison_is_written_into_a_pipe(tmp_path: Path) -> None:
    for name in "ab":
        made.rendered(tmp_path / name)
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
        made.rendered(tmp_path / name)
    for flag, name in (("--csv", "table.csv"), ("--plot", "plot.png")):
        (tmp_path / name).symlink_to("/dev/full")
        done = ended("report.py", "--compare", str(tmp_path / "a"), str(tmp_path / "b"), flag, str(tmp_path / name))
        assert done.returncode == 2
        assert done.stderr.endswith(f"error: {tmp_path / name}: No space left on device.\n")
        assert (tmp_path / name).is_symlink() and not Path("/dev/full").is_file()


def test_a_variable_of_a_sweep_holds_no_nul(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text('isolation: [{name: a, env: {A: "x\\0y"}}]\n')
    with pytest.raises(UsageError, match=r"s.yaml:1: no variable can hold a NUL"):
        sweep_file.load(tmp_path / "s.yaml")


def test_a_path_in_a_sweep_holds_no_nul(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text('extends: "x\\0y"\n')
    with pytest.raises(UsageError, match=r"s.yaml:1: no path can hold a NUL"):
        sweep_file.load(tmp_path / "s.yaml")


def test_a_config_file_holds_no_nul(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f'model: demo\nresults_dir: "{tmp_path}/x\\0y"\n')
    done = ended("run.py", "--config", str(tmp_path / "c.yaml"))
    assert (done.returncode, done.stderr) == (
        2,
        f"error: --config {tmp_path}/c.yaml: results_dir: no value can hold a NUL.\n",
    )


def test_runs_that_began_later_are_kept(tmp_path: Path) -> None:
    for name in ("20260101-000000-a", "20260101-000002-b", "20260101-000001-me"):
        run = RunFolder(tmp_path, name)
        run.path.mkdir()
        run.set_status("complete")
    me = RunFolder(tmp_path, "20260101-000001-me")
    assert [path.name for path in results.older(me)] == ["20260101-000000-a"]


def test_a_run_that_was_stopped_and_continued_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    engine: Any = SimpleNamespace(name="vLLM", last_response_at=0.0)
    dog = Watchdog(engine, 10)
    clock.now += 1
    engine.last_response_at = clock.now
    dog.check()
    clock.now += 10_000 + PAUSED_S
    dog.check()
    clock.now += 1
    dog.check()


def test_a_start_that_was_stopped_and_continued_blames_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    watch = StartWatch(tmp_path / "engine.log", 10)
    watch.check()
    clock.now += 10_000
    watch.check()
    for _ in range(int(watch.timeout_s)):
        clock.now += 1
        watch.check()
    clock.now += 1
    with pytest.raises(EngineError, match="it hangs"):
        watch.check()


def test_a_model_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = checkpoint.load_shape(RunConfig(model="demo"))
    monkeypatch.setattr(checkpoint, "load_shape", lambda config: shape)
    monkeypatch.setattr(shape, "num_hidden_layers", 10**18)
    with pytest.raises(UsageError, match="1,000,000,000,000,000,000 layers; is it damaged"):
        checkpoint.weight_bytes(RunConfig(model="demo"))
    monkeypatch.setattr(shape, "num_hidden_layers", 10_000)
    monkeypatch.setattr(shape, "intermediate_size", 10**12)
    with pytest.raises(UsageError, match="TiB of weights; is it damaged"):
        checkpoint.weight_bytes(RunConfig(model="demo"))


def test_a_large_workload_is_asked_no_longer_than_its_duration(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt_token_ids": [1], "max_tokens": 2}\n' * 2000)
    asked = {"model": "demo", "mode": "performance", "workload": str(path), "scenario": "server"}
    for more, queries in (({"min_duration": 10.0}, 100), ({}, 2000)):
        config = RunConfig(**asked, server_target_qps=10.0, **more)
        library = custom.load(config, checkpoint.load_tokenizer(config))
        assert library is not None
        assert resolve(config, [], 0, request_set=library.request_set).queries == queries


def test_scores_without_a_row(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run")
    scores = folder / "Accuracy"
    scores.mkdir()
    (scores / "samples.csv").write_text(
        "index,prompt_tokens,new_tokens,stop,rouge1,rouge2,rougeL,rougeLsum,characters\n"
    )
    report.build(folder)


@pytest.mark.parametrize("command", ["run.py", "mmlu.py", "sweep.py", "report.py", "util_logs.py"])
def test_ctrl_c_while_a_command_is_imported(command: str) -> None:
    begin = "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    path = ROOT / command
    code = f"{begin}; sys.modules['__main__'].__file__ = {str(path)!r}; import harness.common.interrupts"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; os.kill(os.getpid(), signal.SIGINT)"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    first = [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))][:2]
    assert any("harness.c" in line for line in first)


@pytest.mark.parametrize("module", ["harness.submission", "harness.accuracy", "harness.quantize", "util_logs"])
def test_ctrl_c_that_nothing_catches_shows_no_stack(module: str, tmp_path: Path) -> None:
    """At every package that is imported: a signal there is what Ctrl-C is."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(name, *more):\n"
        "        if name == os.environ['AT']: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    words = [module.replace("util_logs", "util_logs.py")] if "." not in module else ["-m", module]
    for package in ("harness.common.errors", "json"):
        around = os.environ | {"PYTHONPATH": str(tmp_path), "AT": package}
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env=around, capture_output=True, text=True)
        assert done.returncode in (130, -signal.SIGINT) and done.stderr == "interrupted\n", (package, done.stderr)


def test_a_program_that_imports_us_keeps_its_own_ctrl_c() -> None:
    code = "import harness, signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)"
    assert ended("-c", code).returncode == 0
    assert ended("-m", "pytest", "--version").returncode == 0


@pytest.mark.parametrize("cut", [True, False])
def test_a_run_interrupted_in_its_performance_test_has_an_accuracy_to_show(cut: bool, tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", mode="both")
    (folder / "Accuracy").mkdir()
    kept = ScoresFile(**ACCURACY, schema_version=SCHEMA, log="sha")
    files.write_json(folder / "Accuracy" / "rouge.json", kept.flat())
    log = folder / "Performance" / "mlperf_log_detail.txt"
    if cut:
        log.write_text(log.read_text()[:500])
    else:
        log.unlink()
    RunFolder(folder.parent, folder.name).set_status("interrupted", "interrupted")
    done = ended("report.py", str(folder))
    assert done.returncode == 0, done.stderr
    page = (folder / "report.md").read_text()
    assert f"**Accuracy: {kept.verdict}**" in page and "interrupted" in page
    assert "Performance: VALID" not in page


@pytest.mark.parametrize("asked", ["none", "test06"])
def test_a_compliance_test_that_was_cut_off_has_no_verdict(asked: str, tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", compliance=asked)
    RunFolder(folder.parent, folder.name).set_status("failed", "the engine ended")
    assert ended("report.py", str(folder)).returncode == 0
    page = (folder / "report.md").read_text()
    assert ("**TEST06: no verdict**" in page) == (asked == "test06")
