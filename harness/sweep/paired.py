"""Accuracy against the baseline, sample by sample: it tells on a thousand samples what the gate cannot."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from harness.common.errors import UsageError
from harness.common.statistics import PairedChange, paired_changes
from harness.config import mlperf
from harness.sweep.file import BASELINE
from harness.sweep.rows import ExperimentResult

SAMPLES = "Accuracy/samples.csv"
LOSS = 0.01  # of the baseline's score, that MLPerf's gate allows of the reference's


@dataclass(frozen=True)
class Paired(PairedChange):
    """The change of a score against the baseline's on the same samples."""

    baseline: float

    @property
    def verdict(self) -> Literal["holds", "lost", "not clear"]:
        """Whether at most LOSS is lost, by the whole interval."""
        most = -LOSS * self.baseline
        return "holds" if self.low >= most else "lost" if self.high < most and not self.few else "not clear"

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
    (change,) = paired_changes([[score] for score in theirs.values()], [[mine[index]] for index in theirs])
    return Paired(**vars(change), baseline=fmean(theirs.values()))


def scores(folder: Path, result: ExperimentResult) -> Iterator[dict[str, float]]:
    """The first score of each sample, by its index; a run each that kept them. Raises UsageError for a damaged file."""
    for record in result.records:
        path = folder / (record.run or "") / SAMPLES
        if record.run and path.exists():
            try:
                with path.open() as file:
                    yield {line["index"]: float(line[mlperf.SHORT_SCORES[0]]) for line in csv.DictReader(file)}
            except (KeyError, ValueError, TypeError) as error:
                raise UsageError(f"{path}: not a table of scores: {error}.") from None
