"""Quantized checkpoints: quantize.json, which says what one was made of, and what a report calls one."""

from pathlib import Path

from harness.common import files
from harness.common.schema import File
from harness.config import models
from harness.config.engine import EngineConfig

MADE = models.QUANTIZE_JSON


class Quantized(File):
    """quantize.json: what `python -m harness quantize` made a checkpoint of."""

    model: str
    scheme: str
    data: str
    samples: int
    versions: dict[str, str]
    date: str


def title(config: EngineConfig) -> str:
    """What a report calls a model whose engine says that it came quantized.

    Raises UsageError for a damaged quantize.json.
    """
    name = f"quantized checkpoint {config.model}"
    if config.model in models.QUANTIZED:
        return f"{name} (of Llama-3.1-8B-Instruct, published)"
    if (path := Path(config.model_path) / MADE).is_file():
        made = files.read(path, Quantized)
        return f"{name} (of {made.model}: {made.scheme}; calibrated on {made.samples:,} samples of {made.data})"
    return name
