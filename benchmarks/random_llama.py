"""A stand-in for Llama-3.1-8B where its weights cannot be had: its shape, random weights, prompts of real lengths.

    python -m benchmarks.random_llama FOLDER [--samples 13368] [--format FORMAT] [--shape small]

Leaves FOLDER/model and FOLDER/cnn_eval.json, random token ids in the MLCommons shape. Weights are drawn from N(0,
0.02), as before training; norms are ones. Matrix products take the time and the energy of trained ones (an H200,
docs/evidence/performance.md). vLLM's dummy weights, in fp8 nearly zeros, were a sixth faster there. The answers mean
nothing. FORMAT is `bf16`, unless one of these is given. `fp8-static`: per-tensor scales of weights and activations and
fp8 KV scales, calibrated on a few of the prompts, in compressed-tensors' format. `fp8-static-head`: the same weights,
the head in fp8, too. `none`: no weights, for `--load-format dummy`.
"""

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

from harness.config import models

VOCABULARY = models.SHAPE["vocab_size"]
ORDINARY_TOKENS = 128000  # The special tokens come after these.
BEGIN_TOKEN, END_TOKEN = 128000, 128009
CALIBRATION_PROMPTS = 8
ARTICLE_WORDS = 40  # words of an article that are written; a run compares as many with the article's token ids
RANDOM_WEIGHTS_KEY = "random_weights"  # in config.json; reports then say that weights are random
# Prompt lengths of CNN/DailyMail in tokens: log-normal with a mean of about 766.
FEWEST_TOKENS, MOST_TOKENS = 80, 2540
LOG_MEAN, LOG_DEVIATION = 6.551, 0.46
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    **models.SHAPE,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": BEGIN_TOKEN,
    "eos_token_id": END_TOKEN,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
SMALL_SHAPE = SHAPE | {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "head_dim": 32,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
SHAPES = {"llama3.1-8b": SHAPE, "small": SMALL_SHAPE}
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": FP8, "input_activations": FP8}},
    "ignore": ["lm_head"],
    "kv_cache_scheme": FP8,
}

FP8_HEAD_FORMAT = "fp8-static-head"
QUANTIZATIONS = {
    "fp8-static": QUANTIZATION,
    FP8_HEAD_FORMAT: QUANTIZATION
    | {
        # For vLLM the head is no `Linear`, so it is named.
        "config_groups": {"group_0": {"targets": ["Linear", "lm_head"], "weights": FP8, "input_activations": FP8}},
        "ignore": [],
    },
}


def make(folder: Path, count: int, weights: str = "none", shape: str = "llama3.1-8b") -> None:
    """Write config, tokenizer, `count` prompts and, unless `weights` is "none", weights in that format."""
    model_folder = folder / "model"
    model_folder.mkdir(parents=True, exist_ok=True)
    for old_file in model_folder.glob("model*.safetensors*"):
        old_file.unlink()
    (model_folder / "config.json").write_text(json.dumps(model_config(weights, shape), indent=2))
    save_tokenizer(model_folder)
    records = prompt_records(count)
    (folder / "cnn_eval.json").write_text(json.dumps(records))
    if weights != "none":
        from benchmarks import random_weights

        calibration_prompts = []
        if weights in QUANTIZATIONS:
            calibration_prompts = [record["tok_input"] for record in records[:CALIBRATION_PROMPTS]]
        random_weights.write(model_folder, SHAPES[shape], calibration_prompts, has_fp8_head=weights == FP8_HEAD_FORMAT)


def model_config(weights: str, shape: str) -> dict[str, Any]:
    config: dict[str, Any] = dict(SHAPES[shape])
    if weights != "none":
        config[RANDOM_WEIGHTS_KEY] = True
    if weights in QUANTIZATIONS:
        config["quantization_config"] = QUANTIZATIONS[weights]
    return config


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer whose words are numbered, such as w17 for token 17."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=f"w{BEGIN_TOKEN}", eos_token=f"w{END_TOKEN}"
    )
    fast_tokenizer.save_pretrained(folder)


def prompt_records(count: int) -> list[dict[str, Any]]:
    """Return prompts of random token ids as MLCommons' records. They are the same every time.

    Of each article, only the first words are there as text.
    """
    rng = Random(0)
    records = []
    for length in prompt_lengths(count, rng):
        tokens = [rng.randrange(ORDINARY_TOKENS) for _token in range(length - 1)]
        beginning = " ".join(f"w{token}" for token in tokens[:ARTICLE_WORDS])
        prompt = [BEGIN_TOKEN, *tokens]
        records.append({"instruction": "", "input": beginning, "tok_input": prompt, "output": "None."})
    return records


def prompt_lengths(count: int, rng: Random) -> list[int]:
    """Return prompt lengths, distributed as CNN/DailyMail's."""
    lengths = []
    for _prompt in range(count):
        length = round(rng.lognormvariate(LOG_MEAN, LOG_DEVIATION))
        lengths.append(min(MOST_TOKENS, max(FEWEST_TOKENS, length)))
    return lengths


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("folder", type=Path)
    flags.add_argument("--samples", type=int, default=13368)
    flags.add_argument("--format", choices=("bf16", *QUANTIZATIONS, "none"), default="bf16")
    flags.add_argument("--shape", choices=SHAPES, default="llama3.1-8b")
    return flags


def main() -> None:
    arguments = parser().parse_args()
    make(arguments.folder, arguments.samples, arguments.format, arguments.shape)


if __name__ == "__main__":
    main()
