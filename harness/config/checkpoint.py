"""The checkpoint: its shape, how much memory its weights take, whether it is the reference model; its tokenizer."""

import functools
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harness.config import models
from harness.config.engine import BYTES_PER_WEIGHT, EngineConfig
from harness.core import files, secrets
from harness.core.errors import UsageError
from harness.core.schema import File

HUB_TIMEOUT_S = 5.0
MOST_BYTES = 2**46  # of weights: 64 TiB
MOST_LAYERS = 10_000  # each is a separate module, however few weights it has


class Quantized(File):
    """quantize.json: what a quantized checkpoint says of its making, as docs/quantization.md has it."""

    model: str
    scheme: str
    data: str
    samples: int


def weight_bytes(config: EngineConfig) -> int:
    """About how much memory the model's weights take, from the shape its config gives (a Llama-like decoder).

    Quantized weights take a byte where their config does not have the bits, embeddings what they took. Raises
    UsageError when the model cannot be found.
    """
    shape = load_shape(config)
    width = BYTES_PER_WEIGHT[config.precision]
    stored, group = stored_format(shape)
    bits = stored.get("bits") or (group.get("weights") or {}).get("num_bits") or 8  # by its makers' names for them
    inner = min(float(bits), 16.0) / 8 if stored or config.quantization != "none" else width
    hidden, layers = shape.hidden_size, shape.num_hidden_layers
    if not 0 < layers <= MOST_LAYERS:
        raise UsageError(f"--model {config.model}: config.json has {layers:,} layers: it may be damaged.")
    head = getattr(shape, "head_dim", None) or hidden // shape.num_attention_heads
    attention = hidden * head * 2 * (shape.num_attention_heads + shape.num_key_value_heads)
    feed_forward = 3 * hidden * shape.intermediate_size
    embeddings = shape.vocab_size * hidden * (1 if shape.tie_word_embeddings else 2)
    size = int(layers * (attention + feed_forward) * inner + embeddings * width)
    if size > MOST_BYTES:
        raise UsageError(
            f"--model {config.model}: config.json means {size / 2**40:,.0f} TiB of weights: it may be damaged."
        )
    return size


def cache_bytes(config: EngineConfig, tokens: int) -> int:
    """Memory of the attention cache of so many tokens: a key and a value of each key-value head in each layer."""
    shape = load_shape(config)
    head = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    width = 1 if config.kv_cache_dtype == "fp8" else BYTES_PER_WEIGHT[config.precision]
    return int(2 * shape.num_hidden_layers * shape.num_key_value_heads * head * width * tokens)


def format_of(config: EngineConfig) -> str:
    """The number format of the weights in words, as in bf16 and fp8 (static, compressed-tensors)."""
    stored, group = stored_format(load_shape(config))
    if not stored:
        loading = "" if config.quantization == "none" else f"{config.quantization} (made on loading), "
        return f"{loading}{config.precision}"
    method = str(stored.get("quant_method", "unknown method"))
    inputs, weights = group.get("input_activations") or {}, group.get("weights") or {}
    is_dynamic = inputs["dynamic"] if "dynamic" in inputs else stored.get("activation_scheme") != "static"
    kind = "fp" if weights.get("type", "float") == "float" else "int"
    bits = f"{kind}{weights['num_bits']}" if "num_bits" in weights else method
    scales = ["dynamic" if is_dynamic else "static"] if inputs or "activation_scheme" in stored else ["weights alone"]
    return f"{bits} ({', '.join(scales + [method] * (method != bits))})"


def stored_format(shape: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A checkpoint's quantization, and that of its first group of layers."""
    stored: dict[str, Any] = getattr(shape, "quantization_config", None) or {}
    return stored, next(iter((stored.get("config_groups") or {}).values()), {})


def title(config: EngineConfig) -> str:
    """What a report calls a model whose engine says that it came quantized.

    Raises UsageError for a damaged quantize.json.
    """
    name = f"quantized checkpoint {config.model}"
    if config.model in models.QUANTIZED:
        return f"{name} (of Llama-3.1-8B-Instruct, published)"
    if (path := Path(config.model_path) / models.QUANTIZE_JSON).is_file():
        made = files.read(path, Quantized)
        return f"{name} (of {made.model}: {made.scheme}; calibrated on {made.samples:,} samples of {made.data})"
    return name


def is_reference(config: EngineConfig) -> bool:
    """Whether the model has Llama-3.1-8B's shape."""
    shape = load_shape(config)
    return all(getattr(shape, key) == value for key, value in models.SHAPE.items())


def has_random_weights(config: EngineConfig) -> bool:
    """Whether the checkpoint says of itself that its weights were drawn at random (`benchmarks.random_llama`)."""
    return getattr(load_shape(config), "random_weights", False) is True


@functools.cache
def load_shape(config: EngineConfig) -> Any:
    """The model's config. Raises UsageError where it cannot be had, or is not of a Llama-like decoder."""
    from transformers import AutoConfig

    place = source(config)
    try:
        shape = AutoConfig.from_pretrained(config.model_path, **place)
    except Exception as error:
        raise UsageError(why_not_loaded(config, error)) from None
    if missing := [key for key in models.SHAPE if not hasattr(shape, key)]:
        raise UsageError(f"--model {config.model}: not a Llama-like model: its config has no {missing[0]}.")
    return shape


def check_architecture(config: EngineConfig) -> None:
    """Raises UsageError for a model that the installed vLLM has no class for."""
    classes, names = secrets.architectures(), getattr(load_shape(config), "architectures", None) or ["none"]
    if classes and not classes & set(names):
        raise UsageError(f"--model {config.model}: this vLLM has no model of its architecture, {', '.join(names)}.")


def source(config: EngineConfig) -> dict[str, bool]:
    """Where the loaders look: without a way to the hub, in its cache on this machine alone, where they would try for a
    minute."""
    local = Path(config.model_path).is_dir()
    if not local and Path(config.model_path).exists():
        raise UsageError(f"--model {config.model_path}: not a folder; a model is a folder or a name of the hub.")
    return {"trust_remote_code": config.trust_remote_code, "local_files_only": not local and not is_hub_reachable()}


@functools.cache
def is_hub_reachable() -> bool:
    """Whether the Hugging Face hub, or its mirror in HF_ENDPOINT, takes connections; through a proxy it may."""
    if {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"} & set(os.environ):
        return True
    parts = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        socket.create_connection((parts.hostname or "", parts.port or 443), HUB_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def load_tokenizer(config: EngineConfig) -> Any:
    """The model's tokenizer. Raises UsageError with the way out when it cannot be had."""
    from transformers import AutoTokenizer

    place = source(config)
    try:
        return AutoTokenizer.from_pretrained(config.model_path, **place)
    except Exception as error:
        raise UsageError(why_not_loaded(config, error)) from None


def why_not_loaded(config: EngineConfig, error: Exception) -> str:
    """One line for a model that cannot be loaded: no such folder, no access, or no network."""
    text = str(error)
    if Path(config.model_path).is_dir():
        return f"--model {config.model_path}: no usable tokenizer or config in it: {text.splitlines()[0][:200]}"
    if "gated" in text or "401" in text or "403" in text:
        return f"{config.model_path} is gated: accept its licence on huggingface.co, then set HF_TOKEN."
    return (
        f"cannot load {config.model_path}: no such local folder, and the Hugging Face hub did not give it"
        ": check the network, HF_TOKEN and the spelling of the name. --model demo needs neither network nor token."
    )
