"""Which experiments of a sweep are run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace

from rich.console import Console
from rich.table import Table

from harness.common.errors import UsageError
from harness.common.system import gpus
from harness.config.flags import OUTPUT
from harness.config.run import RunConfig
from harness.engines import vllm_args
from harness.sweep.file import BASELINE, Experiment, Sweep
from harness.terminal.progress import as_said


def pick(sweep: Sweep, only: Sequence[str] = (), start: str | None = None) -> list[Experiment]:
    """The experiments asked for, in the file's order; the baseline always, since all are compared with it."""
    names = [item.name for item in sweep.experiments]
    if only and start:
        raise UsageError("--only and --from exclude each other: give one of them.")
    for flag, name in [("--only", name) for name in only] + [("--from", start)]:
        if name is not None and name not in names:
            raise UsageError(f"{flag} {name}: no such experiment; there are {', '.join(names)}.")
    wanted = only or names[names.index(start) if start else 0 :]
    return [item for item in sweep.experiments if item.name in wanted or item.name == BASELINE]


def reasons_to_skip(sweep: Sweep, only: Sequence[str] = ()) -> dict[str, str]:
    """Why experiments are not run: name -> reason. Raises UsageError for the baseline.

    One that measures nothing new runs where --only names it.
    """
    twins = {name: f"the same effective settings as {first}" for name, first in repetitions(sweep.experiments)}
    return {name: why for name, why in twins.items() if name not in only} | find_unsupported(sweep)


def repetitions(experiments: Sequence[Experiment]) -> Iterator[tuple[str, str]]:
    """Each experiment whose effective settings an earlier one has, and the earlier one's name."""
    settings = [effective_settings(item) for item in experiments]
    for number, item in enumerate(experiments):
        if settings[number] in settings[:number]:
            yield item.name, experiments[settings.index(settings[number])].name


def effective_settings(item: Experiment) -> dict[str, object]:
    """The settings of an experiment without those of its output, with the values that `auto` stands for."""
    config = RunConfig(**item.settings)
    config = replace(config, max_model_len=config.least_context, gpu_memory_utilization=config.memory_share)
    output = {setting.name for setting in fields(config) if setting.metadata["panel"] == OUTPUT}
    settings = {name: value for name, value in asdict(config).items() if name not in output | {"engine_arg"}}
    return settings | {"engine": config.engine_args, "env": dict(item.env)}


def find_unsupported(sweep: Sweep) -> dict[str, str]:
    """Why experiments cannot run on the vLLM that is installed: name -> reason. Raises UsageError for the baseline."""
    reasons = {}
    for item in sweep.experiments:
        config = RunConfig(**item.settings)
        copies = len(gpus()) or 1 if config.data_parallel_size == "auto" else config.data_parallel_size
        if config.is_in_process and (why := vllm_args.find_unsupported(item.engine, item.env, copies)):
            reasons[item.name] = why
    if BASELINE in reasons:
        raise UsageError(f"the baseline cannot run: {reasons[BASELINE]}.")
    return reasons


def show(sweep: Sweep, chosen: list[Experiment], reasons: Mapping[str, str]) -> None:
    table = Table(title=as_said(f"{sweep.name}: {sweep.about}" if sweep.about else sweep.name), title_style="bold")
    for column in ("experiment", "kind", "changes", "description"):
        table.add_column(column, overflow="fold")
    for item in chosen:
        changes = "\n".join(item.changes) or "(see the file)"
        if item.name in reasons:
            changes += f"\nskipped: {reasons[item.name]}"
        table.add_row(item.name, item.kind, as_said(changes), as_said(item.about))
    Console(highlight=False).print(table)
