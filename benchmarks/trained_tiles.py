"""Pieces of trained matrices, and the activations that go into them, for `benchmarks.weight_data`.

    python -m benchmarks.smollm2 MODEL
    python -m benchmarks.trained_tiles MODEL TILES.safetensors

MODEL is a checkpoint of Llama's architecture: SmolLM2-135M's weights, whose file holds them in 4 bits, or any other.
For each of the four products of a layer, the file holds rows of its matrices, from layers evenly apart, and the inputs
of such layers for the beginning of the demo's articles: side by side, up to the width of Llama-3.1-8B's product. 23 MB
in bf16.
"""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from harness.core.locations import ROOT

# The modules of a layer that are one product in vLLM. They have the same input.
MODULES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
WIDTHS = {"qkv": 4096, "o": 4096, "gate_up": 4096, "down": 14336}  # of Llama-3.1-8B's inputs
TOKENS = 128  # rows of the inputs
WEIGHTS = 2**21  # numbers of a product's weights in the file


def checkpoint_tiles(folder: Path, tokens: int = TOKENS, weights: int = WEIGHTS) -> dict[str, Any]:
    """Return the tiles of a checkpoint in bf16.

    PRODUCT.weights has one dimension, PRODUCT.inputs a row for each token.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    layers = model.model.layers
    inputs = recorded_inputs(model, article_tokens(folder, tokens))
    tiles = {}
    for product, modules in MODULES.items():
        matrices = []
        for layer in layers:
            matrices.append(torch.cat([layer.get_submodule(module).weight.data for module in modules]))
        flat_weights = torch.cat([matrix.flatten() for matrix in evenly_spaced(matrices, weights)])
        wide_inputs = torch.cat(evenly_spaced(inputs[product], WIDTHS[product] * tokens), dim=1)
        tiles[f"{product}.weights"] = flat_weights[:weights]
        tiles[f"{product}.inputs"] = wide_inputs[:, : WIDTHS[product]]
    return {name: tile.contiguous().to(torch.bfloat16) for name, tile in tiles.items()}


def article_tokens(folder: Path, tokens: int) -> Any:
    """Return the first tokens of the demo's articles by a checkpoint's tokenizer, as a batch of one row."""
    from transformers import AutoTokenizer

    articles = json.loads((ROOT / "demo" / "cnn_eval.json").read_text())
    text = "\n\n".join(article["input"] for article in articles)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer(text, return_tensors="pt", truncation=True, max_length=tokens).input_ids


def recorded_inputs(model: Any, token_ids: Any) -> dict[str, list[Any]]:
    """Run a model, and return the inputs of each product, a tensor for each layer, by the name of the product."""
    import torch

    inputs: dict[str, list[Any]] = {product: [] for product in MODULES}
    for layer in model.model.layers:
        for product, modules in MODULES.items():
            hook = partial(record_input, inputs[product])
            layer.get_submodule(modules[0]).register_forward_pre_hook(hook)
    with torch.no_grad():
        model(token_ids)
    return inputs


def record_input(recorded: list[Any], _module: Any, arguments: Any) -> None:
    """Record the input of the only sequence in the batch."""
    import torch

    batch = arguments[0]
    recorded.append(batch[0].to(torch.bfloat16))


def evenly_spaced(tensors: list[Any], elements: int) -> list[Any]:
    """Return tensors evenly apart from a list of equally large ones: as few as have so many elements together.

    If all have fewer elements together, all are returned.
    """
    needed = -(-elements // tensors[0].numel())
    count = min(len(tensors), needed)
    return [tensors[number * len(tensors) // count] for number in range(count)]


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("model", type=Path)
    flags.add_argument("tiles", type=Path)
    return flags


def main() -> None:
    arguments = parser().parse_args()
    from safetensors.torch import save_file

    save_file(checkpoint_tiles(arguments.model), arguments.tiles)
    arguments.tiles.chmod(0o644)


if __name__ == "__main__":
    main()
