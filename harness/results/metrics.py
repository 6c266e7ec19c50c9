"""Every metric of a run, declared once: its name, label, where it stands in the summary, and where it is shown.

A new one is a line here, and a field of the summary where it has none yet. Reports, tables, the history, sweeps,
comparisons and MLflow go through this list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from harness.common.markdown import number
from harness.config import mlperf
from harness.results.summary import Summary
from harness.results.telemetry import QUANTITIES

Place = Literal["report", "terminal", "index", "sweep", "compare", "mlflow"]
ALL_PLACES: tuple[Place, ...] = get_args(Place)


FEWEST_P99 = 100  # requests: the p99 of fewer is the slowest of them


@dataclass(frozen=True)
class Metric:
    """`path` leads to the value in a Summary; `streaming`: only where first tokens are reported to LoadGen."""

    name: str
    label: str  # with its unit
    path: str
    better: Literal["higher", "lower"] | None
    shown: tuple[Place, ...]
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
        test = summary.run.performance
        if self.path.endswith(".p99") and test and (test.samples or 0) < FEWEST_P99:
            return None
        if self.rate_flag and self.rate_flag != summary.scenario.pattern.rate_flag:
            return None
        value: Any = summary
        for step in self.path.split("."):
            if value is None:
                return None
            value = value.get(step) if isinstance(value, Mapping) else getattr(value, step)
        return None if value is None else value + 0  # a number, or our mistake

    def text(self, value: float | None) -> str:
        coarse = self.coarse and value is not None
        return number(float(f"{value:.{self.digits}g}") if coarse else value, self.digits)


def latency(kind: str, label: str, point: str, *more: Place) -> Metric:
    """A percentile of one kind of latency; MLflow gets all of LoadGen's."""
    path = f"run.performance.{kind}_ms.{point}"
    shown: tuple[Place, ...] = ("terminal", "compare", *more)
    return Metric(f"{kind}_{point}_ms", f"{label} {point}, ms", path, "lower", shown, streaming=True)


def score(name: str, label: str) -> Metric:
    shown: tuple[Place, ...] = ("compare", "mlflow", *(("sweep",) if name in mlperf.SHORT_SCORES else ()))  # type: ignore[assignment]
    return Metric(name, label, f"run.accuracy.scores.{name}", "higher", shown, digits=6)


TEST = "run.performance."
TOTAL_LABEL = "input + output tokens/s"
IN_SWEEPS = {("gpu_clock_mhz", "mean"), ("gpu_power_w", "mean")}  # of what engine and machine did
PLACES: tuple[Place, ...] = ("report", "terminal", "compare", "mlflow")
METRICS: tuple[Metric, ...] = (
    Metric("tokens_per_sec", "output tokens/s", TEST + "tokens_per_sec", "higher", ALL_PLACES, digits=6),
    Metric("input_tokens_per_sec", "input tokens/s", TEST + "input_tokens_per_sec", "higher", PLACES, digits=6),
    Metric("total_tokens_per_sec", TOTAL_LABEL, TEST + "total_tokens_per_sec", "higher", PLACES, digits=6),
    Metric("samples_per_sec", "samples/s", TEST + "samples_per_sec", "higher", (*PLACES, "index"), digits=6),
    Metric(
        *("target_qps", "target, queries/s", TEST + "target_qps", None, (*PLACES, "index")),
        digits=6,
        rate_flag="server_target_qps",
    ),
    Metric(
        *("expected_samples_per_sec", "expected samples/s", TEST + "target_qps", None, PLACES),
        digits=6,
        rate_flag="offline_expected_qps",
    ),
    Metric("concurrency", "requests in flight at most", TEST + "concurrency", None, PLACES),
    Metric(
        "steady_tokens_per_sec", "steady output tokens/s", TEST + "steady.tokens_per_sec", "higher", PLACES, digits=6
    ),
    Metric("tokens_per_sec_per_user", "tokens/s per user", TEST + "steady.tokens_per_sec_per_user", "higher", PLACES),
    latency("latency", "latency", "p50", "sweep"),
    latency("latency", "latency", "p90"),
    latency("latency", "latency", "p99", "sweep", "index"),
    latency("ttft", "TTFT", "p50", "sweep"),
    latency("ttft", "TTFT", "p99", "sweep", "index"),
    latency("tpot", "TPOT", "p50", "sweep"),
    latency("tpot", "TPOT", "p99", "sweep", "index"),
    *(
        Metric(
            *(f"client_delay_{point}_ms", f"client delay {point}, ms", f"{TEST}client_delay_ms.{point}", "lower"),
            ("report", "compare", "mlflow"),
            rate_flag="server_target_qps",
        )
        for point in ("p50", "p99")
    ),
    Metric(
        "slo_attainment", "SLO attainment (requests within both limits), %", TEST + "slo_attainment", "higher", PLACES
    ),
    Metric("goodput", "goodput (requests within both limits), requests/s", TEST + "goodput", "higher", PLACES),
    Metric("requests_in_flight", "requests in flight, mean", TEST + "requests_in_flight", None, ("report",)),
    Metric(
        *("joules_per_output_token", "J of the GPUs per output token", TEST + "joules_per_output_token", "lower"),
        (*PLACES, "sweep"),
    ),
    Metric(
        "requests_per_hour",
        "requests per hour",
        f"{TEST}capacity.requests_per_hour",
        None,
        ("report",),
        digits=3,
        coarse=True,
    ),
    Metric(
        "requests_per_day",
        "requests per day",
        f"{TEST}capacity.requests_per_day",
        None,
        ("report",),
        digits=3,
        coarse=True,
    ),
    Metric(
        "full_set_s",
        "all samples of MLPerf's set, s",
        f"{TEST}capacity.full_set_s",
        None,
        ("report",),
        digits=3,
        coarse=True,
    ),
    Metric("mfu_percent", "MFU, %", TEST + "mfu_percent", None, PLACES, digits=3),
    Metric("mbu_percent", "MBU, at least, %", TEST + "mbu_percent", None, PLACES, digits=3),
    *(
        Metric(f"cost_{name}", f"cost {label}", f"{TEST}cost.{name}", "lower", PLACES)
        for name, label in (
            ("per_million_output_tokens", "per million output tokens"),
            ("per_million_tokens", "per million tokens, input + output"),
            ("per_thousand_requests", "per thousand requests"),
        )
    ),
    Metric("duration_s", "duration, s", TEST + "duration_s", None, (*PLACES, "sweep")),
    Metric("failed_requests", "failed requests", TEST + "failed_requests", "lower", PLACES),
    Metric("tested_samples", "samples", TEST + "samples", None, ("report", "terminal")),
    Metric("total_new_tokens", "output tokens", TEST + "total_new_tokens", None, ("report",)),
    Metric("total_input_tokens", "input tokens", TEST + "total_input_tokens", None, ("report",)),
    Metric("peak_memory_gib", "peak GPU memory, GiB", TEST + "peak_memory_gib", "lower", (*PLACES, "sweep")),
    *(
        Metric(
            *(f"{item.name}_{how}", f"{item.text}, {how}", f"{TEST}usage.{item.name}.{how}", None),
            ("mlflow", "sweep") if (item.name, how) in IN_SWEEPS else ("mlflow",),
        )
        for item in QUANTITIES
        for how in ("mean", "max")
    ),
    Metric("engine_start_s", "engine start, s", "meta.engine_start_s", "lower", (*PLACES, "sweep"), in_process=True),
    *(score(name, label) for name, label in mlperf.SCORES.items()),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def shown(place: Place) -> tuple[Metric, ...]:
    return tuple(metric for metric in METRICS if place in metric.shown)


def values(summary: Summary, place: Place) -> dict[str, float | None]:
    """What a place shows of a run: name -> value."""
    return {metric.name: metric.of(summary) for metric in shown(place)}


def rows(summary: Summary, place: Place) -> list[tuple[Metric, float]]:
    """The metrics that a run has, for a table with one a line; what a buffer delayed is called that."""
    found = [(metric, value) for metric in shown(place) if (value := metric.of(summary)) is not None]
    if not (summary.run.performance and summary.run.performance.buffered):
        return found
    late = {metric.name: replace(metric, label=f"{metric.label}, of the buffering") for metric, _ in found}
    return [(late[m.name] if m.name.startswith(("ttft_", "tpot_")) else m, value) for m, value in found]
