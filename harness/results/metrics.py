"""Every metric of a run, declared once: its name, label, where it stands in the summary, and where it is shown.

A new one is a line here, and a field of the summary where it has none yet. Reports, tables, the history, sweeps,
comparisons and MLflow go through this list.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from harness.config import mlperf
from harness.core.errors import UsageError
from harness.core.markdown import Table, number
from harness.core.schema import gpu_names
from harness.results.performance import Steady
from harness.results.summary import Summary
from harness.results.telemetry import QUANTITIES
from harness.runs.records import Probe, deciding

Place = Literal["report", "index", "sweep", "compare", "mlflow"]
Places = tuple[Place, ...]
Better = Literal["higher", "lower"] | None


TEST = "run.performance."


@dataclass(frozen=True)
class Metric:
    """`path` leads to the value in a Summary; `streaming`: only where first tokens are reported to LoadGen."""

    name: str
    label: str  # with its unit
    path: str
    better: Better
    shown: Places
    streaming: bool = False
    digits: int = 4
    rate_flag: str = ""  # only of scenarios whose load this flag gives
    in_process: bool = False  # only of an engine in this process
    coarse: bool = False  # not more digits than these, also of large numbers

    def of(self, summary: Summary) -> float | None:
        """The value, None where the run has none."""
        if self.streaming and not summary.scenario.pattern.is_streamed:
            return None
        if self.in_process and summary.meta.endpoints:
            return None
        test = summary.performance
        if self.path.endswith(".p99") and test and test.is_few:
            return None
        if self.rate_flag and self.rate_flag != summary.scenario.pattern.rate_flag:
            return None
        path = self.path
        of_window = test and test.steady and test.steady.ttft_ms  # fixed concurrency: the ramps are no result
        if of_window and path.removeprefix(TEST).partition(".")[0] in Steady.model_fields:
            path = path.replace(TEST, f"{TEST}steady.", 1)
        value: Any = summary
        for step in path.split("."):
            if value is None:
                return None
            value = value.get(step) if isinstance(value, Mapping) else getattr(value, step)
        return None if value is None else value + 0  # a number, or our mistake

    def text(self, value: float | None) -> str:
        coarse = self.coarse and value is not None
        return number(float(f"{value:.{self.digits}g}") if coarse else value, self.digits)


def test(name: str, label: str, better: Better, shown: Places, path: str = "", **more: Any) -> Metric:
    """A number of the performance test, by its own name unless the path is another."""
    return Metric(name, label, f"run.performance.{path or name}", better, shown, **more)


def latency(kind: str, point: str, *more: Place) -> Metric:
    """A percentile of one kind of latency, or its mean; MLflow gets all of LoadGen's. Offline's count from the start of
    the test, since all requests are issued at once."""
    shown: Places = ("compare", *more)
    streamed = kind != "latency"
    label = kind.upper() if streamed else kind
    return test(f"{kind}_{point}_ms", f"{label} {point}, ms", "lower", shown, f"{kind}_ms.{point}", streaming=streamed)


def score(name: str, label: str) -> Metric:
    shown: Places = ("compare", "mlflow", "sweep") if name in mlperf.SHORT_SCORES else ("compare", "mlflow")
    return Metric(name, label, f"run.accuracy.scores.{name}", "higher", shown)


IN_SWEEPS = {("gpu_clock_mhz", "mean"), ("gpu_power_w", "mean")}  # of what engine and machine did
PLACES: Places = ("report", "compare", "mlflow")
INDEXED: Places = (*PLACES, "index")
SWEPT: Places = (*PLACES, "sweep")
METRICS: tuple[Metric, ...] = (
    test("tokens_per_sec", "output tokens/s", "higher", get_args(Place)),
    test("input_tokens_per_sec", "input tokens/s", "higher", PLACES),
    test("total_tokens_per_sec", "input + output tokens/s", "higher", PLACES),
    test("samples_per_sec", "samples/s", "higher", INDEXED),
    test("target_qps", "target, queries/s", None, INDEXED, rate_flag="server_target_qps"),
    test(
        "expected_samples_per_sec",
        "expected samples/s",
        None,
        PLACES,
        "target_qps",
        rate_flag="offline_expected_qps",
    ),
    test("concurrency", "requests in flight at most", None, PLACES),
    test("steady_tokens_per_sec", "output tokens/s without ramp and drain", "higher", PLACES, "steady.tokens_per_sec"),
    test("tokens_per_sec_per_user", "tokens/s per user", "higher", PLACES, "steady.tokens_per_sec_per_user"),
    latency("latency", "mean"),
    latency("latency", "p50", "sweep"),
    latency("latency", "p90"),
    latency("latency", "p99", "sweep", "index"),
    latency("ttft", "p50", "sweep"),
    latency("ttft", "p99", "sweep", "index"),
    latency("tpot", "p50", "sweep"),
    latency("tpot", "p99", "sweep", "index"),
    *(
        test(
            f"client_delay_{at}_ms",
            f"client delay {at}, ms",
            "lower",
            PLACES,
            f"client_delay_ms.{at}",
        )
        for at in ("p50", "p99")
    ),
    test("slo_attainment", "SLO attainment (requests within both limits), %", "higher", PLACES),
    test("goodput", "goodput (requests within both limits), requests/s", "higher", PLACES),
    test("requests_in_flight", "requests in flight, mean", None, ("report",)),
    test("joules_per_output_token", "J of the GPUs per output token", "lower", SWEPT),
    *(
        test(name, label, None, ("report",), f"capacity.{name}", digits=3, coarse=True)
        for name, label in (
            ("requests_per_hour", "requests per hour"),
            ("requests_per_day", "requests per day"),
            ("full_set_s", "all samples of MLPerf's set, s"),
        )
    ),
    test("mfu_percent", "MFU, %", None, PLACES, digits=3),
    test("mbu_percent", "MBU, at least, %", None, PLACES, digits=3),
    *(
        test(f"cost_{name}", f"cost {label}", "lower", PLACES, f"cost.{name}")
        for name, label in (
            ("per_million_output_tokens", "per million output tokens"),
            ("per_million_tokens", "per million tokens, input + output"),
            ("per_thousand_requests", "per thousand requests"),
        )
    ),
    test("duration_s", "duration, s", None, SWEPT),
    test("failed_requests", "failed requests", "lower", PLACES),
    test("tested_samples", "samples", None, ("report",), "samples"),
    test("total_new_tokens", "output tokens", None, ("report",)),
    test("total_input_tokens", "input tokens", None, ("report",)),
    test("peak_memory_gib", "peak GPU memory, GiB", "lower", SWEPT),
    *(
        test(
            f"{item.name}_{how}",
            f"{item.text}, {how}",
            None,
            ("mlflow", "sweep") if (item.name, how) in IN_SWEEPS else ("mlflow",),
            f"usage.{item.name}.{how}",
        )
        for item in QUANTITIES
        for how in ("mean", "max")
    ),
    Metric("engine_start_s", "engine start, s", "meta.engine_start_s", "lower", SWEPT, in_process=True),
    *(score(name, label) for name, label in mlperf.SCORES.items()),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def metrics_of(place: Place) -> tuple[Metric, ...]:
    return tuple(metric for metric in METRICS if place in metric.shown)


def values(summary: Summary, place: Place) -> dict[str, float | None]:
    """What a place shows of a run: name -> value."""
    return {metric.name: metric.of(summary) for metric in metrics_of(place)}


def rows(summary: Summary) -> list[tuple[Metric, float]]:
    """The metrics that a run has, for its report's table with one a line."""
    found = [(metric, value) for metric in metrics_of("report") if (value := metric.of(summary)) is not None]
    test = summary.performance
    if test and test.steady and test.steady.ttft_ms:  # the same as the output tokens/s above it
        found = [(metric, value) for metric, value in found if metric.name != "steady_tokens_per_sec"]
    return found


# Finished runs in one table by what tells them apart, such as the kind of GPU and the workload, or the batch.
BATCH = "batch"  # an axis of the levels within a run
AXES: dict[str, Callable[[Summary], object]] = {
    "gpu": lambda run: run.system.cpu if run.gpu_models == [] else gpu_names(run.gpu_models),
    "driver": lambda run: run.system.driver,
    "workload": lambda run: run.meta.workload,
    "label": lambda run: run.meta.label,
    BATCH: lambda run: "its own test",
}
HARDWARE = ("gpu", "driver")  # axes that the cheapest is chosen over
COST = "cost_per_million_output_tokens"
LEVEL = {"tokens_per_sec": "tokens_per_sec"} | {
    f"{name}_ms": name for name in ("latency_p50", "latency_p99", "ttft_p99", "tpot_p99")
}  # metrics of a level, and where it has them
SHOWN = (*LEVEL, "requests_waiting_mean", "kv_cache_percent_mean", "prefix_hit_percent_mean", COST)


@dataclass(frozen=True)
class Cell:
    """A run, or a level of it, where it stands on each axis: its metrics, and why its cost does not count, in words."""

    axes: tuple[str, ...]
    run: str
    values: dict[str, float | None]
    flaw: str


def matrix(summaries: Sequence[Summary], axes: Sequence[str]) -> Table:
    """The table, a line for each run, or for each level where one axis is the batch. For each place beside the hardware
    the cheapest within the limits is marked. Raises UsageError for an axis that a run does not have."""
    if len(set(axes)) < len(axes):
        raise UsageError(f"--matrix {','.join(axes)}: an axis is named twice.")
    cells = sorted((cell for one in summaries for cell in cells_of(one, axes)), key=in_order)
    counted = [cell for cell in cells if cell.values[COST] and not cell.flaw]
    cheapest = {
        rivals_of(cell, axes): cell for cell in sorted(counted, key=lambda cell: -(cell.values[COST] or math.inf))
    }
    shown = [name for name in SHOWN if any(cell.values[name] is not None for cell in cells)]
    rows = [
        [*cell.axes, cell.run, *(BY_NAME[name].text(cell.values[name]) for name in shown), said]
        for cell in cells
        for said in [cell.flaw or "cheapest within the limits" * (cheapest.get(rivals_of(cell, axes)) is cell)]
    ]
    return Table([*axes, "run", *(BY_NAME[name].label for name in shown), ""], rows)


def in_order(cell: Cell) -> list[tuple[str, float]]:
    """By the last axis first; what begins with a number by its unit, then by the number."""
    parts = [(text, re.match(r"[\d.]+", text)) for text in reversed(cell.axes)]
    return [(text[found.end() :], float(found[0])) if found else (text, 0.0) for text, found in parts]


def rivals_of(cell: Cell, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(place for place, axis in zip(cell.axes, axes, strict=True) if axis not in HARDWARE)


def cells_of(summary: Summary, axes: Sequence[str]) -> Iterator[Cell]:
    """The run, or each of its levels where an axis is the batch."""
    test, score = summary.performance, summary.accuracy
    gate = "the accuracy gate failed" if score and score.verdict == "FAIL" else ""

    def cell(values: dict[str, float | None], *flaws: str, level: Probe | None = None) -> Cell:
        flaw = "; ".join(filter(None, (gate, *flaws)))
        return Cell(places(summary, axes, level), summary.meta.run, values, flaw)

    price = test.cost.price_per_hour if test and test.cost else None
    if BATCH in axes and summary.run.search:
        for probe in deciding(summary.run.search):
            values = dict.fromkeys(SHOWN) | {name: probe.shown(field) for name, field in LEVEL.items()}
            values[COST] = probe.cost(price) if price else None
            yield cell(values, probe.busy, probe.why, level=probe)
    elif test is None or not test.tokens_per_sec:
        yield cell(dict.fromkeys(SHOWN), "no speed was measured")
    else:
        over = "over the limits" if any(tail.is_over for tail in test.tails) else ""
        flaws = [*test.background_load, "" if test.valid else "INVALID", over]
        yield cell({name: BY_NAME[name].of(summary) for name in SHOWN}, *flaws)


def places(summary: Summary, axes: Sequence[str], probe: Probe | None = None) -> tuple[str, ...]:
    """Where a run stands on each axis: a column of AXES, or a setting. Raises UsageError for any other."""
    settings = dict(summary.meta) | summary.meta.work | summary.meta.setup
    if unknown := [axis for axis in axes if axis not in (*AXES, *settings)]:
        raise UsageError(f"--matrix {unknown[0]}: not one of {', '.join(AXES)}, nor a setting such as max_num_seqs.")
    found = {axis: AXES[axis](summary) if axis in AXES else settings[axis] for axis in axes}
    found |= {BATCH: f"{probe.load:g} {probe.unit}"} if probe else {}
    return tuple("unknown" if value in (None, "") else str(value) for value in found.values())
