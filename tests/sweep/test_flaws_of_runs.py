"""What several runs of an experiment have in common: the load beside them, and why their figures may not count."""

from harness.config.comparability import INVALID, OVER_LIMIT
from harness.sweep.experiment import ExperimentOutcome
from harness.sweep.experiment_result import flaws_of, greatest_load


def busy(cores: float, share: float | None) -> ExperimentOutcome:
    return ExperimentOutcome(
        background_load=(f"other programs used {cores} of 2 CPU cores during the test",), others_cpu_share=share
    )


def test_of_several_loads_the_greatest_is_named() -> None:
    runs = [busy(0.6, 0.3), ExperimentOutcome(), busy(1.2, 0.6), busy(0.4, 0.2)]
    assert greatest_load(runs) == ["other programs used 1.2 of 2 CPU cores during the test"]
    assert greatest_load([ExperimentOutcome()]) == []
    assert greatest_load([busy(0.6, None)]) == ["other programs used 0.6 of 2 CPU cores during the test"]


def test_every_named_flaw_counts_and_the_disagreements_of_the_worst_run() -> None:
    runs = [
        ExperimentOutcome(flaws=(INVALID, "3 tokens more")),
        ExperimentOutcome(flaws=(OVER_LIMIT, "4 tokens more", "1 answer cut")),
        ExperimentOutcome(flaws=(INVALID,)),
    ]
    assert flaws_of(runs) == [INVALID, OVER_LIMIT, "4 tokens more", "1 answer cut"]
    assert flaws_of([]) == flaws_of([ExperimentOutcome()]) == []
