"""What a run knows of itself, typed: config.json and status.json; and what all files of a run folder have in common."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, ConfigDict, Field, JsonValue, model_validator

from harness.config.comparability import Comparable, Deviation
from harness.config.flags import setting
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import coerce, screen
from harness.core.schema import File, Model, stored_as
from harness.core.statistics import percentile
from harness.core.system import System
from harness.runs.outcome import Outcome


class RunStatus(File):
    """status.json."""

    status: Literal["running", "complete", "failed", "interrupted"]
    reason: str = ""
    time: str | None = None


class Facts(File):
    """What config.json holds of whatever was run; it grows while that runs."""

    model_config = ConfigDict(frozen=False)

    started: str
    command: str
    system: System
    installed: dict[str, str] = {}
    """Every package of the environment, with its version."""
    engine: str | None = None  # with its version; None: an older record, or one that did not start
    engine_start_s: float | None = None
    engine_args: dict[str, JsonValue] = {}
    kernels: dict[str, str] = {}
    """What the engine says that it runs: its attention backend, and the kernel of its linear layers."""


Deviations = Annotated[list[Deviation], Field(validation_alias=AliasChoices("deviations", "shortcomings"))]  # before 3


class RunFacts(Facts):
    """config.json of a run of run.py: every resolved setting, and what is known of the run beside its tests."""

    plan: Plan
    deviations: Deviations
    loadgen: dict[str, str] = {}
    probes: list[Outcome] = []
    attempts: list[Outcome] = []  # performance tests that another one followed
    concurrency: int | None = None  # most requests computed at once
    checkpoint: str | None = None  # where it came quantized
    weights: str | None = None  # their number format in words, where this process loads them
    data: str | None = None
    mean_prompt_tokens: float | None = None
    stages: list[screen.Stage] = []
    unread: Annotated[list[str], Field(exclude=True)] = []
    """What of the record this version does not read, in words."""

    @model_validator(mode="before")
    @classmethod
    def read_settings(cls, data: Any) -> Any:
        """The settings of a record, of any version: by today's names, without those that there are no longer."""
        match data:
            case {"plan": {"config": {**config}} as plan}:
                settings = {setting(str(name)): value for name, value in config.items()}
                unknown = sorted(settings.keys() - RunConfig.model_fields.keys())
                left = [f"config.json: {coerce.as_flag(name)} is no setting of this version" for name in unknown]
                return data | {"plan": plan | {"config": RunConfig.differing(settings)}, "unread": left}
        return data

    def adopt(self, plan: Plan) -> None:
        """Takes the plan as it is known now, and what follows from it."""
        self.plan, self.deviations = plan, plan.deviations
        self.loadgen = {"model": plan.loadgen_model, "scenario": plan.config.scenario_rules.loadgen}

    @property
    def config(self) -> RunConfig:
        return self.plan.config

    @property
    def settings(self) -> dict[str, object]:
        """Every setting by its name: flags, and over them the values of `auto`."""
        plan = self.model_dump()["plan"]
        flags: dict[str, object] = plan.pop("config")
        return flags | {name: value for name, value in plan.items() if name not in ("task", "notes")}

    @property
    def comparable(self) -> Comparable:
        """The run by what it was asked, how, and on what."""
        return Comparable.on(self.system, self.engine, work=self.plan.work, settings=self.plan.settings)


class MachineUse(Model):
    """machine.json: what a test took of the machine, and what other programs did meanwhile."""

    others_cpu_cores: float | None = None
    """CPU cores that other programs used during the test, on average."""
    background_load: Annotated[list[str], stored_as("others", "background_load")] = []
    """What other programs took of the machine, in words, where it may have cost speed."""
    gpu_joules: float | None = None
    """Energy of the GPUs during the test, by their counters; with --telemetry-url by their power, null over a gap."""
    server_gpus: list[str] = []
    """The models of a server's GPUs, by --telemetry-url."""
    waits_ms: dict[str, float] = {}
    """Milliseconds before a first token in the engine's queue and in its prefill, each the mean of the test by the
    engine's own histograms; empty where it has none, or statistics are off (no --extra-metrics)."""


class Usage(Model):
    """A quantity that was recorded once a second during a test."""

    mean: float
    max: float


class Capacity(Model):
    """Cost, energy and utilization at the measured rate."""

    requests_per_hour: float
    requests_per_day: float
    full_set_s: float | None = None
    """For all samples of MLPerf's set; null where others were asked."""


class Spread(Model):
    """Lengths in tokens; each percentile is one of the lengths."""

    min: int
    mean: float
    p50: int
    p99: int
    max: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Self | None:
        """None where there are none."""
        if not lengths:
            return None
        ranked = sorted(lengths)
        return cls(
            min=ranked[0],
            mean=sum(ranked) / len(ranked),
            p50=percentile(ranked, 0.5),
            p99=percentile(ranked, 0.99),
            max=ranked[-1],
        )


class Cost(Model):
    """What tokens and requests cost at --price-per-hour, in its currency."""

    price_per_hour: float
    per_million_output_tokens: float | None = None
    per_million_tokens: float | None = None
    """Input and output."""
    per_thousand_requests: float | None = None
