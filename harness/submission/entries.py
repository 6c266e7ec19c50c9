"""Finished runs as the entries of a submission: one for each benchmark and scenario."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.config import comparability, mlperf
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.core.files import parse_as, read
from harness.loadgen import log as loadgen_log
from harness.loadgen import log_entries
from harness.results import test06_verdict
from harness.results.accuracy import SCORES_FILE, ScoresFile
from harness.results.benchmark_run import facts_of
from harness.results.records import RunFacts
from harness.results.test06_verdict import Compliance
from harness.runs.run_folder import TEST_FOLDERS, Test, status_of

# Finished runs -> the entries of a submission: one for each benchmark and scenario.
BENCHMARK_NAMES = {"datacenter": "llama3.1-8b", "edge": "llama3.1-8b-edge"}
SCENARIO_FOLDERS = {name: rules.loadgen for name, rules in mlperf.SCENARIOS.items()} | {"interactive": "Interactive"}
MODE_FOLDERS: dict[Test, str] = {
    "accuracy": "AccuracyOnly",
    "performance": "PerformanceOnly",
    "test06": "PerformanceOnly",
}
# Files that a finished test leaves.
RESULT_FILES: dict[Test, str] = {
    "accuracy": SCORES_FILE,
    "performance": log_entries.DETAIL,
    "test06": test06_verdict.TEST06_FILE,
}
# Two runs of an entry may differ in these aspects. An accuracy test needs no LoadGen settings, and the refusals judge
# the speed.
LOADGEN_FLAGS = ("server_target_qps", "offline_expected_qps", "min_duration")
IGNORED_IN_ENTRY = (*LOADGEN_FLAGS, "python", "variables", "busyness", "validity", "rate")


class SubmittedRun(NamedTuple):
    """A finished run's folder, and its config.json."""

    path: Path
    facts: RunFacts

    @property
    def config(self) -> RunConfig:
        return self.facts.config

    def folder(self, test: Test) -> Path:
        return self.path / TEST_FOLDERS[test]

    def has_test(self, test: Test) -> bool:
        """Tell whether the test finished."""
        return (self.folder(test) / RESULT_FILES[test]).exists()

    def log(self, test: Test) -> loadgen_log.TestResult:
        """Return the result in LoadGen's log of a test. Raises LogError."""
        return loadgen_log.read(self.folder(test), self.config.scenario_rules.loadgen, MODE_FOLDERS[test])

    @property
    def scores(self) -> ScoresFile:
        return read(self.folder("accuracy") / SCORES_FILE, ScoresFile)

    @property
    def test06(self) -> tuple[Compliance, int]:
        """The verdict of TEST06, and the id of the end-of-text token that it was judged with."""
        path = self.folder("test06") / test06_verdict.TEST06_FILE
        outcome = read(path, Compliance)
        return outcome, parse_as(path, outcome.facts.get("eos"), int)


class Entry(NamedTuple):
    """One result of a submission: an accuracy and a performance test, often of one run, and TEST06 where it was run."""

    accuracy: SubmittedRun
    performance: SubmittedRun
    test06: SubmittedRun | None

    @property
    def config(self) -> RunConfig:
        return self.performance.config

    @property
    def benchmark(self) -> str:
        return BENCHMARK_NAMES[self.config.category]

    @property
    def scenario(self) -> str:
        return SCENARIO_FOLDERS[self.config.scenario]

    @property
    def runs(self) -> list[SubmittedRun]:
        runs = (self.accuracy, self.performance, self.test06)
        return list({run.path: run for run in runs if run}.values())


def read_run(path: Path) -> SubmittedRun:
    """Read a finished run. Raises UsageError if the folder holds none, or LogError if its logs are of another run."""
    run = SubmittedRun(path, facts_of(path))
    status = status_of(path)
    if not status or status.status != "complete":
        raise UsageError(
            f"{path}: this run is {status.status if status else 'unfinished'}; only complete ones can be submitted."
        )
    for test in MODE_FOLDERS:
        if run.has_test(test):
            run.log(test)
    return run


def collect(paths: Sequence[Path]) -> list[Entry]:
    """Return the entries that the runs make up, in the order given. Raises UsageError if an entry is incomplete.

    The accuracy test and the performance test of an entry may come from two runs with the same settings.
    """
    groups = dict[str, list[SubmittedRun]]()
    for run in map(read_run, paths):
        groups.setdefault(f"{run.config.category} {run.config.scenario}", []).append(run)
    entries = [join_runs(runs, label) for label, runs in groups.items()]
    versions = sorted({entry.config.round for entry in entries})
    if len(versions) > 1:
        raise UsageError(f"these runs are of MLPerf v{' and v'.join(versions)}; a submission is of one round.")
    return entries


def join_runs(runs: Sequence[SubmittedRun], label: str) -> Entry:
    """Return one entry from the runs of its scenario.

    Raises UsageError if a test is missing or doubled, or the runs differ.
    """
    names = " and ".join(str(run.path) for run in runs)
    runs_by_test = dict[Test, list[SubmittedRun]]()
    for test in MODE_FOLDERS:
        having = runs_by_test[test] = [run for run in runs if run.has_test(test)]
        if not having and test != "test06":
            raise UsageError(f"{label} has no {test} test ({names}): add a run that has one.")
        if len(having) > 1:
            paths = " and ".join(str(run.path) for run in having)
            raise UsageError(f"{label}: {paths} both have {test}: give one.")
    for run in runs[1:]:
        if unlike := comparability.differences(runs[0].facts.comparable, run.facts.comparable, IGNORED_IN_ENTRY):
            aspects = " and ".join(difference.name for difference in unlike)
            raise UsageError(
                f"{label}: {names} differ in {aspects}; an entry is of one system, with the same settings."
            )
    return Entry(runs_by_test["accuracy"][0], runs_by_test["performance"][0], next(iter(runs_by_test["test06"]), None))
