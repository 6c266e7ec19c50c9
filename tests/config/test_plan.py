"""How `auto` is resolved: GPUs, samples, durations, rates; and what makes a run not comparable."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import checkpoint as model
from harness.config import mlperf
from harness.config.engine import EngineState
from harness.config.models import DEMO
from harness.config.parallelism import parallelism
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core import system
from harness.core.errors import UsageError
from harness.core.locations import ROOT
from harness.core.nvml import GPU
from tests.conftest import tells

GIB = 2**30


def plan(reference: bool = True, **flags: Any):
    config = RunConfig(**flags)
    return resolve(config, [], 16 * GIB, reference)


SIZES = st.one_of(st.just("auto"), st.integers(1, 8))


@settings(max_examples=500, deadline=None)
@given(
    memories=st.lists(st.integers(8, 200), min_size=1, max_size=16),
    weights=st.integers(1, 900),
    tensor=SIZES,
    data=SIZES,
    share=st.one_of(st.just("auto"), st.floats(0.05, 1)),
)
def test_parallelism_fits_the_visible_gpus(memories: list[int], weights: int, tensor: Any, data: Any, share: Any):
    config = RunConfig(tensor_parallel_size=tensor, data_parallel_size=data, gpu_memory_utilization=share)
    gpus = [GPU("card", memory * GIB) for memory in memories]
    usable = 0.8 * (0.9 if share == "auto" else share) * min(memories)
    least = next(2**n for n in range(20) if weights / 2**n <= usable)
    wanted = (least if tensor == "auto" else tensor) * (1 if data == "auto" else data)
    if wanted > len(gpus):
        with pytest.raises(UsageError):
            parallelism(config, gpus, weights * GIB)
        return
    split, copies = parallelism(config, gpus, weights * GIB)
    assert split == (least if tensor == "auto" else tensor)
    assert copies == (len(gpus) // split if data == "auto" else data)
    assert split * copies <= len(gpus)


@pytest.mark.parametrize("backend", ["data_parallel_backend=ray", "distributed_executor_backend=ray"])
def test_a_ray_cluster_may_have_more_gpus_than_are_visible(backend: str) -> None:
    cards = [GPU("card", 80 * GIB)] * 2
    config = RunConfig(data_parallel_size=8, engine_arg=(backend,))
    assert parallelism(config, cards, 16 * GIB) == (1, 8)
    with pytest.raises(UsageError):
        parallelism(RunConfig(data_parallel_size=8), cards, 16 * GIB)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tensor_parallel_size": 4}, "--tensor-parallel-size 4"),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2}, "needs 4 GPUs; 2 visible"),
        ({"data_parallel_size": 3}, "--data-parallel-size 3"),
    ],
)
def test_too_few_gpus_names_the_flag_that_asks_for_more(flags: dict[str, int], message: str):
    with pytest.raises(UsageError, match=message):
        parallelism(RunConfig(**flags), [GPU("card", 80 * GIB)] * 2, 16 * GIB)


def test_a_model_too_large_for_the_gpus_names_both_sizes():
    with pytest.raises(UsageError, match=r"needs 140 GiB .* 1 GPU.* 80 GiB"):
        parallelism(RunConfig(model="big"), [GPU("card", 80 * GIB)], 140 * GIB)


def test_without_gpus_there_is_one_copy(monkeypatch):
    monkeypatch.setattr(system, "core_count", lambda: 2)
    assert parallelism(RunConfig(), [], 16 * GIB) == (1, 1)
    assert parallelism(RunConfig(tensor_parallel_size=2), [], 16 * GIB) == (2, 1)
    with pytest.raises(UsageError, match="needs 3 CPU cores"):
        parallelism(RunConfig(tensor_parallel_size=3), [], 16 * GIB)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_is_sound(path: Path):
    assert resolve(RunConfig.load(path), [], 0).deviations == []


def test_a_full_run_has_no_deviations_and_official_settings():
    full = plan(round="6.0")
    assert full.deviations == []
    assert (full.samples, full.min_duration_s, full.max_model_len) == (13368, 600, 2668)
    assert full.seeds == mlperf.SEEDS_BY_ROUND["6.0"]
    assert full.target_qps is None


def test_what_the_engine_makes_of_its_arguments_counts():
    assert plan(engine_arg=("enable_prefix_caching=false",)).deviations == []
    caching = replace(
        plan(), engine_state=EngineState(prefix_caching=True, quantized_checkpoint=True, quantization="fp8")
    )
    assert [str(line).partition(":")[0] for line in caching.deviations] == ["prefix caching"]
    assert replace(plan(), engine_state=EngineState(speculation="ngram")).deviations[0].name == "speculation"
    elsewhere = replace(plan(), engine_state=EngineState(kv_connector="OffloadingConnector"))
    assert [str(line).partition(":")[0] for line in elsewhere.deviations] == ["KV connector OffloadingConnector"]


def test_only_llamas_shape_counts_as_the_reference_model():
    demo = RunConfig(model=str(DEMO / "model"))
    assert not model.is_reference(demo)
    assert plan(model=str(DEMO / "model"), reference=False).deviations[0].name == "another model"


def test_a_short_accuracy_run_may_be_brief():
    assert plan(mode="accuracy", min_duration=1).deviations == []


@settings(deadline=None)
@given(count=st.integers(1, 13368))
def test_a_short_run_lasts_in_proportion(count: int):
    short = plan(total_sample_count=count)
    assert short.min_duration_s == pytest.approx(max(1, 600 * count / 13368), abs=0.051)
    assert bool(short.deviations) == (count < 13368)
    assert any("minimum duration" in note for note in short.notes) == (short.min_duration_s < 600)


def test_a_given_duration_stays():
    assert plan(total_sample_count=10, min_duration=2.5).min_duration_s == 2.5


def test_more_samples_than_there_are_is_refused():
    with pytest.raises(UsageError, match=r"--total-sample-count 13369: .* 13,368 samples"):
        plan(total_sample_count=13369)


def test_a_seed_replaces_all_three():
    assert plan(seed=7).seeds == mlperf.Seeds(7, 7, 7)


@pytest.mark.parametrize(
    ("scenario", "flag"),
    [("offline", "offline_expected_qps"), ("server", "server_target_qps"), ("interactive", "server_target_qps")],
)
def test_each_scenario_takes_its_own_rate(scenario: str, flag: str):
    assert plan(scenario=scenario, **{flag: 5}).target_qps == 5


def test_a_context_beyond_the_demos_is_refused():
    with pytest.raises(UsageError, match=r"--max-model-len 4096: the demo .* 1024 tokens"):
        plan(model="demo", max_model_len=4096)


@pytest.mark.parametrize(
    ("flags", "queries", "message"),
    [
        ({"total_sample_count": 20, "server_target_qps": 8}, 460, ""),
        ({"total_sample_count": 256, "server_target_qps": 8}, 512, ""),
        (
            {"total_sample_count": 20, "server_target_qps": 8, "min_duration": 2},
            20,
            "20 queries .* 459, 57 s at 8 queries/s; .*--min-duration.*",
        ),
        ({"total_sample_count": 20, "server_target_qps": 8, "min_duration": 2, "mode": "accuracy"}, 20, ""),
        ({"server_target_qps": 60}, 40104, ""),
    ],
)
def test_a_server_run_is_long_enough_to_be_valid(flags: dict[str, Any], queries: int, message: str):
    found = plan(scenario="server", **flags)
    assert found.planned_samples == queries and re.fullmatch(message, found.duration_problem or "")


@pytest.mark.parametrize("argument", ["hf_overrides={a: 1}", "logits_processors=[x.Y]", "revision=abc", "spec_model=x"])
def test_whatever_changes_the_model_is_a_deviation(argument: str) -> None:
    config = RunConfig(engine_arg=(argument, "max_cudagraph_capture_size=1024"))
    name = argument.partition("=")[0]
    assert [str(line).partition(":")[0] for line in resolve(config, [], 0).deviations] == [f"--engine-arg {name}"]
    own = replace(resolve(RunConfig(), [], 0), official_data=False)
    (said,) = own.deviations
    assert tells(said, "data", "13,368 prompts")
