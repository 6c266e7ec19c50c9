"""The description of a system in a submission: facts of the machine, and fields that a person fills in."""

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

# The fields that the checker asks for, in the order of the file. A person fills in the fields with an empty text.
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
OPTIONAL_FIELDS = names_in(
    """
    system_type_detail host_processor_frequency host_processor_caches host_processor_interconnect
    accelerator_frequency accelerator_interconnect_topology accelerator_on-chip_memories hw_notes sw_notes
    """
)
Description = dict[str, object]  # values by field
BUILD_FIELDS = ("submitter", "division", "system_type")  # filled in by `submission build`
STATUSES = ("available", "preview", "rdi")
SYSTEM_TYPES = ("datacenter", "edge", "datacenter,edge", "edge,datacenter")
NOT_APPLICABLE = "N/A"
# Fields of a server behind an endpoint. It may not report them to LoadGen's client, so the submitter declares them.
SERVER_FIELDS = ("served_engine", "served_weights", "served_weight_data_type")
SOFTWARE_STACK = ("Python", "torch", "transformers", "mlcommons-loadgen", "CUDA", "driver")


def engine_of(facts: RunFacts) -> str:
    """Return the name and version of the engine. A server reports its own."""
    if facts.config.endpoint:
        return str(facts.engine_args.get("server"))
    return str(facts.engine or "")


def server_description(facts: RunFacts) -> Description:
    """Return the SERVER_FIELDS of the server that a run used: engine, weights and their type; none without a server.

    A field that the server did not report is empty.
    """
    if not facts.config.endpoint:
        return {}
    engine = engine_of(facts)
    if not re.search(r"\d", engine):  # There is no version in the name.
        engine = ""
    weight_type: object = ""
    for name in ("server_quantization", "server_dtype"):
        value = facts.engine_args.get(name)
        if value and value != "auto":
            weight_type = value
            break
    return dict(zip(SERVER_FIELDS, (engine, facts.config.model, weight_type), strict=True))


def describe(machine: System, facts: RunFacts | None = None, is_here: bool = True) -> Description:
    """Return the description of a machine and, if `facts` are those of a run with an endpoint, of the run's server.

    If the machine is this one (`is_here`), more is looked up. Fields that are not known are empty.
    """
    description: Description = dict.fromkeys(FIELDS, "")
    description["number_of_nodes"] = 1
    description["host_processor_model_name"] = machine.cpu
    description["host_memory_capacity"] = f"{machine.memory_gib:.0f} GiB"
    description["operating_system"] = machine.os
    description["other_software_stack"] = software_text(machine)
    description |= accelerator_description(machine)
    if machine.vllm_version:
        description["framework"] = f"vLLM {machine.vllm_version}"
    if facts and facts.config.endpoint:  # The engine is the server's, not the vLLM that is installed here.
        server_fields = server_description(facts)
        description |= server_fields
        description["framework"] = server_fields["served_engine"]
    if is_here:
        description |= machine_details()
    return description


def software_text(machine: System) -> str:
    """Return the versions of SOFTWARE_STACK, as far as they are known."""
    versions = {"Python": machine.python, **machine.packages, "CUDA": machine.cuda, "driver": machine.driver}
    texts = []
    for name in SOFTWARE_STACK:
        if versions.get(name):
            texts.append(f"{name} {versions[name]}")
    return ", ".join(texts)


def accelerator_description(machine: System) -> Description:
    """Return the fields on the GPUs, as far as they are known.

    Without GPUs, their number is 0, and all other fields are NOT_APPLICABLE. The description has room for one model of
    GPU, which is that of the first.
    """
    gpus, memory = machine.gpus, machine.gpu_memory_gib
    if not gpus:
        description: Description = {}
        for name in FIELDS:
            if name.startswith("accelerator_"):
                description[name] = NOT_APPLICABLE
        description["accelerators_per_node"] = "0"  # text, since the checker takes the number 0 for an empty field
        return description
    description = {"accelerators_per_node": len(gpus), "accelerator_model_name": gpus[0]}
    if memory:
        description["accelerator_memory_capacity"] = f"{memory:.0f} GiB"
    if len(gpus) == 1:  # A single GPU has no other to be connected with.
        description["accelerator_interconnect"] = NOT_APPLICABLE
    return description


def machine_details() -> Description:
    """Return further facts of this machine: disk and, if the processors can be read, sockets, cores and caches."""
    disk_bytes = shutil.disk_usage("/").total
    description: Description = {"host_storage_capacity": f"{disk_bytes / 1e9:.0f} GB"}
    with suppress(OSError):
        sockets = set(re.findall(r"^physical id\s*:\s*(\d+)$", CPUINFO.read_text(), re.M))
        cores = cpu_line("cpu cores")
        description["host_processors_per_node"] = len(sockets) or 1  # 1 if Linux lists no socket
        description["host_processor_core_count"] = int(cores) if cores else ""
        description["host_processor_caches"] = cpu_line("cache size")
    return description


def missing_fields(description: Description) -> list[str]:
    """Return the required fields that are empty, and any that the description must have but lacks.

    BUILD_FIELDS may be empty, since `submission build` fills them in.
    """
    fields = [*FIELDS]
    for name in SERVER_FIELDS:
        if name in description:
            fields.append(name)
    missing = []
    for name in fields:
        may_be_empty = name in OPTIONAL_FIELDS + BUILD_FIELDS
        lacks_value = not description.get(name) and not may_be_empty
        if name not in description or lacks_value:
            missing.append(name)
    return missing


def read_description(path: Path) -> Description:
    """Return the description of a system that a person has filled in, from a JSON file.

    Raises UsageError if required fields are empty or fields have values that are not allowed.
    """
    data = read_given("--system", path, "JSON", partial(from_json, allow_inf_nan=False), most=LARGEST_SETTINGS)
    if not isinstance(data, dict):
        raise UsageError(f"--system {path}: expected an object, as `python -m harness submission system` writes it.")
    missing = missing_fields(data)
    if missing:
        raise UsageError(f"--system {path}: fill in {', '.join(missing)} first.")
    status, system_type = data["status"], data["system_type"]
    if str(status).lower() not in STATUSES:
        raise UsageError(f"--system {path}: status is one of {', '.join(STATUSES)}; got {status!r}.")
    if system_type and system_type not in SYSTEM_TYPES:
        raise UsageError(f"--system {path}: system_type is one of {' | '.join(SYSTEM_TYPES)}; got {system_type!r}.")
    if "is_network" in data:
        raise UsageError(f"--system {path}: remove is_network: LoadGen and the engine run on one machine.")
    return data


def final_description(
    description: Description, submitter: str, division: str, categories: Collection[str]
) -> Description:
    """Return the description with submitter, division and system_type filled in.

    An empty system_type becomes the `categories` of the runs. Raises UsageError if a system_type that was given lacks
    the category of a run.
    """
    run_types = sorted(categories)
    system_type = str(description.get("system_type") or ",".join(run_types))
    if not set(run_types) <= set(system_type.split(",")):
        raise UsageError(f"--system: system_type is {system_type}, but the runs are {' and '.join(run_types)}.")
    return description | {"submitter": submitter, "division": division, "system_type": system_type}
