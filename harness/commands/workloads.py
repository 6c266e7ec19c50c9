"""The token statistics of workloads: `python -m harness workloads [NAME OR FILE ...]`."""

from harness.config.workload import OFFICIAL, WORKLOADS
from harness.core.command import argument, make_command, option
from harness.workloads.custom import table


def workloads(
    workload: list[str] = argument((), "Names or files; unset: all that are shipped.", "[WORKLOAD ...]"),
    model: str = option("demo", "Model whose tokenizer counts tokens.", "MODEL"),
) -> None:
    """Print the token statistics of workloads, as a Markdown table."""
    print(table(workload or [name for name in WORKLOADS if name != OFFICIAL], model))


command = make_command(workloads)
