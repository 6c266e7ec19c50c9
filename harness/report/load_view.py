"""The tests of a run by their load, as the script of report.html moves through them."""

from collections.abc import Mapping, Sequence
from math import isclose
from operator import itemgetter
from typing import NamedTuple, Self

from harness.config import mlperf
from harness.config.patterns import Poisson, Sequential
from harness.core.formatting import Measured, number, plural
from harness.report.charts import Point, Scale
from harness.results import metrics, test_table
from harness.results.gpu_time import GpuTime
from harness.results.outcome import Doubt, Outcome, lowest_failure
from harness.results.summary import CURVE_UNITS, Summary
from harness.runs.run_folder import TEST_FOLDERS

SHOWN_PERCENTILES = ("p50", "p90", "p99")
LOG_AXIS_RATIO = 20  # an axis whose largest value is more than this many times its smallest is logarithmic
REPLICA_LOAD_SHARE = 0.9  # the share of the rate that a replica can answer which it is given in a peak
SCRIPT_COLUMNS = {"money": "cost per million output tokens", "energy": "J per million output tokens"}
SHOWN_SHARES = {"idle": "GPU idle, %", "clock": "GPU clock lowered, %"}  # as the saved CSV file names them
PAGE_LABELS = {"clock": "GPU time lost to a lowered clock, %"}  # labels of the page that the CSV file does not have
P99Limits = Mapping[str, Measured]  # milliseconds at p99, by kind of latency; None: no limit


# The attributes of a point that the script of report.html reads.
SCRIPT_FIELDS = ("name", "may_be_best", "is_full", "gain", "speed", "standing", "doubt")


class LoadPoint(NamedTuple):
    """A test at one load, as a point of a picture."""

    test: Outcome
    name: str
    mark: str  # its outcome, which gives its shape: "held", "grew", "bad", or "full" for the full test of the result
    may_be_best: bool  # whether its load may be the best one of the picture
    is_full: bool  # whether it is a test of full length, not a probe
    gpu_time: GpuTime | None  # the shares of the GPU's time in it, if they were recorded
    overruled: str = ""  # the test that has another outcome and counts instead

    @property
    def gain(self) -> float:
        """The number by which the best load is chosen: the rate or, if no rate was sent, the
        output tokens/s (0 if unknown).
        """
        if self.test.unit == Poisson.unit:
            return self.test.load
        return self.test.tokens_per_sec or 0.0

    @property
    def speed(self) -> str:
        """The speed of the test in words: samples/s if known, and output tokens/s.

        If the load was tested several times, the text says so, with the slowest and the fastest test.
        """
        text = f"{number(self.test.tokens_per_sec)} output tokens/s"
        if self.test.samples_per_sec:
            text = f"{number(self.test.samples_per_sec)} samples/s, {text}"
        if self.test.repeats and self.test.speed_range:
            ends = " to ".join(map(number, self.test.speed_range))
            text += f" (mean of {len(self.test.repeats)} tests, {ends})"
        return text

    @property
    def standing(self) -> str:
        """The verdict in words, with the test that overrules it if there is one.

        A VALID test that did not hold its load also says why: the server refused requests, or the queue grew.
        """
        text = self.test.verdict.word
        if self.overruled:
            text += f", overruled by {self.overruled}"
        if self.mark == "grew" and self.test.refused:
            text += f", but {plural(self.test.refused, 'refused request')}"
        elif self.mark == "grew":
            text += ", but the queue grew"
        return text

    @property
    def doubt(self) -> str:
        """The verdict's word if the verdict leaves open whether the test keeps the limits, as
        on a busy machine; else empty.
        """
        verdict = self.test.verdict
        if verdict.tone != "careful":
            return ""
        return verdict.word

    def over(self, limits: P99Limits) -> list[str]:
        """Return the kinds of latency, such as TTFT, whose p99 is over its limit or is not known.

        A kind without a limit is never over.
        """
        broken = []
        for kind, limit_ms in limits.items():
            if limit_ms is None:
                continue
            p99_ms = self.test.at(kind, "p99")
            if p99_ms is None or p99_ms > limit_ms:
                broken.append(kind.upper())
        return broken

    @property
    def data(self) -> dict[str, object]:
        """The point as the script of report.html reads it. `figures` has the known metrics by name.

        If the GPU's time was recorded, `figures` also has the percentages of it in which the GPU was idle ("idle") and
        in which its clock was lowered ("clock").
        """
        figures: dict[str, float] = {}
        for metric in metrics.METRICS:
            value = metric.figure(self.test).value
            if value is not None:
                figures[metric.name] = value
        if self.gpu_time:
            figures["idle"] = self.gpu_time.idle + (self.gpu_time.idle_while_waiting or 0.0)
            figures["clock"] = self.gpu_time.held_by_power + self.gpu_time.held_by_heat
        fields: dict[str, object] = {name: getattr(self, name) for name in SCRIPT_FIELDS}
        return {**fields, "load": self.test.load, "few": self.test.is_few, "figures": figures}


def is_same_test(test: Outcome, result: Outcome | None) -> bool:
    """Tell whether a test is the run's result. They are not equal as objects, as only the result has details."""
    if result is None:
        return False
    return (test.folder, test.load, test.tokens_per_sec) == (result.folder, result.load, result.tokens_per_sec)


def loads_of(summary: Summary) -> list[LoadPoint]:
    """Return a point for each test, in the order of the loads, and last the run's own test if it is not among them."""
    own_test, gpu_times = separate_result(summary), gpu_times_of(summary)
    has_idle_test = any(Doubt.BUSY not in test.doubts for test in summary.tests)  # on an idle machine
    load_points = []
    for test in summary.tests:
        deciding_test = deciding_test_of(test, own_test, summary)
        is_deciding = deciding_test is test
        load_points.append(
            LoadPoint(
                test,
                name=name_of(test, summary),
                mark=mark_of(test),
                may_be_best=is_deciding and may_be_best_load(test, has_idle_test),
                is_full=is_full_test(test, summary),
                gpu_time=gpu_times.get(test.folder),
                overruled=overruled_by(test, deciding_test, own_test),
            )
        )
    if own_test:
        load_points.append(point_of_result(own_test, gpu_times.get(TEST_FOLDERS["performance"])))
    return load_points


def is_full_test(test: Outcome, summary: Summary) -> bool:
    """Tell whether a test has its full length. Probes at a rate are shorter; other loads have no probes."""
    return test.unit in CURVE_UNITS or is_attempt(test, summary)


def deciding_test_of(test: Outcome, own_test: Outcome | None, summary: Summary) -> Outcome:
    """Return the test whose outcome counts for the load of `test`.

    `own_test` is the run's own test, which has its full length.
    """
    if has_passed(test) and not is_full_test(test, summary):
        failed_below = failed_full_test_below(test.load, summary)
        if failed_below is not None:  # A full test at a lower rate says more than a short one that passed.
            return failed_below
    if own_test and has_passed(test) and is_same_load(test, own_test):
        return own_test
    last_test_by_load = {earlier.load: earlier for earlier in summary.curve}
    return last_test_by_load[test.load]


def failed_full_test_below(rate: float, summary: Summary) -> Outcome | None:
    """Return the full test with the lowest rate that failed, if that rate is below the given one; else None."""
    full_tests = [*(summary.run.attempts or [])]
    if summary.result is not None:
        full_tests.append(summary.result)
    failure = lowest_failure(full_tests)
    if failure is None or failure.load >= rate:
        return None
    return failure


def is_same_load(test: Outcome, other: Outcome) -> bool:
    """Tell whether two tests had the same load, up to rounding."""
    return isclose(test.load, other.load, rel_tol=1e-3)


def point_of_result(test: Outcome, gpu_time: GpuTime | None) -> LoadPoint:
    """Return the point of a run's full test, for a run whose curve or search does not contain this test.

    `gpu_time` has the shares of GPU time.
    """
    mark = "full" if test.valid else "bad"
    may_be_best = test.valid and Doubt.BUFFERED not in test.doubts  # A buffer's latencies are not the engine's.
    name = f"the full test at {test.text}"
    return LoadPoint(test, name=name, mark=mark, may_be_best=may_be_best, is_full=True, gpu_time=gpu_time)


def separate_result(summary: Summary) -> Outcome | None:
    """Return the run's result if it needs a point of its own in the pictures over the load, else None."""
    result, tests = summary.result, summary.tests
    if result is None or result.ttft_ms.p50 is None:
        return None
    if not tests and not result.details.target_qps:  # A single test without a rate has no pictures.
        return None
    if any(is_same_test(test, result) for test in tests):
        return None
    return result


def gpu_times_of(summary: Summary) -> dict[str, GpuTime]:
    """Return the shares of GPU time in each test, by the folder of the test; empty without a performance test."""
    result = summary.result
    if result is None:
        return {}
    return {time.folder or time.test: time for time in result.details.gpu_time}  # Older versions recorded no folder.


def has_passed(test: Outcome) -> bool:
    """Tell whether a test held its load.

    At fixed concurrency, where the user's own limits decide, each test counts as passed: the picture compares its
    latencies with the limits itself.
    """
    return test.has_held or test.has_own_limits


def is_attempt(test: Outcome, summary: Summary) -> bool:
    """Tell whether a test is a full test that did not hold and was followed by another."""
    return test in (summary.run.attempts or [])


def name_of(test: Outcome, summary: Summary) -> str:
    """Return the name of a test: its load and, for a rate, whether it is a full test or a probe."""
    if test.unit in CURVE_UNITS:
        return test.text
    if is_attempt(test, summary):
        return f"the full test at {test.text}"
    return f"the probe at {test.text}"


def mark_of(test: Outcome) -> str:
    """Return the mark in a picture of a test that is not the run's own.

    The mark is "held" if the test held its load. Else it is "grew" for a VALID test and "bad" for an INVALID one.
    """
    if has_passed(test):
        return "held"
    if test.valid:  # Its queue grew, or the server refused requests.
        return "grew"
    return "bad"


def may_be_best_load(test: Outcome, has_idle_test: bool) -> bool:
    """Tell whether a test may be the best load of the picture, unless another test decides about its load.

    The test must have passed, and its latencies must not be those of a buffer. A test on a busy machine may be the best
    only if no test of the picture was on an idle machine (`has_idle_test` is False).
    """
    is_buffered = Doubt.BUFFERED in test.doubts
    is_busy_beside_idle = Doubt.BUSY in test.doubts and has_idle_test
    return has_passed(test) and not is_buffered and not is_busy_beside_idle


def overruled_by(test: Outcome, deciding_test: Outcome, own_test: Outcome | None) -> str:
    """Return, in words, which test counts instead of this one; empty if the deciding test has the same outcome.

    The deciding test has the same load or, if it is a full test, a lower rate. `own_test` is the run's result.
    """
    if deciding_test.has_kept == test.has_kept:
        return ""
    if not is_same_load(test, deciding_test):
        return f"the full test at {deciding_test.text}"
    if deciding_test is own_test:
        return "the full test"
    return "a later test"


def latency_axes(loads: Sequence[LoadPoint], limits: P99Limits) -> dict[str, Scale]:
    """Return the axis of each kind of latency in `limits` that a test has, with room for the kind's limit."""
    axes = {}
    for kind, limit in limits.items():
        values = shown_values(loads, kind)
        if not values:  # No test has this kind of latency.
            continue
        if limit:
            values.append(limit)
        axes[kind] = latency_scale(values)
    return axes


def latency_scale(values: Sequence[float]) -> Scale:
    """Return an axis for latencies. It is logarithmic if they differ widely, else it begins at zero."""
    if max(values) > LOG_AXIS_RATIO * min(values):
        return Scale.around(values, is_log=True)
    return Scale.of(values)


LATENCIES = {
    "latency": "Latency of a query",
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
}


class LoadPicture(NamedTuple):
    """The tests of a run by load, as the template draws them and the script moves through them."""

    loads: list[LoadPoint]
    unit: str  # the unit of the loads
    limits: P99Limits
    axes: dict[str, Scale]  # the upright axis of each kind of latency
    across: Scale
    title_load: int  # the index in `loads` of the load that the title of the page is of
    points: dict[str, bool]  # whether any test has a percentile, by the name of the percentile
    summary: Summary

    @classmethod
    def of(cls, summary: Summary, run_limits: mlperf.LatencyLimits | None) -> Self | None:
        """Return the picture of a run; None if no test has a load and latencies.

        `run_limits` are the limits of the run's latencies, None if it has none.
        """
        loads = loads_of(summary)
        unit = loads[0].test.unit if loads else ""
        kinds = ("latency", "tpot") if unit == Sequential.unit else ("ttft", "tpot")
        limits = {kind: getattr(run_limits, kind, None) for kind in kinds}
        axes = latency_axes(loads, limits)
        if not axes:
            return None
        tested_loads = [load_point.test.load for load_point in loads]
        # Rates are near each other, so their axis is linear. Levels and batches are multiples of each other.
        across = Scale.around(tested_loads, is_log=unit != Poisson.unit)
        return cls(
            loads,
            unit,
            limits=limits,
            axes=axes,
            across=across,
            title_load=place_of_result(loads, summary),  # an index in `loads`
            points=known_percentiles(loads, kinds),
            summary=summary,
        )

    def has_kept(self, load_point: LoadPoint) -> bool:
        """Tell whether a test may be the best load and kept both the limits of its run and those of this picture."""
        test = load_point.test
        # If the user gave the limits, the recorded reasons against a test are the limits of its run that it broke.
        was_over_limits_of_run = test.has_own_limits and bool(test.reasons)
        return load_point.may_be_best and not was_over_limits_of_run and not load_point.over(self.limits)

    @property
    def best(self) -> LoadPoint | None:
        """The best load that kept the limits: the run's result if it did, else the load with the largest gain.

        None if no load kept them.
        """

        def rank(load_point: LoadPoint) -> tuple[bool, float]:
            is_result = is_same_test(load_point.test, self.summary.result)
            return is_result, load_point.gain

        kept_points = filter(self.has_kept, self.loads)
        return max(kept_points, key=rank, default=None)

    @property
    def speeds(self) -> list[tuple[Point, LoadPoint]]:
        """The output tokens/s of one user and of one GPU in each test, with the point of the test, in order.

        The speed of a user is 1,000 / TPOT. A test without both speeds is left out.
        """
        points = []
        for load_point in self.loads:
            percentile = "p90" if load_point.test.has_own_limits else "p50"  # p90 as in MLPerf Endpoints
            tpot_ms = load_point.test.at("tpot", percentile)
            if tpot_ms and load_point.test.tokens_per_sec:
                of_one_gpu = load_point.test.tokens_per_sec / max(1, self.summary.gpus)
                points.append(((1000 / tpot_ms, of_one_gpu), load_point))
        return sorted(points, key=itemgetter(0))

    @property
    def axis(self) -> str:
        """The text at the axis of the loads."""
        return {"in flight": "requests in flight"}.get(self.unit, self.unit)

    @property
    def columns(self) -> list[metrics.Metric]:
        """The metrics that a table of the loads shows."""
        tests = [load_point.test for load_point in self.loads]
        return test_table.measured_metrics(metrics.TABLE_BY_UNIT[self.unit], tests)

    @property
    def saved_columns(self) -> list[tuple[str, str]]:
        """The name and the label of each column of the CSV file that the script saves, after the name of the test."""
        columns = [(metric.name, metric.label) for metric in self.columns]
        return [("load", self.unit), ("standing", "outcome"), *columns, *SHOWN_SHARES.items()]

    @property
    def cells(self) -> list[tuple[str, str]]:
        """The name and the label of each figure of the chosen test. Those that the script computes come last."""
        names = [*self.saved_columns, *SCRIPT_COLUMNS.items()]
        return [(name, PAGE_LABELS.get(name, label)) for name, label in names]

    @property
    def rate(self) -> Measured:
        """The requests/s that a replica (the tested server) answers at the best load; None if none kept the limits.

        None also for queries one after the other, which may have several samples.
        """
        if self.best is None or self.unit == Sequential.unit:
            return None
        return self.best.test.samples_per_sec

    def data(self, file: str, watts: Measured) -> dict[str, object]:
        """Return the picture as the script of report.html reads it.

        `file` is the name under which the script saves the table as CSV. `watts` is the mean power of the GPUs, None if
        unknown.
        """
        axes = {}
        for kind, axis in self.axes.items():
            axes[kind] = {**axis._asdict(), "limit": self.limits[kind]}
        return {
            "own": self.title_load,  # the load whose result is the title's
            "unit": self.unit,
            "file": file,
            "watts": watts,
            "axes": axes,
            "tests": [load_point.data for load_point in self.loads],
            "share": REPLICA_LOAD_SHARE,
            "columns": self.saved_columns,
        }


def shown_values(loads: Sequence[LoadPoint], kind: str) -> list[float]:
    """Return all values of a kind of latency that a picture may show, in milliseconds, without unknown ones and 0."""
    values = list[float]()
    for load_point in loads:
        measured = (load_point.test.at(kind, point) for point in SHOWN_PERCENTILES)
        values += filter(None, measured)
    return values


def known_percentiles(loads: Sequence[LoadPoint], kinds: Sequence[str]) -> dict[str, bool]:
    """Return for each shown percentile whether any of the tests has it, for any kind of latency.

    The page offers only these percentiles to choose from.
    """
    known = dict.fromkeys(SHOWN_PERCENTILES, False)
    for load_point in loads:
        for percentile in SHOWN_PERCENTILES:
            if any(load_point.test.at(kind, percentile) is not None for kind in kinds):
                known[percentile] = True
    return known


def place_of_result(loads: Sequence[LoadPoint], summary: Summary) -> int:
    """Return the index in `loads` of the run's result, whose speed is the title of the page.

    If the result is not there, return the last index.
    """
    for place, load_point in enumerate(loads):
        if is_same_test(load_point.test, summary.result):
            return place
    return len(loads) - 1
