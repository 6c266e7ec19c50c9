"""How often the interval of a load's effect holds the true effect, on simulated tests.

    python -m benchmarks.load_effect [--tests N]

The load of other programs has one of five shapes. The speed also varies by itself. In some tests this variation is
independent from second to second; in others a second is more or less like the one before.
"""

import argparse
from collections.abc import Callable
from random import Random
from statistics import fmean, median
from typing import NamedTuple

from harness.results.load_effect import BLOCK_READINGS, fitted_effect, lost_percent

SPEED = 100.0  # tokens/s without load
# The standard deviation of a second's independent variation, in tokens/s. It is also that of the steps of the variation
# that lasts over seconds.
NOISE = 8.0
PERSISTENCES = (0.0, 0.5, 0.8)  # the share of that lasting variation that remains after a second
SECONDS = (60, 120, 300, 600)  # the lengths of the tests
COSTS = (0.0, 0.5, 1.0)  # the share of the speed that a load of the whole CPU costs


# Each shape returns the load in percent of the CPU for each second of a test.
def on_and_off(count: int, _random: Random) -> list[float]:
    """Return a load that is none and 40 % in turn, for half a minute each."""
    return [40.0 if second // 30 % 2 else 0.0 for second in range(count)]


def bursts(count: int, random: Random) -> list[float]:
    """Return a load of 60 % for 3 of every 20 seconds."""
    offset = random.randrange(20)
    return [60.0 if (second + offset) % 20 < 3 else 0.0 for second in range(count)]


def independent_seconds(count: int, random: Random) -> list[float]:
    """Return a load that is drawn for each second independently, around 20 %."""
    return [min(100.0, max(0.0, random.gauss(20, 15))) for _second in range(count)]


def one_period(count: int, random: Random) -> list[float]:
    """Return a load of 50 % for one third of the test."""
    begin = random.randrange(count // 2)
    end = begin + count // 3
    return [50.0 if begin <= second < end else 0.0 for second in range(count)]


def wandering(count: int, random: Random) -> list[float]:
    """Return a load that wanders around 30 %: each second is much like the one before."""
    loads, offset = [], 0.0
    for _second in range(count):
        offset = 0.95 * offset + random.gauss(0, 6)
        loads.append(min(100.0, max(0.0, 30 + offset)))
    return loads


LoadShape = Callable[[int, Random], list[float]]
LOAD_SHAPES: dict[str, LoadShape] = {
    "on and off": on_and_off,
    "bursts": bursts,
    "each second anew": independent_seconds,
    "once": one_period,
    "wandering": wandering,
}


def speeds_under(loads: list[float], cost: float, random: Random) -> list[float]:
    """Return the speed of each second in tokens/s.

    `loads` are in percent of the CPU, and `cost` is the share of the speed that a load of the whole CPU costs.
    """
    persistence = random.choice(PERSISTENCES)
    lasting_variation = 0.0
    speeds = []
    for load in loads:
        lasting_variation = persistence * lasting_variation + random.gauss(0, NOISE)
        independent_variation = random.gauss(0, NOISE)
        expected_speed = SPEED * (1 - cost * load / 100)
        speeds.append(expected_speed + lasting_variation + independent_variation)
    return speeds


def block_means(values: list[float]) -> list[float]:
    """Return the mean of each whole block of BLOCK_READINGS values."""
    last = len(values) - BLOCK_READINGS + 1
    return [fmean(values[first : first + BLOCK_READINGS]) for first in range(0, last, BLOCK_READINGS)]


class Coverage(NamedTuple):
    """The quality of the intervals of simulated tests."""

    right: float  # the share of the intervals that hold the true effect
    wrong_sign: float  # the share that shows a gain
    median_width: float  # in percentage points


def coverage(shape_name: str, seconds: int, cost: float, tests: int) -> Coverage:
    """Simulate tests under a shape of load, and return how good their intervals are. Tests without one do not count."""
    shape = LOAD_SHAPES[shape_name]
    seed_name = shape_name.replace(" ", "_")
    right = wrong_sign = 0
    widths = []
    for seed in range(tests):
        random = Random(f"{seed_name} {seconds} {cost} {seed}")
        loads = shape(seconds, random)
        effect = fitted_effect(block_means(loads), block_means(speeds_under(loads, cost, random)))
        if effect is None:
            continue
        mean_load = fmean(loads)
        mean_speed = SPEED * (1 - cost * mean_load / 100)
        true_percent = lost_percent(-SPEED * cost / 100, mean_load, mean_speed)
        assert true_percent is not None
        if effect.low_percent <= true_percent <= effect.high_percent:
            right += 1
        if effect.high_percent < 0:
            wrong_sign += 1
        widths.append(effect.high_percent - effect.low_percent)
    return Coverage(right / len(widths), wrong_sign / len(widths), median(widths))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=1000)
    tests = parser.parse_args().tests
    print("| load | seconds | cost of a whole CPU | interval holds it | wrong sign | width, points |")
    print("|---|---|---|---|---|---|")
    for name in LOAD_SHAPES:
        for seconds in SECONDS:
            for cost in COSTS:
                intervals = coverage(name, seconds, cost, tests)
                shares = f"{intervals.right:.3f} | {intervals.wrong_sign:.3f} | {intervals.median_width:.1f}"
                print(f"| {name} | {seconds} | {100 * cost:.0f} % | {shares} |", flush=True)


if __name__ == "__main__":
    main()
