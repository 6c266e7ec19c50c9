"""The storage of a checkpoint's weights: formats, bits and scales, from its config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from harness.config.engine import EngineConfig
from harness.config.pretrained import load_shape
from harness.core import files, schema
from harness.core.json_values import dict_or_empty

QUANT_CONFIG = "hf_quant_config.json"  # a file of ModelOpt's older exports


class QuantizationNote(schema.File):
    """quantize.json: what a quantized checkpoint says of its making, as docs/quantization.md has it."""

    model: str
    scheme: str
    data: str
    samples: int


def format_of(config: EngineConfig) -> str:
    """Return the number format of the weights in words.

    For example "bf16", "fp8 (made on loading), bf16", or "fp8 (static, compressed-tensors)" with what is done to
    activations and the method of quantization.
    """
    stored = stored_formats(config)
    is_quantized_checkpoint = bool(stored)
    if not is_quantized_checkpoint and config.quantization == "none":
        return config.precision
    if not is_quantized_checkpoint:  # The engine quantizes the weights when it loads them.
        return f"{config.quantization} (made on loading), {config.precision}"
    names = [stored_format.name for stored_format in stored]
    name = " and ".join(dict.fromkeys(names))
    details = [stored_format.activations for stored_format in stored]
    details.append(stored[0].method)  # All formats of a checkpoint have the same method.
    # An unknown detail is empty. A method with the name of the format, such as fp8, is not named a second time.
    words = [word for word in dict.fromkeys(details) if word not in ("", name)]
    if not words:
        return name
    return f"{name} ({', '.join(words)})"


class StoredFormat(NamedTuple):
    """The storage of a group of a checkpoint's layers: the numbers' name, such as fp8 or nf4, their bits (0 if
    unknown), what is done to activations, and the method's name.
    """

    name: str
    bits: float
    activations: str
    method: str


WEIGHTS_ALONE = "weights alone"
# The name and bits of a format, by a word for it that occurs in checkpoints' descriptions.
NUMBER_FORMATS = {"nvfp4": ("fp4", 4), "fp4": ("fp4", 4), "mxfp4": ("fp4", 4), "int4": ("int4", 4), "w4a": ("int4", 4)}
NUMBER_FORMATS |= {"float8": ("fp8", 8), "fp8": ("fp8", 8), "int8": ("int8", 8), "w8a8": ("int8", 8)}


def stored_formats(config: EngineConfig) -> tuple[StoredFormat, ...]:
    """Return the formats in which a checkpoint's weights are quantized, each once. Empty if they are not quantized.

    A method with groups of layers has a format for each group. Any other method has one format.
    """
    stored = quantization_config(config)
    if not stored:
        return ()
    method = str(stored.get("quant_method", "unknown method"))
    groups = dict_or_empty(stored, "config_groups")
    if not groups:
        return (method_format(stored, method),)
    formats = [group_format(dict_or_empty(groups, name), method) for name in groups]
    return tuple(dict.fromkeys(formats))


def group_format(group: Mapping[str, object], method: str) -> StoredFormat:
    """Return the format of a group of layers, as compressed-tensors and ModelOpt describe it, such as fp8."""
    weights = dict_or_empty(group, "weights")
    inputs = dict_or_empty(group, "input_activations")
    activations = WEIGHTS_ALONE
    if inputs:
        activations = scaling_of(inputs.get("dynamic", True))
    bits = number_or_zero(weights, "num_bits")
    name = method
    if bits:
        number_type = "fp" if weights.get("type", "float") == "float" else "int"
        name = f"{number_type}{bits}"
    return StoredFormat(name, bits, activations, method)


def scaling_of(is_dynamic: object) -> str:
    """Return how activations are scaled: anew while the model runs, or by scales stored in the checkpoint."""
    return "dynamic" if is_dynamic else "static"


def method_format(stored: Mapping[str, object], method: str) -> StoredFormat:
    """Return the format of a method that uses one format for all layers.

    `stored` is the checkpoint's description of its quantization, in which each method has fields of its own. If no
    field tells the format, it has the method's name.
    """
    bits = float(number_or_zero(stored, "bits") or number_or_zero(stored, "w_bit"))
    if method in ("awq", "gptq"):
        return StoredFormat(method, bits, WEIGHTS_ALONE, method)
    if method == "bitsandbytes" and stored.get("load_in_4bit"):
        return StoredFormat(str(stored.get("bnb_4bit_quant_type", "int4")), 4, WEIGHTS_ALONE, method)
    if method == "bitsandbytes":
        return StoredFormat("int8", 8, WEIGHTS_ALONE, method)
    modelopt, torchao = stored.get("quant_algo"), stored.get("quant_type")
    quark = dict_or_empty(stored, "global_quant_config").get("weight")
    # These are texts such as "FP8". Of any other method, such as fbgemm_fp8, the name may tell the format.
    description = str(modelopt or quark or torchao or method).lower()
    activations = activations_of(stored, method, description)
    for word, (name, width) in NUMBER_FORMATS.items():
        if word in description:
            return StoredFormat(name, width, activations, method)
    return StoredFormat(method, bits, activations, method)


def activations_of(stored: Mapping[str, object], method: str, format_text: str) -> str:
    """Return how a method scales activations: "dynamic", "static" or WEIGHTS_ALONE. Empty if unknown.

    `stored` is what the checkpoint's config.json says of its quantization, in a form that differs by tool.
    `format_text` is the name of the number format in it, in lower case.
    """
    quark_inputs = dict_or_empty(dict_or_empty(stored, "global_quant_config"), "input_tensors")
    if quark_inputs:
        return scaling_of(quark_inputs.get("is_dynamic", True))
    if "activation_scheme" in stored:  # fp8 of transformers
        return scaling_of(stored["activation_scheme"] != "static")
    is_torchao_dynamic = "dynamicactivation" in format_text
    is_modelopt_dynamic = "per_token" in format_text
    if method == "fbgemm_fp8" or is_torchao_dynamic or is_modelopt_dynamic:
        return "dynamic"
    if stored.get("quant_algo"):  # Any other format of ModelOpt has its scales in the checkpoint.
        return "static"
    is_torchao_weights_alone = "weightonly" in format_text
    return WEIGHTS_ALONE if is_torchao_weights_alone else ""


def number_or_zero(words: Mapping[str, object], key: str) -> int | float:
    """Return the value of `key` if it is a number; else 0, since a checkpoint's description may hold anything."""
    value = words.get(key)
    return value if isinstance(value, int | float) else 0


def quantization_config(config: EngineConfig) -> dict[str, object]:
    """Return a checkpoint's description of its quantization. Empty if the checkpoint is not quantized."""
    description = getattr(load_shape(config), "quantization_config", None)  # from config.json
    if description:
        return dict(description)
    from huggingface_hub import try_to_load_from_cache

    # ModelOpt's older exports describe the quantization in a file of its own, which vLLM reads, too.
    path = Path(config.model_path) / QUANT_CONFIG
    if not path.parent.is_dir():  # The model is one of the hub.
        cached = try_to_load_from_cache(config.model_path, QUANT_CONFIG)
        if isinstance(cached, str):
            path = Path(cached)
    if not path.is_file():
        return {}
    match files.read_json(path):
        case {"quantization": {"quant_algo": str()} as fields}:  # the form of ModelOpt
            return {"quant_method": "modelopt", **fields}
    return {}
