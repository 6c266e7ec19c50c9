"""The table of what was tested at several loads: each column by its head, and by what it tells."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import methodcaller

from harness.common.markdown import Column, Table, number
from harness.config.patterns import ClosedLoop, Poisson, Sequential
from harness.loadgen.log import Latency
from harness.results.gpu_time import SHARES, GpuTime
from harness.results.performance import Performance
from harness.runs.probe import Probe, deciding


def at(**points: str) -> dict[str, Column]:
    """Columns of latencies, ms, at these points."""
    return {
        f"{kind.upper()} {point}, ms": methodcaller("shown", f"{kind}_{point}")
        for kind, each in points.items()
        for point in each.split()
    }


def verdict(probe: Probe) -> str:
    return "VALID" if probe.valid else "INVALID"


def why(probe: Probe) -> str:
    return f"{probe.why}{' machine busy: not judged' if probe.busy else ''}"


POINTS = (*(field.name for field in fields(Latency) if field.name != "max"), "max")
SPEED: Mapping[str, Column] = {"LoadGen": verdict, "output tokens/s": "tokens_per_sec"}
CURVES: Mapping[str, Mapping[str, Column]] = {  # by the unit of the load
    Sequential.unit: {
        **SPEED,
        **{"latency of a query p50, ms": "latency_p50", "p90, ms": "latency_p90"},
        **at(ttft="p50", tpot="p50 p99"),
    },
    ClosedLoop.unit: {
        **{"output tokens/s": "tokens_per_sec", "per user": "tokens_per_sec_per_user"},
        **at(ttft="p50 p90 p99", tpot="p50 p90 p99"),
        **{"latency p99, ms": "latency_p99", "trend": ("trend", 3), "J per token": ("joules_per_token", 3)},
        "over the limits": why,
    },
    Poisson.unit: {
        **SPEED,
        **at(ttft="p50 p99", tpot="p50 p99"),
        **{"client delay p99, ms": ("client_delay_p99", 3), "s": ("seconds", 3), "why it fell": why},
    },
}


def probes(search: Sequence[Probe], price: float | None) -> Table:
    """The tests of a search or a curve, by load; with a price per hour what a million tokens cost at each level."""
    unit = search[0].unit
    columns = {unit: "load", **CURVES[unit]}
    if price and unit == ClosedLoop.unit:
        last = columns.popitem()
        columns |= {"per million tokens": lambda probe: number(probe.cost(price), 3), last[0]: last[1]}
    return Table.of(sorted(search, key=lambda probe: probe.load), columns)


def gpu_time(times: Sequence[GpuTime]) -> Table | None:
    """Where the GPUs' time went, a line for each test; None where it was not recorded."""
    shares: dict[str, Column] = {f"{label} ({mark}), %": (name, 3) for name, (label, mark) in SHARES.items()}
    return Table.of(times, {"": "test", "100 %": "bar", **shares}) if times else None


def levels(cells: Sequence[Sequence[str]]) -> Table | None:
    """Levels as the last screen shows them, the head first, with the unit of each latency; None without any."""
    if not cells:
        return None
    *names, last = cells[0]
    heads = [f"{name}, ms" if last == "(ms)" and " p" in name else name for name in names]
    return Table([*heads, "limits" if last == "(ms)" else last], cells[1:])


def best(search: Sequence[Probe]) -> Probe | None:
    """The load with the most output of those that keep the limits, on their own machine if any ran so."""
    kept = [probe for probe in deciding(search) if not probe.why and probe.tokens_per_sec]
    alone = [probe for probe in kept if not probe.busy]
    return max(alone or kept, key=lambda probe: probe.tokens_per_sec or 0.0, default=None)


def latencies(test: Performance | None) -> Table | None:
    """Each kind of latency with its percentiles, of the steady part at fixed concurrency; without those that are the
    slowest of few requests."""
    part = test.steady if test and test.concurrency and test.steady and test.steady.ttft_ms else test
    if test is None or part is None:
        return None
    rows = []
    for kind, limit in {"ttft": "ttft", "tpot": "tpot", "latency": ""}.items():
        if found := getattr(part, f"{kind}_ms"):
            name = kind if kind == "latency" else f"{kind.upper()}{' of the buffering' if test.is_buffered else ''}"
            values = [None if test.is_few and point in ("p99", "p99_9") else getattr(found, point) for point in POINTS]
            rows.append([name, *values, getattr(test.limits_ms, limit, None)])
    heads = (point.replace("_", ".") for point in POINTS)
    return Table(["ms" if part is test else "ms of the steady part", *heads, "limit at p99"], rows)


def intervals(test: Performance | None) -> list[str]:
    """The 95 % intervals of a test's percentiles, a kind of latency in a line."""
    found = []
    for kind, points in (test.intervals if test else {}).items():
        latency: Latency | None = getattr(test, f"{kind}_ms")
        ends = {
            point: f"{number(low)} to {number(high)}" if high else f"at least {number(low)}"
            for point, (low, high) in points.items()
        }
        each = [f"{point} {number(getattr(latency, point))} ({said})" for point, said in ends.items() if latency]
        found.append(f"{kind if kind == 'latency' else kind.upper()} {', '.join(each)}")
    return found
