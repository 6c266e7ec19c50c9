"""Two runs side by side: what changed in the scores, and in which answers."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import rules
from harness.accuracy import intervals, read_log
from harness.errors import UsageError
from harness.pages import render
from harness.results import facts_of, read_json

SHOWN = 20


@dataclass(frozen=True)
class Difference:
    """A score of run A and run B, and the paired-bootstrap interval of B - A."""

    name: str
    a: float
    b: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Speed:
    """A performance test: tokens per second, LoadGen's verdict, and what must be alike for two to be compared."""

    tokens_per_s: float
    valid: bool
    passed: bool  # not failed by the accuracy gate
    paced: bool  # by a rate that was told, so that the speed says nothing of the engine
    kind: str
    samples: int
    new_tokens: int  # at most, in an answer
    machine: list[str]  # its GPUs, or its CPU

    def held_against(self, other: "Speed") -> str:
        """Why the two cannot be compared; empty where they can."""
        if self.kind != other.kind:
            return "not comparable: other scenarios"
        if (self.samples, self.new_tokens) != (other.samples, other.new_tokens):
            return "not comparable: other samples, or answers of another length"
        if self.machine != other.machine:
            return "not comparable: other machines"
        if not all(one.valid and one.passed for one in (self, other)):
            return "not comparable: INVALID, or the accuracy gate failed"
        return "not comparable: the rate was told" if self.paced or other.paced else ""


@dataclass(frozen=True)
class Divergence:
    """Where the answers of A and B to one sample part: the token of each there, None where it had ended."""

    index: int
    prompt_tokens: int
    position: int
    a: int | None
    b: int | None
    rougeL_a: float
    rougeL_b: float


def compare(a: Path, b: Path) -> str:
    """A Markdown page that puts two finished runs side by side. Raises UsageError where they cannot be."""
    import numpy as np

    tables = [load_samples(folder) for folder in (a, b)]
    if [row["prompt_tokens"] for row in tables[0]] != [row["prompt_tokens"] for row in tables[1]]:
        raise UsageError(f"{a} and {b} did not answer the same samples.")
    each = [np.array([[float(row[name]) for name in rules.ROUGE] for row in table]) for table in tables]
    spread = intervals(each[1] - each[0])
    means = [scores.mean(axis=0) for scores in each]
    scores = [
        Difference(
            name, float(means[0][n]), float(means[1][n]), float(means[1][n] - means[0][n]), *map(float, spread[n])
        )
        for n, name in enumerate(rules.ROUGE)
    ]
    one, other = speed(a), speed(b)
    splitters = {read_json(folder / "Accuracy" / "rouge.json").get("splitter") for folder in (a, b)}
    return render(
        "compare.md.j2",
        a=a.resolve(),
        b=b.resolve(),
        samples=len(tables[0]),
        scores=scores,
        speeds=[one, other] if one and other else [],
        unlike=one.held_against(other) if one and other else "",
        splitters=len(splitters),
        differing=divergences(a, b, tables),
        most=SHOWN,
    )


def speed(folder: Path) -> Speed | None:
    """What a run's performance test came to, if it had one."""
    summary = read_json(folder / "summary.json")
    test = summary.get("run", {}).get("performance")
    if not test:
        return None
    meta, system, config = summary["meta"], summary["system"], facts_of(folder)["plan"]["config"]
    return Speed(
        tokens_per_s=test["tokens_per_sec"],
        valid=bool(test["valid"]),
        passed=summary["run"].get("accuracy", {}).get("verdict") != "FAIL",
        paced=meta["scenario"] in rules.LIMITS and config["server_target_qps"] != "max",
        kind=f"{meta['category']} {meta['scenario']}",
        samples=meta["samples"],
        new_tokens=meta["max_new_tokens"],
        machine=system["gpus"] or [f"{system['cpu']}, {system['cores']} cores"],
    )


def load_samples(folder: Path) -> list[dict[str, Any]]:
    """samples.csv of a run. Raises UsageError where there is none."""
    facts_of(folder)
    try:
        with (folder / "Accuracy" / "samples.csv").open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        raise UsageError(
            f"{folder}: no Accuracy/samples.csv; --compare takes two runs with an accuracy test."
        ) from None


def divergences(a: Path, b: Path, tables: list[list[dict[str, Any]]]) -> list[Divergence]:
    """The samples that A and B answered differently."""
    count = len(tables[0])
    answers = [read_log(folder / "Accuracy" / "mlperf_log_accuracy.json", count) for folder in (a, b)]
    found = []
    for one, other, row_a, row_b in zip(*answers, *tables, strict=True):
        if one.tokens == other.tokens:
            continue
        shorter = min(len(one.tokens), len(other.tokens))
        at = next((n for n in range(shorter) if one.tokens[n] != other.tokens[n]), shorter)
        there = [answer.tokens[at] if at < len(answer.tokens) else None for answer in (one, other)]
        scores = [float(row["rougeL"]) for row in (row_a, row_b)]
        found.append(Divergence(one.index, int(row_a["prompt_tokens"]), at, there[0], there[1], scores[0], scores[1]))
    return found
