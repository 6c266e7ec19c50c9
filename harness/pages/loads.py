"""Latency by load: each test as a point with its place, and the answer under the limits, which the page's script moves.

Nothing lies between two points: no line joins them, and the answer is one of the loads that were tested.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.common.markdown import number
from harness.loadgen.log import Latency
from harness.results.gpu_time import GpuTime
from harness.results.performance import Performance
from harness.runs.probe import Probe

HEIGHT = 250  # pixels of a plot
POINTS = ("p50", "p90", "p99")
WIDE = 20  # times the smallest: from here on an axis is logarithmic
ROOM = 1.2  # times the largest: of an axis above its highest mark
MOST_TICKS = 6
EDGE = 6.0  # percent of an axis, left free beside the first and the last load
CLOSE = 5.0  # percent between two ticks, at least
MARGIN = 0.12  # of an axis of rates, beside the lowest and the highest
Times = Mapping[str, Mapping[str, float | None]]  # milliseconds, by kind of latency and percentile


@dataclass(frozen=True)
class Load:
    """A test at one load. `gain`: what more of is better; `stands`: whether it may be an answer; `is_full`: whether it
    is more than a probe."""

    name: str
    load: float
    mark: str
    said: str
    times: Times
    gain: float
    stands: bool
    is_full: bool
    tokens: float | None
    samples: float | None
    seconds: float | None
    joules: float | None
    idle: float | None = None
    clock: float | None = None

    @property
    def speed(self) -> str:
        rate = f"{number(self.samples)} samples/s, " if self.samples else ""
        return f"{rate}{number(self.tokens)} output tokens/s"

    def over(self, limits: Mapping[str, float | None]) -> list[str]:
        """The kinds of latency that break these limits at p99, or are not known."""
        found = [(kind, self.times[kind]["p99"], most) for kind, most in limits.items() if most is not None]
        return [kind.upper() for kind, value, most in found if value is None or value > most]


def loads_of(probes: Sequence[Probe], test: Performance | None) -> list[Load]:
    """The tests in the order of their loads; last the run's own, where it is no level of a fixed concurrency."""
    spent = {time.test: time for time in (test.gpu_time if test else [])}
    is_timed = test is not None and test.ttft_ms is not None and not test.concurrency
    own = [full_test(test, probes, spent.get("performance test"))] if test and is_timed else []
    full = own[0].load if own else None
    alone = any(not probe.busy for probe in probes)
    found = [of_probe(probe, spent.get(f"probe at {probe.text}"), full, alone) for probe in probes]
    return [*sorted(found, key=lambda one: one.load), *own]


def kinds_of(probes: Sequence[Probe]) -> tuple[str, str]:
    return ("latency", "tpot") if probes and probes[0].unit == "samples per query" else ("ttft", "tpot")


def of_probe(probe: Probe, spent: GpuTime | None, full: float | None, alone: bool) -> Load:
    """A probe, or a level; `full`: the rate of the full test, which overrules a probe at the same; `alone`: whether any
    test had the machine alone, so that those that had not do not count."""
    is_level = probe.qps is None
    overruled = full is not None and math.isclose(probe.load, full, rel_tol=1e-3)
    held = probe.valid if is_level else probe.has_held
    return Load(
        name=probe.text if is_level else f"the probe at {probe.text}",
        load=probe.load,
        mark="held" if held or probe.concurrency else "grew" if probe.valid else "bad",
        said=outcome(probe),
        times={kind: {p: getattr(probe, f"{kind}_{p}", None) for p in POINTS} for kind in kinds_of([probe])},
        gain=(probe.tokens_per_sec or 0.0) if is_level else probe.load,
        stands=(held or probe.concurrency is not None) and not (overruled or probe.buffered or (probe.busy and alone)),
        is_full=is_level,
        tokens=probe.tokens_per_sec,
        samples=None if probe.concurrency else probe.samples_per_sec,
        seconds=probe.seconds,
        joules=probe.joules_per_token,
        **lost(spent),
    )


def outcome(probe: Probe) -> str:
    """LoadGen's verdict; of a level at fixed concurrency, that on one's own limits."""
    busy = "; machine busy, not judged" if probe.busy else ""
    if probe.concurrency is not None:
        return f"{'over the limits' if probe.why else 'within the limits'}{busy}"
    grew = ", but the queue grew" if probe.valid and probe.has_grown else ""
    return f"{'VALID' if probe.valid else 'INVALID'} by LoadGen{grew}{busy}"


def counts(words: Sequence[str]) -> str:
    """How often each was said."""
    return ", ".join(f"{words.count(each)} {each.replace(' by LoadGen', '')}" for each in dict.fromkeys(words))


def full_test(test: Performance, probes: Sequence[Probe], spent: GpuTime | None) -> Load:
    """The run's own test, at its rate or with its samples per query."""
    rate, first, unit = test.target_qps, kinds_of(probes)[0], probes[0].unit if probes else "queries/s"
    load = rate or float(test.samples_per_query)
    return Load(
        name=f"the full test at {number(load)} {unit}",
        load=load,
        mark="own" if test.valid else "bad",
        said="arrivals of one's own" if test.arrivals else f"{'VALID' if test.valid else 'INVALID'} by LoadGen",
        times={first: of_latency(getattr(test, f"{first}_ms")), "tpot": of_latency(test.tpot_ms)},
        gain=rate or test.tokens_per_sec or 0.0,
        stands=test.valid and not test.buffered,
        is_full=True,
        tokens=test.tokens_per_sec,
        samples=test.samples_per_sec,
        seconds=test.duration_s,
        joules=test.joules_per_output_token,
        **lost(spent),
    )


def of_latency(latency: Latency | None) -> dict[str, float | None]:
    return {point: getattr(latency, point, None) for point in POINTS}


def lost(spent: GpuTime | None) -> dict[str, float | None]:
    """Percent of the GPU's time: idle, and clock held down."""
    if spent is None:
        return {}
    return {
        "idle": spent.idle + (spent.idle_while_waiting or 0.0),
        "clock": spent.held_by_power + spent.held_by_heat,
    }


def answer(loads: Sequence[Load], limits: Mapping[str, float | None]) -> Load | None:
    """Of the tests that stand and keep the limits at p99, the one with the most gain."""
    kept = [one for one in loads if one.stands and not one.over(limits)]
    return max(kept, key=lambda one: one.gain, default=None)


@dataclass(frozen=True)
class Axis:
    """An axis of a plot: `share` is how far along it a value lies."""

    log: bool
    low: float
    high: float
    limit: float | None
    ticks: Sequence[float]

    @classmethod
    def of(cls, values: Sequence[float], limit: float | None) -> "Axis":
        """Logarithmic where the values lie far apart, else from zero."""
        shown = [*values, limit] if limit else values
        least, most = min(shown), max(shown)
        if most <= WIDE * least:
            step = nice(ROOM * most / MOST_TICKS)
            ticks = [step * n for n in range(MOST_TICKS + 1) if step * n <= ROOM * most]
            return cls(False, 0.0, ROOM * most, limit, ticks)
        low, high = least / (1.5 * ROOM), most * 1.5 * ROOM
        powers = [10.0**n for n in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
        return cls(True, low, high, limit, [one for one in powers if low <= one <= high])

    def share(self, value: float) -> float:
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return round(HEIGHT * (1 - min(max(self.share(value), 0.0), 1.0)), 1)


def nice(step: float) -> float:
    """The next larger 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step)


def across(loads: Sequence[Load], is_rate: bool) -> tuple[dict[float, float], list[tuple[float, str]]]:
    """The place of each load in percent, and the ticks with theirs: rates evenly, levels by their logarithm."""
    values = sorted({one.load for one in loads})
    scaled = values if is_rate else [math.log(value) for value in values]
    low, high = scaled[0], scaled[-1]
    if low == high:
        return {values[0]: 50.0}, [(50.0, number(values[0]))]
    if is_rate:
        low, high = low - MARGIN * (high - low), high + MARGIN * (high - low)
        step = nice((high - low) / MOST_TICKS)
        marks = [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
        places = {value: 100 * (value - low) / (high - low) for value in values}
        return places, [(100 * (mark - low) / (high - low), number(mark)) for mark in marks]
    places = {
        value: EDGE + (100 - 2 * EDGE) * (at - low) / (high - low) for value, at in zip(values, scaled, strict=True)
    }
    return places, list(apart((place, number(value)) for value, place in places.items()))


def apart(ticks: Iterator[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """The ticks that do not stand too close to the one before."""
    last = -math.inf
    for place, words in ticks:
        if place - last >= CLOSE:
            last = place
            yield place, words


def plots(loads: Sequence[Load], kinds: Sequence[str], limits: Mapping[str, float | None]) -> dict[str, Axis]:
    """The axis of each kind of latency that has a value."""
    values = {kind: [v for one in loads for v in one.times[kind].values() if v] for kind in kinds}
    return {kind: Axis.of(found, limits.get(kind)) for kind, found in values.items() if found}


def picture(probes: Sequence[Probe], test: Performance | None) -> dict[str, Any] | None:
    """What the template draws and the script moves; None of a test that has no load to vary."""
    if not probes and not (test and test.target_qps):
        return None
    found = loads_of(probes, test)
    kinds, unit = kinds_of(probes), probes[0].unit if probes else "queries/s"
    limits: dict[str, float | None] = dict.fromkeys(kinds)
    if test and test.limits_ms and "ttft" in kinds:
        limits = {kind: getattr(test.limits_ms, kind) for kind in kinds}
    axes = plots(found, kinds, limits)
    if not axes:
        return None
    places, ticks = across(found, unit == "queries/s")
    best = answer(found, limits)
    own = found.index(best) if best and unit == "in flight" else len(found) - 1
    return {
        "loads": found,
        "axes": axes,
        "limits": limits,
        "unit": unit,
        "places": places,
        "ticks": ticks,
        "best": best,
        "own": own,
        "height": HEIGHT,
        "points": {p: any(one.times[kind][p] is not None for one in found for kind in kinds) for p in POINTS},
    }


def moved(drawn: Mapping[str, Any], name: str, watts: float | None) -> dict[str, Any]:
    """The same for the script, as JSON; `name` is of the CSV file."""
    tests = [asdict(one) | {"speed": one.speed} for one in drawn["loads"]]
    columns = [["test", "name"], [drawn["unit"], "load"], ["outcome", "said"], ["seconds", "seconds"]]
    columns += [["samples/s", "samples"], ["output tokens/s", "tokens"], ["J per output token", "joules"]]
    columns += [[f"{kind.upper()} {p}, ms", f"times.{kind}.{p}"] for kind in drawn["axes"] for p in POINTS]
    columns += [["GPU idle, %", "idle"], ["clock held down, %", "clock"]]
    axes = {kind: {"log": a.log, "low": a.low, "high": a.high, "limit": a.limit} for kind, a in drawn["axes"].items()}
    about = {key: drawn[key] for key in ("own", "unit", "height")}
    lowest = min(drawn["loads"], key=lambda one: one.load).name
    return {**about, "tests": tests, "axes": axes, "columns": columns, "file": name, "watts": watts, "lowest": lowest}
