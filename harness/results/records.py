"""The record of a run: config.json, and what all files of a run folder have in common."""

from typing import Annotated, Any

from pydantic import AliasChoices, ConfigDict, Field, JsonValue, model_validator

from harness.config import comparability, flags, mlperf_deviations
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import given_values, progress
from harness.core.formatting import Measured
from harness.core.schema import File
from harness.core.system import System
from harness.results.card_limits import CardLimits
from harness.results.outcome import Outcome


class Facts(File):
    """The content of config.json, whatever was run; it grows while that runs."""

    model_config = ConfigDict(frozen=False)

    started: str
    command: str
    system: System
    installed: dict[str, str] = {}
    """Every package of the environment, with its version."""
    engine: str | None = None  # with its version; None: an older record, or one that did not start
    engine_start_s: Measured = None
    engine_args: dict[str, JsonValue] = {}
    kernels: dict[str, str] = {}
    """What the engine says that it runs: its attention backend, and the kernel of its linear layers."""


# Files of formats before 3 have them under `shortcomings`.
Deviations = Annotated[
    list[mlperf_deviations.Deviation], Field(validation_alias=AliasChoices("deviations", "shortcomings"))
]


class RunFacts(Facts):
    """config.json of a run of run.py: every resolved setting, and what is known of the run beside its tests."""

    plan: Plan
    deviations: Deviations
    loadgen: dict[str, str] = {}
    lone_request_s: tuple[float, float, float] | None = None
    full_at: int | None = None
    """The number of requests in flight at which the server refused more, if the search of a level found it."""
    """The seconds of a request that ran alone before a search: until its first token, for each further token, and in
    all."""
    probes: list[Outcome] = []
    attempts: list[Outcome] = []  # performance tests that were followed by another
    concurrency: int | None = None  # most requests computed at once
    checkpoint: str | None = None  # the name of a quantized checkpoint
    weights: str | None = None  # their number format in words, where this process loads them
    data: str | None = None
    mean_prompt_tokens: Measured = None
    card_limits: CardLimits | None = None  # the limits of the GPUs that it computed on
    stages: list[progress.Stage] = []
    unread: Annotated[list[str], Field(exclude=True)] = []
    """The settings of the record that this version does not know, in words."""

    @model_validator(mode="before")
    @classmethod
    def read_settings(cls, data: Any) -> Any:
        """Read the settings of a record of any version. What is no record of a run is returned as it is.

        Old names are replaced by today's. Settings that no longer exist go to `unread`, in words, for the report.
        """
        match data:
            case {"plan": {"config": {**config}} as plan}:
                settings = {flags.setting(str(name)): value for name, value in config.items()}
                unread = []
                for name in sorted(settings.keys() - RunConfig.model_fields.keys()):
                    unread.append(f"config.json: {given_values.flag_name(name)} is no setting of this version")
                known_settings = RunConfig.non_default_settings(settings)  # without the unknown ones
                return data | {"plan": plan | {"config": known_settings}, "unread": unread}
        return data

    def adopt(self, plan: Plan) -> None:
        """Replace the plan by a newer one, and with it what follows from a plan: the deviations and
        LoadGen's settings.
        """
        self.plan, self.deviations = plan, plan.deviations
        self.loadgen = {"model": plan.loadgen_model, "scenario": plan.config.scenario_rules.loadgen}

    @property
    def config(self) -> RunConfig:
        return self.plan.config

    @property
    def settings(self) -> dict[str, object]:
        """All settings by name: the flags, then the plan's resolved values, which replace `auto`.

        The plan's task and notes are left out, as they are no settings.
        """
        plan = self.model_dump()["plan"]
        for name in ("task", "notes"):
            plan.pop(name, None)
        settings: dict[str, object] = plan.pop("config")
        settings |= plan
        return settings

    @property
    def comparable(self) -> comparability.Comparable:
        """The aspects of the run that decide whether it can be compared: machine, engine, work and settings."""
        return comparability.Comparable.of_machine(
            self.system, self.engine, work=self.plan.work, settings=self.plan.settings
        )
