"""One page for several models or servers: what is another's changes no column, or a line says that it does."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines import server_metrics
from harness.engines.metrics_pages import OWN_LABELS, own_rows, page_notes
from harness.engines.server_metrics import METRIC_COLUMNS, SOURCES
from harness.loadgen.server_neighbours import signs_of_others
from harness.loadgen.test_run import Recording
from tests.conftest import run
from tests.engines.test_openai import client
from tests.support.fake_servers import TOKENS, Fake, serving

NAMES = ("demo", "meta-llama/Llama-3.1-8B-Instruct")
FAMILIES = {
    "vLLM": ("vllm:", 'engine="0",model_name="demo"'),
    "Ray Serve": ("vllm:", 'WorkerId="a",ReplicaId="b",engine="0",model_name="demo"'),
    "SGLang": ("sglang:", 'tp_rank="0",pp_rank="0",model_name="demo",engine_type="unified"'),
    "llama.cpp": ("llamacpp:", ""),
    "Dynamo": ("dynamo_frontend_", 'model="demo"'),
    "TensorRT-LLM": ("trtllm_", 'model_name="demo",engine_type="undefined"'),
}


def rows(engine: str, labels: str, seed: int, scale: float = 1.0) -> str:
    """A page of an engine with a value for each of its metrics that is read."""
    prefix, _ = FAMILIES[engine]
    draw = random.Random(seed)
    ray = "ray_" if engine == "Ray Serve" else ""
    found = []
    for name in sorted(SOURCES):
        if not name.startswith(prefix):
            continue
        shown = f"ray_vllm_{name.removeprefix('vllm:')}" if ray else name
        braces = f"{{{labels}}}" if labels else ""
        found.append(
            f"# HELP {shown} Of an engine.\n# TYPE {shown} gauge\n{shown}{braces} {scale * draw.random():.6f}\n"
        )
    return "".join(found)


def columns(pages: tuple[str, str]) -> list[Any]:
    """Each column, by two readings ten seconds apart."""
    before, now = (server_metrics.metric_values([own_rows(page, NAMES)]) for page in pages)
    return server_metrics.metric_cells(before, now, 10.0)


def two_readings(engine: str, labels: str, seed: int, scale: float = 1.0) -> tuple[str, str]:
    return rows(engine, labels, seed, scale), rows(engine, labels, seed + 1, 10 * scale)


LABELS = st.one_of(
    st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True),
    st.sampled_from(["model_name", "served_model_name", "model", "pod", "namespace", "instance", "tenant", "job"]),
)


@pytest.mark.parametrize("engine", FAMILIES)
@given(label=LABELS, value=st.sampled_from(["other", "x", "Other/Model-7B"]), seed=st.integers(0, 10**6))
def test_a_page_whose_rows_are_doubled_under_a_foreign_label(engine: str, label: str, value: str, seed: int) -> None:
    """As a gateway, or a Prometheus that collects several servers, shows them."""
    own_labels = FAMILIES[engine][1]
    if label in OWN_LABELS and "model" not in label:
        return  # which tells replicas of one model apart
    kept = [pair for pair in own_labels.split(",") if pair and not pair.startswith(f"{label}=")]
    foreign_labels = ",".join([*kept, f'{label}="{value}"'])
    own = two_readings(engine, own_labels, seed)
    foreign = two_readings(engine, foreign_labels, seed + 7, scale=50)
    both = (own[0] + foreign[0], own[1] + foreign[1])
    notes = [*page_notes(both[1], NAMES)]
    assert columns(both) == columns(own) or any(label in note or value in note for note in notes)
    assert [*page_notes(own[1], NAMES)] == []


@pytest.mark.parametrize("engine", ["vLLM", "SGLang", "TensorRT-LLM", "Ray Serve", "Dynamo"])
def test_rows_of_another_model_change_no_column(engine: str) -> None:
    own_labels = FAMILIES[engine][1]
    own = two_readings(engine, own_labels, 1)
    foreign = two_readings(engine, own_labels.replace('"demo"', '"other"'), 2, scale=50)
    both = (own[0] + foreign[0], foreign[1] + own[1])
    assert columns(both) == columns(own) != columns(foreign)
    (note,) = page_notes(both[1], NAMES)
    assert "model_name other" in note and "left out" in note


def test_a_model_is_known_by_each_of_its_names() -> None:
    for name in ("demo", "/models/Demo", "org/demo", "Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"):
        page = f'vllm:num_requests_running{{model_name="{name}"}} 4\nvllm:num_requests_running{{model_name="x"}} 9\n'
        assert server_metrics.metric_values([own_rows(page, NAMES)]) == {"vllm:num_requests_running": [4.0]}


def test_where_no_row_is_of_the_model_all_count_and_a_line_says_so() -> None:
    page = "".join(f'vllm:num_requests_running{{model_name="{name}"}} {n}\n' for n, name in enumerate("abcdef"))
    assert sum(server_metrics.metric_values([own_rows(page, NAMES)])["vllm:num_requests_running"]) == 15
    (note,) = page_notes(page, NAMES)
    assert "counted together: model_name a, b, c, d and 2 more" in note
    alone = 'vllm:num_requests_running{model_name="alias"} 3\n'
    assert own_rows(alone, NAMES) == alone
    (note,) = page_notes(alone, NAMES)
    assert "alias" in note


def test_replicas_of_the_model_are_summed_without_a_word() -> None:
    page = "".join(f'vllm:num_requests_running{{engine="{n}",model_name="demo"}} 2\n' for n in range(4))
    assert server_metrics.metric_values([page]) == {"vllm:num_requests_running": [2.0] * 4}
    assert [*page_notes(page, NAMES)] == []


DAMAGED = ['vllm:kv_cache_usage_perc{engine="0"} ', 'vllm:kv_cache_usage_perc{engine="0', "vllm:kv_cache_usage_perc x"]


@pytest.mark.parametrize("damaged", DAMAGED)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_row_costs_no_other(damaged: str, place: int) -> None:
    lines = ['vllm:num_requests_running{engine="0"} 4', 'vllm:generation_tokens_total{engine="0"} 10']
    lines.insert(place, damaged)
    found = server_metrics.metric_values(["\n".join(lines)])
    assert found == {"vllm:num_requests_running": [4.0], "vllm:generation_tokens_total": [10.0]}


def test_a_client_counts_the_rows_of_its_model_and_says_what_else_is_there() -> None:
    counters = "".join(
        f'vllm:num_requests_waiting{{{{model_name="{name}"}}}} {n}\n' for n, name in ((3, "demo"), (9, "x"))
    )
    with client(Fake(counters=counters)) as engine:
        found = server_metrics.metric_values(engine.prometheus_metrics())
        assert found["vllm:num_requests_waiting"] == [3.0]
        assert len(engine.cautions) == 1 and engine.cautions[0] in engine.args["metrics"]
    with client(Fake()) as engine:
        assert not engine.cautions and "metrics" not in engine.args


def counter(tokens: int) -> list[str]:
    return [f'vllm:generation_tokens_total{{engine="0"}} {tokens}\n']


@pytest.mark.parametrize(
    ("running", "generated", "signs"),
    [
        ([4.0, 4.0, 4.0], 1000, 0),
        ([4.0, 14.0, 4.0], 1000, 0),  # one reading may fall between two requests
        ([4.0, 14.0, 14.0], 1000, 1),
        ([14.0], 1000, 1),
        ([None, 5.0, 5.0], 1000, 1),
        ([], 1000, 0),
        ([None, None], 1099, 0),
        ([4.0], 1200, 1),
        ([14.0], 5000, 2),
    ],
)
def test_more_at_the_server_than_this_client_sent_is_said(running: list[Any], generated: int, signs: int) -> None:
    recording = Recording([float(second) for second in range(len(running))], {"requests_running": running})
    found = [*signs_of_others(recording, 4, counter(500), counter(500 + generated), came=1000)]
    assert len(found) == signs and all("others use the server" in line for line in found)
    without = [*signs_of_others(recording, 4, counter(500), counter(500 + generated), came=None)]
    assert len(without) == (signs if generated <= 1200 and signs < 2 and generated == 1000 else int(running == [14.0]))
    assert not [*signs_of_others(Recording([], {}), 4, [], [], came=1000)]


@pytest.mark.slow
def test_a_run_beside_others_is_busy(tmp_path: Path) -> None:
    """The page of the model itself has ten more requests, and tokens that nobody here asked for."""
    counters = 'vllm:num_requests_running{{engine="1"}} 10\nvllm:generation_tokens_total{{engine="1"}} {n}000\n'
    with serving(Fake(counters=counters)) as server:
        flags = ("--endpoint", server.address, "--concurrency", "2", "--mode", "performance", "--workload", "chat")
        done = run(tmp_path, *flags, "--min-duration", "3", "--extra-metrics")
    assert done.code == 0, done.output
    assert done.output.count("others use the server") >= 2 and len(TOKENS) == 4
    assert any("others use the server" in line for line in done.summary["run"]["performance"]["others"])


def test_the_columns_are_all_tested() -> None:
    prefixes = tuple(prefix for prefix, _ in FAMILIES.values())
    assert all(source.startswith(prefixes) for column in METRIC_COLUMNS for source in column.metrics.split())


@pytest.mark.parametrize("busy", [set(), {0}, {1}, {0, 2}, {0, 1, 2}])
def test_the_replicas_that_computed_nothing_are_the_idle_ones(busy: set[int]) -> None:
    def pages(grown: int) -> list[str]:
        return [f"vllm:generation_tokens_total {100 + (grown if server in busy else 0)}\n" for server in range(3)]

    assert server_metrics.idle_replicas(pages(0), pages(50)) == (3 - len(busy), 3)
    assert server_metrics.idle_replicas(pages(0), pages(50)[:2]) == (0, 0)  # one did not answer
