"""Experiments that would measure the same thing: found before they run, by what their settings come to."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.common import system
from harness.config.run import RunConfig
from harness.sweep.file import Experiment

# What vLLM 0.32 does with Llama unless it is told otherwise (vllm/engine/arg_utils.py, config/vllm.py), and run.py
# with `enable_prefix_caching` (harness/engines/vllm.py).
BY_ITSELF: dict[str, object] = {
    "enable_prefix_caching": False,
    "enable_chunked_prefill": True,
    "async_scheduling": True,
    "compilation_config.mode": 3,
    "compilation_config.cudagraph_mode": "FULL_AND_PIECEWISE",
    "optimization_level": 2,
    "performance_mode": "balanced",
    "numa_bind": False,
    "skip_tokenizer_init": False,
}
NO_LEVEL_OF_ITS_OWN = {3: 2}  # optimization_level 3 is "currently the same" as 2
# With 70 GiB of GPU memory and more, but for an A100: sequences, and tokens of a step by whether answers stream.
LARGE_GIB, LARGE_SEQS, LARGE_TOKENS = 70, 1024, {False: 16384, True: 8192}
INEFFECTIVE_FLAGS = ("results_dir", "keep_all", "mlflow", "engine_arg", "no_exit_on_accuracy_fail", "extra_metrics")


def effective(item: Experiment, gpus: Sequence[system.GPU] = ()) -> dict[str, object]:
    """What the settings of an experiment come to, with all that goes without saying filled in."""
    config = RunConfig(**item.settings)
    found = {name: value for name, value in asdict(config).items() if name not in INEFFECTIVE_FLAGS}
    if config.max_model_len == "auto":
        found["max_model_len"] = config.model_spec.context
    if config.gpu_memory_utilization == "auto":
        found["gpu_memory_utilization"] = config.memory_share
    if gpus and gpus[0].memory >= LARGE_GIB * 2**30 and "a100" not in gpus[0].name.lower():
        found["max_num_seqs"] = config.max_num_seqs or LARGE_SEQS
        found["max_num_batched_tokens"] = config.max_num_batched_tokens or LARGE_TOKENS[config.scenario_rules.streaming]
    arguments = BY_ITSELF | {"stream_interval": config.max_new_tokens} | dict(flat(config.engine_args))
    level = arguments["optimization_level"]
    arguments["optimization_level"] = NO_LEVEL_OF_ITS_OWN.get(level, level)  # type: ignore[call-overload]
    return found | {f"engine.{key}": value for key, value in arguments.items()} | {"env": dict(item.env)}


def flat(arguments: Mapping[str, Any], before: str = "") -> list[tuple[str, object]]:
    """Nested arguments with dots in their names, each a value."""
    return [
        pair
        for key, value in arguments.items()
        for pair in (flat(value, f"{before}{key}.") if isinstance(value, Mapping) else [(f"{before}{key}", value)])
    ]


def repeated(experiments: Sequence[Experiment], gpus: Sequence[system.GPU] = ()) -> dict[str, str]:
    """Why experiments measure nothing new, by name: an earlier one has the same effective settings."""
    seen: list[tuple[str, dict[str, object]]] = []
    reasons = {}
    for item in experiments:
        mine = effective(item, gpus)
        if twin := next((name for name, settings in seen if settings == mine), None):
            reasons[item.name] = f"the same effective settings as {twin}"
        else:
            seen.append((item.name, mine))
    return reasons
