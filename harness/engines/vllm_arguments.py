"""vLLM's arguments for a plan, and which of them the installed vLLM refuses."""

import re
from collections.abc import Collection, Iterable
from os import environ

from harness.config.engine import EngineConfig
from harness.config.plan import Plan
from harness.core import given_values, nvml, software, system, vllm_source
from harness.core.errors import UsageError
from harness.core.formatting import alternatives
from harness.core.json_values import dict_or_empty
from harness.core.message_text import first_line
from harness.core.value_mistakes import refusal_text
from harness.engines import patches
from harness.engines.vllm_library import ModelConfig

DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
CPU_BLOCK = 32  # tokens of a block of the prefix cache


def engine_args_of(plan: Plan, may_score: bool = False) -> dict[str, object]:
    """Return a run's arguments for vLLM's AsyncEngineArgs. Those of --engine-arg replace all others.

    If `may_score`, `Engine.score_choices` will be called.
    """
    config = plan.config
    quantization = None if config.quantization == "none" else config.quantization
    args: dict[str, object] = {
        "model": config.model_path,
        "dtype": DTYPES[config.precision],
        "quantization": quantization,
        "kv_cache_dtype": config.kv_cache_dtype,
        "load_format": config.load_format,
        "trust_remote_code": config.trust_remote_code,
        "tensor_parallel_size": plan.tensor_parallel_size,
        "data_parallel_size": plan.data_parallel_size,
        "max_model_len": plan.max_model_len,
        "gpu_memory_utilization": config.memory_share,
        # A benchmark repeats its samples, so answers from the cache would flatter every number. Questions to score
        # share their beginnings.
        "enable_prefix_caching": may_score,
        "disable_log_stats": not config.extra_metrics,
    }
    optional = {  # vLLM has values of its own for those that are not given.
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "seed": config.seed,
    }
    args |= {name: value for name, value in optional.items() if value is not None}
    if may_score:
        args["logprobs_mode"] = "processed_logprobs"  # over the allowed choices, after all others were masked
    if not nvml.gpus():  # vLLM computes on the CPU.
        for name, value in cpu_args(config, may_score).items():
            args.setdefault(name, value)
    return args | extra_args(config)


def cpu_args(config: EngineConfig, may_score: bool) -> dict[str, object]:
    """Return the arguments that vLLM needs on a CPU. The caller uses only those that the run does not set itself.

    `may_score` says that prompts will be scored, which share their beginnings in the prefix cache.
    """
    args: dict[str, object] = {}
    spec = config.model_spec
    if may_score:
        args["block_size"] = CPU_BLOCK  # smaller than vLLM's 128 tokens, since only whole blocks are shared
    is_size_set = config.gpu_memory_utilization != "auto" or "VLLM_CPU_KVCACHE_SPACE" in environ
    if not is_size_set:
        # vLLM would otherwise take 0.9 of the main memory, which other programs need, too. A quarter of the free memory
        # leaves room for the model itself.
        args["kv_cache_memory_bytes"] = spec.cache_bytes or system.free_memory_bytes() // 4
    if spec.sequences:  # a model as small as the demo
        args["enforce_eager"] = True  # compiling so small a model for a CPU would take longer than the run
        args["max_num_seqs"] = spec.sequences
    return args


def extra_args(config: EngineConfig) -> dict[str, object]:
    """Return the arguments of --engine-arg, and the names of --engine-patch in `additional_config`.

    Raises UsageError if the installed vLLM has no such argument, or if a patch cannot be used.
    """
    known = vllm_source.arguments()  # empty if vLLM is not installed
    for key in config.engine_args:
        if known and key not in known:
            hint = given_values.spelling_hint(key, sorted(known))
            raise UsageError(f"--engine-arg {key}: this vLLM has no such argument{hint}")
    version = ".".join(map(str, installed_version()))
    names = patches.patch_names(config, version)
    if not names:
        return config.engine_args
    # vLLM reuses compiled code by a hash of its configuration, so the patches' names must be part of it.
    additional_config = dict_or_empty(config.engine_args, "additional_config") | {"engine_patch": names}
    return config.engine_args | {"additional_config": additional_config}


def find_unsupported(arguments: Collection[str], variables: Iterable[str], copies: int) -> str:
    """Return which of these engine arguments and environment variables the installed vLLM does not support, in words.

    Empty if all are supported. `copies` is the number of copies of the model.
    """
    known, missing = vllm_source.arguments(), []
    for name in arguments:
        if name not in known:
            text = f"no engine argument {name}"
            similar = given_values.similar_names(name, sorted(known))
            if similar:
                text += f" (did you mean {alternatives(similar)}?)"
            missing.append(text)
    for name in variables:
        if name.startswith("VLLM_") and name not in vllm_source.variables():
            missing.append(f"no variable {name}")
    problems = []
    if missing:
        problems.append(f"this vLLM has {', '.join(missing)}")
    if copies == 1 and "prefill_schedule_interval" in arguments and installed_version() < (0, 33):
        problems.append("prefill_schedule_interval works only under data parallelism before vLLM 0.33")
    return "; ".join(problems)


def installed_version() -> tuple[int, ...]:
    """Return the first two numbers of the installed vLLM's version. Empty without vLLM."""
    version = system.System(packages=software.versions()).vllm_version or ""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def refusal(error: Exception) -> str:
    """Return the first reason why vLLM refuses its arguments, after the name of the argument if it is known."""
    errors = getattr(error, "errors", None)
    if errors is None:  # The error is not pydantic's.
        return first_line(error)
    first = errors()[0]
    if not first["loc"]:  # a check of several arguments at once
        return " ".join(first["msg"].removeprefix("Value error, ").split()).rstrip(".")
    return " ".join(refusal_text(str(first["loc"][0]), first).split())


def check_quantization(model: ModelConfig) -> None:
    """Raise UsageError for quantization that vLLM accepts but that fails later or has no effect."""
    from vllm.platforms import current_platform

    checkpoint = getattr(model.hf_config, "quantization_config", None) or {}
    # "float-quantized" is the word of compressed-tensors for fp8.
    in_fp8 = str(model.quantization).startswith("fp8") or checkpoint.get("format") == "float-quantized"
    # vLLM itself fails only once it computes.
    if current_platform.is_cpu() and in_fp8 and not current_platform.supports_fp8():
        raise UsageError("vLLM does not compute in fp8 on a CPU: use --quantization none and a model in 16 bits.")
    quantization = model.quantization_config  # the settings of a quantization on loading; None without one
    # Methods name the linear layers that they quantize in `linear` or in `targets`. A method without the field `linear`
    # is assumed to quantize them.
    quantizes_linear_layers = getattr(quantization, "linear", True) or getattr(quantization, "targets", None)
    has_experts = model.is_moe
    quantizes_nothing = not quantizes_linear_layers and not has_experts
    if quantization is not None and quantizes_nothing:  # The result would still be recorded as quantized.
        raise UsageError(
            f"--quantization {model.quantization} quantizes nothing in this model, only experts: use another, or none."
        )
