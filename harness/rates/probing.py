"""Runs probes and attempts in a session of LoadGen tests; each is a probe for the search, the report and the curves."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config.engine import may_fail
from harness.config.plan import Plan
from harness.core.errors import EndpointError
from harness.core.markdown import number
from harness.core.screen import Display
from harness.core.statements import Statement
from harness.core.statistics import FEWEST_P99, tail_name
from harness.engines.protocol import Engine
from harness.loadgen.log import TestResult
from harness.loadgen.patterns import ask, driver_of
from harness.loadgen.session import LoadGenSession
from harness.loadgen.test_run import TestRun
from harness.loadgen.validity import MORE
from harness.rates.queueing import queue_of
from harness.results import metrics
from harness.runs.outcome import Outcome, Queue, Times
from harness.workloads.cnn_dailymail import Prompt

# What a test's logs say of its load, as a point of a curve.
SHORT = {"min_duration": "shorter than the minimum duration", "min_queries": "fewer queries than the minimum"}


def probe_of(test: TestRun, plan: Plan, run: Path) -> Outcome:
    """What a test in the folder of a run came to at its load."""
    result, window = test.counted_result, test.window
    ends = [(one.issued_s or 0.0, one.done_s) for one in test.requests if one.done_s is not None]
    queue, sent = None, None
    if plan.pattern.is_rated:
        queue, sent = queue_of([at for at, _ in ends], [end for _, end in ends]), result.scheduled_qps
    queries = len(test.counted) // plan.samples_per_query
    tokens, joules = sum(one.output_tokens for one in test.requests), test.machine.gpu_joules
    return Outcome(
        load=plan.pattern.number(plan.load) or 0.0,
        unit=plan.pattern.unit,
        valid=bool(result.valid),
        has_own_limits=plan.pattern.is_own_clock,
        reasons=tuple(reasons(result, plan, queue, is_few=queries < FEWEST_P99)),
        latency_ms=Times.of(result.latency_ms),
        ttft_ms=Times.of(result.ttft_ms),
        tpot_ms=Times.of(result.tpot_ms),
        client_delay_ms=Times.of(test.client_delay),
        queries=queries,
        tokens_per_sec=result.tokens_per_sec,
        samples_per_sec=result.samples_per_sec,
        joules_per_output_token=joules / tokens if joules and tokens else None,
        trend=window.trend if window else None,
        sent=sent,
        duration_s=result.queries / sent if sent and result.queries else None,
        more=more_queries(result) if result.failed == ("early_stopping",) else None,
        queue=queue,
        is_buffered=bool(test.server and test.server.is_buffered),
        background_load=tuple(test.machine.background_load),
        folder=str(test.folder.relative_to(run)),
    )


def more_queries(result: TestResult) -> int | None:
    """How many queries LoadGen's early stopping wants beyond those of the test; None where it does not say."""
    said = " ".join(str(value) for value in result.early_stopping.values())
    return max((int(count) for count in MORE.findall(said)), default=None)


def reasons(result: TestResult, plan: Plan, queue: Queue | None, is_few: bool) -> Iterator[Statement]:
    """Why a test is INVALID, or would be if it lasted, or why a level is over its limits."""
    found = {
        tail.kind: f"{tail_name(tail.kind, is_few)} {number(tail.p99)} of {number(tail.limit)} ms"
        for tail in (plan.limits.tails(result.ttft_ms, result.tpot_ms) if plan.limits else ())
        if tail.is_over
    }
    if not plan.pattern.is_own_clock:  # where LoadGen judges the length of the test alone
        if result.failed == ("early_stopping",):
            count = more_queries(result)
            found["early_stopping"] = f"{count:,} more queries needed" if count else "too few queries to be sure"
        found |= {check: words for check, words in SHORT.items() if check in result.failed}
        if queue and queue.has_grown:
            found["queue"] = f"queue grew by {number(queue.growth, 2)} a second"
        if not (found or result.valid):
            yield from result.invalid_reasons
    yield from (Statement(name=name, what=text) for name, text in found.items())


def set_aside(session: LoadGenSession, attempt: Outcome, number: int) -> Outcome:
    """Moves the logs of a performance test that another one follows."""
    folder = session.folder.sub("Attempts") / str(number)
    (session.folder.path / attempt.folder).rename(folder)
    return attempt.model_copy(update={"folder": str(folder.relative_to(session.folder.path))})


def run_probe(session: LoadGenSession, short: Plan, reason: str) -> Outcome:
    """A short performance test: `short` is the run's plan with its own load, and less of everything else; the
    reason for it is shown."""
    load = short.pattern.text(short.load)
    folder = make_folder(session.folder.sub("Probes"), load.partition(" ")[0])
    session.display.stage(f"probe at {load}, {short.length}", "load", reason)
    session.drive("performance", short, folder)
    probe = probe_of(TestRun.read(folder, short), short, session.folder.path)
    leave_row(session.display, probe)
    return probe


def leave_row(display: Display, outcome: Outcome) -> None:
    """Leaves a test's line behind, and below it why its load is too high where LoadGen's verdict does not say it."""
    why = "" if outcome.has_own_limits else outcome.why
    display.leave_row(metrics.head(outcome), metrics.cells(outcome), good=not outcome.reasons, why=why)


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
