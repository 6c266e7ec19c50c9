"""The sending of requests: one `send` for each load pattern, for LoadGen's queries, for trials and under the profiler.

LoadGen itself paces Server and SingleStream: there the system under test sends each query as it comes.
"""

from math import inf

from harness.config.patterns import Burst, ClosedLoop, Schedule, Sequential
from harness.config.plan import Plan
from harness.loadgen.requests import Request
from harness.loadgen.senders import Batches, FixedConcurrency, RandomArrivals, RequestSender, Sender, TimedArrivals
from harness.workloads.sample_library import Library, Prompt

STREAM_TRIAL = 10  # queries of a trial that sends one after another
QUEUE_FACTOR = 2  # requests at the engine for each that it computes, in Offline: some always wait


def loadgen_sender(plan: Plan, library: Library, timed: bool) -> RequestSender | None:
    """Return the sender for queries that LoadGen issues at once.

    None if LoadGen sets the pace. If LoadGen sets the pace, each query is sent as it comes.
    """
    config, prompts, conversations = plan.config, library.prompts, library.conversations

    def pass_and_length(request: Request) -> tuple[int, int]:
        """Return a key that puts the longest prompt first in each pass of the samples, as MLPerf allows."""
        return request.order // len(prompts), -len(prompts[request.sample])

    def turn(request: Request) -> tuple[int, int, int]:
        assert conversations
        return request.round, conversations[request.sample], request.sample

    match plan.pattern:
        case Burst() if config.sort_by_length:
            return Batches(config.batch_size, pass_and_length)
        case Burst():
            return Batches(config.batch_size)
        case ClosedLoop() if plan.concurrency:
            seconds = plan.min_duration_s if timed else inf  # an accuracy test sends all its queries
            return FixedConcurrency(plan.concurrency, seconds, plan.min_queries, turn if conversations else None)
        case Schedule() if timed:  # the user's, or each sample of a trace at its own time
            return TimedArrivals(library.arrivals or plan.schedule, by_sample=bool(library.arrivals))
        case ClosedLoop() | Schedule():
            return Batches()
    return None


def endless_sender(plan: Plan, engine: int) -> Sender[Prompt]:
    """Return a sender of the same load from an endless source, for the profiler.

    In Offline it sends one batch at a time, or keeps more requests at the engine than this computes at once, so that
    some always wait.
    """
    match plan.pattern:
        case Burst() if not plan.config.batch_size:
            return FixedConcurrency(QUEUE_FACTOR * engine)
        case Burst():
            return Batches(plan.config.batch_size)
        case Sequential():
            return Batches(plan.samples_per_query)
        case ClosedLoop():
            return FixedConcurrency(plan.concurrency or engine)
    return RandomArrivals(plan.target_qps or 1.0, plan.seeds.schedule)


def trial_sender(plan: Plan, engine: int) -> Sender[Prompt]:
    """Return the sender of a short trial, which runs before the rate is known.

    A load that needs a rate is sent all at once or in batches.
    """
    if isinstance(plan.pattern, Sequential | ClosedLoop):  # these need no rate
        return endless_sender(plan, engine)
    return Batches(plan.config.batch_size)


def trial_size(plan: Plan, engine: int) -> int:
    """Return the number of prompts of a trial."""
    match plan.pattern:
        case Sequential():
            return STREAM_TRIAL * plan.samples_per_query
        case ClosedLoop():
            return max(2 * (plan.concurrency or engine), STREAM_TRIAL)
    return plan.config.batch_size or engine
