"""A run's results, typed: summary.json.

Each name ends with its unit; scores are F1 x100, as MLPerf prints them. `python -m docs.summary_schema` writes the JSON
schema of summary.json. What is shown where: `metrics`.
"""

import json
from typing import Annotated, Literal, Self

from pydantic import AliasChoices, ConfigDict, Field, JsonValue

from harness.common.paths import ROOT
from harness.common.schema import File, Model, is_absent
from harness.common.system import System
from harness.config import mlperf
from harness.config import workload as workloads
from harness.loadgen.log import DETAIL
from harness.profiling.traces import Profile
from harness.results.performance import Performance
from harness.results.verdicts import SCORES_FILE, Accuracy, Compliance
from harness.runs.probe import Probe
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
    """Why the run ended before its end; null where it did not."""
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


class Run(Model):
    """The tests that were run; accuracy and performance are null where they were not, others are left out."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    accuracy: Accuracy | None = None
    performance: Performance | None = None
    search: list[Probe] | None = Field(default=None, exclude_if=is_absent)
    attempts: list[Probe] | None = Field(default=None, exclude_if=is_absent)
    """Performance tests that did not hold and were followed by another."""
    compliance: dict[str, Compliance] | None = Field(default=None, exclude_if=is_absent)
    profile: Profile | None = Field(default=None, exclude_if=is_absent)


class Logs(Model):
    """Paths relative to the run folder. The first four are of the performance test where there was one."""

    summary_txt: str | None = None
    detail_txt: str | None = None
    accuracy_json: str | None = None
    rouge_json: str | None = None
    accuracy: list[str] | None = Field(default=None, exclude_if=is_absent)
    performance: list[str] | None = Field(default=None, exclude_if=is_absent)
    test06: list[str] | None = Field(default=None, exclude_if=is_absent)

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
            **files,
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
        """The GPUs of the machine that computed; None behind an endpoint that no telemetry tells of."""
        told = self.run.performance.server_gpus if self.run.performance else []
        return (told or None) if self.meta.endpoints else self.system.gpus

    @property
    def is_accepted(self) -> bool:
        """Whether LoadGen calls the performance test, if any, VALID and logged no error in it."""
        test = self.run.performance
        return test is None or (test.valid and not test.errors)


def schema() -> str:
    return json.dumps(Summary.model_json_schema(mode="serialization"), indent=2) + "\n"
