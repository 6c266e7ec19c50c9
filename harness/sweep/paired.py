"""Accuracy against the baseline, sample by sample: it tells on a thousand samples what the gate cannot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from harness.common import files
from harness.common.statistics import PairedChange, paired_changes
from harness.config import mlperf
from harness.sweep.file import BASELINE
from harness.sweep.rows import ExperimentResult

Scores = Mapping[float | None, float | None]  # by the index of a sample
SAMPLES = "Accuracy/samples.csv"
LOSS = 0.01  # of the baseline's score, that MLPerf's gate allows of the reference's


class Paired(PairedChange):
    """The change of a score against the baseline's on the same samples."""

    @property
    def verdict(self) -> Literal["holds", "lost", "not clear"]:
        """Whether at most LOSS is lost, by the whole interval."""
        most = -LOSS * self.before
        return "holds" if self.low >= most else "lost" if self.high < most and not self.few else "not clear"

    @property
    def said(self) -> str:
        name = mlperf.SCORES[mlperf.SHORT_SCORES[0]]
        return f"{name} {self.change:+.2f} against the baseline, {self.low:+.2f} to {self.high:+.2f}: {self.verdict}"


def paired(folder: Path, rows: tuple[ExperimentResult, ...]) -> dict[str, Paired]:
    """By experiment, where the gate is inconclusive and the baseline answered the same samples."""
    base = next((scores(folder, result) for result in rows if result.name == BASELINE), {})
    unsure = [result for result in rows if result.name != BASELINE and result.accuracy == "INCONCLUSIVE"]
    found = {result.name: scores(folder, result) for result in unsure}
    return {name: compared(base, mine) for name, mine in found.items() if base and base.keys() == mine.keys()}


def compared(theirs: Scores, mine: Scores) -> Paired:
    """Two runs by sample."""
    (change,) = paired_changes([[score] for score in theirs.values()], [[mine[index]] for index in theirs])
    return Paired(**vars(change))


def scores(folder: Path, result: ExperimentResult) -> Scores:
    """The first score of each sample, of the first run that kept them. Raises UsageError for a damaged file."""
    for record in result.records:
        path = folder / (record.run or "") / SAMPLES
        if record.run and path.exists():
            columns = files.read_columns(path, ("index", mlperf.SHORT_SCORES[0]))
            return dict(zip(*columns.values(), strict=True))
    return {}
