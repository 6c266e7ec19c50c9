"""Finished runs -> the entries of a submission: one for each benchmark and scenario."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import util_logs
from harness import rules
from harness.errors import UsageError
from harness.results import FOLDER, Test, facts_of, status_of

BENCHMARK = {"datacenter": "llama3.1-8b", "edge": "llama3.1-8b-edge"}
SCENARIO = {name: row.loadgen for name, row in rules.SCENARIO.items()} | {"interactive": "Interactive"}

MODE: dict[Test, str] = {"accuracy": "AccuracyOnly", "performance": "PerformanceOnly", "test06": "PerformanceOnly"}

# What the runs of one entry must share.
SHARED = (
    *("version", "model", "load_format", "precision", "quantization", "kv_cache_dtype"),
    *("max_new_tokens", "seed", "engine_arg", "tensor_parallel_size", "data_parallel_size", "max_model_len"),
    *("max_num_seqs", "max_num_batched_tokens", "batch_size", "sort_by_length", "dataset_path"),
)


@dataclass(frozen=True)
class Run:
    """A finished run's folder, and its config.json."""

    path: Path
    facts: dict[str, Any] = field(repr=False)

    @property
    def config(self) -> dict[str, Any]:
        """The flags."""
        return dict(self.facts["plan"]["config"])

    def folder(self, test: Test) -> Path:
        return self.path / FOLDER[test]

    def has(self, test: Test) -> bool:
        """Whether the test was run to its end."""
        if test == "performance":
            return (self.folder(test) / util_logs.DETAIL).exists()
        return (self.folder(test) / ("rouge.json" if test == "accuracy" else "result.json")).exists()


@dataclass(frozen=True)
class Entry:
    """One result of a submission: an accuracy and a performance test, often of one run, and TEST06 where it was run."""

    accuracy: Run
    performance: Run
    test06: Run | None

    @property
    def config(self) -> dict[str, Any]:
        return self.performance.config

    @property
    def category(self) -> str:
        return str(self.config["category"])

    @property
    def version(self) -> str:
        return str(self.config["version"])

    @property
    def benchmark(self) -> str:
        """The official name, as results are filed."""
        return BENCHMARK[self.category]

    @property
    def scenario(self) -> str:
        """The official name, as results are filed."""
        return SCENARIO[self.config["scenario"]]

    @property
    def runs(self) -> list[Run]:
        """The runs it rests on, each once."""
        runs = [self.accuracy, self.performance, *([self.test06] if self.test06 else [])]
        return [run for n, run in enumerate(runs) if run not in runs[:n]]


def read_run(path: Path) -> Run:
    """Raises UsageError for a folder that holds no finished run, LogError for logs that are not its own."""
    facts = facts_of(path).model_dump(mode="json")
    known = status_of(path)
    if known is None or known.status != "complete":
        status = known.status if known else "of unknown status"
        raise UsageError(f"{path}: this run is {status}; only complete ones can be submitted.")
    run = Run(path, facts)
    for test, mode in MODE.items():
        if run.has(test):
            util_logs.read(run.folder(test), rules.SCENARIO[run.config["scenario"]].loadgen, mode)
    return run


def collect(paths: Sequence[Path]) -> list[Entry]:
    """The entries that the runs make up, in the order given. Raises UsageError where one is not whole.

    An entry's accuracy and performance test may come from two runs of the same settings.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in map(read_run, paths):
        groups.setdefault((run.config["category"], run.config["scenario"]), []).append(run)
    entries = [join(runs, f"{category} {scenario}") for (category, scenario), runs in groups.items()]
    versions = sorted({entry.version for entry in entries})
    if len(versions) > 1:
        raise UsageError(f"these runs are of MLPerf v{' and v'.join(versions)}; a submission is of one round.")
    return entries


def join(runs: Sequence[Run], label: str) -> Entry:
    """One entry out of the runs of its scenario."""
    names = " and ".join(str(run.path) for run in runs)
    found: dict[Test, list[Run]] = {
        test: [run for run in runs if run.has(test)] for test in ("accuracy", "performance", "test06")
    }
    for test, having in found.items():
        if not having and test != "test06":
            raise UsageError(f"{label}: no {test} test in {names}; give such a run too.")
        if len(having) > 1:
            raise UsageError(f"{label}: {' and '.join(str(run.path) for run in having)} both have {test}; give one.")
    for key in SHARED:
        if len({repr(run.config[key]) for run in runs}) > 1:
            raise UsageError(f"{label}: {names} differ in {key}; all tests of an entry must be of the same settings.")
    for key in ("gpus", "driver", "cpu", "cores", "packages"):
        if len({repr(run.facts["system"][key]) for run in runs}) > 1:
            raise UsageError(f"{label}: {names} ran with different {key}; all tests of an entry must be of one system.")
    return Entry(found["accuracy"][0], found["performance"][0], next(iter(found["test06"]), None))
