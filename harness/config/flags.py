"""How a flag is declared: its default, topic, help, what it affects, its bounds; and the rules across flags."""

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import Field, field
from itertools import pairwise
from textwrap import dedent
from typing import Any, Literal

from harness.core.coerce import RENAMED, as_flag, require
from harness.core.errors import UsageError

Auto = Literal["auto"]
Affects = Literal["work", "answers", "speed", "nothing"]  # what else than the report may change with a flag
MODEL, ENGINE = "Model", "Engine and GPUs"
BENCHMARK, DATA, RATE, ACCURACY, OUTPUT = "Benchmark", "Data", "Load", "Accuracy", "Results"
SERVER = "A running server"
PANELS = (BENCHMARK, RATE, MODEL, SERVER, ENGINE, DATA, ACCURACY, OUTPUT)  # in the order of the help

# What LoadGen can plan for, beyond which its counters overflow without a word; and requests at once, a connection each,
# of which a client has the ports for about 60,000.
MOST_S, MOST_MS, MOST_AT_ONCE = 30 * 24 * 3600, 10**6, 50_000
UNRANKED = 99  # of flags that -h leaves to --help-all
Bounds = tuple[Callable[[Any], bool], str]  # of a number, also in words


def above_0(most: float) -> Bounds:
    return lambda number: 0 < number <= most, f"a number above 0, at most {most:,}"


BOUNDS: dict[str, Bounds] = {
    "seconds": above_0(MOST_S),
    "at once": above_0(MOST_AT_ONCE),
    "ms": (lambda limit: 0 < limit <= MOST_MS, f"whole milliseconds above 0, at most {MOST_MS:,}"),
    "share": (lambda share: 0 < share <= 1, "a share above 0, at most 1, or auto"),
    "seed": (lambda seed: 0 <= seed < 2**32, "a whole number from 0 to 4294967295"),
    "price": (lambda price: 0 <= price < math.inf, "a number of 0 or more"),
}


def setting(key: str) -> str:
    """The setting that a key of a file names, written with '-' or '_', or by an older name."""
    name = key.replace("-", "_")
    return RENAMED.get(name, name)


def flag(default: Any, panel: str, affects: Affects, metavar: str = "", takes: str | int = "", rank: int = 0) -> Any:
    """A setting that is a command-line flag, a key of `--config` files and a field of `config.json` at once. The text
    below it is its help; without one it is not shown. Its numbers are within the BOUNDS of a name, or above 0 and at
    most what it `takes`. -h has those with a `rank`, in its order; --help-all has the rest.

    `work` is the work of the engine; speeds at other work are not compared. A flag that affects answers may affect
    speed, too. What two runs must share to be compared, or for one's rate to serve the other, follows from this.
    """
    bounds = above_0(takes) if isinstance(takes, int) else BOUNDS[takes] if takes else None
    metadata = {"panel": panel, "affects": affects, "metavar": metavar, "bounds": bounds, "rank": rank or UNRANKED}
    return field(default=default, metadata=metadata)


def helps(kind: type) -> dict[str, str]:
    """What stands below each flag of a config class, by name."""
    found = {}
    for base in reversed(kind.__mro__[:-1]):
        (source,) = ast.parse(dedent(inspect.getsource(base))).body
        for item, below in pairwise(ast.iter_child_nodes(source)):
            match item, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


# What is refused: each message, in which {run.NAME} is filled in, and when it is so. `run.given` are the settings that
# the user named, or that are not at their default.
Rules = Mapping[str, Callable[[Any], object]]


def broken(rules: Rules, run: object) -> list[str]:
    """The messages of the rules that a run breaks."""
    return [message.format(run=run) for message, when in rules.items() if when(run)]


def check_rules(config: object) -> None:
    """Raises UsageError for the first of the RULES of a config's classes, the base's first, that is broken."""
    for kind in reversed(type(config).__mro__):
        if found := broken(vars(kind).get("RULES", {}), config):
            raise UsageError(found[0])


def check_range(item: "Field[Any]", value: object) -> None:
    """Raises UsageError unless the numbers of a setting, if it has any, are within its bounds."""
    if (bounds := item.metadata["bounds"]) is None or value in (None, "auto", "max"):
        return
    accepts, words = bounds
    numbers = value if isinstance(value, tuple) else (value,)
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"{as_flag(item.name)}: a number is given twice.")
    require(bool(numbers) and all(map(accepts, numbers)), as_flag(item.name), words)
