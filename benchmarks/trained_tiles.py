"""Pieces of trained matrices, and the activations that go into them, for `benchmarks.weight_data`.

    python -m benchmarks.smollm2 MODEL
    python -m benchmarks.trained_tiles MODEL TILES.safetensors

MODEL is a checkpoint of Llama's architecture: SmolLM2-135M's weights, whose file holds them in 4 bits, or any other.
For each of the four products of a layer the file holds rows of its matrices, from layers evenly apart, and what these
layers' products were given for the beginning of the demo's articles: layers side by side, up to the width of
Llama-3.1-8B's product. 23 MB in bf16.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from harness.core.locations import ROOT

PARTS = {  # of a layer's modules, by product; those of one product have the same input
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
WIDTHS = {"qkv": 4096, "o": 4096, "gate_up": 4096, "down": 14336}  # of Llama-3.1-8B's inputs
TOKENS = 128
WEIGHTS = 2**21  # of a product


def record(folder: Path, tokens: int = TOKENS, weights: int = WEIGHTS) -> dict[str, Any]:
    """The tensors of a checkpoint's tiles: `PRODUCT.weights`, one dimension, and `PRODUCT.inputs`, a row a token."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    articles = json.loads((ROOT / "demo" / "cnn_eval.json").read_text())
    text = "\n\n".join(article["input"] for article in articles)
    ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=tokens).input_ids
    layers = model.model.layers
    inputs: dict[str, list[Any]] = {product: [] for product in PARTS}

    def keep(product: str) -> Any:
        return lambda module, given: inputs[product].append(given[0][0].to(torch.bfloat16))

    for layer in layers:
        for product, names in PARTS.items():
            layer.get_submodule(names[0]).register_forward_pre_hook(keep(product))
    with torch.no_grad():
        model(ids)
    tiles = {}
    for product, names in PARTS.items():
        matrices = [torch.cat([layer.get_submodule(name).weight.data for name in names]) for layer in layers]
        tiles[f"{product}.weights"] = torch.cat([matrix.flatten() for matrix in evenly(matrices, weights)])[:weights]
        rows = torch.cat(evenly(inputs[product], WIDTHS[product] * tokens), dim=1)
        tiles[f"{product}.inputs"] = rows[:, : WIDTHS[product]]
    return {name: tensor.contiguous().to(torch.bfloat16) for name, tensor in tiles.items()}


def evenly(tensors: list[Any], elements: int) -> list[Any]:
    """As few of these equally large tensors as have so many elements together, evenly apart; all if they have fewer."""
    count = min(len(tensors), -(-elements // tensors[0].numel()))
    return [tensors[number * len(tensors) // count] for number in range(count)]


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("model", type=Path)
    flags.add_argument("tiles", type=Path)
    return flags


def main() -> None:
    arguments = parser().parse_args()
    from safetensors.torch import save_file

    save_file(record(arguments.model), arguments.tiles)
    arguments.tiles.chmod(0o644)


if __name__ == "__main__":
    main()
