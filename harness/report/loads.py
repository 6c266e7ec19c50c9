"""Latency by load: each test as a point with its place, and the answer under the limits, which the page's script moves.

Nothing lies between two points: no line joins them, and the answer is one of the loads that were tested.
"""

from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any, NamedTuple, Self

from harness.config import mlperf
from harness.config.patterns import Poisson, Sequential
from harness.core.markdown import number
from harness.core.statistics import tail_name
from harness.report.charts import Scale, Tick
from harness.results import metrics, telemetry
from harness.results.summary import CURVES, Summary
from harness.runs.folder import FOLDER
from harness.runs.outcome import Doubt, Outcome

HEIGHT = 250  # pixels of a plot
POINTS = ("p50", "p90", "p99")
WIDE = 20  # times the smallest: from here on an axis is logarithmic
MARGIN = 0.12  # of an axis of loads, beside the lowest and the highest
SHARE = 0.9  # of the rate that a replica answers, which it is given in a peak
COMPUTED = {"money": "cost per million output tokens", "energy": "J per million output tokens"}
SHARES = {"idle": "GPU idle, %", "clock": "GPU clock held down, %"}
Limits = Mapping[str, float | None]  # milliseconds at p99, by kind of latency; None: no limit


class Load(NamedTuple):
    """A test at one load, as a point. `mark`: its shape; `stands`: it may be an answer; `is_full`: it is no probe;
    `spent`: where the GPU's time went in it; `overruled`: by which test of the same load with another outcome."""

    test: Outcome
    name: str
    mark: str
    stands: bool
    is_full: bool
    spent: telemetry.GpuTime | None
    overruled: str = ""

    @property
    def gain(self) -> float:
        """What more of is better: the rate, or the output."""
        return self.test.load if self.test.unit == Poisson.unit else self.test.tokens_per_sec or 0.0

    @property
    def speed(self) -> str:
        rate = self.test.samples_per_sec
        return f"{f'{number(rate)} samples/s, ' if rate else ''}{number(self.test.tokens_per_sec)} output tokens/s"

    @property
    def standing(self) -> str:
        """The verdict, and what it does not say."""
        overruled = f"overruled by {self.overruled}" if self.overruled else ""
        grew = "but the queue grew" if self.mark == "grew" else ""
        return ", ".join(filter(None, (self.test.verdict.word, overruled, grew)))

    @property
    def doubt(self) -> str:
        """That nobody can tell whether it keeps the limits; empty where its verdict does."""
        return self.test.verdict.word * (self.test.verdict.tone == "careful")

    def named(self, kind: str, point: str) -> str:
        return tail_name(kind.upper(), self.test.has(Doubt.FEW)) if point == "p99" else f"{kind.upper()} {point}"

    def over(self, limits: Limits) -> list[str]:
        """The kinds of latency that break these limits at p99, or are not known."""
        found = [(kind, self.test.at(kind, "p99"), most) for kind, most in limits.items() if most is not None]
        return [kind.upper() for kind, value, most in found if value is None or value > most]

    @property
    def data(self) -> dict[str, Any]:
        """The same for the script; `figures` by the names of METRICS."""
        spent, lost = self.spent, {}
        if spent:
            lost["idle"] = spent.idle + (spent.idle_while_waiting or 0.0)
            lost["clock"] = spent.held_by_power + spent.held_by_heat
        names = ("name", "stands", "is_full", "gain", "speed", "standing", "doubt")
        figures = {m.name: value for m in metrics.METRICS if (value := m.figure(self.test).value) is not None}
        found = {name: getattr(self, name) for name in names}
        return found | {"load": self.test.load, "few": self.test.has(Doubt.FEW), "figures": figures | lost}


def loads_of(summary: Summary) -> list[Load]:
    """The tests in the order of their loads; last the run's own, where it is none of them."""
    test, result, probes = summary.performance, summary.result, summary.tests
    spent = {time.folder or time.test: time for time in (test.gpu_time if test else [])}
    is_own = result and result not in probes and result.ttft_ms.p50 is not None
    own = result if is_own and (probes or (test and test.target_qps)) else None
    is_any_alone, last, found = any(not one.has(Doubt.BUSY) for one in probes), {o.load: o for o in summary.curve}, []
    for probe in probes:
        held = probe.has_held or probe.has_own_limits
        later = own if own and held and isclose(probe.load, own.load, rel_tol=1e-3) else last[probe.load]
        overruled = "" if later.has_kept == probe.has_kept else "the full test" if later is own else "a later test"
        is_doubted = probe.has(Doubt.BUFFERED) or (probe.has(Doubt.BUSY) and is_any_alone)
        stands = held and later is probe and not is_doubted
        is_level = probe.unit in CURVES
        name = probe.text if is_level else f"the probe at {probe.text}"
        mark = "held" if held else "grew" if probe.valid else "bad"
        found.append(Load(probe, name, mark, stands, is_level, spent.get(probe.folder), overruled))
    if own:
        stands, mark = own.valid and not own.has(Doubt.BUFFERED), "own" if own.valid else "bad"
        found.append(Load(own, f"the full test at {own.text}", mark, stands, True, spent.get(FOLDER["performance"])))
    return found


def upright(values: Sequence[float]) -> Scale:
    """An axis of latencies: logarithmic where they lie far apart, else from zero."""
    is_log = max(values) > WIDE * min(values)
    return Scale.around(values, MARGIN, is_log) if is_log else Scale.of(values)


class LoadPicture(NamedTuple):
    """What the template draws and the script moves; `title_load`: the number of the load that the title is of."""

    loads: list[Load]
    unit: str
    limits: Limits
    axes: dict[str, Scale]
    across: Scale
    best: Load | None
    title_load: int
    points: dict[str, bool]

    @classmethod
    def of(cls, summary: Summary, most: mlperf.Limits | None) -> Self | None:
        """`most`: the limits of the run. None of a test that has no load to vary, or no latency."""
        loads = loads_of(summary)
        unit = loads[0].test.unit if loads else ""
        kinds = ("latency", "tpot") if unit == Sequential.unit else ("ttft", "tpot")
        limits = {kind: getattr(most, kind, None) for kind in kinds}
        values = {kind: [v for one in loads for p in POINTS if (v := one.test.at(kind, p))] for kind in kinds}
        axes = {kind: upright([*found, limits[kind] or found[0]]) for kind, found in values.items() if found}
        if not axes:
            return None
        kept = [one for one in loads if one.stands and not one.over(limits)]
        best = max(kept, key=lambda one: (one.test == summary.result and unit in CURVES, one.gain), default=None)
        own = next((n for n, one in enumerate(loads) if one.test == summary.result), len(loads) - 1)
        points = {p: any(one.test.at(kind, p) is not None for one in loads for kind in kinds) for p in POINTS}
        across = Scale.around([one.test.load for one in loads], MARGIN, is_log=unit != Poisson.unit)
        return cls(loads, unit, limits, axes, across, best, own, points)

    @property
    def ticks(self) -> list[Tick]:
        """Round rates, or the levels."""
        return self.across.ticks([one.test.load for one in self.loads] if self.across.is_log else ())

    @property
    def columns(self) -> list[metrics.Metric]:
        """What a table of the loads shows of each."""
        return metrics.told(metrics.TABLES[self.unit], [one.test for one in self.loads])

    @property
    def cells(self) -> list[tuple[str, str]]:
        """The columns by name and label, and beside them what the script computes of a test."""
        head = [("load", self.unit), ("standing", "outcome")]
        return [*head, *((metric.name, metric.label) for metric in self.columns), *SHARES.items(), *COMPUTED.items()]

    @property
    def rate(self) -> float | None:
        """Requests/s that a replica answers within the limits; None where a query is of several samples."""
        return self.best.test.samples_per_sec if self.best and self.unit != Sequential.unit else None

    @property
    def in_a_peak(self) -> float:
        """Requests/s that a replica is given in a peak."""
        return SHARE * (self.rate or 0.0)

    def data(self, file: str, watts: float | None) -> dict[str, Any]:
        """The same for the script; `file` is the name of its CSV."""
        return {
            "own": self.title_load,
            "unit": self.unit,
            "height": HEIGHT,
            "file": file,
            "watts": watts,
            "axes": {kind: axis._asdict() | {"limit": self.limits[kind]} for kind, axis in self.axes.items()},
            "tests": [one.data for one in self.loads],
            "share": SHARE,
            "columns": self.cells[: -len(COMPUTED)],
        }
