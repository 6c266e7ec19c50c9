"""Finished runs -> an MLPerf submission: `python -m harness submission {system,build,check} --help`."""

from pathlib import Path
from typing import Literal

from harness.config import mlperf
from harness.core.command import HELP, Group, argument, make_command, option, take_several
from harness.core.errors import DONE, NOT_ACCEPTED, UsageError
from harness.core.files import write_json
from harness.core.message_text import say, warn
from harness.core.system import detect
from harness.results.benchmark_run import facts_of
from harness.submission import entries, official_checker, refusals, system_description, tree

ROUND_NAMES = sorted(mlperf.SEEDS_BY_ROUND)


def write_system(
    run: Path | None = option(None, "Describe the machine of this run instead.", "RUN"),
    out: Path = option(Path("system.json"), "Output file.", "FILE"),
) -> None:
    """Describe this machine, and list what you must fill in."""
    facts = facts_of(run) if run else None
    here = detect()  # this machine
    machine = facts.system if facts else here
    # The run was on this machine if the two differ in nothing but the revision of the program, which may be newer now.
    is_here = machine == here.model_copy(update={"git_revision": machine.git_revision})
    description = system_description.describe(machine, facts, is_here=is_here)
    if out.exists():
        raise UsageError(f"--out {out} already exists and may have been edited: choose another path.")
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: the folder {out.parent} does not exist.")
    write_json(out, description)
    say(f"{out}: fill in these fields:")
    for name in system_description.missing_fields(description):
        say(f"  {name}")


def build_tree(
    runs: list[Path] = option(..., "Finished runs, one for each scenario.", "RUN ..."),
    submitter: str = option(..., "Name of the submitter.", "NAME"),
    system: Path = option(..., "System description; its file name becomes the system's name.", "SYSTEM.json"),
    division: Literal["open", "closed"] = option(..., "MLPerf's division.", "open|closed"),
    out: Path = option(..., "A new folder for the submission.", "DIR"),
) -> int:
    """Build a submission from finished runs."""
    submitted = entries.entries_of_runs(runs)
    categories = {entry.config.category for entry in submitted}
    description = system_description.read_description(system)
    description = system_description.final_description(description, submitter, division, categories)
    if division == "closed":
        reasons = refusals.closed_division_refusals(submitted, description)
        if reasons:
            warn("\n  ".join(["error: these runs cannot go into a closed submission:", *reasons]))
            return NOT_ACCEPTED
    base = tree.build(submitted, description, system.stem, out)
    names = ", ".join(entry.label for entry in submitted)
    say(f"{base}: {names}, MLPerf v{submitted[0].config.round}")
    if any(entry.performance.facts.plan.engine_state.quantized_checkpoint for entry in submitted):
        say(f"fill in how the checkpoint was quantized: {base / tree.NOTES}")
    # The closed division has refused such differences above. In the open division they are only named.
    for reason in refusals.system_differences(submitted, description):
        say(f"not one system: {reason}")
    for reason in refusals.checker_refusals(submitted):
        say(f"the official checker will refuse: {reason}")
    say(
        "keep the run folders: the submission holds the accuracy logs truncated, with a SHA-256; MLPerf may request "
        "them whole"
    )
    return DONE


def run_checker(
    folder: Path = argument(..., "The submission.", "DIR"),
    version: str | None = option(
        None, "MLPerf's round; unset: the one whose seeds the logs have.", "|".join(ROUND_NAMES)
    ),
) -> int:
    """Run MLPerf's submission checker on a submission."""
    if version not in (None, *ROUND_NAMES):
        raise UsageError(f"--version takes one of {', '.join(ROUND_NAMES)}, not {version}.")
    version = version or official_checker.version_of(folder)
    reason, checker_output = official_checker.check(folder, version)
    say(checker_output)
    if reason:  # why the submission is not accepted; empty if it is
        say(f"{folder}, MLPerf v{version}: not accepted: {reason}")
        return NOT_ACCEPTED
    say(f"{folder}, MLPerf v{version}: accepted, no error")
    return DONE


command = Group(
    help="Build and check an MLPerf submission of finished runs.",
    commands={
        "system": make_command(write_system),
        "build": make_command(
            build_tree, rewrite=take_several("--runs"), not_accepted="the runs cannot go into a closed submission"
        ),
        "check": make_command(run_checker, not_accepted="the checker did not accept the submission"),
    },
    context_settings=HELP,
)
