"""The search for the highest rate against simulated servers whose highest rate is known.

    python -m benchmarks.search [--searches N] [--quick] [NAME ...]

Each server of benchmarks.simulated_servers runs in virtual time under random arrivals and is judged as LoadGen judges;
the search is the harness's own. The true rate is the highest at which 19 of 20 sequences of arrivals are VALID over
the full test. There are 20 sequences if a test has many queries. There are 200 if it has few, since chance decides
more of its verdict then.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np

from benchmarks.simulated_servers import (
    UNLIMITED,
    Answers,
    Array,
    Disaggregated,
    Engine,
    Pace,
    Prefill,
    RequestSizes,
    Server,
    batching_engine,
    sharing_engine,
)
from harness.config.loadgen_schedule import arrival_times, queries_of_test
from harness.config.mlperf import SCENARIOS, LatencyLimits
from harness.config.patterns import SURE_QUERIES, Poisson
from harness.core.errors import OutOfTimeError
from harness.loadgen.admission import Admission
from harness.loadgen.test_run import Recording
from harness.rates import quick, search
from harness.rates.clock import clock_fall
from harness.rates.first_requests import LONE_REQUESTS, LONE_S, BurstResult
from harness.rates.full_tests import FullTests, first_rate
from harness.rates.goal import Goal
from harness.rates.measurements import Candidate, Measurements
from harness.rates.server_model import LoneRequest
from harness.rates.simulation import allowed_late
from harness.results import queue_fit
from harness.results.outcome import Outcome, Queue, Times

FULL_S = 600.0  # the length of a full test, in seconds
HIGHEST_CLOCK_MHZ, CLOCK_STEP_MHZ = 1980, 15  # the clock of an H200, and the steps in which it changes
PASS_SHARE = 0.95  # the share of the sequences of arrivals that must be VALID at the true rate
SEQUENCES = 20  # the sequences of arrivals that decide whether a rate passes
FEW_QUERIES, SEQUENCES_IF_FEW = 5000, 200  # A full test with fewer queries is run with more sequences.
FIRST_TRUTH_SEED = 1000  # the seed of the first of these sequences
MOST_TRUTH_RATIO = 1.002  # The search for the true rate ends between two rates with this ratio.
GOAL_NAME = "its limits"  # the name of the one goal of a quick estimate


def mlperf_limits(scenario: str) -> LatencyLimits:
    limits = SCENARIOS[scenario].limits
    assert limits is not None
    return limits


SERVER, INTERACTIVE = mlperf_limits("server"), mlperf_limits("interactive")
PATIENT = LatencyLimits(2000, 30)  # for servers whose prompts take long


@dataclass(frozen=True)
class Case:
    """A server with its name, its pace, and the limits that it must keep."""

    name: str
    server: Server
    pace: Pace = Pace()
    limits: LatencyLimits = SERVER
    searches: int = 1  # the number of searches, with other arrivals each

    @property
    def is_steady(self) -> bool:
        """Tell whether the server stays as it is, except for chance and for stalls, which come all the time."""
        lasting_pace = replace(self.pace, noise=0.0, stall_s=0.0, stall_every_s=math.inf)
        return self.most_replicas == 1 and lasting_pace == Pace()

    @property
    def most_replicas(self) -> float:
        """The most replicas of an autoscaler; 1 for any other server."""
        if isinstance(self.server, Engine) and self.server.most_replicas:
            return float(self.server.most_replicas)
        return 1.0

    @property
    def full_at(self) -> int:
        """The number of requests in flight beyond which the server refuses."""
        if isinstance(self.server, Engine):
            return self.server.most_running + self.server.most_waiting
        return UNLIMITED


# At full load, a step of 4,096 tokens has 575 running requests and 4.5 prompts, and takes 77 ms. The other times are
# fitted to machine.csv.
H200 = Engine(0.004, 2.0e-5, 0.0129, step_tokens=4096)
FASTER_H200 = Engine(0.0030, 1.2e-5, 0.0129, step_tokens=4096)
PACES = {  # The names are parts of the names of cases.
    "noise of 1 %": Pace(noise=0.01),
    "noise of 3 %": Pace(noise=0.03),
    "slow start": Pace(warm_up_s=40),
    "stalls": Pace(stall_s=0.3, stall_every_s=10),
}


def modeled_cases() -> Iterator[Case]:
    """Yield servers of the kinds for which the search was made."""
    for rate in (5, 20, 60, 300, 2000):
        yield Case(f"capacity, {rate:,}/s", Prefill(rate))
    for name, pace in PACES.items():
        yield Case(f"capacity, 60/s, {name}", Prefill(60), pace)
    for tpot_rate in (0.5, 5, 40, 300, 2000):
        yield Case(f"TPOT, {tpot_rate:,}/s", batching_engine(tpot_rate))
    for name, pace in PACES.items():
        yield Case(f"TPOT, 40/s, {name}", batching_engine(40), pace)
    yield Case("TPOT of 30 ms, 40/s", batching_engine(40, 0.008, 0.024), limits=INTERACTIVE)
    yield Case("an H200, Server", H200)
    yield Case("an H200, Interactive", H200, limits=INTERACTIVE, searches=6)
    yield Case("a faster H200, Interactive", FASTER_H200, limits=INTERACTIVE, searches=6)
    yield from sharing_cases()


def sharing_cases() -> Iterator[Case]:
    """Yield engines that are shared like processors, with and without work for prompts, each with two limits."""
    for rate in (5, 15, 30, 60, 200):
        strict_limits = PATIENT if rate < 10 else INTERACTIVE
        for prompt_share in (0.0, 0.8):
            kind = "shared, by prompts" if prompt_share else "shared"
            server = sharing_engine(rate, prompt_share=prompt_share)
            for limits in (SERVER, strict_limits):
                yield Case(f"{kind}, {rate}/s, {limits.tpot:g} ms", server, limits=limits)


MODELED_CASES = (*modeled_cases(),)


# Kinds of servers for which the search was not made. They were written down before it first ran on any of them.
FIRST_TEN = (
    Case("96 at once", sharing_engine(60, prompt_share=0.75, most_running=96), limits=INTERACTIVE),
    Case("two replicas", sharing_engine(30, prompt_share=0.75, replicas=2), limits=INTERACTIVE),
    Case("prompts of any length", sharing_engine(60, prompt_share=0.8, prompt_spread=1.0), limits=INTERACTIVE),
    Case("answers of any length", sharing_engine(60, prompt_share=0.5, answer_tokens=(8, 248)), limits=INTERACTIVE),
    Case(
        "a tenth slower after 4 min",
        sharing_engine(60, prompt_share=0.8),
        Pace(hot_after_s=240, hot_speed=0.9),
        limits=INTERACTIVE,
    ),
    Case("faster over ten minutes", sharing_engine(40, prompt_share=0.5), Pace(warm_up_s=600)),
    Case("draft tokens", sharing_engine(60, 0.0055, 0.4, draft_chance=0.4), limits=INTERACTIVE),
    Case("steps that bend", Engine(0.004, 1.0e-5, 0.010, power=1.3), limits=INTERACTIVE),
    Case("waves", Engine(0.010, 1.0e-4, 0.010, most_running=64, is_static=True)),
    Case("0.3/s", sharing_engine(0.3, 0.05, 0.2, most_running=64), limits=LatencyLimits(10_000, 150)),
)

# The search was changed to suit those, so ten more were written down before it first ran on any of them.
SECOND_TEN = (
    Case("32 at once, 15/s", sharing_engine(15, prompt_share=0.75, most_running=32), limits=INTERACTIVE),
    Case("three replicas", sharing_engine(25, prompt_share=0.75, replicas=3)),
    Case("prompts of any length, 200/s", sharing_engine(200, prompt_share=0.6, prompt_spread=1.5), limits=INTERACTIVE),
    Case("answers of 2 to 60 tokens", sharing_engine(60, prompt_share=0.75, answer_tokens=(2, 60)), limits=INTERACTIVE),
    Case(
        "a twentieth slower after 2 min", sharing_engine(60, prompt_share=0.75), Pace(hot_after_s=120, hot_speed=0.95)
    ),
    Case("noise of 10 %", sharing_engine(60, prompt_share=0.75), Pace(noise=0.1), limits=INTERACTIVE),
    Case(
        "draft tokens, 200 at once",
        sharing_engine(60, 0.0055, 0.4, draft_chance=0.7, most_running=200),
        limits=INTERACTIVE,
    ),
    Case("steps that bend a little", Engine(0.005, 2.0e-5, 0.008, power=1.15)),
    Case("stalls of a second", sharing_engine(60, prompt_share=0.75), Pace(stall_s=1.0, stall_every_s=60)),
    Case("2/s", sharing_engine(2, 0.03, 0.3), limits=LatencyLimits(5000, 100)),
)

# The search was changed to suit those, too, so there are ten more.
THIRD_TEN = (
    Case("four replicas", sharing_engine(12, prompt_share=0.75, replicas=4)),
    Case("prompts of any length, 45/s", sharing_engine(45, prompt_share=0.85, prompt_spread=1.2)),
    Case(
        "answers of 16 to 1,000 tokens",
        sharing_engine(20, prompt_share=0.3, answer_tokens=(16, 1000)),
        limits=INTERACTIVE,
    ),
    Case(
        "a sixth faster after 3 min",
        sharing_engine(60, prompt_share=0.75),
        Pace(hot_after_s=180, hot_speed=1.15),
        limits=INTERACTIVE,
    ),
    Case(
        "noise of 5 %, 150 at once",
        sharing_engine(80, prompt_share=0.75, most_running=150),
        Pace(noise=0.05),
        limits=INTERACTIVE,
    ),
    Case("draft tokens, Server", sharing_engine(50, 0.0045, 0.5, draft_chance=0.6)),
    Case("steps that bend, Server", Engine(0.006, 8.0e-6, 0.009, power=1.25)),
    Case("waves of 32", Engine(0.006, 5.0e-5, 0.006, most_running=32, is_static=True), limits=LatencyLimits(4000, 60)),
    Case("1/s, 16 at once", sharing_engine(1, 0.03, 0.4, most_running=16), limits=LatencyLimits(8000, 120)),
    Case(
        "stalls of a tenth",
        sharing_engine(60, prompt_share=0.75),
        Pace(stall_s=0.1, stall_every_s=5),
        limits=INTERACTIVE,
    ),
)

# It was changed once more, so there are another ten, written down before it first ran on any of them.
FOURTH_TEN = (
    Case(
        "answers of 32 to 400 tokens, 64 at once",
        sharing_engine(30, prompt_share=0.4, answer_tokens=(32, 400), most_running=64),
        limits=INTERACTIVE,
    ),
    Case(
        "two replicas, 48 at once",
        sharing_engine(25, prompt_share=0.75, replicas=2, most_running=48),
        limits=INTERACTIVE,
    ),
    Case("prompts of any length, 40/s", sharing_engine(40, prompt_share=0.5, prompt_spread=2.0)),
    Case("a tenth faster after 5 min", sharing_engine(50, prompt_share=0.75), Pace(hot_after_s=300, hot_speed=1.1)),
    Case(
        "draft tokens, 64 at once",
        sharing_engine(40, 0.0055, 0.4, draft_chance=0.5, most_running=64),
        limits=INTERACTIVE,
    ),
    Case("steps that bend, 128 at once", Engine(0.005, 1.5e-5, 0.010, power=1.2, most_running=128), limits=INTERACTIVE),
    Case("waves of 128", Engine(0.008, 4.0e-5, 0.008, most_running=128, is_static=True)),
    Case(
        "stalls of half a second, 100 at once",
        sharing_engine(60, prompt_share=0.75, most_running=100),
        Pace(stall_s=0.5, stall_every_s=30),
    ),
    Case("5/s, 24 at once", sharing_engine(5, 0.02, 0.5, most_running=24), limits=LatencyLimits(3000, 80)),
    Case(
        "noise of 4 %, three replicas",
        sharing_engine(20, prompt_share=0.75, replicas=3),
        Pace(noise=0.04),
        limits=INTERACTIVE,
    ),
)

# Kinds of servers with which searches by users went wrong: a tenant that comes and goes, a server that grows or
# refuses, and a card with a cap of 208 running requests, whose times are fitted to machine.csv and requests.csv of an
# H200.
REPORTED_CASES = (
    Case("a neighbor of 3 in 90 s", sharing_engine(40, prompt_share=0.75), Pace(neighbor_s=3), INTERACTIVE, searches=3),
    Case("an autoscaler to 3 replicas", sharing_engine(20, prompt_share=0.5, most_replicas=3, scale_at=24), searches=2),
    Case("refuses beyond 8", sharing_engine(15, prompt_share=0.5, most_running=8, most_waiting=0), searches=2),
    Case(
        "refuses beyond 64, half of them waiting",
        sharing_engine(40, prompt_share=0.75, most_running=32, most_waiting=32),
        limits=INTERACTIVE,
    ),
    Case(
        "an H200 of at most 208, Interactive",
        Engine(0.0025, 2.9e-5, 0.0118, prompt_spread=0.475, most_running=208, step_tokens=4096),
        Pace(noise=0.01, heat=0.01),
        limits=INTERACTIVE,
        searches=6,
    ),
    Case("0.2/s", sharing_engine(0.2, 0.08, 0.3, most_running=16), limits=LatencyLimits(20_000, 300)),
)

# Twelve more kinds, written down with their names before any search ran on them.
TWELVE_MORE = (
    Case("memory short beyond 120 running", sharing_engine(50, prompt_share=0.6, knee=120, knee_s=2e-4)),
    Case("prefill and decode apart", Disaggregated(45, sharing_engine(200)), limits=INTERACTIVE),
    Case("steps in stairs of 64", sharing_engine(60, prompt_share=0.6, stair=64), limits=INTERACTIVE),
    Case(
        "a neighbor of 5 in 45 s",
        sharing_engine(60, prompt_share=0.75),
        Pace(neighbor_s=5, neighbor_every_s=45, neighbor_speed=0.7),
    ),
    Case(
        "three replicas at random",
        sharing_engine(20, prompt_share=0.75, replicas=3, is_random=True),
        limits=INTERACTIVE,
    ),
    Case(
        "one prompt in 50 is 15 times as long",
        sharing_engine(40, prompt_share=0.7, long_prompt_share=0.02, long_prompt_factor=15),
    ),
    Case(
        "refuses beyond 24", sharing_engine(30, prompt_share=0.6, most_running=24, most_waiting=0), limits=INTERACTIVE
    ),
    Case(
        "refuses beyond 150, a third of them waiting",
        sharing_engine(50, prompt_share=0.75, most_running=100, most_waiting=50),
    ),
    Case(
        "hotter by 4 % in minutes",
        sharing_engine(60, prompt_share=0.75),
        Pace(heat=0.04, heat_s=150),
        limits=INTERACTIVE,
    ),
    Case("a sine of 3 % in ten minutes", sharing_engine(60, prompt_share=0.75), Pace(wave=0.03)),
    Case("an autoscaler to 4 replicas", sharing_engine(15, prompt_share=0.5, most_replicas=4, scale_s=30, scale_at=48)),
    Case(
        "0.8/s, answers of 64 to 512 tokens",
        sharing_engine(0.8, 0.04, 0.3, answer_tokens=(64, 512), most_running=32),
        limits=LatencyLimits(8000, 150),
    ),
)
ALL = (*MODELED_CASES, *FIRST_TEN, *SECOND_TEN, *THIRD_TEN, *FOURTH_TEN, *REPORTED_CASES, *TWELVE_MORE)


class RefusedError(Exception):
    """A simulated server refused a request of a full test."""


class AnsweredRequests(NamedTuple):
    """The requests of a test that were answered: their times in seconds of virtual time, and their sizes."""

    arrivals: Array
    first: Array  # when the first token was there
    last: Array  # when the last token was there
    sizes: RequestSizes

    @classmethod
    def of(cls, arrivals: Array, answers: Answers, sizes: RequestSizes) -> Self:
        """Return those of a test's requests that were not refused."""
        is_answered = ~answers.is_refused
        answered_sizes = RequestSizes(sizes.prompt_work[is_answered], sizes.tokens[is_answered])
        return cls(arrivals[is_answered], answers.first[is_answered], answers.last[is_answered], answered_sizes)

    @property
    def ttft_ms(self) -> Array:
        return np.asarray(1000 * (self.first - self.arrivals))

    @property
    def tpot_ms(self) -> Array:
        return np.asarray(1000 * (self.last - self.first) / np.maximum(self.sizes.tokens - 1, 1))

    @property
    def latency_ms(self) -> Array:
        return np.asarray(1000 * (self.last - self.arrivals))

    @property
    def queue(self) -> Queue | None:
        """The queue that these requests show; None if they are too few."""
        ttft_s = self.first - self.arrivals
        return queue_fit.queue_from_times(self.arrivals, ttft_s, self.last, self.sizes.prompt_work, self.sizes.tokens)

    def late_count(self, goal: Goal) -> int:
        """Return how many requests were over a limit: the TTFT's or the TPOT's, whichever had more."""
        return int(max((self.ttft_ms > goal.ttft_ms).sum(), (self.tpot_ms > goal.tpot_ms).sum()))


@dataclass
class Bench:
    """Tests of one server, one after the other, in virtual time. It is a `SearchBench` of harness.rates."""

    case: Case
    seed: int
    spent_s: float = 0.0
    probes: list[Outcome] = field(default_factory=list)
    replicas: float = 1.0  # the replicas of an autoscaler
    in_flight: int = UNLIMITED  # the most requests that the client keeps at the server
    until_s: float = math.inf  # the virtual time after which nothing more is measured
    may_shorten: bool = False  # whether probes may have fewer queries than LoadGen needs for a verdict

    @property
    def at_once(self) -> int:
        return self.in_flight

    @property
    def goal(self) -> Goal:
        limits = self.case.limits
        return Goal(FULL_S, SURE_QUERIES, limits.ttft, limits.tpot, pass_queries=1, seed=self.seed)

    def lone_request(self) -> LoneRequest:
        """Return the mean times of LONE_REQUESTS requests that run alone. After LONE_S seconds, no more are sent."""
        begin_s = self.spent_s
        [tokens] = self.case.server.requests(1).tokens
        times = list[tuple[float, float, float]]()  # TTFT, TPOT and latency of each request, in seconds
        while len(times) < LONE_REQUESTS and self.spent_s < begin_s + LONE_S:
            answers = self.serve(np.zeros(1))
            first, last = float(answers.first[0]), float(answers.last[0])
            tpot_s = (last - first) / max(tokens - 1, 1)
            times.append((first, tpot_s, last))
        return LoneRequest(*np.mean(times, axis=0).tolist())

    def burst(self, size: int) -> BurstResult:
        """Send `size` requests at once."""
        answers = self.serve(np.zeros(size))
        refused = int(answers.is_refused.sum())
        return BurstResult(size - refused, refused, float(answers.last.max()))

    def say(self, text: str) -> None:
        """Do nothing: a simulated search has no reader."""

    @property
    def left_s(self) -> float:
        return self.until_s - self.spent_s

    def discard(self, probes: Sequence[Outcome]) -> None:
        """Do nothing: only the search's measurements have probes that count."""

    def limit_in_flight(self, most: int) -> None:
        self.in_flight = most

    def serve(self, arrivals: Array) -> Answers:
        """Return the answers to requests that arrive at these times, and let the time pass that they take.

        Raises IndexError if an engine has not answered all of them an hour after the last one arrived, and
        OutOfTimeError if the time is over before.
        """
        random = np.random.default_rng([self.seed, len(self.probes), 1])
        speeds = self.case.pace.speeds(int(arrivals[-1]) + 3600, self.spent_s, random)
        answers = self.case.server.answer(arrivals, speeds, self.in_flight, self.replicas)
        self.replicas = answers.replicas
        self.spent_s += float(answers.last.max())
        if self.spent_s > self.until_s:
            self.spent_s = self.until_s
            raise OutOfTimeError
        return answers

    def probe(self, candidate: Candidate) -> Outcome:
        return self.test(candidate.rate, candidate.seconds)

    def full_test(self, qps: float) -> Outcome:
        """Run a full test. Raises RefusedError if a request was refused, which fails a full test."""
        test = self.test(qps, FULL_S)
        if test.refused:
            raise RefusedError
        return test

    def test(self, qps: float, seconds: float) -> Outcome:
        """Run one test, and return its outcome with the verdict that LoadGen would give it.

        Every test has the same sequence of arrivals, up to the first query that comes when the time is over.
        """
        least_queries = 1 if self.may_shorten else SURE_QUERIES
        count = queries_of_test(self.seed, qps, seconds, least_queries)
        arrivals = arrival_times(self.seed, count) / qps
        begin_s = self.spent_s
        answers = self.serve(arrivals)
        answered = AnsweredRequests.of(arrivals, answers, self.case.server.requests(count))
        ttft, tpot = figures_of(answered.ttft_ms), figures_of(answered.tpot_ms)
        # LoadGen asks for two things: p99s within the limits, and as few late queries as early stopping allows.
        keeps_limits = ttft["p99"] <= self.goal.ttft_ms and tpot["p99"] <= self.goal.tpot_ms
        late = answered.late_count(self.goal)
        has_few_late = late <= allowed_late(count)
        needs_more_queries = keeps_limits and not has_few_late
        last_arrival_s = float(arrivals[-1])
        answer_spans = [*zip(answered.arrivals, answered.last, strict=True)]
        refusal_times = list(answers.last[answers.is_refused])
        outcome = Outcome(
            load=qps,
            unit=Poisson.unit,
            valid=keeps_limits and has_few_late,
            latency_ms=Times(**figures_of(answered.latency_ms)),
            ttft_ms=Times(**ttft),
            tpot_ms=Times(**tpot),
            sent=(count - 1) / float(arrivals[-1] - arrivals[0]),
            issue_s=last_arrival_s,
            more=missing_queries(count, late) if needs_more_queries else None,
            queue=answered.queue,
            clock_fall=self.recorded_clock_fall(begin_s, last_arrival_s),
            refused=len(refusal_times) or None,
            full_at=Admission(answer_spans, refusal_times).full_at,
        )
        self.probes.append(outcome)
        return outcome

    def recorded_clock_fall(self, begin_s: float, seconds: float) -> float | None:
        """Return the fall of the card's clock as a recording of a test shows it; None for a server without heat.

        The test began at the virtual time `begin_s`, and its last query was sent after `seconds`.
        """
        if not self.case.pace.heat:
            return None
        reading_times = np.arange(1, int(seconds) + 1)
        clocks = HIGHEST_CLOCK_MHZ * self.case.pace.clock(begin_s + reading_times)
        reported_clocks = CLOCK_STEP_MHZ * np.rint(clocks / CLOCK_STEP_MHZ)
        recording = Recording(reading_times.astype(float).tolist(), {"gpu0_clock_mhz": reported_clocks.tolist()})
        return clock_fall(recording, seconds)


def figures_of(values: Array) -> dict[str, float]:
    """Return the figures of a kind of latency that a search uses, by the names of the fields of `Times`."""
    return {
        "min": float(values.min()),
        "mean": float(values.mean()),
        "p50": float(np.median(values)),
        "p99": float(np.quantile(values, 0.99, method="higher")),
    }


def missing_queries(count: int, late: int) -> int:
    """Return how many more queries early stopping needs so that `late` late ones are allowed, in steps of 10."""
    more = 1
    while allowed_late(count + more) < late:
        more += 10
    return more


def true_rate(case: Case) -> float:
    """Return the highest rate that passes a full test with 19 of 20 sequences of arrivals.

    The server has run for an hour: an autoscaler has all its replicas. A server that refuses gets as many requests at
    once as it takes.
    """
    bench = Bench(case, 0, in_flight=case.full_at)
    burst_qps = search.burst_qps(bench, Measurements(bench.goal, bench.lone_request()))
    low, high = 0.0, 4 * burst_qps
    # A burst may not show what a server completes that slows down only with many requests.
    while has_passed(case, high):
        low, high = high, 2 * high
    while low == 0 or high / low > MOST_TRUTH_RATIO:
        middle = (low + high) / 2
        if has_passed(case, middle):
            low = middle
        else:
            high = middle
    return low


def has_passed(case: Case, rate: float) -> bool:
    """Tell whether full tests at a rate are VALID with at least PASS_SHARE of the sequences of arrivals."""
    has_few_queries = rate * FULL_S < FEW_QUERIES
    sequences = SEQUENCES_IF_FEW if has_few_queries else SEQUENCES
    most_failures = round((1 - PASS_SHARE) * sequences)
    failures = 0
    for seed in range(FIRST_TRUTH_SEED, FIRST_TRUTH_SEED + sequences):
        # Each test begins at another time, so that a change of the speed comes at another place in it.
        begin_s = 3600.0 + 37 * seed
        bench = Bench(case, seed, begin_s, replicas=case.most_replicas, in_flight=case.full_at)
        try:
            test = bench.test(rate, FULL_S)
        except IndexError:  # The server has not answered all an hour after the last query: it is far overloaded.
            return False
        if not test.valid or test.refused:
            failures += 1
        if failures > most_failures:
            return False
    return True


@dataclass(frozen=True)
class SearchResult:
    """The result of a search and its full tests."""

    rate: float | None  # the highest rate of a full test that held; None if none did
    full_rates: list[float]  # rates of the full tests, in their order
    has_first_held: bool
    probes: int
    minutes: float  # the length of the search, without its full tests

    @property
    def attempts(self) -> int:
        """The number of full tests."""
        return len(self.full_rates)

    def cells(self, truth: float) -> str:
        """Return the cells of this search in the table. `truth` is the true rate of the server."""
        rate, ratio = "none", ""
        if self.rate is not None:
            rate = f"{self.rate:.4g}"
            ratio = f"{self.rate / truth:.3f}"
        return f"{rate} | {ratio} | {self.attempts} | {self.probes} | {self.minutes:.1f}"


def find_rate(bench: Bench) -> SearchResult:
    """Run the harness's search and its full tests. A full test with refusals ends them."""
    measurements = search.search(bench)
    minutes = bench.spent_s / 60
    full_tests = list[Outcome]()
    rate: float | None = first_rate(measurements)
    while rate:
        try:
            full_tests.append(bench.full_test(rate))
        except RefusedError:
            break
        rate = FullTests(full_tests, measurements.probes, bench.goal, measurements.lone).next_rate
    return SearchResult(
        rate=max((test.load for test in full_tests if test.has_held), default=None),
        full_rates=[test.load for test in full_tests],
        has_first_held=bool(full_tests) and full_tests[0].has_held,
        probes=len(measurements.probes),
        minutes=minutes,
    )


def quick_estimate(bench: Bench) -> quick.Estimate:
    """Return the harness's quick estimate, within the time that it may take."""
    bench.until_s, bench.may_shorten = quick.CEILING_S, True
    measurements = search.estimate(bench)
    full_at = bench.in_flight if bench.in_flight < UNLIMITED else None
    goal = quick.for_any_arrivals(bench.goal)
    return quick.estimate_of(measurements, {GOAL_NAME: goal}, "", full_at)


@dataclass
class Totals:
    """The results of all searches, for the line below the table."""

    ratios: list[float] = field(default_factory=list)  # rate over true rate; 0 if a search had no answer
    full_tests: list[int] = field(default_factory=list)  # the number of full tests of each search
    first_held: list[bool] = field(default_factory=list)  # whether the first full test of each search held

    def add(self, result: SearchResult, truth: float) -> None:
        self.ratios.append((result.rate or 0.0) / truth)
        self.full_tests.append(result.attempts)
        self.first_held.append(result.has_first_held)

    def __str__(self) -> str:
        searches = len(self.ratios)
        near = sum(ratio >= 0.95 for ratio in self.ratios)
        few = sum(count <= 2 for count in self.full_tests)
        return (
            f"{searches} searches: {near} found 0.95 of what holds or more, the lowest {min(self.ratios):.3f}, "
            f"{self.ratios.count(0.0)} none; {few} took one or two full tests; the first held in {sum(self.first_held)}"
        )


def seeds_of(case: Case, number: int, count: int) -> list[int]:
    """Return the seeds of the arrivals of a case's searches: `count` of them, or as many as the case asks for.

    `number` is the place of the case among all of them.
    """
    if case.searches > 1:
        return list(range(max(case.searches, count)))
    return [number + 1000 * n for n in range(count)]


def benches(names: Sequence[str], count: int) -> Iterator[tuple[Bench, float]]:
    """Yield a bench for each search on the named servers, or on all without names, and the server's true rate."""
    for number, case in enumerate(ALL):
        if names and case.name not in names:
            continue
        truth = true_rate(case)
        for seed in seeds_of(case, number, count):
            yield Bench(case, seed), truth


def run_searches(names: Sequence[str], count: int) -> None:
    """Search on each server, and print the rates that the searches found beside the true rate."""
    print("| server | highest rate, queries/s | found | of it | full tests | probes | minutes |\n|---|" + "---|" * 6)
    totals = Totals()
    for bench, truth in benches(names, count):
        result = find_rate(bench)
        totals.add(result, truth)
        print(f"| {bench.case.name} | {truth:.4g} | {result.cells(truth)} |", flush=True)
    print(f"\n{totals}")


def run_estimates(names: Sequence[str], count: int) -> None:
    """Make a quick estimate for each server, and print whether its range has the true rate."""
    print("| server | highest rate, queries/s | range | right | minutes |\n|---|" + "---|" * 4)
    steady_verdicts, changing_verdicts = list[bool](), list[bool]()
    for bench, truth in benches(names, count):
        estimate = quick_estimate(bench)
        rate_range = estimate.ranges.get(GOAL_NAME)
        if rate_range is None:
            cells = f"none: {', '.join(estimate.doubts)} | "
        else:
            low, high = rate_range
            is_right = low <= truth and (high is None or truth <= high)
            verdicts = steady_verdicts if bench.case.is_steady else changing_verdicts
            verdicts.append(is_right)
            range_text = f"{low:.3g} or more" if high is None else f"{low:.3g} to {high:.3g}"
            cells = f"{range_text} | {is_right} "
        print(f"| {bench.case.name} | {truth:.4g} | {cells}| {bench.spent_s / 60:.1f} |", flush=True)
    for kind, verdicts in (("steady", steady_verdicts), ("changing", changing_verdicts)):
        print(f"{kind} servers: {sum(verdicts)} of {len(verdicts)} ranges right")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the names of servers; without, all")
    parser.add_argument("--searches", type=int, default=1, help="searches on each server, with other arrivals each")
    parser.add_argument("--quick", action="store_true", help="quick estimates in place of searches")
    arguments = parser.parse_args(words)
    unknown_names = set(arguments.names).difference(case.name for case in ALL)
    if unknown_names:
        parser.error(f"unknown servers: {', '.join(sorted(unknown_names))}")
    run = run_estimates if arguments.quick else run_searches
    run(arguments.names, arguments.searches)


if __name__ == "__main__":
    main(sys.argv[1:])
