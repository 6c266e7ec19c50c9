"""Accuracy against the baseline, sample by sample: it tells on a thousand samples what the gate cannot."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.common import reading
from harness.common.errors import UsageError
from harness.config import mlperf
from harness.evaluation.accuracy import intervals
from harness.sweep.file import BASELINE
from harness.sweep.rows import ExperimentResult

SAMPLES = "Accuracy/samples.csv"
LOSS = 0.01  # of the baseline's score, that MLPerf's gate allows of the reference's


@dataclass(frozen=True)
class Paired:
    """The change of a score against the baseline's on the same samples, with its 95 % interval (bootstrap)."""

    change: float
    low: float
    high: float
    baseline: float

    @property
    def verdict(self) -> Literal["holds", "lost", "not clear"]:
        """Whether at most LOSS is lost, by the whole interval."""
        most = -LOSS * self.baseline
        return "holds" if self.low >= most else "lost" if self.high < most else "not clear"

    @property
    def said(self) -> str:
        name = mlperf.SCORES[mlperf.SHORT_SCORES[0]]
        return f"{name} {self.change:+.2f} against the baseline, {self.low:+.2f} to {self.high:+.2f}: {self.verdict}"


def paired(folder: Path, rows: tuple[ExperimentResult, ...]) -> dict[str, Paired]:
    """By experiment, where the gate is inconclusive and the baseline answered the same samples."""
    base = next((result for result in rows if result.name == BASELINE), None)
    theirs = next(scores(folder, base), None) if base else None
    found = {}
    for result in rows:
        mine = next(scores(folder, result), None) if result is not base and result.accuracy == "INCONCLUSIVE" else None
        if theirs and mine and theirs.keys() == mine.keys():
            found[result.name] = compared(theirs, mine)
    return found


def compared(theirs: dict[str, float], mine: dict[str, float]) -> Paired:
    """Two runs by sample."""
    changes = [mine[index] - theirs[index] for index in theirs]
    ((low, high),) = intervals([[change] for change in changes])
    count = len(changes)
    return Paired(sum(changes) / count, float(low), float(high), sum(theirs.values()) / count)


def scores(folder: Path, result: ExperimentResult) -> Iterator[dict[str, float]]:
    """The first score of each sample, by its index; a run each that kept them. Raises UsageError for a damaged file."""
    for record in result.records:
        path = folder / (record.run or "") / SAMPLES
        if record.run and path.exists():
            try:
                with reading.opened(path) as file:
                    yield {line["index"]: float(line[mlperf.SHORT_SCORES[0]]) for line in csv.DictReader(file)}
            except (KeyError, ValueError, TypeError) as error:
                raise UsageError(f"{path}: not a table of scores: {error}.") from None
