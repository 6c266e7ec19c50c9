"""Engines: vLLM in this process, servers behind an endpoint, an echo. May import config and below.

    vllm    vLLM in this process; with vllm_arguments, cuda_toolkit, and worker and patches in vLLM's own processes
    openai  servers; with discovery, server_metrics, completions (their API) and client (one request)
    echo    answers at once and computes nothing; the template of an engine

Each is an `Engine` of `protocol`, on an event loop of its own. Token ids go in, token ids come out.
"""

from importlib import import_module
from pathlib import Path

from harness.config.plan import Plan
from harness.engines.protocol import Engine, Sampling


def sampling_of(plan: Plan) -> Sampling:
    """Return how a run's answers are generated.

    An answer has at most as many tokens as the longest that any request asks for; a request may set a lower limit for
    its own answer. Answers have exactly the length that is asked for (`exact`) only if the user's own requests say so.
    """
    return Sampling(plan.max_new_tokens, exact=plan.request_set is not None and plan.request_set.exact)


def create(plan: Plan, traces: Path, may_score: bool = False) -> Engine:
    """Return the engine of `--backend`, not started yet. The module of this package with the backend's name makes it.

    With --profile, the engine's profiler writes its traces to the folder `traces`. Only with `may_score` may
    `score_choices` of the engine be called.
    """
    engine: Engine = import_module(f"harness.engines.{plan.config.backend}").create(plan, traces, may_score)
    return engine
