"""A run under way: its folder, the screen, and what is known of it."""

from pathlib import Path
from typing import Any, NamedTuple, Self

from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import secrets, software, statements, system
from harness.core.errors import UsageError
from harness.core.files import parse_as, read_json, write_json
from harness.core.formatting import plural
from harness.core.processes import command_line
from harness.core.progress import Display
from harness.core.schema import SCHEMA
from harness.results.records import RunFacts
from harness.runs.run_folder import RunFolder, ended_early, now


def first_facts() -> dict[str, Any]:
    """Return the facts with which config.json of a run begins: the command, the time, the machine and its software."""
    return {
        "schema_version": SCHEMA,
        "command": command_line(),
        "started": now(),
        "system": system.detect(),
        "installed": software.installed_packages(),
    }


def runs_of_sweep(folder: Path) -> str:
    """Return in words which folders to give in place of that of a sweep: its runs, or that it has none."""
    runs = sorted(path.parent for path in folder.glob("*/*/config.json") if not path.parent.is_symlink())
    if not runs:
        return "it has no run yet"
    return f"give one of its {plural(len(runs), 'run')}, such as {runs[0]}"


def facts_of(folder: Path) -> RunFacts:
    """Read the record of a run from config.json in its folder.

    Raises UsageError if run.py did not write the folder, if it wrote it in an older format, or if the record is
    damaged.
    """
    path = folder / "config.json"
    if not path.exists():
        if (folder / "sweep.json").is_file():
            raise UsageError(f"{folder}: the folder of a sweep, not of a run; {runs_of_sweep(folder)}.", path=folder)
        problem = "no config.json in it"
        ended = ended_early(folder)
        if ended:  # The run ended before it had settled its plan.
            raise UsageError(f"{folder}: this run has no results: {ended}.", path=folder)
        if folder.is_file():
            problem = "a file"
        elif (folder / "summary.json").exists():
            problem = "the summary that was kept of a run, without its logs"
        raise UsageError(f"{folder}: {problem}; not a run folder.", path=folder)
    facts = read_json(path)
    match facts:
        case {"plan": {**plan}} if "running" not in plan:  # The older format has no `running`.
            raise UsageError(f"{folder}: written in an older format; use the version that wrote it.", path=folder)
        case {**fields} if "plan" not in fields:
            raise UsageError(f"{folder}: not a run.py results folder (from mmlu.py?).", path=folder)
    # Any other content is a run's record, or is damaged, for which `parse_as` raises the error.
    return parse_as(path, facts, RunFacts)


class BenchmarkRun(NamedTuple):
    """One run under way: its folder, the screen, and the facts known so far, which config.json always holds."""

    folder: RunFolder
    display: Display
    facts: RunFacts

    @classmethod
    def begin(cls, plan: Plan, folder: RunFolder, display: Display) -> Self:
        """Create the record of a run from its first plan, before its samples are read.

        Writes config.json and prints how the plan deviates from MLPerf's rules.
        """
        # `adopt` writes config.json, and prints the plan's deviations that the facts lack. The facts begin without any.
        run = cls(folder, display, RunFacts(plan=plan, deviations=[], **first_facts()))
        run.adopt(plan)
        return run

    @property
    def plan(self) -> Plan:
        return self.facts.plan

    @property
    def config(self) -> RunConfig:
        return self.plan.config

    def adopt(self, plan: Plan) -> None:
        """Replace the run's plan by a newer one and write config.json.

        Prints what is new in it: its latest note, and deviations from MLPerf's rules that are not yet known.
        """
        if plan.notes != self.plan.notes:
            self.display.leave_line(plan.notes[-1])
        known_before = self.facts.deviations
        self.facts.adopt(plan)
        self.save()
        new_deviations = [reason for reason in plan.deviations if reason not in known_before]
        if new_deviations:
            self.display.say(
                f"not comparable with MLPerf results: {statements.merge_by_remedy(new_deviations)}", style="yellow"
            )

    def save(self) -> None:
        """Write config.json: every resolved setting and all other facts of the run.

        Secrets in engine arguments are hidden.
        """
        record = self.facts.model_dump(mode="json")
        record["plan"]["config"]["engine_arg"] = [secrets.hide_word(pair) for pair in self.config.engine_arg]
        write_json(self.folder.path / "config.json", record)

    def warn_short(self) -> None:
        """Print a warning if the planned test will be too short for a VALID result."""
        if self.plan.duration_problem:
            self.display.say(self.plan.duration_problem, style="yellow")
