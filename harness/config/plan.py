"""A run with every setting resolved: each `auto` that needs no engine here, the rates in benchmark/rate.py."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Annotated, Any, Literal, NamedTuple

from harness.config import comparability, engine, mlperf, models, workload
from harness.config.engine import EngineConfig, EngineState
from harness.config.flags import MOST_S
from harness.config.patterns import SURE_QUERIES, Batched, Load, LoadPattern, Poisson
from harness.config.run import RunConfig
from harness.config.workload import OFFICIAL, Replay, RequestSet
from harness.core.document import Statement, number
from harness.core.errors import UsageError
from harness.core.schema import stored_as
from harness.core.secrets import hide_word
from harness.core.system import GPU


# How an engine is spread over the GPUs: tensor parallel as far as the weights need, replicas over the rest.
def parallelism(config: EngineConfig, gpus: Sequence[GPU], weight_bytes: int) -> tuple[int, int]:
    """Tensor and data parallel size: split only as far as the weights need, replicate over the rest.

    A model fits when its weights take at most 0.8 of what vLLM may use; the rest is for the attention cache.
    """
    tensor, data = config.tensor_parallel_size, config.data_parallel_size
    most, units = (len(gpus), "GPUs") if gpus else (os.cpu_count() or 1, "CPU cores, since there is no GPU")
    if tensor == "auto":
        smallest = min((gpu.memory for gpu in gpus), default=inf)
        available = max(1, len(gpus) // (1 if data == "auto" or config.has_other_hosts else data))
        usable = 0.8 * config.memory_share * smallest
        fitting: int = next((2**n for n in range(10) if 2**n <= available and weight_bytes <= 2**n * usable), 0)
        if not fitting:
            raise UsageError(
                f"{config.model} needs {weight_bytes / 2**30:.0f} GiB for its weights; {available} GPU(s) with "
                f"{smallest / 2**30:.0f} GiB each do not hold it. Use more GPUs or --quantization fp8."
            )
        tensor = fitting
    copies = max(1, len(gpus) // tensor) if data == "auto" else data
    if tensor * copies > most and not config.has_other_hosts:
        raise UsageError(
            f"--tensor-parallel-size {tensor} x --data-parallel-size {copies} needs {tensor * copies} {units}; "
            f"{most} visible."
        )
    return tensor, copies


class TestPart(NamedTuple):
    """A part of a run, in words, and about how many seconds it takes, or `bound`; None: as long as the answers do."""

    name: str
    text: str
    seconds: float | None
    bound: Literal["", "at least ", "at most "] = ""


@dataclass(frozen=True, kw_only=True)
class Plan(Load):
    """A run with every setting resolved. `notes` says how each `auto` was resolved, for the report."""

    config: RunConfig
    task: mlperf.Task
    max_model_len: int
    tensor_parallel_size: int
    data_parallel_size: int
    seeds: mlperf.Seeds
    reference_model: bool = True  # whether the model has Llama-3.1-8B's shape
    random_weights: bool = False  # whether its weights were drawn at random
    engine_state: Annotated[EngineState, stored_as("running", "engine_state")] = EngineState()  # once the engine is up
    notes: tuple[str, ...] = ()
    request_set: Annotated[RequestSet | None, stored_as("asked", "request_set")] = (
        None  # where it is not MLPerf's samples
    )
    official_data: bool = True  # whether the samples are MLPerf's, once they are read

    @property
    def loadgen_model(self) -> str:
        """The model name under which `mlperf.conf` keeps this benchmark's settings."""
        return "llama3_1-8b-edge" if self.config.category == "edge" else self.config.scenario_rules.loadgen_model

    @property
    def pattern(self) -> LoadPattern:
        """How its tests load the engine."""
        return self.config.scenario_rules.pattern

    @property
    def max_new_tokens(self) -> int:
        """The longest answer, in tokens."""
        return self.request_set.max_new_tokens if self.request_set else self.config.max_new_tokens

    @property
    def watched_gpus(self) -> int | None:
        """How many of this machine's visible GPUs the engine uses, the first ones; None: perhaps all."""
        if self.config.endpoint:
            return None if engine.is_here(self.config.endpoint) and not self.config.telemetry_url else 0
        return None if self.config.has_other_hosts else self.tensor_parallel_size * self.data_parallel_size

    @property
    def setup(self) -> dict[str, object]:
        """What another run must share for its speed to tell of this one's: all that the engine's speed depends on.

        Follows from what each flag affects; the value of an `auto` stands for it.
        """
        flags = self.config.values(EngineConfig.affecting("answers", "speed"))
        flags |= {name: getattr(self, name) for name in ("max_model_len", "tensor_parallel_size", "data_parallel_size")}
        lists = {"endpoint": self.config.endpoint, "engine_patch": flags.pop("engine_patch")}
        flags |= {name: list(values) for name, values in lists.items() if values}
        flags |= {"workload": self.request_set.key} if self.request_set else {}
        return flags | {
            "quantization": self.engine_state.quantization,
            "kv_cache_dtype": self.engine_state.kv_cache_dtype,
            "max_new_tokens": self.max_new_tokens,
            "engine_arg": sorted(map(hide_word, self.config.engine_arg)),
        }

    @property
    def settings(self) -> dict[str, object]:
        """The same with the flags of the load, and with what the engine made of its settings."""
        flags = self.config.values(RunConfig.affecting("answers", "speed"))
        load = {"min_duration": self.min_duration_s, "concurrency": self.concurrency}
        made = {name: value for name, value in asdict(self.engine_state).items() if value is not None}
        return flags | self.setup | load | made

    @property
    def work(self) -> dict[str, object]:
        """The work of the engine, by flag, every `auto` resolved: speeds at other work are not compared."""
        return self.config.work | {
            "total_sample_count": self.samples,
            "samples_per_query": self.samples_per_query,
            "workload": self.request_set.key if self.request_set else OFFICIAL,
        }

    @property
    def schedule(self) -> tuple[float, ...]:
        """When each query is due, in seconds since the first, where the schedule is our own and no trace's: up to the
        first that is not before the minimum duration."""
        name, rate = self.config.arrivals, self.target_qps
        if name is None or rate is None or self.replay:
            return ()
        return workload.times(name, rate, self.min_duration_s, self.seeds.schedule)

    @property
    def replay(self) -> Replay | None:
        return self.request_set.replay if self.request_set else None

    @property
    def scheduled(self) -> int:
        """How many queries a schedule of our own has."""
        return self.replay.requests if self.replay else len(self.schedule)

    @property
    def min_queries(self) -> int:
        return self.pattern.min_queries(self)

    @property
    def queries(self) -> int | None:
        """About how many samples LoadGen will issue one after the other; None where that is not known."""
        return self.pattern.queries(self)

    @property
    def length(self) -> str:
        """How many queries a performance test has and how long it takes at least, in words; empty where the rate is not
        known yet. LoadGen takes whole passes of the samples."""
        pattern = self.pattern
        if (length := pattern.length(self)) is None:
            return ""
        return f"{length[0]:,} {pattern.queries_are} in about {minutes(length[1])}"

    @property
    def too_short(self) -> str | None:
        """Why the performance test cannot be VALID at its rate, in words; None where it can."""
        is_judged = isinstance(self.pattern, Poisson) and self.config.mode != "accuracy"
        if not (is_judged and self.queries and self.queries < SURE_QUERIES):
            return None
        return (
            f"{self.queries:,} queries cannot be VALID: LoadGen needs {SURE_QUERIES}, "
            f"{SURE_QUERIES / (self.target_qps or 1.0):.0f} s at {number(self.target_qps)} queries/s; "
            "leave --min-duration on auto"
        )

    @property
    def unproven_args(self) -> str:
        """The engine arguments that are not known to leave the model as it is."""
        return ", ".join(sorted(set(self.config.engine_args).difference(models.SPEED_ARGS)))

    @property
    def deviations(self) -> list[Statement]:
        """Why the result cannot stand beside MLPerf's; empty for a run of official length on the real model."""
        return comparability.deviations(self)

    def with_note(self, note: str, **changes: Any) -> "Plan":
        """The same plan with one more `auto` resolved."""
        return replace(self, notes=(*self.notes, note), **changes)

    def with_concurrency(self, level: int = 0) -> "Plan":
        """The plan at a level of concurrency, the highest unless it is given, with the rate that a trial at another one
        makes expect there; as it is without levels."""
        if not (level := level or self.config.highest_level):
            return self
        each = (self.target_qps or 0.0) / (self.concurrency or 1)
        return replace(self, concurrency=level, target_qps=level * each or None)

    def parts(self, before: TestPart | None) -> list[TestPart]:
        """The tests of a run, and what comes `before` its performance test, as far as it is known."""
        found, last, ahead = list[TestPart](), self.with_concurrency(), [before] if before else []
        if self.config.quick:
            return ahead
        length = self.pattern.length(last)
        if self.config.mode != "performance":
            seconds = self.samples * length[1] / length[0] if length else None
            found.append(TestPart("accuracy test", f"{self.samples:,} samples, as long as they take", seconds))
        if self.config.mode != "accuracy":
            found += ahead
            text = f"at least {minutes(self.min_duration_s)}"
            if isinstance(self.pattern, Poisson):
                fewest = self.pattern.fewest(last)
                text += f" and {fewest:,} queries, {minutes(fewest)} at 1 query/s"
            least = TestPart("performance test", text, self.min_duration_s, "at least ")
            found.append(TestPart("performance test", last.length, length[1]) if length else least)
        return found

    def total(self, before: TestPart | None = None, start: str = "from here on") -> str:
        """The parts of a run in one line, with the sum of their times."""
        found = self.parts(before)
        timed = [part for part in found if part.seconds is not None]
        said = [f"{part.name} {part.bound}{minutes(part.seconds or 0.0)}" for part in timed]
        said += [f"{part.name} as long as it takes" for part in found if part.seconds is None]
        is_least = len(timed) < len(found) or any(part.bound == "at least " for part in found)
        summed = sum(part.seconds or 0.0 for part in timed if not (is_least and part.bound == "at most "))
        return f"{'at least' if is_least else 'about'} {minutes(summed)} {start}: {', '.join(said)}"


def minutes(seconds: float) -> str:
    """A length of time in the unit that people would take."""
    for unit, size, least in (("days", 86400, 2), ("h", 3600, 2), ("min", 60, 1)):
        if seconds >= least * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def resolve(
    config: RunConfig,
    gpus: Sequence[GPU],
    weight_bytes: int,
    reference_model: bool = True,
    request_set: RequestSet | None = None,
    random_weights: bool = False,
) -> Plan:
    """Fills in every `auto` but the rates, which only a loaded engine can tell. `request_set`: in place of MLPerf's.

    Raises UsageError where the sample count is more than there is, a request too long, or the GPUs are too few.
    """
    notes: list[str] = []
    task = replace(config.task, samples=request_set.samples) if request_set else config.task
    replay = request_set.replay if request_set else None
    count = samples(config, task, replay, notes)
    # Behind an endpoint the GPUs are the server's business.
    tensor, data = parallelism(config, gpus, weight_bytes) if config.is_in_process else (1, 1)
    seconds = duration(config, task, count, request_set, notes)
    if gpus and config.is_in_process and "auto" in (config.tensor_parallel_size, config.data_parallel_size):
        notes.append(
            f"parallelism: {len(gpus)} visible GPU(s), weights of {weight_bytes / 2**30:.1f} GiB: "
            f"tensor parallel {tensor}, data parallel {data}"
        )
    seed = config.seed
    return Plan(
        config=config,
        task=task,
        samples=count,
        min_duration_s=seconds,
        max_model_len=context(config, request_set),
        tensor_parallel_size=tensor,
        data_parallel_size=data,
        seeds=mlperf.SEEDS[config.round] if seed is None else mlperf.Seeds(seed, seed, seed),
        reference_model=reference_model,
        random_weights=random_weights,
        notes=tuple(notes),
        target_qps=rate(config, count, replay),
        samples_per_query=query_samples(config, count),
        concurrency=config.highest_level or None,
        request_set=request_set,
    )


def samples(config: RunConfig, task: mlperf.Task, replay: Replay | None, notes: list[str]) -> int:
    """How many samples are used, at most those of the task. Raises UsageError where more are asked for."""
    count = config.sample_limit or task.samples
    if count <= task.samples:
        return count
    if not replay:
        raise UsageError(f"--total-sample-count {count}: this data set has {task.samples:,} samples.")
    notes.append(f"samples: {task.samples:,} of {count:,}: the trace has no more that can be sent in this time")
    return task.samples


def duration(
    config: RunConfig, task: mlperf.Task, count: int, request_set: RequestSet | None, notes: list[str]
) -> float:
    """The minimum duration in seconds: what was given, a trace's own, or the task's, in proportion to the samples where
    LoadGen takes as many as it needs for it."""
    given = None if config.min_duration == "auto" else config.min_duration
    if request_set and request_set.replay:
        return request_set.replay.least_s(given)
    if given is not None:
        return given
    whole, share = task.min_duration_s, count / task.samples
    is_repeated = request_set or config.scenario_rules.pattern.is_own_clock  # its samples, however few they are
    least = whole if is_repeated else max(1.0, round(whole * share, 1))
    if least != whole:
        notes.append(f"minimum duration: {least:g} s = {whole:g} s x {count:,} / {task.samples:,}")
    return least


def query_samples(config: RunConfig, count: int) -> int:
    """The samples of a query. Raises UsageError where the run has fewer."""
    if not isinstance(config.scenario_rules.pattern, Batched):
        return 1
    found = config.samples_per_query
    if (most := found if isinstance(found, int) else max(found)) > count:
        raise UsageError(f"--samples-per-query {most}: this run has {count:,} samples.")
    return most


def rate(config: RunConfig, count: int, replay: Replay | None) -> float | None:
    """The rate where it is known before the engine is. Raises UsageError for one that takes for ever."""
    pattern = config.scenario_rules.pattern
    given = getattr(config, pattern.rate_flag) if pattern.rate_flag.endswith("_qps") else None
    if replay:
        given = replay.rate
    elif given == "auto" and config.rate_ends:  # a ramp's own, on average
        given = sum(config.rate_ends) / 2
    slowest = min(given) if isinstance(given, tuple) else given
    if pattern.is_rated and isinstance(slowest, float) and count / slowest > MOST_S:
        flag = f"--arrivals {config.arrivals}" if config.has_own_rate else f"--server-target-qps {slowest:g}"
        raise UsageError(f"{flag}: {count:,} queries would take {count / slowest / 86400:,.0f} days.")
    return given if isinstance(given, float) else None


def context(config: RunConfig, request_set: RequestSet | None) -> int:
    """The longest prompt plus answer. Raises UsageError where the model or a request asks for another."""
    supported, given = config.model_spec.positions, config.max_model_len
    if given != "auto" and supported and given > supported:
        raise UsageError(
            f"--max-model-len {given}: the {config.model} model knows contexts of {supported} tokens at most."
        )
    if request_set and given != "auto":
        request_set.check_context(given, f"--max-model-len is {given:,}")
    if request_set and supported:
        request_set.check_context(supported, f"the {config.model} model knows {supported:,} at most")
    return max(config.model_spec.context, request_set.longest if request_set else 0) if given == "auto" else given
