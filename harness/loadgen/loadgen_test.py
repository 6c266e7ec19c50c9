"""One LoadGen test, from its settings to its logs."""

import threading
from collections.abc import Callable
from pathlib import Path

import mlperf_loadgen as lg

from harness.config.plan import Plan
from harness.core.errors import LoadGenError
from harness.core.message_text import first_line
from harness.loadgen.requests import ANSWERS_FILE, TRACE_FILE
from harness.loadgen.sut import SUT
from harness.runs.run_folder import Test

# The attributes of LoadGen's settings that a plan changes from test to test, each with its key in a user.conf. An
# attribute that ends in _ns is in nanoseconds, its key in milliseconds.
CHANGING_SETTINGS = {
    "min_duration_ms": "min_duration",
    "min_query_count": "min_query_count",
    "performance_sample_count_override": "performance_sample_count_override",
    "multi_stream_samples_per_query": "samples_per_query",
    "offline_expected_qps": "target_qps",
    "server_target_qps": "target_qps",
    "single_stream_expected_latency_ns": "target_latency",
    "multi_stream_expected_latency_ns": "target_latency",
}
# The other settings of a user.conf: LoadGen's attribute, and its value for a value of 1 in the file.
FIXED_SETTINGS = {
    "ttft_latency": ("ttft_latency", 10**6),
    "tpot_latency": ("tpot_latency", 10**6),
    "sample_concatenate_permutation": ("sample_concatenate_permutation", 1),
    "target_latency_percentile": ("multi_stream_target_latency_percentile", 0.01),
}
SAMPLE_LOGS = (TRACE_FILE, ANSWERS_FILE)  # LoadGen creates these in every test, and leaves them empty in most
EMPTY_LOG = "[\n]\n"


def user_conf(plan: Plan) -> str:
    """Return the text of a user.conf for LoadGen: the settings that differ from LoadGen's own `mlperf.conf`.

    Each line is "MODEL.SCENARIO.KEY = VALUE".
    """
    rules = plan.config.scenario_rules
    settings = rules.pattern.settings(plan) | rules.pattern.fixed_settings(plan)
    lines = []
    for key, value in settings.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        lines.append(f"{plan.loadgen_model}.{rules.loadgen}.{key} = {text}\n")
    return "".join(lines)


class LoadGenSettings:
    """LoadGen's settings for the tests of a run.

    LoadGen reads a user.conf once in a process and calls a second one an error. So the tests of a run share what was
    read for the first, and each sets what changes from test to test. A second run in the process sets everything.
    """

    has_read_user_conf = False  # whether LoadGen has read one in this process

    def __init__(self) -> None:
        """Prepare for a run. LoadGen's settings are read at the first test."""
        self._settings = None  # the settings that were read for the first test
        self._official: dict[str, int | float] = {}  # the values of CHANGING_SETTINGS in mlperf.conf

    def prepare(self, plan: Plan, folder: Path) -> lg.TestSettings:
        """Write the user.conf of a plan to the folder, and return the settings for its test. Raises LoadGenError.

        All tests of a run share one object of settings, which is read at the first test.
        """
        conf = folder / "user.conf"
        conf.write_text(user_conf(plan))
        if self._settings is None:
            self._settings = self.read(plan, conf)
        self._apply_changing_settings(self._settings, plan)
        return self._settings

    def _apply_changing_settings(self, settings: lg.TestSettings, plan: Plan) -> None:
        """Set the settings that change from test to test (CHANGING_SETTINGS) to the values of a plan.

        A setting that the plan does not have is set back to its value in mlperf.conf, since an earlier test may have
        changed it.
        """
        values = plan.pattern.settings(plan)
        for name, key in CHANGING_SETTINGS.items():
            official = self._official[name]
            value = values.get(key, official)
            if key in values and name.endswith("_ns"):  # A plan's value is in milliseconds, as in a user.conf.
                value *= 10**6
            if isinstance(official, int):  # This attribute of LoadGen's takes only whole numbers.
                setattr(settings, name, round(value))
            else:
                setattr(settings, name, float(value))

    def read(self, plan: Plan, conf: Path) -> lg.TestSettings:
        """Return the settings of `mlperf.conf` and of the user.conf at `conf`, with the plan's seeds.

        Raises LoadGenError if LoadGen refuses the file.
        """
        scenario = plan.config.scenario_rules.loadgen
        settings = lg.TestSettings()
        settings.scenario = getattr(lg.TestScenario, scenario)
        settings.FromConfig("", plan.loadgen_model, scenario, 0)  # mlperf.conf, which LoadGen itself reads only once
        # A later test can have these values again.
        self._official = {name: getattr(settings, name) for name in CHANGING_SETTINGS}
        if LoadGenSettings.has_read_user_conf:  # LoadGen reads a user.conf only once in a process.
            apply_fixed_settings(settings, plan)
        elif settings.FromConfig(str(conf), plan.loadgen_model, scenario) != 0:
            raise LoadGenError(f"LoadGen refuses {conf}; its reasons are in mlperf_log_detail.txt.")
        LoadGenSettings.has_read_user_conf = True
        settings.qsl_rng_seed = plan.seeds.qsl
        settings.sample_index_rng_seed = plan.seeds.sample_index
        settings.schedule_rng_seed = plan.seeds.schedule
        return settings


def apply_fixed_settings(settings: lg.TestSettings, plan: Plan) -> None:
    """Set the settings that do not change from test to test, as LoadGen would read them from a user.conf.

    Each value is converted to the unit and the type of LoadGen's attribute.
    """
    for key, value in plan.pattern.fixed_settings(plan).items():
        name, factor = FIXED_SETTINGS[key]
        number_type = type(getattr(settings, name))
        setattr(settings, name, number_type(value * factor))


def log_settings(folder: Path) -> lg.LogSettings:
    """Return LoadGen's settings for logs that are written to a folder, and not to standard output."""
    output = lg.LogOutputSettings()
    output.outdir = str(folder)
    output.copy_summary_to_stdout = False
    settings = lg.LogSettings()
    settings.log_output = output
    return settings


def ignore(*arguments: object) -> None:
    """Do nothing when LoadGen ends a series of queries, or asks to load or unload samples."""


def run_test(
    mode: Test, settings: lg.TestSettings, sut: SUT, samples: int, folder: Path, watch: Callable[[], None]
) -> None:
    """Run one test to its end, and delete the per-sample logs that LoadGen left empty.

    `watch` is called ten times a second on this thread, and may raise an error to give up the test. The process must
    then be ended, since LoadGen cannot be stopped. Raises LoadGenError if LoadGen fails.
    """
    settings.mode = lg.TestMode.PerformanceOnly
    if mode == "accuracy":
        settings.mode = lg.TestMode.AccuracyOnly
    logging = log_settings(folder)
    logging.enable_trace = mode == "performance" and not sut.is_timed_by_client  # the times of each sample
    # `ignore` takes LoadGen's calls to flush queries and to load or unload samples, for which nothing is to be done.
    system = lg.ConstructFastSUT(sut.issue, ignore)
    library = lg.ConstructQSL(samples, samples, ignore, ignore)
    # Without this path, LoadGen would read an audit.config in the working folder, which would change the test
    # unnoticed.
    audit = str(folder / "audit.config")
    errors = list[Exception]()

    def run_loadgen() -> None:
        """Run LoadGen's test, and note an error for the main thread."""
        try:
            lg.StartTestWithLogSettings(system, library, settings, logging, audit)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run_loadgen, name="loadgen", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(timeout=0.1)
        watch()
    if errors:
        raise LoadGenError(f"LoadGen failed: {type(errors[0]).__name__}: {first_line(errors[0])}") from errors[0]
    lg.DestroyQSL(library)
    lg.DestroyFastSUT(system)
    delete_empty_logs(folder)


def delete_empty_logs(folder: Path) -> None:
    """Delete the per-sample logs that LoadGen left without an entry."""
    for path in map(folder.joinpath, SAMPLE_LOGS):
        if path.is_file() and path.stat().st_size <= len(EMPTY_LOG):
            path.unlink()
