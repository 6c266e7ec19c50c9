"""The random weights of `benchmarks.random_llama`, in bf16 or with static fp8 scales."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

DEVIATION = 0.02  # of the weights, as Llama's are initialized
FP8_MOST = 448.0  # the largest number of float8_e4m3fn
HEAD = "lm_head"
KEY_GROWTH = 2**0.5  # the most by which a number of a key may grow when the key is rotated
Ranges = Mapping[str, float]  # the largest absolute values, by the names of linear maps and of the cache's scales


def write(folder: Path, shape: Mapping[str, Any], prompts: list[list[int]], has_fp8_head: bool) -> None:
    """Write the weights, a file for each layer. They are drawn on the GPU if there is one.

    With prompts, on which the scales are calibrated, the linear maps are in fp8.
    """
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    file_by_tensor: dict[str, str] = {}
    total_bytes = 0
    with torch.no_grad():
        for number, tensors in enumerate(checkpoint_parts(shape, prompts, device, has_fp8_head)):
            file_name = f"model-{number:05}.safetensors"
            save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, folder / file_name)
            (folder / file_name).chmod(0o644)
            file_by_tensor |= dict.fromkeys(tensors, file_name)
            total_bytes += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_bytes}, "weight_map": file_by_tensor}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def checkpoint_parts(
    shape: Mapping[str, Any], prompts: list[list[int]], device: str, has_fp8_head: bool
) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of the embeddings, of each layer, and of the head.

    The prompts go through layer by layer, so that one layer at a time is in memory.
    """
    config = LlamaConfig(**shape, attn_implementation="sdpa")
    placement = {"device": device, "dtype": torch.bfloat16}
    embeddings = torch.empty(config.vocab_size, config.hidden_size, **placement).normal_(0.0, DEVIATION)
    yield {"model.embed_tokens.weight": embeddings}
    states = [embeddings[torch.tensor([prompt], device=device)] for prompt in prompts]
    rotary = LlamaRotaryEmbedding(config).to(device)
    for number in range(config.num_hidden_layers):
        layer = LlamaDecoderLayer(config, number).to(**placement)
        draw_weights(layer)
        ranges = run_layer(layer, rotary, states)
        yield {f"model.layers.{number}.{name}": tensor for name, tensor in stored_tensors(layer, ranges)}
    norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps).to(**placement)
    head_weights = torch.empty(config.vocab_size, config.hidden_size, **placement).normal_(0.0, DEVIATION)
    head = nn.ModuleDict({HEAD: nn.Linear(config.hidden_size, config.vocab_size, bias=False, device="meta")})
    head[HEAD].weight = nn.Parameter(head_weights)
    head_ranges = {HEAD: max(largest_value(norm(state)) for state in states)} if has_fp8_head else {}
    yield {"model.norm.weight": norm.weight.data, **dict(stored_tensors(head, head_ranges))}


def draw_weights(layer: Any) -> None:
    """Draw the weights of a layer as before training. Norms are ones."""
    for name, tensor in layer.named_parameters():
        if "norm" in name:
            tensor.fill_(1.0)
        else:
            tensor.normal_(0.0, DEVIATION)


def largest_value(tensor: Tensor) -> float:
    return float(tensor.abs().max())


class RangeRecorder:
    """Records the largest absolute values of what linear maps take and give, while it watches them."""

    def __init__(self) -> None:
        self.ranges: dict[str, float] = {}
        self.hooks: list[Any] = []

    def watch_input(self, name: str, module: Any) -> None:
        def hook(_module: Any, inputs: Any, _output: Any) -> None:
            self.record(name, largest_value(inputs[0]))

        self.hooks.append(module.register_forward_hook(hook))

    def watch_output(self, name: str, module: Any, factor: float) -> None:
        """Record the outputs of a module under a name. `factor` is how much they may grow after it."""

        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            self.record(name, factor * largest_value(output))

        self.hooks.append(module.register_forward_hook(hook))

    def record(self, name: str, value: float) -> None:
        self.ranges[name] = max(self.ranges.get(name, 0.0), value)

    def stop(self) -> None:
        for hook in self.hooks:
            hook.remove()


def run_layer(layer: Any, rotary: Any, states: list[Tensor]) -> Ranges:
    """Put the prompts' hidden states through a layer, in place.

    Returns the largest input of each linear map, and the largest key and value that the cache may hold.
    """
    recorder = RangeRecorder()
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear):
            recorder.watch_input(name, module)
    recorder.watch_output("self_attn.k_scale", layer.self_attn.k_proj, KEY_GROWTH)
    recorder.watch_output("self_attn.v_scale", layer.self_attn.v_proj, 1.0)
    for index, state in enumerate(states):
        positions = torch.arange(state.shape[1], device=state.device)[None]
        output = layer(state, position_embeddings=rotary(state, positions), position_ids=positions)
        # Some versions of transformers return a tuple.
        states[index] = output[0] if isinstance(output, tuple) else output
    recorder.stop()
    return recorder.ranges


def stored_tensors(module: Any, ranges: Ranges) -> Iterator[tuple[str, Tensor]]:
    """Yield a module's tensors as a checkpoint holds them, with their names.

    Linear maps with a range are in fp8, with the scales of their weights and inputs. The scales of the cache follow, if
    its ranges are known.
    """
    for name, tensor in module.named_parameters():
        linear = name.removesuffix(".weight")
        if linear not in ranges:
            yield name, tensor.data
            continue
        scale = tensor.abs().max().float() / FP8_MOST  # a tensor on the weights' device
        scaled_weights = (tensor.float() / scale).clamp(-FP8_MOST, FP8_MOST)
        yield name, scaled_weights.to(torch.float8_e4m3fn)
        yield f"{linear}.weight_scale", scale.reshape(1)
        yield f"{linear}.input_scale", torch.tensor([ranges[linear] / FP8_MOST])
    for name in ("self_attn.k_scale", "self_attn.v_scale"):
        if name in ranges:
            yield name, torch.tensor([ranges[name] / FP8_MOST])
