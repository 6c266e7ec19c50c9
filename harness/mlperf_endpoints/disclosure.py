"""What a submission tells of its system and itself: a YAML file, filled in from this machine as far as it tells.

Field names: §8.2, §8.3 and Appendix E of the rules, as the official package's models have them.
"""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from harness.common.coerce import read_given
from harness.common.errors import UsageError
from harness.common.files import parse_as
from harness.common.reading import load_yaml
from harness.common.system import System
from harness.submission import description

MAY_BE_EMPTY = {
    "availability_url",
    "target_availability_date",
    "model_notes",
    "link_to_model_transformation",
    "cooling",
}
HEAD = """\
# Fill in what is empty. division: Standardized, Serviced or RDI; system_availability_status: Available (with
# availability_url), Preview (with target_availability_date) or RDI. power: Appendix E's system_power.json, each figure
# with its public source; Standardized needs it.
"""


class About(BaseModel):
    model_config = ConfigDict(extra="forbid")

    organisation: str
    submission_id: str
    division: str
    target_cohort: str
    model_precision: str
    link_to_model: str
    link_to_model_transformation: str = ""
    model_notes: str = ""
    dataset_link: str


class Disclosure(BaseModel):
    """The file: `system` becomes system_desc.json of every point, `power` system_power.json."""

    model_config = ConfigDict(extra="forbid")

    submission: About
    system: dict[str, Any]
    power: dict[str, Any] | None = None


def draft(machine: System, framework: str, cohort: str) -> str:
    told = description.describe(machine, here=True)
    gpus = len(machine.gpus)
    accelerator = {
        "accelerator_model_name": machine.gpus[0] if gpus else "none",
        "accelerators_per_node": gpus,
        "accelerator_memory_capacity": told["accelerator_memory_capacity"],
    }
    node = {
        "system_node_ensemble_id": 1,
        "number_of_nodes": 1,
        **{name: told[name] for name in ("host_processor_model_name", "host_processors_per_node")},
        "host_processor_core_count": told["host_processor_core_count"] or machine.cores,
        "host_memory_capacity": told["host_memory_capacity"],
        "host_memory_configuration": "",
        "accelerator_info": [accelerator] if gpus else [],
        "host_network_card_count": "",
        "host_storage_capacity": told["host_storage_capacity"],
        "cooling": "",
        "inference_backend": framework,
        "driver": machine.driver or "none",
        "operating_system": machine.os,
        "filesystem": "",
        "other_software_stack": told["other_software_stack"],
    }
    system = {
        "system_name": "",
        "shortened_system_name": platform.node()[:20],
        "system_availability_status": "RDI",
        "availability_url": "",
        "target_availability_date": "",
        "system_size": "1 node",
        "system_node_ensemble_count": 1,
        "system_node_ensemble_total": 1,
        "serving_framework": framework,
        **{"tensor_parallel": 1, "pipeline_parallel": 1, "expert_parallel": 1, "data_parallel": max(gpus, 1)},
        "node_types": [node],
    }
    about = dict.fromkeys(About.model_fields, "") | {"division": "RDI", "target_cohort": cohort}
    content = {"submission": about, "system": system, "power": None}
    return HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def read(path: Path) -> Disclosure:
    """A filled-in file. Raises UsageError with what is empty or wrong in it."""
    found = parse_as(path, read_given("--system", path, "YAML", load_yaml, yaml.YAMLError), Disclosure)
    if missing := list(empty(found.model_dump(exclude={"power"}))):
        raise UsageError(f"--system {path}: fill in {', '.join(missing)} first.")
    return found


def empty(data: Any, at: str = "") -> Iterator[str]:
    """The names of the texts in it that are empty and must not be."""
    if isinstance(data, dict):
        for name, value in data.items():
            if value in ("", None) and name not in MAY_BE_EMPTY:
                yield f"{at}{name}"
            yield from empty(value, f"{at}{name}.")
    elif isinstance(data, list):
        for value in data:
            yield from empty(value, at)
