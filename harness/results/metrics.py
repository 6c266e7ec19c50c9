"""Every metric of a run, declared once: its name, label, where it stands in the summary, and where it is shown.

A new one is a line here, and a field of the summary where it has none yet. Reports, tables, the history, sweeps,
comparisons and MLflow go through this list.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from harness.common.markdown import number
from harness.config import mlperf
from harness.results.steady import Steady
from harness.results.summary import Summary
from harness.results.telemetry import QUANTITIES

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
        test = summary.run.performance
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


def latency(kind: str, label: str, point: str, *more: Place) -> Metric:
    """A percentile of one kind of latency, or its mean; MLflow gets all of LoadGen's. Offline's count from the start of
    the test, since all requests are issued at once."""
    shown: Places = ("compare", *more)
    streamed = kind != "latency"
    return test(f"{kind}_{point}_ms", f"{label} {point}, ms", "lower", shown, f"{kind}_ms.{point}", streaming=streamed)


def score(name: str, label: str) -> Metric:
    shown: Places = ("compare", "mlflow", "sweep") if name in mlperf.SHORT_SCORES else ("compare", "mlflow")
    return Metric(name, label, f"run.accuracy.scores.{name}", "higher", shown)


IN_SWEEPS = {("gpu_clock_mhz", "mean"), ("gpu_power_w", "mean")}  # of what engine and machine did
PLACES: Places = ("report", "compare", "mlflow")
INDEXED: Places = (*PLACES, "index")
SWEPT: Places = (*PLACES, "sweep")
DELAYS: Places = ("report", "compare", "mlflow")
METRICS: tuple[Metric, ...] = (
    test("tokens_per_sec", "output tokens/s", "higher", get_args(Place)),
    test("input_tokens_per_sec", "input tokens/s", "higher", PLACES),
    test("total_tokens_per_sec", "input + output tokens/s", "higher", PLACES),
    test("samples_per_sec", "samples/s", "higher", INDEXED),
    test("target_qps", "target, queries/s", None, INDEXED, rate_flag="server_target_qps"),
    test(
        *("expected_samples_per_sec", "expected samples/s", None, PLACES, "target_qps"),
        rate_flag="offline_expected_qps",
    ),
    test("concurrency", "requests in flight at most", None, PLACES),
    test("steady_tokens_per_sec", "steady output tokens/s", "higher", PLACES, "steady.tokens_per_sec"),
    test("tokens_per_sec_per_user", "tokens/s per user", "higher", PLACES, "steady.tokens_per_sec_per_user"),
    latency("latency", "latency", "mean"),
    latency("latency", "latency", "p50", "sweep"),
    latency("latency", "latency", "p90"),
    latency("latency", "latency", "p99", "sweep", "index"),
    latency("ttft", "TTFT", "p50", "sweep"),
    latency("ttft", "TTFT", "p99", "sweep", "index"),
    latency("tpot", "TPOT", "p50", "sweep"),
    latency("tpot", "TPOT", "p99", "sweep", "index"),
    *(
        test(
            f"client_delay_{at}_ms",
            f"client delay {at}, ms",
            "lower",
            DELAYS,
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
            *(f"{item.name}_{how}", f"{item.text}, {how}", None),
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
    test = summary.run.performance
    if test and test.steady and test.steady.ttft_ms:  # the same as the output tokens/s above it
        found = [(metric, value) for metric, value in found if metric.name != "steady_tokens_per_sec"]
    return found
