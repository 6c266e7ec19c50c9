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
# Two runs of an entry may differ in these: an accuracy test needs no load, Python and the environment are those of the
# harness, and the speed is judged later, in refusals.py.
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
        """Return the folder of a test."""
        return self.path / TEST_FOLDERS[test]

    def has_test(self, test: Test) -> bool:
        """Tell whether the test finished."""
        return (self.folder(test) / RESULT_FILES[test]).exists()

    def log(self, test: Test) -> loadgen_log.TestResult:
        """Return the result in LoadGen's log of a test. Raises LogError if the log is damaged or of another test."""
        return loadgen_log.read(self.folder(test), self.config.scenario_rules.loadgen, MODE_FOLDERS[test])

    @property
    def scores(self) -> ScoresFile:
        """The content of rouge.json."""
        return read(self.folder("accuracy") / SCORES_FILE, ScoresFile)

    @property
    def recorded_test06(self) -> tuple[Compliance, int]:
        """The recorded verdict of TEST06, and the id of the end-of-text token that it was judged with.

        Raises UsageError if the file is missing or damaged.
        """
        path = self.folder("test06") / test06_verdict.TEST06_FILE
        outcome = read(path, Compliance)
        return outcome, parse_as(path, outcome.facts.get("eos"), int)


class Entry(NamedTuple):
    """One result of a submission: an accuracy and a performance test, often of one run, and TEST06 if it was run."""

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
    def label(self) -> str:
        return f"{self.benchmark} {self.scenario}"

    @property
    def runs(self) -> list[SubmittedRun]:
        """The runs of the entry, each once: often all its tests are of the same run."""
        runs = {self.accuracy.path: self.accuracy, self.performance.path: self.performance}
        if self.test06:
            runs[self.test06.path] = self.test06
        return list(runs.values())


def read_run(path: Path) -> SubmittedRun:
    """Return the finished run in a folder, once the logs of all its tests could be read.

    Raises UsageError if the folder has no run, or one that is not complete, and LogError if a log is damaged or of
    another test.
    """
    run = SubmittedRun(path, facts_of(path))
    run_status = status_of(path)
    status = run_status.status if run_status else "unfinished"
    if status != "complete":
        raise UsageError(f"{path}: this run is {status}; only complete ones can be submitted.")
    for test in MODE_FOLDERS:
        if run.has_test(test):
            run.log(test)  # raises LogError if the log cannot be used
    return run


def entries_of_runs(paths: Sequence[Path]) -> list[Entry]:
    """Return the entries that the runs in these folders make up: one for each pair of category and scenario.

    Raises UsageError if a run is not finished, if an entry is incomplete, or for several rounds of MLPerf.
    """
    groups = dict[str, list[SubmittedRun]]()
    for path in paths:
        run = read_run(path)
        label = f"{run.config.category} {run.config.scenario}"
        groups.setdefault(label, []).append(run)
    entries = [join_runs(runs, label) for label, runs in groups.items()]
    rounds = sorted({entry.config.round for entry in entries})
    if len(rounds) > 1:
        raise UsageError(f"these runs are of MLPerf v{' and v'.join(rounds)}; a submission is of one round.")
    return entries


def join_runs(runs: Sequence[SubmittedRun], label: str) -> Entry:
    """Return one entry from the runs of its scenario, each of which has at least one of the entry's tests.

    Raises UsageError if a test other than TEST06 is missing, or if the runs do not make up one entry.
    """
    run_by_test = dict[Test, SubmittedRun]()
    for test in MODE_FOLDERS:
        runs_of_test = [run for run in runs if run.has_test(test)]
        if not runs_of_test and test != "test06":
            raise UsageError(f"{label} has no {test} test ({path_text(runs)}): add a run that has one.")
        if len(runs_of_test) > 1:
            raise UsageError(f"{label}: {path_text(runs_of_test)} each have {test}: give one of them.")
        if runs_of_test:
            run_by_test[test] = runs_of_test[0]
    first_run, *other_runs = runs
    for run in other_runs:
        differences = comparability.differences(first_run.facts.comparable, run.facts.comparable, IGNORED_IN_ENTRY)
        if differences:
            aspects = " and ".join(difference.name for difference in differences)
            raise UsageError(
                f"{label}: {path_text(runs)} differ in {aspects}; an entry is of one system, with the same settings."
            )
    return Entry(run_by_test["accuracy"], run_by_test["performance"], run_by_test.get("test06"))


def path_text(runs: Sequence[SubmittedRun]) -> str:
    return " and ".join(str(run.path) for run in runs)
