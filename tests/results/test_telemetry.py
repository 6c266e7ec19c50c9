"""What the engine and the machine did: engines' own metrics, the recording, what bounds a test."""

import csv
import gzip
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.nvml import answer_or_none
from harness.engines import server_metrics
from harness.loadgen import gpu_readings
from harness.loadgen.machine_use import Usage
from harness.loadgen.test_run import Recording
from harness.report import machine_pictures
from harness.report import report as rendering
from harness.results import telemetry as usage
from harness.results.gpu_time_shares import SHARES, GpuTime, gpu_times, shares_of
from tests.conftest import tells
from tests.support import example_runs

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_running{{engine="1",model_name="m"}} 4.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} 7.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.5
vllm:kv_cache_usage_perc{{engine="1",model_name="m"}} 0.7
vllm:prefix_cache_queries_total{{engine="0"}} {queries}
vllm:prefix_cache_hits_total{{engine="0"}} {hits}
vllm:num_preemptions_total{{engine="0"}} {preempted}
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:inter_token_latency_seconds_bucket{{le="0.01"}} 12.0
"""
FIRST = VLLM.format(running=2, queries=100, hits=0, preempted=1, tokens=1000)
THEN = VLLM.format(running=3, queries=300, hits=50, preempted=3, tokens=1512)


def rows(*expositions: str) -> list[dict[str, float | None]]:
    names, readings = (
        [column.name for column in server_metrics.METRIC_COLUMNS],
        [server_metrics.metric_values([text]) for text in expositions],
    )
    pairs = zip([{}, *readings], readings, strict=False)
    return [dict(zip(names, server_metrics.metric_cells(before, now, 2.0), strict=True)) for before, now in pairs]


def test_counters_become_increases_and_rates() -> None:
    first, then = rows(FIRST, THEN)
    assert (first["requests_running"], first["requests_waiting"], first["kv_cache_percent"]) == (6, 7, 60)
    assert (first["generation_tokens_per_sec"], first["prefix_hit_percent"], first["preemptions"]) == (None, None, None)
    assert (then["generation_tokens_per_sec"], then["prefix_hit_percent"], then["preemptions"]) == (256, 25, 1)
    assert then["prompt_tokens_per_sec"] is None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_inter_token_latency_is_the_mean_of_what_came_since(engine: str) -> None:
    name = f"{engine}:inter_token_latency_seconds"
    told = (f"{name}_sum {seconds}\n{name}_count {tokens}\n" for seconds, tokens in ((1, 100), (1.5, 120), (1.5, 120)))
    assert [row["inter_token_ms"] for row in rows(*told)] == [None, 25, None]


def test_a_server_that_began_anew_loses_no_tokens() -> None:
    assert rows(THEN, FIRST)[1]["generation_tokens_per_sec"] == 0


DYNAMO = """
dynamo_frontend_inflight_requests{model="llama"} 6
dynamo_frontend_queued_requests{model="llama"} 2
dynamo_frontend_output_tokens_total{model="llama"} %d
dynamo_frontend_input_sequence_tokens_sum{model="llama"} %d
dynamo_frontend_cached_tokens_sum{model="llama"} %d
dynamo_frontend_inter_token_latency_seconds_sum{model="llama"} %g
dynamo_frontend_inter_token_latency_seconds_count{model="llama"} %d
"""


def test_the_frontend_of_dynamo_by_its_own_names() -> None:
    _, row = rows(DYNAMO % (100, 1000, 0, 1.0, 100), DYNAMO % (160, 1400, 100, 1.5, 120))
    assert (row["requests_running"], row["requests_waiting"], row["kv_cache_percent"]) == (6, 2, None)
    assert (row["prefix_hit_percent"], row["inter_token_ms"]) == (25, 25)
    assert row["generation_tokens_per_sec"] and row["prompt_tokens_per_sec"]


def test_a_frontend_counts_no_request_twice() -> None:
    (row,) = rows(f"vllm:num_requests_running 4\n{DYNAMO % (100, 1000, 0, 1.0, 100)}")
    assert (row["requests_running"], row["requests_waiting"]) == (4, None)


@pytest.mark.parametrize(
    ("text", "running", "waiting", "cache"),
    [
        ("sglang:num_running_reqs 3\nsglang:num_queue_reqs 2\nsglang:token_usage 0.25\n", 3, 2, 25),
        ("llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:kv_cache_usage_ratio 1\n", 1, 0, 100),
    ],
)
def test_other_engines_by_their_own_names(text: str, running: float, waiting: float, cache: float) -> None:
    (row,) = rows(text)
    assert (row["requests_running"], row["requests_waiting"], row["kv_cache_percent"]) == (running, waiting, cache)


@given(st.text() | st.text().map(lambda text: f"vllm:num_requests_running{text}"))
def test_any_text_is_read(text: str) -> None:
    for row in rows(text, text):
        assert all(value is None or value == value for value in row.values())


def test_the_recording_holds_what_the_engine_tells(tmp_path: Path) -> None:
    told = iter([FIRST, THEN])
    path = tmp_path / "machine.csv"
    until = monotonic() + 60
    with gpu_readings.record_machine(path, True, lambda: [next(told, THEN)], None, dict):
        while monotonic() < until and not (path.exists() and path.read_text().count("\n") > 2):
            sleep(0.1)
    first, second = list(csv.DictReader(path.open()))[:2]
    assert first["requests_running"] == second["requests_running"] == "7.0"
    found = usage.usage_of(Recording.read(path))
    waiting = found["requests_waiting"]
    # The mean is weighted by the times between the readings, which a busy machine does not keep even.
    assert waiting.mean == pytest.approx(7)
    assert waiting.max == 7
    # The reading comes a second after the first, on a busy machine later.
    speed = found["generation_tokens_per_sec"].max
    assert speed == pytest.approx(512 / float(first["seconds"]), rel=0.1) and speed < 520
    assert usage.QUANTITY_BY_NAME["requests_running"].panel == "requests"


def test_every_column_is_a_quantity_with_a_panel_or_a_share_of_time() -> None:
    of_gpus = gpu_readings.NAMES_PER_GPU
    columns = {column.name for column in server_metrics.METRIC_COLUMNS} | {f"gpu_{name}" for name in of_gpus}
    assert columns < set(usage.QUANTITY_BY_NAME)
    drawn = {name for name, quantity in usage.QUANTITY_BY_NAME.items() if quantity.panel}
    shares = {"preemptions", "gpu_power_capped_percent", "gpu_too_hot_percent", "gpu_max_clock_mhz"}
    memory = {"gpu_memory_load_percent", "gpu_memory_clock_mhz", "gpu_memory_temperature_c"}  # in the table alone
    assert set(usage.QUANTITY_BY_NAME) - drawn == shares | memory


@pytest.mark.parametrize(("failed", "degrees"), [(0, 81), (3, None)])
def test_a_gpu_without_a_memory_sensor_tells_no_temperature(failed: int, degrees: int | None) -> None:
    field = SimpleNamespace(nvmlReturn=failed, value=SimpleNamespace(uiVal=81))
    nvml = SimpleNamespace(nvmlDeviceGetFieldValues=lambda card, ids: [field] * len(ids))
    assert answer_or_none(partial(gpu_readings.GPU_COLUMNS["memory_temperature_c"], nvml, None)) == degrees


def test_a_line_that_came_late_counts_for_longer(tmp_path: Path) -> None:
    path = tmp_path / "machine.csv"
    path.write_text("seconds,cpu_percent,generation_tokens_per_sec\n1,50,900\n4,100,100\n")
    found = usage.usage_of(Recording.read(path))
    assert found["generation_tokens_per_sec"] == Usage(mean=300, max=900)
    assert found["cpu_percent"].mean == 87.5


def used(**values: tuple[float, float]) -> dict[str, Usage]:
    return {name: Usage(mean=mean, max=most) for name, (mean, most) in values.items()}


def bounds(
    found: dict[str, Usage],
    concurrency: int | None,
    times: Sequence[GpuTime] = (),
    args: Mapping[str, object] | None = None,
    client: bool = False,
    others: float = 0.0,
) -> list[str]:
    """What set the speed, in words."""
    return [str(each) for each in usage.ran_out(found, concurrency, times, args or {}, client, others)]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            used(kv_cache_percent=(90, 99.5), requests_waiting=(40, 80)),
            ("KV cache was full", " 40 requests waited"),
        ),
        (used(kv_cache_percent=(90, 99.5), preemptions=(1, 5)), ("requests were preempted",)),
        (
            used(requests_running=(60, 64), requests_waiting=(9, 20), kv_cache_percent=(20, 30)),
            ("all 64 request slots",),
        ),
        (used(gpu_load_percent=(97, 100)), ("GPU was busy 97 %",)),
        (used(cpu_percent=(99, 100)), ("CPU was busy 99 %",)),
    ],
)
def test_what_ran_out_is_said(found: dict[str, Usage], said: tuple[str, ...]) -> None:
    assert [tells(sentence, *said) for sentence in bounds(found, 64)] == [True]


def test_nothing_is_said_to_have_run_out_where_there_was_enough() -> None:
    enough = used(kv_cache_percent=(50, 99), requests_running=(10, 64), requests_waiting=(0, 1), cpu_percent=(50, 100))
    assert list(bounds(enough, 64)) == []
    assert list(bounds({}, None)) == []


def time(**shares: float) -> GpuTime:
    whole = dict.fromkeys(SHARES, 0.0) | shares
    busy = 100 - sum(whole.values())
    return GpuTime.model_validate(
        {"test": "", "max_clock_mhz": 1980, "is_clock_of_nvml": True} | whole | {"busy": busy}
    )


def test_no_more_room_is_advised_where_power_is_what_bounds() -> None:
    """As on an H200 in a full Offline test: a quarter of its clock held down, all places taken."""
    h200 = used(gpu_load_percent=(98.5, 100), kv_cache_percent=(91, 99.5))
    h200 |= used(requests_running=(1947, 2048), requests_waiting=(17000, 38000))
    first, *rest = bounds(h200, 2048, [time(held_by_power=25.9, idle_while_waiting=0.9)])
    assert tells(first, "power", "25.9 % ", ": ")
    room, busy = rest
    assert tells(room, "KV cache was full", "slots were in use", "more of either would not help")
    assert "would not help" not in busy
    assert not any("--max-num-seqs" in line or "--kv-cache-dtype" in line for line in rest)


@pytest.mark.parametrize("quantity", ["gpu_load_percent", "cpu_percent"])
def test_no_more_places_are_advised_beside_what_is_busy(quantity: str) -> None:
    full = used(requests_running=(60, 64), requests_waiting=(9, 20), kv_cache_percent=(20, 30))
    assert any("--max-num-seqs" in line for line in bounds(full, 64))
    busy = full | used(**{quantity: (95, 100)})
    assert not any("--max-num-seqs" in line for line in bounds(busy, 64))


def test_the_largest_loss_comes_first_with_its_remedy() -> None:
    lost = time(idle=4.7, idle_while_waiting=23.0, held_by_power=5.5)
    args = {"max_num_batched_tokens": 1536, "max_cudagraph_capture_size": 1024}
    first, second, third = bounds({}, None, [lost], args)
    assert tells(first, "23 %", "while requests waited", "1,536", "1,024", "max_cudagraph_capture_size=1536")
    assert tells(second, "power", "5.5 %") and tells(third, "4.7 %") and "1,536" not in third
    assert "--profile" in bounds({}, None, [lost], {**args, "max_num_batched_tokens": 512})[0]
    packed = {"max_num_batched_tokens": 1536, "compilation_config": {"max_cudagraph_capture_size": 1024}}
    assert bounds({}, None, [lost], packed)[0] == first
    (line,) = bounds(used(cpu_percent=(99, 100)), None, client=True)
    assert "the client's" in line


RECORDED = json.loads(gzip.decompress((Path(__file__).parent / "h200_recordings.json.gz").read_bytes()))


def recorded(run: str) -> dict[str, GpuTime]:
    """Where the time of an H200 went in the tests of a run, by name."""
    recordings = {
        test: Recording(columns["seconds"], {name: columns[name] for name in columns if name != "seconds"})
        for test, columns in RECORDED[run].items()
    }
    return {share.test: share for share in shares_of(recordings)}


@pytest.mark.parametrize("run", RECORDED)
def test_the_shares_of_every_recording_add_up(run: str) -> None:
    for share in recorded(run).values():
        parts = [getattr(share, name) for name in SHARES]
        assert sum(parts) == pytest.approx(100) and min(parts) >= 0 and not share.is_clock_of_nvml


@pytest.mark.parametrize(
    ("run", "test", "idle", "waited", "held", "busy"),
    [
        ("full-offline-vllm032", "test", 1.5, 0.9, 25.9, 72.6),
        ("full-server-max-vllm032", "test", 2.4, 0.1, 21.5, 76.1),
        ("full-server-61-vllm032", "test", 0.4, 0, 20.9, 78.7),
        ("full-server-62-vllm032", "test", 0.1, 0, 25.0, 74.9),
        ("full-interactive-1536-graphs1024-vllm032", "attempt-1", 27.7, 23.0, 5.5, 66.8),
        ("interactive-1536-graphs1536-vllm032", "attempt-1", 12.7, 3.8, 8.5, 78.8),
        ("interactive-4096-graphs2048-vllm032", "test", 8.7, 0.1, 10.8, 80.5),
        ("full-interactive-max-4096-graphs2048-vllm032", "test", 7.3, 0, 7.3, 85.3),
        ("full-interactive-53-4096-graphs2048-vllm032", "test", 8.5, 0.3, 13.2, 78.3),
    ],
)
def test_where_the_time_of_an_h200_went(
    run: str, test: str, idle: float, waited: float, held: float, busy: float
) -> None:
    found = recorded(run)[test]
    waiting = found.idle_while_waiting or 0.0
    shares = (found.idle + waiting, waiting, found.held_by_power + found.held_by_heat, found.busy)
    assert shares == pytest.approx((idle, waited, held, busy), abs=1)


def test_a_clock_that_nvml_tells_goes_before_one_that_was_seen(tmp_path: Path) -> None:
    path = tmp_path / "machine.csv"
    head = "seconds,gpu0_load_percent,gpu0_clock_mhz,gpu0_max_clock_mhz,gpu0_power_capped_percent,gpu0_too_hot_percent"
    path.write_text(f"{head}\n1,100,1000,2000,100,0\n2,50,1500,2000,0,100\n4,0,1800,2000,0,0\n5,,,2000,0,0\n")
    (share,) = shares_of({"test": Recording.read(path)})
    assert share.is_clock_of_nvml and share.max_clock_mhz == 2000 and share.idle_while_waiting is None
    assert (share.idle, share.held_by_power, share.held_by_heat) == pytest.approx((62.5, 12.5, 3.125))
    path.write_text("seconds,gpu0_power_w\n1,500\n")
    assert list(shares_of({"test": Recording.read(path)})) == []


def test_the_report_shows_it(tmp_path: Path) -> None:
    run = example_runs.run(tmp_path / "run")
    head = "seconds,cpu_percent,memory_gib,gpu0_load_percent,gpu1_load_percent"
    head += ",requests_running,requests_waiting,kv_cache_percent"
    (run / "Performance" / "machine.csv").write_text(f"{head}\n1,5,2,90,99,64,10,99.1\n2,6,3,95,,64,10,99.5\n")
    rendering.build_report(run)
    page = (run / "report.md").read_text()
    assert tells(page, "**Bottleneck**: ", "KV cache was full ", " 10 requests waited")
    assert "| GPU load, % | 94.8 | 95 |" in page
    assert (run / "plots" / "machine.png").exists()


def test_two_probes_at_one_rate_have_each_their_own_time(tmp_path: Path) -> None:
    def record(name: str, load: float) -> None:
        (tmp_path / name).mkdir(parents=True)
        rows = "".join(f"{second},{load},1000,0,0\n" for second in (1, 2))
        head = "seconds,gpu0_load_percent,gpu0_clock_mhz,gpu0_too_hot_percent,gpu0_power_capped_percent\n"
        (tmp_path / name / "machine.csv").write_text(head + rows)

    for name, load in {"Probes/1": 30, "Probes/2": 90, "Performance": 50}.items():
        record(name, load)
    (tmp_path / "config.json").write_text("{}")
    probes = [SimpleNamespace(folder=f"Probes/{n}", text="5 queries/s") for n in (1, 2)]
    recording = Recording.read(tmp_path / "Performance" / "machine.csv")
    test: Any = SimpleNamespace(folder=tmp_path / "Performance", recording=recording)
    facts: Any = SimpleNamespace(probes=probes, attempts=[])
    found = {time.folder: (time.test, round(time.busy)) for time in gpu_times(test, facts)}
    assert found == {
        "Probes/1": ("probe at 5 queries/s", 30),
        "Probes/2": ("probe at 5 queries/s", 90),
        "Performance": ("performance test", 50),
    }
    second: Any = SimpleNamespace(
        folder=tmp_path / "Probes" / "2", recording=Recording.read(tmp_path / "Probes" / "2" / "machine.csv")
    )
    assert gpu_times(second, facts)[-1].folder == "Probes/2"  # of the test itself, last


def test_what_other_programs_take_of_the_cpu_bounds_no_engine() -> None:
    used = {"cpu_percent": Usage(mean=100.0, max=100.0)}
    assert any("CPU was busy" in line for line in bounds(used, None))
    assert not bounds({"cpu_percent": Usage(mean=99.0, max=100.0)}, None, others=90.0)


def test_the_engine_is_judged_by_its_share_of_the_cpu_that_others_left() -> None:
    used = {"cpu_percent": Usage(mean=100.0, max=100.0)}
    assert bounds(used, None, others=6.5) == ["the CPU was busy 100 % of the time that other programs left free"]
    assert not bounds({"cpu_percent": Usage(mean=95.0, max=100.0)}, None, others=6.5)
    assert not bounds(used, None, others=100.0)


def test_what_is_busy_stands_before_the_slots_that_it_filled() -> None:
    full = used(requests_running=(60, 64), requests_waiting=(9, 20), kv_cache_percent=(20, 30), cpu_percent=(100, 100))
    busy, slots = bounds(full, 64, others=6.5)
    assert busy == "the CPU was busy 100 % of the time that other programs left free"
    assert slots.endswith("; more slots would not help, as the bottleneck is another")


@given(percent=st.floats(0, 100), others=st.floats(0, 100))
def test_a_share_of_the_rest_is_a_share(percent: float, others: float) -> None:
    assert 0 <= usage.share_of_rest(percent, min(percent, others)) <= 100 + 1e-6


@pytest.mark.parametrize("is_over_limits", [False, True])
def test_a_test_over_its_limits_is_not_told_to_run_more_at_once(is_over_limits: bool) -> None:
    found = used(requests_waiting=(90.0, 100.0), requests_running=(8.0, 8.0), kv_cache_percent=(10.0, 20.0))
    statements = list(usage.ran_out(found, 8, (), {}, client=False, others_percent=0.0))
    (statement,) = usage.without_more_load(statements) if is_over_limits else statements
    assert "all 8 request slots were in use" in statement.what
    assert bool(statement.remedy) != is_over_limits


def test_the_load_of_a_gpu_is_a_strip_of_cells() -> None:
    columns: dict[str, list[float | None]] = {
        "gpu0_load_percent": [10.0, 15.0, 90.0, None],
        "gpu0_power_w": [100.0, 100.0, 400.0, 400.0],
    }
    (strip,) = machine_pictures.load_strip(Recording([1.0, 2.0, 3.0, 4.0], columns))
    assert [row.name for row in strip.rows] == ["SM", "power"]
    assert [(part.begin, part.end, part.color) for part in strip.rows[0].parts] == [
        (0.0, 2.0, "grey"),
        (2.0, 3.0, "red"),
    ]
    assert strip.rows[1].parts[-1][:3] == (2.0, 4.0, "red") and set(strip.legend) == {
        "under 20 %",
        "20 to 40 %",
        "80 % or more",
    }
    assert machine_pictures.load_strip(Recording([1.0], {"cpu_percent": [1.0]})) == []


def test_a_clock_of_nothing_lowers_nothing() -> None:
    columns: dict[str, list[float | None]] = {
        "load_percent": [50.0],
        "clock_mhz": [0.0],
        "power_capped_percent": [100.0],
    }
    (share,) = shares_of({"test": Recording([1.0], {f"gpu0_{name}": values for name, values in columns.items()})})
    assert (share.idle, share.held_by_power, share.busy) == (50, 0, 50)


def test_power_and_memory_are_those_of_all_cards_and_load_is_their_mean() -> None:
    columns = {
        "gpu0_power_w": [300.0, 310.0],
        "gpu1_power_w": [500.0, 510.0],
        "gpu2_power_w": [100.0, 110.0],
        "gpu0_memory_gib": [10.0, 10.0],
        "gpu1_memory_gib": [30.0, 30.0],
        "gpu2_memory_gib": [5.0, 5.0],
        "gpu0_load_percent": [90.0, 90.0],
        "gpu1_load_percent": [60.0, 60.0],
        "gpu2_load_percent": [0.0, 0.0],
    }
    used = usage.usage_of(Recording([1.0, 2.0], columns))
    assert (used["gpu_power_w"].mean, used["gpu_power_w"].max) == (pytest.approx(915.0), 930.0)
    assert used["gpu_memory_gib"].max == 45.0 and used["gpu_load_percent"].mean == pytest.approx(50.0)
    totals = {quantity.name for quantity in usage.QUANTITIES if quantity.total}
    assert totals == {name for name in totals if name.endswith(("_gib", "_w", "_gb_per_s"))} and len(totals) == 6
