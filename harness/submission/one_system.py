"""Whether the results of a submission are of one system, as MLPerf's inference_rules.adoc asks of all that are reported
together: its scenarios beside each other, and beside the description."""

import re
from collections.abc import Iterator, Mapping, Sequence

from harness.config import comparability
from harness.submission.entries import Entry, SubmittedRun

# Scenarios are other work with settings of their own; Python and the environment are the harness's.
IGNORED = ("work", "settings", "python", "variables", "busyness", "validity", "rate")


def differences(entries: Sequence[Entry], description: Mapping[str, object] | None) -> list[str]:
    """What says that the entries are not of one system, the described one."""
    found = []
    runs = {f"{entry.benchmark} {entry.scenario}": entry.performance for entry in entries}
    (first, theirs), *further = runs.items()
    for name, mine in further:
        unlike = comparability.differences(mine.facts.comparable, theirs.facts.comparable, IGNORED)
        found += [f"{name}: {each.name} {each.a}, but {each.b} in {first}" for each in unlike]
    for name, run in runs.items() if description else ():
        found += [f"{name}: {said}" for said in contradictions(run, description or {})]
    return found


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
