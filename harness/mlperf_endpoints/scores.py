"""accuracy_results.json of a point: the client's own, or its answers scored here where its scorer did not run."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.common import reading
from harness.common.errors import EndpointError
from harness.evaluation import accuracy
from harness.mlperf_endpoints.client import EVENTS, INDEX, SCORED
from harness.workloads.cnn_dailymail import Article

OWN = Path("accuracy") / "accuracy_results.json"
SCORER = "llama31-mlperf: rouge-score on the client's answers, since the client's own scorer left no result"


def results(folder: Path, articles: Sequence[Article], dataset: str) -> Any:
    """The content of accuracy_results.json. Raises EndpointError where an answer is missing."""
    if (folder / OWN).exists():
        return json.loads(reading.read_text(folder / OWN))
    answers = texts(folder, len(articles))
    rows = accuracy.score(answers, [article.reference for article in articles])
    named = {name.lower(): value for name, value in asdict(accuracy.totals(rows)).items()}
    entry = {"dataset_name": dataset, "score": named, "num_samples": len(answers), "n_repeats": 1, "scored_by": SCORER}
    return {"accuracy_scores": [entry]}


def texts(folder: Path, samples: int) -> list[str]:
    """The answers to the scored set, by sample."""
    index: dict[str, int] = json.loads(reading.read_text(folder / INDEX))[SCORED]
    found: dict[int, str] = {}
    with reading.open_regular(folder / EVENTS) as lines:
        for line in lines:
            event = json.loads(line)
            if event["event_type"] == "sample.complete" and event["sample_uuid"] in index:
                found[index[event["sample_uuid"]]] = answer_text(event["data"])
    if missing := [sample for sample in range(samples) if sample not in found]:
        raise EndpointError(
            f"{folder / EVENTS}: no answer to {len(missing)} of {samples} samples, the first {missing[0]}."
        )
    return [found[sample] for sample in range(samples)]


def answer_text(output: Any) -> str:
    """The text of an answer: the client writes its kind first, then the text or its pieces."""
    pieces = output[1] if len(output) > 1 else ""
    return "".join(pieces).strip() if isinstance(pieces, list) else str(pieces).strip()
