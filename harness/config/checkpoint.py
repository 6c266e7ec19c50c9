"""The checkpoint: its shape, how much memory its weights take, whether it is the reference model; its tokenizer."""

import functools
import socket
from os import environ
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from harness.config.engine import BYTES_PER_WEIGHT, EngineConfig
from harness.config.models import QUANTIZE_JSON, QUANTIZED, SHAPE
from harness.core import files, schema, secrets
from harness.core.errors import UsageError

HUB_TIMEOUT_S = 5.0
QUANT_CONFIG = "hf_quant_config.json"
POINTER = "is a Git LFS pointer, not the file: run `git lfs pull` in the folder"
LARGEST_POINTER, LARGEST_CONFIG = 1024, 2**22  # bytes
MOST_BYTES = 2**46  # of weights: 64 TiB
MOST_LAYERS = 10_000  # each is a separate module, however few weights it has


class Quantized(schema.File):
    """quantize.json: what a quantized checkpoint says of its making, as docs/quantization.md has it."""

    model: str
    scheme: str
    data: str
    samples: int


def weight_bytes(config: EngineConfig) -> int:
    """About how much memory the model's weights take: of quantized ones in a local folder what their files do, else by
    the shape that the config gives (a Llama-like decoder).

    Quantized weights take a byte where nothing says how many bits they have, embeddings what they took. Raises
    UsageError when the model cannot be found, or its files are Git LFS pointers.
    """
    shape = load_shape(config)
    width = BYTES_PER_WEIGHT[config.precision]
    stored = stored_formats(config)
    folder = Path(config.model_path)  # safetensors, else PyTorch's
    files_on_disk = next((found for end in ("safetensors", "bin", "pt") if (found := [*folder.glob(f"*.{end}")])), [])
    if pointer := next(filter(is_pointer, files_on_disk), None):
        raise UsageError(f"--model {config.model}: {pointer.name} {POINTER}.")
    if stored and files_on_disk:
        return sum(path.stat().st_size for path in files_on_disk)
    bits = max((each.bits or 8 for each in stored), default=8)
    inner = min(bits, 16) / 8 if stored or config.quantization != "none" else width
    hidden, layers = shape.hidden_size, shape.num_hidden_layers
    if not 0 < layers <= MOST_LAYERS:
        raise UsageError(f"--model {config.model}: config.json has {layers:,} layers: it may be damaged.")
    attention = hidden * head_width(shape) * 2 * (shape.num_attention_heads + shape.num_key_value_heads)
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
    width = 1 if config.kv_cache_dtype == "fp8" else BYTES_PER_WEIGHT[config.precision]
    return int(2 * shape.num_hidden_layers * shape.num_key_value_heads * head_width(shape) * width * tokens)


def head_width(shape: Any) -> int:
    return int(getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads)


def format_of(config: EngineConfig) -> str:
    """The number format of the weights in words, as in bf16 and fp8 (static, compressed-tensors)."""
    stored = stored_formats(config)
    if not stored:
        loading = "" if config.quantization == "none" else f"{config.quantization} (made on loading), "
        return f"{loading}{config.precision}"
    about = dict.fromkeys(filter(None, (*(each.activations for each in stored), stored[0].method)))
    name = " and ".join(dict.fromkeys(each.name for each in stored))
    return f"{name} ({', '.join(word for word in about if word != name)})".replace(" ()", "")


class StoredFormat(NamedTuple):
    """How a group of a checkpoint's layers is stored: the numbers' name, such as fp8 or nf4, their bits, 0 where nobody
    says, what is done to activations, and the method's name."""

    name: str
    bits: float
    activations: str
    method: str


WEIGHTS_ALONE = "weights alone"
# By what stands in their makers' own words for a format: its name and bits.
NUMBERS = {"nvfp4": ("fp4", 4), "fp4": ("fp4", 4), "mxfp4": ("fp4", 4), "int4": ("int4", 4), "w4a": ("int4", 4)}
NUMBERS |= {"float8": ("fp8", 8), "fp8": ("fp8", 8), "int8": ("int8", 8), "w8a8": ("int8", 8)}


def stored_formats(config: EngineConfig) -> tuple[StoredFormat, ...]:
    """How a checkpoint is quantized, by the words of its method: of each kind of layers that it has groups for."""
    stored = stored_words(config)
    method = str(stored.get("quant_method", "unknown method"))
    if groups := stored.get("config_groups"):
        return tuple(dict.fromkeys(group_format(group, method) for group in groups.values()))
    return (method_format(stored, method),) if stored else ()


def group_format(group: dict[str, Any], method: str) -> StoredFormat:
    """compressed-tensors and ModelOpt."""
    weights, inputs = group.get("weights") or {}, group.get("input_activations") or {}
    bits = weights.get("num_bits") or 0
    kind = "fp" if weights.get("type", "float") == "float" else "int"
    scales = ("dynamic" if inputs.get("dynamic", True) else "static") if inputs else WEIGHTS_ALONE
    return StoredFormat(f"{kind}{bits}" if bits else method, bits, scales, method)


def method_format(stored: dict[str, Any], method: str) -> StoredFormat:
    """Those whose words are of one format: fp8 of transformers, FBGEMM, ModelOpt, Quark, torchao, bitsandbytes, AWQ,
    GPTQ; any other is called by its name alone."""
    bits = float(stored.get("bits") or stored.get("w_bit") or 0)
    if method in ("awq", "gptq"):
        return StoredFormat(method, bits, WEIGHTS_ALONE, method)
    if method == "bitsandbytes":
        four = stored.get("load_in_4bit")
        name = str(stored.get("bnb_4bit_quant_type", "int4")) if four else "int8"
        return StoredFormat(name, 4 if four else 8, WEIGHTS_ALONE, method)
    shared = stored.get("global_quant_config") or {}  # Quark's
    said = (stored.get("quant_algo"), shared.get("weight"), stored.get("quant_type"), method)
    words = next(text for text in (str(each).lower() for each in said if each))
    name, width = next((NUMBERS[key] for key in NUMBERS if key in words), (method, bits))
    if inputs := shared.get("input_tensors"):
        scales = "dynamic" if inputs.get("is_dynamic", True) else "static"
    elif "activation_scheme" in stored:
        scales = "static" if stored["activation_scheme"] == "static" else "dynamic"
    elif method == "fbgemm_fp8" or "dynamicactivation" in words or "per_token" in words:
        scales = "dynamic"
    else:
        scales = "static" if stored.get("quant_algo") else WEIGHTS_ALONE if "weightonly" in words else ""
    return StoredFormat(name, width, scales, method)


def stored_words(config: EngineConfig) -> dict[str, Any]:
    """What a checkpoint says of its quantization where vLLM reads it: in config.json, or in hf_quant_config.json
    (ModelOpt's older exports); empty of one that is not quantized."""
    if found := getattr(load_shape(config), "quantization_config", None):
        return dict(found)
    from huggingface_hub import try_to_load_from_cache

    path = Path(config.model_path) / QUANT_CONFIG
    if not path.parent.is_dir():
        cached = try_to_load_from_cache(config.model_path, QUANT_CONFIG)
        path = Path(cached) if isinstance(cached, str) else path
    if not path.is_file():
        return {}
    match files.read_json(path):
        case {"quantization": {"quant_algo": str()} as words}:
            return {"quant_method": "modelopt", **words}
    return {}


def is_pointer(path: Path) -> bool:
    """Whether a file is what Git LFS leaves where it did not run."""
    return path.stat().st_size < LARGEST_POINTER and path.read_bytes().startswith(b"version https://git-lfs")


def title(config: EngineConfig) -> str:
    """What a report calls a model whose engine says that it came quantized.

    Raises UsageError for a damaged quantize.json.
    """
    name = f"quantized checkpoint {config.model}"
    if config.model in QUANTIZED:
        return f"{name} (of Llama-3.1-8B-Instruct, published)"
    if (path := Path(config.model_path) / QUANTIZE_JSON).is_file():
        made = files.read(path, Quantized)
        return f"{name} (of {made.model}: {made.scheme}; calibrated on {made.samples:,} samples of {made.data})"
    return name


def is_reference(config: EngineConfig) -> bool:
    """Whether the model has Llama-3.1-8B's shape."""
    shape = load_shape(config)
    return all(getattr(shape, key) == value for key, value in SHAPE.items())


def has_random_weights(config: EngineConfig) -> bool:
    """Whether the checkpoint says of itself that its weights were drawn at random (`benchmarks.random_llama`)."""
    return getattr(load_shape(config), "random_weights", False) is True


@functools.cache
def load_shape(config: EngineConfig) -> Any:
    """The model's config. Raises UsageError where it cannot be had, or is not of a Llama-like decoder."""
    from transformers import AutoConfig

    file = Path(config.model_path) / "config.json"
    if file.is_file() and file.stat().st_size > LARGEST_CONFIG:
        raise UsageError(f"--model {config.model}: config.json has {file.stat().st_size:,} bytes: it may be damaged.")
    shape = loaded(AutoConfig, config)
    if missing := [key for key in SHAPE if not hasattr(shape, key)]:
        raise UsageError(f"--model {config.model}: not a Llama-like model: its config has no {missing[0]}.")
    for key in ("max_position_embeddings", "hidden_size", "num_attention_heads", "vocab_size"):
        if not (type(value := getattr(shape, key, 1)) is int and value > 0):
            raise UsageError(f"--model {config.model}: config.json has {key} {value!r:.40}: it may be damaged.")
    return shape


def check_architecture(config: EngineConfig) -> None:
    """Raises UsageError for a model that the installed vLLM has no class for."""
    classes, names = secrets.architectures(), getattr(load_shape(config), "architectures", None) or ["none"]
    if classes and not classes & set(names):
        raise UsageError(f"--model {config.model}: this vLLM has no model of its architecture, {', '.join(names)}.")


def loaded(kind: Any, config: EngineConfig) -> Any:
    """What one of the library's loaders makes of the model. Without a way to the hub it looks in its cache on this
    machine alone, where it would try for a minute. Raises UsageError with the way out."""
    place = Path(config.model_path)
    if place.exists() and not place.is_dir():
        raise UsageError(f"--model {config.model_path}: not a folder; a model is a folder or a name of the hub.")
    is_alone = not place.is_dir() and not is_hub_reachable()
    try:
        return kind.from_pretrained(
            config.model_path, trust_remote_code=config.trust_remote_code, local_files_only=is_alone
        )
    except Exception as error:
        raise UsageError(why_not_loaded(config, error)) from None


@functools.cache
def is_hub_reachable() -> bool:
    """Whether the Hugging Face hub, or its mirror in HF_ENDPOINT, takes connections; through a proxy it may."""
    if {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"} & set(environ):
        return True
    parts = urlsplit(environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        socket.create_connection((parts.hostname or "", parts.port or 443), HUB_TIMEOUT_S).close()
    except (OSError, ValueError):  # also for a port that is no number
        return False
    return True


def load_tokenizer(config: EngineConfig) -> Any:
    """The model's tokenizer. Raises UsageError."""
    from transformers import AutoTokenizer

    return loaded(AutoTokenizer, config)


def why_not_loaded(config: EngineConfig, error: Exception) -> str:
    """One line for a model that cannot be loaded: no such folder, no access, or no network."""
    text = str(error)
    if Path(config.model_path).is_dir():
        return f"--model {config.model_path}: {why_unusable(Path(config.model_path), text)}."
    if "gated" in text or "401" in text or "403" in text:
        from huggingface_hub import get_token

        asked = f"accept its licence on huggingface.co/{config.model_path}"
        if not get_token():
            return f"{config.model_path} is gated: {asked}, then set HF_TOKEN."
        if "403" in text or "authorized list" in text:
            return f"{config.model_path} is gated, and the account of HF_TOKEN has no access: {asked}, and wait for it."
        return f"{config.model_path}: the hub refuses HF_TOKEN: make a new one on huggingface.co/settings/tokens."
    return (
        f"cannot load {config.model_path}: no such local folder, and the Hugging Face hub did not give it"
        ": check the network, HF_TOKEN and the spelling of the name. --model demo needs neither network nor token."
    )


def why_unusable(folder: Path, text: str) -> str:
    """What keeps a folder from being a model, by what is in it, else in a library's words."""
    if pointer := next((path for path in sorted(folder.iterdir()) if path.is_file() and is_pointer(path)), None):
        return f"{pointer.name} {POINTER}"
    if (folder / "adapter_config.json").exists():
        return "a LoRA adapter, not a model: merge it into its base model, and name that folder"
    if any(folder.glob("*.gguf")):
        return "GGUF weights, which this program does not load: name a folder with config.json and safetensors"
    if (folder / "snapshots").is_dir():
        return "a cache folder of the hub: name the model, or the folder below snapshots/"
    if not (folder / "config.json").exists():
        return "no config.json in it"
    return f"no usable tokenizer or config in it: {text.splitlines()[0][:200].rstrip(' .:')}"
