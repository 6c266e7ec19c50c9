"""How often the interval of a load's effect holds the true effect, on simulated tests.

    python -m benchmarks.load_effect [--tests N]

The load of other programs comes in five forms; the speed also varies by itself, each second like the one before.
"""

import argparse
from collections.abc import Callable
from random import Random
from statistics import fmean, median

from harness.results.load_effect import BLOCK_READINGS, fitted_effect, lost_percent

SPEED = 100.0  # tokens/s without load
# The standard deviation of a second's speed by chance, in tokens/s. As much again is like that of the second before.
NOISE = 8.0
SECONDS = (60, 120, 300, 600)
COSTS = (0.0, 0.5, 1.0)  # the share of the speed that a load of the whole CPU costs


def on_and_off(count: int, _random: Random) -> list[float]:
    """A load of 40 % for half a minute, and none for half a minute."""
    return [40.0 * (second // 30 % 2) for second in range(count)]


def bursts(count: int, random: Random) -> list[float]:
    """A load of 60 % for 3 of 20 seconds."""
    first = random.randrange(20)
    return [60.0 * ((second + first) % 20 < 3) for second in range(count)]


def each_second_anew(count: int, random: Random) -> list[float]:
    return [min(100.0, max(0.0, random.gauss(20, 15))) for _second in range(count)]


def once(count: int, random: Random) -> list[float]:
    """A load of 50 % for a third of the test."""
    begin = random.randrange(count // 2)
    return [50.0 * (begin <= second < begin + count // 3) for second in range(count)]


def wandering(count: int, random: Random) -> list[float]:
    loads, offset = [], 0.0
    for _second in range(count):
        offset = 0.95 * offset + random.gauss(0, 6)
        loads.append(min(100.0, max(0.0, 30 + offset)))
    return loads


Load = Callable[[int, Random], list[float]]
LOADS: dict[str, Load] = {
    "on and off": on_and_off,
    "bursts": bursts,
    "each second anew": each_second_anew,
    "once": once,
    "wandering": wandering,
}


def speeds_under(loads: list[float], cost: float, random: Random) -> list[float]:
    """The speed of each second. Its own variation is independent or like the second before, by chance."""
    likeness, offset, speeds = random.choice((0.0, 0.5, 0.8)), 0.0, []
    for load in loads:
        offset = likeness * offset + random.gauss(0, NOISE)
        speeds.append(SPEED * (1 - cost * load / 100) + offset + random.gauss(0, NOISE))
    return speeds


def block_means(values: list[float]) -> list[float]:
    last = len(values) - BLOCK_READINGS + 1
    return [fmean(values[first : first + BLOCK_READINGS]) for first in range(0, last, BLOCK_READINGS)]


def coverage(load: Load, seconds: int, cost: float, tests: int) -> tuple[float, float, float]:
    """The share of intervals with the true effect, the share with a wrong sign, and their median width in points."""
    right = wrong_sign = 0
    widths = []
    for seed in range(tests):
        random = Random(f"{load.__name__} {seconds} {cost} {seed}")
        loads = load(seconds, random)
        effect = fitted_effect(block_means(loads), block_means(speeds_under(loads, cost, random)))
        if effect is None:
            continue
        mean_load = fmean(loads)
        truth = lost_percent(-SPEED * cost / 100, mean_load, SPEED * (1 - cost * mean_load / 100))
        assert truth is not None
        right += effect.low_percent <= truth <= effect.high_percent
        wrong_sign += effect.high_percent < 0
        widths.append(effect.high_percent - effect.low_percent)
    return right / len(widths), wrong_sign / len(widths), median(widths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=1000)
    tests = parser.parse_args().tests
    print("| load | seconds | cost of a whole CPU | interval holds it | wrong sign | width, points |")
    print("|---|---|---|---|---|---|")
    for name, load in LOADS.items():
        for seconds in SECONDS:
            for cost in COSTS:
                held, wrong, width = coverage(load, seconds, cost, tests)
                row = (name, str(seconds), f"{100 * cost:.0f} %", f"{held:.3f}", f"{wrong:.3f}", f"{width:.1f}")
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
