"""An fp8 checkpoint with calibrated scales: `python -m harness quantize --model MODEL --out DIR`."""

from pathlib import Path
from typing import Annotated

from harness.common.errors import DONE, UsageError
from harness.config import checkpoint, models
from harness.config.engine import EngineConfig
from harness.quantization import calibration
from harness.quantization import quantize as quantization
from harness.terminal.command import make_command, option


def quantize(
    out: Annotated[Path, option("DIR", "Folder for the checkpoint: new, or empty.")],
    model: Annotated[str, option("MODEL", "As in run.py: alias, Hugging Face name, folder.")] = models.DEFAULT_MODEL,
    dataset_path: Annotated[
        Path | None,
        option(
            "PATH",
            "Calibration data, a file or folder as run.py's --dataset-path reads it; unset: the model's own, for "
            "Llama-3.1-8B MLPerf's calibration list (from third_party/inference)",
        ),
    ] = None,
    total_sample_count: Annotated[int | None, option("N", "Only the first N of the data.", min=1, max=10**6)] = None,
) -> int:
    """Make an fp8 checkpoint with static activation scales and fp8 KV scales, with llm-compressor."""
    config = EngineConfig(model=model)
    quantization.check_out(out)
    source = calibration.find(dataset_path or config.model_spec.data)
    quantization.check_installed()
    if getattr(checkpoint.load_shape(config), "quantization_config", None) is not None:
        raise UsageError(f"--model {config.model}: already quantized.")
    library = calibration.load(source, checkpoint.load_tokenizer(config), total_sample_count)
    print(f"{config.model}: {quantization.SCHEME}; {len(library):,} samples of {library.source}", flush=True)
    quantization.make(config, library, out)
    print(f"{out}: run it with run.py --model {out} --kv-cache-dtype fp8")
    return DONE


command = make_command(quantize)
