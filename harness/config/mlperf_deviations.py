"""Deviations from MLPerf's rules: why a result cannot stand beside MLPerf's."""

from collections.abc import Iterator
from typing import Annotated, Protocol

from pydantic import BeforeValidator

from harness.config import engine, mlperf, models, workload
from harness.config.run import RunConfig
from harness.core.formatting import plural
from harness.core.statements import Statement, StatementKind

OTHER_MODEL, OTHER_SHAPE = "another model", "another shape"
RANDOM_WEIGHTS, DUMMY_WEIGHTS = "random weights", "dummy weights"
DATA_PAGE = "docs/evidence/performance.md#how-much-of-a-number-is-its-data"
CACHE_UNSEEN = "the server's caching is unknown"


class JudgedPlan(Protocol):
    """The parts of a run's plan that decide whether its results can stand beside MLPerf's."""

    @property
    def config(self) -> RunConfig: ...

    @property
    def engine_state(self) -> engine.EngineState: ...

    @property
    def samples(self) -> int: ...

    @property
    def min_duration_s(self) -> float: ...

    @property
    def fewest_queries(self) -> int:
        """The fewest queries that the plan allows in its performance test."""
        ...

    @property
    def limits(self) -> mlperf.LatencyLimits | None: ...

    @property
    def official_data(self) -> bool: ...

    @property
    def random_weights(self) -> bool: ...

    @property
    def reference_model(self) -> bool: ...

    @property
    def request_set(self) -> workload.RequestSet | None: ...

    @property
    def unproven_args(self) -> str:
        """The engine arguments that may change the model's answers, with commas; empty if there are none."""
        ...


# The beginning of each deviation's text, with the deviation's name. Files of format 5 or older hold only the text.
NAMES_BY_BEGINNING = {
    "the server serves ": "served model",
    "not Llama-3.1-8B": OTHER_MODEL,
    "dummy weights": DUMMY_WEIGHTS,
    "random weights": RANDOM_WEIGHTS,
    "--engine-arg ": "engine arguments",
    "prompts as chat messages": "chat",
    "the echo engine computes nothing": "engine",
    "--max-failed ": "failures",
    "custom data": "data",
    "the workload ": "workload",
    "minimum duration ": "duration",
    "custom latency limits (TTFT ": "limits",
    "custom seeds": "seeds",
    "speculative decoding": "speculation",
    "prefix caching": "prefix caching",
    CACHE_UNSEEN: "caching",
    "KV connector ": "KV connector",
}


def stored_deviation(stored: object) -> object:
    """Return the Statement for a deviation from MLPerf's rules that was read from a file.

    Files before format 6 have only the text. A statement whose text is not known has no name.
    """
    if not isinstance(stored, str):
        return stored
    is_of_known_model = any(stored == spec.deviation for spec in models.MODELS.values())
    if is_of_known_model:
        return Statement(stored, name=OTHER_SHAPE, kind=StatementKind.DEVIATION)
    for beginning, name in NAMES_BY_BEGINNING.items():
        if stored.startswith(beginning):
            return Statement(stored, name=name, kind=StatementKind.DEVIATION)
    return Statement(stored, kind=StatementKind.DEVIATION)


Deviation = Annotated[Statement, BeforeValidator(stored_deviation)]


def deviations(plan: JudgedPlan) -> list[Statement]:
    """Return why the results of a run with this plan cannot stand beside MLPerf's. Empty if they can."""
    checks = (model_deviations, engine_deviations, work_deviations, cache_deviations)
    statements = []
    for check in checks:
        for name, text in check(plan):
            statements.append(Statement(text, name=name, kind=StatementKind.DEVIATION))
    return statements


def model_deviations(plan: JudgedPlan) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each deviation from MLPerf's rules in the model and its weights.

    Of two deviations with the same cause, only the more exact is named.
    """
    config, engine_state = plan.config, plan.engine_state
    if engine_state.other_model:
        yield "served model", f"the server serves {engine_state.other_model}, not {config.model}"
    if config.model_spec.deviation:
        yield OTHER_SHAPE, config.model_spec.deviation
    elif not plan.reference_model:
        yield OTHER_MODEL, "not Llama-3.1-8B"
    if config.has_dummy_weights:
        yield (
            DUMMY_WEIGHTS,
            "dummy weights, in fp8 nearly zeros, overstate speed there by a sixth on an H200 at its power limit "
            f"({DATA_PAGE})",
        )
    elif plan.random_weights:
        yield (
            RANDOM_WEIGHTS,
            "random weights, N(0, 0.02): answers mean nothing; matrix products took the time and energy of trained "
            f"ones on an H200 ({DATA_PAGE})",
        )


def engine_deviations(plan: JudgedPlan) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each deviation in how answers are computed and requested."""
    config = plan.config
    if plan.unproven_args:
        yield "engine arguments", f"--engine-arg {plan.unproven_args}: may change the model's outputs"
    if config.scenario_rules.unofficial:
        yield "scenario", config.scenario_rules.unofficial
    if config.endpoint_api == "chat":
        yield "chat", "prompts as chat messages: the server's template adds to MLPerf's"
    if config.backend == "echo":
        yield "engine", "the echo engine computes nothing"
    if engine.allows_failures(config.max_failed):
        yield "failures", f"--max-failed {config.max_failed}: requests that fail do not end the run"


def work_deviations(plan: JudgedPlan) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each deviation in the requests, the tests' length, the limits and the seeds.

    Where MLPerf has no number to compare with, nothing is checked.
    """
    config = plan.config
    ends_after_queries = bool(plan.fewest_queries)  # The test ends after so many queries, not after a duration.
    if not plan.official_data:
        yield "data", f"custom data: not MLPerf's {config.official_samples:,} prompts"
    if plan.request_set:
        yield "workload", f"the workload {plan.request_set.name} instead of MLPerf's {workload.OFFICIAL_WORKLOAD}"
    elif plan.samples < config.official_samples:
        yield "samples", f"{plan.samples:,} of {config.official_samples:,} samples"
    is_short = plan.min_duration_s < mlperf.MIN_DURATION_S
    if is_short and config.mode != "accuracy" and not ends_after_queries:
        yield "duration", f"minimum duration {plan.min_duration_s:g} s instead of {mlperf.MIN_DURATION_S:g} s"
    if ends_after_queries:
        yield "queries", f"{plural(plan.fewest_queries, 'query')} instead of a minimum duration"
    if not plan.request_set and config.max_new_tokens != mlperf.MAX_NEW_TOKENS:
        yield "new tokens", f"{plural(config.max_new_tokens, 'new token')} instead of {mlperf.MAX_NEW_TOKENS}"
    if plan.limits and plan.limits != config.scenario_rules.limits:
        yield "limits", f"custom latency limits (TTFT {plan.limits.ttft:g} ms, TPOT {plan.limits.tpot:g} ms)"
    if config.seed is not None:
        yield "seeds", "custom seeds"


def cache_deviations(plan: JudgedPlan) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each way in which answers may come without being computed in the test."""
    engine_state = plan.engine_state
    if engine_state.speculation:
        yield "speculation", "speculative decoding"
    if engine_state.prefix_caching:
        yield "prefix caching", "prefix caching: LoadGen repeats its samples, and would measure the cache"
    # A server may not say whether it caches prefixes.
    if engine_state.prefix_caching is None and not engine_state.cache_counted:
        yield "caching", CACHE_UNSEEN
    if engine_state.kv_connector:
        yield (
            "KV connector",
            f"KV connector {engine_state.kv_connector}: answers may reuse cache from outside the test",
        )
