"""How often the interval of `compare` covers the true ratio of two servers, under the rule by which it stops.

    python -m benchmarks.rounds            # a table, in a minute
    python -m benchmarks.rounds --sessions 100000

A session is simulated as `compare` runs it: pairs of tests in the order A B, B A, and so on. Each test's speed has a
log-normal scatter and a drift over the whole session. The interval is computed after every second pair, which is called
a look. A session ends at the first interval narrower than `--within`, or after all rounds.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.core.statistics import student_quantile
from harness.sweep.experiment import LOOK_ERROR
from harness.sweep.sweep_state import FEWEST_ROUNDS

RATIOS = (0.0, 0.02, 0.05)  # B's speed over A's, less 1
SCATTERS = (0.01, 0.015, 0.02, 0.03, 0.05, 0.1)  # standard deviations of a test's speed, as a share of it
DRIFTS = (0.0, 0.05)  # rises of the speed over a session, as a share of it


@dataclass(frozen=True)
class Sessions:
    """The results of simulated sessions."""

    covered: float  # the share of sessions whose interval covers the true ratio
    different: float  # the share whose interval lies wholly above or below 1
    pairs: float  # the mean number of pairs of tests


def simulate(
    ratio: float,
    scatter: float,
    drift: float,
    sessions: int = 10_000,
    rounds: int = 8,
    within: float = 0.02,
    share: float = 1 - LOOK_ERROR,
    seed: int = 0,
) -> Sessions:
    """Simulate sessions of at most 2 * `rounds` pairs, and return their results.

    `ratio` is that of B's speed to A's, less 1. `scatter` of each test and `drift` over the session are shares of the
    speed. `share` is the confidence of the interval at a look; a session ends if that is narrower than `within`.
    """
    most_pairs = 2 * rounds
    logs = log_ratios(ratio, scatter, drift, sessions, most_pairs, seed)
    low, high = np.empty(sessions), np.empty(sessions)
    pairs = np.zeros(sessions, int)  # the number of pairs in each session at its end; 0 while it goes on
    for count in range(FEWEST_ROUNDS, most_pairs + 1, 2):
        means = logs[:, :count].mean(axis=1)
        standard_errors = logs[:, :count].std(axis=1, ddof=1) / np.sqrt(count)
        half_widths = student_quantile(count - 1, share) * standard_errors
        lows, highs = np.exp(means - half_widths), np.exp(means + half_widths)
        is_narrow = highs - lows < within
        has_ended = (pairs == 0) & (is_narrow | (count == most_pairs))
        low[has_ended], high[has_ended] = lows[has_ended], highs[has_ended]
        pairs[has_ended] = count
    covered = (low <= 1 + ratio) & (1 + ratio <= high)
    different = (low > 1) | (high < 1)
    return Sessions(float(covered.mean()), float(different.mean()), float(pairs.mean()))


def log_ratios(ratio: float, scatter: float, drift: float, sessions: int, pairs: int, seed: int) -> NDArray[np.float64]:
    """Return the logarithms of the measured ratios of B's speed to A's, one row a session, one column a pair."""
    noise = np.random.default_rng(seed).normal(0, scatter, (sessions, pairs, 2))  # The last axis is A and B.
    # The speed drifts evenly from the first test of the session to the last.
    tests = 2 * pairs
    drift_of_test = np.log1p(drift) * np.arange(tests) / (tests - 1)
    drift_of_pair = drift_of_test.reshape(pairs, 2)  # The last axis is A and B.
    drift_of_pair[1::2] = drift_of_pair[1::2, ::-1]  # B runs first in every second pair.
    log_a = noise[:, :, 0] + drift_of_pair[:, 0]
    log_b = np.log1p(ratio) + (noise[:, :, 1] + drift_of_pair[:, 1])
    return np.asarray(log_b - log_a)


def table(sessions: int) -> Iterator[str]:
    """Yield the lines of the table, which has a row for each ratio, scatter and drift."""
    yield "| true ratio | scatter of a test | drift | covered | called different | pairs, mean |"
    yield "|---|---|---|---|---|---|"
    for ratio in RATIOS:
        for scatter in SCATTERS:
            for drift in DRIFTS:
                results = simulate(ratio, scatter, drift, sessions)
                conditions = f"{1 + ratio:g} | {100 * scatter:g} % | {100 * drift:g} %"
                yield f"| {conditions} | {results.covered:.3f} | {results.different:.3f} | {results.pairs:.1f} |"


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--sessions", type=int, default=20_000)
    return flags


if __name__ == "__main__":
    print("\n".join(table(parser().parse_args().sessions)))
