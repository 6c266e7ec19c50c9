"""Writes docs/reference/flags.md: every command's flags, as they are declared.

python -m docs.generate.flags
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from docs.generate.wrapping import wrapped
from harness.commands import COMMANDS
from harness.core.command import RENAMED_FLAGS, Group
from harness.core.command_help import shown_default
from harness.core.files import write_text
from harness.core.formatting import joined_text

PAGE = Path(__file__).parents[1] / "reference" / Path(__file__).with_suffix(".md").name
HEAD = """# Flags

What you get: every flag of every command. One command prints the same on the screen: `python run.py --help-all`. This
page is made by `python -m docs.generate.flags` from the flags' own declarations.

The flags of `run.py` and `mmlu.py` are also keys of a `--config FILE.yaml`; a flag on the command line wins over the
file. A switch takes an optional 0 or 1: `--mlflow` and `--mlflow 1` turn it on, `--mlflow 0` turns it off. The default
stands in parentheses; (required) marks what a command cannot do without. `mmlu` and `compare` take flags of `run` as
well: their lists have those that are theirs alone.

`python run.py` is the form from a checkout; after `pip install .` the same command is `llama31-mlperf run`, and every
other one is `llama31-mlperf NAME`, from a checkout `python -m harness NAME`.

Prefix caching is off by default (`--engine-arg enable_prefix_caching=true` turns it on): LoadGen repeats its samples,
so a cache would raise the throughput above that of new requests. The report says when it was on.

A `.env` file in the checkout is read, one NAME=VALUE a line without quotes; variables that are set win. Completion in
bash (or zsh, fish): `eval "$(_LLAMA31_MLPERF_COMPLETE=source_bash llama31-mlperf)"`.
"""


OLDER_NAMES_HEAD = """## Older names

These names of other harnesses of this benchmark are taken as well. `python run.py --version` without a value prints the
version of this program.

"""


OTHER_HARNESSES = """
## Keys of user.conf

LoadGen reads a `user.conf`, which this program writes into each test's folder. These flags set its keys:

| key | flag |
|---|---|
| `Offline.target_qps` | `--offline-expected-qps` |
| `Server.target_qps` | `--server-target-qps`, also of Interactive, which is LoadGen's Server under another model name |
| `min_duration` | `--min-duration`, in seconds instead of milliseconds |
| `min_query_count`, `performance_sample_count_override` | follow from `--total-sample-count` |
| `MultiStream.samples_per_query` | `--samples-per-query`; 8 unless given, as MLPerf has it |
| `Server.ttft_latency`, `Server.tpot_latency` | `--ttft-limit`, `--tpot-limit` |
| `SingleStream.target_latency`, `MultiStream.target_latency` | measured before the test |
| the three seeds (set in LoadGen, not in the file) | `--round`, or `--seed` for others |

## Precision and memory

`--precision bf16` is the one to take: the weights' own format. `fp16` is for GPUs older than the A100, `fp32` for
checks on a CPU. In bf16 on one H200, `--gpu-memory-utilization` of 0.9 (the default) was too low for 1,024 sequences:
the KV cache was full, and 3.4 % of the requests were preempted ([in detail](../evidence/performance.md)). There 0.92 is
worth a try.
"""


class FlagRow(NamedTuple):
    """A flag as the page shows it: its name and what it takes, as code; its default; its help on one line."""

    name: str
    default: str
    help: str


def commands_by_name(commands: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name of every command, with the command. A group yields its commands."""
    for name, command in commands.items():
        if isinstance(command, Group):
            yield from commands_by_name(command.commands, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def rows(parameters: Iterable[Any]) -> Iterator[FlagRow]:
    """Yield a row for each parameter of a command, except for hidden ones and --help."""
    for parameter in parameters:
        is_hidden = getattr(parameter, "hidden", False)
        if not is_hidden and "--help" not in parameter.opts:
            yield flag_row(parameter)


def flag_row(parameter: Any) -> FlagRow:
    """Return the row of a Click parameter. An argument has its metavar as its name."""
    is_option = parameter.param_type_name == "option"
    name_parts = [parameter.opts[0] if is_option else "", parameter.metavar]
    is_required_option = is_option and parameter.required
    default = "(required)" if is_required_option else shown_default(parameter)
    help_text = getattr(parameter, "help", "") or ""
    return FlagRow(f"`{joined_text(' ', *name_parts)}`", default, re.sub(r"\s+", " ", help_text))


def list_item(row: FlagRow) -> str:
    """Return a row as an item of a Markdown list."""
    note = f" ({row.default.strip('()')})" if row.default else ""
    return f"- {row.name}{note}: {row.help}\n"


def page() -> str:
    commands = {name: import_module(f"harness.commands.{name}").command for name in COMMANDS}
    run_rows = list(rows(commands["run"].params))
    parts = [HEAD]
    for name, command in commands_by_name(commands):
        # Other commands list only the flags that `run` does not have.
        listed_rows = run_rows if name == "run" else [row for row in rows(command.params) if row not in run_rows]
        if listed_rows:
            parts.append(f"## {name}\n\n{''.join(map(list_item, listed_rows))}")
    older_names = [f"- `{old}`: `{current}`\n" for old, current in RENAMED_FLAGS.items()]
    parts.append(f"{OLDER_NAMES_HEAD}{''.join(older_names)}{OTHER_HARNESSES}")
    return wrapped("\n".join(parts))


if __name__ == "__main__":
    write_text(PAGE, page())
    print(PAGE)
