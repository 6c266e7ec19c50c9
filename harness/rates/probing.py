"""Probes and trials in a session: short tests with LoadGen, and shorter ones without it.

None of this is a result: LoadGen's verdict on the run's own test is. It chooses which rate is worth a test.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from math import ceil
from statistics import median
from typing import Any, NamedTuple

from harness.config.engine import may_fail
from harness.config.plan import Plan, TestPart, minutes
from harness.core.errors import EndpointError
from harness.core.formatting import number
from harness.core.progress import Display
from harness.engines.answer_delivery import Exchange
from harness.engines.protocol import EVERY_S, Engine, TokenStream
from harness.loadgen.requests import Request
from harness.loadgen.senders import ask
from harness.loadgen.sending import trial, trial_size
from harness.loadgen.session import LoadGenSession
from harness.loadgen.test_run import TestRun
from harness.rates import search
from harness.rates.law import Alone, Goal
from harness.results import test_table
from harness.results.benchmark_run import BenchmarkRun
from harness.results.load import outcome_of
from harness.results.outcome import Outcome
from harness.runs.run_folder import new_folder
from harness.workloads.sample_library import Prompt


def leave_row(display: Display, outcome: Outcome) -> None:
    """Leaves a test's line behind, and below it why its load is too high where LoadGen's verdict does not say it."""
    why = "" if outcome.has_own_limits else outcome.why
    display.leave_row(test_table.head(outcome), test_table.cells(outcome), good=not outcome.reasons, why=why)


# Short trials on the loaded engine, without LoadGen: how fast it is, before a test that has to know.
TRIAL_S = 60.0  # then the answers that came are counted
WARM_UP = 4  # prompts


class Trial(NamedTuple):
    """What a short trial on the loaded engine found; the runner's own clock, so never a result."""

    samples: int
    seconds: float

    @property
    def samples_per_sec(self) -> float:
        return self.samples / self.seconds

    def __str__(self) -> str:
        return f"{number(self.samples_per_sec)} samples/s, measured on {self.samples:,} samples in {self.seconds:.1f} s"


class TolerantEngine:
    """An engine of whose requests in a trial some may fail, as of a test; but no fewer than one."""

    def __init__(self, engine: Engine, max_failed: str, requests: int) -> None:
        most = max(1, may_fail(max_failed, requests)) if may_fail(max_failed, 10**9) else 0
        rule = f"; --max-failed {max_failed}: {most} of the {requests} requests of the trial before a test may fail."
        self.engine, self.left, self.rule, self.answered = engine, most, rule if most else "", 0

    async def stream(self, *request: Any) -> TokenStream:
        try:
            async for tokens in self.engine.stream(*request):
                yield tokens
            self.answered += 1
        except EndpointError as error:
            self.left -= 1
            if self.left < 0:
                raise EndpointError(f"{str(error).removesuffix('.')}{self.rule}") if self.rule else error from None


async def run_trial(plan: Plan, engine: TolerantEngine, prompts: Sequence[Prompt], at_once: int) -> Trial:
    """Warms up on a few prompts, then sends all as the run itself will, to an engine that computes so many `at_once`.

    After `TRIAL_S` it ends with the answers that came by then, or with the first. Raises EngineError, EndpointError
    where none came.
    """
    sender = trial(plan, at_once)

    async def answer(prompt: Prompt) -> None:
        await ask(engine, prompt, plan.pattern)

    await sender.send(prompts[:WARM_UP], answer)
    begin, before = time.perf_counter(), engine.answered
    work = asyncio.ensure_future(sender.send(prompts, answer))
    try:
        await asyncio.wait([work], timeout=TRIAL_S)
        while engine.answered == before and not work.done():
            await asyncio.wait([work], timeout=EVERY_S)
        if work.done():
            work.result()
        if not (answered := engine.answered - before):
            raise EndpointError("no request of the trial was answered: see the server's log.")
        return Trial(answered, time.perf_counter() - begin)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


ALONE, ALONE_S = 10, 20.0  # requests one after the other, or as many as take so long
BURST = 32  # requests at once


async def run_alone(engine: TolerantEngine, prompts: Sequence[Prompt]) -> Alone:
    """Sends prompts one after the other for at most `ALONE_S`: the middle of their times. What the first of several
    waits for is the engine's start. Raises EngineError, EndpointError where none was answered.
    """
    found, begin = list[Request](), time.perf_counter()
    for prompt in prompts:
        now = time.perf_counter()
        exchange, request = Exchange(now), Request(0)
        async for tokens in engine.stream(*prompt, exchange, False):
            request.latency_ms = 1e3 * (time.perf_counter() - now)
            if request.ttft_ms is None:
                request.ttft_ms, request.first_tokens = request.latency_ms, max(1, len(tokens))
            request.output_tokens += len(tokens)
        if told := exchange.delivery:
            request.output_tokens, request.first_tokens = told.tokens, max(1, told.first_tokens)
        found += [request] if request.latency_ms else []
        if time.perf_counter() - begin > ALONE_S:
            break
    if not found:
        raise EndpointError("no request of those sent alone was answered: see the server's log.")
    counted = found[1:] or found
    each = [request.tpot_ms for request in counted if request.tpot_ms] or [0.0]
    first, whole = (median(getattr(one, name) for one in counted) for name in ("ttft_ms", "latency_ms"))
    return Alone(first / 1e3, median(each) / 1e3, whole / 1e3)


async def run_burst(engine: TolerantEngine, prompts: Sequence[Prompt], plan: Plan, alone: Alone) -> float:
    """Queries/s of prompts that are sent at once, beside what one alone takes: n at once take alone + n / capacity."""
    begin = time.perf_counter()
    await asyncio.gather(*(ask(engine, prompt, plan.pattern) for prompt in prompts))
    took = time.perf_counter() - begin
    return len(prompts) / max(took - alone.latency_s, took / 10)


# Where loads are tried before a run's test.
# LoadGen plans for 1.1 x duration x rate. A trial sees the ramps at both ends more than a long run does, so the
# engine may prove faster than the trial; too few samples would make the run INVALID, too many only longer.
OFFLINE_MARGIN = 1.1
TYPICAL_PROBES = 3  # of a search: benchmarks.search


class Bench(NamedTuple):
    """A run under way, and the session of its tests: where loads are tried."""

    run: BenchmarkRun
    session: LoadGenSession

    @property
    def plan(self) -> Plan:
        return self.run.plan

    @property
    def goal(self) -> Goal:
        return Goal.of(self.plan)

    def trial(self, plan: Plan) -> Trial:
        self.session.display.stage("calibrating", "load")
        asked = self.asked(trial_size(plan, self.at_once))
        return self.session.measure(run_trial(plan, *asked, self.at_once))

    def asked(self, size: int) -> tuple[TolerantEngine, list[Prompt]]:
        """The engine of which some requests may fail, and so many prompts."""
        prompts = list(islice(cycle(self.session.samples(self.plan).requests), size))
        return TolerantEngine(self.session.engine, self.run.config.max_failed, size), prompts

    @property
    def at_once(self) -> int:
        return self.session.engine.concurrency

    def alone(self) -> Alone:
        self.session.display.stage("a request alone", "load")
        return self.session.measure(run_alone(*self.asked(ALONE + 1)))

    def burst(self, alone: Alone) -> float:
        size = min(BURST, self.at_once)
        self.session.display.stage(f"{size} requests at once", "load")
        found = self.session.measure(run_burst(*self.asked(size), self.plan, alone))
        part = probes("search", TYPICAL_PROBES, search.probe_s(found, self.goal))
        self.session.display.say(f"about {number(found)} queries/s: {part.text}, {minutes(part.seconds or 0.0)} in all")
        return found

    def probe(self, chosen: search.Candidate) -> Outcome:
        return self.test(at_rate(self.plan, chosen.rate, chosen.seconds), chosen.reason)

    def test(self, short: Plan, reason: str = "") -> Outcome:
        """A short performance test, kept in config.json at once: `short` is the run's plan with its own load, and less
        of everything else; the reason for it is shown.
        """
        load, session = number(short.pattern.number(short)), self.session
        folder = new_folder(session.folder.sub("Probes"), load)
        session.display.stage(f"probe at {load} {short.pattern.unit}, {short.length}", "load", reason)
        session.drive("performance", short, folder)
        probe = outcome_of(TestRun.read(folder, short), short, session.folder.path)
        if not short.config.quick:  # which has no verdicts
            leave_row(session.display, probe)
        self.run.facts.probes.append(probe)
        self.run.save()
        return probe


def as_probe(plan: Plan) -> Plan:
    """The plan of a short test of the same load."""
    return replace(plan, min_duration_s=min(search.PROBE_S, plan.min_duration_s))


def probes(name: str, count: int, seconds: float = search.PROBE_S) -> TestPart:
    return TestPart(name, f"{count} probes or so of at least {minutes(seconds)} each", count * seconds)


def at_rate(plan: Plan, qps: float, seconds: float | None = None) -> Plan:
    """The plan of a short test at a rate, on as many samples as it takes: LoadGen takes whole passes of them."""
    length = seconds or search.probe_s(qps, Goal.of(plan))
    queries = ceil(qps * length)
    samples = ceil(queries / ceil(queries / plan.samples))
    return replace(plan, target_qps=qps, min_duration_s=length, samples=samples)
