"""Whether B is faster: the interval, the words, and how often a comparison finds what is not there."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core import statistics
from harness.results.change import ONE_RUN_EACH, Change
from harness.results.metrics import METRIC_BY_NAME, Metric
from harness.results.round_changes import changes_by_rounds

SPEED, LATENCY, POWER = (METRIC_BY_NAME[name] for name in ("tokens_per_sec", "latency_p50_ms", "gpu_power_w_mean"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Change(1.19, 1.05, 1.25, "4 of 4 pairs"), "19 % faster than A (interval 5 to 25 %, 4 of 4 pairs)"),
        (Change(0.88, 0.846, 0.908, ONE_RUN_EACH), "12 % slower than A (interval 9.2 to 15 %, one run of each)"),
        (Change(3.0, 2.9, 3.1), "three times as fast as A (interval 2.9 to 3.1 times, one run of each)"),
        (Change(3.0, 2.98, 3.02, "8 and 8 runs"), "three times as fast as A (8 and 8 runs)"),
        (Change(0.003, 0.002, 0.004), "0.003 times as fast as A (interval 0.002 to 0.004 times, one run of each)"),
        (Change(2000.0, 999.0, 4000.0), "2,000 times as fast as A (interval 999 to 4,000 times, one run of each)"),
        (Change(1.004, 0.995, 1.0123, "8 and 8 runs"), "equal to A within 1.2 % (8 and 8 runs)"),
        (Change(1.004, 1.001, 1.007, "8 and 8 runs"), "equal to A within 0.7 % (8 and 8 runs)"),
        (
            Change(1.03, 0.976, 1.087),
            "not clearly faster or slower than A: +3 % (interval -2.4 to +8.7 %, one run of each)",
        ),
    ],
)
def test_a_change_in_words(change: Change, said: str) -> None:
    assert change.describe(SPEED, "A") == said


def test_the_interval_of_finished_runs_is_called_by_its_size() -> None:
    """It is of one metric alone. That of several experiments is joint, so it has no such size."""
    alone, joint = Change.between([100.0], [120.0]), in_rounds(a=[1.2], b=[1.0])["a"]
    assert "(95 % interval 14 to 27 %, " in alone.describe(SPEED, "A")
    assert "(95 % interval " in Change.between([120.0], [100.0]).describe(LATENCY, "A")
    assert "(interval " in joint.describe(SPEED, "A")


@pytest.mark.parametrize("metric", [SPEED, LATENCY])
@pytest.mark.parametrize("runs", [1, 2])
def test_few_runs_on_a_busy_machine_have_no_interval_and_no_direction(metric: Metric, runs: int) -> None:
    change = Change.between([100.0, 104.0][:runs], [50.0, 52.0][:runs]).on_busy_machine()
    assert not change.has_interval
    assert change.verdict() == change.effect == change.speed_change(metric).effect == "unclear"
    words = change.describe(metric, "A")
    assert words.startswith("not known to be ") and "(" not in words and " to be" in words
    assert change.signed == "-50 %"


def test_runs_enough_on_a_busy_machine_keep_the_interval_that_they_show() -> None:
    change = Change.between([100.0, 104.0, 102.0], [50.0, 52.0, 51.0])
    assert change.on_busy_machine() == change


def test_a_third_of_the_time_is_three_times_the_speed() -> None:
    change = Change.between([2.964], [0.988])
    assert change.describe(LATENCY, "A").startswith("three times as fast as A (95 % interval 2.8 to 3.2 times, ")
    assert Change(1.5, 1.4, 1.6).describe(LATENCY, "A").startswith("33 % slower than A (interval 29 to 38 %, ")
    assert Change(1.5, 1.4, 1.6).describe(POWER, "A").startswith("50 % higher than A (interval 40 to 60 %, ")


@pytest.mark.parametrize(
    ("bound", "side"), [(0.0, "below"), (-3.0, "below"), (-10.0, "unclear"), (-20.0, "above"), (5.0, "below")]
)
def test_the_side_of_a_bound(bound: float, side: str) -> None:
    assert Change(0.9, 0.85, 0.95).verdict(bound) == side


def in_rounds(**ratios: list[float]) -> dict[str, Change]:
    """The changes of experiments that all ran in the same rounds."""
    return changes_by_rounds({name: dict(enumerate(found)) for name, found in ratios.items()})


@pytest.mark.parametrize("count", [3, 5, 12])
def test_the_mean_of_rounds_is_covered(count: int) -> None:
    rng = np.random.default_rng(1)
    found = [in_rounds(a=np.exp(rng.normal(0, 0.02, count)).tolist())["a"] for _ in range(1500)]
    assert 0.935 <= np.mean([change.low <= 1 <= change.high for change in found]) <= 0.965


def test_what_scatters_more_than_the_others_is_judged_by_itself() -> None:
    steady = {str(n): [1.0, 1.001, 0.999] for n in range(5)}
    found = in_rounds(**steady, wild=[1.3, 0.9, 1.1])
    assert found["wild"].verdict() == "unclear"
    assert found["wild"].high / found["wild"].mean > 1.5 > found["0"].high
    assert in_rounds(a=[1.1, 1.1, 1.1])["a"].verdict() == "above"  # without any scatter


def test_the_next_of_several_is_judged_as_if_there_were_fewer() -> None:
    """Holm: five times the interval of two is wider than that of one."""
    alone, both = in_rounds(a=[1.07])["a"], in_rounds(a=[1.07], b=[1.5])["a"]
    assert alone == both and in_rounds(a=[1.07], b=[1.0])["a"].low < alone.low


def sweep(rng: np.random.Generator, rounds: int, changes: list[float], scatter: float = 0.01) -> dict[str, Change]:
    """A simulated sweep whose rounds drift: the ratios of its experiments to the baseline of each round."""
    drift = rng.normal(0, 0.02, rounds)
    base = drift + rng.normal(0, scatter, rounds)
    found = {}
    for number, change in enumerate(changes):
        ratios = np.exp(np.log(change) + drift + rng.normal(0, scatter, rounds) - base)
        found[str(number)] = dict(enumerate(ratios.tolist()))
    return changes_by_rounds(found)


@pytest.mark.parametrize(("rounds", "power"), [(3, 0.6), (4, 0.8), (5, 0.9)])
def test_a_true_change_of_three_percent_among_twenty_is_found(rounds: int, power: float) -> None:
    rng = np.random.default_rng(rounds)
    found = [sweep(rng, rounds, [1.03, *[1.0] * 19]) for _ in range(200)]
    assert np.mean([changes["0"].verdict() == "above" for changes in found]) >= power


@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_of_twenty_changes_of_nothing_few_are_called_one(rounds: int) -> None:
    rng = np.random.default_rng(10 + rounds)
    found = [sweep(rng, rounds, [1.0] * 20) for _ in range(300)]
    wrong = [any(change.verdict() != "unclear" for change in changes.values()) for changes in found]
    assert np.mean(wrong) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


def test_a_round_that_an_experiment_missed_takes_nothing_from_the_others() -> None:
    rng = np.random.default_rng(5)
    ratios = {str(n): dict(enumerate(np.exp(rng.normal(0, 0.01, 5)).tolist())) for n in range(6)}
    del ratios["3"][2], ratios["4"][0]
    found = changes_by_rounds(ratios)
    assert found["3"].basis.endswith("of 4 pairs") and found["0"].basis.endswith("of 5 pairs")
    assert 1 < (found["3"].high / found["3"].low) / (found["0"].high / found["0"].low) < 1.1


def test_one_experiment_is_judged_as_by_the_paired_t_test() -> None:
    logs = [0.03, 0.01, 0.02, 0.04]
    change = in_rounds(a=np.exp(logs).tolist())["a"]
    half = statistics.student_quantile(3) * np.std(logs, ddof=1) / 2
    assert np.log(change.high) - np.log(change.mean) == pytest.approx(half)


@given(st.floats(-0.5, 0.5), st.floats(0.0, 0.3))
def test_the_speed_of_a_time_has_its_interval_in_order(middle: float, half: float) -> None:
    """The ends change places: what is not clearly a slower time is not clearly a faster one."""
    time = Change.around(middle, half, "8 and 8 runs", 8)
    speed = time.speed_change(METRIC_BY_NAME["ttft_p99_ms"])
    assert speed.low <= speed.mean <= speed.high
    opposite = {"above": "below", "below": "above", "unclear": "unclear"}
    assert speed.verdict() == opposite[time.verdict()]
    assert time.speed_change(METRIC_BY_NAME["tokens_per_sec"]) == time


def simulated_change(rng: random.Random, truth: float, most_taken: float) -> Change:
    """A comparison of three runs of each side, of whose processors other programs took a share.

    The share costs a run between nothing and as much of its speed; the truth is the ratio without other programs.
    """
    sides, taken = [], []
    for speed in (100.0, 100.0 * truth):
        shares = [rng.uniform(0, most_taken) for _ in range(3)]
        cost = rng.random()
        sides.append([speed * rng.gauss(1, 0.02) * (1 - cost * share) for share in shares])
        taken.append(max(shares))
    return Change.between(*sides).on_busy_machine(*taken)


@pytest.mark.parametrize("truth", [0.97, 1.0, 1.03, 1.25])
@pytest.mark.parametrize("most_taken", [0.12, 0.5])
def test_the_interval_on_a_busy_machine_holds_the_speed_without_other_programs(truth: float, most_taken: float) -> None:
    rng = random.Random(7)
    changes = [simulated_change(rng, truth, most_taken) for _ in range(2000)]
    held = sum(change.low <= truth <= change.high for change in changes)
    wrong = sum(change.effect == ("below" if truth >= 1 else "above") for change in changes if truth != 1)
    assert held >= 0.95 * len(changes)
    assert wrong <= 0.001 * len(changes)


def test_load_of_one_side_widens_the_interval_to_that_side_alone() -> None:
    change = Change(1.0, 0.98, 1.02, "3 and 3 runs", 3)
    assert change.on_busy_machine(0.5, 0.0) == change._replace(low=0.49)
    assert change.on_busy_machine(0.0, 0.5) == change._replace(high=2.04)
