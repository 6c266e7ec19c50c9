"""The search for the highest rate against simulated servers whose highest rate is known.

    python -m benchmarks.search [--searches N] [--quick] [NAME ...]

Each server of benchmarks.simulated_servers runs in virtual time under random arrivals and is judged as LoadGen judges;
the search is the harness's own. The truth is the highest rate at which 19 of 20 sequences of arrivals are VALID over
the full test: of 20 sequences where a test has many queries, of 200 where it has few, since chance decides more of it.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.simulated_servers import (
    UNLIMITED,
    Answers,
    Disaggregated,
    Engine,
    Pace,
    Prefill,
    Server,
    Times,
    batching,
    shared,
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
from harness.results.outcome import Outcome
from harness.results.outcome import Times as Latencies

FULL_S = 600.0  # seconds of a full test
HIGHEST_CLOCK_MHZ, CLOCK_STEP_MHZ = 1980, 15  # of an H200
HOLD = 0.95  # of the sequences of arrivals must be VALID
FEW, SEQUENCES, OF_FEW = 5000, 20, 200  # queries of a full test; sequences that tell its truth
SERVER, INTERACTIVE = SCENARIOS["server"].limits, SCENARIOS["interactive"].limits
assert SERVER and INTERACTIVE
PATIENT = LatencyLimits(2000, 30)  # for servers whose prompts take long


@dataclass(frozen=True)
class Case:
    """A server with a name, its pace, and the limits that it is held to."""

    name: str
    server: Server
    pace: Pace = Pace()
    limits: Any = SERVER
    searches: int = 1  # with other arrivals each

    @property
    def is_steady(self) -> bool:
        """Whether the server stays as it is, but for chance and stalls, which come all the time."""
        return self.most_replicas == 1 and replace(self.pace, noise=0.0, stall_s=0.0, every_s=math.inf) == Pace()

    @property
    def most_replicas(self) -> float:
        """Of an autoscaler; 1 of any other server."""
        return float(self.server.most_replicas or 1) if isinstance(self.server, Engine) else 1.0

    @property
    def full_at(self) -> int:
        """Requests in flight beyond which the server refuses."""
        return self.server.at_once + self.server.queue if isinstance(self.server, Engine) else UNLIMITED


# Steps of 4,096 tokens at full load: 575 running, 4.5 prompts, 77 ms; its other times are fitted to machine.csv.
H200 = Engine(0.004, 2.0e-5, 0.0129, step_tokens=4096)
PACES = {
    "noise of 1 %": Pace(noise=0.01),
    "noise of 3 %": Pace(noise=0.03),
    "slow start": Pace(slow_s=40),
    "stalls": Pace(stall_s=0.3, every_s=10),
}
CASES = (
    *(Case(f"capacity, {rate:,}/s", Prefill(rate)) for rate in (5, 20, 60, 300, 2000)),
    *(Case(f"capacity, 60/s, {name}", Prefill(60), pace) for name, pace in PACES.items()),
    *(Case(f"TPOT, {rate:,}/s", batching(rate)) for rate in (0.5, 5, 40, 300, 2000)),
    *(Case(f"TPOT, 40/s, {name}", batching(40), pace) for name, pace in PACES.items()),
    Case("TPOT of 30 ms, 40/s", batching(40, 0.008, 0.024), limits=INTERACTIVE),
    Case("an H200, Server", H200),
    Case("an H200, Interactive", H200, limits=INTERACTIVE, searches=6),
    Case(
        "a faster H200, Interactive", Engine(0.0030, 1.2e-5, 0.0129, step_tokens=4096), limits=INTERACTIVE, searches=6
    ),
    *(
        Case(
            f"shared{', by prompts' if prompts else ''}, {rate}/s, {limits.tpot:g} ms",
            shared(rate, prompts=prompts),
            limits=limits,
        )
        for rate in (5, 15, 30, 60, 200)
        for prompts in (0, 0.8)
        for limits in (SERVER, PATIENT if rate < 10 else INTERACTIVE)
    ),
)


# Kinds that the search was not made for: written down before it ran on any of them.
OTHERS = (
    Case("96 at once", shared(60, prompts=0.75, at_once=96), limits=INTERACTIVE),
    Case("two replicas", shared(30, prompts=0.75, replicas=2), limits=INTERACTIVE),
    Case("prompts of any length", shared(60, prompts=0.8, prompt_spread=1.0), limits=INTERACTIVE),
    Case("answers of any length", shared(60, prompts=0.5, answers=(8, 248)), limits=INTERACTIVE),
    Case("a tenth slower after 4 min", shared(60, prompts=0.8), Pace(hot_s=240, hot=0.9), INTERACTIVE),
    Case("faster over ten minutes", shared(40, prompts=0.5), Pace(slow_s=600)),
    Case("draft tokens", shared(60, 0.0055, 0.4, drafted=0.4), limits=INTERACTIVE),
    Case("steps that bend", Engine(0.004, 1.0e-5, 0.010, power=1.3), limits=INTERACTIVE),
    Case("waves", Engine(0.010, 1.0e-4, 0.010, at_once=64, is_static=True)),
    Case("0.3/s", shared(0.3, 0.05, 0.2, at_once=64), limits=LatencyLimits(10_000, 150)),
)

# The search was mended while running on those; so ten more, written down before it ran on any of them.
MORE = (
    Case("32 at once, 15/s", shared(15, prompts=0.75, at_once=32), limits=INTERACTIVE),
    Case("three replicas", shared(25, prompts=0.75, replicas=3)),
    Case("prompts of any length, 200/s", shared(200, prompts=0.6, prompt_spread=1.5), limits=INTERACTIVE),
    Case("answers of 2 to 60 tokens", shared(60, prompts=0.75, answers=(2, 60)), limits=INTERACTIVE),
    Case("a twentieth slower after 2 min", shared(60, prompts=0.75), Pace(hot_s=120, hot=0.95)),
    Case("noise of 10 %", shared(60, prompts=0.75), Pace(noise=0.1), INTERACTIVE),
    Case("draft tokens, 200 at once", shared(60, 0.0055, 0.4, drafted=0.7, at_once=200), limits=INTERACTIVE),
    Case("steps that bend a little", Engine(0.005, 2.0e-5, 0.008, power=1.15)),
    Case("stalls of a second", shared(60, prompts=0.75), Pace(stall_s=1.0, every_s=60)),
    Case("2/s", shared(2, 0.03, 0.3), limits=LatencyLimits(5000, 100)),
)

# And mended again, while running on those: ten more.
UNSEEN = (
    Case("four replicas", shared(12, prompts=0.75, replicas=4)),
    Case("prompts of any length, 45/s", shared(45, prompts=0.85, prompt_spread=1.2)),
    Case("answers of 16 to 1,000 tokens", shared(20, prompts=0.3, answers=(16, 1000)), limits=INTERACTIVE),
    Case("a sixth faster after 3 min", shared(60, prompts=0.75), Pace(hot_s=180, hot=1.15), INTERACTIVE),
    Case("noise of 5 %, 150 at once", shared(80, prompts=0.75, at_once=150), Pace(noise=0.05), INTERACTIVE),
    Case("draft tokens, Server", shared(50, 0.0045, 0.5, drafted=0.6)),
    Case("steps that bend, Server", Engine(0.006, 8.0e-6, 0.009, power=1.25)),
    Case("waves of 32", Engine(0.006, 5.0e-5, 0.006, at_once=32, is_static=True), limits=LatencyLimits(4000, 60)),
    Case("1/s, 16 at once", shared(1, 0.03, 0.4, at_once=16), limits=LatencyLimits(8000, 120)),
    Case("stalls of a tenth", shared(60, prompts=0.75), Pace(stall_s=0.1, every_s=5), INTERACTIVE),
)

# And once more, while running on all of those: ten more, written down before it ran on any of them.
LAST = (
    Case(
        "answers of 32 to 400 tokens, 64 at once",
        shared(30, prompts=0.4, answers=(32, 400), at_once=64),
        Pace(),
        INTERACTIVE,
    ),
    Case("two replicas, 48 at once", shared(25, prompts=0.75, replicas=2, at_once=48), limits=INTERACTIVE),
    Case("prompts of any length, 40/s", shared(40, prompts=0.5, prompt_spread=2.0)),
    Case("a tenth faster after 5 min", shared(50, prompts=0.75), Pace(hot_s=300, hot=1.1)),
    Case("draft tokens, 64 at once", shared(40, 0.0055, 0.4, drafted=0.5, at_once=64), limits=INTERACTIVE),
    Case("steps that bend, 128 at once", Engine(0.005, 1.5e-5, 0.010, power=1.2, at_once=128), limits=INTERACTIVE),
    Case("waves of 128", Engine(0.008, 4.0e-5, 0.008, at_once=128, is_static=True)),
    Case("stalls of half a second, 100 at once", shared(60, prompts=0.75, at_once=100), Pace(stall_s=0.5, every_s=30)),
    Case("5/s, 24 at once", shared(5, 0.02, 0.5, at_once=24), limits=LatencyLimits(3000, 80)),
    Case("noise of 4 %, three replicas", shared(20, prompts=0.75, replicas=3), Pace(noise=0.04), INTERACTIVE),
)

# Kinds at which searches by users went wrong: a tenant that comes and goes, a server that grows or refuses, a card with
# a cap of 208 running requests whose times are fitted to machine.csv and requests.csv of an H200.
REPORTED = (
    Case("a neighbor of 3 in 90 s", shared(40, prompts=0.75), Pace(neighbor_s=3), INTERACTIVE, searches=3),
    Case("an autoscaler to 3 replicas", shared(20, prompts=0.5, most_replicas=3, scale_at=24), searches=2),
    Case("refuses beyond 8", shared(15, prompts=0.5, at_once=8, queue=0), searches=2),
    Case("refuses beyond 64, half of them waiting", shared(40, prompts=0.75, at_once=32, queue=32), limits=INTERACTIVE),
    Case(
        "an H200 of at most 208, Interactive",
        Engine(0.0025, 2.9e-5, 0.0118, prompt_spread=0.475, at_once=208, step_tokens=4096),
        Pace(noise=0.01, heat=0.01),
        INTERACTIVE,
        searches=6,
    ),
    Case("0.2/s", shared(0.2, 0.08, 0.3, at_once=16), limits=LatencyLimits(20_000, 300)),
)

# Twelve kinds more, written down with their names before any search ran on them.
NEW = (
    Case("memory short beyond 120 running", shared(50, prompts=0.6, knee=120, knee_s=2e-4)),
    Case("prefill and decode apart", Disaggregated(45, shared(200)), limits=INTERACTIVE),
    Case("steps in stairs of 64", shared(60, prompts=0.6, stair=64), limits=INTERACTIVE),
    Case(
        "a neighbor of 5 in 45 s",
        shared(60, prompts=0.75),
        Pace(neighbor_s=5, neighbor_every_s=45, neighbor_speed=0.7),
    ),
    Case("three replicas at random", shared(20, prompts=0.75, replicas=3, is_random=True), limits=INTERACTIVE),
    Case("one prompt in 50 is 15 times as long", shared(40, prompts=0.7, long_prompts=0.02, long_factor=15)),
    Case("refuses beyond 24", shared(30, prompts=0.6, at_once=24, queue=0), limits=INTERACTIVE),
    Case("refuses beyond 150, a third of them waiting", shared(50, prompts=0.75, at_once=100, queue=50)),
    Case("hotter by 4 % in minutes", shared(60, prompts=0.75), Pace(heat=0.04, heat_s=150), INTERACTIVE),
    Case("a sine of 3 % in ten minutes", shared(60, prompts=0.75), Pace(wave=0.03)),
    Case("an autoscaler to 4 replicas", shared(15, prompts=0.5, most_replicas=4, scale_s=30, scale_at=48)),
    Case(
        "0.8/s, answers of 64 to 512 tokens",
        shared(0.8, 0.04, 0.3, answers=(64, 512), at_once=32),
        limits=LatencyLimits(8000, 150),
    ),
)
ALL = (*CASES, *OTHERS, *MORE, *UNSEEN, *LAST, *REPORTED, *NEW)


class RefusedError(Exception):
    """A simulated server refused a request where none may be refused."""


@dataclass
class Bench:
    """Tests of one server, one after the other, in virtual time. It has what `harness.rates.search` asks of a bench."""

    case: Case
    seed: int
    spent_s: float = 0.0
    probes: list[Outcome] = field(default_factory=list)
    replicas: float = 1.0  # of an autoscaler
    in_flight: int = UNLIMITED  # requests that the client has at the server at most
    until_s: float = math.inf  # virtual time, after which nothing more is measured
    may_shorten: bool = False  # whether probes may have fewer queries than LoadGen needs for a verdict

    @property
    def at_once(self) -> int:
        return self.in_flight

    @property
    def goal(self) -> Goal:
        return Goal(FULL_S, SURE_QUERIES, self.case.limits.ttft, self.case.limits.tpot, 1, self.seed)

    def lone_request(self) -> LoneRequest:
        """Ten requests one after the other, or some for 20 s."""
        spent, found = self.spent_s, list[tuple[float, float, float]]()
        while len(found) < LONE_REQUESTS and self.spent_s < spent + LONE_S:
            answers = self.serve(np.zeros(1))
            first, last = float(answers.first[0]), float(answers.last[0])
            found.append((first, (last - first) / max(self.tokens(1)[0] - 1, 1), last))
        return LoneRequest(*np.mean(found, axis=0).tolist())

    def burst(self, size: int) -> BurstResult:
        """So many requests at once."""
        answers = self.serve(np.zeros(size))
        refused = int(answers.is_refused.sum())
        return BurstResult(size - refused, refused, float(answers.last.max()))

    def say(self, text: str) -> None:
        """Nobody reads it."""

    @property
    def left_s(self) -> float:
        return self.until_s - self.spent_s

    def discard(self, probes: Sequence[Outcome]) -> None:
        """Nothing else keeps probes here than the measurements."""

    def limit_in_flight(self, most: int) -> None:
        self.in_flight = most

    def tokens(self, count: int) -> Times:
        return self.case.server.requests(count)[1]

    def prompts(self, count: int) -> Times:
        return self.case.server.requests(count)[0]

    def serve(self, arrivals: Times) -> Answers:
        """The answers to requests that come at these times. Raises IndexError where not all are answered an hour after
        the last one came.
        """
        random = np.random.default_rng([self.seed, len(self.probes), 1])
        speeds = self.case.pace.speeds(int(arrivals[-1]) + 3600, self.spent_s, random)
        found = self.case.server.answer(arrivals, speeds, self.in_flight, self.replicas)
        self.replicas = found.replicas
        self.spent_s += float(found.last.max())
        if self.spent_s > self.until_s:
            self.spent_s = self.until_s
            raise OutOfTimeError
        return found

    def probe(self, chosen: Candidate) -> Outcome:
        return self.test(chosen.rate, chosen.seconds)

    def full_test(self, qps: float) -> Outcome:
        """A full test. Raises RefusedError: in ten minutes a refusal is a failure."""
        test = self.test(qps, FULL_S)
        if test.refused:
            raise RefusedError
        return test

    def test(self, qps: float, seconds: float) -> Outcome:
        """One test, with the verdict that LoadGen would give it.

        Every test has the same sequence of arrivals, up to the first query that comes when the time is over.
        """
        count = queries_of_test(self.seed, qps, seconds, 1 if self.may_shorten else SURE_QUERIES)
        arrivals = arrival_times(self.seed, count) / qps
        began_s = self.spent_s
        answers = self.serve(arrivals)
        is_answered = ~answers.is_refused
        refused = count - int(is_answered.sum())
        came, first, last = (times[is_answered] for times in (arrivals, answers.first, answers.last))
        tokens, prompts = self.tokens(count)[is_answered], self.prompts(count)[is_answered]
        waits, each = 1000 * (first - came), 1000 * (last - first) / np.maximum(tokens - 1, 1)
        late = max((waits > self.goal.ttft_ms).sum(), (each > self.goal.tpot_ms).sum())
        ttft, tpot, whole = map(times_of, (waits, each, 1000 * (last - came)))
        kept = ttft["p99"] <= self.goal.ttft_ms and tpot["p99"] <= self.goal.tpot_ms
        valid = kept and late <= allowed_late(count)
        probe = Outcome(
            load=qps,
            unit=Poisson.unit,
            valid=bool(valid),
            latency_ms=Latencies(**whole),
            ttft_ms=Latencies(**ttft),
            tpot_ms=Latencies(**tpot),
            sent=(count - 1) / float(arrivals[-1] - arrivals[0]),
            issue_s=float(arrivals[-1]),
            more=needed(count, int(late)) if kept and not valid else None,
            queue=queue_fit.queue_from_times(came, first - came, last, prompts, tokens),
            clock_fall=self.clock_fall(began_s, float(arrivals[-1])),
            refused=refused or None,
            full_at=Admission([*zip(came, last, strict=True)], list(answers.last[answers.is_refused])).full_at,
        )
        self.probes.append(probe)
        return probe

    def clock_fall(self, began_s: float, seconds: float) -> float | None:
        """What a recording of the card's clock tells; None of a server without one."""
        if not self.case.pace.heat:
            return None
        readings = np.arange(1, int(seconds) + 1)
        clocks = HIGHEST_CLOCK_MHZ * self.case.pace.clock(began_s + readings)
        stepped = CLOCK_STEP_MHZ * np.rint(clocks / CLOCK_STEP_MHZ)
        return clock_fall(
            Recording([float(second) for second in readings], {"gpu0_clock_mhz": stepped.tolist()}), seconds
        )


def times_of(values: Times) -> dict[str, float]:
    """The percentiles of a kind of latency that a search goes by."""
    p99 = float(np.quantile(values, 0.99, method="higher"))
    return {"min": float(values.min()), "mean": float(values.mean()), "p50": float(np.median(values)), "p99": p99}


def needed(count: int, late: int) -> int:
    """Queries within the limit that early stopping wants beyond `count`."""
    more = 1
    while allowed_late(count + more) < late:
        more += 10
    return more


def truth(case: Case) -> float:
    """The highest rate that holds a full test with 19 of 20 sequences of arrivals, of a server that has run for an
    hour: an autoscaler with all its replicas, a server that refuses with as many in flight as it takes.
    """
    bench = Bench(case, 0, in_flight=case.full_at)
    low, high = 0.0, 4 * search.burst_qps(bench, Measurements(bench.goal, bench.lone_request()))

    def holds(rate: float) -> bool:
        lost, sequences = 0, OF_FEW if rate * FULL_S < FEW else SEQUENCES
        for seed in range(1000, 1000 + sequences):
            settled = Bench(case, seed, spent_s=3600.0 + 37 * seed, replicas=case.most_replicas, in_flight=case.full_at)
            try:
                test = settled.test(rate, FULL_S)
                lost += not test.valid or bool(test.refused)
            except IndexError:  # an hour after the last query it has not answered all
                return False
            if lost > (1 - HOLD) * sequences + 1e-9:
                return False
        return True

    while holds(high):  # a burst need not show what a server completes that slows down only with many requests
        low, high = high, 2 * high
    while low == 0 or high / low > 1.002:
        rate = (low + high) / 2
        low, high = (rate, high) if holds(rate) else (low, rate)
    return low


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    rate: float | None
    tried: list[float]  # rates of the full tests
    has_first_held: bool
    probes: int
    minutes: float  # of the search

    @property
    def attempts(self) -> int:
        return len(self.tried)


def find_rate(bench: Bench) -> Found:
    """The harness's search, and its full tests."""
    found = search.search(bench)
    minutes, full = bench.spent_s / 60, list[Outcome]()
    rate = first_rate(found) or None
    while rate:
        try:
            full.append(bench.full_test(rate))
        except RefusedError:
            break
        rate = FullTests(full, found.probes, bench.goal, found.lone).next_rate
    best = max((test.load for test in full if test.has_held), default=None)
    has_held = bool(full) and full[0].has_held
    return Found(best, [test.load for test in full], has_held, len(found.probes), minutes)


def quick_estimate(bench: Bench) -> quick.Estimate:
    """The harness's quick estimate."""
    bench.until_s, bench.may_shorten = quick.CEILING_S, True
    found = search.estimate(bench)
    full_at = bench.in_flight if bench.in_flight < UNLIMITED else None
    return quick.estimate_of(found, {"its limits": quick.for_any_arrivals(bench.goal)}, "", full_at)


@dataclass
class Totals:
    """What all searches came to."""

    ratios: list[float] = field(default_factory=list)  # of what holds; 0 where a search had no answer
    full_tests: list[int] = field(default_factory=list)
    first_held: list[bool] = field(default_factory=list)

    def add(self, found: Found, best: float) -> None:
        self.ratios.append((found.rate or 0.0) / best)
        self.full_tests.append(found.attempts)
        self.first_held.append(found.has_first_held)

    def __str__(self) -> str:
        searches = len(self.ratios)
        near = sum(ratio >= 0.95 for ratio in self.ratios)
        few = sum(count <= 2 for count in self.full_tests)
        return (
            f"{searches} searches: {near} found 0.95 of what holds or more, the lowest {min(self.ratios):.3f}, "
            f"{self.ratios.count(0.0)} none; {few} took one or two full tests; the first held in {sum(self.first_held)}"
        )


def cells_of(found: Found, best: float) -> str:
    rate = "none" if found.rate is None else f"{found.rate:.4g}"
    ratio = "" if found.rate is None else f"{found.rate / best:.3f}"
    return f"{rate} | {ratio} | {found.attempts} | {found.probes} | {found.minutes:.1f}"


def seeds_of(case: Case, number: int, count: int) -> list[int]:
    """The seeds of a case's searches: other arrivals each."""
    if case.searches > 1:
        return list(range(max(case.searches, count)))
    return [number + 1000 * n for n in range(count)]


def run_searches(names: Sequence[str], count: int) -> None:
    """Search on each server, and say what was found of what holds."""
    print("| server | highest rate, queries/s | found | of it | full tests | probes | minutes |\n|---|" + "---|" * 6)
    totals = Totals()
    for number, case in enumerate(ALL):
        if names and case.name not in names:
            continue
        best = truth(case)
        for seed in seeds_of(case, number, count):
            found = find_rate(Bench(case, seed))
            totals.add(found, best)
            print(f"| {case.name} | {best:.4g} | {cells_of(found, best)} |", flush=True)
    print(f"\n{totals}")


def run_estimates(names: Sequence[str], count: int) -> None:
    """Estimate on each server, and say whether what holds is within the range."""
    print("| server | highest rate, queries/s | range | right | minutes |\n|---|" + "---|" * 4)
    right = {True: list[bool](), False: list[bool]()}
    for number, case in enumerate(ALL):
        if names and case.name not in names:
            continue
        best = truth(case)
        for seed in seeds_of(case, number, count):
            bench = Bench(case, seed)
            found = quick_estimate(bench)
            ends = found.ranges.get("its limits")
            if ends is None:
                print(
                    f"| {case.name} | {best:.4g} | none: {', '.join(found.doubts)} | | {bench.spent_s / 60:.1f} |",
                    flush=True,
                )
                continue
            low, high = ends
            is_right = low <= best and (high is None or best <= high)
            right[case.is_steady].append(is_right)
            shown = f"{low:.3g} or more" if high is None else f"{low:.3g} to {high:.3g}"
            print(f"| {case.name} | {best:.4g} | {shown} | {is_right} | {bench.spent_s / 60:.1f} |", flush=True)
    for is_steady, found_right in right.items():
        print(f"{'steady' if is_steady else 'changing'} servers: {sum(found_right)} of {len(found_right)} ranges right")


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="servers; all without")
    parser.add_argument("--searches", type=int, default=1, help="searches on each, with other arrivals")
    parser.add_argument("--quick", action="store_true", help="quick estimates in place of searches")
    given = parser.parse_args(words)
    run = run_estimates if given.quick else run_searches
    run(given.names, given.searches)


if __name__ == "__main__":
    main(sys.argv[1:])
