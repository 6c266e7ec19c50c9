"""LoadGen's own logs, written by real LoadGen here, read back as facts."""

import errno
import json
import multiprocessing
import os
import queue
import re
import subprocess
import sys
import threading
import time
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.loadgen import log_entries
from harness.loadgen.log import read
from harness.loadgen.log_entries import DETAIL, LOG_MARK, LogError
from harness.loadgen.requests import TRACE_FILE, read_trace
from tests.conftest import tells

ROOT = Path(__file__).parents[2]
SAMPLES = 64
TOKENS = 5
MODEL = {"Offline": "llama3_1-8b", "Server": "llama3_1-8b", "SingleStream": "llama3_1-8b-edge"}


@dataclass(frozen=True)
class Test:
    """One LoadGen test on a system that answers one sample after the other."""

    __test__ = False

    scenario: str
    conf: dict[str, Any]
    mode: str = "PerformanceOnly"
    first_token_s: float = 0.0
    rest_s: float = 0.001


TESTS = {
    "offline": Test("Offline", {"min_duration": 300, "target_qps": 1000, "min_query_count": 64}),
    "offline-short": Test("Offline", {"min_duration": 5000, "target_qps": 2, "min_query_count": 64}),
    "offline-accuracy": Test(
        "Offline", {"min_duration": 300, "target_qps": 1000, "min_query_count": 64}, mode="AccuracyOnly"
    ),
    "server": Test("Server", {"min_duration": 1500, "target_qps": 400, "min_query_count": 500}, rest_s=0.0005),
    "server-few": Test("Server", {"min_duration": 200, "target_qps": 400, "min_query_count": 64}, rest_s=0.0005),
    "server-late": Test(
        "Server",
        {"min_duration": 500, "target_qps": 1000, "min_query_count": 500, "ttft_latency": 1},
        first_token_s=0.002,
    ),
    "single": Test("SingleStream", {"min_duration": 300, "target_latency": 1, "min_query_count": 64}, rest_s=0.002),
    "single-short": Test("SingleStream", {"min_duration": 5000, "target_latency": 200, "min_query_count": 64}),
}
VALID = {"offline", "server", "single"}
BY_THE_CLOCK = {"server"}  # a busy machine may not keep its limits
PERFORMANCE = [name for name, test in TESTS.items() if test.mode == "PerformanceOnly"]


def drive(test: Test, folder: Path) -> None:
    """Runs one LoadGen test to its end in this process."""
    import mlperf_loadgen as lg

    model = MODEL[test.scenario]
    conf = {"performance_sample_count_override": SAMPLES, **test.conf}
    user_conf = folder / "user.conf"
    user_conf.write_text("".join(f"{model}.{test.scenario}.{key} = {value}\n" for key, value in conf.items()))
    asked = lg.TestSettings()
    asked.scenario = getattr(lg.TestScenario, test.scenario)
    asked.mode = getattr(lg.TestMode, test.mode)
    asked.FromConfig(str(user_conf), model, test.scenario)
    todo: queue.Queue[list[int]] = queue.Queue()
    answer = array("i", range(TOKENS))
    address, count = answer.buffer_info()

    def work() -> None:
        while True:
            for id in todo.get():
                time.sleep(test.first_token_s)
                if test.scenario != "Offline":
                    lg.FirstTokenComplete([lg.QuerySampleResponse(id, address, 4, 1)])
                time.sleep(test.rest_s)
                lg.QuerySamplesComplete([lg.QuerySampleResponse(id, address, 4 * count, count)])

    threading.Thread(target=work, daemon=True).start()
    output = lg.LogOutputSettings()
    output.outdir = str(folder)
    output.copy_summary_to_stdout = False
    logging = lg.LogSettings()
    logging.log_output = output
    logging.enable_trace = True
    system = lg.ConstructFastSUT(lambda ids, _: todo.put(list(ids)), lambda: None)
    library = lg.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
    lg.StartTestWithLogSettings(system, library, asked, logging, str(folder / "audit.config"))


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The log folders of all TESTS, written once."""
    folders = {name: tmp_path_factory.mktemp(name) for name in TESTS}
    spawn = multiprocessing.get_context("spawn")
    running = [spawn.Process(target=drive, args=(TESTS[name], folders[name])) for name in TESTS]
    for process in running:
        process.start()
    for process in running:
        process.join(timeout=60)
    assert [process.exitcode for process in running] == [0] * len(running)
    return folders


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose logs are written anew by each example."""
    return tmp_path_factory.mktemp("scratch")


def summary(folder: Path) -> dict[str, str]:
    """The `label : value` lines of LoadGen's own summary."""
    lines = (folder / "mlperf_log_summary.txt").read_text().splitlines()
    return {match[1].strip(): match[2].strip() for line in lines if (match := re.match(r"(.+?):(.+)", line))}


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(LOG_MARK)) for line in (folder / DETAIL).read_text().splitlines()]


@pytest.mark.parametrize("name", PERFORMANCE)
def test_facts_are_those_of_the_summary(logs: dict[str, Path], name: str):
    facts, said = read(logs[name]), summary(logs[name])
    assert facts.scenario == said["Scenario"] == TESTS[name].scenario
    assert facts.mode == said["Mode"]
    assert facts.valid == (said["Result is"] == "VALID")
    assert facts.valid == (name in VALID) or name in BY_THE_CLOCK
    assert facts.ran_short == (said["Min duration satisfied"] == "NO") == name.endswith("-short")
    assert facts.loadgen_version.startswith("6.")
    assert facts.effective["min_duration_ms"] == int(said["min_duration (ms)"]) == TESTS[name].conf["min_duration"]
    for seed, value in facts.seeds.items():
        assert value == int(said[f"{seed}_rng_seed"])
    assert set(facts.seeds) == {"qsl", "sample_index", "schedule"}
    rate = {"Offline": "Samples per second", "Server": "Completed samples per second"}
    tokens = {"Offline": "Tokens per second", "Server": "Completed tokens per second"}
    if facts.scenario in rate:
        assert facts.samples_per_sec == pytest.approx(float(said[rate[facts.scenario]]), rel=1e-4)
        assert facts.tokens_per_sec == pytest.approx(float(said[tokens[facts.scenario]]), rel=1e-4)
        assert facts.target_qps == float(said["target_qps"])
    else:
        assert facts.samples_per_sec == pytest.approx(float(said["QPS w/ loadgen overhead"]), rel=1e-4)
    if facts.scenario == "Server":
        assert facts.scheduled_qps == pytest.approx(float(said["Scheduled samples per second"]), rel=1e-4)


FAMILIES = {
    "latency_ms": ("{} latency (ns)", "{} percentile latency (ns)"),
    "ttft_ms": ("{} First Token latency (ns)", "{} percentile first token latency (ns)"),
    "tpot_ms": ("{} Time per Output Token (ns)", "{} percentile time to output token (ns)"),
}


@pytest.mark.parametrize("name", PERFORMANCE)
@pytest.mark.parametrize("family", FAMILIES)
def test_latencies_are_those_of_the_summary(logs: dict[str, Path], name: str, family: str):
    found, said = getattr(read(logs[name]), family), summary(logs[name])
    if TESTS[name].scenario == "Offline" and family != "latency_ms":
        assert found is None
        return
    edge, percentile = FAMILIES[family]
    labels = {key: edge.format(key.capitalize()) for key in ("min", "mean", "max")}
    shares = {"p50": "50.00", "p90": "90.00", "p95": "95.00", "p97": "97.00", "p99": "99.00", "p99_9": "99.90"}
    labels |= {key: percentile.format(share) for key, share in shares.items()}
    assert asdict(found) == pytest.approx({key: int(said[label]) / 1e6 for key, label in labels.items()})


@pytest.mark.parametrize("name", PERFORMANCE)
def test_the_trace_agrees_with_the_log(logs: dict[str, Path], name: str):
    facts, trace = read(logs[name]), read_trace(logs[name])
    latencies = [sample.latency_ms for sample in trace]
    assert [sample.order for sample in trace] == list(range(facts.samples))
    assert {sample.index for sample in trace} <= set(range(SAMPLES))
    assert max(latencies) == pytest.approx(facts.latency_ms.max)
    assert min(latencies) == pytest.approx(facts.latency_ms.min)
    assert sum(latencies) / len(latencies) == pytest.approx(facts.latency_ms.mean, abs=1e-5)
    if facts.scenario == "Offline":
        assert {sample.ttft_ms for sample in trace} == {None}
        return
    first = [sample.ttft_ms for sample in trace]
    assert max(first) == pytest.approx(facts.ttft_ms.max)
    assert sum(first) / len(first) == pytest.approx(facts.ttft_ms.mean, abs=1e-5)
    rest = [(sample.latency_ms - sample.ttft_ms) / (TOKENS - 1) for sample in trace]
    assert sum(rest) / len(rest) == pytest.approx(facts.tpot_ms.mean, abs=1e-4)


@pytest.mark.parametrize("name", PERFORMANCE)
def test_the_duration_is_that_of_the_trace(logs: dict[str, Path], name: str):
    facts, trace = read(logs[name]), read_trace(logs[name])
    begin = min(sample.scheduled_ms for sample in trace)
    issued = max(sample.scheduled_ms for sample in trace) - begin
    done = max(sample.scheduled_ms + sample.latency_ms for sample in trace) - begin
    measured = issued if facts.scenario == "SingleStream" else done
    assert facts.duration_s == pytest.approx(measured / 1000, rel=0.01, abs=0.01)
    assert TOKENS * facts.samples / facts.tokens_per_sec == pytest.approx(done / 1000, rel=0.01, abs=0.01)


def test_counts_of_samples_and_queries(logs: dict[str, Path]):
    facts = read(logs["offline"])
    assert facts.queries == 1
    assert facts.samples >= 1.1 * 0.3 * 1000
    facts = read(logs["server"])
    assert facts.queries == facts.samples >= 500


NUMBER = r"[\d,.]+"
SHORT = rf".* {NUMBER} s, {NUMBER} s short .* 5 s: "
EARLY = rf"{NUMBER} queries .*TPOT p99 \(early stopping\), "


@pytest.mark.parametrize(
    ("name", "failed", "sentences"),
    [
        ("offline-short", ["min_duration"], [rf"{SHORT}raise .* \(now 2 samples/s\)"]),
        ("single-short", ["min_duration"], [rf"{SHORT}lower .* \(now 200 ms\)"]),
        (
            "server-few",
            ["early_stopping"],
            [rf"{EARLY}{NUMBER} more .*: run longer .*"],
        ),
        (
            "server-late",
            ["latency", "early_stopping"],
            [rf"TTFT p99 was {NUMBER} ms, {NUMBER} % over .* 1 ms: lower .* \(now 1,000 queries/s\)"],
        ),
    ],
)
def test_each_cause_of_invalid_is_named_with_its_numbers_and_remedy(
    logs: dict[str, Path], name: str, failed: list[str], sentences: list[str]
):
    found = read(logs[name])
    assert list(found.failed) == failed
    assert len(found.invalid_reasons) == len(sentences)
    for said, wanted in zip(found.invalid_reasons, sentences, strict=True):
        assert re.fullmatch(wanted, str(said)), said


def test_the_numbers_of_a_reason_are_those_of_the_log(logs: dict[str, Path]):
    late, (said,) = read(logs["server-late"]), map(str, read(logs["server-late"]).invalid_reasons)
    number = float(re.search(r"was ([\d,.]+) ms", said)[1].replace(",", ""))
    assert number == pytest.approx(late.ttft_ms.p99, rel=0.01)
    few, (early,) = read(logs["server-few"]), map(str, read(logs["server-few"]).invalid_reasons)
    assert early.startswith(f"{few.queries:,} queries")
    more = re.search(r"at least (\d+) more queries", few.early_stopping["early_stopping_tpot_result"])[1]
    assert f" {int(more):,} more within" in early
    short, (said,) = read(logs["single-short"]), map(str, read(logs["single-short"]).invalid_reasons)
    ran = float(re.search(r"ran ([\d.]+) s", said)[1])
    assert ran == pytest.approx(short.duration_s, rel=0.01)
    assert ran + float(re.search(r"([\d.]+) s short", said)[1]) == pytest.approx(5, abs=0.01)


INVALID = {"result_validity": "INVALID", "early_stopping_ttft_result": "", "early_stopping_tpot_result": ""}
REASONS = [
    (
        {"result_perf_constraints_met": False, "requested_server_ttft_latency": 150_000_000},
        "TTFT p99 was 200 ms, 33 % over the limit of 150 ms: lower the target rate (now 50 queries/s)",
    ),
    ({"result_perf_constraints_met": False}, "a latency limit was exceeded: lower the target rate (now 50 queries/s)"),
    (
        {"result_min_duration_met": False, "result_scheduled_samples_per_sec": 100},
        "the test ran 300 s, 300 s short of its minimum of 600 s: raise --server-target-qps (now 50 queries/s)",
    ),
    (
        {"result_min_queries_met": False, "effective_min_query_count": 40_000},
        "LoadGen issued 30,001 queries, 9,999 fewer than the minimum of 40,000: raise the maximum duration or query "
        "count, or see the log's errors for what ended the test early",
    ),
    (
        {"early_stopping_met": False},
        "30,001 queries are too few to be sure of the latency p99 (early stopping): "
        "run longer (a higher minimum duration or query count)",
    ),
    ({}, "LoadGen says INVALID, and does not log which of its checks failed"),
]


@pytest.mark.parametrize(("changed", "said"), REASONS)
def test_reasons_use_the_numbers_that_are_there(tmp_path: Path, changed: dict[str, Any], said: str):
    write(tmp_path, altered(old_log(), INVALID | {"requested_use_token_latencies": True} | changed))
    assert [str(each) for each in read(tmp_path).invalid_reasons] == [said]


@pytest.mark.parametrize("name", sorted(VALID))
def test_a_valid_run_has_no_reasons(logs: dict[str, Path], name: str):
    facts = read(logs[name])
    assert facts.invalid_reasons == [] or (name in BY_THE_CLOCK and not facts.valid)


def test_an_accuracy_test_is_neither_valid_nor_invalid(logs: dict[str, Path]):
    facts = read(logs["offline-accuracy"])
    assert (facts.mode, facts.valid, facts.invalid_reasons) == ("AccuracyOnly", None, [])
    assert facts.latency_ms is None and facts.tokens_per_sec is None


def test_errors_and_warnings_are_reported(logs: dict[str, Path], tmp_path: Path):
    lines = entries(logs["offline"])
    for kind in ("error", "warning"):
        about = {"is_error": kind == "error", "is_warning": kind == "warning"}
        lines.insert(-1, {"key": f"{kind}_runtime", "value": f"an {kind}", "metadata": about})
    write(tmp_path, lines)
    assert any("Ran out of generated queries" in error for error in read(logs["single-short"]).errors)
    before, after = read(logs["offline"]), read(tmp_path)
    assert (after.errors, after.warnings) == ([*before.errors, "an error"], [*before.warnings, "an warning"])


def test_only_the_log_of_the_test_that_was_asked_for_counts(logs: dict[str, Path], tmp_path: Path):
    assert read(logs["offline"], "Offline", "PerformanceOnly") == read(logs["offline"])
    for other in (("Server", "PerformanceOnly"), ("Offline", "AccuracyOnly")):
        with pytest.raises(LogError, match=f"{DETAIL}: not this test's log"):
            read(logs["offline"], *other)
    write(tmp_path, [*entries(logs["offline"]), *entries(logs["offline"])])
    with pytest.raises(LogError, match="logs of two tests"):
        read(tmp_path)


@pytest.mark.parametrize("key", ["result_validity", "result_max_latency_ns"])
def test_a_log_without_its_verdict_or_with_a_damaged_value_is_no_result(
    logs: dict[str, Path], tmp_path: Path, key: str
):
    lines = entries(logs["offline"])
    assert any(line["key"] == key for line in lines)
    kept = [line for line in lines if line["key"] != key]
    write(tmp_path, kept if key == "result_validity" else [*kept, {"key": key, "value": "a text"}])
    with pytest.raises(LogError, match=DETAIL):
        read(tmp_path)


def write(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / DETAIL).write_text("".join(f"{LOG_MARK}{json.dumps(line)}\n" for line in lines))


OLD = {
    "loadgen_version": "5.0.25 @ 1bc3e998",
    "test_datetime": "2025-07-10T10:00:00Z",
    "requested_scenario": "Server",
    "effective_scenario": "Server",
    "effective_test_mode": "PerformanceOnly",
    "effective_target_qps": 50,
    "effective_min_duration_ms": 600000,
    "effective_qsl_rng_seed": 1780908523862526354,
    "effective_sample_index_rng_seed": 14771362308971278857,
    "effective_schedule_rng_seed": 18209322760996052031,
    "generated_query_count": 30000,
    "generated_samples_per_query": 1,
    "power_begin": "07-10-2025 10:00:00.000",
    "power_end": "07-10-2025 10:10:00.000",
    "result_validity": "VALID",
    "result_perf_constraints_met": True,
    "result_min_duration_met": True,
    "result_min_queries_met": True,
    "early_stopping_met": True,
    "early_stopping_ttft_result": " * Run successful.",
    "early_stopping_tpot_result": " * Run successful.",
    "result_query_count": 30001,
    "result_scheduled_samples_per_sec": 50.5,
    "result_completed_samples_per_sec": 50,
    "result_completed_tokens_per_second": 6400.25,
    "num_errors": 0,
}
RATES = {"result_{}_latency_ns": 3e9, "result_first_token_{}_latency_ns": 2e8, "result_time_to_output_token_{}": 2e7}
PERCENTILES = {
    "result_{}_percentile_latency_ns": 3e9,
    "result_first_token_{}_percentile_latency_ns": 2e8,
    "result_time_per_output_token_{}_percentile_ns": 2e7,
}


def old_log() -> list[dict[str, Any]]:
    """What LoadGen 5.0.25 writes for a Server test, in its own layout of an entry."""
    values = dict(OLD)
    end = values.popitem()
    for key, value in RATES.items():
        values |= {key.format(edge): round(value) for edge in ("min", "max", "mean")}
    for key, value in PERCENTILES.items():
        values |= {key.format(share): round(value) for share in log_entries.PERCENTILES}
    about = {"is_error": False, "is_warning": False, "file": "results.cc", "line_no": 1, "pid": 7, "tid": 7}
    common = {"time_ms": 1.5, "namespace": "mlperf::logging", "event_type": "POINT_IN_TIME", "metadata": about}
    return [{"key": key, "value": value, **common} for key, value in [*values.items(), end]]


def altered(lines: list[dict[str, Any]], changed: dict[str, Any]) -> list[dict[str, Any]]:
    """The log with other values; an entry that it lacks comes before its last."""
    known = {line["key"] for line in lines}
    fresh = [{"key": key, "value": value} for key, value in changed.items() if key not in known]
    return [*({**line, "value": changed.get(line["key"], line["value"])} for line in lines[:-1]), *fresh, lines[-1]]


@pytest.mark.parametrize("version", ["4.1", "5.0.15", "5.0.25 @ 1bc3e998"])
def test_logs_of_older_loadgens_are_read(tmp_path: Path, version: str):
    lines = altered(old_log(), {"loadgen_version": version})
    write(tmp_path, lines if version > "5.0.2" else lines[:-1])  # num_errors is written since 5.0.16
    facts = read(tmp_path)
    assert (facts.loadgen_version, facts.scenario, facts.valid) == (version, "Server", True)
    assert facts.started == "2025-07-10T10:00:00Z"
    assert facts.invalid_reasons == []
    assert (facts.samples, facts.samples_per_sec, facts.tokens_per_sec) == (30001, 50, 6400.25)
    assert facts.duration_s == pytest.approx(600)
    assert (facts.latency_ms.p99, facts.ttft_ms.p99, facts.tpot_ms.mean) == (3000, 200, 20)
    assert facts.seeds["schedule"] == 18209322760996052031


def test_an_older_log_without_its_last_latency_is_no_result(tmp_path: Path):
    lines = [line for line in old_log() if line["key"] not in ("num_errors", "result_99.90_percentile_latency_ns")]
    write(tmp_path, lines)
    with pytest.raises(LogError, match="no result"):
        read(tmp_path)
    lines = altered(old_log(), {"requested_use_token_latencies": True})
    write(tmp_path, [line for line in lines if line["key"] not in ("num_errors", "result_completed_tokens_per_second")])
    with pytest.raises(LogError, match="no result"):
        read(tmp_path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_loadgen_could_not_compute_is_none(tmp_path: Path, number: str):
    write(tmp_path, altered(old_log(), {"result_scheduled_samples_per_sec": "HERE", "effective_other": "HERE"}))
    log = tmp_path / DETAIL
    log.write_text(log.read_text().replace('"HERE"', number))
    facts = read(tmp_path)
    assert (facts.scheduled_qps, facts.effective["other"]) == (None, None)
    ended = command(tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    json.loads(ended.stdout, parse_constant=pytest.fail)


@pytest.mark.parametrize("number", [0.0, 5e-324])
def test_a_rate_too_small_to_divide_by_gives_no_duration(tmp_path: Path, number: float):
    write(tmp_path, altered(old_log(), {"result_completed_samples_per_sec": number}))
    assert read(tmp_path).duration_s is None


DEEP = "[" * 100_000 + "]" * 100_000
DAMAGED = {
    "huge integer": ("result_query_count", "7" * 5000),
    "huge latency": ("result_max_latency_ns", "7" * 400),
    "huge count": ("result_query_count", "7" * 400),
    "deep": ("result_query_count", DEEP),
    "deep setting": ("effective_other", "[" * 900 + "]" * 900),
    "list of a setting": ("effective_scenario", '["Server"]'),
    "text of a rate": ("result_completed_samples_per_sec", '"many"'),
    "text of an answer": ("early_stopping_met", '"yes"'),
    "huge text": ("result_max_latency_ns", json.dumps("7" * 4000)),
    "a third verdict": ("result_validity", '"MAYBE"'),
}


@pytest.mark.parametrize(("key", "text"), DAMAGED.values(), ids=list(DAMAGED))
def test_a_value_that_loadgen_cannot_have_written_is_refused_in_one_line(tmp_path: Path, key: str, text: str):
    write(tmp_path, altered(old_log(), {key: "HERE"}))
    log = tmp_path / DETAIL
    log.write_text(log.read_text().replace('"HERE"', text))
    ended = command(tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {log}") and ended.stderr.count("\n") == 1
    assert "damaged" in ended.stderr and len(ended.stderr) < 400


def test_a_log_that_contradicts_itself_is_refused(tmp_path: Path):
    write(tmp_path, [*old_log()[:-1], {"key": "result_validity", "value": "INVALID"}, old_log()[-1]])
    with pytest.raises(LogError, match=r"result_validity .*'VALID' .*'INVALID'"):
        read(tmp_path)
    for entry in ("result_perf_constraints_met", "result_min_duration_met", "early_stopping_met"):
        write(tmp_path, altered(old_log(), {entry: False}))
        with pytest.raises(LogError, match=f"VALID beside {entry}, which is false"):
            read(tmp_path)


@pytest.mark.parametrize(
    "key", ["effective_target_qps", "effective_min_duration_ms", "early_stopping_met", "effective_x"]
)
def test_a_setting_that_stands_twice_must_be_the_same(tmp_path: Path, key: str):
    write(tmp_path, [*old_log()[:-1], {"key": key, "value": True}, {"key": key, "value": 7}, old_log()[-1]])
    with pytest.raises(LogError, match=f"{key} (appears twice|is 7)"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("result_query_count", "num_errors") for value in (-1, 2.5, True, None)),
        ("generated_samples_per_query", 1.5),
        ("effective_performance_sample_count", 13368.5),
        ("effective_min_duration_ms", -600_000),
        ("effective_min_query_count", "100"),
        *((key, -0.1) for key in ("result_samples_per_second", "result_completed_tokens_per_second")),
        *((key, -8) for key in ("result_qps_with_loadgen_overhead", "effective_target_qps")),
    ],
)
def test_a_count_is_a_whole_number_and_a_rate_not_below_zero(tmp_path: Path, key: str, value: object):
    lines = [line for line in old_log() if line["key"] != key]
    write(tmp_path, [*lines[:-1], {"key": key, "value": value}, lines[-1]])
    with pytest.raises(LogError, match=f"{key} is {value}" if value != "100" else f"{key} is '100'"):
        read(tmp_path)


@pytest.mark.parametrize("key", ["effective_scenario", "effective_test_mode"])
def test_a_scenario_that_loadgen_does_not_have_is_refused(tmp_path: Path, key: str):
    write(tmp_path, altered(old_log(), {key: "Foo"}))
    with pytest.raises(LogError):
        read(tmp_path)


def test_errors_that_were_only_counted_are_told(tmp_path: Path):
    write(tmp_path, [*old_log()[:-1], {"key": "num_errors", "value": 3}])
    (said,) = read(tmp_path).errors
    assert tells(said, "num_errors ", " 3 errors", " 0")


@pytest.mark.parametrize("text", ["7" * 5000, "7" * 400, DEEP, "NaN", "null", '"long"'])
def test_a_trace_with_an_impossible_time_is_refused_by_name(logs: dict[str, Path], tmp_path: Path, text: str):
    whole = (logs["single-short"] / TRACE_FILE).read_text()
    damaged = re.sub(r'"complete_ns":\d+', f'"complete_ns":{text}', whole, count=1)
    assert damaged != whole
    (tmp_path / TRACE_FILE).write_text(damaged)
    with pytest.raises(LogError, match=f"{TRACE_FILE}: a damaged entry"):
        read_trace(tmp_path)


def cut_log(log: Path, scratch: Path, length: int) -> None:
    """A log that ends after `length` bytes says the same as the whole one, or is refused by name."""
    (scratch / log.name).write_bytes(log.read_bytes()[:length])
    reader = read_trace if log.name == TRACE_FILE else read
    try:
        facts = reader(scratch)
    except LogError as error:
        assert str(scratch / log.name) in str(error)
    else:
        assert facts == reader(log.parent)


@pytest.mark.parametrize("name", ["offline", "offline-accuracy", "server", "single-short"])
def test_a_log_cut_between_lines_never_lies(logs: dict[str, Path], scratch: Path, name: str):
    log = logs[name] / DETAIL
    length = 0
    for line in log.read_bytes().splitlines(keepends=True):
        cut_log(log, scratch, length)
        length += len(line)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_log_cut_anywhere_never_lies(logs: dict[str, Path], scratch: Path, data: st.DataObject):
    log = logs[data.draw(st.sampled_from(["offline", "server"]))] / DETAIL
    cut_log(log, scratch, data.draw(st.integers(0, log.stat().st_size - 1)))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_trace_cut_anywhere_never_lies(logs: dict[str, Path], scratch: Path, data: st.DataObject):
    log = logs["single-short"] / TRACE_FILE
    size = log.stat().st_size
    ends = [match.end() for match in re.finditer(rb"\n", log.read_bytes())]
    cut_log(log, scratch, data.draw(st.one_of(st.integers(0, size - 1), st.sampled_from(ends))))


FOREIGN = {
    "empty": "",
    "text": "no log at all\n",
    "training": f'{LOG_MARK}{{"namespace": "", "key": "submission_org", "value": "x", "metadata": {{}}}}\n',
    "list": f"{LOG_MARK}[1, 2]\n",
    "number": f"{LOG_MARK}5\n",
    "no value": f'{LOG_MARK}{{"key": "loadgen_version"}}\n',
    "odd key": f'{LOG_MARK}{{"key": [1], "value": 1}}\n',
    "odd metadata": f'{LOG_MARK}{{"key": "a", "value": 1, "metadata": [1]}}\n',
}


@pytest.mark.parametrize("text", FOREIGN.values(), ids=list(FOREIGN))
def test_a_foreign_log_is_refused_by_name(tmp_path: Path, text: str):
    (tmp_path / DETAIL).write_text(text)
    with pytest.raises(LogError, match=DETAIL):
        read(tmp_path)


@settings(max_examples=50, deadline=None)
@given(data=st.binary(), mark=st.booleans())
def test_a_binary_log_is_refused_by_name(scratch: Path, data: bytes, mark: bool):
    (scratch / DETAIL).write_bytes(LOG_MARK.encode() * mark + data)
    with pytest.raises(LogError, match=DETAIL):
        read(scratch)


def test_logs_that_are_not_there_are_refused_by_name(tmp_path: Path):
    with pytest.raises(LogError, match=f"{DETAIL}: No such file"):
        read(tmp_path)
    with pytest.raises(LogError, match=f"{TRACE_FILE}: No such file"):
        read_trace(tmp_path)


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "util_logs.py", *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_command_prints_the_facts(logs: dict[str, Path]):
    ended = command(logs["server"])
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == json.loads(json.dumps(asdict(read(logs["server"]))))


def test_the_command_ends_with_one_line(tmp_path: Path):
    ended = command(tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"error: {tmp_path / DETAIL}: {os.strerror(errno.ENOENT)}.\n"


def test_the_command_names_the_folders_of_a_run_s_tests(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    for name in ("Accuracy", "Performance", "Probes/1"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("Performance", "Probes/1"):
        (tmp_path / name / DETAIL).write_text("")
    ended = command(tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert tells(ended.stderr, str(tmp_path), f"{tmp_path}/Performance, {tmp_path}/Probes/1.")


def test_the_command_says_how_it_is_used():
    assert command("--help").returncode == 0
    assert command().returncode == command("--wrong").returncode == 2


PEAK = """
import sys, util_logs
from pathlib import Path
print(util_logs.read(Path(sys.argv[1])).samples)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_a_large_log_needs_little_memory(logs: dict[str, Path], tmp_path: Path):
    lines = (logs["server"] / DETAIL).read_text().splitlines(keepends=True)
    padding = LOG_MARK + json.dumps({"key": "generic_message", "value": "x" * 2000, "metadata": {}}) + "\n"
    log = tmp_path / DETAIL
    with log.open("w") as file:
        file.writelines(lines[:20])
        for _ in range(100):
            file.write(padding * 1000)
        file.writelines(lines[20:])
    assert log.stat().st_size > 200e6
    ended = subprocess.run([sys.executable, "-c", PEAK, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
    log.unlink()
    samples, kib = map(int, ended.stdout.split())
    assert samples == read(logs["server"]).samples
    assert kib < 150 * 1024
