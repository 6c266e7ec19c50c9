"""Short tests for the search of a rate: their queues, what a server completes at most, and probes of a session.

None of this is a result: LoadGen's verdict is. It chooses which rate is worth a test.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cache
from math import ceil, floor, hypot, sqrt
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.engine import may_fail
from harness.config.plan import Plan
from harness.core.document import Statement, number
from harness.core.errors import EndpointError
from harness.core.screen import Display
from harness.core.statistics import FEWEST_P99, tail_name
from harness.engines.protocol import Engine
from harness.loadgen.folder import new_folder
from harness.loadgen.log import MORE, TestResult
from harness.loadgen.outcome import SURE, Outcome, Queue, Times
from harness.loadgen.patterns import ask, trial
from harness.loadgen.session import LoadGenSession
from harness.loadgen.test_run import TestRun
from harness.results import metrics
from harness.workloads.cnn_dailymail import Prompt

BLOCKS = 20  # of the time looked at; their completions tell how even the server's work is
LEAST = 0.1  # of their variance, however one makes up for the other
FEW = 20  # queries in flight at the middle and end together, below which growth is a matter of single queries
POINTS, EACH = 1_200_000, 20_000  # of simulated arrivals: in all, and at most in one test
FEWEST, MOST = 60, 480  # tests that are simulated; of one with few queries more, since chance decides more of it
HOLD = 0.95  # of them must keep the limit
ROUNDS, SLIGHT = 4, 0.1  # of fitting a plane; of the time alone, the least that a query is taken for
PARTS = 12  # of an answer, in the simulation of queries that share a server
STEPS = 4096  # of a share that is looked for
LAGS = 6  # blocks over which completions that were late come in after all


def queue_of(issued: Sequence[float], completed: Sequence[float]) -> Queue | None:
    """The queue of a test, from the times in seconds at which each query was issued and completed.

    None where there are too few to say anything.
    """
    import numpy as np

    came, left = np.asarray(issued), np.asarray(completed)
    if len(came) < 2 * BLOCKS or came.max() <= came.min():
        return None
    middle, end = (came.min() + came.max()) / 2, came.max()
    seconds = float(end - middle)
    counts, _ = np.histogram(left, np.linspace(middle, end, BLOCKS + 1))
    sent, done = int((came > middle).sum()), int(counts.sum())
    variance = float(counts.var(ddof=1)) * lasting_share(counts)
    error = sqrt(variance * BLOCKS) / seconds
    base, each, prompt = latency_plane(came, left)
    return Queue(
        sent=sent / seconds,
        completed=done / seconds,
        completed_error=error,
        growth=(sent - done) / seconds,
        chance=hypot(sqrt(max(sent, FEW)) / seconds, error),
        dispersion=BLOCKS * variance / done if done else 0.0,
        base_s=base,
        each_s=each,
        prompt_s=prompt,
    )


def lasting_share(counts: Any) -> float:
    """The share of the blocks' variance that adds up over time: what one lacks because it came late, a later one has.

    Autocorrelations by Bartlett's weights, each a little too low by chance, as its mean is that of the same blocks.
    """
    off = counts - counts.mean()
    whole = float((off**2).sum())
    if not whole:
        return 1.0
    sums = (
        (1 - lag / (LAGS + 1)) * (float((off[lag:] * off[:-lag]).sum()) / whole + 1 / len(off))
        for lag in range(1, LAGS + 1)
    )
    return min(1.0, max(LEAST, 1 + 2 * sum(sums)))


def simulated_tests(points: int) -> int:
    """How many tests of so many simulated points tell the share that holds."""
    return min(MOST, max(FEWEST, POINTS // points))


def is_enough(held: Any) -> bool:
    """Whether the tests that held are as many as must hold."""
    return bool(held.mean() >= HOLD)


def latency_plane(came: Any, left: Any) -> tuple[float, float, float]:
    """How long a query takes by what else runs: its own seconds, those for each that is in flight on average meanwhile,
    and for each that begins meanwhile, for whose prompt all others wait.

    The average is over what a query gets done, not over time: more of that passes while much is in flight. How fast it
    gets on follows from the plane itself, so the plane is fitted again, `ROUNDS` times.
    """
    import numpy as np

    times = np.concatenate((came, left))
    order = np.argsort(times)
    times, flying = times[order], np.cumsum(np.where(order < len(came), 1, -1))[:-1]
    whole = left <= came.max()  # not of the drain
    begin, end, took = came[whole], left[whole], (left - came)[whole]
    begun = np.searchsorted(np.sort(came), end) - np.searchsorted(np.sort(came), begin)
    base, prompt, each = float(np.mean(left - came)), 0.0, 0.0
    for _ in range(ROUNDS if len(took) >= FEW else 0):
        work = np.diff(times) / np.maximum(base + each * flying, SLIGHT * base)
        done = np.maximum(amount_between(begin, end, times, work), 1e-9)
        inflight = amount_between(begin, end, times, work * flying) / done
        terms = np.column_stack((np.ones(len(took)), begun, inflight))
        base, prompt, each = (float(value) for value in np.linalg.lstsq(terms, took, rcond=None)[0])
    return base, each, prompt


def amount_between(begin: Any, end: Any, times: Any, amounts: Any) -> Any:
    """The part of the amounts that falls between each begin and its end; an amount is spread evenly over the time from
    one of `times` to the next."""
    import numpy as np

    total = np.concatenate(([0.0], np.cumsum(amounts)))
    return np.interp(end, times, total) - np.interp(begin, times, total)


def detection_s(rate: float, overload: float) -> float:
    """Seconds after which so large an overload, as a share of `rate`, shows beyond chance.

    It adds overload x rate x seconds to the queue; random arrivals add or take about the root of rate x seconds.
    """
    return (SURE / overload) ** 2 / rate


@cache
def rate_by_ttft(capacity: float, room_s: float, seconds: float, queries: int = 0, dispersion: float = 0.0) -> float:
    """The highest rate, in queries/s, at which nearly every sequence of random arrivals keeps the 99th percentile of
    the wait within `room_s`, in a test of `seconds` or `queries`, whichever is longer; at most the capacity.

    Found by simulating one queue with a server of this capacity: first at its own number of queries, then at that of
    the rate found, since fewer leave less to chance. Long tests are simulated in groups of queries.
    """
    rate = capacity
    for _ in range(2):
        rate = capacity * utilization(max(queries, ceil(rate * seconds)), room_s * capacity, dispersion)
    return rate


def utilization(queries: int, room: float, dispersion: float) -> float:
    """The highest share of its capacity at which nearly every sequence of so many random arrivals keeps the 99th
    percentile of the wait within the time of `room` queries."""
    import numpy as np

    group = ceil(queries / EACH)
    points = ceil(queries / group)
    random = np.random.default_rng(0)  # the same for every rate, so that they differ by the rate alone
    gaps = random.gamma(group, size=(simulated_tests(points), points))
    work = np.full_like(gaps, group)
    if dispersion > 0:
        work = random.gamma(group / dispersion, dispersion, size=gaps.shape)
    work[:, 0] = 0
    most = allowed_late(queries) / queries * points

    total, least = np.empty_like(gaps), np.empty_like(gaps)  # millions of numbers: made once, used for every load

    def is_held(load: float) -> bool:
        np.add(work, np.divide(gaps, -load, out=total), out=total)
        np.cumsum(total, axis=1, out=total)
        np.minimum(np.minimum.accumulate(total, axis=1, out=least), 0, out=least)
        waits = np.subtract(total, least, out=total)
        return is_enough(np.count_nonzero(waits > room, axis=1) <= most)

    return highest_share(is_held)


@cache
def rate_by_tpot(
    alone_s: float, capacity: float, prompts: float, limit_s: float, seconds: float, queries: int = 0
) -> float:
    """The highest rate, in queries/s, at which nearly every sequence of random arrivals keeps the 99th percentile of an
    answer's time within `limit_s`, where it takes `alone_s` / (1 - rate / `capacity`) on average.

    Found by simulating what is in flight, in parts of an answer: random arrivals pile up, and hold each other up.
    `prompts` is the share of a query's work that is done at its beginning, while all answers wait.
    """
    import numpy as np

    if limit_s <= alone_s:
        return 0.0
    most = capacity * (1 - alone_s / limit_s)  # where what is in flight never changes
    each_s = (1 - prompts) / capacity

    def is_held(load: float) -> bool:
        random = np.random.default_rng(0)
        rate = load * most
        count = max(queries, ceil(rate * seconds))
        begun, clock = [], np.zeros(simulated_tests(count))
        took, flying = [clock + alone_s / PARTS], clock + rate * alone_s
        while clock.min() < count / rate:
            begun.append(random.poisson(rate * took[-1]))
            flying = flying + begun[-1] - (begun[-1 - PARTS] if len(begun) > PARTS else rate * alone_s / PARTS)
            took.append((alone_s + each_s * (flying - 1)) / PARTS + prompts / capacity * begun[-1])
            clock = clock + took[-1]
            if flying.max() > 4 * most * limit_s:
                return False
        total = np.cumsum(took, axis=0)
        whole = total[PARTS:] - total[:-PARTS]
        is_late = whole - prompts / capacity > limit_s  # without its own prompt
        late = np.where(is_late, np.array(begun)[: len(whole)], 0).sum(axis=0)
        return is_enough(late <= allowed_late(count))

    return most * highest_share(is_held)


def highest_share(is_held: Callable[[float], bool]) -> float:
    """The highest share of 1 that holds, to one of STEPS."""
    return bisect_left(range(1, STEPS + 1), True, key=lambda step: not is_held(step / STEPS)) / STEPS


def allowed_late(queries: int) -> int:
    """How many queries may be over a 99th-percentile limit before early stopping is not sure, with 99 % confidence."""
    return max(0, floor(0.01 * queries - SURE * sqrt(0.0099 * queries) + 0.38))


# Runs probes and attempts in a session of LoadGen tests; each is a probe for the search, the report and the curves.
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
        load=plan.pattern.number(plan) or 0.0,
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
        more=missing_queries(result) if result.failed == ("early_stopping",) else None,
        queue=queue,
        is_buffered=bool(test.server and test.server.is_buffered),
        background_load=tuple(test.machine.background_load),
        folder=str(test.folder.relative_to(run)),
    )


def missing_queries(result: TestResult) -> int | None:
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
            count = missing_queries(result)
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
    load = short.pattern.text(short)
    folder = new_folder(session.folder.sub("Probes"), load.partition(" ")[0])
    session.display.stage(f"probe at {load}, {short.length}", "load", reason)
    session.drive("performance", short, folder)
    probe = probe_of(TestRun.read(folder, short), short, session.folder.path)
    leave_row(session.display, probe)
    return probe


def leave_row(display: Display, outcome: Outcome) -> None:
    """Leaves a test's line behind, and below it why its load is too high where LoadGen's verdict does not say it."""
    why = "" if outcome.has_own_limits else outcome.why
    display.leave_row(metrics.head(outcome), metrics.cells(outcome), good=not outcome.reasons, why=why)


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
        self.engine, self.left, self.rule = engine, most, rule if most else ""

    async def stream(self, *request: Any) -> AsyncIterator[Sequence[int]]:
        try:
            async for tokens in self.engine.stream(*request):
                yield tokens
        except EndpointError as error:
            self.left -= 1
            if self.left < 0:
                raise EndpointError(f"{str(error).removesuffix('.')}{self.rule}") if self.rule else error from None


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

    sender = trial(plan, at_once)
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
