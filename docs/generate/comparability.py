"""Writes two sections of docs/comparability.md: what each tool means by its figures (`benchmarks/load_tools.py`), and
what each comparison of runs asks them to share, from the constants that the comparisons use.

python -m docs.generate.comparability
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from benchmarks import crosscheck
from benchmarks.load_tools import TOOLS
from docs.generate.wrapping import wrapped
from harness.config import comparability
from harness.config.comparability import FLAWS, Comparable
from harness.config.run import RunConfig
from harness.core.files import write_text
from harness.core.given_values import flag_name
from harness.core.tables import Table
from harness.report import compare_page, regression
from harness.results import history_line
from harness.runner import trial_rate
from harness.submission import entries, refusals
from harness.sweep import experiment_result, sweep_state

PAGE = Path(__file__).parents[1] / Path(__file__).with_suffix(".md").name
# The text between the comments at the beginning and the end of a section.
SECTION = re.compile(r"(?<=<!-- made by `python -m docs.generate.comparability` -->\n).*?(?=<!-- end -->)", re.S)
MEANINGS = {  # of the aspects of a run
    "work": "what is asked of the engine",
    "settings": "all else that answers or speed depend on, and what the engine makes of it",
    "machine": "GPUs, driver, CPU, cores",
    "software": "engine, Python, packages, environment variables",
    "busyness": "other programs on the machine meanwhile",
    "validity": "what keeps a speed from counting",
    "rate": f"queries/s that were sent, within {100 * comparability.COMPARABLE_RATE_SHARE:g} %",
}
COMPARISONS: Mapping[str, Collection[str]] = {
    "experiment and baseline of a sweep": experiment_result.IGNORED_BETWEEN_EXPERIMENTS,
    "sweep and `--resume`": sweep_state.IGNORED_ON_RESUME,
    "`--compare`: a ratio": compare_page.IGNORED_IN_COMPARISON,
    "`--fail-if`: tokens/s, ...": regression.IGNORED_FOR_SPEEDS,
    "`--fail-if`: latencies": regression.IGNORED_FOR_LATENCIES,
    "`--fail-if`: answers": regression.IGNORED_FOR_ANSWERS,
    "Offline run of the history, for `auto`": trial_rate.IGNORED_IN_OFFLINE_RUN,
    "earlier runs of the history, for the scatter": history_line.IGNORED_IN_SCATTER,
    "runs of one entry of a submission": entries.IGNORED_IN_ENTRY,
    "entries of one submission": refusals.IGNORED_BETWEEN_ENTRIES,
}
FLAGS = {"work": RunConfig.flags_by_effect("work"), "settings": RunConfig.flags_by_effect("answers", "speed")}
# What a comparison may ignore within an aspect that it does compare.
NAMES = FLAGS | {
    "machine": ("driver",),
    "software": ("python", "variables"),
    "validity": (*comparability.DISQUALIFYING_FLAWS, comparability.CONFIGURED_RATE),
}


def section() -> str:
    """Return the table of what each comparison asks of each aspect, and the flags of the work."""
    aspects = [*Comparable._fields]
    columns = ["comparison", *(f"{aspect}: {MEANINGS[aspect]}" for aspect in aspects)]
    rows = []
    for comparison, ignored in COMPARISONS.items():
        rows.append([comparison, *(cell(aspect, ignored) for aspect in aspects)])
    work_flags = ", ".join(f"`{flag_name(flag)}`" for flag in FLAGS["work"])
    note = f"*work*: {work_flags}. *settings*: every other flag that answers or speed depend on."
    return f"{Table(columns, rows)}\n\n{note}\n"


def cell(aspect: str, ignored: Collection[str]) -> str:
    """Return what a comparison asks of an aspect. `ignored` are the aspects, and names within aspects, it ignores."""
    if aspect in ignored:
        return "any"
    requirement = "none" if aspect in FLAWS else "the same"
    exceptions = [name for name in NAMES.get(aspect, ()) if name in ignored]
    if not exceptions:
        return requirement
    if aspect in FLAGS:
        exceptions = [flag_name(name) for name in exceptions]
    return f"{requirement} but: {', '.join(exceptions)}"


def page() -> str:
    """Return the whole page with both sections as they are now."""
    sections = iter((f"{crosscheck.meaning_table(TOOLS)}\n", section()))
    return wrapped(SECTION.sub(lambda _old_text: f"\n{next(sections)}\n", PAGE.read_text()))


def main() -> None:
    write_text(PAGE, page())
    print(PAGE)


if __name__ == "__main__":
    main()
