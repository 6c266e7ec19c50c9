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


def changes_by_rounds(ratios: Mapping[str, RatiosByRound], error_rate: float = ERROR_RATE) -> dict[str, Change]:
    """Return the change of each experiment from the ratios of its figures to the baseline's in the same round.

    `error_rate` is the chance that any verdict is wrong, which Holm's procedure (1979) keeps. Intervals are of the
    logarithms, by Student's t.
    """
    log_ratios_by_name = {name: logarithms(ratios_by_round) for name, ratios_by_round in ratios.items()}
    # All ratios together show the scatter of an experiment best. Only unsteady experiments have a scatter of their own.
    common_scatter, scatters_of_unsteady = scatter_of(log_ratios_by_name)
    scatters = {name: scatters_of_unsteady.get(name, common_scatter) for name in log_ratios_by_name}
    means, standard_errors, clearness = {}, {}, {}
    for name, log_ratios in log_ratios_by_name.items():
        means[name] = fmean(log_ratios.values())
        standard_errors[name] = error_of_mean(scatters[name], len(log_ratios))
        clearness[name] = abs(means[name]) / standard_errors[name]
    changes: dict[str, Change] = {}
    # Holm's procedure judges the clearest change first, and divides the error rate among the experiments that are not
    # known to have changed. Each clear change leaves a larger share for the others.
    experiments_left = len(log_ratios_by_name)
    for name in sorted(clearness, key=clearness.__getitem__, reverse=True):
        pair_count = len(log_ratios_by_name[name])
        confidence = 1 - error_rate / experiments_left
        reach = half_width_in_errors(scatters[name], pair_count, confidence) * standard_errors[name]
        basis = basis_of(log_ratios_by_name[name], means[name])  # such as "4 of 5 pairs"
        changes[name] = Change.around(means[name], reach, basis, pair_count)
        if changes[name].verdict() != "unclear":
            experiments_left -= 1
    return {name: changes[name] for name in log_ratios_by_name}  # in the order of the experiments again


def half_width_in_errors(scatter: Scatter, count: int, confidence: float) -> float:
    """Return half the width of the interval of a mean of `count` values, in standard errors of the mean."""
    if count < FEWEST_PAIRS:  # The scatter is then assumed. Student's t is only for one that was estimated.
        return NormalDist().inv_cdf((1 + confidence) / 2)
    return student_quantile(scatter.freedom, confidence)


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
    """Return how many pairs of runs changed in the direction of the mean, as text: "4 of 5 pairs", or ONE_RUN_EACH.

    `log_ratios` are the logarithms of the ratios, and `mean` is their mean.
    """
    count = len(log_ratios)
    if count == 1:
        return ONE_RUN_EACH
    agreeing_count = 0
    for log_ratio in log_ratios.values():
        if log_ratio * mean > 0:  # both above 0 or both below
            agreeing_count += 1
    return f"{agreeing_count} of {count} pairs"


def scatter_of(log_ratios_by_name: Mapping[str, RatiosByRound]) -> tuple[Scatter, dict[str, Scatter]]:
    """Return the common scatter of the experiments, and the scatter of each unsteady experiment by its name.

    An experiment is unsteady if it scatters more than chance explains.
    """
    error_of_experiment = ERROR_RATE / max(
        len(log_ratios_by_name), 1
    )  # the chance that a steady experiment is called unsteady
    unsteady: dict[str, Scatter] = {}
    for name, log_ratios in log_ratios_by_name.items():
        # A single experiment has no other to compare with, and too few ratios show no scatter.
        if len(log_ratios_by_name) == 1 or len(log_ratios) < FEWEST_PAIRS:
            continue
        scatter_of_others = residual_scatter(without_names(log_ratios_by_name, [name]))
        own_scatter = residual_scatter({name: log_ratios})
        # By chance, the variance of a steady experiment is a multiple of that of the others: a chi-squared value over
        # its degrees of freedom.
        largest_chi_squared = chi_squared(own_scatter.freedom, 1 - error_of_experiment)
        largest_by_chance = scatter_of_others.variance * largest_chi_squared / own_scatter.freedom
        # If the others do not scatter at all, there is nothing to compare with.
        if scatter_of_others.variance and own_scatter.variance > largest_by_chance:
            unsteady[name] = own_scatter
    steady = without_names(log_ratios_by_name, unsteady)
    return residual_scatter(steady or log_ratios_by_name), unsteady


def without_names(log_ratios_by_name: Mapping[str, RatiosByRound], names: Collection[str]) -> dict[str, RatiosByRound]:
    return {name: log_ratios for name, log_ratios in log_ratios_by_name.items() if name not in names}


def residual_scatter(log_ratios_by_name: Mapping[str, RatiosByRound]) -> Scatter:
    """Return the scatter of the logarithms that the effects of experiments and rounds do not explain, by least squares.

    The logarithm of a ratio is that of the experiment minus that of the baseline, so the baseline is 0 in each round.
    """
    import numpy as np

    rounds = list(dict.fromkeys(chain.from_iterable(log_ratios_by_name.values())))
    # Each cell is one value: the number of its experiment (0 is the baseline), of its round, and its logarithm.
    cells = [(0, round_number, 0.0) for round_number in range(len(rounds))]
    for experiment_number, value_by_round in enumerate(log_ratios_by_name.values(), start=1):
        cells += [(experiment_number, rounds.index(name), value) for name, value in value_by_round.items()]
    values = np.array([value for _experiment, _round, value in cells])
    # A value is the effect of its experiment plus the effect of its round. So each row of the design has a 1 in the
    # column of its experiment (the first columns, with the baseline's) and a 1 in the column of its round.
    experiment_columns = 1 + len(log_ratios_by_name)
    design = np.zeros((len(cells), experiment_columns + len(rounds)))
    for cell_number, (experiment_number, round_number, _value) in enumerate(cells):
        design[cell_number, experiment_number] = 1.0
        design[cell_number, experiment_columns + round_number] = 1.0
    solution, _sums, rank, _singular_values = np.linalg.lstsq(design, values, rcond=None)
    freedom = len(cells) - int(rank)
    if not freedom:  # The effects explain every value, so no value is left to show a scatter.
        return Scatter(variance=0.0, freedom=1.0)
    residuals = values - design @ solution
    return Scatter(float(residuals @ residuals) / freedom, float(freedom))
