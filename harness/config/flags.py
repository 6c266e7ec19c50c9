"""How a flag is declared: its default, topic, help, what it affects, and the largest number it takes."""

from dataclasses import field
from typing import Any, Literal

from harness.common.coerce import as_flag, require

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
    "client_processes": 1024,
    "max_in_flight": 50_000,  # a connection each, and a client's ports end at about 60,000
}

RENAMED = {"version": "round"}  # older names of settings, which are still taken


def setting(key: str) -> str:
    """The setting that a key of a file names, written with '-' or '_', or by an older name."""
    name = key.replace("-", "_")
    return RENAMED.get(name, name)


def flag(default: Any, panel: str, affects: Affects, text: str, metavar: str = "") -> Any:
    """A setting that is a command-line flag, a key of `--config` files and a field of `config.json` at once.

    `work` is the work of the engine; speeds at other work are not compared. A flag that affects answers may affect
    speed, too. What two runs must share to be compared, or for one's rate to serve the other, follows from this.
    """
    return field(default=default, metadata={"panel": panel, "affects": affects, "help": text, "metavar": metavar})


def check_range(name: str, value: object) -> None:
    """Raises UsageError unless the numbers of a setting, if it is any, are above 0 and within its maximum."""
    numbers = value if isinstance(value, tuple) else (value,) if isinstance(value, int | float) else ()
    in_range = value in (None, "auto", "max") or (bool(numbers) and all(0 < n <= MAXIMA[name] for n in numbers))
    require(in_range, as_flag(name), f"a number above 0, at most {MAXIMA[name]:,}")
