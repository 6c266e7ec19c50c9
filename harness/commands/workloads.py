"""The token statistics of workloads: `python -m harness workloads [NAME OR FILE ...]`."""

from typing import Annotated

from harness.config.workload import OFFICIAL, WORKLOADS
from harness.core.command import argument, make_command, option
from harness.core.errors import DONE
from harness.workloads.custom import table


def workloads(
    workload: Annotated[
        list[str] | None, argument("[WORKLOAD ...]", "Names or files; unset: all that are shipped.")
    ] = None,
    model: Annotated[str, option("MODEL", "Model whose tokenizer counts tokens.")] = "demo",
) -> int:
    """Print the token statistics of workloads, as a Markdown table."""
    print(table(workload or [name for name in WORKLOADS if name != OFFICIAL], model))
    return DONE


command = make_command(workloads, prints=True)
