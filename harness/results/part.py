"""A part of what is known of a performance test."""

from typing import Self

from harness.common.schema import Model
from harness.loadgen.test_run import TestRun
from harness.runs.records import RunFacts


class Part(Model):
    """Fields of summary.json that belong together, and how they follow from a test."""

    @classmethod
    def of(cls, test: TestRun, facts: RunFacts) -> Self:
        """This part of a test in a run."""
        raise NotImplementedError
