"""A model's config and tokenizer, from a folder or the hub, and why they cannot be loaded."""

import functools
from pathlib import Path
from typing import Protocol, TypeVar

from harness.config.engine import EngineConfig, ServerFlags
from harness.config.hub_environment import is_hub_reachable
from harness.config.hub_refusals import hub_refusal
from harness.config.models import SHAPE
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_MODEL_JSON, LARGEST_SETTINGS, size_text
from harness.core.message_text import system_reason
from harness.core.reading import check_regular
from harness.core.stored_text import LFS_POINTER, data_files, is_lfs_pointer
from harness.core.tokenizer import Tokenizer

DEMO_HINT = "--model demo needs neither network nor token"
# Only the tokenizer of a served model is loaded here, to count the tokens of prompts and answers.
TOKENIZER_HINT = "--model takes the served model's folder, or its name on the Hugging Face Hub, for its tokenizer"
Loaded_co = TypeVar("Loaded_co", covariant=True)


class ModelShape(Protocol):
    """The shape of a Llama-like decoder, as transformers reads it from config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool


class Loader(Protocol[Loaded_co]):
    """A class of transformers that loads something of a model."""

    def from_pretrained(self, name: str, /, *, trust_remote_code: bool, local_files_only: bool) -> Loaded_co: ...


@functools.cache
def load_shape(config: EngineConfig) -> ModelShape:
    """Return the model's shape, from its config.json.

    Raises UsageError if the file cannot be loaded, is too large, or lacks a field of a Llama-like decoder, or if a size
    in it is no positive whole number.
    """
    from transformers import AutoConfig

    file = Path(config.model_path) / "config.json"
    if file.is_file() and file.stat().st_size > LARGEST_SETTINGS:
        raise UsageError(f"{config.model}: config.json is larger than {size_text(LARGEST_SETTINGS)}.", flag="--model")
    loader: Loader[ModelShape] = AutoConfig
    shape = load_with(loader, config)
    for key in SHAPE:
        if not hasattr(shape, key):
            raise UsageError(f"{config.model}: not a Llama-like model: its config has no {key}.", flag="--model")
    for key in ("max_position_embeddings", "hidden_size", "num_attention_heads", "vocab_size"):
        value = getattr(shape, key)
        if type(value) is not int or value <= 0:
            raise UsageError(
                f"{config.model}: config.json has {key} {value!r:.40}: a whole number above 0 is wanted.",
                flag="--model",
            )
    return shape


def load_with(loader: Loader[Loaded_co], config: EngineConfig) -> Loaded_co:
    """Return what `loader`, a class of transformers such as AutoTokenizer, loads of the model.

    Raises UsageError with a remedy if the model is a file or cannot be loaded.
    """
    place = Path(config.model_path)
    if place.exists() and not place.is_dir():
        raise UsageError(
            f"{config.model_path}: not a folder; a model is a folder or a name on the Hugging Face Hub.",
            flag="--model",
        )
    if place.is_dir():
        check_model_files(place, config)
    # Without a reachable hub, the loader would try for a minute.
    is_offline = not place.is_dir() and not is_hub_reachable()
    try:
        return loader.from_pretrained(
            config.model_path, trust_remote_code=config.trust_remote_code, local_files_only=is_offline
        )
    except Exception as error:
        raise UsageError(load_failure_text(config, error)) from None


def check_model_files(folder: Path, config: EngineConfig) -> None:
    """Raise UsageError if a file beside the weights (config, tokenizer, chat template) is no regular file or too large.

    The libraries would read a huge or endless file, or wait for ever for one that is no regular file.
    """
    paths = [*data_files(folder, "*.json"), *data_files(folder, "*.jinja"), *data_files(folder, "*.model")]
    for path in paths:
        try:
            if path.exists():
                check_regular(path.stat(), path, LARGEST_MODEL_JSON)
        except OSError as error:
            raise UsageError(f"{config.model}: {path.name}: {system_reason(error)}.", flag="--model") from None


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """Return the model's tokenizer. Raises UsageError if it cannot be loaded."""
    from transformers import AutoTokenizer

    loader: Loader[Tokenizer] = AutoTokenizer
    return load_with(loader, config)


def load_failure_text(config: EngineConfig, error: Exception) -> str:
    """Return in one line why a model cannot be loaded, such as an unusable folder, no access, or no network."""
    if Path(config.model_path).is_dir():
        return f"--model {config.model_path}: {folder_problem(Path(config.model_path), str(error))}."
    if isinstance(config, ServerFlags) and config.endpoint:  # Of a served model, only the tokenizer is loaded here.
        return hub_refusal(config.model_path, error, TOKENIZER_HINT)
    return hub_refusal(config.model_path, error, DEMO_HINT)


def folder_problem(folder: Path, text: str) -> str:
    """Return why a folder is not a usable model, judged by its files.

    If the files show nothing, the first line of `text`, the library's message, is the reason.
    """
    for path in data_files(folder, "*"):
        if path.is_file() and is_lfs_pointer(path):
            return f"{path.name} is {LFS_POINTER}"
    if (folder / "adapter_config.json").exists():
        return "a LoRA adapter, not a model: merge it into its base model, and name that folder"
    if any(folder.glob("*.gguf")):
        return "GGUF weights, which this program does not load: name a folder with config.json and safetensors"
    if (folder / "snapshots").is_dir():
        return "a cache folder of the Hugging Face Hub: name the model, or the folder below snapshots/"
    if not (folder / "config.json").exists():
        return "no config.json in it"
    return f"no usable tokenizer or config in it: {text.splitlines()[0][:200].rstrip(' .:')}"
