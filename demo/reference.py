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
ANSWER = 128
EDGE = 100
BATCH = 16


def load(dtype: torch.dtype = torch.float32, folder: Path = HERE / "model"):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), AutoTokenizer.from_pretrained(folder)


@torch.inference_mode()
def generate(model, prompts: Sequence[list[int]], **settings: object) -> list[list[int]]:
    """The answers' token ids, up to and including end-of-text; greedy unless settings say otherwise."""
    end = model.generation_config.eos_token_id
    settings = {"max_new_tokens": ANSWER, "min_new_tokens": 1, "do_sample": False} | settings
    answers: list[list[int]] = [[] for _ in prompts]
    by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    for first in range(0, len(prompts), BATCH):
        batch = by_length[first : first + BATCH]
        width = max(len(prompts[index]) for index in batch)
        ids = torch.full((len(batch), width), end)
        mask = torch.zeros_like(ids)
        for line, index in enumerate(batch):  # padded on the left: every answer begins where its prompt ends
            ids[line, width - len(prompts[index]) :] = torch.tensor(prompts[index])
            mask[line, width - len(prompts[index]) :] = 1
        for index, output in zip(batch, model.generate(ids, attention_mask=mask, **settings).tolist(), strict=True):
            answer = output[width:]
            answers[index] = answer[: answer.index(end) + 1] if end in answer else answer
    return answers


def measured(tokenizer, answers: Sequence[list[int]], references: Sequence[str]) -> dict[str, float]:
    """The scores as the runner's own accuracy check makes them, and how the answers ended."""
    texts = scoring.to_text(answers, tokenizer)
    scores = scoring.totals(scoring.score_answers(texts, references))
    return asdict(scores) | {
        "samples": len(texts),
        "tokens": sum(map(len, answers)),  # the end-of-text token counts as one
        "ended": sum(tokenizer.eos_token_id in answer for answer in answers),
    }


def main() -> None:
    model, tokenizer = load()
    result = {}
    for category, count in (("datacenter", None), ("edge", EDGE)):
        records = samples.from_json(HERE / "cnn_eval.json")
        records = records if count is None else samples.shuffle_articles(records)[:count]
        answers = generate(model, [record.tokens for record in records])
        result[category] = measured(tokenizer, answers, [record.reference for record in records])
    packages = ("torch", "transformers", "tokenizers", "datasets", "rouge_score")
    versions = {name: version(name) for name in packages}
    (HERE / "reference.json").write_text(json.dumps(result | {"versions": versions}, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
