"""How often the interval of `compare` covers the true ratio of two servers, under the rule by which it stops.

    python -m benchmarks.rounds            # a table, in a minute
    python -m benchmarks.rounds --sessions 100000

A session is simulated as `compare` runs it: pairs of tests in the order A B, B A, ..., each test's speed with a
log-normal scatter and a drift over the whole session; a look after every second pair, and the end at the first interval
narrower than `--within`, or after all rounds.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.core.statistics import student_quantile
from harness.sweep.experiment import LOOK_ERROR
from harness.sweep.sweep_state import FEWEST_ROUNDS

RATIOS, SCATTERS, DRIFTS = (0.0, 0.02, 0.05), (0.01, 0.015, 0.02, 0.03, 0.05, 0.1), (0.0, 0.05)


@dataclass(frozen=True)
class Sessions:
    """What came of simulated sessions: shares whose interval covers the true ratio, and lies wholly beside 1; the mean
    number of pairs.
    """

    covered: float
    different: float
    pairs: float


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
    """`ratio` of B's speed to A's less 1, `scatter` of each test and `drift` over the session as shares."""
    source, count = np.random.default_rng(seed), 2 * rounds
    noise = source.normal(0, scatter, (sessions, count, 2))
    place = np.log1p(drift) * np.arange(2 * count).reshape(count, 2) / (2 * count - 1)
    place[1::2] = place[1::2, ::-1]  # B goes first in every second pair
    logs = np.log1p(ratio) + (noise[:, :, 1] + place[:, 1]) - (noise[:, :, 0] + place[:, 0])
    low, high, pairs = np.empty(sessions), np.empty(sessions), np.zeros(sessions, int)
    for n in range(FEWEST_ROUNDS, count + 1, 2):
        middle, spread = logs[:, :n].mean(axis=1), logs[:, :n].std(axis=1, ddof=1)
        half = student_quantile(n - 1, share) * spread / np.sqrt(n)
        ends = np.exp(middle - half), np.exp(middle + half)
        stops = (pairs == 0) & ((ends[1] - ends[0] < within) | (n == count))
        low[stops], high[stops], pairs[stops] = ends[0][stops], ends[1][stops], n
    covered, different = (low <= 1 + ratio) & (1 + ratio <= high), (low > 1) | (high < 1)
    return Sessions(float(covered.mean()), float(different.mean()), float(pairs.mean()))


def table(sessions: int) -> Iterator[str]:
    yield "| true ratio | scatter of a test | drift | covered | called different | pairs, mean |"
    yield "|---|---|---|---|---|---|"
    for ratio in RATIOS:
        for scatter in SCATTERS:
            for drift in DRIFTS:
                found = simulate(ratio, scatter, drift, sessions)
                shares = f"{found.covered:.3f} | {found.different:.3f} | {found.pairs:.1f}"
                yield f"| {1 + ratio:g} | {100 * scatter:g} % | {100 * drift:g} % | {shares} |"


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--sessions", type=int, default=20_000)
    return flags


if __name__ == "__main__":
    print("\n".join(table(parser().parse_args().sessions)))
