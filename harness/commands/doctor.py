"""Check what a run with these flags needs, and name what is missing: `python -m harness doctor --help` lists
the flags.
"""

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.config.config_command import config_command
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.core.message_text import say

if TYPE_CHECKING:
    from harness.runner.doctor import Finding

DESCRIPTION = "Check what a run with these flags needs: packages, GPU, memory, model, data, server. Nothing is run."
EXAMPLES = (
    "python -m harness doctor --model demo",
    "python -m harness doctor --endpoint http://localhost:8000/v1 --json",
)
STATUS_COLUMNS, NAME_COLUMNS = 8, 14  # characters of "unknown" and "other programs"
STATUS_STYLES = {"ok": "green", "note": "yellow", "failed": "red", "unknown": "yellow"}


def doctor(config: RunConfig) -> None:
    """Print a line for each thing that a run needs, or all as JSON. Raises UsageError if something is missing."""
    # Importing transformers below must not import torch, which is slow.
    hide_torch()
    from harness.runner.doctor import findings

    results = [*findings(config)]
    if config.json:
        say(json.dumps([result._asdict() for result in results], indent=2))
    else:
        show(results)
    failed_names = names_with_status(results, "failed")
    if failed_names:
        raise UsageError(f"these checks failed: {', '.join(failed_names)}.")


def names_with_status(results: Sequence["Finding"], status: str) -> list[str]:
    """Return the names of the findings that have this status."""
    return [result.name for result in results if result.status == status]


def show(results: Sequence["Finding"]) -> None:
    """Print a row for each finding and, on a line of its own, the command that remedies it if there is one.

    What is not needed comes last, in one line.
    """
    from rich.console import Console
    from rich.table import Column, Table

    from harness.core.progress import escape_rich

    console = Console(highlight=False)
    for result in results:
        if result.status == "not needed":  # The last line names all of these.
            continue
        columns = Column(width=STATUS_COLUMNS), Column(width=NAME_COLUMNS), Column(overflow="fold")
        row = Table(*columns, box=None, show_header=False, pad_edge=False)
        status = f"[{STATUS_STYLES[result.status]}]{result.status}[/]"
        row.add_row(status, result.name, escape_rich(result.text))
        console.print(row)
        if result.command:  # Rich breaks no line of the command, so that it can be copied.
            console.print(f"  {result.command}", markup=False, soft_wrap=True)
    unneeded_names = names_with_status(results, "not needed")
    if unneeded_names:
        console.print(f"not needed: {', '.join(unneeded_names)}", style="dim")


def hide_torch() -> None:
    """Import transformers without torch in this process, since torch takes up to 20 s to import.

    Nothing is done for a torch that is already imported.
    """
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # transformers would warn that there is no torch.
    if "torch" not in sys.modules:
        # None makes an import of torch fail.
        sys.modules["torch"] = None  # type: ignore[assignment]
        # transformers looks for torch only once, at this first use. Later imports of torch work as usual.
        importlib.import_module("transformers").AutoTokenizer  # noqa: B018
        del sys.modules["torch"]


command = config_command(RunConfig, doctor, DESCRIPTION, EXAMPLES, bad_input="a check failed, or wrong usage or input")
