"""What a rate costs, how near it is to the hardware, and what to try where a limit broke."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.config import models
from harness.config.engine import EngineState
from harness.config.run import RunConfig
from harness.core.given_values import flag_name
from harness.core.locations import ROOT
from harness.loadgen.machine_use import Usage
from harness.loadgen.requests import Request
from harness.report import report as rendering
from harness.results import hardware_limits
from harness.results.advice import advice
from harness.results.outcome import Outcome
from harness.runs.run_folder import RunFolder
from tests.support import example_runs

LOAD: dict[str, Any] = {
    "gpus": ["NVIDIA H200"],
    "bits": 16,
    "kv_cache_dtype": "auto",
    "replicas": 1,
    "concurrency": 256,
    "prompts": [780] * 1000,
    "answers": [128] * 1000,
    "seconds": 10.0,
}


def shares(  # noqa: PLR0913
    gpus: list[str],
    bits: int | None,
    kv_cache_dtype: str,
    replicas: int,
    concurrency: int,
    prompts: list[int],
    answers: list[int],
    seconds: float,
) -> Any:
    """Those of a test with these requests, on an engine that is spread over all of the GPUs."""
    requests = [Request(0, *tokens) for tokens in zip(prompts, answers, strict=True)]
    result = SimpleNamespace(duration_s=seconds, ttft_ms=None)
    named = {16: "none", 8: "fp8", None: "gptq"}
    plan = SimpleNamespace(
        config=SimpleNamespace(model="other", precision="bf16", has_other_hosts=False),
        engine_state=EngineState(quantization=named[bits], kv_cache_dtype=kv_cache_dtype),
        reference_model=True,
        tensor_parallel_size=len(gpus) // replicas,
        data_parallel_size=replicas,
    )
    facts = SimpleNamespace(plan=plan, concurrency=concurrency, system=SimpleNamespace(gpus=gpus))
    test: Any = SimpleNamespace(result=result, answered_requests=requests)
    return hardware_limits.peak_shares(test, facts)  # type: ignore[arg-type]


def test_the_weights_are_those_of_the_model() -> None:
    embedding = hardware_limits.OUTPUT_PARAMETERS
    norms = (2 * models.SHAPE["num_hidden_layers"] + 1) * models.SHAPE["hidden_size"]
    parameters = hardware_limits.LINEAR_PARAMETERS + 2 * embedding + norms
    assert parameters == 8_030_261_248  # as the model's card has them


def test_the_shares_of_a_card() -> None:
    found = shares(**LOAD)
    assert found is not None
    matrices = 2 * hardware_limits.LINEAR_PARAMETERS * 908_000 + 2 * hardware_limits.OUTPUT_PARAMETERS * 128_000
    operations = matrices + 4 * 32 * 4096 * 1000 * 908**2 / 2
    assert found[0] == pytest.approx(100 * operations / (989.5e12 * 10))
    steps, cache = 128_000 / 256, 131_072 * 128_000 * (780 + 64)  # a token's keys and values take 128 KiB
    weights = 2 * (hardware_limits.LINEAR_PARAMETERS + hardware_limits.OUTPUT_PARAMETERS)
    assert found[1] == pytest.approx(100 * (cache + steps * weights) / (4.8e12 * 10))


def test_eight_bits_halve_the_shares() -> None:
    wide, narrow = shares(**LOAD), shares(**LOAD | {"bits": 8})
    assert wide and narrow and narrow[0] == pytest.approx(wide[0] / 2)
    cache = shares(**LOAD | {"bits": 8, "kv_cache_dtype": "fp8"})
    assert cache and cache[1] < narrow[1] < wide[1]
    two = shares(**LOAD | {"gpus": ["NVIDIA H200"] * 2, "replicas": 2, "concurrency": 512})
    assert two and two[0] == pytest.approx(wide[0] / 2)


@pytest.mark.parametrize(
    "other",
    [
        {"gpus": []},
        {"gpus": ["NVIDIA GeForce GTX 1080"]},
        {"gpus": ["NVIDIA H200", "NVIDIA L4"]},
        {"bits": None},
        {"gpus": ["NVIDIA A100-SXM4-80GB"], "bits": 8},
        {"seconds": 0.0},
    ],
)
def test_no_share_where_the_peak_is_not_known(other: dict[str, Any]) -> None:
    assert shares(**LOAD | other) is None


def test_what_a_rate_comes_to(tmp_path: Path) -> None:
    test = example_runs.rendered(tmp_path / "run").run.performance
    assert test and test.details.capacity and test.samples_per_sec == 8
    assert (test.details.capacity.requests_per_hour, test.details.capacity.requests_per_day) == (28_800, 691_200)
    assert test.details.capacity.full_set_s is None  # the demo's articles are none of MLPerf's
    steady = example_runs.rendered(tmp_path / "steady", concurrency="4").run.performance
    assert steady and steady.details.capacity and steady.samples_per_sec
    # At fixed concurrency, a test's ramps do not count, neither in samples/s nor in requests an hour.
    assert steady.details.capacity.requests_per_hour == pytest.approx(3600 * steady.samples_per_sec)
    real = example_runs.rendered(tmp_path / "real", model="other").run.performance
    assert real and real.details.capacity and real.details.capacity.full_set_s == 13_368 / 8
    short = example_runs.rendered(tmp_path / "short", model="other", max_new_tokens=16).run.performance
    assert short and short.details.capacity and short.details.capacity.full_set_s is None
    assert (test.details.mfu_percent, test.details.mbu_percent) == (None, None)  # the demo, on a CPU
    assert "| requests per day | 691,000 |" in (tmp_path / "run" / "report.md").read_text()


def test_the_share_stands_in_the_report_of_a_known_card(tmp_path: Path) -> None:
    run = example_runs.run(tmp_path / "run", system={**example_runs.SYSTEM, "gpus": ["NVIDIA H200"]}, model="other")
    example_runs.note(RunFolder(tmp_path, "run"), concurrency=256)
    test = rendering.build_report(run).run.performance
    assert test and test.details.mfu_percent and 0 < test.details.mfu_percent < 100
    assert "| MFU, % |" in (run / "report.md").read_text()


def latency(value: float) -> dict[str, float]:
    return dict.fromkeys(("min", "mean", "max", "p50", "p90", "p95", "p97", "p99", "p99_9"), value)


def measured(ttft: float, tpot: float, **more: Any) -> Outcome:
    known = {"scenario": "server", "valid": False, "duration_s": 10.0, "samples": 64, "samples_per_sec": 6.4}
    limits = {"limits_ms": {"ttft": 2000, "tpot": 100}, "ttft_ms": latency(ttft), "tpot_ms": latency(tpot)}
    return example_runs.performance(**{**known, "tokens_per_sec": 800.0, **limits, **more})


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (measured(10, 10), []),
        (
            measured(10, 101, requests_in_flight=300.0),
            ["300 requests in flight: a lower rate"],
        ),
        (measured(2001, 10), ["--extra-metrics shows whether requests waited"]),
        (
            measured(2001, 10, usage={"requests_waiting": Usage(mean=40, max=90)}),
            ["requests queue (40 waited"],
        ),
        (measured(2001, 10, usage={"requests_waiting": Usage(mean=0, max=1)}), ["a higher --max-num-batched-tokens"]),
        (measured(2001, 101), ["TTFT and TPOT "]),
        (measured(2001, 101, limits_ms=None), []),
    ],
)
def test_what_to_try(test: Outcome, said: list[str]) -> None:
    found = advice(test)
    assert [text in sentence for text, sentence in zip(said, found, strict=True)] == [True] * len(said)


def test_every_flag_that_is_advised_exists() -> None:
    flags = {*map(flag_name, RunConfig.model_fields)}
    texts = [(ROOT / "harness" / "results" / name).read_text() for name in ("advice.py", "telemetry.py")]
    assert {flag for text in texts for flag in re.findall(r"--[a-z-]+[a-z]", text)} <= flags


@pytest.mark.parametrize("name", ["NVIDIA L40X", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GH200 96GB", "H200"])
def test_a_card_is_known_by_its_whole_name(name: str) -> None:
    assert shares(**LOAD | {"gpus": [name]}) is None


def test_cards_that_look_alike_are_told_apart() -> None:
    arithmetic = {name: shares(**LOAD | {"gpus": [f"NVIDIA {name}"]})[0] for name in ("L4", "L40", "L40S")}
    assert arithmetic["L4"] > arithmetic["L40"] > arithmetic["L40S"]
    assert shares(**LOAD | {"gpus": ["NVIDIA A30"]})
