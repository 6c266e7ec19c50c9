"""The changes of experiments that run in rounds with a baseline, judged together.

The model has an effect of each experiment and one of each round: log(figure) = experiment + round + scatter. All
experiments and the baseline tell how much the figures scatter, so the verdict on one rests on the residuals of all.
"""

from collections.abc import Mapping
from math import log, sqrt
from statistics import NormalDist, fmean
from typing import NamedTuple

from harness.core.statistics import chi_squared, student
from harness.results.change import (
    ASSUMED_SCATTER,
    ERROR_RATE,
    FEWEST_PAIRS,
    ONE_RUN_EACH,
    SMALLEST_VARIANCE,
    Change,
)

RatiosByRound = Mapping[tuple[int, str], float]  # ratios of a figure to the baseline's in the same round and place


class Scatter(NamedTuple):
    """The scatter of a single figure: the variance of its logarithm, and the degrees of freedom of that."""

    variance: float
    freedom: float


def paired(ratios: Mapping[str, RatiosByRound], error: float = ERROR_RATE) -> dict[str, Change]:
    """Return the change of each experiment, by its ratios to the baseline of the same round.

    The verdicts together are wrong in at most `error` of such comparisons: Holm's procedure (1979) on Student's t of
    the logarithms; an interval is of the level at which its verdict is given.
    """
    logs = {name: {place: log(ratio) for place, ratio in log_ratios.items()} for name, log_ratios in ratios.items()}
    common, unsteady = scatter_of(logs)
    means = {name: fmean(log_ratios.values()) for name, log_ratios in logs.items()}
    errors = {}
    for name, log_ratios in logs.items():
        scatter = unsteady.get(name, common)
        least = ASSUMED_SCATTER**2 if len(log_ratios) < FEWEST_PAIRS else SMALLEST_VARIANCE
        errors[name] = sqrt(2 * max(least, scatter.variance) / len(log_ratios))  # its own scatter, and the baseline's
    changes: dict[str, Change] = {}
    left = len(logs)
    for name in sorted(logs, key=lambda name: -abs(means[name]) / errors[name]):
        count = len(logs[name])
        share = 1 - error / left
        if count < FEWEST_PAIRS:
            quantile = NormalDist().inv_cdf((1 + share) / 2)
        else:
            quantile = student(unsteady.get(name, common).freedom, share)
        agreeing = sum(value * means[name] > 0 for value in logs[name].values())
        basis = ONE_RUN_EACH if count == 1 else f"{agreeing} of {count} pairs"
        changes[name] = Change.around(means[name], quantile * errors[name], basis, count)
        if changes[name].verdict() != "unclear":
            left -= 1
    return {name: changes[name] for name in logs}


def scatter_of(logs: Mapping[str, RatiosByRound]) -> tuple[Scatter, dict[str, Scatter]]:
    """Return the scatter that the experiments share, and that of each which scatters more than chance makes one do.

    Without the outlying ones the rest is looked at once more, since they widen what is shared.
    """
    common = residual_scatter(logs)
    by_chance = ERROR_RATE / max(len(logs), 1)  # how likely one of them may seem unsteady that is not
    unsteady: dict[str, Scatter] = {}
    for name, log_ratios in logs.items():
        if len(logs) == 1 or len(log_ratios) < FEWEST_PAIRS:
            continue
        scatter_of_others = residual_scatter(
            {other_name: values for other_name, values in logs.items() if other_name != name}
        )
        own_scatter = residual_scatter({name: log_ratios})
        largest = scatter_of_others.variance * chi_squared(own_scatter.freedom, 1 - by_chance) / own_scatter.freedom
        if scatter_of_others.variance and own_scatter.variance > largest:
            unsteady[name] = own_scatter
    if unsteady:
        steady = {name: log_ratios for name, log_ratios in logs.items() if name not in unsteady}
        common = residual_scatter(steady) if steady else common
    return common, unsteady


def residual_scatter(logs: Mapping[str, RatiosByRound]) -> Scatter:
    """Return what is left of the figures' logarithms beyond the effects of experiments and rounds, by least squares.

    The logarithm of a ratio is that of the experiment less that of the baseline, so that in each round the baseline
    stands at 0. Rounds in which an experiment did not run are left out of it, and not of the others.
    """
    import numpy as np

    rounds = list(dict.fromkeys(place for log_ratios in logs.values() for place in log_ratios))
    cells = [(0, column, 0.0) for column in range(len(rounds))]
    for row, log_ratios in enumerate(logs.values(), start=1):
        cells += [(row, rounds.index(place), value) for place, value in log_ratios.items()]
    design = np.zeros((len(cells), len(logs) + 1 + len(rounds)))
    for number, (row, column, _) in enumerate(cells):
        design[number, row] = 1.0
        design[number, len(logs) + 1 + column] = 1.0
    values = np.array([value for *_, value in cells])
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    freedom = len(cells) - int(rank)
    if not freedom:
        return Scatter(0.0, 1.0)
    residuals = values - design @ solution
    return Scatter(float(residuals @ residuals) / freedom, float(freedom))
