"""One number, row or word of a run's folder is changed: which check finds it, by which name, and what none can find."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from harness.report import consistency
from harness.results import claims
from tests.conftest import run

pytestmark = pytest.mark.slow
ECHO = ("--backend", "echo", "--engine-arg", "first_token_s=0.002", "--engine-arg", "token_s=0.0001", "--extra-metrics")
BOTH = (*ECHO, "--mode", "both", "--no-exit-on-accuracy-fail", "--total-sample-count", "32")
KINDS = {
    "rate": (*BOTH, "--scenario", "server", "--min-duration", "2", "--server-target-qps", "400,600"),
    "level": (*BOTH, "--min-duration", "3", "--concurrency", "1,4"),
}
Check = Literal["util_logs.py", "report.py", "none"]  # the least that finds it


class Edit(NamedTuple):
    """What is replaced in a file of a run of a kind, and what the finding names: the file where that is empty."""

    kind: str
    file: str
    pattern: str
    new: str
    check: Check = "util_logs.py"
    names: str = ""


DIGIT = r"\g<1>7"
EDITS = [
    # Settings, and what the run wrote of itself.
    Edit("rate", "config.json", r'("mean_prompt_tokens": )\d', DIGIT),
    Edit("rate", "config.json", r'("server_target_qps": \[\s*)\d', DIGIT),
    Edit("rate", "config.json", r'"model": "demo"', '"model": "Demo"'),
    Edit("rate", "config.json", r'("valid": )true', r"\1false"),
    Edit("level", "config.json", r'("reasons": )\[\]', r'\1["too slow"]'),
    Edit("level", "config.json", r'("trend": )\d', DIGIT),
    # A test's settings, logs and requests; a probe's; the accuracy test's.
    Edit("rate", "Performance/user.conf", r"(min_duration = )\d", DIGIT),
    Edit("rate", "Performance/mlperf_log_detail.txt", r'("result_completed_tokens_per_second", "value": )\d', DIGIT),
    Edit("rate", "Performance/mlperf_log_detail.txt", r'("result_validity", "value": )"VALID"', r'\1"INVALID"'),
    Edit("rate", "Performance/mlperf_log_detail.txt", r'("test_datetime", "value": ")20', r"\g<1>19"),
    Edit("rate", "Performance/mlperf_log_detail.txt", r'("effective_schedule_rng_seed", "value": )\d', DIGIT),
    Edit("rate", "Performance/mlperf_log_detail.txt", r":::MLLOG .*result_min_latency_ns.*\n", ""),
    Edit("rate", "Performance/mlperf_log_summary.txt", r"(Result is : )VALID", r"\1INVALID"),
    Edit("rate", "Performance/mlperf_log_summary.txt", r"(99.00 percentile latency \(ns\) +: )\d", DIGIT),
    Edit("rate", "Performance/mlperf_log_summary.txt", r"(Min queries satisfied : )Yes", r"\1NO"),
    Edit("rate", "Performance/mlperf_log_summary.txt", r"Result is : .*\n", ""),
    Edit("rate", "Performance/mlperf_log_summary.txt", r"Scenario : .*\n", ""),
    Edit("rate", "Performance/requests.csv", r"(\n\d+,)\d", DIGIT),
    Edit("rate", "Performance/requests.csv", r"\n\d.*\n", "\n"),
    Edit("rate", "Performance/requests.csv", r"(\n\d.*)(?=\n)", r"\1\1"),
    Edit("rate", "Performance/requests.csv", r"loadgen,\n", "client,\n"),
    Edit("rate", "Performance/machine.json", r'("others_cpu_cores": )\d', DIGIT),
    Edit("rate", "Performance/mlperf_log_trace.json.gz", "^\x1f", "\x1e"),
    Edit("level", "Performance/machine.csv", r"(\n[\d.]+,)\d", DIGIT),
    Edit("level", "Performance/requests.csv", r"client,\n", "client,lost\n"),
    Edit("rate", "Probes/400/user.conf", r"(target_qps = )\d", DIGIT),
    Edit("rate", "Probes/400/requests.csv", r"(\n\d+,\d+,)\d", DIGIT),
    Edit("rate", "Probes/400/mlperf_log_detail.txt", r'("effective_target_qps", "value": )\d', DIGIT),
    Edit("rate", "Probes/400/mlperf_log_summary.txt", r"(Mean latency \(ns\) +: )\d", DIGIT),
    Edit("level", "Probes/1/requests.csv", r"(\n\d.*,)\d(?=[\d.]+,client)", DIGIT),
    Edit("level", "Probes/1/machine.json", r'("others_cpu_cores": )\d', DIGIT),
    Edit("level", "Accuracy/user.conf", r"= \d", "= 7"),
    Edit("level", "Accuracy/requests.csv", r"(\n\d+,)\d", DIGIT),
    Edit("level", "Accuracy/requests.csv", r"\n\d.*\n", "\n"),
    Edit("level", "Accuracy/mlperf_log_detail.txt", r'("effective_accuracy_sample_count", "value": )\d', DIGIT),
    Edit("level", "Accuracy/mlperf_log_summary.txt", r"No errors", "7 errors"),
    Edit("level", "Accuracy/mlperf_log_accuracy.json", r'("data" : ")\w', DIGIT),
    Edit("level", "Accuracy/mlperf_log_accuracy.json", r'("qsl_idx" : )\d', DIGIT),
    Edit("level", "Accuracy/rouge.json", r'("score": )\d', DIGIT),
    Edit("level", "Accuracy/rouge.json", r'("verdict": )"FAIL"', r'\1"PASS"'),
    Edit("level", "Accuracy/samples.csv", r"(\n\d+,)\d", DIGIT),
    Edit("level", "Accuracy/worst.md", r"[Tt]he", "This"),
    # What the summary says: what its sources give without any package ...
    Edit("rate", "summary.json", r'(?s)("performance": .*?"tokens_per_sec": )\d', DIGIT, names="tokens_per_sec"),
    Edit("rate", "summary.json", r'(?s)("performance": .*?"valid": )true', r"\1false", names="valid"),
    Edit("rate", "summary.json", r'(?s)("performance": .*?"samples": )\d', DIGIT, names="samples"),
    Edit("rate", "summary.json", r'(?s)("performance": .*?"target_qps": )\d', DIGIT, names="target_qps"),
    Edit("rate", "summary.json", r'("sample_index": )\d', DIGIT, names="seeds.sample_index"),
    Edit("rate", "summary.json", r'("total_new_tokens": )\d', DIGIT, names="total_new_tokens"),
    Edit("rate", "summary.json", r'(?s)("input_lengths": .*?"mean": )\d', DIGIT, names="input_lengths.mean"),
    Edit("rate", "summary.json", r'(?s)("performance": .*?"ttft_ms": .*?"p99": )\d', DIGIT, names="ttft_ms.p99"),
    Edit("rate", "summary.json", r'(?s)("search": .*?"load": )\d', DIGIT, names="search.0.load"),
    Edit("rate", "summary.json", r'(?s)("search": .*?"tpot_ms": .*?"p90": )\d', DIGIT, names="search.0.tpot_ms.p90"),
    Edit("level", "summary.json", r'(?s)("steady": .*?"trend": )\d', DIGIT, names="performance.steady.trend"),
    Edit("level", "summary.json", r'(?s)("steady": .*?"requests": )\d', DIGIT, names="performance.steady.requests"),
    Edit(
        "level",
        "summary.json",
        r'(?s)("steady": .*?"latency_ms": .*?"mean": )\d',
        DIGIT,
        names="performance.steady.latency_ms.mean",
    ),
    Edit("level", "summary.json", r'("Probes/1/requests.csv": ")..', r"\1zz", names="Probes/1/requests.csv"),
    # ... and what is only found where the report is made again.
    Edit("rate", "summary.json", r'("slo_attainment": )\d', DIGIT, "report.py", "run.performance.slo_attainment"),
    Edit("rate", "summary.json", r'("requests_per_hour": )\d', DIGIT, "report.py", "capacity.requests_per_hour"),
    Edit("rate", "summary.json", r'(?s)("queue": .*?"growth": )-?\d', DIGIT, "report.py", "performance.queue.growth"),
    Edit("rate", "summary.json", r'("model": )"demo"', r'\1"Demo"', "report.py", "meta.model"),
    Edit("rate", "summary.json", r'("cpu": ")', r"\1X", "report.py", "system.cpu"),
    Edit("level", "summary.json", r'("characters": )\d', DIGIT, "report.py", "run.accuracy.characters"),
    Edit("level", "summary.json", r'("comparable": )false', r"\1true", "report.py", "meta.comparable"),
    Edit("level", "report.md", r"tokens/s", "token/s", "report.py"),
    Edit("level", "report.html", r"tokens/s", "token/s", "report.py"),
    Edit("rate", "status.json", r'"complete"', '"failed"', "report.py", "meta.ended"),
    Edit("rate", "status.json", r'("time": ")20', r"\g<1>19", names="beginning of the run and of the test"),
    # Nothing is made of these, and they are written after the digests of the others; pictures are drawn otherwise by
    # another version of their library, and what they show stands in the summary.
    Edit("rate", "status.json", r'("reason": ")', r"\1all went well", "none"),
    Edit("rate", "engine.log", r"$", "all went well", "none"),
    Edit("rate", "plots/overview.png", r"IDAT", "IDAU", "none"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run at rates and one at levels of concurrency, each with accuracy and performance, by real LoadGen."""
    return {kind: run(tmp_path_factory.mktemp(kind), *flags).folder for kind, flags in KINDS.items()}


@contextmanager
def edited(folder: Path, edit: Edit) -> Iterator[None]:
    path = folder / edit.file
    before = path.read_bytes()
    changed = re.sub(edit.pattern, edit.new, before.decode("latin-1"), count=1).encode("latin-1")
    if changed == before:  # the digit was a 7
        changed = re.sub(edit.pattern, edit.new.replace("7", "8"), before.decode("latin-1"), count=1).encode("latin-1")
    assert changed != before
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(before)


def differing(folder: Path) -> list[str]:
    """What `util_logs.py --check` says that differs."""
    lines, agrees = claims.report_claims(folder)
    found = [line.removeprefix("differs").lstrip() for line in lines if line.startswith("differs")]
    assert agrees == (not found)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_as_it_ended_agrees(folders: dict[str, Path], kind: str) -> None:
    assert differing(folders[kind]) == []
    assert consistency.check_run(folders[kind]) == ([], "", [])


@pytest.mark.parametrize("edit", EDITS, ids=[f"{each.file} {each.names or each.pattern}" for each in EDITS])
def test_an_edit_is_found(folders: dict[str, Path], edit: Edit) -> None:
    folder = folders[edit.kind]
    with edited(folder, edit):
        plain = differing(folder)
        assert bool(plain) == (edit.check == "util_logs.py"), plain
        found = plain if plain or edit.check == "none" else consistency.check_run(folder)[0]
    named = [line for line in found if (edit.names or edit.file) in line]
    assert bool(named) == (edit.check != "none"), found


@pytest.mark.parametrize("head", ["Scenario", "Mode", "Result is"])
def test_a_line_that_loadgen_s_summary_lacks(folders: dict[str, Path], head: str) -> None:
    """Also without a digest, as in a submission."""
    folder = folders["rate"] / "Performance"
    with edited(folder, Edit("rate", "mlperf_log_summary.txt", rf"{head} *:.*\n", "")):
        assert any(f", {head}: " in str(claim) for claim in claims.differing(claims.summary_claims(folder)))


def test_a_summary_of_an_accuracy_test_that_is_empty_or_another_s(folders: dict[str, Path]) -> None:
    folder = folders["rate"] / "Accuracy"
    assert claims.differing(claims.summary_claims(folder)) == []
    for text in ("", (folders["rate"] / "Performance" / "mlperf_log_summary.txt").read_text()):
        with edited(folder, Edit("rate", "mlperf_log_summary.txt", r"(?s)\A.*\Z", text)):
            assert claims.differing(claims.summary_claims(folder))
