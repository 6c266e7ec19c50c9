"""The search for the highest rate against servers whose highest rate is known.

    python -m benchmarks.search [NAME]

Each server is simulated in virtual time under LoadGen's random arrivals and judged as LoadGen does; the search is the
harness's own. The truth is the highest rate at which 19 of 20 sequences of arrivals are VALID over the full test: of 20
where a test has many queries, of 200 where it has few, since chance decides more of it.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.config.mlperf import SCENARIOS, LatencyLimits
from harness.config.patterns import Poisson
from harness.rates import law, search
from harness.rates.law import Alone, Goal
from harness.rates.search import Candidate
from harness.results import load
from harness.results.outcome import Outcome
from harness.results.outcome import Times as Latencies

Times = Any  # an array of seconds
FULL_S, SURE = 600.0, 459
ATTEMPTS, HOLD = 3, 0.95
ALONE, ALONE_S, BURST = 10, 20.0, 32  # as harness/rates/probing.py has them
FEW, SEQUENCES, OF_FEW = 5000, 20, 200  # queries of a full test; sequences that tell its truth
STILL = 1e-6
SERVER, INTERACTIVE = SCENARIOS["server"].limits, SCENARIOS["interactive"].limits
assert SERVER and INTERACTIVE
PATIENT = LatencyLimits(2000, 30)  # for servers whose prompts take long


@dataclass(frozen=True)
class Pace:
    """How a server's speed wanders: by chance from second to second, rising over its first seconds, standing still."""

    noise: float = 0.0  # standard deviation of a second's speed
    slow_s: float = 0.0  # until it is at full speed, from 0.7 of it
    stall_s: float = 0.0
    every_s: float = math.inf
    hot_s: float = math.inf  # seconds of one test, after which its speed is `hot`
    hot: float = 1.0

    def speeds(self, seconds: int, age_s: float, random: Any) -> Times:
        """The speed in each tenth of a second."""
        wander = np.repeat(random.normal(1, self.noise, seconds), 10).clip(0.1)
        times = np.arange(10 * seconds) / 10
        if self.slow_s:
            wander *= np.minimum(1, 0.7 + 0.3 * (age_s + times) / self.slow_s)
        wander[times >= self.hot_s] *= self.hot
        if self.stall_s:
            wander[times % self.every_s >= self.every_s - self.stall_s] = STILL / 2
        return wander


@dataclass(frozen=True)
class Prefill:
    """Bound by its capacity: one prompt after the other, `rate` a second; then `tokens`, `token_s` each."""

    rate: float
    tokens: int = 16
    token_s: float = 0.004

    def answer(self, arrivals: Times, speeds: Times) -> tuple[Times, Times]:
        """When each request's first token is there, and its last."""
        clock = np.concatenate(([0.0], np.cumsum(speeds) / 10))  # seconds of work that can be done until then
        edges = np.arange(len(clock)) / 10
        ready = np.interp(arrivals, edges, clock) * self.rate
        order = np.arange(len(arrivals))
        finished = np.maximum.accumulate(ready - order) + order + 1
        first = np.interp(finished / self.rate, clock, edges)
        return first, first + (self.tokens - 1) * self.token_s


@dataclass(frozen=True)
class Batching:
    """Steps that give every running request a token: `base_s`, and more for each that runs and each that begins."""

    base_s: float
    running_s: float
    prompt_s: float = 0.0
    tokens: int = 128
    step_tokens: int = 10**9  # prompt and answer tokens of a step
    prompt: int = 782

    def answer(self, arrivals: Times, speeds: Times) -> tuple[Times, Times]:
        """When each request's first token is there, and its last."""
        came, pace = arrivals.tolist(), speeds.tolist()
        begun: list[int] = []  # requests, by step
        ends: list[float] = []
        now, next_, running, room = 0.0, 0, 0, 0.0
        while next_ < len(came) or running:
            if not running and came[next_] > now:
                now = came[next_]
            while pace[int(10 * now)] < STILL:
                now = (int(10 * now) + 1.001) / 10
            room = min(room + self.step_tokens - running, self.step_tokens)
            new = 0
            while next_ < len(came) and came[next_] <= now and room >= self.prompt:
                new, next_, room = new + 1, next_ + 1, room - self.prompt
            running += new
            step = self.base_s + self.running_s * running + self.prompt_s * new
            now += step / pace[int(10 * now)]
            begun.append(new)
            ends.append(now)
            if len(begun) >= self.tokens:
                running -= begun[-self.tokens]
        at = np.repeat(np.arange(len(begun)), begun)
        times = np.array(ends)
        return times[at], times[at + self.tokens - 1]


@dataclass(frozen=True)
class Serving:
    """Steps as those of `Batching`, of a server that is less even than that."""

    base_s: float
    running_s: float
    prompt_s: float = 0.0
    power: float = 1.0  # of the number of running requests, by which a step takes longer
    at_once: int = 10**9  # requests that run; others wait
    prompt_spread: float = 0.0  # standard deviation over mean of a prompt's work
    answers: tuple[int, int] = (128, 128)  # tokens, least and most
    drafted: float = 0.0  # chance of each of two more tokens in a step
    replicas: int = 1  # which take the requests in turn
    is_static: bool = False  # the next batch begins when the last is answered

    @property
    def tokens(self) -> int:
        return self.answers[1]

    def requests(self, count: int) -> tuple[Times, Times]:
        """The prompt's work of each, as a share of the mean, and the tokens of its answer."""
        random, spread = np.random.default_rng(count), self.prompt_spread**2
        prompts = random.gamma(1 / spread, spread, count) if spread else np.ones(count)
        return prompts, random.integers(self.answers[0], self.answers[1], count, endpoint=True)

    def answer(self, arrivals: Times, speeds: Times) -> tuple[Times, Times]:
        """When each request's first token is there, and its last."""
        prompts, tokens = self.requests(len(arrivals))
        mean = 1 + 2 * self.drafted
        spread = np.sqrt(2 * self.drafted * (1 - self.drafted) * tokens / mean) / mean
        chance = np.random.default_rng(len(arrivals) + 1).normal(size=len(tokens))
        steps = np.maximum(1, np.rint((tokens - 1) / mean + spread * chance)).astype(int)
        first, last = np.empty(len(arrivals)), np.empty(len(arrivals))
        for n in range(self.replicas):
            mine = slice(n, None, self.replicas)
            first[mine], last[mine] = self.serve(arrivals[mine], prompts[mine], steps[mine], speeds)
        return first, last

    def serve(self, arrivals: Times, prompts: Times, steps: Times, speeds: Times) -> tuple[Times, Times]:
        """The same of one replica, by the steps that each takes after its first token."""
        came, pace, work, left = arrivals.tolist(), speeds.tolist(), prompts.tolist(), steps.tolist()
        first, last = np.empty(len(came)), np.empty(len(came))
        ending: dict[int, list[int]] = {}  # requests, by the step that ends them
        now, next_, running, step = 0.0, 0, 0, 0
        while next_ < len(came) or running:
            if not running and came[next_] > now:
                now = came[next_]
            while pace[int(10 * now)] < STILL:
                now = (int(10 * now) + 1.001) / 10
            new = list[int]()
            while next_ < len(came) and came[next_] <= now and running + len(new) < self.at_once:
                if self.is_static and running:
                    break
                new.append(next_)
                next_ += 1
            running += len(new)
            prompt_s = self.prompt_s * sum(work[n] for n in new)
            now += (self.base_s + self.running_s * running**self.power + prompt_s) / pace[int(10 * now)]
            for n in new:
                first[n] = now
                ending.setdefault(step + left[n], []).append(n)
            for n in (done := ending.pop(step, [])):
                last[n] = now
            running -= len(done)
            step += 1
        return first, last


@dataclass(frozen=True)
class Case:
    """A server with a name, its pace, and the limits that it is held to."""

    name: str
    server: Prefill | Batching | Serving
    pace: Pace = Pace()
    limits: Any = SERVER
    searches: int = 1  # with other arrivals each


def batching(rate: float, base_s: float = 0.02, tpot_s: float = 0.085) -> Batching:
    """One whose steps take `tpot_s` on average at this rate."""
    return Batching(base_s, (1 - base_s / tpot_s) / (rate * 128))


def shared(capacity: float, alone_s: float = 0.0032, prompts: float = 0.0) -> Batching:
    """One that is shared like a processor: mean TPOT = alone_s / (1 - rate / capacity). `prompts`: the share of a
    query's work that is its prompt's, for which all answers wait.
    """
    each_s = 1 / capacity
    running_s = (1 - prompts) * each_s / 128
    return Batching(alone_s - running_s, running_s, prompts * each_s)


# Steps of 4,096 tokens at full load: 575 running, 4.5 prompts, 77 ms; its other times are fitted to machine.csv.
H200 = Batching(0.004, 2.0e-5, 0.0129, step_tokens=4096)
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
        "a faster H200, Interactive", Batching(0.0030, 1.2e-5, 0.0129, step_tokens=4096), limits=INTERACTIVE, searches=6
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


def uneven(capacity: float, alone_s: float = 0.0032, prompts: float = 0.75, **more: Any) -> Serving:
    """One that is shared like `shared`, but for what `more` says."""
    each_s = 1 / capacity
    running_s = (1 - prompts) * each_s / 128
    return Serving(alone_s - running_s, running_s, prompts * each_s, **more)


# Kinds that the search was not made for: written down before it ran on any of them.
OTHERS = (
    Case("96 at once", uneven(60, at_once=96), limits=INTERACTIVE),
    Case("two replicas", uneven(30, replicas=2), limits=INTERACTIVE),
    Case("prompts of any length", uneven(60, prompts=0.8, prompt_spread=1.0), limits=INTERACTIVE),
    Case("answers of any length", uneven(60, prompts=0.5, answers=(8, 248)), limits=INTERACTIVE),
    Case("a tenth slower after 4 min", uneven(60, prompts=0.8), Pace(hot_s=240, hot=0.9), INTERACTIVE),
    Case("faster over ten minutes", uneven(40, prompts=0.5), Pace(slow_s=600)),
    Case("draft tokens", uneven(60, 0.0055, 0.4, drafted=0.4), limits=INTERACTIVE),
    Case("steps that bend", Serving(0.004, 1.0e-5, 0.010, power=1.3), limits=INTERACTIVE),
    Case("waves", Serving(0.010, 1.0e-4, 0.010, at_once=64, is_static=True)),
    Case("0.3/s", uneven(0.3, 0.05, 0.2, at_once=64), limits=LatencyLimits(10_000, 150)),
)

# The search was mended while running on those; so ten more, written down before it ran on any of them.
MORE = (
    Case("32 at once, 15/s", uneven(15, at_once=32), limits=INTERACTIVE),
    Case("three replicas", uneven(25, replicas=3)),
    Case("prompts of any length, 200/s", uneven(200, prompts=0.6, prompt_spread=1.5), limits=INTERACTIVE),
    Case("answers of 2 to 60 tokens", uneven(60, answers=(2, 60)), limits=INTERACTIVE),
    Case("a twentieth slower after 2 min", uneven(60), Pace(hot_s=120, hot=0.95)),
    Case("noise of 10 %", uneven(60), Pace(noise=0.1), INTERACTIVE),
    Case("draft tokens, 200 at once", uneven(60, 0.0055, 0.4, drafted=0.7, at_once=200), limits=INTERACTIVE),
    Case("steps that bend a little", Serving(0.005, 2.0e-5, 0.008, power=1.15)),
    Case("stalls of a second", uneven(60), Pace(stall_s=1.0, every_s=60)),
    Case("2/s", uneven(2, 0.03, 0.3), limits=LatencyLimits(5000, 100)),
)

# And mended again, while running on those: ten more.
UNSEEN = (
    Case("four replicas", uneven(12, replicas=4)),
    Case("prompts of any length, 45/s", uneven(45, prompts=0.85, prompt_spread=1.2)),
    Case("answers of 16 to 1,000 tokens", uneven(20, prompts=0.3, answers=(16, 1000)), limits=INTERACTIVE),
    Case("a sixth faster after 3 min", uneven(60), Pace(hot_s=180, hot=1.15), INTERACTIVE),
    Case("noise of 5 %, 150 at once", uneven(80, at_once=150), Pace(noise=0.05), INTERACTIVE),
    Case("draft tokens, Server", uneven(50, 0.0045, 0.5, drafted=0.6)),
    Case("steps that bend, Server", Serving(0.006, 8.0e-6, 0.009, power=1.25)),
    Case("waves of 32", Serving(0.006, 5.0e-5, 0.006, at_once=32, is_static=True), limits=LatencyLimits(4000, 60)),
    Case("1/s, 16 at once", uneven(1, 0.03, 0.4, at_once=16), limits=LatencyLimits(8000, 120)),
    Case("stalls of a tenth", uneven(60), Pace(stall_s=0.1, every_s=5), INTERACTIVE),
)

# And once more, while running on all of those: ten more, written down before it ran on any of them.
LAST = (
    Case(
        "answers of 32 to 400 tokens, 64 at once",
        uneven(30, prompts=0.4, answers=(32, 400), at_once=64),
        Pace(),
        INTERACTIVE,
    ),
    Case("two replicas, 48 at once", uneven(25, replicas=2, at_once=48), limits=INTERACTIVE),
    Case("prompts of any length, 40/s", uneven(40, prompts=0.5, prompt_spread=2.0)),
    Case("a tenth faster after 5 min", uneven(50), Pace(hot_s=300, hot=1.1)),
    Case("draft tokens, 64 at once", uneven(40, 0.0055, 0.4, drafted=0.5, at_once=64), limits=INTERACTIVE),
    Case("steps that bend, 128 at once", Serving(0.005, 1.5e-5, 0.010, power=1.2, at_once=128), limits=INTERACTIVE),
    Case("waves of 128", Serving(0.008, 4.0e-5, 0.008, at_once=128, is_static=True)),
    Case("stalls of half a second, 100 at once", uneven(60, at_once=100), Pace(stall_s=0.5, every_s=30)),
    Case("5/s, 24 at once", uneven(5, 0.02, 0.5, at_once=24), limits=LatencyLimits(3000, 80)),
    Case("noise of 4 %, three replicas", uneven(20, replicas=3), Pace(noise=0.04), INTERACTIVE),
)


@dataclass
class Bench:
    """Tests of one server, one after the other, in virtual time."""

    case: Case
    seed: int
    spent_s: float = 0.0
    probes: list[Outcome] = field(default_factory=list)

    @property
    def at_once(self) -> int:
        return 10**9

    @property
    def goal(self) -> Goal:
        return Goal(FULL_S, SURE, self.case.limits.ttft, self.case.limits.tpot)

    def alone(self) -> Alone:
        """Ten requests one after the other, or some for 20 s."""
        spent, found = self.spent_s, list[tuple[float, float, float]]()
        while len(found) < ALONE and self.spent_s < spent + ALONE_S:
            first, last = (float(times[0]) for times in self.serve(np.zeros(1)))
            found.append((first, (last - first) / max(self.tokens(1)[0] - 1, 1), last))
        return Alone(*np.mean(found, axis=0).tolist())

    def burst(self, alone: Alone) -> float:
        """Requests/s of some at once, beside what one alone takes."""
        _, last = self.serve(np.zeros(BURST))
        return BURST / max(float(last.max()) - alone.latency_s, 0.1 * float(last.max()))

    def tokens(self, count: int) -> Times:
        server = self.case.server
        return server.requests(count)[1] if isinstance(server, Serving) else np.full(count, server.tokens)

    def prompts(self, count: int) -> Times:
        server = self.case.server
        return server.requests(count)[0] if isinstance(server, Serving) else np.ones(count)

    def serve(self, arrivals: Times) -> tuple[Times, Times]:
        random = np.random.default_rng([self.seed, len(self.probes), 1])
        seconds = int(arrivals[-1]) + 3600
        first, last = self.case.server.answer(arrivals, self.case.pace.speeds(seconds, self.spent_s, random))
        self.spent_s += float(last.max())
        return first, last

    def probe(self, chosen: Candidate) -> Outcome:
        return self.test(chosen.rate, chosen.seconds)

    def test(self, qps: float, seconds: float) -> Outcome:
        """One test, with the verdict that LoadGen would give it. Every test has the same sequence of arrivals."""
        count = math.ceil(max(qps * seconds, SURE))
        arrivals = np.cumsum(np.random.default_rng([self.seed]).exponential(size=count)) / qps
        first, last = self.serve(arrivals)
        tokens = self.tokens(count)
        waits, each = 1000 * (first - arrivals), 1000 * (last - first) / np.maximum(tokens - 1, 1)
        late = max((waits > self.goal.ttft_ms).sum(), (each > self.goal.tpot_ms).sum())
        ttft, tpot, whole = map(times_of, (waits, each, 1000 * (last - arrivals)))
        kept = ttft["p99"] <= self.goal.ttft_ms and tpot["p99"] <= self.goal.tpot_ms
        valid = kept and late <= law.allowed_late(count)
        probe = Outcome(
            load=qps,
            unit=Poisson.unit,
            valid=bool(valid),
            latency_ms=Latencies(**whole),
            ttft_ms=Latencies(**ttft),
            tpot_ms=Latencies(**tpot),
            sent=(count - 1) / float(arrivals[-1] - arrivals[0]),
            duration_s=float(arrivals[-1]),
            more=needed(count, int(late)) if kept and not valid else None,
            queue=load.from_times(arrivals, first - arrivals, last, self.prompts(count), tokens),
        )
        self.probes.append(probe)
        return probe


def times_of(values: Times) -> dict[str, float]:
    """The percentiles of a kind of latency that a search goes by."""
    p99 = float(np.quantile(values, 0.99, method="higher"))
    return {"min": float(values.min()), "mean": float(values.mean()), "p50": float(np.median(values)), "p99": p99}


def needed(count: int, late: int) -> int:
    """Queries within the limit that early stopping wants beyond `count`."""
    more = 1
    while law.allowed_late(count + more) < late:
        more += 10
    return more


def truth(case: Case) -> float:
    """The highest rate that holds a full test with 19 of 20 sequences of arrivals."""
    bench = Bench(case, 0)
    low, high = 0.0, 4 * bench.burst(bench.alone())

    def holds(rate: float) -> bool:
        lost, sequences = 0, OF_FEW if rate * FULL_S < FEW else SEQUENCES
        for seed in range(1000, 1000 + sequences):
            try:
                lost += not Bench(case, seed, spent_s=3600.0).test(rate, FULL_S).valid
            except IndexError:  # an hour after the last query it has not answered all
                return False
            if lost > (1 - HOLD) * sequences + 1e-9:
                return False
        return True

    while low == 0 or high / low > 1.002:
        rate = (low + high) / 2
        low, high = (rate, high) if holds(rate) else (low, rate)
    return low


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    rate: float | None
    attempts: int
    probes: int
    minutes: float  # of the search


def find_rate(bench: Bench) -> Found:
    """The harness's search, and its full tests."""
    facts = search.search(bench)
    minutes, tests, probes = bench.spent_s / 60, list(facts.probes), len(facts.probes)
    rate, best, attempts = facts.chosen.rate or None, None, 0
    while rate and attempts < ATTEMPTS:
        tests.append(bench.test(rate, FULL_S))
        attempts += 1
        best = rate if tests[-1].has_held else best
        if best and attempts > 1:
            break
        rate = search.rate_after(tests, bench.goal)
    return Found(best, attempts, probes, minutes)


def cells_of(found: Found, best: float) -> str:
    rate = "none" if found.rate is None else f"{found.rate:.4g}"
    ratio = "" if found.rate is None else f"{found.rate / best:.3f}"
    return f"{rate} | {ratio} | {found.attempts} | {found.probes} | {found.minutes:.1f}"


def main(names: Sequence[str]) -> None:
    print("| server | highest rate, queries/s | found | of it | full tests | probes | minutes |\n|---|" + "---|" * 6)
    for number, case in enumerate((*CASES, *OTHERS, *MORE, *UNSEEN, *LAST)):
        if names and case.name not in names:
            continue
        best = truth(case)
        for seed in range(case.searches) if case.searches > 1 else [number]:
            print(f"| {case.name} | {best:.4g} | {cells_of(find_rate(Bench(case, seed)), best)} |", flush=True)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("names", nargs="*", metavar="SERVER", help="only these kinds of servers")
    return flags


if __name__ == "__main__":
    main(parser().parse_args().names)
