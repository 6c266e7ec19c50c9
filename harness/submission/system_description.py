"""The description of a system in a submission: what the machine tells, and what a person fills in."""

import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from pydantic_core import from_json

from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_SETTINGS
from harness.core.given_values import read_given
from harness.core.system import CPUINFO, System, cpu_line
from harness.core.word_list import names_in
from harness.results.records import RunFacts

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
Description = dict[str, object]  # values by field
BUILD_FIELDS = ("submitter", "division", "system_type")  # `build` knows these
STATUSES = ("available", "preview", "rdi")
SYSTEM_TYPES = ("datacenter", "edge", "datacenter,edge", "edge,datacenter")
NOT_APPLICABLE = "N/A"
# A server on the machine, which LoadGen's client only asks, may not tell these: the submitter declares them.
DECLARED = ("served_engine", "served_weights", "served_weight_data_type")


def engine_of(facts: RunFacts) -> str:
    """Return the name and version of the engine. A server reports its own."""
    return str(facts.engine_args.get("server") if facts.config.endpoint else facts.engine or "")


def declared_by_server(facts: RunFacts) -> Description:
    """Return what the run's server told of itself, with empty texts for what it did not; empty if the run had its own
    engine.
    """
    if not facts.config.endpoint:
        return {}
    engine, args = engine_of(facts), facts.engine_args
    kinds = (args.get("server_quantization"), args.get("server_dtype"))
    kind = next((kind for kind in kinds if kind and kind != "auto"), "")
    return dict(zip(DECLARED, (engine if re.search(r"\d", engine) else "", facts.config.model, kind), strict=True))


def describe(machine: System, facts: RunFacts | None = None, is_here: bool = True) -> Description:
    """Return the description of a machine and of a run's server. If it is this machine, more is looked up."""
    gpus, memory = machine.gpus, machine.gpu_memory_gib
    versions = {"Python": machine.python, **machine.packages, "CUDA": machine.cuda, "driver": machine.driver}
    stack = ("Python", "torch", "transformers", "mlcommons-loadgen", "CUDA", "driver")
    served = declared_by_server(facts) if facts else {}
    engine = f"vLLM {machine.vllm_version}" if machine.vllm_version else ""
    description: Description = dict.fromkeys(FIELDS, "")
    description |= {
        "number_of_nodes": 1,
        "host_processor_model_name": machine.cpu,
        "host_memory_capacity": f"{machine.memory_gib:.0f} GiB",
        "accelerators_per_node": len(gpus) or "0",  # the checker takes the number 0 for an empty field
        "framework": served.get(DECLARED[0], engine),
        "operating_system": machine.os,
        "other_software_stack": ", ".join(f"{name} {versions[name]}" for name in stack if versions.get(name)),
    }
    if gpus:
        description["accelerator_model_name"] = gpus[0]
        description["accelerator_memory_capacity"] = f"{memory:.0f} GiB" if memory else ""
    else:
        accelerator_fields = [name for name in FIELDS if name.startswith("accelerator_")]
        description |= dict.fromkeys(accelerator_fields, NOT_APPLICABLE)
    if len(gpus) == 1:
        description["accelerator_interconnect"] = NOT_APPLICABLE
    description |= served
    if is_here:
        description |= machine_details()
    return description


def machine_details() -> Description:
    """Return further facts that this machine can tell: sockets, cores, caches and disk."""
    description: Description = {"host_storage_capacity": f"{shutil.disk_usage('/').total / 1e9:.0f} GB"}
    with suppress(OSError):
        sockets = set(re.findall(r"^physical id\s*:\s*(\d+)$", CPUINFO.read_text(), re.M))
        cores = cpu_line("cpu cores")
        description |= {
            "host_processors_per_node": len(sockets) or 1,
            "host_processor_core_count": int(cores) if cores else "",
            "host_processor_caches": cpu_line("cache size"),
        }
    return description


def missing(description: Description) -> list[str]:
    """Return the required fields that are empty.

    Submitter, division and type may be empty because `build` knows them.
    """
    fields = [*FIELDS, *(name for name in DECLARED if name in description)]
    filled = [name for name in fields if description.get(name)]
    may_be_empty = [name for name in fields if name in description and name in MAY_BE_EMPTY + BUILD_FIELDS]
    return [name for name in fields if name not in filled and name not in may_be_empty]


def read_description(path: Path) -> Description:
    """Read a filled-in description. Raises UsageError if fields are empty or have unknown values."""
    data = read_given("--system", path, "JSON", partial(from_json, allow_inf_nan=False), most=LARGEST_SETTINGS)
    if not isinstance(data, dict):
        raise UsageError(f"--system {path}: expected an object, as `python -m harness submission system` writes it.")
    if empty := missing(data):
        raise UsageError(f"--system {path}: fill in {', '.join(empty)} first.")
    if str(data["status"]).lower() not in STATUSES:
        raise UsageError(f"--system {path}: status is one of {', '.join(STATUSES)}; got {data['status']!r}.")
    if data["system_type"] and data["system_type"] not in SYSTEM_TYPES:
        raise UsageError(
            f"--system {path}: system_type is one of {' | '.join(SYSTEM_TYPES)}; got {data['system_type']!r}."
        )
    if "is_network" in data:
        raise UsageError(f"--system {path}: remove is_network: LoadGen and the engine run on one machine.")
    return data


def complete(description: Description, submitter: str, division: str, categories: Collection[str]) -> Description:
    """Return the description with what `build` knows.

    Raises UsageError if its system_type lacks the category of a run.
    """
    needed = sorted(categories)
    declared = str(description.get("system_type") or ",".join(needed))
    if not set(needed) <= set(declared.split(",")):
        raise UsageError(f"--system: system_type is {declared}, but the runs are {' and '.join(needed)}.")
    return description | {"submitter": submitter, "division": division, "system_type": declared}
