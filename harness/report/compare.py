"""Finished runs to be compared: which, their settings and results, and why two speeds may not be compared."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.comparability import CONFIGURED, GATE_FAILED, Comparable
from harness.core import files, reading
from harness.core.errors import UsageError
from harness.core.formatting import gpu_names
from harness.report.answer_comparison import AnswerPair, answers
from harness.results.benchmark_run import facts_of
from harness.results.records import RunFacts
from harness.results.summary import Summary
from harness.runs.run_folder import TEST_FOLDERS, readable_status


class ComparedRun(NamedTuple):
    folder: Path
    facts: RunFacts
    summary: Summary

    @property
    def comparable(self) -> Comparable:
        """All that another run may differ in, its performance test included."""
        found, system = self.summary.result, self.summary.system
        has_rate = found is not None and self.summary.scenario.pattern.is_rated
        flaws = [
            *[GATE_FAILED] * (self.summary.gate == "FAIL"),
            *(found.flaws if found else []),
            *[CONFIGURED] * (has_rate and self.facts.config.server_target_qps != "max"),
        ]
        return self.facts.comparable._replace(
            machine={"gpus": system.gpus} if system.gpus else {"cpu": system.cpu, "cores": system.cores},
            busyness=dict.fromkeys(self.summary.background_load, True),
            validity=dict.fromkeys(flaws, True),
            rate={"target_qps": found.load} if found and has_rate else {},
        )

    @property
    def is_measured(self) -> bool:
        test = self.summary.performance
        return test is not None and test.tokens_per_sec is not None

    @property
    def name(self) -> str:
        """The label it was given, else its folder's name."""
        return self.summary.meta.label or self.folder.name

    @property
    def flags(self) -> dict[str, str]:
        """The settings that a result may depend on, and the price, as words by name."""
        plan = self.facts.plan
        settings = plan.work | plan.settings | {"price_per_hour": plan.config.price_per_hour}
        return {name: words(value) for name, value in settings.items()}

    @property
    def versions(self) -> dict[str, str]:
        """The software and the environment it ran with, as words by name."""
        return self.facts.system.packages | self.facts.system.variables

    def paired_answers(self, other: "ComparedRun") -> AnswerPair | None:
        """Another's answers as A, and its own as B; None where either has none, or the samples were not the same."""
        mine, theirs = self.summary.accuracy, other.summary.accuracy
        if mine is None or theirs is None:
            return None
        name, is_alike = TEST_FOLDERS["accuracy"], mine.splitter == theirs.splitter
        return answers(other.folder / name, self.folder / name, is_alike)

    @property
    def gpus(self) -> str:
        return gpu_names(self.summary.gpu_models)

    @property
    def busy(self) -> str:
        """What other programs took of the machine during its performance test."""
        return "; ".join(self.summary.background_load)


Runs = Sequence[ComparedRun]


def cautions(run: ComparedRun, name: str) -> Iterator[str]:
    """What other programs took of its machine, and where that is not known; what else its figures suffer from."""
    if run.busy:
        yield f"the machine was busy in {name}: {run.busy}"
    elif (test := run.summary.performance) and test.others_cpu_cores is None:
        yield f"other programs were not measured in {name}"
    if (found := run.summary.result) and found.flaws:
        yield f"{name}: {'; '.join(found.flaws)}"


def words(value: Any) -> str:
    match value:
        case None:
            return "unset"
        case list() | tuple():
            return " ".join(map(str, value)) or "none"
    return reading.as_text(value)


def load(folders: Sequence[Path]) -> tuple[list[ComparedRun], list[str]]:
    """The finished runs among the folders, each once, by name; and why others were left out, so that `*` will do.

    Raises UsageError where fewer than two are left.
    """
    runs, reasons = [], []
    for folder in dict.fromkeys(path.resolve() for path in folders if not path.is_file()):
        try:
            runs.append(read(folder))
        except UsageError as error:
            reasons.append(str(error))
    if len(runs) < 2:
        said = [reason.removesuffix(".") for reason in reasons]
        raise UsageError("; ".join([*said, f"--compare takes two runs or more, not {len(runs)}."]))
    return runs, reasons


def read(folder: Path) -> ComparedRun:
    """A finished run. Raises UsageError for any other folder."""
    facts, path = facts_of(folder), folder / "summary.json"
    if not path.exists():
        raise UsageError(f"{folder}: no summary.json; only finished runs are compared.")
    return ComparedRun(folder, facts, files.read(path, Summary))


def last_runs(results_dir: Path, count: int) -> list[Path]:
    """The folders of the last runs that are finished, oldest first. Raises UsageError for a count below 2."""
    if count < 2:
        raise UsageError(f"--last {count}: a comparison needs at least two runs.")
    if not results_dir.is_dir():
        raise UsageError(f"{results_dir}: no such folder; --results-dir names the one with the runs.")
    folders = sorted(path.parent for path in results_dir.glob("2*/summary.json"))
    found = [path for path in folders if (status := readable_status(path)) and status.status == "complete"]
    if len(found) < 2:
        raise UsageError(f"--last {count}: {results_dir} holds {len(found)} finished runs; a comparison takes two.")
    return found[-count:]
