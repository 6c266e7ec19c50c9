"""Scoring against a plain loop over rouge-score, on as many samples as the datacenter category has.

    python -m benchmarks.scoring

Both read the same texts in the same run: the demo's summaries, words changed here and there, 13,368 pairs. The two
must agree to the last digit.
"""

import json
import random
import time
from pathlib import Path

from harness.common.statistics import intervals
from harness.config import mlperf
from harness.evaluation import accuracy

SAMPLES = 13368


def pairs(count: int) -> list[tuple[str, str]]:
    """(answer, reference) made from the demo's references and articles."""
    rng = random.Random(0)
    records = json.loads((Path(__file__).parent.parent / "demo" / "cnn_eval.json").read_text())
    made = []
    for number in range(count):
        record = records[number % len(records)]
        words = record["output"].split()
        fillers = record["input"].split()
        made.append((" ".join(word if rng.random() < 0.8 else rng.choice(fillers) for word in words), record["output"]))
    return made


def plain(texts: list[tuple[str, str]]) -> list[tuple[float, ...]]:
    """What most people write."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(mlperf.ROUGE), use_stemmer=True)
    _, split = accuracy.sentence_splitter()
    rows = []
    for answer, reference in texts:
        text = "\n".join(split(answer.strip()))
        scores = scorer.score("\n".join(split(reference.strip())), text)
        rows.append((*(100 * scores[name].fmeasure for name in mlperf.ROUGE), len(text)))
    return rows


def main() -> None:
    texts = pairs(SAMPLES)
    begin = time.perf_counter()
    slow = plain(texts)
    middle = time.perf_counter()
    fast = accuracy.score([answer for answer, _ in texts], [reference for _, reference in texts])
    end = time.perf_counter()
    assert slow == fast
    intervals(fast)
    last = time.perf_counter()
    print(f"{SAMPLES:,} samples: plain loop {middle - begin:.1f} s, harness {end - middle:.1f} s")
    print(f"ratio {(end - middle) / (middle - begin):.2f}; bootstrap intervals {last - end:.1f} s more")


if __name__ == "__main__":
    main()
