"""Finished runs -> the entries of a submission: one for each benchmark and scenario."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import rules
from harness.errors import UsageError
from harness.results import FOLDER, Test, read_json

BENCHMARK = {"datacenter": "llama3.1-8b", "edge": "llama3.1-8b-edge"}
SCENARIO = rules.LOADGEN_SCENARIO | {"interactive": "Interactive"}

# What an accuracy run and a performance run must share to be one entry.
SHARED = ("model", "load_format", "precision", "quantization", "kv_cache_dtype", "max_new_tokens", "seed")


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
        result = {"accuracy": "rouge.json", "performance": "mlperf_log_detail.txt"}.get(test, "result.json")
        return (self.folder(test) / result).exists()


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
        return [self.accuracy] if self.accuracy == self.performance else [self.accuracy, self.performance]


def read_run(path: Path) -> Run:
    """Raises UsageError for a folder that holds no finished run."""
    facts = read_json(path / "config.json")
    if not facts:
        raise UsageError(f"{path}: no config.json in it; not a run folder.")
    status = read_json(path / "status.json").get("status")
    if status != "complete":
        raise UsageError(f"{path}: this run is {status or 'of unknown status'}; only complete ones can be submitted.")
    return Run(path, facts)


def collect(paths: Sequence[Path]) -> list[Entry]:
    """The entries that the runs make up, in the order given. Raises UsageError where one is not whole.

    An entry's accuracy and performance test may come from two runs of the same settings.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in map(read_run, paths):
        groups.setdefault((run.config["category"], run.config["scenario"]), []).append(run)
    entries = [
        Entry(only(runs, "accuracy", label), only(runs, "performance", label), first(runs, "test06"))
        for (category, scenario), runs in groups.items()
        for label in [f"{category} {scenario}"]
    ]
    for entry in entries:
        for key in (*SHARED, "version"):
            if entry.accuracy.config[key] != entry.performance.config[key]:
                raise UsageError(
                    f"{entry.accuracy.path} and {entry.performance.path} differ in {key}: accuracy and performance "
                    "must be of the same settings."
                )
    versions = sorted({entry.version for entry in entries})
    if len(versions) > 1:
        raise UsageError(f"these runs are of MLPerf v{' and v'.join(versions)}; a submission is of one round.")
    return entries


def only(runs: Sequence[Run], test: Test, label: str) -> Run:
    found = [run for run in runs if run.has(test)]
    if not found:
        raise UsageError(f"{label}: no {test} test in {', '.join(str(run.path) for run in runs)}; give such a run too.")
    if len(found) > 1:
        raise UsageError(f"{label}: {' and '.join(str(run.path) for run in found)} both have {test}; give one.")
    return found[0]


def first(runs: Sequence[Run], test: Test) -> Run | None:
    return next((run for run in runs if run.has(test)), None)
