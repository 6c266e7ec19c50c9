"""Measures the demo's reference scores: the model's own, in fp32 on the CPU with Hugging Face transformers.

python -m demo.reference
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

import torch
from datasets import Dataset
from rouge_score.rouge_scorer import RougeScorer
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
ANSWER = 128
EDGE = 100
BATCH = 16
ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")


@dataclass(frozen=True)
class Scores:
    rouge1: float
    rouge2: float
    rougeL: float
    rougeLsum: float
    gen_len: int  # characters, summed over samples
    samples: int
    tokens: int  # the end-of-text token counts as one
    ended: int  # samples that ended by themselves, before the last token allowed


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
        for index, row in zip(batch, model.generate(ids, attention_mask=mask, **settings).tolist(), strict=True):
            answer = row[width:]
            answers[index] = answer[: answer.index(end) + 1] if end in answer else answer
    return answers


def lines(text: str) -> str:
    """One sentence a line, as ROUGE-Lsum wants it."""
    return re.sub(r"(?<=[.!?])\s+", "\n", text.strip())


def score(tokenizer, answers: Sequence[list[int]], references: Sequence[str]) -> Scores:
    scorer = RougeScorer(ROUGE, use_stemmer=True)
    texts = [text.strip() for text in tokenizer.batch_decode(answers, skip_special_tokens=True)]
    each = [scorer.score(lines(want), lines(got)) for want, got in zip(references, texts, strict=True)]
    mean = {kind: round(100 * fmean(one[kind].fmeasure for one in each), 4) for kind in ROUGE}
    return Scores(
        **mean,
        gen_len=sum(map(len, texts)),
        samples=len(texts),
        tokens=sum(map(len, answers)),
        ended=sum(tokenizer.eos_token_id in answer for answer in answers),
    )


def edge_order(records: int) -> list[int]:
    """MLPerf's edge samples: the same split shuffled by Hugging Face datasets, then the first of it."""
    return Dataset.from_dict({"index": list(range(records))}).shuffle(seed=42)["index"][:EDGE]


def main() -> None:
    records = json.loads((HERE / "cnn_eval.json").read_text())
    model, tokenizer = load()
    answers = generate(model, [record["tok_input"] for record in records])
    orders = {"datacenter": list(range(len(records))), "edge": edge_order(len(records))}
    result = {
        category: asdict(
            score(tokenizer, [answers[index] for index in order], [records[index]["output"] for index in order])
        )
        for category, order in orders.items()
    }
    versions = {name: version(name) for name in ("torch", "transformers", "tokenizers", "datasets", "rouge_score")}
    (HERE / "reference.json").write_text(json.dumps(result | {"versions": versions}, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
