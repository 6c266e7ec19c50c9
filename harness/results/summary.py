"""A run's results, typed: summary.json.

Each name ends with its unit; scores are F1 x100, as MLPerf prints them. What is shown where: `metrics`.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, JsonValue

from harness.config.mlperf import SCENARIOS, Scenario
from harness.config.patterns import ClosedLoop, Sequential
from harness.config.run import ScenarioName
from harness.config.workload import OFFICIAL_WORKLOAD
from harness.core import progress
from harness.core.formatting import Measured
from harness.core.schema import File, FrozenModel
from harness.core.system import System
from harness.loadgen.log_entries import DETAIL
from harness.results.accuracy import SCORES_FILE, Accuracy, GateResult
from harness.results.kernel_profile import Profile
from harness.results.level_details import details_of_level
from harness.results.outcome import Known, Outcome, deciding_tests, load_of
from harness.results.performance_view import StoredOutcome
from harness.results.records import Deviations
from harness.results.test06_verdict import Compliance
from harness.runs.run_folder import TEST_FOLDERS

CURVE_UNITS = (ClosedLoop.unit, Sequential.unit)  # units of loads whose tests are all of one length


class Meta(FrozenModel):
    """The settings of a run, and why it can or cannot be compared."""

    run: str
    label: str = ""
    """What the user calls it; several runs may share a label."""
    started: str
    command: str
    mlperf_version: str
    model: str
    category: str
    workload: str = OFFICIAL_WORKLOAD
    scenario: ScenarioName
    mode: Literal["accuracy", "performance", "both"]
    samples: Annotated[int, Field(ge=1)]
    comparable: bool
    """Whether the result can stand beside MLPerf's; `deviations` says why not."""
    ended: str | None = None
    """Why the run ended early; null if it did not."""
    deviations: Deviations
    notes: list[str]
    precision: str
    quantization: str
    kv_cache_dtype: str
    checkpoint: str | None = None  # the name of a quantized checkpoint, and what is known of its making
    load_format: str
    tensor_parallel_size: int
    data_parallel_size: int
    max_model_len: int
    max_new_tokens: int
    batch_size: int | None = None
    prefix_caching: bool | None
    """Null where the engine is behind an endpoint."""
    data: str | None = None
    mean_prompt_tokens: Measured = None
    engine_start_s: Measured = None
    stages: list[progress.Stage] = []
    """Each stage of the run, and the second at which it began."""
    engine: str | None = None
    """The engine and its version; null in summaries of older versions."""
    engine_args: dict[str, JsonValue] = {}
    """What the engine was given; with an endpoint, what the server reports of itself and how it takes prompts."""
    kernels: dict[str, str] = {}
    """What the engine says that it runs: its attention backend, and the kernel of its linear layers."""
    weights: str | None = None
    """Their number format in words, as in fp8 (static, compressed-tensors); null behind an endpoint."""
    endpoints: list[str] = []
    setup: dict[str, object] = {}
    """The settings that another run must share for the two speeds to be compared."""
    work: dict[str, object] = {}
    """What was asked of the engine, by flag: speeds at other work are not compared."""
    target_qps: Measured = None
    """Queries/s of the performance test as it was planned last, also if the run ended before this test did."""
    full_at: Known[int] = None
    """The number of requests in flight at which the server refused more, if the search of a level found it."""


class Run(FrozenModel):
    """The tests that were run. Accuracy and performance are null if they were not run; other tests are left out."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    accuracy: Accuracy | None = None
    performance: StoredOutcome | None = None
    search: Known[list[Outcome]] = None
    attempts: Known[list[Outcome]] = None
    """Performance tests that did not hold and were followed by another."""
    compliance: Known[dict[str, Compliance]] = None
    profile: Known[Profile] = None


class Logs(FrozenModel):
    """Paths relative to the run folder. The first two are of the performance test or, if there was none, of the
    accuracy test.
    """

    summary_txt: str | None = None
    detail_txt: str | None = None
    accuracy_json: str | None = None
    rouge_json: str | None = None

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return the paths of those logs that exist in a run folder; None for each of the others.

        LoadGen's summary and detail logs are those of the performance test or, without it, of the accuracy test.
        """
        accuracy = TEST_FOLDERS["accuracy"]
        performance = TEST_FOLDERS["performance"]
        summary_file = "mlperf_log_summary.txt"
        return cls(
            summary_txt=first_file(folder, f"{performance}/{summary_file}", f"{accuracy}/{summary_file}"),
            detail_txt=first_file(folder, f"{performance}/{DETAIL}", f"{accuracy}/{DETAIL}"),
            accuracy_json=first_file(folder, f"{accuracy}/mlperf_log_accuracy.json"),
            rouge_json=first_file(folder, f"{accuracy}/{SCORES_FILE}"),
        )


def first_file(folder: Path, *names: str) -> str | None:
    """Return the first of these names that is a file in the folder; None if there is none."""
    for name in names:
        if (folder / name).is_file():
            return name
    return None


class Summary(File):
    """summary.json of a benchmark run."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    meta: Meta
    system: System
    run: Run
    logs: Logs = Logs()
    plots: dict[str, str | None] = {}
    """Name and path, relative to the run folder; tokens_per_sec and latency_cdf are null where not drawn."""
    digests: dict[str, str] = {}
    """SHA-256 of each file that this one is made from, by its path in the run folder; empty in older summaries."""

    @property
    def scenario(self) -> Scenario:
        return SCENARIOS[self.meta.scenario]

    @property
    def accuracy(self) -> Accuracy | None:
        return self.run.accuracy

    @property
    def gate(self) -> GateResult | None:
        """The accuracy gate's verdict; None without an accuracy test."""
        if self.accuracy is None:
            return None
        return self.accuracy.verdict

    @property
    def price(self) -> Measured:
        """The price of an hour of the machine; None if it was not given or there is no performance test."""
        test = self.run.performance
        if test is None or test.details.cost is None:
            return None
        return test.details.cost.price_per_hour

    @property
    def is_in_process(self) -> bool:
        """Tell whether the engine ran in this process, not as a server."""
        return not self.meta.endpoints

    @property
    def tests(self) -> list[Outcome]:
        """The tests of a search or a curve, and the full tests before the run's own one, sorted by load.

        Empty if the run has no search and no curve.
        """
        if not self.run.search:
            return []
        earlier_full_tests = self.run.attempts or []
        ordered = sorted([*self.run.search, *earlier_full_tests], key=load_of)
        test = self.run.performance
        is_curve = self.scenario.pattern.unit in CURVE_UNITS
        if test is None or not test.disagreements or not is_curve:
            return ordered
        # A curve has the performance test among its tests, but without the disagreements between its logs.
        disagreements = {"disagreements": tuple(test.disagreements)}
        for place, outcome in enumerate(ordered):
            if outcome.load == test.load:
                ordered[place] = outcome.model_copy(update=disagreements)
        return ordered

    @property
    def curve(self) -> list[Outcome]:
        """The points of the curve: the deciding test of each load, in the order of the loads."""
        return deciding_tests(self.tests)

    @property
    def levels(self) -> list[Outcome]:
        """The deciding test of each level of concurrency or each batch size, one of which is the result.

        Empty in a search of a rate, whose tests differ in length, and none of which is the result.
        """
        if self.scenario.pattern.unit not in CURVE_UNITS:
            return []
        return self.curve

    @property
    def result(self) -> Outcome | None:
        """The test that is the result of the run, with all details; None without a performance test."""
        test = self.run.performance
        if test is None:
            return None
        # A level has the figures of all tests of its load together, but not the details of the run's own test.
        for level in self.levels:
            if level.load == test.load:
                details = details_of_level(level, test.details) if level.repeats else test.details
                return level.with_details(details, level.trend)
        return test

    @property
    def background_load(self) -> list[str]:
        """The load of other programs during the result's test, in words; empty if there was none, or no result."""
        result = self.result
        if result is None:
            return []
        loads = list(result.background_load)
        # A level that was faster under the load of other programs might be the best one.
        for level in self.levels:
            if level.has_kept and (level.tokens_per_sec or 0.0) > (result.tokens_per_sec or 0.0):
                loads += [f"with {level.text}, {load}" for load in level.background_load]
        return loads

    @property
    def others_cpu_share(self) -> Measured:
        """The share of the CPU cores that other programs took during the result's test.

        None if there is no result, or if the load was not recorded. Also None if a GPU or a server computed the
        answers: what this machine's cores did then tells nothing about the speed.
        """
        test = self.result
        if test is None or self.gpu_models or not self.is_in_process:
            return None
        busy_cores = test.details.machine.others_cpu_cores
        if busy_cores is None:
            return None
        return busy_cores / max(1, self.system.cores)

    @property
    def gpus(self) -> int:
        """The number of GPUs that the engine used; 0 if it used none or if they are behind an endpoint."""
        if not self.system.gpus or not self.is_in_process:
            return 0
        return self.meta.tensor_parallel_size * self.meta.data_parallel_size

    @property
    def gpu_models(self) -> list[str] | None:
        """The GPUs of the machine that computed, a name each; empty for a machine without GPUs.

        None if the machine is behind an endpoint whose GPUs were not recorded.
        """
        if self.is_in_process:
            return self.system.gpus
        test = self.run.performance
        if test is None:
            return None
        return test.details.machine.server_gpus or None
