"""Finished runs -> the entries of a submission: one for each benchmark and scenario."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.common.errors import UsageError
from harness.common.files import parse_as, read
from harness.config import mlperf
from harness.config.comparability import differences
from harness.config.run import RunConfig
from harness.evaluation import compliance
from harness.loadgen import log as loadgen_log
from harness.results.verdicts import SCORES_FILE, Compliance, ScoresFile
from harness.runs.folder import FOLDER, Test, facts_of, status_of
from harness.runs.records import RunFacts

BENCHMARK = {"datacenter": "llama3.1-8b", "edge": "llama3.1-8b-edge"}
SCENARIO = {name: rules.loadgen for name, rules in mlperf.SCENARIO.items()} | {"interactive": "Interactive"}

MODE: dict[Test, str] = {"accuracy": "AccuracyOnly", "performance": "PerformanceOnly", "test06": "PerformanceOnly"}

# What a test leaves where it finished.
RESULT_FILES: dict[Test, str] = {
    "accuracy": SCORES_FILE,
    "performance": loadgen_log.DETAIL,
    "test06": compliance.RESULT,
}

# What two runs of an entry may differ in: LoadGen's settings, of which an accuracy test needs none; and of their speed
# the refusals tell.
LOADGEN_FLAGS = ("server_target_qps", "offline_expected_qps", "min_duration")
IGNORED = (*LOADGEN_FLAGS, "python", "variables", "busyness", "validity", "rate")


@dataclass(frozen=True)
class SubmittedRun:
    """A finished run's folder, and its config.json."""

    path: Path
    facts: RunFacts = field(repr=False)

    @property
    def config(self) -> RunConfig:
        return self.facts.plan.config

    def folder(self, test: Test) -> Path:
        return self.path / FOLDER[test]

    def has_test(self, test: Test) -> bool:
        """Whether the test finished."""
        return (self.folder(test) / RESULT_FILES[test]).exists()

    def log(self, test: Test) -> loadgen_log.TestResult:
        """What LoadGen's log says of the test. Raises LogError."""
        return loadgen_log.read(self.folder(test), self.config.scenario_rules.loadgen, MODE[test])

    @property
    def scores(self) -> ScoresFile:
        return read(self.folder("accuracy") / RESULT_FILES["accuracy"], ScoresFile)

    @property
    def test06(self) -> tuple[Compliance, int]:
        """What came of TEST06, and the id of the end-of-text token that it was judged with."""
        path = self.folder("test06") / RESULT_FILES["test06"]
        outcome = read(path, Compliance)
        return outcome, parse_as(path, outcome.facts.get("eos"), int)


@dataclass(frozen=True)
class Entry:
    """One result of a submission: an accuracy and a performance test, often of one run, and TEST06 where it was run."""

    accuracy: SubmittedRun
    performance: SubmittedRun
    test06: SubmittedRun | None

    @property
    def config(self) -> RunConfig:
        return self.performance.config

    @property
    def benchmark(self) -> str:
        return BENCHMARK[self.config.category]

    @property
    def scenario(self) -> str:
        return SCENARIO[self.config.scenario]

    @property
    def runs(self) -> list[SubmittedRun]:
        runs = [self.accuracy, self.performance, *([self.test06] if self.test06 else [])]
        return [run for n, run in enumerate(runs) if run not in runs[:n]]


def read_run(path: Path) -> SubmittedRun:
    """Raises UsageError for a folder that holds no finished run, LogError for logs that are not its own."""
    run = SubmittedRun(path, facts_of(path))
    status = status_of(path)
    if status is None or status.status != "complete":
        raise UsageError(
            f"{path}: this run is {status.status if status else 'unfinished'}; only complete ones can be submitted."
        )
    for test in MODE:
        if run.has_test(test):
            run.log(test)
    return run


def collect(paths: Sequence[Path]) -> list[Entry]:
    """The entries that the runs make up, in the order given. Raises UsageError where one is not whole.

    An entry's accuracy and performance test may come from two runs of the same settings.
    """
    groups: dict[tuple[str, str], list[SubmittedRun]] = {}
    for run in map(read_run, paths):
        groups.setdefault((run.config.category, run.config.scenario), []).append(run)
    entries = [join(runs, f"{category} {scenario}") for (category, scenario), runs in groups.items()]
    versions = sorted({entry.config.round for entry in entries})
    if len(versions) > 1:
        raise UsageError(f"these runs are of MLPerf v{' and v'.join(versions)}; a submission is of one round.")
    return entries


def join(runs: Sequence[SubmittedRun], label: str) -> Entry:
    """One entry out of the runs of its scenario."""
    names = " and ".join(str(run.path) for run in runs)
    found: dict[Test, list[SubmittedRun]] = {
        test: [run for run in runs if run.has_test(test)] for test in ("accuracy", "performance", "test06")
    }
    for test, having in found.items():
        if not having and test != "test06":
            raise UsageError(f"{label} has no {test} test ({names}): add a run that has one.")
        if len(having) > 1:
            raise UsageError(f"{label}: {' and '.join(str(run.path) for run in having)} both have {test}: give one.")
    for run in runs[1:]:
        if unlike := differences(runs[0].facts.comparable, run.facts.comparable, IGNORED):
            which = " and ".join(each.name for each in unlike)
            raise UsageError(f"{label}: {names} differ in {which}; an entry is of one system, with the same settings.")
    return Entry(found["accuracy"][0], found["performance"][0], next(iter(found["test06"]), None))
