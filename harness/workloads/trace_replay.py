"""Recorded arrivals as samples: prompts of the recorded lengths, sent at the recorded times."""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from random import Random

from harness.config.arrival_patterns import Replay
from harness.config.run import RunConfig
from harness.core import formatting
from harness.core.errors import UsageError
from harness.core.tokenizer import Tokenizer
from harness.workloads.requests_file import TokenIds
from harness.workloads.sample_library import Library
from harness.workloads.synthetic import DESCRIPTION, MOST_SYNTHETIC, digest, with_request_set, words_of
from harness.workloads.traces import Recorded, Trace, read_trace


def replay_trace(config: RunConfig, trace: Trace) -> tuple[Replay, list[float]]:
    """Return the arrivals of a trace, and the seconds from its first request to each request.

    The times are scaled to the rate that the user gave, and end with --min-duration. Raises UsageError if the trace is
    shorter than that, or if fewer than two requests are left.
    """
    begin_s = trace.requests[0].at_s
    recorded_rate = (len(trace.requests) - 1) / trace.span_s
    rate_flag, least = config.server_target_qps, config.min_duration
    speedup = rate_flag / recorded_rate if isinstance(rate_flag, float) else 1.0
    due = [(request.at_s - begin_s) / speedup for request in trace.requests]
    if least != "auto":
        if due[-1] < least:
            raise UsageError(
                f"{least:g}: {trace.path} lasts {formatting.number(due[-1])} s: remove the flag, or lower the rate.",
                flag="--min-duration",
            )
        due = due[: bisect_left(due, least) + 1]
    if len(due) < 2:
        raise UsageError(f"{trace.path}: fewer than two requests within --min-duration.", flag="--arrivals")
    return Replay(len(due), due[-1]), due


def library_of_trace(config: RunConfig, tokenizer: Tokenizer) -> Library:
    """Return the requests of a trace: random tokens of its lengths.

    Prompts with the same prefix begin with the same tokens.
    """
    most = config.model_spec.positions if config.max_model_len == "auto" else config.max_model_len
    trace = read_trace(Path(config.arrivals or ""), config.sample_limit, most)
    replay, due = replay_trace(config, trace)
    requests = trace.requests[: len(due)]
    tokens = sum(request.prompt_tokens for request in requests)
    if tokens > MOST_SYNTHETIC:
        raise UsageError(f"{trace.path}: prompts of {tokens:,} tokens in all; use fewer (--total-sample-count).")
    words, seed = words_of(tokenizer), config.seed or 0
    prompts = [random_prompt(request, words, seed) for request in requests]
    new_tokens = [request.output_tokens for request in requests]
    notes = list[str]()
    if trace.unfit:
        notes.append(f"left out {trace.unfit:,} requests that are longer than {most or 0:,} tokens with their answer")
    if trace.empty:
        notes.append(f"left out {trace.empty:,} rows without lengths")
    return with_request_set(
        Library(prompts, str(trace.path), new_tokens, arrivals=due, words=words),
        lambda index: f"{trace.path}: line {requests[index].line}",
        name=config.workload_name,
        about=DESCRIPTION,
        samples=len(requests),
        exact=True,
        digest=digest(requests, seed),
        notes=tuple(notes),
        replay=replay,
    )


def random_prompt(request: Recorded, words: Sequence[int], seed: int) -> TokenIds:
    """Return random tokens of a request's length. Requests with the same prefix begin with the same tokens."""
    prefix = Random(f"{seed} prefix {request.prefix}").choices(words, k=request.prefix_tokens)
    rest = Random(f"{seed} line {request.line}").choices(words, k=request.prompt_tokens - request.prefix_tokens)
    return [*prefix, *rest]
