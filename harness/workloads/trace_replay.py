"""Recorded arrivals as samples: prompts of the recorded lengths, sent at the recorded times."""

from bisect import bisect_left
from pathlib import Path
from random import Random

from harness.config.arrival_patterns import Replay
from harness.config.run import RunConfig
from harness.core import formatting
from harness.core.errors import UsageError
from harness.core.tokenizer import Tokenizer
from harness.workloads.sample_library import Library
from harness.workloads.synthetic import DESCRIPTION, MOST_SYNTHETIC, digest, with_request_set, words_of
from harness.workloads.traces import Trace, read_trace


def replay_trace(config: RunConfig, trace: Trace) -> tuple[Replay, list[float]]:
    """Seconds from the first request of a trace to each, at the rate that is asked for, as long as --min-duration says.

    Raises UsageError where the trace is shorter than that, or too little of it is left.
    """
    begin, rate = trace.requests[0].at_s, (len(trace.requests) - 1) / trace.span_s
    rate_flag, least = config.server_target_qps, config.min_duration
    faster = rate_flag / rate if isinstance(rate_flag, float) else 1.0
    due = [(one.at_s - begin) / faster for one in trace.requests]
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
    """The requests of a trace: random tokens of its lengths, and beginnings that are the same where it says so."""
    most = config.model_spec.positions if config.max_model_len == "auto" else config.max_model_len
    trace = read_trace(Path(config.arrivals or ""), config.sample_limit, most)
    replay, due = replay_trace(config, trace)
    requests = trace.requests[: len(due)]
    if (tokens := sum(one.prompt_tokens for one in requests)) > MOST_SYNTHETIC:
        raise UsageError(f"{trace.path}: prompts of {tokens:,} tokens in all; use fewer (--total-sample-count).")
    words, seed = words_of(tokenizer), config.seed or 0
    prompts = [
        [  # those of one prefix begin with the same tokens
            *Random(f"{seed} prefix {one.prefix}").choices(words, k=one.prefix_tokens),
            *Random(f"{seed} line {one.line}").choices(words, k=one.prompt_tokens - one.prefix_tokens),
        ]
        for one in requests
    ]
    notes = {
        f"left out {trace.unfit:,} requests that are longer than {most or 0:,} tokens with their answer": trace.unfit,
        f"left out {trace.empty:,} rows without lengths": trace.empty,
    }
    return with_request_set(
        Library(prompts, str(trace.path), [one.output_tokens for one in requests], arrivals=due, words=words),
        lambda index: f"{trace.path}: line {requests[index].line}",
        name=config.workload_name,
        about=DESCRIPTION,
        samples=len(requests),
        exact=True,
        digest=digest(requests, seed),
        notes=tuple(note for note, count in notes.items() if count),
        replay=replay,
    )
