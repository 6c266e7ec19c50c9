"""What a run knows of itself, typed: config.json and status.json; and what all files of a run folder have in common."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, ConfigDict, Field, JsonValue, model_validator

from harness.common.schema import File, Model, stored_as
from harness.common.system import System
from harness.config.flags import setting
from harness.config.plan import Plan
from harness.runs.probe import Probe
from harness.terminal.progress import Stage

SAME_COUNT = 0.02  # by which a server's count of tokens and ours may differ
CACHED_PERCENT = 1.0  # of the prompt tokens that may come from a server's cache without a word


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


class BaselineRun(Model):
    """The last run without an endpoint of what an endpoint run asked for; metrics by name."""

    run: str
    settings: str
    metrics: dict[str, float]


class RunFacts(Facts):
    """config.json of a run of run.py: every resolved setting, and what is known of the run beside its tests."""

    plan: Plan
    deviations: Annotated[list[str], Field(validation_alias=AliasChoices("deviations", "shortcomings"))]  # before 3
    loadgen: dict[str, str] = {}
    probes: list[Probe] = []
    attempts: list[Probe] = []  # performance tests that another one followed
    concurrency: int | None = None  # most requests computed at once
    checkpoint: str | None = None  # where it came quantized
    data: str | None = None
    mean_prompt_tokens: float | None = None
    stages: list[Stage] = []
    in_process: BaselineRun | None = None

    @model_validator(mode="before")
    @classmethod
    def renamed(cls, data: Any) -> Any:
        """The settings by today's names."""
        match data:
            case {"plan": {"config": {**config}} as plan}:
                return data | {"plan": plan | {"config": {setting(str(name)): value for name, value in config.items()}}}
        return data

    def adopt(self, plan: Plan) -> None:
        """Takes the plan as it is known now, and what follows from it."""
        self.plan, self.deviations = plan, plan.deviations
        self.loadgen = {"model": plan.loadgen_model, "scenario": plan.config.scenario_rules.loadgen}

    @property
    def settings(self) -> dict[str, object]:
        """Every setting by its name: flags, and over them what `auto` came to."""
        plan = self.model_dump()["plan"]
        flags: dict[str, object] = plan.pop("config")
        return flags | {name: value for name, value in plan.items() if name not in ("task", "notes")}


class MachineUse(Model):
    """machine.json: what a test took of the machine, and what other programs did meanwhile."""

    others_cpu_cores: float | None = None
    background_load: Annotated[list[str], stored_as("others", "background_load")] = []
    gpu_joules: float | None = None


class ServerUse(Model):
    """server.json: what a test's server counted, and how its answers came, beside this client's own count. Sums over
    the test; null where an answer came without such a count."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt tokens, those that were not computed again."""
    output_tokens: int | None = None
    sent_tokens: int | None = None
    """Of the prompts, as this program encoded them."""
    client_tokens: int | None = None
    """Output tokens as this client counts them: ids that came, or text encoded with the model's tokenizer."""
    tokens: int | None = None
    """Output tokens of the result: `output_tokens` where text came and each answer had such a count, else
    `client_tokens`."""
    answers: int = 0
    cache_hit_percent: float | None = None
    """Prompt tokens from the servers' prefix caches, by their own metrics before and after the test."""
    streams: int = 0
    """Answers that were streamed; the next three are of them."""
    messages: int = 0
    """Messages that held tokens, each as it was read from the connection."""
    first_tokens: int = 0
    """Tokens in the first messages."""
    bundled: int = 0
    """Answers that came in fewer than half as many messages as tokens, or with half of their tokens in the first."""

    @classmethod
    def of(cls, told: Mapping[str, int], answers: int, **more: Any) -> Self:
        """Of `told` by an engine during a test with so many answers."""
        whole, with_cached = (told.get(name) == answers for name in ("answers", "answers_with_cached"))
        return cls(
            prompt_tokens=told.get("prompt_tokens") if whole else None,
            cached_tokens=told.get("cached_tokens", 0) if with_cached else None,
            output_tokens=told.get("output_tokens") if whole else None,
            client_tokens=told.get("client_tokens"),
            tokens=told.get("tokens"),
            answers=answers,
            **{name: told.get(name, 0) for name in ("streams", "messages", "first_tokens", "bundled")},
            **more,
        )

    @property
    def cached_percent(self) -> float | None:
        """Of the prompt tokens, by `usage` or by the server's metrics, whichever has more; null where neither tells."""
        counted = self.cached_tokens is not None and self.prompt_tokens
        by_usage = 100 * (self.cached_tokens or 0) / (self.prompt_tokens or 1) if counted else None
        return max((share for share in (by_usage, self.cache_hit_percent) if share is not None), default=None)

    @property
    def buffered(self) -> bool:
        """Whether TTFT and TPOT are those of a buffer on the way, or in the server: of half of the answers."""
        return self.streams > 0 and 2 * self.bundled >= self.streams

    @property
    def disagreements(self) -> list[str]:
        """What the wire shows and this program's own figures do not, in words."""
        return [*self._counts(), *self._cache(), *self._delivery()]

    def _counts(self) -> Iterator[str]:
        counted, came, answers = self.output_tokens, self.client_tokens, max(1, self.answers)
        if counted is not None and came and abs(counted - came) > SAME_COUNT * came:
            by = "`usage`" if self.tokens == counted else "what came"
            apart = f"{came / answers:.4g} here ({100 * (came - counted) / max(1, counted):+.3g} %)"
            yield f"`usage` has {counted / answers:.4g} tokens an answer, counted {apart}: the result is by {by}"
        read = 100 * self.prompt_tokens / self.sent_tokens if self.prompt_tokens and self.sent_tokens else 100.0
        if read < 100 * (1 - SAME_COUNT):
            yield f"by `usage` the server read {read:.3g} % of the prompt tokens that were sent: were prompts cut?"

    def _cache(self) -> Iterator[str]:
        if (share := self.cached_percent or 0.0) > CACHED_PERCENT:
            yield f"{share:.3g} % of the prompt came from the server's cache"

    def _delivery(self) -> Iterator[str]:
        if self.buffered:
            messages, tokens, first = (n / self.streams for n in (self.messages, self.tokens or 0, self.first_tokens))
            share = f"{100 * self.bundled / self.streams:.3g} % of the answers came in bursts"
            means = f"mean: {tokens:.3g} tokens in {messages:.3g} messages, {first:.3g} in the first message"
            yield f"TTFT and TPOT are those of the buffering: {share} ({means})"


class Usage(Model):
    """A quantity that was recorded once a second during a test."""

    mean: float
    max: float


class Capacity(Model):
    """What the measured rate comes to."""

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
        p50, p99 = (ranked[math.ceil(share * len(ranked)) - 1] for share in (0.5, 0.99))
        return cls(min=ranked[0], mean=sum(ranked) / len(ranked), p50=p50, p99=p99, max=ranked[-1])


class LimitsMs(Model):
    """99th percentiles at most, in milliseconds."""

    ttft: float
    tpot: float


class Cost(Model):
    """What tokens and requests cost at --price-per-hour, in its currency."""

    price_per_hour: float
    per_million_output_tokens: float | None = None
    per_million_tokens: float | None = None
    """Input and output."""
    per_thousand_requests: float | None = None
