"""Levels of fixed concurrency: which ones are tested, how long, and the highest that keeps its limits."""

import math
from collections.abc import Callable, Sequence

from harness.common.markdown import number
from harness.config.mlperf import Limits
from harness.config.plan import Plan
from harness.rates.target_rate import OFFLINE_MARGIN
from harness.rates.trial import Trial
from harness.runs.probe import Probe

LEVEL_RATIO = 4  # the ratio of one level to the next, of those that are chosen here
FINAL_RATIO = 1.1  # the lowest level too high over the highest that held, where the search ends
MOST_PROBES = 16  # probes of a search
CLEAR = 1.5  # times a limit, or a limit over a latency: beyond, one probe tells


def levels_of(given: Sequence[int], concurrency: int) -> list[int]:
    """The levels to test: those given, or else powers of four up to what the engine computes at once."""
    if given:
        return list(given)
    powers = [LEVEL_RATIO**n for n in range(20) if LEVEL_RATIO**n < concurrency]
    return [*powers, concurrency]


def at_level(plan: Plan, level: int, found: Trial) -> Plan:
    """The plan with its concurrency, and the rate that LoadGen has to expect there."""
    rate = OFFLINE_MARGIN * found.samples_per_sec
    note = f"concurrency {level:,}: {number(rate)} samples/s expected ({OFFLINE_MARGIN} x {found})"
    return plan.with_note(note, concurrency=level, target_qps=rate)


def highest(probe: Callable[[int], Probe], limits: Limits, first: int, most: int) -> int | None:
    """The most in flight that keep the limits, by probes; None where a single one does not.

    Latencies of a few hundred requests are noisy: near a limit a level holds, and one is too many, if a second probe of
    it says so too; a probe that is far from it counts twice. Levels double from `first` until one is too many, then
    halve the gap.
    """
    verdicts: dict[int, list[bool]] = {}

    def is_held(level: int) -> bool:
        """Tests a level once, and again where the first time does not agree with a second; two of three decide."""
        said = verdicts.setdefault(level, [])

        def test() -> None:
            found = probe(level)
            said.extend([not found.why] * (1 if is_near(found, limits) else 2))

        test()
        if not said[0] and len(said) == 1:
            test()
        if len(said) == 2 and said[0] != said[1]:
            test()
        return 2 * sum(said) > len(said)

    low, high, level = 0, most + 1, min(first, most)
    while high - low > 1 and not (low and high / low <= FINAL_RATIO) and len(verdicts) < MOST_PROBES:
        if is_held(level):
            low = level
        else:
            high = level
        level = min(2 * level, most) if high > most else math.isqrt(max(low, 1) * high)
        level = min(max(level, low + 1), high - 1)
    while low and len(verdicts[low]) < 2 and not is_held(low):  # once was chance
        low = max((level for level, said in verdicts.items() if level < low and said[0]), default=0)
    return low or None


def is_near(probe: Probe, limits: Limits) -> bool:
    """Whether the latency that is nearest to its limit, or farthest beyond it, could be on its other side by chance."""
    shares = ((probe.ttft_p99 or 0.0) / limits.ttft, (probe.tpot_p99 or 0.0) / limits.tpot)
    return 1 / CLEAR < max(shares) < CLEAR
