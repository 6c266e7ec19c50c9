"""The JSON schema of summary.json. `python -m docs.generate.summary_schema` writes it."""

import json
from typing import Any

from pydantic import JsonValue

from harness.core import locations
from harness.core.schema import FrozenModel
from harness.loadgen.machine_use import MachineUse
from harness.results.figures import Figures
from harness.results.outcome import Outcome
from harness.results.performance_view import OUTCOME_FIELDS, REQUIRED_FIELDS, WHOLE_FIGURES
from harness.results.summary import Summary
from harness.results.test_details import TestDetails

SCHEMA_FILE = locations.ROOT / "templates" / "summary.schema.json"
REFERENCE = "#/$defs/{model}"

JsonObject = dict[str, JsonValue]


def schema() -> str:
    """Return the JSON schema of summary.json as text.

    Pydantic describes the models as they are nested in the program. In the file, however, `run.performance` is one flat
    object with the fields of four models, so its schema is put together here.
    """
    summary_schema = Summary.model_json_schema(mode="serialization", ref_template=REFERENCE)
    definitions: dict[str, Any] = summary_schema["$defs"]
    properties: JsonObject = {}  # of `run.performance`
    for model in (Outcome, Figures, MachineUse, TestDetails):
        model_schema = model.model_json_schema(mode="serialization", ref_template=REFERENCE)
        for name, nested_model in model_schema.get("$defs", {}).items():
            definitions.setdefault(name, nested_model)
        for name in names_of(model):
            if name in model_schema["properties"]:
                properties[name] = model_schema["properties"][name]
    # The steady part, an object of its own below `run.performance`, has all fields of Figures.
    definitions["Figures"] = Figures.model_json_schema(mode="serialization", ref_template=REFERENCE)
    definitions["Figures"].pop("$defs", None)
    definitions["Performance"] = {
        "description": "LoadGen's measurements, and the tokens that were reported to it. Latencies in milliseconds.",
        "properties": dict(sorted(properties.items())),
        "required": list(REQUIRED_FIELDS),
        "title": "Performance",
        "type": "object",
    }
    performance = {"anyOf": [{"$ref": REFERENCE.format(model="Performance")}, {"type": "null"}], "default": None}
    definitions["Run"]["properties"]["performance"] = performance
    summary_schema["$defs"] = dict(sorted(definitions.items()))
    return json.dumps(summary_schema, indent=2) + "\n"


def names_of(model: type[FrozenModel]) -> list[str]:
    """Return the names of the fields of a model that `run.performance` has. Its nested models are not among them."""
    if model is Outcome:
        return list(OUTCOME_FIELDS)
    if model is Figures:
        return list(WHOLE_FIGURES)
    aliases = [field.serialization_alias or name for name, field in model.model_fields.items()]
    return [name for name in aliases if name not in ("whole", "machine")]
