"""Choose which experiments of a sweep are run."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from harness.config.run import RunConfig
from harness.core import document, last_screen, nvml, tables
from harness.core.errors import UsageError
from harness.engines import vllm_arguments
from harness.sweep.file import BASELINE, Experiment, Sweep


def pick(sweep: Sweep, only: Sequence[str], start: str | None) -> list[Experiment]:
    """The experiments asked for, in the file's order; the baseline always, since all are compared with it."""
    names = [item.name for item in sweep.experiments]
    if only and start:
        raise UsageError("--only and --from exclude each other: give one of them.")
    for flag, name in [("--only", name) for name in only] + [("--from", start)]:
        if name is not None and name not in names:
            raise UsageError(f"{flag} {name}: no such experiment; there are {', '.join(names)}.")
    wanted = only or names[names.index(start) if start else 0 :]
    return [item for item in sweep.experiments if item.name in wanted or item.name == BASELINE]


def find_unsupported(sweep: Sweep) -> dict[str, str]:
    """Return why experiments cannot run on the vLLM that is installed: name -> reason. Raises UsageError for the
    baseline.
    """
    reasons = {}
    for item in sweep.experiments:
        config = RunConfig(**item.settings)
        copies = len(nvml.gpus()) or 1 if config.data_parallel_size == "auto" else config.data_parallel_size
        if item.python:
            continue  # that vLLM is another one
        if config.is_in_process and (why := vllm_arguments.find_unsupported(item.engine, item.env, copies)):
            reasons[item.name] = why
    if BASELINE in reasons:
        raise UsageError(f"the baseline cannot run: {reasons[BASELINE]}.")
    return reasons


def show(sweep: Sweep, chosen: list[Experiment], reasons: Mapping[str, str]) -> None:
    rows = []
    for item in chosen:
        changes = "\n".join(item.changes) or "(see the file)"
        if item.name in reasons:
            changes += f"\nskipped: {reasons[item.name]}"
        rows.append([item.name, item.kind, changes, item.about])
    plan = document.Section("Experiments", "", [tables.Table(["experiment", "kind", "changes", "description"], rows)])
    last_screen.show(Console(highlight=False), document.Document(sweep.name, sweep.about, sections=[plan]))
