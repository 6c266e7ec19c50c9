"""Writes docs/reference/flags.md: every command's flags, as they are declared.

python -m docs.generate.flags
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from docs.generate.wrapping import wrapped
from harness.commands import COMMANDS
from harness.core.command import RENAMED_FLAGS, Group
from harness.core.command_help import shown_default
from harness.core.files import write_text

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

`--precision bf16` is the one to take: the weights' own format. `fp16` is for GPUs before A100, `fp32` for checks on a
CPU. In bf16 on one H200, `--gpu-memory-utilization` of 0.9 (the default) was too low for 1,024 sequences: the KV cache
was full, and 3.4 % of the requests were preempted ([in detail](../evidence/performance.md)). There 0.92 is worth a try.
"""


def leaves(commands: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its name, those of a group included."""
    for name, command in commands.items():
        if isinstance(command, Group):
            yield from leaves(command.commands, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def rows(parameters: Iterable[Any]) -> Iterator[tuple[str, str, str]]:
    """A row for each flag: its name and what it takes, its default, its help."""
    for each in parameters:
        if getattr(each, "hidden", False) or "--help" in each.opts:
            continue
        is_option = each.param_type_name == "option"
        name = " ".join(filter(None, [each.opts[0] if is_option else "", each.metavar]))
        default = "(required)" if is_option and each.required else shown_default(each)
        yield f"`{name}`", default, re.sub(r"\s+", " ", getattr(each, "help", "") or "")


def item(row: tuple[str, str, str]) -> str:
    """A row as an item of a list."""
    name, default, meaning = row
    shown = f" ({default.strip('()')})" if default else ""
    return f"- {name}{shown}: {meaning}\n"


def page() -> str:
    """The page."""
    parts = [HEAD]
    loaded = {name: import_module(f"harness.commands.{name}").command for name in COMMANDS}
    shared = set(rows(loaded["run"].params))
    for name, command in leaves(loaded):
        if found := [line for line in rows(command.params) if name == "run" or line not in shared]:
            parts.append(f"## {name}\n\n{''.join(map(item, found))}")
    older_names = (f"- `{old}`: `{current}`\n" for old, current in RENAMED_FLAGS.items())
    parts.append(f"{OLDER_NAMES_HEAD}{''.join(older_names)}{OTHER_HARNESSES}")
    return wrapped("\n".join(parts))


if __name__ == "__main__":
    write_text(PAGE, page())
    print(PAGE)
