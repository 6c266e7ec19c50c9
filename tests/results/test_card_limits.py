"""What a card cannot exceed: said before a run, and held against what the run measured."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import random_llama
from harness.config.run import RunConfig
from harness.core.nvml import GPU
from harness.report import report as rendering
from harness.results import card_limits, limit_comparison
from harness.results.card_limits import CardLimits, MeanLengths
from harness.results.kernel_profile import Profile, Share
from harness.runner import doctor, steps
from harness.runs.run_folder import RunFolder
from tests.support import example_runs

H200 = GPU("NVIDIA H200", 141 * 10**9)
LENGTHS = MeanLengths(800, 100)
LAYERS = 32 * 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)  # parameters of Llama-3.1-8B's matrices
OUTPUT = 128256 * 4096


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    folder = tmp_path_factory.mktemp("llama")
    random_llama.make(folder, 16)
    return RunConfig(model=str(folder / "model"), dataset_path=folder / "cnn_eval.json", total_sample_count=16)


def changed(config: RunConfig, **flags: Any) -> RunConfig:
    return config.model_copy(update=flags)


def test_the_limits_of_an_h200_in_16_bits(llama: RunConfig) -> None:
    limits = CardLimits.of(llama, [H200])
    token_bytes = 2 * (LAYERS + OUTPUT) + 2 * 2 * 32 * 1024 * (800 + 50)
    assert limits.request_tokens_per_s(LENGTHS) == pytest.approx(4.8e12 / token_bytes)
    flops = 2 * LAYERS * 900 + 2 * OUTPUT * 100 + 4 * 32 * 4096 * 900**2 / 2
    assert limits.samples_per_s(LENGTHS) == pytest.approx(989.5e12 / flops)
    left = 0.9 * 141e9 - 2 * (LAYERS + 2 * OUTPUT)
    assert limits.sequences(LENGTHS) == pytest.approx(left / (2 * 2 * 32 * 1024 * 900))
    assert limits.missing == ()


def test_fp8_and_more_cards_raise_the_limits(llama: RunConfig) -> None:
    plain = CardLimits.of(llama, [H200])
    narrow = CardLimits.of(changed(llama, quantization="fp8", kv_cache_dtype="fp8"), [H200])
    assert narrow.flops_per_s == pytest.approx(2 * (plain.flops_per_s or 0))
    assert narrow.kv_bytes == plain.kv_bytes / 2
    assert (narrow.weight_bytes, plain.weight_bytes) == (LAYERS + 2 * OUTPUT, 2 * (LAYERS + OUTPUT))
    three = CardLimits.of(llama, [H200] * 3)  # replicas, of which one answers a request alone
    assert three.flops_per_s == pytest.approx(3 * (plain.flops_per_s or 0)) and three.bytes_per_s == plain.bytes_per_s
    assert three.sequences(LENGTHS) == pytest.approx(3 * (plain.sequences(LENGTHS) or 0))
    split = CardLimits.of(changed(llama, tensor_parallel_size=2), [H200] * 2)
    assert split.bytes_per_s == pytest.approx(2 * (plain.bytes_per_s or 0))


@pytest.mark.parametrize(
    ("flags", "gpus", "word", "known"),
    [
        ({}, ["NVIDIA GeForce GTX 1080"], "NVIDIA GeForce GTX 1080 is not in", [False, False, True]),
        ({}, ["NVIDIA H200", "NVIDIA H100 80GB HBM3"], "unlike", [False, False, True]),
        ({}, [], "no GPU", [False, False, False]),
        ({"quantization": "fp8"}, ["NVIDIA A100-SXM4-80GB"], "no fp8 rate", [True, False, True]),
        ({"quantization": "experts_int8"}, ["NVIDIA H200"], "format", [True, False, True]),
    ],
)
def test_the_line_says_what_is_missing(
    llama: RunConfig, flags: dict[str, Any], gpus: list[str], word: str, known: list[bool]
) -> None:
    limits = CardLimits.of(changed(llama, **flags), [GPU(name, 80 * 10**9) for name in gpus])
    (fact,) = limits.missing
    assert word in fact
    functions = (limits.request_tokens_per_s, limits.samples_per_s, limits.sequences)
    assert [function(LENGTHS) is not None for function in functions] == known
    lines = [*limits.lines(LENGTHS)]
    assert len(lines) == sum(known) + 1 and fact in lines[-1]
    assert all("computed, not measured" in line for line in lines[:-1])


@pytest.mark.parametrize(
    ("argument", "known"),
    [
        ('speculative_config={"method": "ngram"}', [False, True, True]),
        ("enable_prefix_caching=true", [True, False, True]),
        ("enable_prefix_caching=false", [True, True, True]),
        ("cpu_offload_gb=4", [False, True, False]),
    ],
)
def test_an_argument_of_the_engine_may_lift_a_limit(llama: RunConfig, argument: str, known: list[bool]) -> None:
    limits = CardLimits.of(changed(llama, engine_arg=(argument,)), [H200])
    functions = (limits.request_tokens_per_s, limits.samples_per_s, limits.sequences)
    assert [function(LENGTHS) is not None for function in functions] == known
    assert len(limits.missing) == known.count(False)
    assert all(argument.partition("=")[0] in fact for fact in limits.missing)


@pytest.mark.parametrize(
    ("quantization", "arithmetic"),
    [
        (random_llama.QUANTIZATION, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "bf16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 4}}}}, "bf16"),
        ({"quant_method": "unheard-of", "bits": 3}, ""),
    ],
)
def test_the_arithmetic_follows_the_checkpoint(
    llama: RunConfig, monkeypatch: pytest.MonkeyPatch, quantization: dict[str, Any], arithmetic: str
) -> None:
    monkeypatch.setattr("harness.config.quantization.quantization_config", lambda config: quantization)
    assert card_limits.arithmetic_of(llama) == arithmetic


def test_a_dry_run_says_them_and_before_a_download(llama: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.core.nvml.gpus", lambda: [H200])
    lines: list[str] = []
    steps.dry_run(llama, lines.append)
    assert sum(card_limits.PREFIX in line for line in lines) == 3 and not any("(assumed)" in line for line in lines)
    lines.clear()

    def fetch(config: RunConfig) -> None:
        lines.append("fetched")
        raise InterruptedError

    monkeypatch.setattr(steps, "are_local", lambda config: False)
    monkeypatch.setattr(steps, "read_samples", fetch)
    with pytest.raises(InterruptedError):
        steps.dry_run(llama, lines.append)
    assert sum(card_limits.PREFIX in line for line in lines[:-1]) == 3 and lines[-1] == "fetched"
    assert sum("(assumed)" in line for line in lines) == 1


def test_only_a_run_on_this_machines_gpus_has_limits(llama: RunConfig) -> None:
    remote = changed(llama, backend="openai", endpoint=("http://localhost:1/v1",))
    assert card_limits.run_limits(llama, [H200])
    assert card_limits.run_limits(llama, []) is None and card_limits.run_limits(remote, [H200]) is None


def test_doctor_shows_them(llama: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.core.nvml.gpus", lambda: [H200])
    (check,) = [check for check in doctor.CHECKS if check.name == "limits"]
    finding = doctor.finding(check, llama)
    assert finding.status == "ok" and finding.found.count("computed, not measured") == 3
    monkeypatch.setattr("harness.core.nvml.gpus", lambda: [GPU("NVIDIA X", 10**11)])
    assert "NVIDIA X is not in" in doctor.finding(check, llama).found


def test_a_report_has_limit_measured_and_ratio(tmp_path: Path, llama: RunConfig) -> None:
    limits = CardLimits.of(llama, [H200]).model_dump()
    folder = example_runs.run(tmp_path / "run", model="other")
    example_runs.note(RunFolder(tmp_path, "run"), card_limits=limits)
    test = rendering.build_report(folder).run.performance
    assert test and test.samples_per_sec == 8
    prompts, answers = test.details.input_lengths, test.details.output_lengths
    assert prompts and answers
    rate = CardLimits.of(llama, [H200]).samples_per_s(MeanLengths(prompts.mean, answers.mean))
    assert rate
    text = (folder / "report.md").read_text()
    assert "## Limits of the card" in text and "measured of the limit, %" in text
    facts = rendering.benchmark_run.facts_of(folder)
    (row, *_) = limit_comparison.comparisons(facts, test)
    assert (row.limit, row.measured) == (rate, 8) and row.percent == pytest.approx(800 / rate)
    state = facts.plan.engine_state
    for other in ({"speculation": "ngram"}, {"prefix_caching": True}):
        facts.adopt(facts.plan.__class__(**vars(facts.plan) | {"engine_state": state.__class__(**vars(state) | other)}))
        assert limit_comparison.comparisons(facts, test) == []


def test_a_report_of_an_unknown_card_says_what_is_missing(tmp_path: Path, llama: RunConfig) -> None:
    folder = example_runs.run(tmp_path / "run", model="other")
    limits = CardLimits.of(llama, [GPU("NVIDIA X", 10**11)])
    example_runs.note(RunFolder(tmp_path, "run"), card_limits=limits.model_dump())
    rendering.build_report(folder)
    assert "NVIDIA X is not in" in (folder / "report.md").read_text()


def test_the_kernels_of_the_gap() -> None:
    kinds = [Share(name=name, kind=name, ms=1, percent=part, calls=1) for name, part in KINDS.items()]
    text = limit_comparison.gap_kernels(Profile(device="GPU", kinds=kinds))
    assert "attention (21 %)" in text and "71 %" in text
    assert limit_comparison.gap_kernels(Profile(device="CPU", kinds=kinds)) == ""
    assert limit_comparison.gap_kernels(None) == limit_comparison.gap_kernels(Profile(device="GPU")) == ""


KINDS = {limit_comparison.MATRIX_PRODUCTS: 71.0, "quantization": 8.0, "attention": 21.0}
