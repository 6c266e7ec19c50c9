"""Random weights in place of the real ones: written, read back, run, and said to be random."""

import json
from pathlib import Path

import pytest

from benchmarks import random_llama
from harness.config.checkpoint import has_random_weights, is_reference
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.runner import samples
from tests.conftest import run, tells

WIDE = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    random_llama.make(folder / "bf16", 16, "bf16", "small")
    return folder


def tensors(model: Path) -> dict[str, object]:
    from safetensors.torch import load_file

    index = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: load_file(model / name) for name in set(index.values())}
    return {key: files[name][key] for key, name in index.items()}


def test_weights_are_as_before_training(made: Path) -> None:
    import torch

    found = tensors(made / "bf16" / "model")
    weight, norm = found[f"{WIDE}.weight"], found["model.layers.0.input_layernorm.weight"]
    assert isinstance(weight, torch.Tensor) and isinstance(norm, torch.Tensor)
    assert weight.dtype == torch.bfloat16 and float(weight.float().std()) == pytest.approx(0.02, rel=0.02)
    assert bool((norm == 1).all())


@pytest.mark.slow
def test_static_scales_give_nearly_the_same_answers(made: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    random_llama.make(made / "fp8-static", 16, "fp8-static", "small")
    found = tensors(made / "fp8-static" / "model")
    scales = [found[f"{WIDE}.{name}"] for name in ("weight_scale", "input_scale")]
    scales += [found[f"model.layers.0.self_attn.{name}_scale"] for name in "kv"]
    assert all(isinstance(scale, torch.Tensor) and 0 < float(scale) < 1 for scale in scales)
    assert getattr(found[f"{WIDE}.weight"], "dtype", None) == torch.float8_e4m3fn
    tokens = torch.arange(1, 60)[None]
    both = [
        AutoModelForCausalLM.from_pretrained(made / kind / "model", dtype=torch.bfloat16)(tokens).logits.float()
        for kind in ("bf16", "fp8-static")
    ]
    assert float((both[0] - both[1]).std() / both[0].std()) < 0.15


@pytest.mark.slow
def test_the_head_alone_differs_where_it_is_in_fp8_too(made: Path) -> None:
    import torch

    from benchmarks import random_weights

    kinds = ("fp8-static", "fp8-static-head")
    for kind in kinds:
        random_llama.make(made / f"head-{kind}", 16, kind, "small")
    plain, head = (tensors(made / f"head-{kind}" / "model") for kind in kinds)
    changed = {f"lm_head.{name}" for name in ("weight", "weight_scale", "input_scale")}
    assert head.keys() - plain.keys() == changed - {"lm_head.weight"}
    same = plain.keys() - changed
    assert all(torch.equal(plain[name].view(torch.uint8), head[name].view(torch.uint8)) for name in same)  # type: ignore[attr-defined]
    weight, scale = head["lm_head.weight"], head["lm_head.weight_scale"]
    assert isinstance(weight, torch.Tensor) and isinstance(scale, torch.Tensor)
    assert weight.dtype == torch.float8_e4m3fn and weight.shape == getattr(plain["lm_head.weight"], "shape", None)
    rebuilt = weight.float() * scale
    assert float((rebuilt - plain["lm_head.weight"].float()).std()) < 0.1 * random_weights.DEVIATION  # type: ignore[attr-defined]


def test_a_report_says_that_weights_are_random_or_dummies(made: Path) -> None:
    random = RunConfig(model=str(made / "bf16" / "model"))
    assert has_random_weights(random) and not is_reference(random) and not has_random_weights(RunConfig(model="demo"))
    (why,) = resolve(random, [], 0, random_weights=True).deviations
    assert str(why).startswith("random weights, N(0, 0.02)")
    (why,) = resolve(RunConfig(load_format="dummy"), [], 0).deviations
    assert tells(why, "dummy weights", "overstate")


@pytest.mark.engine
def test_random_weights_run_in_vllm(made: Path, tmp_path: Path) -> None:
    model = ("--model", str(made / "bf16" / "model"), "--dataset-path", str(made / "bf16" / "cnn_eval.json"))
    short = ("--total-sample-count", "16", "--max-new-tokens", "4", "--min-duration", "1", "--mode", "performance")
    done = run(tmp_path, *model, *short, "--offline-expected-qps", "2", "--engine-arg", "enforce_eager=true")
    assert done.code == 0, done.output
    assert any(why["name"] == "random weights" for why in done.summary["meta"]["deviations"])


def test_its_prompts_are_read_as_those_of_its_own_tokenizer(made: Path) -> None:
    folder = made / "bf16"
    config = RunConfig(
        model=str(folder / "model"), dataset_path=folder / "cnn_eval.json", mode="performance", total_sample_count=16
    )
    _, library = samples.read_samples(config)
    records = json.loads((folder / "cnn_eval.json").read_text())
    assert library.prompts == [record["tok_input"] for record in records]
    records[0]["input"] = "w1 w2 w3"
    other = made / "other.json"
    other.write_text(json.dumps(records))
    with pytest.raises(UsageError, match="record 0"):
        samples.read_samples(config.model_copy(update={"dataset_path": other}))
