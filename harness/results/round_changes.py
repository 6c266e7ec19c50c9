"""The changes of experiments that run in rounds with a baseline, judged together.

The model has an effect of each experiment and one of each round: log(figure) = experiment + round + scatter. All
experiments and the baseline show how much the figures scatter, so the verdict on each experiment rests on the residuals
of all.
"""

from collections.abc import Collection, Mapping
from itertools import chain
from math import log, sqrt
from statistics import NormalDist, fmean
from typing import NamedTuple

from harness.core.statistics import chi_squared, student_quantile
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
    """The scatter of a single figure: the variance of its logarithm, and the degrees of freedom of that variance."""

    variance: float
    freedom: float


def changes_by_rounds(ratios: Mapping[str, RatiosByRound], error: float = ERROR_RATE) -> dict[str, Change]:
    """Return the change of each experiment from its ratios to the baseline of the same round.

    Holm's procedure (1979) on Student's t of the logarithms keeps the chance that any verdict is wrong at `error`: the
    clearest change is judged first, with `error` divided by the number of experiments, and each clear change leaves one
    experiment less to divide by. Each interval has the confidence level at which its verdict is given.
    """
    logs = {name: logarithms(of_rounds) for name, of_rounds in ratios.items()}
    common, unsteady = scatter_of(logs)
    means, errors, scores = {}, {}, {}
    for name, log_ratios in logs.items():
        scatter = unsteady.get(name, common)
        means[name] = fmean(log_ratios.values())
        errors[name] = error_of_mean(scatter, len(log_ratios))
        scores[name] = abs(means[name]) / errors[name]
    changes: dict[str, Change] = {}
    left = len(logs)
    for name in sorted(scores, key=scores.__getitem__, reverse=True):
        count = len(logs[name])
        confidence = 1 - error / left
        if count < FEWEST_PAIRS:  # The scatter is then assumed, not estimated, so it has no degrees of freedom.
            quantile = NormalDist().inv_cdf((1 + confidence) / 2)
        else:
            quantile = student_quantile(unsteady.get(name, common).freedom, confidence)
        basis = basis_of(logs[name], means[name])
        changes[name] = Change.around(means[name], quantile * errors[name], basis, count)
        if changes[name].verdict() != "unclear":
            left -= 1
    return {name: changes[name] for name in logs}


def logarithms(ratios: RatiosByRound) -> dict[tuple[int, str], float]:
    return {place: log(ratio) for place, ratio in ratios.items()}


def error_of_mean(scatter: Scatter, count: int) -> float:
    """Return the standard error of the mean of the logarithms of `count` ratios.

    With fewer than FEWEST_PAIRS ratios, the scatter is taken to be at least ASSUMED_SCATTER.
    """
    least = SMALLEST_VARIANCE
    if count < FEWEST_PAIRS:
        least = ASSUMED_SCATTER**2
    variance_of_ratio = 2 * max(least, scatter.variance)  # the experiment's figure and the baseline's both scatter
    return sqrt(variance_of_ratio / count)


def basis_of(log_ratios: RatiosByRound, mean: float) -> str:
    """Return the basis of a change as text: in how many pairs the change has the direction of the mean."""
    count = len(log_ratios)
    if count == 1:
        return ONE_RUN_EACH
    agreeing = sum(value * mean > 0 for value in log_ratios.values())
    return f"{agreeing} of {count} pairs"


def scatter_of(logs: Mapping[str, RatiosByRound]) -> tuple[Scatter, dict[str, Scatter]]:
    """Return the common scatter, and the own scatter of each experiment that scatters more than chance explains.

    The common scatter is then computed again without these experiments, because they would widen it. A single
    experiment, and one with fewer than FEWEST_PAIRS ratios, has no scatter of its own.
    """
    common = residual_scatter(logs)
    by_chance = ERROR_RATE / max(len(logs), 1)  # the chance that a given steady experiment seems unsteady
    unsteady: dict[str, Scatter] = {}
    for name, log_ratios in logs.items():
        if len(logs) == 1 or len(log_ratios) < FEWEST_PAIRS:
            continue
        scatter_of_rest = residual_scatter(without_names(logs, [name]))
        own_scatter = residual_scatter({name: log_ratios})
        largest = scatter_of_rest.variance * chi_squared(own_scatter.freedom, 1 - by_chance) / own_scatter.freedom
        if scatter_of_rest.variance and own_scatter.variance > largest:
            unsteady[name] = own_scatter
    steady = without_names(logs, unsteady)
    if unsteady and steady:
        common = residual_scatter(steady)
    return common, unsteady


def without_names(logs: Mapping[str, RatiosByRound], names: Collection[str]) -> dict[str, RatiosByRound]:
    return {name: log_ratios for name, log_ratios in logs.items() if name not in names}


def residual_scatter(logs: Mapping[str, RatiosByRound]) -> Scatter:
    """Return the scatter of the logarithms that the effects of experiments and rounds do not explain, by least squares.

    The logarithm of a ratio is that of the experiment minus that of the baseline, so the baseline is 0 in each round.
    If an experiment did not run in a round, only that one value is missing from the fit.
    """
    import numpy as np

    rounds = list(dict.fromkeys(chain.from_iterable(logs.values())))
    cells = [(0, column, 0.0) for column in range(len(rounds))]
    for row, log_ratios in enumerate(logs.values(), start=1):
        cells += [(row, rounds.index(place), value) for place, value in log_ratios.items()]
    design, values = np.zeros((len(cells), len(logs) + 1 + len(rounds))), np.zeros(len(cells))
    for number, (row, column, value) in enumerate(cells):
        design[number, row] = 1.0
        design[number, len(logs) + 1 + column] = 1.0
        values[number] = value
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    freedom = len(cells) - int(rank)
    if not freedom:
        return Scatter(0.0, 1.0)
    residuals = values - design @ solution
    return Scatter(float(residuals @ residuals) / freedom, float(freedom))
