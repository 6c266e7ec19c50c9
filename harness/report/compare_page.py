"""Finished runs side by side: the settings that differ, speed, latency, accuracy; of two, also where answers differ.

Two runs with an accuracy test on the same samples are compared answer by answer; any others by their numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from harness.config import comparability, mlperf
from harness.core import csv_files, files
from harness.core.document import Block, Document, Line, Picture, Section, Tone, caution_line
from harness.core.formatting import number, plural
from harness.core.statistics import FEWEST_DIFFERING, FEWEST_SAMPLES, RULE_OF_THREE, PairedChange
from harness.core.tables import Table, TableColumn
from harness.report import compare, subject
from harness.report.answer_comparison import AnswerPair, Divergence
from harness.report.compare import ComparedRun, LetteredRun, Runs, lettered, run_letters, run_number
from harness.report.compare_picture import panels, with_machines
from harness.report.page import page
from harness.results.change import METHOD_TEXT, Change
from harness.results.metrics import METRIC_BY_NAME, Metric, metrics_of, value_at
from harness.results.profile_comparison import ProfileValue, side_by_side
from harness.results.test_table import columns as metric_columns

COMPARISON_FILE = "comparison"  # the name of the picture of runs side by side
SHOWN_ANSWERS = 20  # differing answers that the page shows
DIVERGENCE_COLUMNS: dict[str, TableColumn[Divergence]] = {
    "sample": lambda divergence: str(divergence.sample),
    "prompt tokens": "prompt_tokens",
    "first differing token": "position",
    "A there": "a",
    "B there": "b",
    "ROUGE-L A": ("score_a", 3),
    "ROUGE-L B": ("score_b", 3),
}
# Runs that differ in these aspects may be compared: a comparison is made to see their effect, and the page shows them.
IGNORED_IN_COMPARISON = ("settings", "machine", "software", "rate")
RUN_COLUMNS = (  # name, label, and the path of attributes from a ComparedRun
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
    """Return the property of a run at a path of attributes, such as summary.meta.label.

    None if the run has no such property, and if it is empty, 0, or neither text nor number.
    """
    value = value_at(run, path.split("."))
    if not value or not isinstance(value, str | int | float):
        return None
    return value


class RunColumn(NamedTuple):
    """One property of all runs: a value for each run, in the order of the runs."""

    name: str
    label: str
    values: tuple[ProfileValue, ...]
    metric: Metric | None = None
    shown: tuple[str, ...] = ()  # for a metric: the values as the metric shows them

    @property
    def texts(self) -> tuple[str, ...]:
        """The values as a table shows them: as the metric shows them or, without a
        metric, as plain text and numbers.
        """
        return self.shown or tuple(map(text_of, self.values))


def text_of(value: str | float | None) -> str:
    """Return a value as a table shows it: a text as it is, a number as people read it, a dash for None."""
    if isinstance(value, str):
        return value
    return number(value)


def columns(runs: Runs) -> list[RunColumn]:
    """Return what is compared, a column each: the runs' names and verdicts, the settings that differ, metrics, and
    the kernels that were profiled.

    A column in which no run has a value is left out. So is a setting that RUN_COLUMNS has already.
    """
    run_columns = list[RunColumn]()
    for name, label, path in RUN_COLUMNS:
        properties = tuple(property_of(run, path) for run in runs)
        run_columns.append(RunColumn(name, label, properties))
    names_so_far = [name for name, _label, _path in RUN_COLUMNS]
    settings = [run.setting_texts | run.versions for run in runs]
    for name in dict.fromkeys(chain.from_iterable(settings)):
        if is_different(name, settings) and name not in names_so_far:
            setting_values = tuple(run_settings.get(name) for run_settings in settings)
            run_columns.append(RunColumn(name, name, setting_values))
    for metric in metrics_of("compare"):
        values = tuple(metric.of(run.summary) for run in runs)
        texts = tuple(metric.shown(run.summary) for run in runs)
        run_columns.append(RunColumn(metric.name, metric.label, values, metric, texts))
    for name, label, profile_values in side_by_side([run.summary.run.profile for run in runs]):
        run_columns.append(RunColumn(name, label, profile_values))
    no_value = number(None)
    return [column for column in run_columns if any(text != no_value for text in column.texts)]


def is_different(name: str, settings: Sequence[dict[str, str]]) -> bool:
    """Tell whether runs have different values of a setting, given the settings of each run."""
    return len({run_settings.get(name) for run_settings in settings}) > 1


def write_csv(path: Path, runs: Runs) -> None:
    """Write the properties of the runs as CSV, a line for each run, with unrounded numbers."""
    table = columns(runs)
    values = [column.values for column in table]
    csv_files.write_table(path, [column.name for column in table], zip(*values, strict=True))


def tested_loads(runs: Runs) -> Table:
    """Return a table of all loads that the runs tested, a row for each test, with its figures and its verdict.

    The verdict is LoadGen's or, at fixed concurrency, the one on the user's own limits. No rows if no run tested loads.
    """
    all_tests = [*chain.from_iterable(run.summary.tests for run in runs)]
    # The first column has the title "load" and the attribute `text` of a test. The others are the metrics that
    # metrics.csv lists under "beside".
    load_columns = metric_columns("beside", all_tests, head="load", load="text")
    rows = []
    for run in runs:
        for cells in Table.from_items(run.summary.tests, load_columns).rows:
            rows.append([run.name, *cells])
    return Table(["run", *load_columns], rows)


NOTHING_TO_COMPARE = "no speed to compare: a run has none"


def document(runs: Runs) -> Document:
    """Return the finding of a comparison with its cautions, and the runs side by side.

    The answers are compared if there are exactly two runs. If the machine was busy during runs, the next command
    repeats the first of them.
    """
    answers = None
    if len(runs) == 2:
        answers = runs[1].paired_answers(runs[0])
    lettered_runs = lettered(runs)
    finding = comparison_answer(runs, answers)
    lines = [*finding.lines, *answer_lines(runs, answers), Line("differs", difference(runs))]
    if finding.has_interval:
        lines.append(Line("interval", METHOD_TEXT))
    lines += [caution_line(caution) for caution in cautions(lettered_runs)]
    lines += [Line(letter, str(run.folder)) for letter, run in lettered_runs]
    busy = compare.busy_runs(runs)
    if busy:
        lines.append(Line("next", busy[0].summary.meta.command, is_command=True))
    subjects = subject.subject_of(*(run.summary for run in runs))
    return Document(finding.title, subjects, lines, tone=finding.tone, sections=[*sections(runs, answers)])


class ComparisonAnswer(NamedTuple):
    """The answer of a comparison: its title, and lines about the runs that cannot be compared."""

    title: str
    lines: Sequence[Line] = ()
    tone: Tone = ""
    has_interval: bool = False  # whether the title or a line gives the interval of a change


def comparison_answer(runs: Runs, answers: AnswerPair | None) -> ComparisonAnswer:
    """Return the finding on the answers, if no run has a speed, else on the speed; or why runs cannot be compared.

    `answers` is the comparison of the answers of two runs, if there is one.
    """
    reference, reasons = best_reference(runs)  # the reference's place, and why each run is not comparable with it
    letters = run_letters(len(runs))
    reasons_by_letter = {letter: reason for letter, reason in zip(letters, reasons, strict=True) if reason}
    comparable_runs = [pair for pair, reason in zip(lettered(runs), reasons, strict=True) if not reason]
    lines = not_comparable_lines(letters[reference], reasons_by_letter)
    has_speed = any(run.is_measured for run in runs)
    if answers and not has_speed:  # Any two runs have answers to compare, so two sides are not needed.
        return ComparisonAnswer(answers.words, lines)
    # A comparison of speeds needs two sides: runs of one label are one side.
    if are_of_two_sides([run for _letter, run in comparable_runs], runs):
        speed = speed_finding(comparable_runs)
        return ComparisonAnswer(speed.text or NOTHING_TO_COMPARE, lines, has_interval=speed.has_interval)
    if differ_only_in_background_load(runs):
        # What other programs used is known, so `speed_finding` makes the interval of the change wide enough for it.
        speed = speed_finding(lettered(runs))
        title = f"{speed.text}; {others_cpu_text(runs)}"
        return ComparisonAnswer(title, tone="careful", has_interval=speed.has_interval)
    return not_comparable_answer(runs, reasons_by_letter.values())


def not_comparable_answer(runs: Runs, reasons: Iterable[str]) -> ComparisonAnswer:
    """Return that the runs cannot be compared, and why. The speeds of two runs are shown all the same."""
    title = f"NOT COMPARABLE: {'; '.join(dict.fromkeys(reasons))}"
    speed = SpeedFinding()
    if len(runs) == 2:  # Of more runs, it is not clear which two speeds a reader wants to see.
        speed = speed_finding(lettered(runs))
    lines = [Line("measured", f"{speed.text}: not reliable", "careful")] if speed.text else []
    return ComparisonAnswer(title, lines, tone="careful", has_interval=speed.has_interval)


def not_comparable_lines(reference: str, reasons_by_letter: Mapping[str, str]) -> list[Line]:
    """Return a line for each reason why runs cannot be compared with the reference run.

    Runs are named by letters. `reasons_by_letter` has the reason for each run that cannot be compared; runs with the
    same reason share a line.
    """
    lines = []
    for reason, letters in letters_by_text(reasons_by_letter.items()).items():
        text = f"{reference} and {letter_ranges(letters)}: {reason}"
        lines.append(Line("not comparable", text, "careful"))
    return lines


def differ_only_in_background_load(runs: Runs) -> bool:
    """Tell whether the runs differ from the first one in nothing but, at most, a known load of other programs."""
    first, *rest = runs
    if not compare.is_load_known(runs) or not all(run.is_measured for run in runs):
        return False
    ignored = (*IGNORED_IN_COMPARISON, "busyness")
    return not any(comparability.differences(first.comparable, run.comparable, ignored) for run in rest)


def others_cpu_text(runs: Runs) -> str:
    """Return the largest share of the cores that other programs took during a run, in words."""
    largest_share = max(run.others_cpu_share for run in runs)
    return f"other programs took up to {number(100 * largest_share, 2)} % of the cores"


def are_of_two_sides(comparable_runs: Runs, runs: Runs) -> bool:
    """Tell whether the runs that may be compared, a part of all `runs`, make at least two sides.

    Runs with the same label are one side, unless all runs have the same label.
    """
    labels = {run.name for run in runs}
    comparable_labels = {run.name for run in comparable_runs}
    has_several = len(comparable_runs) > 1
    if len(labels) == 1:
        return has_several
    return has_several and len(comparable_labels) > 1


class SpeedFinding(NamedTuple):
    """The finding of a comparison of speeds, in one sentence; empty if the runs have no speed in common."""

    text: str = ""
    has_interval: bool = False


def sections(runs: Runs, answers: AnswerPair | None) -> Iterator[Section]:
    """Yield the sections of a comparison: the runs side by side, their tested loads, and the scores of two runs.

    A section that would be empty is left out. `answers` holds the answers of two runs, None if they were not compared.
    """
    yield Section("Side by side", "settings that differ, speed, latency", [*side_by_side_blocks(runs)])
    loads = tested_loads(runs)
    if loads.rows:
        yield Section("Probes", plural(len(loads.rows), "load"), [loads])
    if answers:
        yield Section("Scores", answers.words, [*score_blocks(answers)])


def side_by_side_blocks(runs: Runs) -> Iterator[Block]:
    """Yield the table of the runs and, if it has costs, in what currency they are."""
    yield table(runs)
    if any(run.summary.price for run in runs):
        yield "Costs are in the currency of --price-per-hour."


def score_blocks(answers: AnswerPair) -> Iterator[Block]:
    """Yield a table of how the scores of two runs differ, and a table of the first answers that differ.

    Before them is the number of samples. Notes say where intervals allow for unseen changes, if the runs split
    sentences in different ways, and how many further answers differ.
    """
    yield f"{plural(answers.samples, 'sample')} in both."
    are_equal = not answers.differing
    rows = [score_row(name, score, are_equal) for name, score in answers.scores.items()]
    yield Table(["score", "A", "B", "B - A", "95 % interval of B - A for other prompts like these", ""], rows)
    if any(score.few for score in answers.scores.values()):
        yield unseen_changes_note(answers)
    if not answers.same_splitter:
        yield (
            "The two runs split sentences in different ways, so their ROUGE-Lsum and gen_len may differ for that "
            "reason alone."
        )
    if answers.differing:
        yield Table.from_items(answers.differing[:SHOWN_ANSWERS], DIVERGENCE_COLUMNS)
    left_out = len(answers.differing) - SHOWN_ANSWERS
    if left_out > 0:
        yield f"... and {left_out} more."


def unseen_changes_note(answers: AnswerPair) -> str:
    """Return by how much the intervals of few changed scores are widened, and why."""
    percent = min(100.0, 100 * RULE_OF_THREE / answers.samples)
    share = (
        f"in up to {number(percent, 3)} % of other prompts (rule of three: 3 / {number(answers.samples)}), each by up "
        "to 100 points"
    )
    if not answers.differing:
        return f"All answers are equal. The intervals allow for changes that these samples do not show, {share}."
    if answers.samples < FEWEST_SAMPLES:
        return f"The samples are few, so the intervals also allow for changes that they do not show, {share}."
    return (
        f"The interval of a score that changed in fewer than {FEWEST_DIFFERING} samples also allows for changes that "
        f"these samples do not show, {share}."
    )


def score_row(name: str, score: PairedChange, are_equal: bool) -> list[str]:
    """Return the row of a score: its name, both values, the change, its interval, and the verdict.

    `are_equal` says that the answers of both runs are the same.
    """
    verdict = "equal in these samples" if are_equal else "no clear difference"
    excludes_no_change = score.low > 0 or score.high < 0
    if excludes_no_change and not score.few:  # The interval of few differing samples shows nothing.
        verdict = "differs"
    before, after = number(score.before, 6), number(score.after, 6)
    interval = f"{score.low:+.4f} to {score.high:+.4f}"
    return [name, before, after, f"{score.change:+.4f}", interval, verdict]


def write_html(path: Path, runs: Runs, document: Document) -> None:
    """Write the comparison `document` as an HTML page, with a picture of the runs before its sections."""
    picture_section = Section(
        "In pictures", "", [Picture(COMPARISON_FILE, "Side by side", "", panels(runs))], is_open=True
    )
    files.write_text(path, page(document._replace(sections=[picture_section, *document.sections])))


def runs_by_side(lettered_runs: Sequence[LetteredRun]) -> dict[str, list[LetteredRun]]:
    """Return the runs of each side of a comparison, by the side's name.

    Runs with the same label and machine are one side. If that would make all runs one side, each run is a side of its
    own, which has the run's letter as its name.
    """
    runs = [run for _letter, run in lettered_runs]
    names = with_machines(runs, [run.name for run in runs])
    if len(set(names)) == 1:
        names = [letter for letter, _run in lettered_runs]
    sides: dict[str, list[LetteredRun]] = {}
    for name, pair in zip(names, lettered_runs, strict=True):
        sides.setdefault(name, []).append(pair)
    return sides


def speed_finding(lettered_runs: Sequence[LetteredRun]) -> SpeedFinding:
    """Return by how much the speeds of two sides differ, as a sentence. `compared_sides` chooses the two.

    If both sides are single runs, they are named by their letters. Empty for a single run, and if a run has no speed.
    """
    if len(lettered_runs) < 2:
        return SpeedFinding()
    runs = [run for _letter, run in lettered_runs]
    metric = METRIC_BY_NAME[runs[0].summary.scenario.headline]
    sides = runs_by_side(lettered_runs)
    speeds = dict[str, list[float]]()
    greatest_loads = dict[str, float]()  # the largest share of the cores that other programs took, by side
    for side, runs_of_side in sides.items():
        speeds[side] = [metric.of(run.summary) or 0.0 for _letter, run in runs_of_side]
        greatest_loads[side] = max(run.others_cpu_share for _letter, run in runs_of_side)
    if any(min(speeds_of_side) <= 0 for speeds_of_side in speeds.values()):  # A run has no speed.
        return SpeedFinding()
    means = {side: geometric_mean(speeds_of_side) for side, speeds_of_side in speeds.items()}
    basis, compared = compared_sides(means, metric)
    change = Change.between(speeds[basis], speeds[compared])
    if compare.busy_runs(runs):  # Other programs took part of the processors, which makes the interval wider.
        change = change.of_metric_on_busy_machine(metric, greatest_loads[basis], greatest_loads[compared])
    basis_name, compared_name = basis, compared
    if len(sides[basis]) == len(sides[compared]) == 1:
        basis_name, compared_name = (sides[side][0].letter for side in (basis, compared))
    figures = metric.against(means[compared], means[basis])
    text = f"{compared_name} is {change.describe(metric, basis_name)}: {figures}"
    return SpeedFinding(text, change.has_interval)


def compared_sides(means: Mapping[str, float], metric: Metric) -> tuple[str, str]:
    """Return the names of the two sides to compare: the basis, and the side that is compared with it.

    `means` has the mean of the metric of each side, in order.
    """
    first, second, *further = means
    if not further:
        return first, second
    # The fastest side, of the smallest time or the largest speed, is compared with the first or the next fastest.
    fastest, next_fastest, *_ = sorted(means, key=means.__getitem__, reverse=not metric.is_time)
    if fastest == first:
        return next_fastest, fastest
    return first, fastest


def answer_lines(runs: Runs, answers: AnswerPair | None) -> Iterator[Line]:
    """Yield the line on the answers of two runs: how many differ, or that they could not be compared.

    Nothing is yielded for other than two runs, nor if a run has no accuracy test.
    """
    if answers:
        yield Line("answers", answers.words, answers.tone)
    elif len(runs) == 2 and all(run.summary.accuracy for run in runs):
        yield Line("answers", "not compared: different samples, or a run's answers are missing", "unknown")


def table(runs: Runs) -> Table:
    """Return a row for each property, with the value of each run and its ratio to the reference run.

    The head of a column says so if the column has ratios.
    """
    reference, reasons = best_reference(runs)  # `reasons` say why a run is not comparable with the reference.
    rows = []
    has_ratios = [False] * len(runs)
    _run_names, *properties = columns(runs)  # The head of each column names the run already.
    for column in properties:
        row = [column.label]
        for place, (text, ratio) in enumerate(zip(column.texts, ratios_of(column, reasons, reference), strict=True)):
            if ratio:
                row.append(f"{text} ({ratio})")
                has_ratios[place] = True
            else:
                row.append(text)
        rows.append(row)
    lettered_runs = lettered(runs)
    reference_letter, _reference = lettered_runs[reference]
    heads = ["setting or metric"]
    for (letter, run), has_ratio in zip(lettered_runs, has_ratios, strict=True):
        note = f" (ratio to {reference_letter})" if has_ratio else ""
        heads.append(f"{letter}: {run.name}{note}")
    return Table(heads, rows)


def cautions(lettered_runs: Sequence[LetteredRun]) -> Iterator[str]:
    """Yield what a reader must know about the runs, which are given with their letters, before using the comparison.

    For more than two runs, each text names all runs that it concerns.
    """
    if len(lettered_runs) == 2:
        for letter, run in lettered_runs:
            yield from compare.cautions(run, letter)
    else:
        yield from shared_cautions(lettered_runs)
    _letter, first = lettered_runs[0]
    on_other_machines = []
    for letter, run in lettered_runs:
        if run.is_measured and first.is_measured and run.comparable.machine != first.comparable.machine:
            on_other_machines.append(letter)
    if on_other_machines:
        yield f"A and {letter_ranges(on_other_machines)} ran on different machines; the ratio includes that difference"


def shared_cautions(lettered_runs: Sequence[LetteredRun]) -> Iterator[str]:
    """Yield each caution once, with the letters of all runs that it concerns: busy machines, unmeasured load, flaws."""
    busy_runs = compare.busy_runs([run for _letter, run in lettered_runs])
    busy = [letter for letter, run in lettered_runs if run in busy_runs]
    if busy:
        yield f"the machine was busy in {letter_ranges(busy)}"
    unknown = [letter for letter, run in lettered_runs if run.has_unknown_load]
    if unknown:
        yield f"other programs were not measured in {letter_ranges(unknown)}"
    for flaws, letters in letters_by_text((letter, run.flaws) for letter, run in lettered_runs).items():
        yield f"{letter_ranges(letters)}: {flaws}"


def letters_by_text(texts: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return, for each text that is not empty, the letters of the runs that have it.

    `texts` are pairs of a run's letter and its text.
    """
    letters = dict[str, list[str]]()
    for letter, text in texts:
        if text:
            letters.setdefault(text, []).append(letter)
    return letters


def letter_ranges(letters: Sequence[str]) -> str:
    """Return letters of runs as text, such as "A to E, H". Three or more neighbors are written as a range.

    The letters are given in order.
    """
    ranges = list[list[str]]()
    for letter in letters:
        if ranges and run_number(letter) == run_number(ranges[-1][-1]) + 1:
            ranges[-1].append(letter)
        else:
            ranges.append([letter])
    texts = list[str]()
    for range_letters in ranges:
        if len(range_letters) > 2:
            texts.append(f"{range_letters[0]} to {range_letters[-1]}")
        else:
            texts += range_letters
    return ", ".join(texts)


def difference(runs: Runs) -> str:
    """Return which settings and versions differ between the runs, such as "setting dtype; versions torch, vllm"."""
    settings, versions = [run.setting_texts for run in runs], [run.versions for run in runs]
    parts = []
    for noun, values_of_runs in (("setting", settings), ("version", versions)):
        all_names = sorted(set(chain.from_iterable(values_of_runs)))
        names = [name for name in all_names if is_different(name, values_of_runs)]
        if names:
            plural_end = "s" if len(names) > 1 else ""
            parts.append(f"{noun}{plural_end} {', '.join(names)}")
    return "; ".join(parts) or "no setting and no version"


def best_reference(runs: Runs) -> tuple[int, list[str]]:
    """Return the index of the run that can be compared with the most others, and why each run cannot be compared.

    A reason is empty if the run can be compared with the reference, and for the reference itself.
    """
    reasons_by_reference = [reasons_against(reference, runs) for reference in range(len(runs))]
    reason_counts = [sum(map(bool, reasons)) for reasons in reasons_by_reference]
    best = reason_counts.index(min(reason_counts))
    return best, reasons_by_reference[best]


def reasons_against(reference: int, runs: Runs) -> list[str]:
    """Return for each run why it cannot be compared with the run of the index `reference`.

    A reason is empty if the run can be compared, and for the reference itself.
    """
    letters = run_letters(len(runs))
    reasons = []
    for run, letter in zip(runs, letters, strict=True):
        reason = ""
        if run is not runs[reference]:
            reason = refusal_text(runs[reference], run, letters[reference], letter)
        reasons.append(reason)
    return reasons


def refusal_text(a: ComparedRun, b: ComparedRun, letter_a: str, letter_b: str) -> str:
    """Return why the speeds of two runs cannot be compared; empty if they can. The text names the runs by letter."""
    if not (a.is_measured and b.is_measured):
        return "not both measured"
    differences = comparability.differences(a.comparable, b.comparable, IGNORED_IN_COMPARISON)
    return comparability.reason(differences, (letter_a, letter_b))


def ratios_of(column: RunColumn, reasons: Sequence[str], reference: int) -> list[str]:
    """Return for each run, as text, the ratio of its value to that of the run with the index `reference`.

    A text is empty where a ratio means nothing, for the reference, and for a run that has one of the `reasons` against
    comparing it.
    """
    metric, reference_value = column.metric, column.values[reference]
    texts = [""] * len(column.values)
    # Speeds, latencies, costs and energies have ratios. A setting (without a metric), a metric for which neither more
    # nor less is better, and a score have none.
    if metric is None or not metric.better or metric.name in mlperf.SCORES:
        return texts
    if not isinstance(reference_value, int | float) or not reference_value:
        return texts
    for place, (value, reason) in enumerate(zip(column.values, reasons, strict=True)):
        if isinstance(value, int | float) and not reason and place != reference:
            texts[place] = f"{value / reference_value:.3f}"
    return texts
