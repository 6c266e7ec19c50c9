"""A stand-in for Llama-3.1-8B where its weights cannot be had: its shape, random weights, prompts of real lengths.

    python -m benchmarks.random_llama FOLDER [--samples 13368] [--format FORMAT] [--shape small]

Leaves FOLDER/model and FOLDER/cnn_eval.json, random token ids in the MLCommons shape. Weights are drawn from N(0,
0.02), as before training; norms are ones. They take the arithmetic of trained ones; their energy beside trained ones is
not measured yet (`benchmarks.weight_data`). On an H200 at its power limit vLLM's dummy weights, nearly zeros, were a
sixth faster. The answers mean nothing. FORMAT is `bf16`, unless one of these is given. `fp8-static`: per-tensor scales
of weights and activations and fp8 KV scales, calibrated on a few of the prompts, in compressed-tensors' format.
`fp8-static-head`: the same weights, the head in fp8, too. `none`: no weights, for `--load-format dummy`.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from harness.config import models

VOCABULARY = models.SHAPE["vocab_size"]
DEVIATION = 0.02  # of the weights, as Llama's are initialized
CALIBRATION = 8  # prompts
ARTICLE_WORDS = 40  # of each article, which stand for all of it: as many as a run holds against its token ids
MARK = "random_weights"  # in config.json: reports say so
FP8_MOST = 448.0  # the largest number of float8_e4m3fn
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **models.SHAPE,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128009,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 32}
SMALL |= {"num_attention_heads": 8, "num_key_value_heads": 2}
SHAPES = {"llama3.1-8b": SHAPE, "small": SHAPE | SMALL}
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": FP8, "input_activations": FP8}},
    "ignore": ["lm_head"],
    "kv_cache_scheme": FP8,
}


HEAD = "lm_head"
QUANTIZATIONS = {  # vLLM takes the head, no `Linear` of its own, by its name
    "fp8-static": QUANTIZATION,
    "fp8-static-head": QUANTIZATION
    | {
        "config_groups": {"group_0": {"targets": ["Linear", HEAD], "weights": FP8, "input_activations": FP8}},
        "ignore": [],
    },
}


def lengths(count: int, rng: Random) -> list[int]:
    """Prompt lengths as CNN/DailyMail's: log-normal, mean about 766 tokens, from 80 to 2,540."""
    return [min(2540, max(80, round(rng.lognormvariate(6.551, 0.46)))) for _ in range(count)]


def make(folder: Path, count: int, weights: str = "none", shape: str = "llama3.1-8b") -> None:
    """Everything: config, tokenizer, prompts and, unless `none`, weights."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    config = SHAPES[shape] | ({MARK: True} if weights != "none" else {})
    config |= {"quantization_config": QUANTIZATIONS[weights]} if weights in QUANTIZATIONS else {}
    (model / "config.json").write_text(json.dumps(config, indent=2))
    for old in model.glob("model*.safetensors*"):
        old.unlink()
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w128000", eos_token="w128009").save_pretrained(model)
    rng = Random(0)
    records: list[dict[str, Any]] = []
    for size in lengths(count, rng):
        tokens = [rng.randrange(128000) for _ in range(size - 1)]
        beginning = " ".join(f"w{token}" for token in tokens[:ARTICLE_WORDS])
        records.append({"instruction": "", "input": beginning, "tok_input": [128000, *tokens], "output": "None."})
    (folder / "cnn_eval.json").write_text(json.dumps(records))
    if weights != "none":
        prompts = [record["tok_input"] for record in records[:CALIBRATION]]
        write(model, SHAPES[shape], prompts if weights in QUANTIZATIONS else [], weights == "fp8-static-head")


def write(folder: Path, shape: dict[str, Any], prompts: list[list[int]], head: bool) -> None:
    """The weights, a file a layer, drawn on the GPU where there is one; in fp8 where prompts calibrate them."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    index: dict[str, str] = {}
    size = 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for number, tensors in enumerate(parts(shape, prompts, device, head)):
        name = f"model-{number:05}.safetensors"
        save_file({key: tensor.contiguous().cpu() for key, tensor in tensors.items()}, folder / name)
        (folder / name).chmod(0o644)
        index |= dict.fromkeys(tensors, name)
        size += sum(tensor.nbytes for tensor in tensors.values())
    whole = {"metadata": {"total_size": size}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(whole, indent=1))


def parts(shape: dict[str, Any], prompts: list[list[int]], device: str, head: bool) -> Iterator[dict[str, Any]]:
    """The tensors of the embeddings, of each layer, and of the head, in fp8 if asked; the prompts go through, layer by
    layer.
    """
    import torch
    from torch import nn
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

    config = LlamaConfig(**shape, attn_implementation="sdpa")
    place = {"device": device, "dtype": torch.bfloat16}

    def drawn(rows: int, columns: int) -> Any:
        return torch.empty(rows, columns, **place).normal_(0.0, DEVIATION)

    with torch.no_grad():
        embeddings = drawn(config.vocab_size, config.hidden_size)
        yield {"model.embed_tokens.weight": embeddings}
        states = [embeddings[torch.tensor([prompt], device=device)] for prompt in prompts]
        rotary = LlamaRotaryEmbedding(config).to(device)
        for number in range(config.num_hidden_layers):
            layer = LlamaDecoderLayer(config, number).to(**place)
            for name, tensor in layer.named_parameters():
                tensor.fill_(1.0) if "norm" in name else tensor.normal_(0.0, DEVIATION)
            ranges = run(layer, rotary, states)
            yield {f"model.layers.{number}.{name}": tensor for name, tensor in stored(layer, ranges)}
        norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps).to(**place)
        last = nn.ModuleDict({HEAD: nn.Linear(config.hidden_size, config.vocab_size, bias=False, device="meta")})
        last[HEAD].weight = nn.Parameter(drawn(config.vocab_size, config.hidden_size))
        ranges = {HEAD: max(float(norm(state).abs().max()) for state in states)} if head else {}
        yield {"model.norm.weight": norm.weight.data, **dict(stored(last, ranges))}


def run(layer: Any, rotary: Any, states: list[Any]) -> dict[str, float]:
    """Puts the prompts' hidden states through a layer, in place; the largest input of each linear map, and the largest
    key and value that its cache may hold (a key may grow by the square root of two when it is rotated).
    """
    import torch
    from torch import nn

    most: dict[str, float] = {}

    def seen(key: str, tensor: Any, factor: float = 1.0) -> None:
        most[key] = max(most.get(key, 0.0), factor * float(tensor.abs().max()))

    hooks = []
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear):
            hooks.append(module.register_forward_hook(lambda _, given, out, name=name: seen(name, given[0])))
    for name, factor in (("k", 2**0.5), ("v", 1.0)):
        module = layer.get_submodule(f"self_attn.{name}_proj")
        hooks.append(
            module.register_forward_hook(
                lambda _, given, out, name=name, factor=factor: seen(f"self_attn.{name}_scale", out, factor)
            )
        )
    for n, state in enumerate(states):
        places = torch.arange(state.shape[1], device=state.device)[None]
        out = layer(state, position_embeddings=rotary(state, places), position_ids=places)
        states[n] = out[0] if isinstance(out, tuple) else out
    for hook in hooks:
        hook.remove()
    return most


def stored(layer: Any, most: dict[str, float]) -> Iterator[tuple[str, Any]]:
    """A module's tensors as a checkpoint holds them: as they are or, with the ranges of a calibration, in fp8."""
    import torch

    for name, tensor in layer.named_parameters():
        linear = name.removesuffix(".weight")
        if linear not in most:
            yield name, tensor.data
            continue
        scale = tensor.abs().max().float() / FP8_MOST
        yield name, (tensor.float() / scale).clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)
        yield f"{linear}.weight_scale", scale.reshape(1)
        yield f"{linear}.input_scale", torch.tensor([most[linear] / FP8_MOST])
    for name in ("self_attn.k_scale", "self_attn.v_scale"):
        if name in most:
            yield name, torch.tensor([most[name] / FP8_MOST])


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("folder", type=Path)
    flags.add_argument("--samples", type=int, default=13368)
    flags.add_argument("--format", choices=("bf16", *QUANTIZATIONS, "none"), default="bf16")
    flags.add_argument("--shape", choices=SHAPES, default="llama3.1-8b")
    return flags


def main() -> None:
    arguments = parser().parse_args()
    make(arguments.folder, arguments.samples, arguments.format, arguments.shape)


if __name__ == "__main__":
    main()
