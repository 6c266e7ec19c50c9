"""The checkpoint: its shape, how much memory its weights take, whether it is the reference model; its tokenizer."""

from collections.abc import Sequence
from pathlib import Path

from harness.config.engine import BYTES_PER_WEIGHT, EngineConfig
from harness.config.models import QUANTIZE_JSON, QUANTIZED, SHAPE
from harness.config.pretrained import ModelShape, load_shape
from harness.config.quantization import QuantizationNote, StoredFormat, stored_formats
from harness.config.weight_files import weight_files
from harness.core import files, vllm_source
from harness.core.errors import UsageError
from harness.core.formatting import plural

LARGEST_WEIGHTS_BYTES = 2**46  # 64 TiB
MOST_LAYERS = 10_000  # each layer is a module of its own, however few weights it has


def weight_bytes(config: EngineConfig) -> int:
    """Return roughly how many bytes of memory the model's weights take.

    Raises UsageError if the model cannot be loaded, if a file is missing, or if the number of layers or weights is
    absurd.
    """
    shape = load_shape(config)
    stored = stored_formats(config)
    files_on_disk = weight_files(Path(config.model_path), config.model, is_loaded=config.loads_weights)
    is_quantized_checkpoint = bool(stored)
    # Quantized weights take as much memory as their files.
    if is_quantized_checkpoint and files_on_disk:
        return sum(path.stat().st_size for path in files_on_disk)
    return computed_weight_bytes(config, shape, stored)


def computed_weight_bytes(config: EngineConfig, shape: ModelShape, stored: Sequence[StoredFormat]) -> int:
    """Return the bytes of a model's weights by the sizes in config.json, as if it were a decoder like Llama.

    `stored` are the quantized formats of the checkpoint, empty if it is not quantized. Raises UsageError for absurdly
    many layers or weights.
    """
    layers = shape.num_hidden_layers
    if not 0 < layers <= MOST_LAYERS:
        raise UsageError(
            f"{config.model}: config.json has {layers:,} layers, where 1 to {MOST_LAYERS:,} are taken.", flag="--model"
        )
    layer_bytes = layers * layer_weights(shape) * bytes_per_layer_weight(config, stored)
    embeddings = shape.vocab_size * shape.hidden_size
    if not shape.tie_word_embeddings:
        embeddings *= 2  # those of the input and those of the output
    embedding_bytes = embeddings * BYTES_PER_WEIGHT[config.precision]  # Embeddings are never quantized.
    size = int(layer_bytes + embedding_bytes)
    if size > LARGEST_WEIGHTS_BYTES:
        raise UsageError(
            f"{config.model}: config.json means {size / 2**40:,.0f} TiB of weights; at most "
            f"{LARGEST_WEIGHTS_BYTES / 2**40:,.0f} are taken.",
            flag="--model",
        )
    return size


def layer_weights(shape: ModelShape) -> int:
    """Return the number of weights in one layer of a decoder like Llama."""
    # Queries and outputs have a matrix for each attention head, keys and values one for each key-value head.
    matrices = 2 * (shape.num_attention_heads + shape.num_key_value_heads)
    attention = matrices * shape.hidden_size * head_width(shape)
    feed_forward = 3 * shape.hidden_size * shape.intermediate_size  # the gate, up and down projections
    return attention + feed_forward


def bytes_per_layer_weight(config: EngineConfig, stored: Sequence[StoredFormat]) -> float:
    """Return the bytes that one weight of a layer takes in memory.

    `stored` are the quantized formats of the checkpoint, of which the widest counts. They are empty if the checkpoint
    is not quantized.
    """
    if not stored and config.quantization == "none":  # Nothing is quantized.
        return BYTES_PER_WEIGHT[config.precision]
    if not stored:  # The engine quantizes the weights itself, to 8 bits.
        return 1.0
    widest_bits = max(stored_format.bits or 8 for stored_format in stored)  # 8 is assumed if the bits are not known.
    return min(widest_bits, 16) / 8  # A description that gives more than 16 bits is not believed.


def cache_bytes(config: EngineConfig, tokens: int) -> int:
    """Return the bytes that the attention cache of `tokens` tokens takes, for the whole model.

    Each layer holds a key and a value for each key-value head. Their numbers take one byte with --kv-cache-dtype fp8,
    else the width of --precision.
    """
    shape = load_shape(config)
    width = 1 if config.kv_cache_dtype == "fp8" else BYTES_PER_WEIGHT[config.precision]
    numbers_per_token = 2 * shape.num_hidden_layers * shape.num_key_value_heads * head_width(shape)
    return int(numbers_per_token * width * tokens)


def head_width(shape: ModelShape) -> int:
    """Return how many numbers the query, key or value of one attention head has.

    A model whose config does not say so divides its hidden size among the heads.
    """
    return int(getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads)


def title(config: EngineConfig) -> str:
    """Return what a report calls a quantized checkpoint.

    The original model is added for a published checkpoint, and for a folder with a quantize.json. That file also names
    the calibration. Raises UsageError if the file is damaged.
    """
    name = f"quantized checkpoint {config.model}"
    if config.model in QUANTIZED:
        return f"{name} (of Llama-3.1-8B-Instruct, published)"
    path = Path(config.model_path) / QUANTIZE_JSON
    if not path.is_file():
        return name
    quantized = files.read(path, QuantizationNote)
    calibration = f"calibrated on {plural(quantized.samples, 'sample')} of {quantized.data}"
    return f"{name} (of {quantized.model}: {quantized.scheme}; {calibration})"


def is_reference(config: EngineConfig) -> bool:
    """Return whether the model has Llama-3.1-8B's shape, so that its speed is that of the reference model."""
    shape = load_shape(config)
    return all(getattr(shape, key) == value for key, value in SHAPE.items())


def has_random_weights(config: EngineConfig) -> bool:
    """Return whether the checkpoint says that its weights were drawn at random (`benchmarks.random_llama`)."""
    return getattr(load_shape(config), "random_weights", False) is True


def check_architecture(config: EngineConfig) -> None:
    """Raise UsageError if vLLM is installed and supports no architecture that the model's config names."""
    supported = vllm_source.architectures()
    names = getattr(load_shape(config), "architectures", None) or ["none"]
    is_vllm_installed = bool(supported)
    if is_vllm_installed and supported.isdisjoint(names):
        raise UsageError(
            f"{config.model}: this vLLM has no model of its architecture, {', '.join(names)}.", flag="--model"
        )
