"""Makes an fp8 checkpoint with static activation scales and fp8 KV scales, with llm-compressor; names quantized ones.

`python -m harness quantize --model MODEL --out DIR`, in its own environment: requirements-quantize.txt.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.common import files, reading
from harness.common.errors import UsageError, why
from harness.common.schema import SCHEMA, File
from harness.config import models
from harness.config.engine import EngineConfig
from harness.runs import folder as results
from harness.workloads.cnn_dailymail import Library

SCHEME = "fp8 weights and activations, static scales; fp8 KV scales"
KV_CACHE = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
PACKAGES = ("llmcompressor", "compressed-tensors", "transformers", "torch")
# What a checkpoint holds beside weights and config.json; taken over as it is.
TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "chat_template*", "generation_config.json")


class Quantized(File):
    """quantize.json: what `python -m harness quantize` made a checkpoint of."""

    model: str
    scheme: str
    data: str
    samples: int
    versions: dict[str, str]
    date: str


def check_out(out: Path) -> None:
    """Raises UsageError where something is there already, or nothing can be written."""
    try:
        if out.exists() and not out.is_dir():
            raise UsageError(f"--out {out}: not a folder.")
        if out.is_dir() and any(out.iterdir()):
            raise UsageError(f"--out {out}: not empty; choose another folder.")
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot write there: {why(error)}.") from None


def check_installed() -> None:
    if find_spec("llmcompressor") is None:
        raise UsageError(
            "llm-compressor is not installed here: pip install -r requirements-quantize.txt, in a separate virtual "
            "environment (it needs an older transformers than vLLM)."
        )


def compress(path: str, prompts: list[list[int]], out: Path) -> None:
    """Writes quantized weights and their config; a progress bar shows how far the calibration is."""
    os.environ.setdefault("LLM_COMPRESSOR_LOG_DISABLED", "true")
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoModelForCausalLM

    place: Any = "auto" if torch.cuda.is_available() else "cpu"
    weights = AutoModelForCausalLM.from_pretrained(path, dtype="auto", device_map=place)
    samples = {"input_ids": prompts, "attention_mask": [[1] * len(prompt) for prompt in prompts]}
    oneshot(
        model=weights,
        dataset=Dataset.from_dict(samples),
        recipe=QuantizationModifier(targets="Linear", scheme="FP8", ignore=["lm_head"], kv_cache_scheme=KV_CACHE),
        pipeline="basic",  # the whole model at once: one progress bar, and an 8B model fits
        num_calibration_samples=len(prompts),
        shuffle_calibration_samples=False,
        max_seq_length=max(map(len, prompts)),
    )
    weights.save_pretrained(out, save_compressed=True)


def make(config: EngineConfig, library: Library, out: Path, write_weights: Callable[..., None] = compress) -> None:
    """Quantizes the model into `out`; nothing is left there if that fails."""
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        fresh = Path(temporary) / out.name
        fresh.mkdir()
        write_weights(config.model_path, library.prompts, fresh)
        finish(original(config.model_path), fresh)
        made = Quantized(
            schema_version=SCHEMA,
            model=config.model,
            scheme=SCHEME,
            data=library.source,
            samples=len(library),
            versions={name: version(name) for name in PACKAGES},
            date=results.now(),
        )
        files.write_json(fresh / models.QUANTIZE_JSON, made.model_dump(mode="json"))
        for path in fresh.iterdir():
            path.chmod(0o644)  # safetensors writes for its user alone
        fresh.replace(out)


def original(path: str) -> Path:
    """The folder of the model's own files, the weights left out where they come from the hub."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path, allow_patterns=["config.json", *TOKENIZER_FILES]))


def finish(source: Path, out: Path) -> None:
    """Gives a checkpoint its model's own tokenizer and config: another transformers would write them otherwise."""
    for pattern in TOKENIZER_FILES:
        for path in source.glob(pattern):
            shutil.copyfile(path, out / path.name)
    config, quantized = (json.loads(reading.read_text(folder / "config.json")) for folder in (source, out))
    whole = config | {"quantization_config": quantized["quantization_config"]}
    files.write_text(out / "config.json", json.dumps(whole, indent=2) + "\n")  # as it is: bos_token is no secret


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
