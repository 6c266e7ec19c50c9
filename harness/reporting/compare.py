"""Finished runs side by side: the settings that differ, speed, latency, accuracy; of two, also where answers part.

Two runs with an accuracy test on the same samples are compared answer by answer; any others by their numbers."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from harness.common import files
from harness.common.coerce import as_flag
from harness.common.errors import UsageError
from harness.common.files import write_text
from harness.common.markdown import number, render
from harness.common.schema import gpu_names
from harness.config import rules
from harness.config.flags import OUTPUT
from harness.config.run import RunConfig
from harness.evaluation.accuracy import intervals, read_log
from harness.results import metrics
from harness.results.summary import Summary
from harness.runs import folder as results
from harness.runs.folder import FOLDER, facts_of
from harness.runs.records import RunFacts

SHOWN = 20
SAMPLES = "samples.csv"
# Settings that say nothing of the work: where results go, and what `auto` was or came to by measuring.
ASIDE = {item.name for item in fields(RunConfig) if item.metadata["panel"] == OUTPUT} - {"price_per_hour"} | {
    *("total_sample_count", "min_duration", "offline_expected_qps", "target_qps", "expected_latency_ms"),
    *("quantization", "kv_cache_dtype", "running", "model", "category", "scenario", "asked"),
}
Value = str | float | None


@dataclass(frozen=True)
class Compared:
    """A finished run."""

    folder: Path
    facts: RunFacts
    summary: Summary

    @property
    def accuracy(self) -> Path:
        return self.folder / FOLDER["accuracy"]

    @property
    def speed(self) -> "Speed | None":
        """What its performance test came to, if it had one."""
        test, score = self.summary.run.performance, self.summary.run.accuracy
        if test is None or test.tokens_per_sec is None:
            return None
        searched = self.facts.plan.config.server_target_qps == "max"
        return Speed(
            tokens_per_sec=test.tokens_per_sec,
            valid=test.valid,
            passed=score is None or score.verdict != "FAIL",
            fixed_rate=self.summary.scenario.fixed_rate and not searched,
            work=self.facts.plan.work,
            machine=self.summary.system.gpus or [f"{self.summary.system.cpu}, {self.summary.system.cores} cores"],
            others=test.others,
        )

    @property
    def settings(self) -> dict[str, str]:
        """All that was set, and what it ran on, as words by name."""
        asked = {name: value for name, value in self.facts.settings.items() if name not in ASIDE}
        system = self.facts.system
        asked["max_new_tokens"] = self.facts.plan.max_new_tokens
        found = asked | asdict(self.facts.plan.running) | system.packages | system.variables
        return {name: words(value) for name, value in found.items()}

    @property
    def verdict(self) -> str | None:
        score = self.summary.run.accuracy
        return score.verdict if score else None

    @property
    def validity(self) -> str | None:
        test = self.summary.run.performance
        return None if test is None else "VALID" if test.valid else "INVALID"

    @property
    def busy(self) -> str | None:
        """What other programs took of the machine during its performance test; None where there were none."""
        test = self.summary.run.performance
        return "; ".join(test.others) or None if test else None


Tell = Callable[[Compared], Value]
ABOUT: tuple[tuple[str, str, Tell], ...] = (
    ("run", "run", lambda run: run.folder.name),
    ("model", "model", lambda run: run.summary.meta.model),
    ("category", "category", lambda run: run.summary.meta.category),
    ("scenario", "scenario", lambda run: run.summary.meta.scenario),
    ("gpus", "GPU", lambda run: gpu_names(run.summary.system.gpus)),
)
VERDICTS: tuple[tuple[str, str, Tell], ...] = (
    ("verdict", "accuracy", lambda run: run.verdict),
    ("valid", "performance", lambda run: run.validity),
    ("others", "other programs", lambda run: run.busy),
    ("ended", "ended early", lambda run: run.summary.meta.ended),
)


@dataclass(frozen=True)
class Column:
    """One property of every run: a value each, in the order of the runs."""

    name: str
    label: str
    values: tuple[Value, ...]
    metric: metrics.Metric | None = None

    def text(self, value: Value) -> str:
        return value if isinstance(value, str) else number(value, 6)


@dataclass(frozen=True)
class Speed:
    """A performance test: output tokens per second, LoadGen's verdict, and what must be alike for a comparison."""

    tokens_per_sec: float
    valid: bool
    passed: bool  # not failed by the accuracy gate
    fixed_rate: bool  # LoadGen sent queries at a configured rate, so the speed says nothing of the engine
    work: Mapping[str, object]  # what was asked, by flag
    machine: list[str]  # its GPUs, or its CPU
    others: list[str] = field(default_factory=list)  # what other programs took of it meanwhile, in words

    def differences(self, other: "Speed") -> str:
        """Why the two cannot be compared; empty where they can."""
        names = {*self.work, *other.work}
        if parts := sorted(as_flag(name) for name in names if self.work.get(name) != other.work.get(name)):
            return f"other work ({', '.join(parts)})"
        if self.machine != other.machine:
            return "other machines"
        if not all(one.valid and one.passed for one in (self, other)):
            return "INVALID, or the accuracy gate failed"
        if busy := [f"{name}: {said}" for name, one in (("A", self), ("B", other)) for said in one.others]:
            return "; ".join(busy)
        return "the speed follows from the configured rate" if self.fixed_rate or other.fixed_rate else ""


@dataclass(frozen=True)
class Difference:
    """A score of run A and run B, and the paired-bootstrap interval of B - A."""

    name: str
    a: float
    b: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Divergence:
    """Where the answers of A and B to one sample part: the token of each there, None where it had ended."""

    index: int
    prompt_tokens: float | None
    position: int
    a: int | None
    b: int | None
    score_a: float | None
    score_b: float | None


@dataclass(frozen=True)
class Pair:
    """The answers of two runs to the same samples."""

    samples: int
    scores: list[Difference]
    same_splitter: bool
    differing: list[Divergence]


def words(value: Any) -> str:
    """A setting as people write it."""
    match value:
        case None:
            return "unset"
        case bool():
            return "on" if value else "off"
        case list() | tuple():
            return " ".join(map(str, value)) or "none"
        case dict():
            return " ".join(f"{key}={part}" for key, part in value.items())
    return str(value)


def load(folders: Sequence[Path]) -> tuple[list[Compared], list[str]]:
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
        raise UsageError("; ".join([*reasons, f"--compare takes two runs or more, not {len(runs)}."]))
    return runs, reasons


def read(folder: Path) -> Compared:
    """A finished run. Raises UsageError for any other folder."""
    facts, path = facts_of(folder), folder / "summary.json"
    if not path.exists():
        raise UsageError(f"{folder}: no summary.json in it; only finished runs are compared.")
    return Compared(folder, facts, files.read(path, Summary))


def last(results_dir: Path, count: int) -> list[Path]:
    """The folders of the last runs that are finished, oldest first. Raises UsageError for a count below 2."""
    if count < 2:
        raise UsageError(f"--last {count}: a comparison takes two runs or more.")
    if not results_dir.is_dir():
        raise UsageError(f"{results_dir}: no such folder; --results-dir names the one with the runs.")
    folders = sorted(path.parent for path in results_dir.glob("2*/summary.json"))
    found = [path for path in folders if (known := results.known_status(path)) and known.status == "complete"]
    if len(found) < 2:
        raise UsageError(
            f"--last {count}: {results_dir} holds {len(found)} finished runs; a comparison takes two or more."
        )
    return found[-count:]


def columns(runs: Sequence[Compared]) -> list[Column]:
    """The properties of the runs; settings only where they differ, metrics only where one has them."""
    settings = [run.settings for run in runs]
    names = dict.fromkeys(name for each in settings for name in each)
    found = [
        *(Column(name, label, tuple(map(tell, runs))) for name, label, tell in ABOUT),
        *(Column(name, name, tuple(each.get(name) for each in settings)) for name in names if differ(name, settings)),
        *(Column(name, label, tuple(map(tell, runs))) for name, label, tell in VERDICTS),
        *(Column(m.name, m.label, tuple(m.of(run.summary) for run in runs), m) for m in metrics.shown("compare")),
    ]
    return [column for column in found if any(value is not None for value in column.values)]


def differ(name: str, settings: Sequence[dict[str, str]]) -> bool:
    return len({each.get(name) for each in settings}) > 1


def write_csv(path: Path, runs: Sequence[Compared]) -> None:
    """The table as CSV: a line a run, numbers in full."""
    table, text = columns(runs), io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table])
    writer.writerows(zip(*(column.values for column in table), strict=True))
    write_text(path, text.getvalue())


def page(runs: Sequence[Compared]) -> str:
    """A Markdown page that puts the runs side by side, and pairs the answers of two to the same samples."""
    pair, differences, both = None, "", False
    if len(runs) == 2:
        a, b = runs
        both = bool(a.summary.run.accuracy and b.summary.run.accuracy)
        pair = answers(a, b) if both else None
        differences = a.speed.differences(b.speed) if a.speed and b.speed else "not both measured"
    return render(
        "compare.md.j2",
        runs=runs,
        columns=columns(runs),
        pair=pair,
        unpaired=both and pair is None,
        differences=differences,
        most=SHOWN,
        ratio=ratio,
    )


def ratio(column: Column) -> str:
    """B / A of a measurement that can be better or worse."""
    a, b = column.values
    compared = column.metric and column.metric.better and column.metric.name not in rules.SCORES
    return f"{b / a:.3f}" if compared and isinstance(a, int | float) and isinstance(b, int | float) and a else ""


def answers(a: Compared, b: Compared) -> Pair | None:
    """What two runs answered to the same samples; None where the samples were not the same."""
    import numpy as np

    tables = [
        files.read_columns(run.accuracy / SAMPLES, ("index", "prompt_tokens", *rules.SAMPLE_SCORES)) for run in (a, b)
    ]
    if tables[0]["prompt_tokens"] != tables[1]["prompt_tokens"]:
        return None
    each = [np.array([table[name] for name in rules.SAMPLE_SCORES], dtype=float).T for table in tables]
    spread = intervals(each[1] - each[0])
    means = [scores.mean(axis=0) for scores in each]
    scores = [
        Difference(
            name, float(means[0][n]), float(means[1][n]), float(means[1][n] - means[0][n]), *map(float, spread[n])
        )
        for n, name in enumerate(rules.SAMPLE_SCORES)
    ]
    splitters = {run.summary.run.accuracy and run.summary.run.accuracy.splitter for run in (a, b)}
    return Pair(len(each[0]), scores, len(splitters) == 1, divergences(a, b, tables))


def divergences(a: Compared, b: Compared, tables: Sequence[dict[str, list[float | None]]]) -> list[Divergence]:
    """The samples that A and B answered differently."""
    count, score = len(tables[0]["prompt_tokens"]), rules.SHORT_SCORES[-1]
    logs = [read_log(run.accuracy / "mlperf_log_accuracy.json", count) for run in (a, b)]
    found = []
    for n, (one, other) in enumerate(zip(*logs, strict=True)):
        if one.tokens == other.tokens:
            continue
        shorter = min(len(one.tokens), len(other.tokens))
        at = next((n for n in range(shorter) if one.tokens[n] != other.tokens[n]), shorter)
        there = [answer.tokens[at] if at < len(answer.tokens) else None for answer in (one, other)]
        prompt, (first, second) = tables[0]["prompt_tokens"][n], (table[score][n] for table in tables)
        found.append(Divergence(one.index, prompt, at, there[0], there[1], first, second))
    return found
