"""Engines: vLLM in this process, servers behind an endpoint, an echo. May import config and below."""

from importlib import import_module
from pathlib import Path

from harness.config.plan import Plan
from harness.engines.protocol import Engine, Sampling


def sampling_of(plan: Plan) -> Sampling:
    """How a run's answers are generated; its longest one, where requests differ."""
    return Sampling(plan.max_new_tokens, exact=plan.request_set is not None and plan.request_set.exact)


def create(plan: Plan, traces: Path, choosing: bool = False) -> Engine:
    """The engine of `--backend`, which the module of its name makes, not started yet; its profiler, with --profile,
    leaves traces in that folder.

    `choosing`: one that is asked with `score_choices`.
    """
    made: Engine = import_module(f"harness.engines.{plan.config.backend}").create(plan, traces, choosing)
    return made
