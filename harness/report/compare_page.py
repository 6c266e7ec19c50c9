"""Finished runs side by side: the settings that differ, speed, latency, accuracy; of two, also where answers part.

Two runs with an accuracy test on the same samples are compared answer by answer; any others by their numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, starmap
from pathlib import Path
from statistics import geometric_mean
from string import ascii_uppercase
from typing import NamedTuple

from harness.config import comparability, mlperf
from harness.core import csv_files, files
from harness.core.document import Block, Document, Line, Picture, Section, Tone, caution_line
from harness.core.formatting import number
from harness.core.statistics import PairedChange
from harness.core.tables import Table, TableColumn
from harness.report import compare, subject
from harness.report.answer_comparison import AnswerPair, Divergence
from harness.report.compare import ComparedRun, Runs
from harness.report.compare_picture import names_of_runs, panels, with_machines
from harness.report.page import page
from harness.results.change import METHOD_TEXT, Change
from harness.results.metrics import METRIC_BY_NAME, Metric, metrics_of, value_at
from harness.results.profile_comparison import ProfileValue, side_by_side
from harness.results.test_table import columns as metric_columns

# Runs side by side as a picture.
COMPARISON_FILE = "comparison"


SHOWN_ANSWERS = 20  # answers that differ
DIVERGENCE: dict[str, TableColumn[Divergence]] = {
    "sample": lambda divergence: str(divergence.sample),
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
    """Return the property of a run at a path of names; None if the run has none."""
    value = value_at(run, path.split("."))
    if not value or not isinstance(value, str | int | float):
        return None
    return value


class RunColumn(NamedTuple):
    """One property of every run: a value each, in the order of the runs; of a metric also the run's own text."""

    name: str
    label: str
    values: tuple[ProfileValue, ...]
    metric: Metric | None = None
    shown: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        return self.shown or tuple(map(text_of, self.values))


def text_of(value: str | float | None) -> str:
    if isinstance(value, str):
        return value
    return number(value)


def columns(runs: Runs) -> list[RunColumn]:
    """Return the properties of the runs. Settings are included if they differ, metrics if at least one run has them."""
    run_columns = list[RunColumn]()
    for name, label, path in RUN_COLUMNS:
        properties = tuple(property_of(run, path) for run in runs)
        run_columns.append(RunColumn(name, label, properties))
    names = [name for name, _, _ in RUN_COLUMNS]
    settings = [run.flags | run.versions for run in runs]
    for name in dict.fromkeys(chain.from_iterable(settings)):
        if is_different(name, settings) and name not in names:
            setting_values = tuple(run_settings.get(name) for run_settings in settings)
            run_columns.append(RunColumn(name, name, setting_values))
    for metric in metrics_of("compare"):
        values = tuple(metric.of(run.summary) for run in runs)
        texts = tuple(metric.shown(run.summary) for run in runs)
        run_columns.append(RunColumn(metric.name, metric.label, values, metric, texts))
    run_columns += starmap(RunColumn, side_by_side([run.summary.run.profile for run in runs]))
    return [column for column in run_columns if {*column.texts} != {number(None)}]


def is_different(name: str, settings: Sequence[dict[str, str]]) -> bool:
    return len({run_settings.get(name) for run_settings in settings}) > 1


def write_csv(path: Path, runs: Runs) -> None:
    """Write the table as CSV, a line for each run, with unrounded numbers."""
    table = columns(runs)
    values = [column.values for column in table]
    csv_files.write_table(path, [column.name for column in table], zip(*values, strict=True))


def tested_loads(runs: Runs) -> Table:
    """Return the tested loads of each run, with the verdict of LoadGen or on the user's own limits."""
    tests = [*chain.from_iterable(run.summary.tests for run in runs)]
    columns = metric_columns("beside", tests, "load", "text")
    rows = []
    for run in runs:
        for cells in Table.from_items(run.summary.tests, columns).rows:
            rows.append([run.name, *cells])
    return Table(["run", *columns], rows)


NOTHING_TO_COMPARE = "no speed to compare: a run has none"


def document(runs: Runs) -> Document:
    """Return the finding of a comparison with its cautions, and the runs side by side."""
    pair = None
    if len(runs) == 2:
        pair = runs[1].paired_answers(runs[0])
    named = [*zip(run_letters(len(runs)), runs, strict=True)]
    answer = comparison_answer(runs, pair)
    lines = [*answer.lines, *answer_lines(runs, pair), Line("differs", difference(runs))]
    if answer.has_interval:
        lines.append(Line("interval", METHOD_TEXT))
    lines += [caution_line(caution) for caution in cautions(named)]
    lines += [Line(letter, str(run.folder)) for letter, run in named]
    busy = compare.busy_runs(runs)
    if busy:
        lines.append(Line("next", busy[0].summary.meta.command, is_command=True))
    subjects = subject.subject_of(*(run.summary for run in runs))
    return Document(answer.title, subjects, lines, tone=answer.tone, sections=[*sections(runs, pair)])


class ComparisonAnswer(NamedTuple):
    """The answer of a comparison: its title, and lines about the runs that cannot be compared."""

    title: str
    lines: Sequence[Line] = ()
    tone: Tone = ""
    has_interval: bool = False


def comparison_answer(runs: Runs, pair: AnswerPair | None) -> ComparisonAnswer:
    """Return the finding on the speed, or on the answers of runs without one; or why there is none.

    `pair` holds the answers of two runs, None if they cannot be compared.
    """
    start, reasons = best_reference(runs)
    letters = run_letters(len(runs))
    refused = {letter: reason for letter, reason in zip(letters, reasons, strict=True) if reason}
    comparable_runs = [run for run, reason in zip(runs, reasons, strict=True) if not reason]
    is_refused = is_of_one_side(comparable_runs, runs)
    if is_refused and differ_in_load_alone(runs):
        speed = finding(runs)
        return ComparisonAnswer(f"{speed.text}; {taken_text(runs)}", (), "careful", speed.has_interval)
    speed = finding_of(runs, comparable_runs, is_refused)
    has_speeds = any(run.is_measured for run in runs)
    if is_refused and (has_speeds or not pair):
        lines = [Line("measured", f"{speed.text}: not reliable", "careful")] if speed.text else []
        title = f"NOT COMPARABLE: {'; '.join(dict.fromkeys(refused.values()))}"
        return ComparisonAnswer(title, lines, "careful", speed.has_interval)
    lines = not_comparable_lines(letters[start], refused)
    if pair and not has_speeds:  # their answers are all there is to compare
        return ComparisonAnswer(pair.words, lines)
    return ComparisonAnswer(speed.text or NOTHING_TO_COMPARE, lines, has_interval=speed.has_interval)


def not_comparable_lines(reference: str, refused: Mapping[str, str]) -> list[Line]:
    """Return a line for each reason why runs have no ratio to the reference; `refused` has the reasons by letter."""
    lines = []
    for reason, letters in letters_by_text(refused.items()).items():
        text = f"{reference} and {letter_ranges(letters)}: {reason}"
        lines.append(Line("not comparable", text, "careful"))
    return lines


def differ_in_load_alone(runs: Runs) -> bool:
    """Tell whether only other programs' use of processors keeps the runs from being compared, and how much is known."""
    first, *rest = runs
    is_load_known = all(run.taken_share for run in compare.busy_runs(runs))
    if not is_load_known or not all(run.is_measured for run in runs):
        return False
    ignored = (*IGNORED_IN_COMPARISON, "busyness")
    return not any(comparability.differences(first.comparable, run.comparable, ignored) for run in rest)


def taken_text(runs: Runs) -> str:
    """Return the most that other programs took of a run's processors, in words."""
    most = max(run.taken_share for run in runs)
    return f"other programs took up to {number(100 * most, 2)} % of the cores"


def is_of_one_side(comparable_runs: Runs, runs: Runs) -> bool:
    """Tell whether the runs that may be compared leave nothing to compare them with."""
    labels = {run.name for run in runs}
    comparable_labels = {run.name for run in comparable_runs}
    return len(comparable_runs) == 1 or len(comparable_labels) < min(2, len(labels))


class SpeedFinding(NamedTuple):
    """The finding of a comparison of speeds, in one sentence; empty if the runs share no measurement."""

    text: str = ""
    has_interval: bool = False


def finding_of(runs: Runs, comparable_runs: Runs, is_refused: bool) -> SpeedFinding:
    """Return the finding on the runs that may be compared; on two in any case."""
    if len(runs) == 2:
        return finding(runs)
    if is_refused:
        return SpeedFinding()
    return finding(comparable_runs)


def sections(runs: Runs, pair: AnswerPair | None) -> Iterator[Section]:
    """Yield the section of the runs side by side and, for two runs, the section of their answers."""
    yield Section("Side by side", "settings that differ, speed, latency", [table(runs)])
    if (probes := tested_loads(runs)).rows:
        yield Section("Probes", f"{len(probes.rows)} loads", [probes])
    if pair:
        yield Section("Scores", pair.words, [*score_blocks(pair)])


def score_blocks(pair: AnswerPair) -> Iterator[Block]:
    """Yield how scores and answers of two runs differ."""
    yield f"{number(pair.samples)} samples in both."
    rows = [score_row(name, score) for name, score in pair.scores.items()]
    yield Table(["score", "A", "B", "B - A", "95 % interval (paired bootstrap)", ""], rows)
    if not pair.same_splitter:
        yield (
            "The two runs split sentences in different ways, so their ROUGE-Lsum and gen_len may differ for that "
            "reason alone."
        )
    if pair.differing:
        yield Table.from_items(pair.differing[:SHOWN_ANSWERS], DIVERGENCE)
    left_out = len(pair.differing) - SHOWN_ANSWERS
    if left_out > 0:
        yield f"... and {left_out} more."


def score_row(name: str, score: PairedChange) -> list[str]:
    """Return a score of two runs with its change and verdict."""
    verdict = "no clear difference"
    if (score.low > 0 or score.high < 0) and not score.few:
        verdict = "differs"
    before, after = number(score.before, 6), number(score.after, 6)
    interval = f"{score.low:+.4f} to {score.high:+.4f}"
    return [name, before, after, f"{score.change:+.4f}", interval, verdict]


def write_html(path: Path, runs: Runs, document: Document) -> None:
    picture_section = Section(
        "In pictures", "", [Picture(COMPARISON_FILE, "Side by side", "", panels(runs))], is_open=True
    )
    files.write_text(path, page(document._replace(sections=[picture_section, *document.sections])))


def finding(runs: Runs) -> SpeedFinding:
    """Return how the speed of two sides differs: the second of two runs, or the fastest of several, against the first.

    If the first run is the fastest, it is compared with the next. Runs with one label on one machine are one side.
    """
    if len(runs) < 2:
        return SpeedFinding()
    metric = METRIC_BY_NAME[runs[0].summary.scenario.headline]
    labels = with_machines(runs, [run.name for run in runs])
    if len(set(labels)) == 1:
        labels = names_of_runs(runs)
    sides = dict[str, list[float]]()
    taken_shares = dict[str, float]()
    for run, label in zip(runs, labels, strict=True):
        sides.setdefault(label, []).append(metric.of(run.summary) or 0.0)
        taken_shares[label] = max(taken_shares.get(label, 0.0), run.taken_share)
    if min(map(min, sides.values())) <= 0:
        return SpeedFinding()
    means = {label: geometric_mean(values) for label, values in sides.items()}
    first, second, *further = sides
    if further:
        fastest, next_fastest, *_ = sorted(means, key=means.__getitem__, reverse=not metric.is_time)
        second = fastest
        if fastest == first:
            first, second = next_fastest, fastest
    change = Change.between(sides[first], sides[second])
    if compare.busy_runs(runs):
        speed = change.speed_change(metric).on_busy_machine(taken_shares[first], taken_shares[second])
        change = speed.speed_change(metric)
    figures = f"{metric.with_unit(means[second])}; {first} {metric.text(means[first])}"
    return SpeedFinding(f"{second} is {change.describe(metric)}: {figures}", change.has_interval)


def answer_lines(runs: Runs, pair: AnswerPair | None) -> Iterator[Line]:
    if pair:
        yield Line("answers", pair.words, pair.tone)
    elif len(runs) == 2 and all(run.summary.accuracy for run in runs):
        yield Line("answers", "not compared: other samples, or a run's answers are missing", "unknown")


def table(runs: Runs) -> Table:
    """Return a row for each property, with the value of each run and its ratio to the reference run."""
    start, refused = best_reference(runs)
    head = [f"{letter}: {run.name}" for letter, run in zip(run_letters(len(runs)), runs, strict=True)]
    rows = []
    for column in columns(runs)[1:]:
        row = [column.label]
        for text, ratio in zip(column.texts, ratios_of(column, refused, start), strict=True):
            if ratio:
                row.append(f"{text} ({ratio})")
            else:
                row.append(text)
        rows.append(row)
    return Table(["of a run", *head], rows)


def run_letters(count: int) -> list[str]:
    """Return what the runs of a comparison are called: A to Z, then 27 and so on."""
    return [*ascii_uppercase, *map(str, range(len(ascii_uppercase) + 1, count + 1))][:count]


def run_number(letter: str) -> int:
    """Return the place of a run in its comparison, from 1 on: the inverse of `run_letters`."""
    return int(letter) if letter.isdigit() else ascii_uppercase.index(letter) + 1


def cautions(named: Sequence[tuple[str, ComparedRun]]) -> Iterator[str]:
    """Yield what a reader must know of the runs, by letter: of two runs each in detail, of more one line a matter."""
    if len(named) == 2:
        for letter, run in named:
            yield from compare.cautions(run, letter)
    else:
        yield from shared_cautions(named)
    first = named[0][1]
    elsewhere = []
    for letter, run in named:
        if run.is_measured and first.is_measured and run.comparable.machine != first.comparable.machine:
            elsewhere.append(letter)
    if elsewhere:
        yield f"A and {letter_ranges(elsewhere)} ran on different machines; the ratio includes that difference"


def shared_cautions(named: Sequence[tuple[str, ComparedRun]]) -> Iterator[str]:
    """Yield each matter once, with the letters of all runs that it concerns."""
    busy_runs = compare.busy_runs([run for _, run in named])
    busy = [letter for letter, run in named if run in busy_runs]
    if busy:
        yield f"the machine was busy in {letter_ranges(busy)}"
    unknown = [letter for letter, run in named if run.has_unknown_load]
    if unknown:
        yield f"other programs were not measured in {letter_ranges(unknown)}"
    for flaws, letters in letters_by_text((letter, run.flaws) for letter, run in named).items():
        yield f"{letter_ranges(letters)}: {flaws}"


def letters_by_text(texts: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the letters of the runs that share a text, by that text; runs without one are left out."""
    letters = dict[str, list[str]]()
    for letter, text in texts:
        if text:
            letters.setdefault(text, []).append(letter)
    return letters


def letter_ranges(letters: Sequence[str]) -> str:
    """Return letters of runs in order as text, those that follow each other as a range: "A to E, H"."""
    ranges = list[list[str]]()
    for letter in letters:
        if ranges and run_number(letter) == run_number(ranges[-1][-1]) + 1:
            ranges[-1].append(letter)
        else:
            ranges.append([letter])
    texts = list[str]()
    for members in ranges:
        if len(members) > 2:
            texts.append(f"{members[0]} to {members[-1]}")
        else:
            texts += members
    return ", ".join(texts)


def difference(runs: Runs) -> str:
    """Return the settings and versions that differ between the runs."""
    parts = []
    for noun, properties in {"setting": [run.flags for run in runs], "version": [run.versions for run in runs]}.items():
        if names := sorted(
            name
            for name in {key for run_properties in properties for key in run_properties}
            if is_different(name, properties)
        ):
            parts.append(f"{noun}{'s' * (len(names) > 1)} {', '.join(names)}")
    return "; ".join(parts) or "no setting and no version"


def best_reference(runs: Runs) -> tuple[int, list[str]]:
    """Return the place of the reference run, and for each run why its speed has no ratio to the reference's.

    The reference is the first of the runs that can be compared with the most others. A reason is empty if there is a
    ratio, and for the reference itself.
    """
    named = [*zip(runs, run_letters(len(runs)), strict=True)]
    rows, counts = list[list[str]](), list[int]()
    for first, letter_of_first in named:
        row = []
        for run, letter in named:
            reason = ""
            if run is not first:
                reason = refusal_text(first, run, letter_of_first, letter)
            row.append(reason)
        rows.append(row)
        counts.append(len(row) - row.count(""))
    start = counts.index(min(counts))
    return start, rows[start]


def refusal_text(a: ComparedRun, b: ComparedRun, *letters: str) -> str:
    """Return why the speeds of two runs have no ratio; empty if they have one."""
    if not (a.is_measured and b.is_measured):
        return "not both measured"
    return comparability.reason(comparability.differences(a.comparable, b.comparable, IGNORED_IN_COMPARISON), letters)


def ratios_of(column: RunColumn, refusals: Sequence[str], start: int) -> list[str]:
    """Return the ratio of each value to that of the run at place `start`. A ratio is empty if it means nothing."""
    metric, first = column.metric, column.values[start]
    texts = [""] * len(column.values)
    if not (metric and metric.better and metric.name not in mlperf.SCORES and isinstance(first, int | float) and first):
        return texts
    for place, (value, reason) in enumerate(zip(column.values, refusals, strict=True)):
        if isinstance(value, int | float) and not reason and place != start:
            texts[place] = f"{value / first:.3f}"
    return texts
