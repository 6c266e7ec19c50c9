"""What keeps a result from being compared with MLPerf's: a name, the words, and when it is so of a plan."""

import re
from typing import Annotated

from pydantic import BeforeValidator

from harness.config import engine, mlperf, models, workload
from harness.config.rules import When, is_so
from harness.core.statements import Statement, StatementKind

# What keeps a result from standing beside MLPerf's: a name, the words, and when they are so of a plan.
OTHER_MODEL, OTHER_SHAPE = "another model", "another shape"
RANDOM_WEIGHTS, DUMMY_WEIGHTS = "random weights", "dummy weights"
DATA_PAGE = "docs/evidence/performance.md#how-much-of-a-number-is-its-data"
CACHE_UNSEEN = "the server's caching is unknown"
DEVIATIONS: dict[str, tuple[str, When]] = {
    "served model": (
        "the server serves {run.engine_state.other_model}, not {run.config.model}",
        "engine_state.other_model",
    ),
    OTHER_SHAPE: ("{run.config.model_spec.deviation}", "config.model_spec.deviation"),
    OTHER_MODEL: ("not Llama-3.1-8B", lambda run: not run.reference_model and not run.config.model_spec.deviation),
    DUMMY_WEIGHTS: (
        "dummy weights, in fp8 nearly zeros, overstate speed there by a sixth on an H200 at its power limit "
        f"({DATA_PAGE})",
        "config.has_dummy_weights",
    ),
    RANDOM_WEIGHTS: (
        "random weights, N(0, 0.02): answers mean nothing; matrix products took the time and energy of trained ones on "
        f"an H200 ({DATA_PAGE})",
        lambda run: run.random_weights and not run.config.has_dummy_weights,
    ),
    "engine arguments": ("--engine-arg {run.unproven_args}: may change the model's outputs", "unproven_args"),
    "scenario": ("{run.config.scenario_rules.unofficial}", "config.scenario_rules.unofficial"),
    "chat": (
        "prompts as chat messages: the server's template adds to MLPerf's",
        lambda run: run.config.endpoint_api == "chat",
    ),
    "engine": ("the echo engine computes nothing", lambda run: run.config.backend == "echo"),
    "failures": (
        "--max-failed {run.config.max_failed}: requests that fail do not end the run",
        lambda run: engine.may_fail(run.config.max_failed, 10**9),
    ),
    "data": ("custom data: not MLPerf's {run.config.official_samples:,} prompts", lambda run: not run.official_data),
    "workload": (
        f"the workload {{run.request_set.name}} instead of MLPerf's {workload.OFFICIAL_WORKLOAD}",
        "request_set",
    ),
    "samples": (
        "{run.samples:,} of {run.config.official_samples:,} samples",
        lambda run: not run.request_set and run.samples < run.config.official_samples,
    ),
    "duration": (
        f"minimum duration {{run.min_duration_s:g}} s instead of {mlperf.MIN_DURATION_S:g} s",
        lambda run: (
            run.min_duration_s < mlperf.MIN_DURATION_S and run.config.mode != "accuracy" and not run.fewest_queries
        ),
    ),
    "queries": ("{run.fewest_queries:,} queries instead of a minimum duration", "fewest_queries"),
    "new tokens": (
        f"{{run.config.max_new_tokens}} new tokens instead of {mlperf.MAX_NEW_TOKENS}",
        lambda run: not run.request_set and run.config.max_new_tokens != mlperf.MAX_NEW_TOKENS,
    ),
    "limits": (
        "custom latency limits (TTFT {run.limits.ttft:g} ms, TPOT {run.limits.tpot:g} ms)",
        lambda run: run.limits and run.limits != run.config.scenario_rules.limits,
    ),
    "seeds": ("custom seeds", lambda run: run.config.seed is not None),
    "speculation": ("speculative decoding", "engine_state.speculation"),
    "prefix caching": (
        "prefix caching: LoadGen repeats its samples, and would measure the cache",
        "engine_state.prefix_caching",
    ),
    "caching": (
        CACHE_UNSEEN,
        lambda run: run.engine_state.prefix_caching is None and not run.engine_state.cache_counted,
    ),
    "KV connector": (
        "KV connector {run.engine_state.kv_connector}: answers may reuse cache from outside the test",
        "engine_state.kv_connector",
    ),
}


def from_text(said: object) -> object:
    """A deviation of a file of format 5 or older, which was its text, by the words that its kind begins with."""
    if not isinstance(said, str):
        return said
    heads = {name: re.split("[,:{]", text)[0] for name, (text, _) in DEVIATIONS.items()}
    specs = {spec.deviation: OTHER_SHAPE for spec in models.MODELS.values() if spec.deviation}
    name = specs.get(said) or next((name for name, head in heads.items() if head and said.startswith(head)), "")
    return Statement(said, name=name, kind=StatementKind.DEVIATION)


Deviation = Annotated[Statement, BeforeValidator(from_text)]


def deviations(plan: object) -> list[Statement]:
    """Why the results of such a run cannot stand beside MLPerf's."""
    return [
        Statement(text.format(run=plan), name=name, kind=StatementKind.DEVIATION)
        for name, (text, when) in DEVIATIONS.items()
        if is_so(when, plan)
    ]
