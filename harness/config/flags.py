"""How a flag is declared: its default, topic, help, and what it affects."""

from dataclasses import field
from typing import Any, Literal

Auto = Literal["auto"]
Affects = Literal["work", "answers", "speed", "nothing"]  # what else than the report may change with a flag
MODEL, ENGINE = "Model", "Engine and GPUs"
BENCHMARK, DATA, RATE, ACCURACY, OUTPUT = "Benchmark", "Data", "Load", "Accuracy", "Results"
SERVER = "A running server"
PANELS = (BENCHMARK, RATE, MODEL, SERVER, ENGINE, DATA, ACCURACY, OUTPUT)  # in the order of the help

RENAMED = {"version": "round"}  # older names of settings, which are still taken


def setting(key: str) -> str:
    """The setting that a key of a file names, written with '-' or '_', or by an older name."""
    name = key.replace("-", "_")
    return RENAMED.get(name, name)


def flag(default: Any, panel: str, affects: Affects, text: str, metavar: str = "") -> Any:
    """A setting that is a command-line flag, a key of `--config` files and a field of `config.json` at once.

    `work` is what is asked of the engine; speeds at other work are not compared. A flag that affects answers may affect
    speed, too. What two runs must share to be compared, or for one's rate to serve the other, follows from this.
    """
    return field(default=default, metadata={"panel": panel, "affects": affects, "help": text, "metavar": metavar})
