"""How a flag is declared: its default, topic, help, what it affects, its bounds; and the rules across flags."""

import ast
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import field
from itertools import pairwise
from textwrap import dedent
from typing import Any, Literal

from harness.common.coerce import as_flag, require
from harness.common.errors import UsageError

Auto = Literal["auto"]
Affects = Literal["work", "answers", "speed", "nothing"]  # what else than the report may change with a flag
MODEL, ENGINE = "Model", "Engine and GPUs"
BENCHMARK, DATA, RATE, ACCURACY, OUTPUT = "Benchmark", "Data", "Load", "Accuracy", "Results"
SERVER = "A running server"
PANELS = (BENCHMARK, RATE, MODEL, SERVER, ENGINE, DATA, ACCURACY, OUTPUT)  # in the order of the help

MAXIMA = {  # what LoadGen can plan for, beyond which its counters overflow without a word; and an engine
    "tensor_parallel_size": 10**4,
    "data_parallel_size": 10**4,
    "max_model_len": 10**8,
    "max_num_seqs": 10**6,
    "max_num_batched_tokens": 10**8,
    "total_limit": 10**6,
    "max_new_tokens": 10**6,
    "total_sample_count": 2**40,  # the data set sets the real one
    "min_duration": 30 * 24 * 3600,
    "batch_size": 10**7,
    "samples_per_query": 10**6,
    "concurrency": 50_000,
    "server_target_qps": 10**6,
    "offline_expected_qps": 10**6,
    "stall_timeout": 30 * 24 * 3600,
    "request_timeout": 30 * 24 * 3600,
    "wait_ready": 24 * 3600,
    "probe_queries": 10**6,
    "client_processes": 1024,
    "max_in_flight": 50_000,  # a connection each, and a client's ports end at about 60,000
}

MOST_MS = 10**6  # of a latency limit, which LoadGen holds in whole milliseconds
MS = (lambda limit: 0 < limit <= MOST_MS, f"whole milliseconds above 0, at most {MOST_MS:,}")
TAKEN: dict[str, tuple[Callable[[Any], bool], str]] = {  # numbers with other bounds than above 0 and a maximum
    "gpu_memory_utilization": (lambda share: 0 < share <= 1, "a share above 0, at most 1, or auto"),
    "seed": (lambda seed: 0 <= seed < 2**32, "a whole number from 0 to 4294967295"),
    "ttft_limit": MS,
    "tpot_limit": MS,
    "price_per_hour": (lambda price: 0 <= price < math.inf, "a number of 0 or more"),
}

RENAMED = {"version": "round"}  # older names of settings, which are still taken


def setting(key: str) -> str:
    """The setting that a key of a file names, written with '-' or '_', or by an older name."""
    name = key.replace("-", "_")
    return RENAMED.get(name, name)


def flag(default: Any, panel: str, affects: Affects, metavar: str = "") -> Any:
    """A setting that is a command-line flag, a key of `--config` files and a field of `config.json` at once. The text
    below it is its help; without one it is not shown.

    `work` is the work of the engine; speeds at other work are not compared. A flag that affects answers may affect
    speed, too. What two runs must share to be compared, or for one's rate to serve the other, follows from this.
    """
    return field(default=default, metadata={"panel": panel, "affects": affects, "metavar": metavar})


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


def check_range(name: str, value: object) -> None:
    """Raises UsageError unless the numbers of a setting, if it has any, are within its bounds."""
    if name in TAKEN:
        accepts, words = TAKEN[name]
        require(value in (None, "auto") or accepts(value), as_flag(name), words)
    if name not in MAXIMA:
        return
    if isinstance(value, tuple) and len(set(value)) < len(value):
        raise UsageError(f"{as_flag(name)}: a number is given twice.")
    numbers = value if isinstance(value, tuple) else (value,) if isinstance(value, int | float) else ()
    in_range = value in (None, "auto", "max") or (bool(numbers) and all(0 < n <= MAXIMA[name] for n in numbers))
    require(in_range, as_flag(name), f"a number above 0, at most {MAXIMA[name]:,}")
