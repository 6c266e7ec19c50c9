"""Accuracy against the baseline, sample by sample: it tells on a thousand samples what the gate cannot."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harness.common.statistics import PairedChange
from harness.config import mlperf
from harness.reporting import paired as answers
from harness.runs.folder import FOLDER
from harness.sweep.file import BASELINE
from harness.sweep.rows import SCORE, ExperimentResult

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
        between = f"{self.low:+.2f} to {self.high:+.2f}"
        return f"{mlperf.SCORES[SCORE]} {self.change:+.2f} against the baseline, {between}: {self.verdict}"


def pair_scores(folder: Path, rows: Sequence[ExperimentResult]) -> dict[str, Paired]:
    """By experiment, where the gate is inconclusive and the baseline answered the same samples. Raises UsageError for a
    damaged file."""
    base = next((accuracy_test(folder, result) for result in rows if result.name == BASELINE), None)
    unsure = [result for result in rows if result.name != BASELINE and result.accuracy == "INCONCLUSIVE"]
    tests = {result.name: mine for result in unsure if (mine := accuracy_test(folder, result))}
    both = {name: tables for name, mine in tests.items() if base and (tables := answers.read_tables(base, mine))}
    return {name: Paired(**vars(answers.score_changes(tables)[SCORE])) for name, tables in both.items()}


def accuracy_test(folder: Path, result: ExperimentResult) -> Path | None:
    """That of the first run that kept its samples."""
    tests = [folder / record.run / FOLDER["accuracy"] for record in result.records if record.run]
    return next((path for path in tests if (path / answers.SAMPLES).exists()), None)
