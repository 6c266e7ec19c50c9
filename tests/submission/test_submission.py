"""From runs to a submission: layout, what is refused, and the official checker where the submodule is there."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from harness import __main__
from harness.commands import submission as command_line
from harness.config import mlperf, models
from harness.config.models import DEFAULT_MODEL
from harness.config.pretrained import load_shape
from harness.core.errors import UsageError
from harness.core.system import detect
from harness.loadgen import invalid_reasons, log_entries
from harness.loadgen import log as loadgen_log
from harness.results import claims
from harness.submission import entries, official_checker, refusals, system_description, tree
from tests.conftest import ROOT, Finished, called, tells
from tests.support import example_runs

needs_submodule = pytest.mark.skipif(
    not official_checker.TOOLS.exists(),
    reason="third_party/inference is empty: git submodule update --init third_party/inference",
)

# The official checker, without a judgement of scores, which here are another model's.
SCORES = """
import sys
from submission_checker import constants
for version in ("v5.1", "v6.0", "v6.1"):
    config = constants.MODEL_CONFIG[version]
    for model in ("llama3.1-8b", "llama3.1-8b-edge"):
        names = config["accuracy-target"][model][::2]
        config["accuracy-target"] |= {model: sum(((name, 0.0) for name in names), ())}
"""
# And asking for the demo's sample counts and durations instead of MLPerf's.
LENGTHS = """
counts = {"llama3.1-8b": 256, "llama3.1-8b-edge": 100}
for version in ("v5.1", "v6.0", "v6.1"):
    config = constants.MODEL_CONFIG[version]
    config["performance-sample-count"] |= counts
    config["dataset-size"] |= counts
constants.OFFLINE_MIN_SPQ_SINCE_V4 |= counts
constants.TEST_DURATION_MS = 10_000
"""
MAIN = """
from submission_checker.main import main
sys.exit(main())
"""
LENGTH = ("performance_sample_count", "Test duration less than", "does not cover all dataset")
CONSEQUENCES = ("Some performance checks", "Some accuracy checks", "NoResults", "SUMMARY: submission has errors")
EARLY = ("Early stopping condition was not met",)
OVER = "Failed extra check for TTFT and TPOT"


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A filled-in description."""
    path = tmp_path / "two-cores.json"
    written = system_description.describe(detect())
    written |= {name: "as found" for name in system_description.missing_fields(written)} | {"status": "available"}
    path.write_text(json.dumps(written))
    return path


def submission(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", "submission", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@contextmanager
def demo_as_real() -> Iterator[None]:
    """What closed submissions are scored with again: here the demo's model and data stand for the real ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.MODELS, DEFAULT_MODEL, models.MODELS["demo"]._replace(deviation=""))
        forget()
        yield
    forget()


def forget() -> None:
    """Rows of models, and what their checkpoints are, are remembered by name."""
    models.model.cache_clear()
    load_shape.cache_clear()


def build(out: Path, system: Path, runs: Sequence[Path], division: str = "open") -> subprocess.CompletedProcess[str]:
    flags = ["--submitter", "Demo", "--system", system, "--division", division, "--out", out]
    with demo_as_real():
        return called("submission", "submission", "build", "--runs", *map(str, runs), *map(str, flags))


def of_version(run: Path, version: str, target: Path) -> Path:
    """A copy of a run that says it is of another round: version and seeds, everywhere they are written."""
    shutil.copytree(run, target)
    own_round = json.loads((run / "config.json").read_text())["plan"]["config"].get("round")
    for path in target.rglob("mlperf_log_detail.txt"):
        text = path.read_text()
        for name, seed in vars(mlperf.SEEDS_BY_ROUND[own_round]).items():
            text = text.replace(str(seed), str(getattr(mlperf.SEEDS_BY_ROUND[version], name)))
        path.write_text(text)
    change(target / "config.json", lambda facts: facts["plan"]["config"].update(round=version))
    if (target / "Performance").exists():
        retell(target / "Performance")
    return target


def change(path: Path, how: Callable[[Any], Any]) -> None:
    data = json.loads(path.read_text())
    how(data)
    path.write_text(json.dumps(data))


def lowered(folder: Path, version: str, lengths: str = LENGTHS) -> tuple[int, list[str]]:
    """The exit code and the errors of the checker with its demands on scores, and on length, lowered."""
    command = [sys.executable, "-c", SCORES + lengths + MAIN, "--input", str(folder), "--version", f"v{version}"]
    done = subprocess.run(
        [*command, "--csv", str(folder / "summary.csv")], cwd=official_checker.TOOLS, capture_output=True, text=True
    )
    return done.returncode, official_checker.error_lines(done.stdout + done.stderr)


def unexpected(errors: Sequence[str], server: Finished, *expected: str) -> list[str]:
    """Errors other than those expected; a slow or busy machine may not keep the Server run's limits, or leave it too
    few queries. The checker must say that a limit broke where one did, and only there.
    """
    test = server.summary["run"]["performance"]
    over = any(test[f"{name}_ms"]["p99"] >= limit for name, limit in test["limits_ms"].items())
    assert any(OVER in line for line in errors) == over
    if not test["valid"]:
        expected = (*expected, *EARLY, *CONSEQUENCES, OVER)
    return [line for line in errors if not any(part in line for part in expected)]


@needs_submodule
@pytest.mark.parametrize("version", ["5.1", "6.0", "6.1"])
def test_the_official_checker_finds_only_the_length_wanting(
    offline: Finished, server: Finished, singlestream: Finished, system: Path, tmp_path: Path, version: str
) -> None:
    runs = [done.folder for done in (offline, server, singlestream)]
    runs = [of_version(run, version, tmp_path / "runs" / run.name) for run in runs]
    out = tmp_path / "submission"
    built = build(out, system, runs)
    assert built.returncode == 0, built.stderr
    for demand in ("256 samples in the accuracy test", "100 samples in the accuracy test", "minimum duration"):
        assert demand in built.stdout

    judged = submission("check", out)
    assert judged.returncode == 1
    assert f"MLPerf v{version}: not accepted" in judged.stdout
    found = official_checker.error_lines(judged.stdout)
    for part in LENGTH:
        assert any(part in line for line in found), part
    assert not unexpected(found, server, *LENGTH, *CONSEQUENCES)

    code, found = lowered(out, version)
    assert not unexpected(found, server)
    assert code == bool(found)
    results = (out / "summary.csv").read_text()
    assert all(name in results for name in ('"Offline"', '"SingleStream"', '"llama3.1-8b-edge"'))


@needs_submodule
@pytest.mark.parametrize("version", ["5.1", "6.1"])
def test_a_closed_submission_has_its_test06_where_the_checker_looks(
    acceptable: list[Path], system: Path, tmp_path: Path, version: str
) -> None:
    runs = [of_version(run, version, tmp_path / version / run.name) for run in acceptable]
    built = build(tmp_path / "out", system, runs, "closed")
    assert built.returncode == 0, built.stderr
    code, found = lowered(tmp_path / "out", version, lengths="")
    assert (code, found) == (0, [])
    for path in (tmp_path / "out").rglob("verify_accuracy.txt"):
        path.unlink()
    code, found = lowered(tmp_path / "out", version, lengths="")
    assert code == 1
    assert any("verify_accuracy.txt" in line for line in found)


@needs_submodule
def test_the_accuracy_log_is_cut_as_the_official_script_cuts_it(
    offline: Finished, system: Path, tmp_path: Path
) -> None:
    place = Path("open/Demo/results/two-cores/llama3.1-8b/Offline/accuracy")
    assert build(tmp_path / "ours", system, [offline.folder]).returncode == 0
    theirs = tmp_path / "theirs"
    shutil.copytree(tmp_path / "ours" / place, theirs / place)
    log, scores = (theirs / place / name for name in (tree.ANSWERS_FILE, "accuracy.txt"))
    shutil.copyfile(offline.folder / "Accuracy" / tree.ANSWERS_FILE, log)
    scores.write_text(scores.read_text().split("hash=")[0])
    command = [sys.executable, str(official_checker.TOOLS / "truncate_accuracy_log.py"), "--submitter", "Demo"]
    folders = ["--input", str(theirs), "--backup", str(tmp_path / "backup")]
    subprocess.run([*command, *folders], check=True, capture_output=True)
    ours = tmp_path / "ours" / place
    assert (ours / log.name).read_bytes() == log.read_bytes()
    assert log.stat().st_size < offline.folder.joinpath("Accuracy", log.name).stat().st_size
    assert (ours / "accuracy.txt").read_text().split() == scores.read_text().split()


def rewrite(folder: Path, **values: Any) -> None:
    """Puts other values into the detail log in a folder; an entry that it lacks comes before its last."""
    path = folder / log_entries.DETAIL
    lines = path.read_text().splitlines(keepends=True)
    for key, value in values.items():
        entry = {"value": value, "metadata": {"is_error": False, "is_warning": False}}
        text = f"{log_entries.LOG_MARK}{json.dumps({'key': key, **entry})}\n"
        places = [n for n, line in enumerate(lines) if f'"key": "{key}"' in line] or [len(lines) - 1]
        lines[places[0] : places[0] + 1] = [text] if f'"key": "{key}"' in lines[places[0]] else [text, lines[places[0]]]
    path.write_text("".join(lines))


def retell(folder: Path) -> None:
    """Lets LoadGen's summary say what its detail log, which was rewritten, says."""
    logged = {claims.label_words(key): entry for key, entry, _ in log_entries.log_records(folder / log_entries.DETAIL)}

    def line(found: re.Match[str]) -> str:
        entry = logged.get(claims.label_words(found[1]))
        if not isinstance(entry, bool | int | float):
            return found[0]
        said = ("Yes" if entry else "NO") if isinstance(entry, bool) else str(entry)
        return said.join(found[0].rsplit(found[2], 1))

    path = folder / claims.LOADGEN_SUMMARY_FILE
    path.write_text(claims.SUMMARY_LINE.sub(line, path.read_text()))


OFFICIAL = mlperf.OFFICIAL_TASKS["datacenter"].samples
VALID = {"result_validity": "VALID", **dict.fromkeys(invalid_reasons.ENTRY_BY_CHECK.values(), True)}
FAST = {
    "result_first_token_99.00_percentile_latency_ns": 400_000_000,
    "result_time_per_output_token_99.00_percentile_ns": 25_000_000,
}


@pytest.fixture
def acceptable(
    offline: Finished, server: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Path]]:
    """Copies of the two demo runs that say of themselves what runs of the real model and length would say, in v5.1."""
    monkeypatch.setitem(models.MODELS, "llama3.1-8b-instruct", models.MODELS["demo"]._replace(deviation=""))
    models.model.cache_clear()
    runs = []
    for done in (offline, server):
        run = of_version(done.folder, "5.1", tmp_path / "runs" / done.folder.name)
        change(run / "config.json", lambda facts: facts.update(deviations=[]))
        change(
            run / "config.json",
            lambda facts: facts["plan"]["config"].update(model="llama3.1-8b-instruct", engine_arg=[]),
        )
        change(
            run / "config.json",
            lambda facts: facts["plan"].update(samples=OFFICIAL, min_duration_s=600.0, reference_model=True),
        )
        summary = run / "Performance" / "mlperf_log_summary.txt"
        summary.write_text(summary.read_text().replace("INVALID", "VALID"))
        change(run / "Accuracy" / "rouge.json", lambda rouge: rouge.update(approximate=[], full_set=True))
        rewrite(run / "Accuracy", effective_accuracy_sample_count=OFFICIAL)
        counts = {"effective_performance_sample_count": OFFICIAL, "effective_min_duration_ms": 600_000}
        rewrite(run / "Performance", **VALID, **counts)
        query = {"effective_samples_per_query": OFFICIAL} if done is offline else FAST
        rewrite(run / "Performance", **query)
        retell(run / "Performance")
        runs.append(run)
    yield runs
    models.model.cache_clear()


def of_config(**flags: Any) -> Callable[[Path], None]:
    return lambda run: change(run / "config.json", lambda facts: facts["plan"]["config"].update(flags))


def of_plan(**values: Any) -> Callable[[Path], None]:
    return lambda run: change(run / "config.json", lambda facts: facts["plan"].update(values))


def of_facts(**facts: Any) -> Callable[[Path], None]:
    return lambda run: change(run / "config.json", lambda data: data.update(facts))


def of_rouge(**values: Any) -> Callable[[Path], None]:
    return lambda run: change(run / "Accuracy" / "rouge.json", lambda rouge: rouge.update(values))


def in_log(folder: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        path = run / folder / log_entries.DETAIL
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return edit


def of_log(folder: str, **values: Any) -> Callable[[Path], None]:
    return lambda run: rewrite(run / folder, **values)


OTHERS = "mlperf_log_summary.txt of Accuracy,"  # where it is another test's

REASONS: list[tuple[Callable[[Path], None], str]] = [
    (of_facts(deviations=["256 of 13,368 samples"]), "256 of 13,368 samples"),
    (of_facts(deviations=["dummy weights"]), "dummy weights"),
    (of_config(model="demo/model"), "the demo model"),
    (of_facts(deviations=["speculative decoding"]), "speculative decoding"),
    (of_rouge(verdict="FAIL"), "the accuracy gate says FAIL"),
    (of_rouge(verdict="NOT JUDGED"), "the accuracy gate says NOT JUDGED"),
    (of_rouge(approximate=["rougeLsum"]), "ROUGE-Lsum and gen_len are approximate"),
    (in_log("Performance", '"value": "VALID"', '"value": "INVALID"'), "INVALID"),
    (in_log("Performance", str(mlperf.SEEDS_BY_ROUND["5.1"].schedule), "7"), "seeds other than those of v5.1"),
    (in_log("Accuracy", '"is_error": false', '"is_error": true'), "LoadGen error"),
    (lambda run: shutil.rmtree(run / "Compliance"), "no TEST06"),
    (
        lambda run: change(run / "Compliance" / "TEST06" / "result.json", lambda data: data.update(passed=False)),
        "TEST06 failed",
    ),
    (
        lambda run: change(
            run / "Compliance" / "TEST06" / "mlperf_log_accuracy.json", lambda log: log[0].update(token_count=1)
        ),
        "TEST06 failed",
    ),
    (
        lambda run: (run / "Compliance" / "TEST06" / "verify_accuracy.txt").write_text("EOS check pass: True\n"),
        "verify_accuracy.txt does not match its log",
    ),
    (of_log("Performance", effective_samples_per_query=256), "a query of 256 samples; closed asks for 13,368"),
    (of_rouge(rouge1=1.0, checks=[]), ", its log gives "),
    (
        lambda run: change(run / "Accuracy" / "rouge.json", lambda kept: kept["checks"][0].update(score=1.0)),
        "rouge1 1.0",
    ),
    (of_plan(running={"prefix_caching": True}), "prefix caching"),
    (of_config(max_new_tokens=64), "64 new tokens instead of 128"),
    (lambda run: (run / "Performance" / "mlperf_log_summary.txt").write_text("") and None, "mlperf_log_summary.txt of"),
    (
        lambda run: change(run / "Compliance" / "TEST06" / "result.json", lambda data: data["facts"].update(eos=7)),
        "TEST06",
    ),
    (of_log("Performance", effective_performance_issue_same=True), "one sample again and again"),
    (of_log("Performance", effective_target_latency_percentile=0.9), "a target_latency_percentile of 0.9; MLPerf's is"),
    (of_log("Performance", result_query_count=2), "requests.csv has"),
    (of_rouge(full_set=False), "a part of the set was scored"),
    (
        lambda run: (
            shutil.copy(*(run / test / "mlperf_log_summary.txt" for test in ("Performance", "Accuracy"))) and None
        ),
        f"{OTHERS} ",
    ),
]


# What the official checker refuses in any division, and so in its log: the run (Offline, Server), what is changed in
# it, our reason and the checker's.
REFUSED: list[tuple[int, Callable[[Path], None], str, str]] = [
    (
        0,
        of_log("Accuracy", effective_accuracy_sample_count=256),
        "256 samples in the accuracy test; the checker asks for 13,368",
        "does not cover all dataset",
    ),
    (
        0,
        of_log("Performance", effective_performance_sample_count=256),
        "a set of 256 samples in the performance test; the checker asks for 13,368",
        "performance_sample_count",
    ),
    (
        0,
        of_log("Performance", effective_min_duration_ms=10_000),
        "a minimum duration of 10 s; the checker asks for 600 s",
        "Test duration less than",
    ),
    (
        1,
        of_log("Performance", effective_schedule_rng_seed=7),
        "seeds other than those of v5.1",
        "schedule_rng_seed is wrong",
    ),
    (
        1,
        of_log("Performance", result_validity="INVALID", early_stopping_met=False),
        "too few queries for its percentile (early stopping)",
        "Early stopping condition was not met",
    ),
    (
        1,
        of_log("Performance", **{"result_first_token_99.00_percentile_latency_ns": 2_000_000_000}),
        "TTFT p99 of 2,000 ms is not below 2,000 ms",
        "Failed extra check for TTFT and TPOT",
    ),
    (
        1,
        of_log("Performance", **{"result_time_per_output_token_99.00_percentile_ns": 101_000_000}),
        "TPOT p99 of 101 ms is not below 100 ms",
        "Failed extra check for TTFT and TPOT",
    ),
    (
        0,
        of_log("Performance", requested_use_token_latencies=False),
        "use_token_latencies is off in the performance test",
        "use_token_latencies flag needs to be enabled",
    ),
    (
        1,
        of_log("Performance", effective_target_latency_ns=21_000_000_000),
        "a target_latency of 21 s; the checker allows 20 s",
        "Latency constraint with early stopping not met",
    ),
    (
        0,
        lambda run: (run / "Performance" / "user.conf").write_text("") and None,
        "an empty user.conf",
        "empty user.conf",
    ),
    (
        0,
        in_log("Accuracy", '"is_error": false', '"is_error": true'),
        "LoadGen errors in the accuracy test",
        "loadgen errors",
    ),
]


@needs_submodule
@pytest.mark.parametrize(("number", "spoil", "ours", "theirs"), REFUSED, ids=[ours for *_, ours, _ in REFUSED])
def test_what_the_checker_refuses_in_any_division_is_reported_at_the_build(  # noqa: PLR0913
    acceptable: list[Path],
    system: Path,
    tmp_path: Path,
    number: int,
    spoil: Callable[[Path], None],
    ours: str,
    theirs: str,
) -> None:
    if number == 0:
        whole = build(tmp_path / "whole", system, acceptable)
        assert "the official checker will refuse" not in whole.stdout, whole.stdout
    spoil(acceptable[number])
    built = build(tmp_path / "out", system, acceptable)
    assert built.returncode == 0, built.stderr
    message = [line for line in built.stdout.splitlines() if "the official checker will refuse" in line]
    assert len(message) == 1 and ours in message[0] and ("Offline", "Server")[number] in message[0], built.stdout
    code, found = lowered(tmp_path / "out", "5.1", lengths="")
    assert code == 1
    assert any(theirs in line for line in found), found
    assert any(ours in reason for reason in refusals.closed_division_refusals(entries.entries_of_runs(acceptable)))


def test_interactive_is_held_against_its_own_limits_in_closed(acceptable: list[Path]) -> None:
    of_config(scenario="interactive")(acceptable[1])
    assert refusals.closed_division_refusals(entries.entries_of_runs(acceptable)) == []
    rewrite(acceptable[1] / "Performance", **{"result_time_per_output_token_99.00_percentile_ns": 40_000_000})
    retell(acceptable[1] / "Performance")
    found = entries.entries_of_runs(acceptable)
    assert refusals.checker_refusals(found) == []
    (said,) = refusals.closed_division_refusals(found)
    assert tells(said, "llama3.1-8b Interactive: TPOT p99", " 40 ms ", " 30 ms")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"system_type": "datacenter, edge"}, "edge,datacenter; got 'datacenter, edge'"),
        ({"system_type": ["datacenter"]}, "system_type is one of"),
        ({"is_network": "true"}, "remove is_network"),
        ({"is_network": "false"}, "remove is_network"),
        ({"is_network": False}, "remove is_network"),
        ({"cooling": float("nan")}, "not JSON"),
    ],
)
@pytest.mark.parametrize("division", ["open", "closed"])
def test_a_description_that_the_checker_refuses(
    acceptable: list[Path], system: Path, tmp_path: Path, values: dict[str, Any], message: str, division: str
) -> None:
    change(system, lambda data: data.update(values))
    refused = build(tmp_path / "out", system, acceptable, division)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert message in refused.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("spoil", "reason"), REASONS, ids=[reason for _, reason in REASONS])
def test_what_may_not_go_into_a_closed_submission(
    acceptable: list[Path], system: Path, tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    assert refusals.closed_division_refusals(entries.entries_of_runs(acceptable)) == []
    spoil(acceptable[0])
    if reason.startswith(
        ("seeds other than", "a query of 256", "one sample again", "a target_latency", "samples, req")
    ):
        retell(acceptable[0] / "Performance")
    reasons = refusals.closed_division_refusals(entries.entries_of_runs(acceptable))
    assert reasons
    assert all(reason in line and line.startswith("llama3.1-8b Offline: ") for line in reasons)
    assert OTHERS not in reason or any(f"{OTHERS} Mode: PerformanceOnly" in line for line in reasons)


H100, H200 = ["NVIDIA H100 80GB HBM3"], 8 * ["NVIDIA H200"]


def on(gpus: list[str], run: Path, vllm: str = "0.32.0") -> None:
    """Lets a run say that it was made on another machine."""
    packages = {"vllm": vllm, "torch": "2.13.0"}
    change(run / "config.json", lambda facts: facts["system"].update(gpus=gpus, packages=packages))
    change(run / "config.json", lambda facts: facts.update(engine=f"vLLM {vllm}"))


def describes(system: Path, name: str, count: object) -> None:
    change(system, lambda data: data.update(accelerator_model_name=name, accelerators_per_node=count))
    change(system, lambda data: data.update(framework="vLLM 0.32.0, CUDA 13"))


UNLIKE: list[tuple[Callable[[list[Path], Path], None], tuple[str, ...]]] = [
    (lambda runs, system: on(H100, runs[0]), ("Server: gpus 8x NVIDIA H200", "NVIDIA H100")),
    (lambda runs, system: on(H200, runs[1], "0.24.0"), ("Server: engine vLLM 0.24.0", "vLLM 0.32.0 in")),
    (lambda runs, system: on(H200, runs[1], "0.24.0"), ("Server: vllm 0.24.0", "0.32.0 in")),
    (lambda runs, system: describes(system, "N/A", "0"), ("ran with 8", "accelerators_per_node is 0")),
    (lambda runs, system: describes(system, "NVIDIA H100-SXM-80GB", 8), ("NVIDIA H200", "accelerator_model_name")),
    (lambda runs, system: change(system, lambda data: data.update(framework="vLLM 0.24.0")), ("0.32.0", "framework")),
    (
        lambda runs, system: change(system, lambda data: data.update(host_processor_model_name="another 1234X")),
        ("host_processor_model_name",),
    ),
]


@pytest.mark.parametrize(("spoil", "said"), UNLIKE, ids=[" ".join(said) for _, said in UNLIKE])
def test_results_of_unlike_systems_are_refused_in_closed_and_named_in_open(
    acceptable: list[Path],
    system: Path,
    tmp_path: Path,
    spoil: Callable[[list[Path], Path], None],
    said: tuple[str, ...],
) -> None:
    for run in acceptable:
        on(H200, run)
    describes(system, "NVIDIA H200-SXM-141GB", "8")
    whole = build(tmp_path / "whole", system, acceptable)
    assert (whole.returncode, "not one system" in whole.stdout) == (0, False), whole.stdout
    spoil(acceptable, system)
    named = build(tmp_path / "open", system, acceptable)
    lines = [line for line in named.stdout.splitlines() if line.startswith("not one system: ")]
    assert named.returncode == 0 and any(tells(line, *said) for line in lines), named.stdout
    refused = build(tmp_path / "closed", system, acceptable, "closed")
    assert refused.returncode == 1 and tells(refused.stderr, *said), refused.stderr
    assert not (tmp_path / "closed").exists()


SERVED = {"served_engine": "vLLM 0.32.0", "served_weights": "a/model", "served_weight_data_type": "bf16"}


def test_a_server_on_this_machine_may_be_closed_once_it_is_declared(
    acceptable: list[Path], system: Path, tmp_path: Path
) -> None:
    for run in acceptable:
        change(
            run / "config.json",
            lambda facts: facts.update(engine="the client of vLLM", engine_args={"server": "vLLM 0.32.0"}),
        )
        of_config(endpoint=["http://127.0.0.1:8000/v1"], backend="auto")(run)
        change(run / "config.json", lambda facts: facts["plan"]["running"].update(prefix_caching=False))
    asked = tmp_path / "asked.json"
    done = submission("system", "--run", acceptable[0], "--out", asked)
    assert done.returncode == 0 and "served_weight_data_type" in done.stdout and "served_engine" not in done.stdout
    assert json.loads(asked.read_text())["framework"] == "vLLM 0.32.0"
    change(system, lambda data: data.update(framework="vLLM 0.32.0"))
    refused = build(tmp_path / "undeclared", system, acceptable, "closed")
    assert refused.returncode == 1 and "served_weight_data_type of its server are not declared" in refused.stderr
    change(system, lambda data: data.update(SERVED))
    built = build(tmp_path / "closed", system, acceptable, "closed")
    assert built.returncode == 0, built.stderr
    (made_of,) = (tmp_path / "closed").rglob("systems/*.json")
    written = json.loads(made_of.read_text())
    assert not set(SERVED) & set(written) and tells(written["sw_notes"], "Declared, not recorded", *SERVED.values())
    how = [json.loads(path.read_text()) for path in (tmp_path / "closed").rglob("*_vllm_*.json")]
    assert {each["weight_data_types"] for each in how} == {"bf16"}
    of_config(endpoint=["http://gpu-host:8000/v1"], backend="auto")(acceptable[0])
    far = build(tmp_path / "far", system, acceptable, "closed")
    assert far.returncode == 1 and "the machine behind http://gpu-host:8000/v1 was not recorded" in far.stderr


@pytest.mark.parametrize(
    ("recorded", "described", "named"),
    [
        ("NVIDIA H200", "NVIDIA H200-SXM-141GB", True),
        ("NVIDIA H100 80GB HBM3", "nvidia h100", True),
        ("NVIDIA L40S", "NVIDIA L40", False),
        ("AMD EPYC 9575F 64-Core Processor", "2 x AMD EPYC 9575F", True),
        ("AMD EPYC", "AMD EPYC 9575F", True),
        ("vLLM 0.32.0", "vLLM 0.32.0.dev1", False),
    ],
)
def test_a_description_names_a_model_in_its_own_words(recorded: str, described: str, named: bool) -> None:
    assert refusals.is_named(recorded, described) is named


def without(folder: str, key: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        path = run / folder / log_entries.DETAIL
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if f'"key": "{key}"' not in line))

    return edit


@needs_submodule
@pytest.mark.parametrize(
    ("number", "spoil"),
    [
        (0, of_log("Performance", result_tokens_per_second=0.0)),
        (0, without("Performance", "result_tokens_per_second")),
        (1, of_log("Performance", result_completed_tokens_per_second=0.0)),
        (1, without("Performance", "result_completed_tokens_per_second")),
    ],
)
def test_a_result_that_the_checker_does_not_find_is_named_at_the_build(
    acceptable: list[Path], system: Path, tmp_path: Path, number: int, spoil: Callable[[Path], None]
) -> None:
    spoil(acceptable[number])
    built = build(tmp_path / "out", system, acceptable)
    assert "the official checker will refuse: " in built.stdout and "no tokens/s" in built.stdout, built.stdout
    judged = submission("check", tmp_path / "out")
    assert (judged.returncode, "Results=2, NoResults=0" in judged.stdout) == (1, False), judged.stdout


@pytest.mark.parametrize("name", ["early_stopping_latency_ss", "latency p90"])
def test_a_result_of_singlestream_is_its_p90_and_loadgens_estimate(tmp_path: Path, name: str) -> None:
    folder = example_runs.run(tmp_path / "run", category="edge", scenario="singlestream") / "Performance"
    rewrite(folder, early_stopping_latency_ss=20_000_000)
    assert all(refusals.result_figures(loadgen_log.read(folder)).values())
    if name == "latency p90":
        rewrite(folder, **{"result_90.00_percentile_latency_ns": 0})
    else:
        without("Performance", name)(folder.parent)
    assert [name for name, value in refusals.result_figures(loadgen_log.read(folder)).items() if not value] == [name]


def test_a_refusal_says_why_and_writes_nothing(
    offline: Finished, singlestream: Finished, system: Path, tmp_path: Path
) -> None:
    refused = build(tmp_path / "out", system, [offline.folder, singlestream.folder], "closed")
    assert refused.returncode == 1
    for reason in ("the demo model", "256 of 13,368", "Interactive or Server is missing", "edge: Offline is missing"):
        assert reason in refused.stderr, refused.stderr
    assert not (tmp_path / "out").exists()


def test_runs_that_make_no_entry(offline: Finished, server: Finished, system: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(offline.folder, tmp_path / name))

    with pytest.raises(UsageError, match="not a run folder"):
        entries.entries_of_runs([tmp_path])
    unfinished = copy("unfinished")
    (unfinished / "status.json").write_text('{"status": "failed"}')
    with pytest.raises(UsageError, match="this run is failed"):
        entries.entries_of_runs([unfinished])
    with pytest.raises(UsageError, match="each have accuracy"):
        entries.entries_of_runs([offline.folder, copy("again")])
    with pytest.raises(UsageError, match=r"v5\.1 and v6\.1; "):
        entries.entries_of_runs([offline.folder, of_version(server.folder, "5.1", tmp_path / "other")])
    accuracy, performance = copy("accuracy"), copy("performance")
    shutil.rmtree(accuracy / "Performance")
    shutil.rmtree(accuracy / "Compliance")
    shutil.rmtree(performance / "Accuracy")
    with pytest.raises(UsageError, match="no performance test"):
        entries.entries_of_runs([accuracy])
    joined = entries.entries_of_runs([performance, accuracy])
    assert [(entry.accuracy.path, entry.performance.path) for entry in joined] == [(accuracy, performance)]
    of_config(precision="fp16")(accuracy)
    with pytest.raises(UsageError, match="differ in precision"):
        entries.entries_of_runs([performance, accuracy])
    of_config(precision="bf16")(accuracy)
    change(accuracy / "config.json", lambda facts: facts["system"]["packages"].update(torch="1.0"))
    with pytest.raises(UsageError, match="differ in torch"):
        entries.entries_of_runs([performance, accuracy])
    refused = build(system / "out", system, [offline.folder])  # where a file is, no folder can be
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)


def test_what_the_runs_of_an_entry_share_follows_from_the_flags(offline: Finished, tmp_path: Path) -> None:
    runs = [Path(shutil.copytree(offline.folder, tmp_path / name)) for name in ("accuracy", "performance")]
    for run, test in zip(runs, ("Performance", "Accuracy"), strict=True):
        shutil.rmtree(run / test)
    shutil.rmtree(runs[0] / "Compliance")
    of_config(offline_expected_qps=7.0, min_duration=9.0, stall_timeout=60.0)(runs[0])  # no matter of the answers
    assert len(entries.entries_of_runs(runs)) == 1
    of_config(gpu_memory_utilization=0.5)(runs[0])
    with pytest.raises(UsageError, match="differ in gpu_memory_utilization"):
        entries.entries_of_runs(runs)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("Accuracy/mlperf_log_accuracy.json", "mlperf_log_accuracy.json: rouge.json"),
        ("Performance/mlperf_log_detail.txt", "it says Server, not Offline"),
    ],
)
def test_no_submission_out_of_the_logs_of_another_run(
    offline: Finished, server: Finished, system: Path, tmp_path: Path, place: str, message: str
) -> None:
    run = Path(shutil.copytree(offline.folder, tmp_path / "run"))
    (run / place).write_text((server.folder / place).read_text())
    refused = build(tmp_path / "out", system, [run])
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert message in refused.stderr
    assert not list((tmp_path / "out").rglob("*"))


def test_a_quantized_checkpoint_is_not_called_quantized_by_vllm(
    offline: Finished, system: Path, tmp_path: Path
) -> None:
    run = of_version(offline.folder, "5.1", tmp_path / "run")
    found = {"quantization": "fp8", "quantized_checkpoint": True}
    change(run / "config.json", lambda facts: facts["plan"]["running"].update(found))
    built = build(tmp_path / "out", system, [run])
    assert built.returncode == 0
    assert "fill in how the checkpoint" in built.stdout
    (measured,) = (tmp_path / "out").rglob("two-cores_vllm_Offline.json")
    said = json.loads(measured.read_text())
    assert (said["weight_data_types"], said["weight_transformations"]) == ("fp8", "as in the checkpoint")
    (page,) = (tmp_path / "out").rglob("calibration.md")
    assert "To be filled in" in page.read_text()
    assert "No calibration data" not in page.read_text()

    page.write_text(page.read_text().replace("**To be filled in", "With a thousand articles. **Filled in"))
    other = Path(shutil.copy(system, tmp_path / "other.json"))
    assert build(tmp_path / "out", other, [run]).returncode == 0
    text = page.read_text()
    assert text.count("# Quantization and calibration\n") == 1
    assert "With a thousand articles" in text.partition("## other: ")[0]
    assert "**To be filled in" in text.partition("## other: ")[2]


def test_a_description_must_be_whole(offline: Finished, system: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.json"
    said = submission("system", "--run", offline.folder, "--out", out)
    assert said.returncode == 0
    empty = system_description.missing_fields(json.loads(out.read_text()))
    assert {"system_name", "status", "cooling", "host_networking"} <= set(empty)
    assert said.stdout.split(":\n")[1].split() == empty
    assert json.loads(out.read_text())["framework"].startswith("vLLM")
    assert json.loads(out.read_text())["host_storage_capacity"]  # of this machine, on which it ran
    refused = build(tmp_path / "out", out, [offline.folder])
    assert refused.returncode == 2
    assert "fill in " in refused.stderr
    again = submission("system", "--out", out)
    assert (again.returncode, "already exists" in again.stderr) == (2, True)
    change(system, lambda data: data.update(system_type="edge"))
    refused = build(tmp_path / "out", system, [offline.folder])
    assert (refused.returncode, "system_type is edge" in refused.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_submission_is_not_written_over(offline: Finished, system: Path, tmp_path: Path) -> None:
    assert build(tmp_path / "out", system, [offline.folder]).returncode == 0
    refused = build(tmp_path / "out", system, [offline.folder])
    assert (refused.returncode, "already exists" in refused.stderr) == (2, True)


@needs_submodule
def test_results_that_the_checker_does_not_look_at_are_not_accepted(
    acceptable: list[Path], system: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert build(out, system, acceptable).returncode == 0
    judged = submission("check", out)
    assert (judged.returncode, "accepted, no error" in judged.stdout) == (0, True), judged.stdout
    (out / "open").rename(out / "Open")
    judged = submission("check", out)
    assert judged.returncode == 1
    assert tells(judged.stdout, "not accepted: ", " 0 of the 2 results")
    shutil.copytree(out / "Open", out / "open")
    shutil.rmtree(next((out / "Open").glob("*/results/*/*/Server")))
    judged = submission("check", out)
    assert judged.returncode == 1
    assert tells(judged.stdout, "not accepted: ", " 2 of the 3 results")


SCORED: dict[str, Any] = {
    **{"verdict": "PASS", "samples": 1, "full_set": True, "high_accuracy": False, "generated_tokens": 1},
    **{"characters": 1, "at_token_limit": 0, "splitter": "", "approximate": [], "checks": []},
}
CHECK = {"name": "rouge1", "score": float("nan"), "reference": 1, "low": 1, "verdict": "PASS"}
DAMAGED: list[tuple[str, str, str]] = [
    ("config.json", "[1]", "not an object"),
    ("config.json", "{", "not JSON"),
    ("config.json", "[" * 100_000, "not JSON"),
    ("config.json", '{"plan": []}', "is missing"),
    ("config.json", '{"started": "", "plan": {"config": {}, "running": {}}}', "command is missing"),
    ("status.json", '["complete"]', "not an object"),
    ("status.json", '{"status": ' + "7" * 5000 + "}", "not JSON"),
    ("Accuracy/rouge.json", "[]", "not an object"),
    ("Accuracy/rouge.json", json.dumps(SCORED | {"checks": 7}), "checks"),
    ("Accuracy/rouge.json", json.dumps(SCORED), "its scores are not rouge1"),
    (
        "Accuracy/rouge.json",
        json.dumps(SCORED | {"checks": [CHECK]}),
        "checks.0.score takes a finite number; got nan",
    ),
    ("Accuracy/mlperf_log_accuracy.json", "", "No such file"),
    ("Performance/mlperf_log_summary.txt", "", "No such file"),
    ("Performance/user.conf", "", "No such file"),
]


@pytest.mark.parametrize(("name", "text", "message"), DAMAGED)
def test_a_damaged_run_is_refused_with_the_file_and_the_fault(
    offline: Finished, system: Path, tmp_path: Path, name: str, text: str, message: str
) -> None:
    run = Path(shutil.copytree(offline.folder, tmp_path / "run"))
    (run / name).write_text(text)
    if not text:
        (run / name).unlink()
    refused = build(tmp_path / "out", system, [run])
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert refused.stderr.startswith(f"error: {run / name}: "), refused.stderr
    assert message in refused.stderr


@pytest.mark.parametrize(
    "text",
    ["[]", '{"passed": true}', "{", '{"test": "test06", "passed": true, "checks": {}, "facts": {"eos": null}}'],
)
def test_a_damaged_test06_is_refused_with_the_file_and_the_fault(
    acceptable: list[Path], system: Path, tmp_path: Path, text: str
) -> None:
    path = acceptable[0] / "Compliance" / "TEST06" / "result.json"
    path.write_text(text)
    refused = build(tmp_path / "out", system, acceptable, "closed")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1), refused.stderr
    assert refused.stderr.startswith(f"error: {path}: ")


def test_a_bug_of_ours_is_not_called_a_damaged_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command_line.official_checker, "version_of", Mock(side_effect=KeyError("a bug")))
    monkeypatch.setattr(sys, "argv", ["submission", "check", str(tmp_path)])
    with pytest.raises(KeyError, match="a bug"):
        __main__.main("submission")


def test_a_reader_that_stops_early_is_no_error(offline: Finished, system: Path, tmp_path: Path) -> None:
    flags = ["--submitter", "Demo", "--system", system, "--division", "open", "--out", tmp_path / "out"]
    command = [sys.executable, "-u", "-m", "harness", "submission", "build", "--runs", offline.folder, *flags]
    with subprocess.Popen(
        list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == -signal.SIGPIPE
    assert list((tmp_path / "out").rglob("accuracy.txt"))


def test_without_the_submodule_the_check_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official_checker, "TOOLS", tmp_path / "nothing")
    with pytest.raises(UsageError, match="git submodule update --init"):
        official_checker.check(tmp_path, "6.1")
    assert submission("check", tmp_path).returncode == 2


@pytest.mark.slow
def test_the_long_set_begins_with_the_demos_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo.long_set", str(tmp_path / "long.json"), "--count", "260"]
    subprocess.run(command, cwd=ROOT, check=True)
    long, short = (json.loads(path.read_text()) for path in (tmp_path / "long.json", ROOT / "demo" / "cnn_eval.json"))
    assert (len(long), long[: len(short)]) == (260, short)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "", "a b"])
def test_a_submitter_cannot_lead_elsewhere(offline: Finished, system: Path, tmp_path: Path, name: str) -> None:
    said = "is not a folder name" if name else "--submitter needs a non-empty value"
    words = ["--submitter", name, "--system", system, "--division", "open", "--out", tmp_path / "out"]
    done = submission("build", "--runs", offline.folder, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


def test_code_is_copied_with_all_its_folders(tmp_path: Path) -> None:
    tree.copy_code(tmp_path)
    assert (tmp_path / "templates" / "page" / "run.html.j2").is_file()
    assert (tmp_path / "harness" / "loadgen" / "log.py").is_file() and not (tmp_path / "tests").exists()


def test_a_build_that_fails_leaves_nothing(offline: Finished, system: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(offline.folder, tmp_path / "run"))
    summary = run / "Performance" / "mlperf_log_summary.txt"
    summary.rename(tmp_path / "kept")
    done = build(tmp_path / "out", system, [run])
    assert done.returncode == 2
    assert "mlperf_log_summary.txt" in done.stderr and "a submission needs it" in done.stderr
    assert not list((tmp_path / "out").iterdir())
    (tmp_path / "kept").rename(summary)
    assert build(tmp_path / "out", system, [run]).returncode == 0


def test_an_mmlu_folder_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"config": {}}')
    (tmp_path / "status.json").write_text('{"status": "complete"}')
    done = build(tmp_path / "out", tmp_path / "system.json", [tmp_path])
    assert done.returncode == 2
    assert "mmlu.py" in done.stderr
