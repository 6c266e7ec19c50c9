"""Recorded arrivals as samples: prompts of the recorded lengths, sent at the recorded times."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from harness.config.arrival_patterns import Replay
from harness.config.run import RunConfig
from harness.core import formatting
from harness.core.errors import UsageError
from harness.core.formatting import plural
from harness.core.tokenizer import Tokenizer
from harness.workloads.requests_file import TokenIds
from harness.workloads.sample_library import Library
from harness.workloads.synthetic import (
    DESCRIPTION,
    MOST_SYNTHETIC_TOKENS,
    digest,
    plain_vocabulary,
    with_request_set,
)
from harness.workloads.traces import Recorded, Trace, read_trace


def replay_trace(config: RunConfig, trace: Trace) -> tuple[Replay, list[float]]:
    """Return a description of a trace's arrivals, and the seconds from its first request to each request.

    The times are scaled to a given --server-target-qps. With a --min-duration, the requests after the first one at that
    time or later are left out. Raises UsageError if the trace is shorter than that.
    """
    begin_s = trace.requests[0].at_s
    speedup = 1.0
    if isinstance(config.server_target_qps, float):  # The user gave a rate.
        recorded_rate = (len(trace.requests) - 1) / trace.span_s
        speedup = config.server_target_qps / recorded_rate
    arrivals_s = [(request.at_s - begin_s) / speedup for request in trace.requests]
    min_duration = config.min_duration
    if min_duration != "auto":
        duration = arrivals_s[-1]
        if duration < min_duration:
            raise UsageError(
                f"{min_duration:g}: {trace.path} lasts {formatting.number(duration)} s: remove the flag, or lower "
                "the rate.",
                flag="--min-duration",
            )
        first_at_end = bisect_left(arrivals_s, min_duration)  # the first request that makes the test long enough
        arrivals_s = arrivals_s[: first_at_end + 1]
    return Replay(len(arrivals_s), arrivals_s[-1]), arrivals_s


def library_of_trace(config: RunConfig, tokenizer: Tokenizer) -> Library:
    """Return the requests of a trace: random tokens of its lengths, with the times at which they are sent.

    Raises UsageError if the trace cannot be used, or if its prompts have too many tokens.
    """
    context = config.model_spec.positions
    if config.max_model_len != "auto":
        context = config.max_model_len
    trace = read_trace(Path(config.arrivals or ""), config.sample_limit, context)
    replay, arrivals_s = replay_trace(config, trace)
    requests = trace.requests[: len(arrivals_s)]
    tokens = sum(request.prompt_tokens for request in requests)
    if tokens > MOST_SYNTHETIC_TOKENS:
        raise UsageError(f"{trace.path}: prompts of {tokens:,} tokens in all; use fewer (--total-sample-count).")
    seed = config.seed or 0
    vocabulary = plain_vocabulary(tokenizer)
    prompts, new_tokens = [], []
    for request in requests:
        prompts.append(random_prompt(request, vocabulary, seed))  # The same prefix has the same tokens.
        new_tokens.append(request.output_tokens)
    library = Library(prompts, str(trace.path), new_tokens, arrivals=arrivals_s, vocabulary=vocabulary)
    return with_request_set(
        library,
        name=config.workload_name,
        about=DESCRIPTION,
        samples=len(requests),
        longest_at=f"{trace.path}: line {requests[library.longest_sample].line}",
        exact=True,  # Each answer has exactly its recorded length.
        digest=digest(requests, seed),
        notes=tuple(trace_notes(trace, context or 0)),
        replay=replay,
    )


def trace_notes(trace: Trace, context: int) -> Iterator[str]:
    """Yield a note for each kind of row that was left out of a trace: requests that are too long, rows without lengths.

    `context` is the most tokens that a request may have with its answer.
    """
    if trace.unfit:
        yield f"left out {plural(trace.unfit, 'request')} of more than {context:,} tokens with the answer"
    if trace.empty:
        yield f"left out {plural(trace.empty, 'row')} without lengths"


def random_prompt(request: Recorded, vocabulary: Sequence[int], seed: int) -> TokenIds:
    """Return random tokens of a recorded request's length, always the same for the same seed.

    Requests with the same prefix begin with the same tokens. The tokens after the prefix differ in each line.
    """
    prefix = Random(f"{seed} prefix {request.prefix}").choices(vocabulary, k=request.prefix_tokens)
    own_length = request.prompt_tokens - request.prefix_tokens
    own_tokens = Random(f"{seed} line {request.line}").choices(vocabulary, k=own_length)
    return [*prefix, *own_tokens]
