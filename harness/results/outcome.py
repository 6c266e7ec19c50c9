"""The outcome of one LoadGen test at one load."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from harness.config import comparability
from harness.config.mlperf import Tail
from harness.config.patterns import ClosedLoop, Poisson, Sequential
from harness.core.document import Tone
from harness.core.formatting import Measured, number, plural
from harness.core.schema import FrozenModel, StoredStatement, stored_field
from harness.core.statements import names_of
from harness.core.statistics import FEWEST_P99, tail_name
from harness.loadgen.log import LATENCY_KINDS, Latency
from harness.results.test_details import TestDetails

SURE = 2.33  # standard errors: less than 1 in 100 by chance
NEGLIGIBLE_SLOWDOWN_SHARE = 0.03  # share of an answer's time; a smaller effect of concurrency is noise
SETTLED = 6  # median latencies of a query; after this time the number of running queries no longer rises
LARGEST_WAIT_SHARE = 0.1  # share of a query's time; with more queueing its latency no longer measures decoding


AT_MOST_SIGN = "\N{LESS-THAN OR EQUAL TO}"  # before a p99 that is the slowest of few


class Doubt(StrEnum):
    """A reason why a figure is not what it seems to be; of several the first is shown first."""

    INVALID = comparability.INVALID
    DISPUTED = "disputed by the wire or by LoadGen's log"
    BUSY = "measured on a busy machine"
    FEW = "the slowest of few requests"
    BUFFERED = "of the buffering, not of the engine"


class Figure(NamedTuple):
    """A number, and whether it may be believed: decided where it is made, and only shown elsewhere."""

    value: Measured
    doubts: tuple[Doubt, ...] = ()

    @property
    def counted(self) -> Measured:
        """The value that counts: None for a p99 of so few requests that it is only the slowest of them."""
        if Doubt.FEW in self.doubts:
            return None
        return self.value

    @property
    def mark(self) -> str:
        """The sign before the value: "at most" for a p99 of few requests, else empty."""
        if self.value is None or Doubt.FEW not in self.doubts:
            return ""
        return f"{AT_MOST_SIGN} "


T = TypeVar("T")
Known = Annotated[T | None, Field(exclude_if=lambda value: value is None)]  # a field that a file lacks if it is None


class Times(FrozenModel):
    """One kind of latency, in milliseconds, as far as a record has it."""

    model_config = ConfigDict(from_attributes=True)

    min: Known[float] = None
    mean: Known[float] = None
    p50: Known[float] = None
    p90: Known[float] = None
    p99: Known[float] = None
    max: Known[float] = None

    @classmethod
    def of(cls, latency: Latency | None) -> Self:
        """Return the part of a latency that a file keeps; all fields are None if LoadGen logged no such latency."""
        if latency is None:
            return cls()
        return cls(
            min=latency.min, mean=latency.mean, p50=latency.p50, p90=latency.p90, p99=latency.p99, max=latency.max
        )


# Times of a test; null in records of older versions.
Measurement = Annotated[Times, BeforeValidator(lambda times: times or Times())]


@dataclass(frozen=True)
class Queue:
    """The queue in the second half of the time in which queries were issued, so without ramp and drain.

    The first five fields are per second. The fields from `token_s` on are those of `queue_fit.AnswerFit`.
    """

    sent: float  # queries issued
    completed: float  # queries; answers end in waves, so parts of answers count if as many run all the time
    completed_error: float  # the standard error of `completed`
    growth: float  # growth of the number of queries in flight
    chance: float  # the standard error of `growth`, by arrivals and completions, if the server is just fast enough
    dispersion: float  # variance over mean of the completions: 0 is clockwork, 1 pure chance
    token_s: float = 0.0  # seconds that an answer takes for each of its own tokens after its first
    each_s: float = 0.0  # seconds that it takes for each answer's worth of tokens that others get meanwhile
    prompt_s: float = 0.0  # seconds that it takes for each prompt begun meanwhile
    prompts: float = 0.0  # share of a query's work that is its prompt's, for which all answers wait
    spread: float = 0.0  # variance of the prompts' lengths over their mean squared
    tokens: float = 0.0  # mean tokens of an answer after its first
    answer_s: float = 0.0  # mean seconds that these tokens take
    beside: float = 0.0  # mean number of queries whose work is done while an answer is made
    scatter: float = 0.0  # standard deviation of the logarithm of an answer's time over the fitted one
    drift: float = 0.0  # change of the server's speed from the first third to the last, if it is beyond chance

    @property
    def has_grown(self) -> bool:
        """Tell whether more queries arrived than the server completed, by more than chance explains."""
        return self.growth > SURE * self.chance

    def shared_capacity(self, lone_token_s: float) -> float:
        """Estimate the capacity in queries/s from how much concurrency slows answers; infinity if it hardly does.

        Other queries slow an answer down by the time that the server spends on them: slowdown = queries / capacity.
        `lone_token_s` is the time per token of an answer that runs alone.
        """
        slowdown_s = self.answer_s - lone_token_s * self.tokens
        queries_meanwhile = self.beside
        if slowdown_s <= NEGLIGIBLE_SLOWDOWN_SHARE * self.answer_s or queries_meanwhile <= 0:
            return inf
        return queries_meanwhile / slowdown_s


LIMITED_LATENCIES = ("TTFT", "TPOT")  # names of the reasons for a latency over its limit


class LatencyVerdict(NamedTuple):
    """The verdict on a test in a word: LoadGen's, or the one on the run's own limits at fixed concurrency."""

    word: str
    tone: Tone


class Outcome(FrozenModel):
    """One LoadGen test at one load and what it measured; at fixed concurrency without its ramps."""

    load: float = 0.0
    unit: str = ""
    """Unit of the load, as its load pattern has it."""
    valid: bool
    """LoadGen's verdict."""
    has_own_limits: bool = False
    """Whether this program holds the latencies against the limits, so that LoadGen judges only the test's length."""
    reasons: tuple[StoredStatement, ...] = ()
    """Why the test is INVALID, or would be as a full test, or is over the run's own limits."""
    tokens_per_sec: Measured = None
    """Output tokens per second."""
    input_tokens_per_sec: Known[float] = None
    """Tokens per second of the prompts that were read."""
    samples_per_sec: Measured = None
    latency_ms: Measurement = Times()
    """Latency of a query."""
    ttft_ms: Measurement = Times()
    tpot_ms: Measurement = Times()
    client_delay_ms: Measurement = Times()
    """Time until a request was sent: from its schedule, or from an answer's end."""
    joules_per_output_token: Measured = None
    """Energy of the GPUs per output token."""
    trend: Measured = None
    """The output speed of the steady part's second half divided by that of its first half."""
    queries: int | None = None
    """Number of queries that the latencies are of."""
    sent: Measured = None
    """Queries/s that were scheduled in fact: random gaps add up to their own rate."""
    issue_s: Annotated[Measured, stored_field("duration_s", "issue_s")] = None
    """Seconds in which the queries were issued."""
    more: int | None = None
    """Queries that early stopping wants beyond those of the test; null if another check failed as well."""
    queue: Queue | None = None
    """The queue of a test that sends at a rate; null for any other test."""
    is_buffered: bool = False
    """Whether TTFT and TPOT are those of a buffer, not the engine's."""
    disagreements: tuple[str, ...] = ()
    """Where the wire or LoadGen's log contradicts the figures."""
    background_load: Annotated[tuple[str, ...], stored_field("others", "background_load")] = ()
    """What other programs took of the machine during the test, if it may have cost speed."""
    refused: Known[int] = None
    """Requests that the server refused because it was full, in a probe, which allows that."""
    full_at: Known[int] = None
    """Requests that the server was answering when it refused others."""
    is_outdated: Known[bool] = None
    """True if the server changed after this probe, so that no rate follows from it; null for any other test."""
    repeats: Known[list[str]] = None
    """The folders of all tests of this load, if it was tested several times. The figures are of all these tests
    together."""
    repeats_over: Known[int] = None
    """How many of these tests were over a limit."""
    speed_range: Known[tuple[float, float]] = None
    """Output tokens/s of the slowest and of the fastest of these tests."""
    clock_fall: Known[float] = None
    """Share by which the GPUs' clock fell within a probe, after its ramp."""
    folder: str = ""
    """Folder of the test's logs in the run folder."""
    details: Annotated[TestDetails, Field(exclude=True)] = TestDetails()
    """What else is known of the run's own test; empty for any other test."""

    @model_validator(mode="before")
    @classmethod
    def read_flat(cls, data: Any) -> Any:
        """Convert a record of format 5 or older, with a field for each percentile, three fields for the load, and all
        reasons in one text.
        """
        # Every record of these formats has the key `qps`, whatever its load.
        is_flat = isinstance(data, dict) and "qps" in data and "load" not in data
        return from_flat(data) if is_flat else data

    @property
    def verdict(self) -> LatencyVerdict:
        """LoadGen's verdict or, if the user's own limits decide, whether the latencies are within these limits."""
        if not self.has_own_limits and self.valid:
            return LatencyVerdict("VALID", "good")
        if not self.has_own_limits:
            return LatencyVerdict("INVALID", "bad")
        if self.reasons:
            over_text = "the limits"
            if self.over:  # TTFT, TPOT or both
                over_text = "both" if len(self.over) > 1 else self.over[0]
            return LatencyVerdict(f"over: {over_text}", "bad")
        if self.background_load:  # The machine was busy, so the limits may have been kept by chance.
            return LatencyVerdict("not judged", "careful")
        if self.over_in:  # The tests of this load together are within the limits, but single tests were not.
            return LatencyVerdict(f"within; {self.over_in}", "good")
        return LatencyVerdict("within", "good")

    @property
    def over_in(self) -> str:
        """In how many of several tests of this load a latency was over its limit, in words; empty if in none."""
        if not self.repeats or not self.repeats_over:
            return ""
        return f"over in {self.repeats_over} of {len(self.repeats)}"

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """All doubts about the figures, the gravest first, as only the first is shown."""
        doubts = []
        if not self.valid:
            doubts.append(Doubt.INVALID)
        if self.disagreements:
            doubts.append(Doubt.DISPUTED)
        if self.background_load:
            doubts.append(Doubt.BUSY)
        if self.queries is not None and self.queries < FEWEST_P99:
            doubts.append(Doubt.FEW)
        if self.is_buffered:
            doubts.append(Doubt.BUFFERED)
        return tuple(doubts)

    def with_details(self, details: TestDetails, trend: Measured) -> Self:
        """Return this outcome as that of the run's own test, with its details, the
        disagreements in them, and this trend.
        """
        disagreements = tuple(details.disagreements)
        return self.model_copy(update={"details": details, "trend": trend, "disagreements": disagreements})

    @property
    def is_own(self) -> bool:
        """Tell whether the test is the run's own. Only such a test has details, and so a scenario in them."""
        return bool(self.details.scenario)

    @property
    def tails(self) -> list[Tail]:
        """The p99 of TTFT and TPOT beside the run's limits. Empty if there are no limits or no details."""
        limits = self.details.limits_ms
        if limits is None:
            return []
        return limits.tails(self.ttft_ms.p99, self.tpot_ms.p99)

    @property
    def sure_tails(self) -> list[Tail]:
        """The p99 of TTFT and TPOT beside their limits, if there are enough requests for a p99.

        Else empty, since the p99 of few requests is only the slowest of them.
        """
        return [] if self.is_few else self.tails

    @property
    def is_few(self) -> bool:
        """Tell whether the requests are so few that their p99 is only the slowest of them."""
        return Doubt.FEW in self.doubts

    def name_of_p99(self, kind: str) -> str:
        """Return the label for the p99 of a kind of latency, such as "TTFT p99".

        The label says if the p99 is only the slowest of few requests, and if a buffer delivered the tokens, so that the
        time is not the engine's.
        """
        name = tail_name(kind, self.is_few)
        if self.is_buffered:
            name += " of the buffering"
        return name

    def at(self, kind: str, point: str) -> Measured:
        """Return a latency in milliseconds; None if not known. `kind` is "latency", "ttft" or "tpot"; `point` is a
        field of Times, such as "p99".
        """
        value: Measured = getattr(getattr(self, f"{kind}_ms"), point)
        return value

    @property
    def why(self) -> str:
        """The reasons why the test is INVALID or over the user's limits, in words."""
        return "; ".join(reason.what for reason in self.reasons)

    @property
    def flaws(self) -> list[str]:
        """The reasons why the figures may not stand beside those of another test, in words.

        The first reason is that a latency is over its limit or, if none is, that LoadGen calls the test INVALID. The
        disagreements between the logs follow.
        """
        flaws = list(self.disagreements)
        # With own limits, each reason is a latency over its limit.
        misses_own_limits = self.has_own_limits and bool(self.reasons)
        if self.over or misses_own_limits:
            flaws.insert(0, comparability.OVER_LIMIT)
        elif not self.valid:
            flaws.insert(0, comparability.INVALID)
        return flaws

    @property
    def over(self) -> list[str]:
        """The kinds of latency that were over their limits: TTFT, TPOT, both or none."""
        return names_of(self.reasons, LIMITED_LATENCIES)

    @property
    def tokens_per_sec_per_user(self) -> Measured:
        """1,000 / TPOT p90 in ms, as MLPerf Endpoints defines it.

        None if TPOT is not known or a buffer's, or if the load is not a number of requests in flight, which stand for
        users.
        """
        has_users = self.unit == ClosedLoop.unit
        if not has_users or self.is_buffered or not self.tpot_ms.p90:
            return None
        return 1000 / self.tpot_ms.p90

    @property
    def prefill_tokens_per_sec(self) -> Measured:
        """The tokens of a mean prompt divided by the mean TTFT: the speed of one request, including the time it waited.

        None if one of these is not known, or if a buffer held answers back, so that TTFT is not the engine's.
        """
        if not (self.input_tokens_per_sec and self.samples_per_sec and self.ttft_ms.mean) or self.is_buffered:
            return None
        prompt_tokens = self.input_tokens_per_sec / self.samples_per_sec
        return 1000 * prompt_tokens / self.ttft_ms.mean

    @property
    def decode_tokens_per_sec(self) -> Measured:
        """The requests in flight divided by the mean TPOT: the speed of all requests together.

        None if the load is not a number of requests in flight, or if TPOT is not known or a buffer held answers
        back.
        """
        # The samples of a query are in flight together, so samples per query are a number of requests in flight, too.
        if self.unit not in (ClosedLoop.unit, Sequential.unit) or not self.tpot_ms.mean or self.is_buffered:
            return None
        return 1000 * self.load / self.tpot_ms.mean

    def cost(self, price_per_hour: float) -> Measured:
        """Return the price of a million output tokens, in the currency of `price_per_hour`.

        None if the speed is not known.
        """
        if not self.tokens_per_sec:
            return None
        price_per_million_seconds = price_per_hour / 0.0036  # an hour in millions of seconds
        return price_per_million_seconds / self.tokens_per_sec

    @property
    def rate(self) -> float:
        """The queries/s that were sent to the server: those in LoadGen's schedule or, if not known, the load."""
        return self.sent or self.load

    @property
    def has_grown(self) -> bool:
        """Tell whether the queue grew: more queries came than were completed, by more than chance explains.

        False for a test that does not send at a rate, which has no queue.
        """
        if self.queue is None or not self.queue.has_grown:
            return False
        # In a short test, the growing number of queries may only have filled an idle server. That is not so if the test
        # lasted for SETTLED median latencies, or if queries waited.
        settling_s = SETTLED * (self.latency_ms.p50 or 0.0) / 1000
        is_settled = not self.issue_s or self.issue_s >= settling_s  # An unknown time counts as long enough.
        return is_settled or self.has_waited

    @property
    def has_waited(self) -> bool:
        """Tell whether waiting for the first token was more than LARGEST_WAIT_SHARE of a query's time."""
        return (self.ttft_ms.p50 or 0.0) > LARGEST_WAIT_SHARE * (self.latency_ms.p50 or 0.0)

    @property
    def has_held(self) -> bool:
        """Tell whether the server held the load: the test was VALID, its queue did not grow, no request was refused."""
        return self.valid and not self.has_grown and not self.refused

    @property
    def has_kept(self) -> bool:
        """Tell whether the test kept the user's own limits on latencies or, without any, whether the server kept up."""
        if self.has_own_limits:
            return not self.reasons  # The only reasons are then latencies over the limits.
        return self.has_held

    @property
    def is_short(self) -> bool:
        """Tell whether the test failed only because LoadGen wants more queries to be sure that the limits are kept."""
        return self.more is not None and not self.over and not self.has_grown

    @property
    def text(self) -> str:
        """The load with its unit, such as "8 requests in flight"."""
        if self.unit == ClosedLoop.unit:
            return f"{plural(self.load, 'request')} in flight"
        return f"{number(self.load)} {self.unit}"


def from_flat(data: dict[str, Any]) -> dict[str, Any]:
    """Return a record of format 5 or older in today's format.

    Such a record had other names for some fields, a field for each percentile, all reasons in one text, and one text
    for other programs.
    """
    new_names = {"buffered": "is_buffered", "joules_per_token": "joules_per_output_token", "seconds": "duration_s"}
    record = {new_names.get(name, name): value for name, value in data.items() if value is not None}
    load, unit = flat_load(record)
    fields = record | {
        "load": load,
        "unit": unit,
        "has_own_limits": unit == ClosedLoop.unit,
        "reasons": list(filter(None, record.get("why", "").split("; "))),
        "background_load": [record["busy"]] if record.get("busy") else [],
    }
    for kind in (*LATENCY_KINDS, "client_delay"):
        fields[f"{kind}_ms"] = {point: record.get(f"{kind}_{point}") for point in Times.model_fields}
    return fields


def flat_load(record: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the load and its unit from a record of format 5 or older, which has one of three fields for the load."""
    if "concurrency" in record:
        return record["concurrency"], ClosedLoop.unit
    if "qps" in record:
        return record["qps"], Poisson.unit
    return record["samples_per_query"], Sequential.unit


def load_of(outcome: Outcome) -> float:
    return outcome.load


def speed_of(outcome: Outcome) -> float:
    """Return the output tokens/s of a test; 0 if not known."""
    return outcome.tokens_per_sec or 0.0


def deciding_tests(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the test that decides about each load, sorted by load.

    Tests of a load must be in the order in which they ran.
    """
    # In a search, the last test was run to confirm the first test or to settle a contradiction.
    last_by_load = {}
    for outcome in outcomes:
        last_by_load[outcome.load] = outcome
    return sorted(last_by_load.values(), key=load_of)


def kept_below_failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the tests that kept their limits at a load below all loads that failed, sorted by load.

    A short probe may keep limits that a full test at a lower rate breaks.
    """
    tests = sorted(outcomes, key=load_of)
    failure = lowest_failure(tests)
    lowest_failed_load = failure.load if failure else inf
    return [test for test in tests if test.has_kept and test.load < lowest_failed_load]


def lowest_failure(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the test with the lowest load that failed; None if none did.

    A test that was only too short for LoadGen's verdict did not fail.
    """
    failed = [outcome for outcome in outcomes if not outcome.has_kept and not outcome.is_short]
    return min(failed, key=load_of, default=None)


def best_load(outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the deciding test with the most output tokens/s among the loads that kept their limits.

    Tests on a busy machine count only if there are no others. None if no load kept its limits.
    """
    candidates = [outcome for outcome in deciding_tests(outcomes) if outcome.has_kept and outcome.tokens_per_sec]
    on_idle_machine = [outcome for outcome in candidates if Doubt.BUSY not in outcome.doubts]
    return max(on_idle_machine or candidates, key=speed_of, default=None)
