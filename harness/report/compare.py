"""Finished runs to be compared: which, their settings and results, and why two speeds may not be compared."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

from harness.config.comparability import CONFIGURED_RATE, GATE_FAILED, Comparable
from harness.core import files, reading
from harness.core.errors import UsageError
from harness.core.formatting import gpu_names, plural
from harness.loadgen import log_entries
from harness.report.answer_comparison import AnswerPair, compare_answers
from harness.results.benchmark_run import facts_of
from harness.results.records import RunFacts
from harness.results.summary import Summary
from harness.runs.run_folder import TEST_FOLDERS, readable_status
from harness.runs.run_order import start_of


class ComparedRun(NamedTuple):
    """A finished run that is compared with others."""

    folder: Path
    facts: RunFacts
    summary: Summary

    @property
    def comparable(self) -> Comparable:
        """What another run must share to be compared with this one, and what keeps it from being compared at all.

        To the settings, the tests add the rate, the load of other programs and the flaws of the figures.
        """
        result, system = self.summary.result, self.summary.system
        machine: dict[str, object] = {"gpus": system.gpus}
        if not system.gpus:  # The CPU computes, so the CPU must be the same.
            machine = {"cpu": system.cpu, "cores": system.cores}
        flaws, rate = list[str](), dict[str, object]()
        if result:
            flaws += result.flaws
        if self.summary.gate == "FAIL":
            flaws.append(GATE_FAILED)
        if result and self.summary.scenario.pattern.is_rated:
            rate["target_qps"] = result.load
            is_rate_of_user = self.facts.config.server_target_qps != "max"
            if is_rate_of_user:  # Such a rate sets the speed, which then says nothing about the server.
                flaws.append(CONFIGURED_RATE)
        # An aspect has values by name. A load or a flaw is there or not, so its value is True.
        return self.facts.comparable._replace(
            machine=machine,
            busyness=dict.fromkeys(self.summary.background_load, True),
            validity=dict.fromkeys(flaws, True),
            rate=rate,
        )

    @property
    def identity(self) -> tuple[str, ...]:
        """The facts that only a run and its copies have: its begin, what was asked of the engine, its logs' digests.

        A summary of an older version has no digests. The run's name and command then take their place.
        """
        meta = self.summary.meta
        work = [f"{name}={value}" for name, value in self.facts.plan.work.items()]
        digests = sorted(self.summary.digests.items())
        log_digests = [digest for name, digest in digests if name.endswith(log_entries.DETAIL)]
        return (meta.started, *work, *(log_digests or [meta.run, meta.command]))

    @property
    def is_measured(self) -> bool:
        """Tell whether the run has a speed: a performance test with a known number of output tokens/s."""
        test = self.summary.result
        return test is not None and test.tokens_per_sec is not None

    @property
    def name(self) -> str:
        """The label of the run, or else its folder's name."""
        return self.summary.meta.label or self.folder.name

    @property
    def setting_texts(self) -> dict[str, str]:
        """The settings that a result may depend on, and the price per hour, as texts by name."""
        plan = self.facts.plan
        settings = plan.work | plan.settings | {"price_per_hour": plan.config.price_per_hour}
        return {name: value_text(value) for name, value in settings.items()}

    @property
    def versions(self) -> dict[str, str]:
        """The software and the environment variables of the run, as texts by name."""
        return self.facts.system.packages | self.facts.system.variables

    def paired_answers(self, reference: "ComparedRun") -> AnswerPair | None:
        """Compare the answers of the reference (A) with those of this run (B), sample by sample.

        None if a run has no accuracy test, if the samples differ, or if the answers of a run were not kept.
        """
        score, reference_score = self.summary.accuracy, reference.summary.accuracy
        if score is None or reference_score is None:
            return None
        logs = TEST_FOLDERS["accuracy"]
        has_same_splitter = score.splitter == reference_score.splitter
        return compare_answers(reference.folder / logs, self.folder / logs, has_same_splitter)

    @property
    def gpus(self) -> str:
        return gpu_names(self.summary.gpu_models)

    @property
    def busy(self) -> str:
        """The load of other programs during the run's performance test, in words; empty if there was none."""
        return "; ".join(self.summary.background_load)

    @property
    def others_cpu_share(self) -> float:
        """The share of this machine's cores that other programs took during the performance test.

        0 where the summary has none: if it is not known, or if a GPU or a server computed the answers.
        """
        return self.summary.others_cpu_share or 0.0

    @property
    def has_unknown_load(self) -> bool:
        """Tell whether the run has a performance test during which the load of other programs was not measured."""
        test = self.summary.result
        if test is None or self.summary.background_load:  # no test, or a load that was measured
            return False
        return test.details.machine.others_cpu_cores is None

    @property
    def flaws(self) -> str:
        """The reasons why the figures of the run's performance test may not be compared, in words.

        Empty if they may.
        """
        test = self.summary.result
        return "; ".join(test.flaws) if test else ""


Runs = Sequence[ComparedRun]


class LetteredRun(NamedTuple):
    """A run with its letter in the comparison."""

    letter: str
    run: ComparedRun


def run_letters(count: int) -> list[str]:
    """Return the names of the runs of a comparison: A to Z, then numbers from 27 on."""
    return [*ascii_uppercase, *map(str, range(len(ascii_uppercase) + 1, count + 1))][:count]


def run_number(letter: str) -> int:
    """Return the number of a run in its comparison, counted from 1. `letter` is the run's name by `run_letters`."""
    return int(letter) if letter.isdigit() else ascii_uppercase.index(letter) + 1


def lettered(runs: Runs) -> list[LetteredRun]:
    """Return the runs of a comparison with their letters."""
    return [LetteredRun(letter, run) for letter, run in zip(run_letters(len(runs)), runs, strict=True)]


def is_load_known(runs: Runs) -> bool:
    """Tell whether each run on a busy machine has recorded the share of the cores that other programs took."""
    return all(run.others_cpu_share for run in busy_runs(runs))


def busy_runs(runs: Runs) -> list[ComparedRun]:
    """Return the runs during which other programs used the machine."""
    return [run for run in runs if run.busy]


FILES_BESIDE_RUNS = ("index.md", "history.jsonl")  # files of a results folder, which `results/*` names as well


def cautions(run: ComparedRun, name: str) -> Iterator[str]:
    """Yield the load of other programs during a run or that it was not measured, and the flaws of the run's figures.

    `name` is what the texts call the run. Nothing is yielded for a run without such doubts.
    """
    if run.busy:
        yield f"the machine was busy in {name}: {run.busy}"
    if run.has_unknown_load:
        yield f"other programs were not measured in {name}"
    if run.flaws:
        yield f"{name}: {run.flaws}"


def value_text(value: object) -> str:
    """Return the value of a setting as a table shows it: "unset" for None, a list as
    words, "none" for an empty list.
    """
    match value:
        case None:
            return "unset"
        case list() | tuple():
            return " ".join(map(str, value)) or "none"
    return reading.setting_text(value)


def load_runs(folders: Sequence[Path]) -> tuple[list[ComparedRun], list[str]]:
    """Return each finished run among the folders once, and a sentence for each path that was left out.

    Raises UsageError if fewer than two runs are left. It is no error if only one is left because the others are copies
    of it: the sentences say so.
    """
    runs = []
    reasons = []
    for folder in folders:
        if folder.is_file():
            if folder.name not in FILES_BESIDE_RUNS:  # A user may give `results/*`.
                reasons.append(f"{folder}: a file; give the folder of a run.")
            continue
        try:
            runs.append(read_run(folder.resolve()))
        except UsageError as error:
            reasons.append(str(error))
    runs, copy_reasons = without_copies(runs)
    reasons += copy_reasons
    is_unexplained_single = len(runs) == 1 and not copy_reasons
    if not runs or is_unexplained_single:
        if len(folders) < 2:
            reasons.append(f"--compare takes two runs or more, not {len(folders)}.")
        raise UsageError("; ".join(reason.removesuffix(".") for reason in reasons) + ".")
    return runs, reasons


def without_copies(runs: Sequence[ComparedRun]) -> tuple[list[ComparedRun], list[str]]:
    """Return each run once, and a sentence for each copy that was left out.

    The original is the folder that still has the name of its run or, if none has, the first one.
    """
    originals: dict[tuple[str, ...], ComparedRun] = {}
    for run in runs:
        is_original = run.folder.name == run.summary.meta.run
        if run.identity not in originals or is_original:
            originals[run.identity] = run
    reasons = []
    for run in runs:
        original = originals[run.identity]
        if original.folder != run.folder:
            reasons.append(f"{run.folder}: a copy of {original.folder}, so it is not counted again.")
    distinct_identities = dict.fromkeys(run.identity for run in runs)
    return [originals[identity] for identity in distinct_identities], reasons


def read_run(folder: Path) -> ComparedRun:
    """Return the finished run in a folder.

    Raises UsageError for a folder of no run, and for a run without summary.json.
    """
    facts, path = facts_of(folder), folder / "summary.json"
    if not path.exists():
        raise UsageError(f"{folder}: no summary.json; only finished runs are compared.")
    return ComparedRun(folder, facts, files.read(path, Summary))


def last_runs(results_dir: Path, count: int) -> list[Path]:
    """Return the folders of the last `count` finished runs, oldest first. Copies and unreadable runs are left out.

    Raises UsageError for a count below 2, a folder that does not exist, and fewer than two runs.
    """
    if count < 2:
        raise UsageError(f"--last {count}: a comparison needs at least two runs.")
    if not results_dir.is_dir():
        raise UsageError(f"{results_dir}: no such folder; --results-dir names the one with the runs.")
    finished = []
    for path in results_dir.glob("*/summary.json"):
        status = readable_status(path.parent)
        is_link = path.parent.is_symlink()  # such as results/latest, which points to one of the runs
        if status and status.status == "complete" and not is_link:
            finished.append(path.parent)
    readable = []
    for folder in sorted(finished, key=start_of):
        with suppress(UsageError):
            readable.append(read_run(folder))
    runs, _reasons = without_copies(readable)
    if len(runs) < 2:
        raise UsageError(
            f"--last {count}: {results_dir} holds {plural(len(runs), 'finished run')}; a comparison takes two."
        )
    return [run.folder for run in runs[-count:]]
