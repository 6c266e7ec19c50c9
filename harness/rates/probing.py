"""Runs probes and attempts in a session of LoadGen tests; each is a probe for the search, the report and the curves."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.config.endpoint import may_fail
from harness.config.plan import Plan
from harness.core.errors import EndpointError
from harness.core.markdown import number
from harness.core.statistics import FEWEST_P99, tail_name
from harness.engines.protocol import Engine
from harness.loadgen.log import TestResult
from harness.loadgen.patterns import ask, driver_of
from harness.loadgen.session import LoadGenSession
from harness.loadgen.test_run import TestRun, with_times
from harness.loadgen.validity import MORE
from harness.rates.queueing import queue_of
from harness.runs.records import Probe, Queue, percentiles
from harness.workloads.cnn_dailymail import Prompt

# What a test's logs say of its load, as a point of a curve.
SHORT = {"min_duration": "shorter than the minimum duration", "min_queries": "fewer queries than the minimum"}


def probe_of(test: TestRun, plan: Plan, run: Path) -> Probe:
    """A test in the folder of a run as a point of a curve; at fixed concurrency without its ramps, where it is long
    enough."""
    result, trend = test.result, None
    if part := test.window:
        trend = part.trend
        if part.requests:
            speeds = {"tokens_per_sec": part.tokens_per_sec, "samples_per_sec": part.samples_per_sec}
            result = replace(with_times(result, part.requests), **speeds)  # type: ignore[arg-type]
    ends = [(one.issued_s or 0.0, one.done_s) for one in test.requests if one.done_s is not None]
    queue, sent = None, None
    if plan.pattern.is_rated:
        queue, sent = queue_of([at for at, _ in ends], [end for _, end in ends]), result.scheduled_qps
    count = len(part.requests if part and part.requests else test.answered) // plan.samples_per_query
    tokens, joules = sum(one.output_tokens for one in test.requests), test.machine.gpu_joules
    return Probe(
        qps=None if plan.concurrency else plan.target_qps,
        concurrency=plan.concurrency,
        samples_per_query=plan.samples_per_query,
        valid=bool(result.valid),
        **percentiles(latency=result.latency_ms, ttft=result.ttft_ms, tpot=result.tpot_ms),
        queries=count,
        tokens_per_sec=result.tokens_per_sec,
        samples_per_sec=result.samples_per_sec,
        sent=sent,
        seconds=result.queries / sent if sent and result.queries else None,
        more=more_queries(result) if result.failed == ("early_stopping",) else None,
        queue=queue,
        why="; ".join(reasons(result, plan, queue, is_few=count < FEWEST_P99)),
        folder=str(test.folder.relative_to(run)),
        busy="; ".join(test.machine.background_load),
        buffered=bool(test.server and test.server.is_buffered),
        joules_per_token=joules / tokens if joules and tokens else None,
        trend=trend,
        client_delay_p99=test.client_delay.p99 if test.client_delay else None,
    )


def more_queries(result: TestResult) -> int | None:
    """How many queries LoadGen's early stopping wants beyond those of the test; None where it does not say."""
    said = " ".join(str(value) for value in result.early_stopping.values())
    return max((int(count) for count in MORE.findall(said)), default=None)


def reasons(result: TestResult, plan: Plan, queue: Queue | None, is_few: bool) -> list[str]:
    """Why a test is INVALID, or would be if it lasted, or why a level is over its limits: a few words each."""
    found, limits = [], plan.limits
    if limits:
        tails = (tail for tail in limits.tails(result.ttft_ms, result.tpot_ms) if tail.is_over)
        found += [f"{tail_name(kind, is_few)} {number(p99)} of {number(most)} ms" for kind, p99, most in tails]
    if plan.concurrency:  # LoadGen judges its length alone there
        return found
    if result.failed == ("early_stopping",):
        count = more_queries(result)
        found.append(f"{count:,} more queries needed" if count else "too few queries to be sure")
    found += [words for check, words in SHORT.items() if check in result.failed]
    if queue and queue.has_grown:
        found.append(f"queue grew by {number(queue.growth, 2)} a second")
    return found or ([] if result.valid else result.invalid_reasons)


def set_aside(session: LoadGenSession, attempt: Probe, number: int) -> Probe:
    """Moves the logs of a performance test that another one follows."""
    folder = session.folder.sub("Attempts") / str(number)
    (session.folder.path / attempt.folder).rename(folder)
    return replace(attempt, folder=str(folder.relative_to(session.folder.path)))


def run_probe(session: LoadGenSession, short: Plan, reason: str = "") -> Probe:
    """A short performance test: `short` is the run's plan with its own load, and less of everything else; the
    reason for it is shown."""
    load = short.pattern.text(short.load)
    folder = make_folder(session.folder.sub("Probes"), load.partition(" ")[0])
    session.display.stage(f"probe at {load}, {short.length}", "load", reason)
    session.drive("performance", short, folder)
    probe = probe_of(TestRun.read(folder, short), short, session.folder.path)
    session.display.leave_row(probe.head, probe.cells, good=not probe.why, why="" if probe.concurrency else probe.why)
    return probe


def make_folder(probes: Path, load: str) -> Path:
    """A new folder for the logs of a probe, named by its load; by a number, too, where the same was probed before."""
    names = (load if n == 1 else f"{load}-{n}" for n in itertools.count(1))
    folder = next(probes / name for name in names if not (probes / name).exists())
    folder.mkdir()
    return folder


# Short trials on the loaded engine, without LoadGen: how fast it is, before a test that has to know.
TRIAL_S = 60.0  # then the answers that came are counted
WARM_UP = 4  # prompts


@dataclass(frozen=True)
class Trial:
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
        self.engine, self.left, self.rule = engine, most, rule if most else ""

    def count_failure(self, error: EndpointError) -> None:
        self.left -= 1
        if self.left < 0:
            raise EndpointError(f"{str(error).removesuffix('.')}{self.rule}") if self.rule else error

    async def stream(self, *request: Any) -> AsyncIterator[Sequence[int]]:
        try:
            async for tokens in self.engine.stream(*request):
                yield tokens
        except EndpointError as error:
            self.count_failure(error)


async def run_trial(plan: Plan, engine: Engine | TolerantEngine, prompts: Sequence[Prompt], at_once: int) -> Trial:
    """Warms up on a few prompts, then sends all as the run itself will, to an engine that computes so many `at_once`.

    After `TRIAL_S` it ends with the answers that came by then, or with the first. Raises EngineError.
    """
    pattern, answered, first = plan.pattern, 0, asyncio.Event()

    async def answer(prompt: Prompt) -> None:
        nonlocal answered
        await ask(engine, prompt, pattern)
        answered += 1
        first.set()

    sender = driver_of(plan).trial(at_once)
    await sender.send(prompts[:WARM_UP], lambda prompt: ask(engine, prompt, pattern))
    begin = time.perf_counter()
    work = asyncio.ensure_future(sender.send(prompts, answer))
    try:
        await asyncio.wait([work], timeout=TRIAL_S)
        if not answered:
            await asyncio.wait([work, asyncio.ensure_future(first.wait())], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        return Trial(answered, time.perf_counter() - begin)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
