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
    """Return the change of each experiment from the ratios of its figures to the baseline's in the same round.

    A round is one run of the baseline and of each experiment. Holm's procedure (1979) on Student's t of the logarithms
    keeps the chance that any verdict is wrong at `error`: the clearest change is judged first, with `error` divided by
    the number of experiments, and each clear change leaves one experiment less to divide by. Each interval has the
    confidence level at which its verdict is given.
    """
    logs = {name: logarithms(ratios_by_round) for name, ratios_by_round in ratios.items()}
    common_scatter, own_scatters = scatter_of(logs)
    means, errors, clearness = {}, {}, {}
    for name, log_ratios in logs.items():
        scatter = own_scatters.get(name, common_scatter)
        means[name] = fmean(log_ratios.values())
        errors[name] = error_of_mean(scatter, len(log_ratios))
        clearness[name] = abs(means[name]) / errors[name]
    changes: dict[str, Change] = {}
    experiments_left = len(logs)
    for name in sorted(clearness, key=clearness.__getitem__, reverse=True):
        count = len(logs[name])
        confidence = 1 - error / experiments_left
        # With so few pairs the scatter is assumed, not estimated, so it has no degrees of freedom.
        if count < FEWEST_PAIRS:
            quantile = NormalDist().inv_cdf((1 + confidence) / 2)
        else:
            quantile = student_quantile(own_scatters.get(name, common_scatter).freedom, confidence)
        basis = basis_of(logs[name], means[name])
        changes[name] = Change.around(means[name], quantile * errors[name], basis, count)
        if changes[name].verdict() != "unclear":
            experiments_left -= 1
    return {name: changes[name] for name in logs}


def logarithms(ratios: RatiosByRound) -> dict[tuple[int, str], float]:
    return {place: log(ratio) for place, ratio in ratios.items()}


def error_of_mean(scatter: Scatter, count: int) -> float:
    """Return the standard error of the mean of the logarithms of `count` ratios, from the scatter of a single figure.

    With fewer than FEWEST_PAIRS ratios, the scatter is taken to be at least ASSUMED_SCATTER.
    """
    least_variance = SMALLEST_VARIANCE
    if count < FEWEST_PAIRS:
        least_variance = ASSUMED_SCATTER**2
    variance_of_ratio = 2 * max(least_variance, scatter.variance)  # Both figures of a ratio scatter.
    return sqrt(variance_of_ratio / count)


def basis_of(log_ratios: RatiosByRound, mean: float) -> str:
    """Return what a change rests on, as text: in how many pairs of runs it has the direction of
    the mean, as in "4 of 5 pairs".
    """
    count = len(log_ratios)
    if count == 1:
        return ONE_RUN_EACH
    agreeing = sum(value * mean > 0 for value in log_ratios.values())
    return f"{agreeing} of {count} pairs"


def scatter_of(logs: Mapping[str, RatiosByRound]) -> tuple[Scatter, dict[str, Scatter]]:
    """Return the common scatter of all experiments, and that of each one which scatters more than chance explains.

    `logs` has the logarithms of each experiment's ratios. An unsteady experiment would widen the common scatter, which
    is then computed without it. If all are unsteady, the common scatter stays that of all. A single experiment, and one
    with fewer than FEWEST_PAIRS ratios, has no scatter of its own.
    """
    common = residual_scatter(logs)
    by_chance = ERROR_RATE / max(len(logs), 1)  # the chance that a given steady experiment seems unsteady
    unsteady: dict[str, Scatter] = {}
    for name, log_ratios in logs.items():
        if len(logs) == 1 or len(log_ratios) < FEWEST_PAIRS:
            continue
        scatter_of_rest = residual_scatter(without_names(logs, [name]))
        own_scatter = residual_scatter({name: log_ratios})
        # The variance that a steady experiment exceeds with the probability `by_chance`, by the chi-squared
        # distribution.
        largest_by_chance = (
            scatter_of_rest.variance * chi_squared(own_scatter.freedom, 1 - by_chance) / own_scatter.freedom
        )
        # If the others do not scatter at all, there is nothing to compare with.
        if scatter_of_rest.variance and own_scatter.variance > largest_by_chance:
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
    If an experiment did not run in a round, only that one value is missing from the fit. The variance is 0 if the
    effects explain every value.
    """
    import numpy as np

    rounds = list(dict.fromkeys(chain.from_iterable(logs.values())))
    # Each cell is one value: the number of its experiment (0 is the baseline), of its round, and its logarithm.
    cells = [(0, round_number, 0.0) for round_number in range(len(rounds))]
    for experiment_number, log_ratios in enumerate(logs.values(), start=1):
        cells += [(experiment_number, rounds.index(place), value) for place, value in log_ratios.items()]
    design, values = np.zeros((len(cells), len(logs) + 1 + len(rounds))), np.zeros(len(cells))
    # Each value is the effect of its experiment, in the first columns, plus the effect of its round, in the others.
    for cell_number, (experiment_number, round_number, value) in enumerate(cells):
        design[cell_number, experiment_number] = 1.0
        design[cell_number, len(logs) + 1 + round_number] = 1.0
        values[cell_number] = value
    solution, _sums, rank, _singular_values = np.linalg.lstsq(design, values, rcond=None)
    freedom = len(cells) - int(rank)
    if not freedom:
        return Scatter(variance=0.0, freedom=1.0)
    residuals = values - design @ solution
    return Scatter(float(residuals @ residuals) / freedom, float(freedom))
