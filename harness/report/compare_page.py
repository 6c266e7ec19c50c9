"""Finished runs side by side: the settings that differ, speed, latency, accuracy; of two, also where answers part.

Two runs with an accuracy test on the same samples are compared answer by answer; any others by their numbers.
"""

from collections.abc import Iterator, Sequence
from itertools import starmap
from pathlib import Path
from statistics import mean
from string import ascii_uppercase
from typing import NamedTuple

from harness.config import comparability, mlperf
from harness.core import csv_files, files
from harness.core.document import Block, Document, Line, Picture, Section
from harness.core.formatting import number
from harness.core.tables import Table, TableColumn
from harness.report import compare, subject
from harness.report.answer_comparison import AnswerPair, Divergence
from harness.report.compare import ComparedRun, Runs
from harness.report.compare_picture import names, panels, with_machines
from harness.report.page import page
from harness.results.change import METHOD_TEXT, Change
from harness.results.metrics import METRIC_BY_NAME, Metric, metrics_of, value_at
from harness.results.profile_comparison import ProfileValue, side_by_side
from harness.results.test_table import columns as metric_columns

# Runs side by side as a picture.
COMPARISON_FILE = "comparison"


SHOWN_ANSWERS = 20  # answers that differ
DIVERGENCE: dict[str, TableColumn[Divergence]] = {
    "sample": lambda one: str(one.sample),
    "prompt tokens": "prompt_tokens",
    "first differing token": "position",
    "A there": "a",
    "B there": "b",
    "ROUGE-L A": ("score_a", 3),
    "ROUGE-L B": ("score_b", 3),
}
IGNORED_IN_COMPARISON = ("settings", "machine", "software", "rate")  # these are what is compared, and stand in the page
RUN_COLUMNS = (  # name, label, and where it stands in a ComparedRun
    ("run", "run", "folder.name"),
    ("label", "label", "summary.meta.label"),
    ("model", "model", "summary.meta.model"),
    ("category", "category", "summary.meta.category"),
    ("scenario", "scenario", "summary.meta.scenario"),
    ("gpus", "GPU", "gpus"),
    ("attention", "attention backend", "summary.meta.kernels.attention"),
    ("linear", "linear kernel", "summary.meta.kernels.linear"),
    ("verdict", "accuracy", "summary.gate"),
    ("valid", "performance", "summary.result.verdict.word"),
    ("others", "other programs", "busy"),
    ("ended", "ended early", "summary.meta.ended"),
)


def property_of(run: ComparedRun, path: str) -> str | float | None:
    """Return a property of a run by the names that lead to it; None where it has none."""
    value = value_at(run, path.split("."))
    return value if isinstance(value, str | int | float) and value else None


class RunColumn(NamedTuple):
    """One property of every run: a value each, in the order of the runs; of a metric also the run's own text."""

    name: str
    label: str
    values: tuple[ProfileValue, ...]
    metric: Metric | None = None
    shown: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        return self.shown or tuple(value if isinstance(value, str) else number(value) for value in self.values)


def columns(runs: Runs) -> list[RunColumn]:
    """The properties of the runs; settings only where they differ, metrics only where one has them."""
    run_columns = list[RunColumn]()
    for name, label, path in RUN_COLUMNS:
        run_columns.append(RunColumn(name, label, tuple(property_of(run, path) for run in runs)))
    settings = [run.flags | run.versions for run in runs]
    for name in dict.fromkeys(name for run_settings in settings for name in run_settings):
        if is_different(name, settings) and name not in {column.name for column in run_columns}:
            run_columns.append(RunColumn(name, name, tuple(run_settings.get(name) for run_settings in settings)))
    for metric in metrics_of("compare"):
        values, shown_values = zip(*((metric.of(run.summary), metric.shown(run.summary)) for run in runs), strict=True)
        run_columns.append(RunColumn(metric.name, metric.label, values, metric, shown_values))
    run_columns += starmap(RunColumn, side_by_side([run.summary.run.profile for run in runs]))
    return [column for column in run_columns if {*column.texts} != {number(None)}]


def is_different(name: str, settings: Sequence[dict[str, str]]) -> bool:
    return len({run_settings.get(name) for run_settings in settings}) > 1


def write_csv(path: Path, runs: Runs) -> None:
    """The table as CSV: a line a run, numbers in full."""
    table = columns(runs)
    csv_files.write_table(
        path, [column.name for column in table], zip(*(column.values for column in table), strict=True)
    )


def tested(runs: Runs) -> Table:
    """The loads that were tested, run by run, with the verdict of LoadGen or that on one's own limits."""
    columns = metric_columns("beside", [outcome for run in runs for outcome in run.summary.tests], "load", "text")
    tables = [(run.name, Table.of(run.summary.tests, columns)) for run in runs]
    return Table(["run", *columns], [[name, *row] for name, table in tables for row in table.rows])


NOTHING_TO_COMPARE = "no speed to compare: a run has none"


def document(runs: Runs) -> Document:
    """The finding of a comparison, what must be known before it is passed on, and the runs side by side."""
    pair = runs[1].paired_answers(runs[0]) if len(runs) == 2 else None
    named, (start, reasons) = [*zip(letters(len(runs)), runs, strict=True)], refusals(runs)
    refused = {letter: why for (letter, _), why in zip(named, reasons, strict=True) if why}
    comparable_runs = [run for letter, run in named if letter not in refused]
    sides = [len({run.name for run in some}) for some in (comparable_runs, runs)]
    alone = len(comparable_runs) == 1 or sides[0] < min(2, sides[1])
    found = finding(runs if len(runs) == 2 else [] if alone else comparable_runs)
    refusal_text = f"NOT COMPARABLE: {'; '.join(dict.fromkeys(refused.values()))}"
    title = refusal_text if alone else found.text or NOTHING_TO_COMPARE
    if pair and not any(run.is_measured for run in runs):  # their answers are all there is to compare
        title, alone = pair.words, False
    lines = [
        Line("measured", f"{found.text}: not reliable" if found.text and alone else "", "careful"),
        *(
            Line("not comparable", f"{named[start][0]} and {letter}: {why}", "careful")
            for letter, why in refused.items()
            if not alone
        ),
        *answers(runs, pair),
        Line("differs", difference(runs)),
        Line("interval", METHOD_TEXT if found.has_interval else ""),
        *(Line("careful", caution, "careful") for caution in cautions(named)),
        *(Line(letter, str(run.folder)) for letter, run in named),
        Line("next", next((run.summary.meta.command for run in runs if run.busy), ""), is_command=True),
    ]
    return Document(
        title,
        subject.subject_of(*(run.summary for run in runs)),
        lines,
        tone="careful" if alone else "",
        sections=[*sections(runs, pair)],
    )


def sections(runs: Runs, pair: AnswerPair | None) -> Iterator[Section]:
    """The runs side by side, and the answers of two."""
    yield Section("Side by side", "settings that differ, speed, latency", [table(runs)])
    if (probes := tested(runs)).rows:
        yield Section("Probes", f"{len(probes.rows)} loads", [probes])
    if pair:
        yield Section("Scores", pair.words, [*scores(pair)])


def scores(pair: AnswerPair) -> Iterator[Block]:
    """Yield how scores and answers of two runs differ."""
    yield f"{number(pair.samples)} samples in both."
    rows = []
    for name, score in pair.scores.items():
        verdict = "differs" if (score.low > 0 or score.high < 0) and not score.few else "no clear difference"
        sides, between = (number(score.before, 6), number(score.after, 6)), f"{score.low:+.4f} to {score.high:+.4f}"
        rows.append([name, *sides, f"{score.change:+.4f}", between, verdict])
    yield Table(["score", "A", "B", "B - A", "95 % interval (paired bootstrap)", ""], rows)
    if not pair.same_splitter:
        yield (
            "The two runs split sentences in different ways, so their ROUGE-Lsum and gen_len may differ for that "
            "reason alone."
        )
    if pair.differing:
        yield Table.of(pair.differing[:SHOWN_ANSWERS], DIVERGENCE)
    if (more := len(pair.differing) - SHOWN_ANSWERS) > 0:
        yield f"... and {more} more."


def write_html(path: Path, runs: Runs, found: Document) -> None:
    picture_section = Section(
        "In pictures", "", [Picture(COMPARISON_FILE, "Side by side", "", panels(runs))], is_open=True
    )
    files.write_text(path, page(found._replace(sections=[picture_section, *found.sections])))


class SpeedFinding(NamedTuple):
    """What a comparison of speeds found, in one sentence; empty where the runs share no measurement."""

    text: str = ""
    has_interval: bool = False


def finding(runs: Runs) -> SpeedFinding:
    """The second of two runs, or the fastest of several, against the first, or against the next where it is the first.

    Several runs of a label on one machine are one side.
    """
    if len(runs) < 2:
        return SpeedFinding()
    metric, sides = METRIC_BY_NAME[runs[0].summary.scenario.headline], dict[str, list[float]]()
    labels = with_machines(runs, [run.name for run in runs])
    for run, name in zip(runs, labels if len(set(labels)) > 1 else names(runs), strict=True):
        sides.setdefault(name, []).append(metric.of(run.summary) or 0.0)
    if min(map(min, sides.values())) <= 0:
        return SpeedFinding()
    first, other, *more = sides
    if more:
        fastest, second, *_ = sorted(sides, key=lambda name: mean(sides[name]), reverse=not metric.is_time)
        first, other = (second, fastest) if fastest == first else (first, fastest)
    figures = f"{metric.with_unit(mean(sides[other]))}; {first} {metric.text(mean(sides[first]))}"
    change = Change.between(sides[first], sides[other])
    if any(run.busy for run in runs):
        change = change.on_busy_machine()
    return SpeedFinding(f"{other} is {change.describe(metric)}: {figures}", change.has_interval)


def answers(runs: Runs, pair: AnswerPair | None) -> Iterator[Line]:
    if pair:
        yield Line("answers", pair.words, pair.tone)
    elif len(runs) == 2 and all(run.summary.accuracy for run in runs):
        yield Line("answers", "not compared: other samples, or a run's answers are missing", "unknown")


def table(runs: Runs) -> Table:
    """Return what is in a line, each run's, with its ratio to that of the run that they are compared with."""
    start, refused = refusals(runs)
    head = [f"{letter}: {run.name}" for letter, run in zip(letters(len(runs)), runs, strict=True)]
    lines = []
    for column in columns(runs)[1:]:
        cells = zip(column.texts, ratios_of(column, refused, start), strict=True)
        lines.append([column.label, *(f"{text} ({ratio})" if ratio else text for text, ratio in cells)])
    return Table(["of a run", *head], lines)


def letters(count: int) -> list[str]:
    return [*ascii_uppercase, *map(str, range(len(ascii_uppercase) + 1, count + 1))][:count]


def cautions(named: Sequence[tuple[str, ComparedRun]]) -> Iterator[str]:
    """Yield what a reader must know of the runs, by letter."""
    first = named[0][1]
    for letter, run in named:
        yield from compare.cautions(run, letter)
        if run.is_measured and first.is_measured and run.comparable.machine != first.comparable.machine:
            yield f"A and {letter} ran on different machines; the ratio includes that difference"


def difference(runs: Runs) -> str:
    """The settings and the versions that differ between runs."""
    parts = []
    for noun, properties in {"setting": [run.flags for run in runs], "version": [run.versions for run in runs]}.items():
        if names := sorted(
            name
            for name in {key for run_properties in properties for key in run_properties}
            if is_different(name, properties)
        ):
            parts.append(f"{noun}{'s' * (len(names) > 1)} {', '.join(names)}")
    return "; ".join(parts) or "no setting and no version"


def refusals(runs: Runs) -> tuple[int, list[str]]:
    """Return which run the others are compared with: the first of those that have a ratio with the most; and why each
    run's speed has no ratio with that one's, empty where it has, and for that one.
    """
    named = [*zip(runs, letters(len(runs)), strict=True)]
    refusal_rows = [["" if run is first else refusal(first, run, a, b) for run, b in named] for first, a in named]
    start = min(range(len(runs)), key=lambda n: sum(map(bool, refusal_rows[n])))
    return start, refusal_rows[start]


def refusal(a: ComparedRun, b: ComparedRun, *letters: str) -> str:
    """Return why the speeds of two runs have no ratio; empty where they have one."""
    if not (a.is_measured and b.is_measured):
        return "not both measured"
    return comparability.reason(comparability.differences(a.comparable, b.comparable, IGNORED_IN_COMPARISON), letters)


def ratios_of(column: RunColumn, refusals: Sequence[str], start: int) -> list[str]:
    """Each value over that where they start, of a measurement that can be better or worse; empty where that says
    nothing.
    """
    metric, first = column.metric, column.values[start]
    has_ratios = metric and metric.better and metric.name not in mlperf.SCORES and first
    return [
        f"{value / first:.3f}" if has_ratios and value is not None and not why and n != start else ""  # type: ignore[operator]
        for n, (value, why) in enumerate(zip(column.values, refusals, strict=True))
    ]
