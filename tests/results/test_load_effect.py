"""What other programs cost a test, by how its speed followed their load."""

from pathlib import Path
from random import Random

import pytest

from benchmarks import load_effect as simulation
from harness.loadgen.test_run import Recording
from harness.report import answer
from harness.results.load_effect import LoadEffect, blocks_of, fitted_effect
from tests.conftest import tells
from tests.support import example_runs

LOADS = [40.0 * (block // 6 % 2) for block in range(60)]  # of five seconds each


def speeds(cost: float, noise: float = 1.0) -> list[float]:
    random = Random(1)
    return [100 * (1 - cost * load / 100) + random.gauss(0, noise) for load in LOADS]


@pytest.mark.parametrize(("cost", "lost"), [(0.5, 10.0), (1.0, 20.0)])
def test_a_speed_that_follows_the_load_shows_what_it_cost(cost: float, lost: float) -> None:
    effect = fitted_effect(LOADS, speeds(cost))
    assert effect and effect.is_clear and not effect.is_negligible
    assert effect.lost_percent == pytest.approx(lost, abs=1.0)
    assert effect.low_percent < lost < effect.high_percent
    assert tells(effect, "followed their load", "cost ")


def test_a_speed_that_does_not_follow_the_load_lost_hardly_anything() -> None:
    effect = fitted_effect(LOADS, speeds(0.0))
    assert effect and effect.is_negligible and not effect.is_clear
    assert tells(effect, "did not follow", "at most")


@pytest.mark.parametrize(
    "loads", [[50.0] * 60, [50.0 + block % 2 for block in range(60)], LOADS[:11], [float(block) for block in range(60)]]
)
def test_where_the_load_shows_nothing_nothing_is_claimed(loads: list[float]) -> None:
    """A load that is always the same may cost half the speed, without a trace in its course."""
    assert fitted_effect(loads, speeds(0.5)[: len(loads)]) is None


def test_a_wide_interval_says_neither() -> None:
    effect = fitted_effect(LOADS, speeds(0.1, noise=40.0))
    assert effect and not effect.is_clear and not effect.is_negligible


def test_blocks_are_means_of_whole_fives_in_the_steady_part() -> None:
    seconds = [float(second) for second in range(30)]
    loads = [None if second == 12 else second for second in seconds]
    recording = Recording(seconds, {"others_cpu_percent": loads, "generation_tokens_per_sec": [2.0] * 30})
    assert blocks_of(recording, 10.0, 22.0) == ([pytest.approx(12.6), pytest.approx(18.0)], [2.0, 2.0])
    assert blocks_of(Recording([], {}), 0.0, 9.0) == ([], [])
    assert blocks_of(Recording(seconds, {"generation_tokens_per_sec": [2.0] * 30}), 0.0, 29.0) == ([], [])


@pytest.mark.parametrize("load", simulation.LOAD_SHAPES)
def test_the_interval_holds_the_true_effect(load: str) -> None:
    held, wrong_sign, _width = simulation.coverage(load, 120, 0.5, 60)
    assert held >= 0.9 and wrong_sign == 0


@pytest.mark.parametrize(
    ("effect", "parts"),
    [
        (None, ("do not pass this number on",)),
        (LoadEffect(lost_percent=0.2, low_percent=-0.8, high_percent=1.2), ("at most 1.2 %",)),
        (LoadEffect(lost_percent=12, low_percent=9, high_percent=15), ("cost 12 %", "do not pass this number on")),
        (LoadEffect(lost_percent=2, low_percent=-9, high_percent=15), ("do not pass this number on",)),
    ],
)
def test_what_the_load_cost_stands_beside_the_load(
    tmp_path: Path, effect: LoadEffect | None, parts: tuple[str, ...]
) -> None:
    summary = example_runs.rendered(tmp_path / "run")
    test = summary.result
    assert test
    details = test.details.model_copy(update={"load_effect": effect})
    busy = test.model_copy(update={"background_load": ("other programs used 1 of 2 CPU cores",), "details": details})
    (line,) = answer.load_cautions(summary, busy)
    assert tells(line, "other programs used 1 of 2 CPU cores", *parts)
    assert ("do not pass" in line) == ("do not pass" in parts[-1])
    assert ("followed their load" in line or "did not follow" in line) == ("%" in parts[0])
