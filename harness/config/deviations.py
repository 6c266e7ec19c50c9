"""What keeps a result from standing beside MLPerf's: the words, and when they are so of a plan."""

from harness.config import endpoint, mlperf
from harness.config.flags import Rules
from harness.config.workload import OFFICIAL

OTHER_MODEL = "not Llama-3.1-8B"
CACHE_UNSEEN = "the server's caching is unknown"

DEVIATIONS: Rules = {
    "{run.config.model_spec.deviation}": lambda run: run.config.model_spec.deviation,
    OTHER_MODEL: lambda run: not run.reference_model and not run.config.model_spec.deviation,
    "dummy weights, nearly zeros, which flatter the speed: a sixth on an H200 at its power limit": lambda run: (
        run.config.has_dummy_weights
    ),
    "random weights, N(0, 0.02), which take the time and energy of trained ones; answers mean nothing": lambda run: (
        run.random_weights and not run.config.has_dummy_weights
    ),
    "--engine-arg {run.unproven_args}: not known to leave the model as it is": lambda run: run.unproven_args,
    "{run.config.scenario_rules.unofficial}": lambda run: run.config.scenario_rules.unofficial,
    "prompts as chat messages: the server's template adds to MLPerf's": lambda run: run.config.endpoint_api == "chat",
    "{run.unofficial_engine}": lambda run: run.unofficial_engine,
    "--max-failed {run.config.max_failed}: requests that fail do not end the run": lambda run: endpoint.may_fail(
        run.config.max_failed, 10**9
    ),
    "custom data: not MLPerf's {run.official_samples:,} prompts": lambda run: not run.official_data,
    f"the workload {{run.request_set.name}} instead of MLPerf's {OFFICIAL}": lambda run: run.request_set,
    "{run.samples:,} of {run.official_samples:,} samples": lambda run: (
        not run.request_set and run.samples < run.official_samples
    ),
    f"minimum duration {{run.min_duration_s:g}} s instead of {mlperf.MIN_DURATION_S:g} s": lambda run: (
        run.min_duration_s < mlperf.MIN_DURATION_S and run.config.mode != "accuracy"
    ),
    f"{{run.config.max_new_tokens}} new tokens instead of {mlperf.MAX_NEW_TOKENS}": lambda run: (
        not run.request_set and run.config.max_new_tokens != mlperf.MAX_NEW_TOKENS
    ),
    "custom latency limits (TTFT {run.limits.ttft:g} ms, TPOT {run.limits.tpot:g} ms)": lambda run: (
        run.limits and run.limits != run.config.scenario_rules.limits
    ),
    "custom seeds": lambda run: run.config.seed is not None,
    "speculative decoding": lambda run: run.engine_state.speculation,
    "prefix caching: LoadGen repeats its samples, and would measure the cache": lambda run: (
        run.engine_state.prefix_caching
    ),
    CACHE_UNSEEN: lambda run: run.engine_state.prefix_caching is None and not run.engine_state.cache_counted,
    "KV connector {run.engine_state.kv_connector}: answers may reuse cache from outside the test": lambda run: (
        run.engine_state.kv_connector
    ),
}
