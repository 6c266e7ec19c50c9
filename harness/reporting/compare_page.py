"""Finished runs side by side: the settings that differ, speed, latency, accuracy; of two, also where answers part.

Two runs with an accuracy test on the same samples are compared answer by answer; any others by their numbers."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.common.files import write_text
from harness.common.markdown import Table, number, render, sentence
from harness.common.schema import gpu_names
from harness.config import mlperf
from harness.config.comparability import differences, reason
from harness.reporting import profiles
from harness.reporting.compare import ComparedRun
from harness.results import metrics

SHOWN_ANSWERS = 20  # answers that differ
TELEMETRY = ("requests_running", "requests_waiting", "kv_cache_percent", "prefix_hit_percent", "gpu_power_w")
IGNORED = ("settings", "machine", "software", "rate")  # which are what is compared, and stand in the page
CELL_PADDING = 3  # characters around a cell
Value = str | float | None
ReadValue = Callable[[ComparedRun], Value]
RUN_COLUMNS: tuple[tuple[str, str, ReadValue], ...] = (
    ("run", "run", lambda run: run.folder.name),
    ("label", "label", lambda run: run.summary.meta.label or None),
    ("model", "model", lambda run: run.summary.meta.model),
    ("category", "category", lambda run: run.summary.meta.category),
    ("scenario", "scenario", lambda run: run.summary.meta.scenario),
    ("gpus", "GPU", lambda run: gpu_names(run.summary.gpu_models)),
    ("attention", "attention backend", lambda run: run.summary.meta.kernels.get("attention")),
    ("linear", "linear kernel", lambda run: run.summary.meta.kernels.get("linear")),
)
VERDICT_COLUMNS: tuple[tuple[str, str, ReadValue], ...] = (
    ("verdict", "accuracy", lambda run: run.verdict),
    ("valid", "performance", lambda run: run.validity),
    ("others", "other programs", lambda run: run.busy),
    ("ended", "ended early", lambda run: run.summary.meta.ended),
)


@dataclass(frozen=True)
class RunColumn:
    """One property of every run: a value each, in the order of the runs."""

    name: str
    label: str
    values: tuple[Value, ...]
    metric: metrics.Metric | None = None

    def text(self, value: Value) -> str:
        return value if isinstance(value, str) else number(value, 6)


def columns(runs: Sequence[ComparedRun]) -> list[RunColumn]:
    """The properties of the runs; settings only where they differ, metrics only where one has them."""
    settings = [run.settings for run in runs]
    names = dict.fromkeys(name for each in settings for name in each)
    found = [
        *(RunColumn(name, label, tuple(map(tell, runs))) for name, label, tell in RUN_COLUMNS),
        *(
            RunColumn(name, name, tuple(each.get(name) for each in settings))
            for name in names
            if differ(name, settings)
        ),
        *(RunColumn(name, label, tuple(map(tell, runs))) for name, label, tell in VERDICT_COLUMNS),
        *(RunColumn(m.name, m.label, tuple(m.of(run.summary) for run in runs), m) for m in compared_metrics()),
        *(RunColumn(*line) for line in profiles.side_by_side([run.summary.run.profile for run in runs])),
    ]
    return [column for column in found if any(value is not None for value in column.values)]


def compared_metrics() -> list[metrics.Metric]:
    """Those of a comparison, and what tells why speeds differ."""
    return [*metrics.metrics_of("compare"), *(metrics.BY_NAME[f"{name}_mean"] for name in TELEMETRY)]


def differ(name: str, settings: Sequence[dict[str, str]]) -> bool:
    return len({each.get(name) for each in settings}) > 1


def write_csv(path: Path, runs: Sequence[ComparedRun]) -> None:
    """The table as CSV: a line a run, numbers in full."""
    table, text = columns(runs), io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table])
    writer.writerows(zip(*(column.values for column in table), strict=True))
    write_text(path, text.getvalue())


def page(runs: Sequence[ComparedRun], width: int | None = None) -> str:
    """A Markdown page that puts the runs side by side, and pairs the answers of two to the same samples.

    `width`: characters of a terminal's line; what has no room stands in a further table, again beside the first run.
    """
    pair, unpaired = None, False
    if len(runs) == 2:
        pair = runs[1].paired_answers(runs[0])
        unpaired = pair is None and all(run.summary.run.accuracy for run in runs)
    lines = table(runs)
    return render(
        "compare.md.j2",
        runs=runs,
        blocks=blocks(lines, width),
        about=about(runs),
        searched=[run for run in runs if run.summary.run.search],
        pair=pair,
        unpaired=unpaired,
        listed=pair.differing[:SHOWN_ANSWERS] if pair else [],
        unlisted=len(pair.differing) - SHOWN_ANSWERS if pair else 0,
    )


def table(runs: Sequence[ComparedRun]) -> list[list[str]]:
    """Lines of cells, the head first: what is in a line, each run's, and of two runs their ratio."""
    named = [*zip(letters(len(runs)), runs, strict=True)]
    refusals = ["", *(refusal(runs[0], run, letter) for letter, run in named[1:])]
    head = [f"{letter}: {run.name}" for letter, run in named]
    two = len(runs) == 2 and not refusals[1]
    lines = [["", *head, *(["B / A"] if two else [])]]
    for column in columns(runs)[1:]:
        cells, ratios = [column.text(value) for value in column.values], ratios_of(column, refusals)
        if len(runs) > 2:
            cells = [f"{text} ({part})" if part else text for text, part in zip(cells, ratios, strict=True)]
        lines.append([column.label, *cells, *(ratios[1:] if two else [])])
    return lines


def letters(count: int) -> list[str]:
    return [chr(ord("A") + n) if n < 26 else str(n + 1) for n in range(count)]


def blocks(lines: Sequence[Sequence[str]], width: int | None) -> list[Table]:
    """The table as tables that are no wider, each with the labels and the first run, and one run more at least; padded,
    so that columns stand under each other. Without a width, as it is."""
    if width is None:
        return [Table(lines[0], lines[1:])]
    sizes = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    parts: list[list[int]] = []
    for n in range(2, len(sizes)):
        if parts and sum(sizes[at] + CELL_PADDING for at in (0, 1, *parts[-1], n)) < width:
            parts[-1].append(n)
        else:
            parts.append([n])
    found = [[[line[at].ljust(sizes[at]) for at in (0, 1, *part)] for line in lines] for part in parts]
    return [Table(head, rows) for head, *rows in found]


def about(runs: Sequence[ComparedRun]) -> list[str]:
    """What a reader must know of the table, a sentence each."""
    named = [*zip(letters(len(runs)), runs, strict=True)]
    refused = [(letter, refusal(runs[0], run, letter)) for letter, run in named[1:]]
    return [
        *(f"{letter} is {run.folder}." for letter, run in named),
        difference([run.flags for run in runs], [run.versions for run in runs]),
        *(f"The machine was busy in {letter}: {run.busy}." for letter, run in named if run.busy),
        *(f"Speeds of A and {letter} are not comparable: {why}." for letter, why in refused if why),
        *(
            f"A and {letter} ran on other machines; their ratio is of the machines, too."
            for letter, run in named[1:]
            if run.is_measured and runs[0].is_measured and run.comparable.machine != runs[0].comparable.machine
        ),
    ]


def difference(flags: Sequence[dict[str, str]], versions: Sequence[dict[str, str]]) -> str:
    """Which settings and versions differ, in a sentence."""
    parts = []
    for noun, each in (("setting", flags), ("version", versions)):
        names = sorted(name for name in dict.fromkeys(key for one in each for key in one) if differ(name, each))
        said = f"{noun}{'s differ' if len(names) > 1 else ' differs'}: {', '.join(names)}"
        parts.append(said if names else f"no {noun} differs")
    if all(part.startswith("no ") for part in parts):
        return "No setting and no version differs."
    return f"{sentence('; '.join(parts))}."


def refusal(a: ComparedRun, b: ComparedRun, letter: str) -> str:
    """Why the speeds of two runs have no ratio; empty where they have one."""
    if not (a.is_measured and b.is_measured):
        return "not both measured"
    return reason(differences(a.comparable, b.comparable, IGNORED), ("A", letter))


def ratios_of(column: RunColumn, refusals: Sequence[str]) -> list[str]:
    """Each value over the first, of a measurement that can be better or worse; empty where that says nothing."""
    if not column.metric or not column.metric.better or column.metric.name in mlperf.SCORES:
        return [""] * len(refusals)
    first = column.values[0]
    comparable = [
        isinstance(first, int | float) and isinstance(value, int | float) and bool(first) and not why and n > 0
        for n, (value, why) in enumerate(zip(column.values, refusals, strict=True))
    ]
    return [f"{value / first:.3f}" if ok else "" for ok, value in zip(comparable, column.values, strict=True)]  # type: ignore[operator]
