"""A stand-in for Llama-3.1-8B where its weights cannot be had: the real shape, and prompts of real lengths.

    python -m benchmarks.dummy_llama FOLDER [SAMPLES]

Leaves FOLDER/model (config and a made-up tokenizer with as many entries; for `--load-format dummy`) and
FOLDER/cnn_eval.json, random token ids in the MLCommons shape. The arithmetic is the real model's, the text is not.
"""

import json
import sys
from pathlib import Path
from random import Random

from harness import rules

VOCABULARY = rules.SHAPE["vocab_size"]
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **rules.SHAPE,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128009,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}


def lengths(count: int, rng: Random) -> list[int]:
    """Prompt lengths as CNN/DailyMail's: log-normal, mean about 766 tokens, from 80 to 2,540."""
    return [min(2540, max(80, round(rng.lognormvariate(6.551, 0.46)))) for _ in range(count)]


def make(folder: Path, count: int) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(SHAPE, indent=2))
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w128000", eos_token="w128009").save_pretrained(model)
    rng = Random(0)
    records = [
        {
            "instruction": "",
            "input": f"{size} random tokens",
            "tok_input": [128000, *(rng.randrange(128000) for _ in range(size - 1))],
            "output": "None.",
        }
        for size in lengths(count, rng)
    ]
    (folder / "cnn_eval.json").write_text(json.dumps(records))


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 13368)
