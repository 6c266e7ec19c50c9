"""What a run comes to, typed: summary.json.

Each name ends with its unit; scores are F1 x100, as MLPerf prints them. `python -m docs.summary_schema` writes the JSON
schema of summary.json. What is shown where: `metrics`.
"""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, ConfigDict, Field, JsonValue, model_validator

from harness.common.paths import ROOT
from harness.common.schema import File, Model, absent, stored_as
from harness.common.system import System
from harness.config import mlperf
from harness.config import workload as workloads
from harness.loadgen.log import DETAIL, Latency
from harness.profiling.traces import Profile
from harness.results.verdicts import SCORES_FILE, Accuracy, Audit, Compliance, Count
from harness.runs.delivery import ServerUse
from harness.runs.probe import Probe
from harness.runs.records import Capacity, Cost, LimitsMs, Spread, Usage
from harness.terminal.progress import Stage

SCHEMA_FILE = ROOT / "templates" / "summary.schema.json"
Picture = Annotated[str, Field(pattern=r"^plots/.*\.png$")]


class Meta(Model):
    """What was run."""

    run: str
    label: str = ""
    """What the user calls it; several runs may share a label."""
    started: str
    command: str
    mlperf_version: str = Field(json_schema_extra={"enum": [*mlperf.SEEDS]})
    model: str
    category: str = Field(json_schema_extra={"enum": [*mlperf.SCENARIOS]})
    workload: str = workloads.OFFICIAL
    scenario: str = Field(json_schema_extra={"enum": [*mlperf.SCENARIO]})
    mode: Literal["accuracy", "performance", "both"]
    samples: Annotated[int, Field(ge=1)]
    comparable: bool
    """Whether the result can stand beside MLPerf's; `deviations` says why not."""
    ended: str | None = None
    """When and why the run ended before its end; null where it did not."""
    deviations: Annotated[list[str], Field(validation_alias=AliasChoices("deviations", "shortcomings"))]
    notes: list[str]
    precision: str
    quantization: str
    kv_cache_dtype: str
    checkpoint: str | None = None  # where it came quantized: its name, and what is known of its making
    load_format: str
    tensor_parallel_size: int
    data_parallel_size: int
    max_model_len: int
    max_new_tokens: int
    batch_size: int | None = None
    prefix_caching: bool | None
    """Null where the engine is behind an endpoint."""
    data: str | None = None
    mean_prompt_tokens: float | None = None
    engine_start_s: float | None = None
    stages: list[Stage] = []
    """Each stage of the run, and the second it began."""
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
    """What another run must share for its speed to tell of this one's."""
    work: dict[str, object] = {}
    """What was asked of the engine, by flag: speeds at other work are not compared."""


class Steady(Model):
    """A test without its ramps: from as many answers as are computed at once until as few are left."""

    seconds: float
    share_percent: float
    """Of the test's duration."""
    tokens_per_sec: float
    """Output tokens per second of the answers that ended in the steady part."""
    trend: float
    """The rate of its second half over that of the first."""
    latency_ms: Latency | None = None
    """Of the requests that were sent and answered in it; at fixed concurrency alone, as the other two."""
    ttft_ms: Latency | None = None
    tpot_ms: Latency | None = None
    tokens_per_sec_per_user: float | None = None
    """1,000 / TPOT p90 in ms, over the steady part."""


class Performance(Model):
    """LoadGen's measurements, and the tokens that were reported to it. Latencies in milliseconds."""

    scenario: str
    valid: bool
    invalid_reasons: list[str] = []
    duration_s: Annotated[float, Field(gt=0)] | None
    """Of the performance test, as LoadGen measured."""
    samples: int | None
    samples_per_query: int = 1
    """More than one in MultiStream alone, where latencies are those of whole queries."""
    disagreements: list[str] = []
    """Where the wire shows what this program's own figures do not (tokens, the server's cache, delivery), in words."""
    total_new_tokens: int | None = None
    """Output tokens: the ids that came; where a server sends text, its own count (`usage`) if each answer has one, else
    the text encoded with the model's tokenizer. `disagreements` has a difference of more than 2 %."""
    total_input_tokens: int | None = None
    """Prompt tokens; null in runs that did not record them."""
    input_lengths: Spread | None = None
    output_lengths: Spread | None = None
    tokens_per_sec: float | None
    """Output tokens per second, as LoadGen measured."""
    input_tokens_per_sec: float | None = None
    """Prompt tokens over LoadGen's duration."""
    total_tokens_per_sec: float | None = None
    """Prompt and output tokens over LoadGen's duration."""
    samples_per_sec: float | None
    target_qps: float | None = None
    """Offline: samples/s expected; Server, Interactive: queries/s sent; else null."""
    achieved_qps: float | None = None
    """Queries a second; in Offline, which is one query, samples a second."""
    latency_ms: Latency | None = None
    ttft_ms: Latency | None = None
    """Time to the first token."""
    tpot_ms: Latency | None = None
    """Time per output token after the first."""
    arrivals: str | None = None
    """How requests came, where not as LoadGen has it: as `--arrivals` was given."""
    arrivals_cv: float | None = None
    """The coefficient of variation of the times between them: 0 is clockwork, 1 pure chance, more is bursts."""
    client_delay_ms: Latency | None = None
    """Server, Interactive, arrivals: from the time for which a query was scheduled until this client handed it to the
    engine, or wrote it to a connection. A part of each latency and TTFT, which count from the scheduled time."""
    single_token: Count = 0
    """Answers of one token, which have no time per output token; `tpot_ms` is that of the others."""
    tpot_judged: bool = True
    """Whether the others are enough to be sure that their 99th percentile keeps its limit."""
    limits_ms: LimitsMs | None = None
    early_stopping: dict[str, JsonValue] = {}
    peak_memory_gib: float | None = None
    """The most memory of all GPUs taken at once; null without them, or without --extra-metrics."""
    usage: dict[str, Usage] = {}
    """What engine and machine did, by quantity, recorded once a second; empty without --extra-metrics."""
    ran_out: list[str] = []
    """What was used up during the test, in words."""
    server: ServerUse | None = None
    """What the servers behind an endpoint counted themselves; null where they did not, or there are none."""
    others_cpu_cores: float | None = None
    """CPU cores that other programs used during the test, on average."""
    background_load: Annotated[list[str], stored_as("others", "background_load")] = []
    """What other programs took of the machine, in words, where it may have cost speed."""
    concurrency: int | None = None
    """Requests in flight, where it was fixed; latencies are then this program's own, since each was sent."""
    steady: Steady | None = None
    """The part of the test in which the engine had all its work; null where it is not known what it takes at once."""
    slo_attainment: float | None = None
    """Percent of the requests that kept both limits, from LoadGen's trace; null where there are none, and where TTFT
    and TPOT are those of a buffer."""
    goodput: float | None = None
    """Requests that kept both limits, a second."""
    failed_requests: Count | None = None
    """Requests that failed, left out of everything but `slo_attainment` and `valid`; null without --max-failed."""
    failures: list[str] = []
    """What was said of them."""
    longer: int = 0
    """Answers that are longer than the run allowed."""
    requests_in_flight: float | None = None
    """On average, by Little's law: rate x mean latency of a sample. Null in Offline, where all are issued at once."""
    gpu_joules: float | None = None
    """Energy that the GPUs took during the test, by their own counters."""
    joules_per_output_token: float | None = None
    """`gpu_joules` over the output tokens."""
    cost: Cost | None = None
    capacity: Capacity | None = None
    mfu_percent: float | None = Field(default=None, validation_alias=AliasChoices("mfu_percent", "arithmetic_percent"))
    """Model FLOPs utilization: Offline, of the GPUs' peak; null where the model or the GPU is not known."""
    mbu_percent: float | None = Field(default=None, validation_alias=AliasChoices("mbu_percent", "bandwidth_percent"))
    """Model bandwidth utilization: at least this share of the GPUs' memory bandwidth; null as for MFU."""
    seeds: dict[str, int] = {}
    loadgen_version: str = ""
    errors: list[str] = []
    warnings: list[str] = []

    @property
    def buffered(self) -> bool:
        """Whether TTFT and TPOT are those of a buffer between the engine and this client."""
        return self.server is not None and self.server.buffered

    @model_validator(mode="before")
    @classmethod
    def renamed(cls, data: Any) -> Any:
        """Until format 4 the share of requests within the limits was called goodput."""
        if isinstance(data, dict) and "goodput" in data and "slo_attainment" not in data:
            return data | {"slo_attainment": data["goodput"], "goodput": None}
        return data


class Run(Model):
    """The tests that were run; accuracy and performance are null where they were not, others are left out."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    accuracy: Accuracy | None = None
    performance: Performance | None = None
    search: list[Probe] | None = Field(default=None, exclude_if=absent)
    attempts: list[Probe] | None = Field(default=None, exclude_if=absent)
    """Performance tests that did not hold and were followed by another."""
    compliance: dict[Audit, Compliance] | None = Field(default=None, exclude_if=absent)
    profile: Profile | None = Field(default=None, exclude_if=absent)


class Logs(Model):
    """Paths relative to the run folder. The first four are of the performance test where there was one."""

    summary_txt: str | None = None
    detail_txt: str | None = None
    accuracy_json: str | None = None
    rouge_json: str | None = None
    accuracy: list[str] | None = Field(default=None, exclude_if=absent)
    performance: list[str] | None = Field(default=None, exclude_if=absent)
    test04: list[str] | None = Field(default=None, exclude_if=absent)
    test06: list[str] | None = Field(default=None, exclude_if=absent)

    @classmethod
    def of(cls, files: dict[str, list[str]]) -> Self:
        """The files of each test, and by name those that people look for."""

        def first(name: str, *tests: str) -> str | None:
            paths = (path for test in tests for path in files.get(test, []))
            return next((path for path in paths if path.endswith(f"/{name}")), None)

        return cls(
            summary_txt=first("mlperf_log_summary.txt", "performance", "accuracy"),
            detail_txt=first(DETAIL, "performance", "accuracy"),
            accuracy_json=first("mlperf_log_accuracy.json", "accuracy"),
            rouge_json=first(SCORES_FILE, "accuracy"),
            **files,  # type: ignore[arg-type]
        )

    @property
    def files(self) -> dict[str, list[str]]:
        """All files by test."""
        return {name: value for name, value in self if isinstance(value, list)}


class Summary(File):
    """summary.json of a benchmark run."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    meta: Meta
    system: System
    run: Run
    logs: Logs = Logs()
    plots: dict[str, Picture | None] = {}
    """Name and path, relative to the run folder; tokens_per_sec and latency_cdf are null where not drawn."""

    @property
    def scenario(self) -> mlperf.Scenario:
        return mlperf.SCENARIO[self.meta.scenario]

    @property
    def gpus(self) -> int:
        """How many GPUs the engine used; none where that is not known."""
        used = self.meta.tensor_parallel_size * self.meta.data_parallel_size
        return used if self.system.gpus and not self.meta.endpoints else 0

    @property
    def gpu_models(self) -> list[str] | None:
        """The GPUs of the machine that computed; None behind an endpoint, where they are not known."""
        return None if self.meta.endpoints else self.system.gpus

    @property
    def accepted(self) -> bool:
        """Whether LoadGen calls the performance test, if any, VALID and logged no error in it."""
        test = self.run.performance
        return test is None or (test.valid and not test.errors)


def schema() -> str:
    """The JSON schema of summary.json, as text."""
    return json.dumps(Summary.model_json_schema(mode="serialization"), indent=2) + "\n"
