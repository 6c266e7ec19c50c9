"""The storage of a checkpoint's weights: formats, bits and scales, from its config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from harness.config.engine import EngineConfig
from harness.config.pretrained import load_shape
from harness.core import files, schema
from harness.core.json_values import dict_or_empty

QUANT_CONFIG = "hf_quant_config.json"


class Quantized(schema.File):
    """quantize.json: what a quantized checkpoint says of its making, as docs/quantization.md has it."""

    model: str
    scheme: str
    data: str
    samples: int


def format_of(config: EngineConfig) -> str:
    """Return the number format of the weights in words, such as "bf16" or "fp8 (static, compressed-tensors)"."""
    stored = stored_formats(config)
    if not stored:
        loading = "" if config.quantization == "none" else f"{config.quantization} (made on loading), "
        return f"{loading}{config.precision}"
    about = dict.fromkeys(filter(None, (*(stored_format.activations for stored_format in stored), stored[0].method)))
    name = " and ".join(dict.fromkeys(stored_format.name for stored_format in stored))
    return f"{name} ({', '.join(word for word in about if word != name)})".replace(" ()", "")


class StoredFormat(NamedTuple):
    """The storage of a group of a checkpoint's layers: the numbers' name, such as fp8 or nf4, their bits, 0 where
    nobody says, what is done to activations, and the method's name.
    """

    name: str
    bits: float
    activations: str
    method: str


WEIGHTS_ALONE = "weights alone"
# Formats by their makers' own words: name and bits.
NUMBERS = {"nvfp4": ("fp4", 4), "fp4": ("fp4", 4), "mxfp4": ("fp4", 4), "int4": ("int4", 4), "w4a": ("int4", 4)}
NUMBERS |= {"float8": ("fp8", 8), "fp8": ("fp8", 8), "int8": ("int8", 8), "w8a8": ("int8", 8)}


def stored_formats(config: EngineConfig) -> tuple[StoredFormat, ...]:
    """Return the formats in which a checkpoint's weights are quantized.

    Empty if they are not quantized. A method with groups of layers has a format for each kind of group.
    """
    stored = stored_words(config)
    method = str(stored.get("quant_method", "unknown method"))
    groups = dict_or_empty(stored, "config_groups")
    if groups:
        return tuple(dict.fromkeys(group_format(dict_or_empty(groups, name), method) for name in groups))
    return (method_format(stored, method),) if stored else ()


def group_format(group: Mapping[str, object], method: str) -> StoredFormat:
    """Return the format of a group of layers, as compressed-tensors and ModelOpt describe it."""
    weights, inputs = dict_or_empty(group, "weights"), dict_or_empty(group, "input_activations")
    bits = number_in(weights, "num_bits")
    kind = "fp" if weights.get("type", "float") == "float" else "int"
    activations = WEIGHTS_ALONE
    if inputs:
        activations = "dynamic" if inputs.get("dynamic", True) else "static"
    return StoredFormat(f"{kind}{bits}" if bits else method, bits, activations, method)


def method_format(stored: Mapping[str, object], method: str) -> StoredFormat:
    """Return the format of a method that uses one format for all layers.

    Known are fp8 of transformers, FBGEMM, ModelOpt, Quark, torchao, bitsandbytes, AWQ and GPTQ. The format of any other
    method has the method's name.
    """
    bits = float(number_in(stored, "bits") or number_in(stored, "w_bit"))
    if method in ("awq", "gptq"):
        return StoredFormat(method, bits, WEIGHTS_ALONE, method)
    if method == "bitsandbytes":
        four = stored.get("load_in_4bit")
        name = str(stored.get("bnb_4bit_quant_type", "int4")) if four else "int8"
        return StoredFormat(name, 4 if four else 8, WEIGHTS_ALONE, method)
    shared = dict_or_empty(stored, "global_quant_config")  # Quark's
    candidates = (stored.get("quant_algo"), shared.get("weight"), stored.get("quant_type"), method)
    words = str(next(filter(None, candidates))).lower()
    name, width = next((NUMBERS[key] for key in NUMBERS if key in words), (method, bits))
    if inputs := dict_or_empty(shared, "input_tensors"):
        activations = "dynamic" if inputs.get("is_dynamic", True) else "static"
    elif "activation_scheme" in stored:
        activations = "static" if stored["activation_scheme"] == "static" else "dynamic"
    elif method == "fbgemm_fp8" or "dynamicactivation" in words or "per_token" in words:
        activations = "dynamic"
    elif stored.get("quant_algo"):
        activations = "static"
    else:
        activations = WEIGHTS_ALONE if "weightonly" in words else ""
    return StoredFormat(name, width, activations, method)


def number_in(words: Mapping[str, object], key: str) -> int | float:
    """Return a number from a checkpoint's description of itself. 0 if there is none."""
    value = words.get(key)
    return value if isinstance(value, int | float) else 0


def stored_words(config: EngineConfig) -> dict[str, object]:
    """Return a checkpoint's description of its quantization.

    Empty if the checkpoint is not quantized. As in vLLM, the description is in config.json, or in hf_quant_config.json
    for ModelOpt's older exports.
    """
    if configured := getattr(load_shape(config), "quantization_config", None):
        return dict(configured)
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
