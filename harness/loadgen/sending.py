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

    Offline sends batches, on demand sorted by length. Fixed concurrency keeps a number of requests in flight until the
    test's time is over. Requests with arrival times of the user's own are sent at these times. `timed` is False in an
    accuracy test, which sends all its queries, without regard to time.
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
        case Burst() if config.sort_by_length:
            return Batches(config.batch_size, pass_and_length)
        case Burst():
            return Batches(config.batch_size)
        case ClosedLoop() if plan.concurrency:
            seconds = plan.min_duration_s if timed else inf
            return FixedConcurrency(plan.concurrency, seconds, plan.min_queries, turn if conversations else None)
        case Schedule() if timed:  # A trace has a time for each sample; a generated schedule, for each query.
            return TimedArrivals(library.arrivals or plan.schedule, by_sample=bool(library.arrivals))
        case ClosedLoop() | Schedule():  # Without arrival times, or a known number in flight, all are sent at once.
            return Batches()
    return None


def pattern_sender(plan: Plan, engine_concurrency: int) -> Sender[Prompt]:
    """Return a sender of the plan's load outside LoadGen, which takes prompts from any source, even an endless one.

    `engine_concurrency` is how many requests the engine computes at once. In Offline, prompts are sent in batches of
    --batch-size. Without it, more requests are kept at the engine than it computes at once, since an endless source
    cannot be sent all at once. SingleStream and MultiStream send one query after the other. Fixed concurrency keeps its
    number of requests in flight. Any other load is sent at random times, at 1 query/s if the plan has no rate yet.
    """
    match plan.pattern:
        case Burst() if not plan.config.batch_size:
            return FixedConcurrency(QUEUE_FACTOR * engine_concurrency)
        case Burst():
            return Batches(plan.config.batch_size)
        case Sequential():
            return Batches(plan.samples_per_query)
        case ClosedLoop():
            return FixedConcurrency(plan.concurrency or engine_concurrency)
    return RandomArrivals(plan.target_qps or 1.0, plan.seeds.schedule)


def trial_sender(plan: Plan, engine_concurrency: int) -> Sender[Prompt]:
    """Return the sender of a short trial, which runs before the rate is known.

    A load that has no rate is sent as in a test. Any other load is sent in batches of --batch-size, or without it all
    at once.
    """
    if isinstance(plan.pattern, Sequential | ClosedLoop):
        return pattern_sender(plan, engine_concurrency)
    return Batches(plan.config.batch_size)


def trial_size(plan: Plan, engine_concurrency: int) -> int:
    """Return the number of prompts of a trial.

    A load of one query after another takes TRIAL_QUERIES queries. Fixed concurrency takes twice its number in flight.
    Any other load takes one batch: of --batch-size or, without it, as many as the engine computes at once.
    """
    match plan.pattern:
        case Sequential():
            return TRIAL_QUERIES * plan.samples_per_query
        case ClosedLoop():
            return max(2 * (plan.concurrency or engine_concurrency), TRIAL_QUERIES)
    return plan.config.batch_size or engine_concurrency
