"""The sender of each load pattern, for LoadGen's queries, for trials and under the profiler.

LoadGen itself paces Server and SingleStream: there the system under test sends each query as it comes.
"""

from math import inf

from harness.config.patterns import Burst, ClosedLoop, Schedule, Sequential
from harness.config.plan import Plan
from harness.loadgen.requests import Request
from harness.loadgen.senders import Batches, FixedConcurrency, RandomArrivals, RequestSender, Sender, TimedArrivals
from harness.workloads.sample_library import Library, Prompt

TRIAL_QUERIES = 10  # queries of a trial that sends one after another, and at least of one at fixed concurrency
QUEUE_FACTOR = 2  # requests at the engine for each that it computes at once, so that some always wait


def loadgen_sender(plan: Plan, library: Library, timed: bool) -> RequestSender | None:
    """Return the sender for queries that LoadGen issues all at once. None if LoadGen sets the pace.

    `timed` is False in an accuracy test, which sends all its queries, without regard to time.
    """
    config, prompts, conversations = plan.config, library.prompts, library.conversations

    def pass_and_length(request: Request) -> tuple[int, int]:
        """Return a key that puts the longest prompt first in each pass of the samples.

        MLPerf forbids sorting beyond the end of a pass.
        """
        return request.order // len(prompts), -len(prompts[request.sample])

    def turn(request: Request) -> tuple[int, int, int]:
        """Return the round of a request (how often its sample was issued before), its conversation, and its sample.

        The samples of a conversation are numbered in its order.
        """
        assert conversations
        return request.round, conversations[request.sample], request.sample

    match plan.pattern:
        case Burst() if config.sort_by_length:  # Offline
            return Batches(config.batch_size, order=pass_and_length)
        case Burst():
            return Batches(config.batch_size)
        case ClosedLoop() if plan.concurrency:  # fixed concurrency
            seconds = plan.min_duration_s if timed else inf
            return FixedConcurrency(plan.concurrency, seconds, plan.min_queries, turn if conversations else None)
        case Schedule() if timed and library.arrivals:  # A trace of the user's own has a time for each sample.
            return TimedArrivals(library.arrivals, by_sample=True)
        case Schedule() if timed:  # A generated schedule has a time for each query.
            return TimedArrivals(plan.schedule, by_sample=False)
        case ClosedLoop() | Schedule():
            # All are sent at once: an accuracy test needs no arrival times, and no number in flight is known.
            return Batches()
    return None  # LoadGen itself issues each query at its time.


def pattern_sender(plan: Plan, engine_concurrency: int) -> Sender[Prompt]:
    """Return a sender of the plan's load outside LoadGen, which takes prompts from any source, even an endless one.

    `engine_concurrency` is how many requests the engine computes at once.
    """
    match plan.pattern:
        case Burst() if not plan.config.batch_size:
            # Offline sends all at once, which an endless source cannot. So more requests than the engine computes at
            # once are in flight: its queue is never empty.
            return FixedConcurrency(QUEUE_FACTOR * engine_concurrency)
        case Burst():
            return Batches(plan.config.batch_size)
        case Sequential():  # one query after the other, as SingleStream and MultiStream do
            return Batches(plan.samples_per_query)
        case ClosedLoop():  # fixed concurrency
            return FixedConcurrency(plan.concurrency or engine_concurrency)
    # Any other load has a rate, at which requests arrive. The plan may have no rate yet.
    rate = plan.target_qps or 1.0
    return RandomArrivals(rate, plan.seeds.schedule)


def trial_sender(plan: Plan, engine_concurrency: int) -> Sender[Prompt]:
    """Return the sender of a short trial, which runs before the rate is known.

    A load that has no rate is sent as in a test. Any other load is sent in batches of --batch-size or, without that
    flag, all at once.
    """
    if isinstance(plan.pattern, Sequential | ClosedLoop):
        return pattern_sender(plan, engine_concurrency)
    return Batches(plan.config.batch_size)


def trial_size(plan: Plan, engine_concurrency: int) -> int:
    """Return the number of prompts of a trial.

    `engine_concurrency` is how many requests the engine computes at once.
    """
    match plan.pattern:
        case Sequential():  # one query after another
            return TRIAL_QUERIES * plan.samples_per_query
        case ClosedLoop():  # a fixed number of requests in flight, twice as many in all, so that answers let others go
            in_flight = plan.concurrency or engine_concurrency
            return max(2 * in_flight, TRIAL_QUERIES)
    return plan.config.batch_size or engine_concurrency  # one batch
