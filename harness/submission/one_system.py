"""Whether the results of a submission are of one system: its runs beside each other, and beside the description.

MLPerf's inference_rules.adoc: one system and framework for all results that are reported together.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from harness.submission.entries import SYSTEM_FACTS, Entry
from harness.submission.entries import SubmittedRun as Run


def unlike_runs(entries: Sequence[Entry]) -> Iterator[str]:
    """In what the scenarios' systems differ from that of the first; the runs of one scenario are alike."""
    first = system_of(entries[0].performance)
    for entry in entries[1:]:
        for name, value in system_of(entry.performance).items():
            if value != first[name]:
                yield (
                    f"{entry.benchmark} {entry.scenario}: other {name} than {entries[0].scenario}: "
                    f"{words(value, first[name])}, not {words(first[name], value)}"
                )


def system_of(run: Run) -> dict[str, object]:
    """What a run recorded of its machine and its engine."""
    return {name: getattr(run.facts.system, name) for name in SYSTEM_FACTS} | {"engine": run.facts.engine}


def words(value: object, other: object) -> str:
    """A recorded value; of versions by package those that the other value has not."""
    if isinstance(value, list):
        return ", ".join(f"{count} x {name}" for name, count in Counter(value).items()) or "none"
    if isinstance(value, dict) and isinstance(other, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items() if other.get(name) != version) or "none"
    return str(value or "not recorded")


def contradictions(description: Mapping[str, object], entries: Sequence[Entry]) -> list[str]:
    """Where the description says something else than the runs recorded, once each."""
    return list(dict.fromkeys(said for entry in entries for said in beside(description, entry.performance)))


def beside(description: Mapping[str, object], run: Run) -> Iterator[str]:
    system = run.facts.system
    if run.config.endpoint:
        yield f"{run.path.name} asked {', '.join(run.config.endpoint)}, whose machine is not recorded"
        return
    count = str(description["accelerators_per_node"])
    if count != str(len(system.gpus)):
        yield f"accelerators_per_node is {count}, but {run.path.name} ran with {len(system.gpus)}"
    recorded = {
        "accelerator_model_name": [*dict.fromkeys(system.gpus)],
        "host_processor_model_name": [system.cpu],
        "framework": [run.facts.engine or ""],
    }
    for field, names in recorded.items():
        for name in names:
            if not is_named(name, str(description[field])):
                yield f"{field} is {description[field]!r}, but {run.path.name} ran with {name}"


def is_named(recorded: str, described: str) -> bool:
    """Whether a description names what was recorded: the same words, or the first of them with a digit in it, which is
    the model of a processor (H200, 9575F) or a version."""
    model = next((word for word in tokens(recorded) if re.search(r"\d", word)), None)
    return model in tokens(described) if model else " ".join(tokens(recorded)) in " ".join(tokens(described))


def tokens(text: str) -> list[str]:
    return re.findall(r"\w[\w.]*", text.casefold())
