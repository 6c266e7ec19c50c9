"""Choose which experiments of a sweep are run."""

from collections.abc import Mapping, Sequence

from rich.console import Console

from harness.config.run import RunConfig
from harness.core import document, last_screen, nvml, tables
from harness.core.errors import UsageError
from harness.engines import vllm_arguments
from harness.sweep.file import BASELINE, Experiment, Sweep


def chosen_experiments(sweep: Sweep, only: Sequence[str], start: str | None) -> list[Experiment]:
    """Return the experiments named in `only`, those from `start` on, or else all, in the file's order.

    The baseline is always among them, because all others are compared with it. Raises UsageError for an unknown name,
    and if both `only` and `start` are given.
    """
    if only and start:
        raise UsageError("--only and --from exclude each other: give one of them.")
    names = [item.name for item in sweep.experiments]
    for name in only:
        check_name("--only", name, names)
    chosen_names = only or names
    if start is not None:
        check_name("--from", start, names)
        chosen_names = names[names.index(start) :]
    return [item for item in sweep.experiments if item.name in chosen_names or item.name == BASELINE]


def check_name(flag: str, name: str, names: Sequence[str]) -> None:
    """Raise UsageError if no experiment has the name given to a flag."""
    if name not in names:
        raise UsageError(f"{flag} {name}: no such experiment; there are {', '.join(names)}.")


def find_unsupported(sweep: Sweep) -> dict[str, str]:
    """Return why experiments cannot run on the installed vLLM, by name; those that can run are left out.

    Raises UsageError if the baseline cannot run, for instance because no vLLM is installed.
    """
    from harness.runner import doctor  # It is slow to import, and --list needs none of it.

    reasons = {}
    for item in sweep.experiments:
        config = RunConfig(**item.settings)
        if item.python or not config.is_in_process:
            continue  # Another engine runs this experiment.
        if item.name == BASELINE:
            doctor.require(config, only="vLLM")
        replicas = config.data_parallel_size
        if replicas == "auto":  # a replica for each GPU
            replicas = len(nvml.gpus()) or 1
        reason = vllm_arguments.find_unsupported(item.engine, item.env, replicas)
        if reason:
            reasons[item.name] = reason
    if BASELINE in reasons:
        raise UsageError(f"the baseline cannot run: {reasons[BASELINE]}.")
    return reasons


def show_plan(sweep: Sweep, chosen: list[Experiment], reasons: Mapping[str, str]) -> None:
    """Print the chosen experiments with their changes, before anything runs.

    `reasons` says why an experiment is skipped, by its name.
    """
    rows = []
    for item in chosen:
        changes = "\n".join(item.changes) or "(see the file)"
        if item.name in reasons:
            changes += f"\nskipped: {reasons[item.name]}"
        rows.append([item.name, item.kind, changes, item.about])
    plan = document.Section("Experiments", "", [tables.Table(["experiment", "kind", "changes", "description"], rows)])
    last_screen.show(Console(highlight=False), document.Document(sweep.name, sweep.about, sections=[plan]))
