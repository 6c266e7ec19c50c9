"""Tests at a rate, made without a server."""

from typing import Any

from harness.results.outcome import Outcome, Queue
from tests.support import example_runs


def queue(completed: float, grew: float = 0.0, **known: float) -> Queue:
    """The queue of a test that completes so many queries a second, and grows by so many."""
    return Queue(completed + grew, completed, 0.2, grew, 0.5, 0.0, **known)


def overloaded(qps: float, completed: float, ttft: float, **more: Any) -> Outcome:
    """A test above what the server completes."""
    grown = queue(completed, qps - completed)
    usual = {"ttft_p50": ttft / 2, "latency_p50": ttft, "ttft_min": 20, "sent": qps, "seconds": 30.0}
    return example_runs.probe(qps, ttft <= 2000, ttft, 50.0, queue=grown, **{**usual, **more})


def steady(qps: float, ttft: float, tpot: float = 50.0, seconds: float = 30.0, **known: float) -> Outcome:
    """A test that the server keeps up with."""
    sent = {"sent": qps, "seconds": seconds, "latency_p50": 5500.0, "ttft_p50": 150.0, "ttft_min": 20.0}
    return example_runs.probe(qps, True, ttft, tpot, queue=queue(qps, **known), **sent)


def full(qps: float, tpot: float, valid: bool, capacity: float = 61.0, **more: Any) -> Outcome:
    """A full test of a server that is shared like a processor, with a p99 of TPOT in ms of 100."""
    alone_s, tokens = 0.0032 * 127, 127.0
    share = min(qps / capacity, 0.97)
    answer_s = alone_s / (1 - share)
    work = {
        "each_s": 0.2 / capacity,
        "prompt_s": 0.8 / capacity,
        "token_s": 0.0032,
        "tokens": tokens,
        "prompts": 0.8,
        "answer_s": answer_s,
        "beside": qps * answer_s,
    }
    return example_runs.changed(steady(qps, 300, tpot, seconds=640.0, **work), valid=valid, tpot_min=3.2, **more)
