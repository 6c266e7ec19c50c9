"""One LoadGen test from settings to logs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mlperf_loadgen as lg

from harness.common.errors import LoadGenError, first_line
from harness.config import rules
from harness.config.plan import Plan
from harness.loadgen.sut import SUT
from harness.runs.folder import Test


def user_conf(plan: Plan) -> str:
    """LoadGen's settings beyond its built-in `mlperf.conf`: rates, and the counts of a short run."""
    scenario = plan.config.row.loadgen
    settings: dict[str, str] = {"min_duration": str(round(plan.min_duration_s * 1000))}
    if plan.target_qps is not None:
        settings["target_qps"] = f"{plan.target_qps:.6g}"
    if plan.expected_latency_ms is not None:
        settings["target_latency"] = f"{plan.expected_latency_ms:.6g}"
    if plan.config.row.several:
        settings["samples_per_query"] = str(plan.samples_per_query)
        settings["target_latency_percentile"] = f"{100 * rules.MULTISTREAM_PERCENTILE:g}"
    if plan.limits and plan.limits != plan.config.row.limits:
        settings["ttft_latency"] = f"{plan.limits.ttft_ms:.6g}"
        settings["tpot_latency"] = f"{plan.limits.tpot_ms:.6g}"
    if plan.asked:  # of many requests no more than the duration takes, rather than whole rounds of all
        settings["sample_concatenate_permutation"] = "0"
    if plan.samples != rules.OFFICIAL[plan.config.category].samples:
        settings["performance_sample_count_override"] = str(plan.samples)
        settings["min_query_count"] = str(plan.min_queries)
    elif plan.min_queries != plan.samples:
        settings["min_query_count"] = str(plan.min_queries)
    return "".join(f"{plan.loadgen_model}.{scenario}.{key} = {value}\n" for key, value in settings.items())


def settings_for(plan: Plan, conf: Path) -> lg.TestSettings:
    """LoadGen's settings for both tests of a run, read from `mlperf.conf` and the user.conf at `conf`.

    LoadGen reads a user.conf once in a process and calls a second one an error, so the tests of a run share this.
    Raises LoadGenError.
    """
    scenario = plan.config.row.loadgen
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, scenario)
    settings.FromConfig("", plan.loadgen_model, scenario, 0)  # mlperf.conf, which LoadGen itself reads only once
    if settings.FromConfig(str(conf), plan.loadgen_model, scenario) != 0:
        raise LoadGenError(f"LoadGen refuses {conf}; its reasons are in mlperf_log_detail.txt.")
    settings.qsl_rng_seed = plan.seeds.qsl
    settings.sample_index_rng_seed = plan.seeds.sample_index
    settings.schedule_rng_seed = plan.seeds.schedule
    return settings


def set_rates(settings: lg.TestSettings, plan: Plan) -> None:
    """Tells LoadGen the plan's rates, where they changed since the user.conf was read."""
    if plan.expected_latency_ms is not None:
        expected = round(plan.expected_latency_ms * 1e6)
        settings.single_stream_expected_latency_ns = settings.multi_stream_expected_latency_ns = expected
    if plan.target_qps is not None:
        settings.offline_expected_qps = settings.server_target_qps = plan.target_qps


@contextmanager
def shortened(settings: lg.TestSettings, plan: Plan) -> Iterator[None]:
    """For a probe: the plan's own duration, counts and load in place of those of the settings."""
    short = {
        "min_duration_ms": round(plan.min_duration_s * 1000),
        "min_query_count": plan.min_queries,
        "performance_sample_count_override": plan.samples,
        "server_target_qps": plan.target_qps,
        "multi_stream_samples_per_query": plan.samples_per_query,
        "multi_stream_expected_latency_ns": plan.expected_latency_ms and round(plan.expected_latency_ms * 1e6),
    }
    short = {name: value for name, value in short.items() if value is not None}
    before = {name: getattr(settings, name) for name in short}
    for name, value in short.items():
        setattr(settings, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)


def expected_queries(plan: Plan, mode: Test) -> int | None:
    """About how many queries LoadGen will issue one by one; None where it issues all at once. For the display."""
    if mode == "accuracy":
        return plan.samples
    return None if mode == "test06" else plan.queries


def run(
    mode: Test, settings: lg.TestSettings, sut: SUT, samples: int, folder: Path, watch: Callable[[], None]
) -> list[int]:
    """Runs one test to its end; returns the samples in the order that LoadGen loaded them.

    `watch` is called ten times a second on this thread and may raise to give up. An audit.config in `folder` rules.
    LoadGen itself cannot be stopped: it waits in C++ for every answer. Whoever gives up must end the process. Raises
    LoadGenError.
    """
    settings.mode = lg.TestMode.AccuracyOnly if mode == "accuracy" else lg.TestMode.PerformanceOnly
    output = lg.LogOutputSettings()
    output.outdir = str(folder)
    output.copy_summary_to_stdout = False
    logging = lg.LogSettings()
    logging.log_output = output
    logging.enable_trace = mode == "performance"  # per-sample times, as LoadGen took them, for the plots
    system = lg.ConstructFastSUT(sut.issue, lambda: None)
    loaded: list[int] = []
    library = lg.ConstructQSL(samples, samples, loaded.extend, lambda _: None)
    # An audit.config in the working folder would change the test behind the user's back: name one that is ours.
    audit = str(folder / "audit.config")
    failed: list[Exception] = []

    def drive() -> None:
        try:
            lg.StartTestWithLogSettings(system, library, settings, logging, audit)
        except Exception as error:
            failed.append(error)

    test = threading.Thread(target=drive, name="loadgen", daemon=True)
    test.start()
    while test.is_alive():
        test.join(timeout=0.1)
        watch()
    if failed:
        raise LoadGenError(f"LoadGen failed: {type(failed[0]).__name__}: {first_line(failed[0])}") from failed[0]
    lg.DestroyQSL(library)
    lg.DestroyFastSUT(system)
    return loaded
