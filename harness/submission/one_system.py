"""Whether the results of a submission are of one system, as MLPerf's inference_rules.adoc asks of all that are reported
together: its scenarios beside each other, and beside the description."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from harness.submission.entries import Entry, SubmittedRun


def differences(entries: Sequence[Entry], description: Mapping[str, object] | None) -> list[str]:
    """What says that the entries are not of one system, the described one."""
    found = []
    systems = {f"{entry.benchmark} {entry.scenario}": system_of(entry.performance) for entry in entries}
    (first, theirs), *further = systems.items()
    for name, mine in further:
        keys = [key for key in dict.fromkeys([*mine, *theirs]) if mine.get(key) != theirs.get(key)]
        found += [f"{name}: {key} {mine.get(key)}, but {theirs.get(key)} in {first}" for key in keys]
    for name, entry in zip(systems, entries if description else (), strict=False):
        found += [f"{name}: {said}" for said in contradictions(entry.performance, description or {})]
    return found


def system_of(run: SubmittedRun) -> dict[str, object]:
    """What a run recorded of its machine and its software, by name."""
    machine = run.facts.system
    gpus = ", ".join(f"{count} x {name}" for name, count in Counter(machine.gpus).items()) or "none"
    about = {"gpus": gpus, "driver": machine.driver, "cpu": machine.cpu, "cores": str(machine.cores)}
    return {**about, "engine": run.facts.engine, **machine.packages}


def contradictions(run: SubmittedRun, description: Mapping[str, object]) -> Iterator[str]:
    """Where the description says something else than a run recorded; of a server's machine nothing is recorded."""
    machine = run.facts.system
    if run.config.endpoint:
        yield f"the machine behind {', '.join(run.config.endpoint)} was not recorded"
        return
    if str(count := description["accelerators_per_node"]) != str(len(machine.gpus)):
        yield f"ran with {len(machine.gpus)} accelerators; accelerators_per_node is {count}"
    recorded = [("accelerator_model_name", gpu) for gpu in dict.fromkeys(machine.gpus)]
    for field, what in [*recorded, ("host_processor_model_name", machine.cpu), ("framework", run.facts.engine or "")]:
        if not is_named(what, str(description[field])):
            yield f"ran with {what}; {field} is {description[field]}"


def is_named(recorded: str, described: str) -> bool:
    """Whether a description names what was recorded: the first word of it with a digit, which is the model of a
    processor (H200, 9575F) or a version; without one, all of it."""
    words, given = (re.findall(r"\w[\w.]*", text.casefold()) for text in (recorded, described))
    model = next((word for word in words if re.search(r"\d", word)), None)
    return model in given if model else " ".join(words) in " ".join(given)
