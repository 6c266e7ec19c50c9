"""Measures the demo's reference scores: the model's own, in fp32 on the CPU with Hugging Face transformers.

python -m demo.reference
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness.results import scoring
from harness.workloads import cnn_dailymail as samples

HERE = Path(__file__).parent
ANSWER_TOKENS = 128
EDGE_SAMPLES = 100  # of the shuffled articles
BATCH = 16  # prompts
PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "rouge_score")  # whose versions are written


def load(dtype: torch.dtype = torch.float32, folder: Path = HERE / "model"):
    """Return a model and its tokenizer."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), AutoTokenizer.from_pretrained(folder)


@torch.inference_mode()
def generate(model, prompts: Sequence[list[int]], **settings: object) -> list[list[int]]:
    """Return the token ids of the answers, up to and including end-of-text; greedy unless settings say otherwise."""
    end = model.generation_config.eos_token_id
    settings = {"max_new_tokens": ANSWER_TOKENS, "min_new_tokens": 1, "do_sample": False} | settings
    answers: list[list[int]] = [[] for _prompt in prompts]
    by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for first in range(0, len(prompts), BATCH):
        indices = by_length[first : first + BATCH]
        ids, mask = padded_batch([prompts[index] for index in indices], end)
        outputs = model.generate(ids, attention_mask=mask, **settings).tolist()
        for index, output in zip(indices, outputs, strict=True):
            answers[index] = cut_after(output[ids.shape[1] :], end)
    return answers


def padded_batch(prompts: Sequence[list[int]], padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token ids of prompts, and the mask of attention.

    They are padded on the left, so that every answer begins where its prompt ends.
    """
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), padding)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids, mask


def cut_after(tokens: list[int], end: int) -> list[int]:
    """Return tokens up to and including the end token, or all if it is not among them."""
    if end not in tokens:
        return tokens
    return tokens[: tokens.index(end) + 1]


def answer_scores(tokenizer, answers: Sequence[list[int]], references: Sequence[str]) -> dict[str, float]:
    """Return the scores as the runner's own accuracy check computes them, and how the answers ended."""
    texts = scoring.to_text(answers, tokenizer)
    scores = scoring.totals(scoring.score_answers(texts, references))
    return asdict(scores) | {
        "samples": len(texts),
        "tokens": sum(map(len, answers)),  # The end-of-text token counts as one.
        "ended": sum(tokenizer.eos_token_id in answer for answer in answers),
    }


def main() -> None:
    model, tokenizer = load()
    all_records = samples.articles_from_json(HERE / "cnn_eval.json")
    records_by_category = {
        "datacenter": all_records,
        "edge": samples.shuffle_articles(all_records)[:EDGE_SAMPLES],
    }
    result = {}
    for category, records in records_by_category.items():
        answers = generate(model, [record.tokens for record in records])
        result[category] = answer_scores(tokenizer, answers, [record.reference for record in records])
    versions = {name: version(name) for name in PACKAGES}
    (HERE / "reference.json").write_text(json.dumps(result | {"versions": versions}, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
