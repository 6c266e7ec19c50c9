"""A run with every setting resolved; the rates are found in runner/rate.py."""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal, NamedTuple, TypedDict, Unpack

from harness.config import arrival_patterns, mlperf, mlperf_deviations, models, server_addresses
from harness.config.arrival_patterns import Replay
from harness.config.engine import EngineConfig, EngineState
from harness.config.patterns import SURE_QUERIES, Load, LoadPattern, Poisson
from harness.config.run import RunConfig
from harness.config.workload import OFFICIAL_WORKLOAD, RequestSet
from harness.core.formatting import number, plural
from harness.core.schema import stored_field
from harness.core.secrets import hide_word
from harness.core.statements import Statement


class TestPart(NamedTuple):
    """A part of a run in words, and roughly how many seconds it takes. `bound` says whether these are a minimum or a
    maximum. None if it takes as long as its answers, whose speed is not known yet.
    """

    name: str
    text: str
    seconds: float | None
    bound: Literal["", "at least ", "at most "] = ""


class PlanChanges(TypedDict, total=False):
    """The fields of a plan that are resolved as the run goes on."""

    config: RunConfig
    target_qps: float | None
    expected_latency_ms: float | None
    concurrency: int | None


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
    # The defaults stand until the engine is up.
    engine_state: Annotated[EngineState, stored_field("running", "engine_state")] = EngineState()
    notes: tuple[str, ...] = ()
    request_set: Annotated[RequestSet | None, stored_field("asked", "request_set")] = None  # None for MLPerf's samples
    official_data: bool = True  # whether the samples are MLPerf's; assumed until they are read

    @property
    def loadgen_model(self) -> str:
        """The model name under which `mlperf.conf` keeps this benchmark's settings."""
        if self.config.category == "edge":
            return "llama3_1-8b-edge"
        return self.config.scenario_rules.loadgen_model

    @property
    def pattern(self) -> LoadPattern:
        """The way in which the tests load the engine."""
        return self.config.scenario_rules.pattern

    @property
    def max_new_tokens(self) -> int:
        """The longest answer, in tokens."""
        if self.request_set:
            return self.request_set.max_new_tokens
        return self.config.max_new_tokens

    @property
    def limits(self) -> mlperf.LatencyLimits | None:
        """The scenario's latency limits, each replaced by the user's own if given. None if the scenario has none."""
        official = self.config.scenario_rules.limits
        if official is None:
            return None
        ttft = self.config.ttft_limit or official.ttft
        tpot = self.config.tpot_limit or official.tpot
        return replace(official, ttft=ttft, tpot=tpot)

    @property
    def watched_gpus(self) -> int | None:
        """The number of this machine's GPUs to record, counted from the first. None if the engine may use all."""
        config = self.config
        if config.telemetry_url:  # An exporter reports the GPUs of the server, so none of this machine is recorded.
            return 0
        if config.endpoint and not server_addresses.is_here(config.endpoint):  # The GPUs are on another machine.
            return 0
        # It is not known which GPUs a server on this machine uses, nor an engine with further hosts.
        if config.endpoint or config.has_other_hosts:
            return None
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def setup(self) -> dict[str, object]:
        """The settings on which the engine's speed depends, as flags and their values, with secrets masked.

        Another run's speed predicts this run's only if both have the same setup.
        """
        flags = self.config.values(EngineConfig.flags_by_effect("answers", "speed"))
        flags |= {
            "max_model_len": self.max_model_len,
            "tensor_parallel_size": self.tensor_parallel_size,
            "data_parallel_size": self.data_parallel_size,
            "quantization": self.engine_state.quantization,
            "kv_cache_dtype": self.engine_state.kv_cache_dtype,
            "max_new_tokens": self.max_new_tokens,
            "engine_arg": sorted(map(hide_word, self.config.engine_arg)),
        }
        # Most runs have no patches, no endpoint and no request set, so only a run that has one gets its key.
        del flags["engine_patch"]
        if self.config.engine_patch:
            flags["engine_patch"] = list(self.config.engine_patch)
        if self.config.endpoint:
            flags["endpoint"] = list(self.config.endpoint)
        if self.request_set:
            flags["workload"] = self.request_set.key
        return flags

    @property
    def settings(self) -> dict[str, object]:
        """All settings that affect answers or speed: the flags, `setup`, the load, and what the engine resolved."""
        flags = self.config.values(RunConfig.flags_by_effect("answers", "speed"))
        load = {"min_duration": self.min_duration_s, "concurrency": self.concurrency}
        resolved = {name: value for name, value in asdict(self.engine_state).items() if value is not None}
        return flags | self.setup | load | resolved

    @property
    def work(self) -> dict[str, object]:
        """The work of the engine by flag, with every `auto` resolved. Speeds at different work are not compared."""
        workload = self.request_set.key if self.request_set else OFFICIAL_WORKLOAD
        return self.config.work | {
            "total_sample_count": self.samples,
            "samples_per_query": self.samples_per_query,
            "workload": workload,
        }

    @property
    def schedule(self) -> tuple[float, ...]:
        """The times at which queries are due, in seconds from the start, for arrivals of a shape such as "gamma:2".

        Empty for other arrivals, or if the rate is not known yet.
        """
        name, rate = self.config.arrivals, self.target_qps
        if name is None or rate is None or self.replay:
            return ()
        return arrival_patterns.arrival_times(name, rate, self.min_duration_s, self.seeds.schedule)

    @property
    def replay(self) -> Replay | None:
        return self.request_set.replay if self.request_set else None

    @property
    def schedule_length(self) -> int:
        """The number of queries in a schedule of the user's own: those of the replayed trace, or of `schedule`."""
        if self.replay:
            return self.replay.requests
        return len(self.schedule)

    @property
    def min_queries(self) -> int:
        return self.pattern.min_queries(self)

    @property
    def schedule_seed(self) -> int:
        return self.seeds.schedule

    @property
    def pass_queries(self) -> int:
        """The number of queries in a pass over the samples. LoadGen sends whole passes.

        It is 1 if LoadGen may stop within a pass, as with the user's own requests.
        """
        return self.pattern.pass_queries(self)

    @property
    def planned_samples(self) -> int | None:
        """Roughly how many samples LoadGen will issue one after the other. None if all at once, or not known yet."""
        return self.pattern.planned_samples(self)

    @property
    def length(self) -> str:
        """The number of queries of a performance test and roughly how long it takes, in words.

        Empty if that is not known yet.
        """
        length = self.pattern.length(self)
        if length is None:
            return ""
        queries, seconds = length
        return f"{plural(queries, self.pattern.query_noun)} in about {duration_text(seconds)}"

    @property
    def expected_length(self) -> str:
        """The `length` in words for the screen, which says that it is not measured; empty if it is not known yet."""
        return f"expected: {self.length}" if self.length else ""

    @property
    def duration_problem(self) -> str | None:
        """The reason why the performance test has too few queries to be VALID at its rate, in words.

        None if it has enough, or if their number is not known or not judged.
        """
        is_judged = isinstance(self.pattern, Poisson) and self.config.mode != "accuracy"
        if not (is_judged and self.planned_samples and self.planned_samples < SURE_QUERIES):
            return None
        rate = self.target_qps or 1.0  # The queries are known, so the rate is, too.
        seconds = SURE_QUERIES / rate
        return (
            f"{plural(self.planned_samples, 'query')} cannot be VALID: LoadGen needs {SURE_QUERIES}, "
            f"{seconds:.0f} s at {number(self.target_qps)} queries/s; leave --min-duration on auto"
        )

    @property
    def unproven_args(self) -> str:
        """The engine arguments that may change the model's answers."""
        return ", ".join(sorted(set(self.config.engine_args).difference(models.SPEED_ARGS)))

    @property
    def deviations(self) -> list[Statement]:
        """The reasons why the result cannot stand beside MLPerf's.

        Empty for a run of official length on the real model.
        """
        return mlperf_deviations.deviations(self)

    def with_note(self, note: str, **changes: Unpack[PlanChanges]) -> "Plan":
        """Return the same plan with the fields in `changes`, and a note for the report on how they were found."""
        return replace(self, notes=(*self.notes, note), **changes)

    def with_concurrency(self, level: int = 0) -> "Plan":
        """Return the plan with `level` requests in flight.

        If `level` is 0, the highest number that the user gave is taken. Without any, the plan is returned unchanged.
        The expected rate is taken to be in proportion to the requests in flight.
        """
        concurrency = level or self.config.highest_level
        if not concurrency:
            return self
        rate = None
        if self.target_qps:
            # The rate of a plan without a number of requests in flight is taken as that of one request.
            qps_per_request = self.target_qps / (self.concurrency or 1)
            rate = concurrency * qps_per_request
        return replace(self, concurrency=concurrency, target_qps=rate)

    def parts(self, before: TestPart | None) -> list[TestPart]:
        """Return the parts of a run in their order, for the announcement of its length.

        `before` is a part that comes before the performance test, such as a trial, if there is one.
        """
        parts_before = [before] if before else []
        if self.config.quick:  # An estimate makes no full test.
            return parts_before
        test_parts = list[TestPart]()
        if self.config.mode != "performance":
            test_parts.append(self.accuracy_part())
        if self.config.mode != "accuracy":
            test_parts += parts_before
            test_parts.append(self.performance_part())
        return test_parts

    def accuracy_part(self) -> TestPart:
        """Return the accuracy test as a part of the run.

        A sample is assumed to take as long as in the performance test. If that test's length is not known yet, the part
        has no seconds.
        """
        seconds = None
        length = self.pattern.length(self.with_concurrency())
        if length:
            test_queries, test_s = length
            seconds = self.samples * test_s / test_queries
        return TestPart("accuracy test", f"{plural(self.samples, 'sample')}, as long as they take", seconds)

    def performance_part(self) -> TestPart:
        """Return the performance test as a part of the run, with its length in words and in seconds.

        With several numbers of requests in flight, the test with the highest number is returned.
        """
        plan = self.with_concurrency()
        known_length = self.pattern.length(plan)
        if known_length:
            _queries, seconds = known_length
            return TestPart("performance test", plan.length, seconds)
        text = f"at least {duration_text(self.min_duration_s)}"
        if isinstance(self.pattern, Poisson):  # A slow server takes much longer, since the queries have a minimum, too.
            queries = self.pattern.planned_queries(plan)
            seconds_at_1_qps = queries
            text += f" and {queries:,} queries, {duration_text(seconds_at_1_qps)} at 1 query/s"
        # `bound` is for the sum of the run's parts.
        return TestPart("performance test", text, self.min_duration_s, bound="at least ")

    def duration_line(self, before: TestPart | None = None, start: str = "from now on") -> str:
        """Return the parts of a run in one line, with the sum of their times. `start` says from when on, in words.

        `before` is a part that comes before the performance test, such as a trial; None if there is none.
        """
        test_parts = self.parts(before)
        # If a part takes an unknown time, or a time that is only a minimum, the sum is a minimum, too.
        is_minimum = any(part.seconds is None or part.bound == "at least " for part in test_parts)
        timed_texts, untimed_texts = [], []
        total_s = 0.0
        for part in test_parts:
            if part.seconds is None:
                untimed_texts.append(f"{part.name} not known yet")
                continue
            timed_texts.append(f"{part.name} {part.bound}{duration_text(part.seconds)}")
            may_be_shorter = part.bound == "at most "
            if not (is_minimum and may_be_shorter):  # A minimum cannot count on a part that may be shorter.
                total_s += part.seconds
        prefix = "at least" if is_minimum else "about"
        return f"expected time {start}: {prefix} {duration_text(total_s)} ({', '.join(timed_texts + untimed_texts)})"


def duration_text(seconds: float) -> str:
    """Return a duration as text in the unit that people would use: days, hours, minutes or seconds.

    Days and hours are used from two on, minutes from one on.
    """
    for unit, size, least in (("days", 86400, 2), ("h", 3600, 2), ("min", 60, 1)):
        if seconds >= least * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
