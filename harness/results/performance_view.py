"""`run.performance` of summary.json: the outcome of a run's own test as the file has it, and back.

The file has one flat object: LoadGen's figures of the whole test by their names, those of its steady part under
`steady`, and everything else that is known of the test beside them. An `Outcome` has the figures that count by their
names, and the others in its details.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, JsonValue, PlainSerializer

from harness.config.mlperf import SCENARIOS, LatencyLimits
from harness.core.statements import Statement
from harness.loadgen.machine_use import MachineUse
from harness.results.outcome import Outcome
from harness.results.test_details import TestDetails
from harness.runs.run_folder import TEST_FOLDERS

# The figures of the whole test that the file has by its own names.
WHOLE_FIGURES = (
    "tokens_per_sec",
    "input_tokens_per_sec",
    "total_tokens_per_sec",
    "samples_per_sec",
    "latency_ms",
    "ttft_ms",
    "tpot_ms",
    "slo_attainment",
    "goodput",
)
# The fields of the outcome itself that the file has.
OUTCOME_FIELDS = (
    "load",
    "unit",
    "valid",
    "has_own_limits",
    "reasons",
    "joules_per_output_token",
    "queries",
    "sent",
    "more",
    "queue",
    "folder",
)
REQUIRED_FIELDS = ("scenario", "valid", "duration_s", "samples")  # names that every version has
# The figures that the steady part or the whole test gives the outcome, whichever counts.
COUNTED_FIGURES = ("tokens_per_sec", "input_tokens_per_sec", "samples_per_sec", "latency_ms", "ttft_ms", "tpot_ms")


def performance_view(outcome: Outcome) -> dict[str, JsonValue]:
    """Return an outcome as the flat object `run.performance` of summary.json.

    The figures of the whole test, those of the machine and all other details stand beside each other.
    """
    details = outcome.details.model_dump(mode="json")
    whole = details.pop("whole")
    machine = details.pop("machine")
    figures = {name: whole[name] for name in WHOLE_FIGURES}
    fields = outcome.model_dump(mode="json", include=set(OUTCOME_FIELDS))
    return {**fields, **figures, **machine, **details}


def outcome_fields(data: Any) -> Any:
    """Return the fields of an outcome from `run.performance` of a summary.json of any version.

    The object in the file is flat; an outcome has its values in several objects. Raises ValueError if a required name
    is missing.
    """
    has_fields_of_outcome = isinstance(data, dict) and "details" in data
    # Data that already have the form of an outcome stay as they are. What is no object is left for pydantic to refuse.
    if not isinstance(data, dict) or has_fields_of_outcome:
        return data
    missing = [name for name in REQUIRED_FIELDS if name not in data]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    # Until format 4, the share of requests within the limits was called goodput.
    if "goodput" in data and "slo_attainment" not in data:
        data = {**data, "slo_attainment": data["goodput"], "goodput": None}
    whole = {name: data.get(name) for name in WHOLE_FIGURES}
    steady = dict_or_empty(data, "steady")
    counts_steady_part = bool(steady.get("ttft_ms"))  # Only a steady part that counts has latencies.
    counted = steady if counts_steady_part else whole
    # Files of older versions lack some fields, so these are derived first. The fields of the file replace them.
    fields = load_fields(data, counted)
    fields |= part_of(data, OUTCOME_FIELDS)
    fields |= {name: counted.get(name) for name in COUNTED_FIGURES}
    fields |= {
        "client_delay_ms": data.get("client_delay_ms"),
        "trend": steady.get("trend"),
        "is_buffered": bool(dict_or_empty(data, "server").get("is_buffered")),
        "disagreements": data.get("disagreements", ()),
        # The stored name of Outcome.background_load.
        "others": data.get("others", data.get("background_load", ())),
        "details": {**part_of(data, DETAIL_KEYS), "whole": whole, "machine": part_of(data, MACHINE_KEYS)},
    }
    fields.setdefault("folder", TEST_FOLDERS["performance"])
    return fields


def part_of(data: Mapping[str, object], names: Collection[str]) -> dict[str, object]:
    """Return those fields of `data` that are named in `names`. Missing ones are left out."""
    return {name: value for name, value in data.items() if name in names}


def dict_or_empty(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that is an object; an empty object if it is anything else."""
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def load_fields(data: dict[str, Any], counted: dict[str, Any]) -> dict[str, Any]:
    """Derive the fields on load and verdict of a test from other fields, for files of versions that did not have them.

    `data` is `run.performance` of the file. `counted` are the figures that the limits judge: those of the whole test or
    of its steady part.
    """
    # At fixed concurrency and with own arrivals, the user's own limits decide, not LoadGen.
    has_own_limits = bool(data.get("concurrency") or data.get("arrivals"))
    unit = ""
    if data.get("scenario") in SCENARIOS:
        unit = SCENARIOS[data["scenario"]].pattern.unit
    samples_per_query = data.get("samples_per_query") or 1
    samples = counted.get("requests") or data.get("samples") or 0
    reasons: list[Any] = []
    if not has_own_limits and not data.get("valid"):
        reasons += data.get("invalid_reasons") or ()
    return {
        "load": data.get("concurrency") or data.get("target_qps") or samples_per_query,
        "unit": unit,
        "has_own_limits": has_own_limits,
        "reasons": [*reasons, *over_limits(data.get("limits_ms"), counted)],
        "queries": samples // samples_per_query,
    }


def over_limits(limits: Any, counted: dict[str, Any]) -> list[Statement]:
    """Return a statement for each latency over its limit, named by the kind of latency; none without limits.

    `counted` has the figures that count, with their latencies.
    """
    if not limits:
        return []
    ttft, tpot = counted.get("ttft_ms") or {}, counted.get("tpot_ms") or {}
    tails = LatencyLimits(**limits).tails(ttft.get("p99"), tpot.get("p99"))
    return [Statement(f"{tail.kind} is over its limit", name=tail.kind) for tail in tails if tail.is_over]


MACHINE_KEYS = {"others", *MachineUse.model_fields}
DETAIL_KEYS = {*TestDetails.model_fields, "arithmetic_percent", "bandwidth_percent"} - {"whole", "machine"}

StoredOutcome = Annotated[
    Outcome, BeforeValidator(outcome_fields), PlainSerializer(performance_view, return_type=dict[str, JsonValue])
]
