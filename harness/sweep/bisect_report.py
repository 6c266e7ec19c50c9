"""The report of a bisection: the cause and how sure it is, its steps, and the command that runs it again."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.config.mlperf import SCORES
from harness.core.document import Document, Line, Section, Tone, caution_line
from harness.core.errors import DONE, NOT_ACCEPTED
from harness.core.formatting import joined_text, number, plural
from harness.core.processes import command_of
from harness.core.tables import Table
from harness.report.answer_comparison import AnswerPair
from harness.results.change import Change
from harness.results.metrics import Metric
from harness.sweep.bisect_findings import BisectFindings, StepFinding
from harness.sweep.bisection import BAD, GOOD_AGAIN, STEP_PREFIX
from harness.sweep.delta_debugging import Subset
from harness.sweep.experiment import CONFIG_FILE, State
from harness.sweep.experiment_result import SCORE_METRIC, result_named
from harness.sweep.findings import SweepReport, sweep_subject

STEP_COLUMNS = ["step", "condition", "change", "rounds", "GOOD except for"]
SIDE_NAMES = {GOOD_AGAIN: "GOOD against itself", BAD: "BAD"}


def findings_of(report: SweepReport) -> BisectFindings:
    """Return the findings of a bisection. The report must be of a bisection."""
    assert report.state.bisection
    return BisectFindings(report, report.state.bisection)


def exit_code(report: SweepReport) -> int:
    """Return the exit code of a bisection: DONE if the cause is known, else NOT_ACCEPTED."""
    if is_known_for_sure(findings_of(report)):
        return DONE
    return NOT_ACCEPTED


def is_known_for_sure(findings: BisectFindings) -> bool:
    """Tell whether the cause is known.

    That is so if BAD was again bad by the user's condition (--fail-if) and GOOD was not, if the condition no longer
    holds without any one of the differences that make up the cause, and if nothing is left to be measured.
    """
    is_finished = findings.search.wanted is None  # `wanted` is the next set of differences to be measured.
    return findings.is_reproduced and findings.search.is_certain and is_finished


def document(
    report: SweepReport, folder: Path, sections: Sequence[Section] = (), further_lines: Sequence[Line] = ()
) -> Document:
    """Return the finding of a bisection as a document, with a table of its steps.

    `sections` come after the steps, `further_lines` after the bisection's own lines.
    """
    findings = findings_of(report)
    tone: Tone = "good" if is_known_for_sure(findings) else "careful"
    steps = Section("Steps", plural(len(findings.begun), "experiment"), [step_table(findings)], is_open=True)
    rows = screen_rows(findings)
    all_lines = [*finding_lines(findings, folder), *further_lines]
    return Document(finding_title(findings), sweep_subject(report), all_lines, rows, tone, [steps, *sections])


def finding_title(findings: BisectFindings) -> str:
    """Return the cause: one difference, several that act only together, or the first bad version.

    If the cause is not known, the title says why: the sides were not measured, their difference was not seen again, or
    the search is not finished.
    """
    good, bad = findings.good_again, findings.bad
    if good is None and bad is None:
        return "neither GOOD nor BAD was measured to the end"
    if good is None:
        return "GOOD was not measured to the end"
    if bad is None:
        return "BAD was not measured to the end"
    if not findings.is_reproduced:
        return not_reproduced(findings, good, bad)
    if not is_known_for_sure(findings):
        return undecided_title(findings)
    cause = findings.search.smallest
    step = findings.step_of(cause)
    figures = step.figures if step else ""
    names = findings.bisection.words(cause)
    if findings.bisection.is_ordered:
        return f"first {worse_word(bad)}: {names}: {figures}"
    others = others_sentence(findings, cause)
    if len(cause) == 1:
        return joined_text("; ", f"explained by {names} alone: {figures}", others)
    return joined_text("; ", f"only together: {names}: {figures}", others)


def not_reproduced(findings: BisectFindings, good: StepFinding, bad: StepFinding) -> str:
    """Return why the difference between GOOD and BAD was not seen again, given the findings on both."""
    if bad.answer == "no verdict":
        return f"not reproduced: BAD has no verdict: {bad.reason}"
    if good.answer == "no verdict":
        return f"not reproduced: GOOD against itself has no verdict: {good.reason}"
    if good.answer == "fails":
        return f"not reproduced: GOOD against itself fails as well: {good.figures}"
    if bad.answer == "fails":  # BAD differs, as it should, so the doubt is in GOOD.
        return f"not reproduced: whether GOOD differs from itself is undecided: {good.figures}"
    # BAD passes, or is still undecided after all of its rounds.
    return f"not reproduced: BAD is {size_of(findings, bad)}"


def size_of(findings: BisectFindings, step: StepFinding) -> str:
    """Return in words how much faster or slower a step is than GOOD, with the interval of the change.

    A step is an experiment with some of BAD's values in place of GOOD's; BAD itself has all of them. The step is one
    that did not fail. If it is judged by its answers, it is only "not worse".
    """
    metric = step.condition.metric
    change = change_of(findings, step)
    if metric is None or change is None:  # The step is judged by its answers, or has no change.
        return f"not worse by the condition: {step.figures}"
    speed = change.speed_change(metric)
    mean = percent_change(speed.mean)
    faster, slower, _as_fast = metric.words
    word = slower
    if mean > 0:
        word = faster
    return f"{number(abs(mean), 2)} % {word} ({interval_text(speed)})"


def percent_change(ratio: float) -> float:
    return 100 * (ratio - 1)


def interval_text(change: Change) -> str:
    """Return the interval of a change, such as "-1 to +2 %"; "no interval" if it has none."""
    if not change.has_interval:
        return "no interval"
    low, high = percent_change(change.low), percent_change(change.high)
    return f"{number(low, 2, '+')} to {number(high, 2, '+')} %"


def change_of(findings: BisectFindings, step: StepFinding) -> Change | None:
    """Return the change of a step in the metric that the step is judged by.

    None if it is judged by its answers, or if it has no change.
    """
    metric = step.condition.metric
    row = result_named(findings.report.rows, step.experiment)
    if metric is None or step.condition.is_of_answers or row is None:
        return None
    if metric is row.metric:  # The row already has the change of the sweep's own metric.
        return row.change
    return findings.report.changes(metric).get(row.name)


def worse_word(bad: StepFinding) -> str:
    """Return in a word how the bad version is worse by the condition, such as "slower".

    A condition on the answers or on a score has its own words.
    """
    metric: Metric | None = bad.condition.metric
    if metric is None:
        return "with other answers"
    if bad.condition.is_of_answers:
        return f"with another {metric.label}"
    faster, slower, _as_fast = metric.words
    # BAD is beyond the bound of the condition: above an upper one, or below a lower one.
    is_larger = bad.condition.is_upper_bound
    # A larger time is slower, and so is a smaller speed.
    is_slower = is_larger if metric.is_time else not is_larger
    return slower if is_slower else faster


def others_sentence(findings: BisectFindings, cause: Subset) -> str:
    """Return in words what the differences outside the cause do together: nothing, fail as well, or no clear answer.

    Empty if there are none. `cause` has the places of the cause's differences.
    """
    other_places = frozenset(range(len(findings.bisection.differences))) - cause
    if not other_places:
        return ""
    others_text = f"the other {len(other_places)} differences together"
    verb = "fail"
    if len(other_places) == 1:
        others_text = "the other difference"
        verb = "fails"
    step = findings.step_of(other_places)
    if step is None:
        return f"{others_text}: not measured"
    if step.answer == "passes":
        return f"{others_text} {passing_words(findings, step)}"
    if step.answer == "fails":
        return f"{others_text} {verb} as well: {step.figures}"
    return f"{others_text}: {step.answer}"


def passing_words(findings: BisectFindings, step: StepFinding) -> str:
    """Return what the differences of a step that passes do, after "the other differences together".

    For example "change nothing (-0.4 to +0.6 %)".
    """
    verb, auxiliary = "change", "do"
    if len(step.places) == 1:
        verb, auxiliary = "changes", "does"
    change = change_of(findings, step)
    if change is None or change.effect != "equal":  # It is only known that the step does not fail.
        return f"{auxiliary} not: {step.figures}"
    return f"{verb} nothing ({interval_text(change)})"


def undecided_title(findings: BisectFindings) -> str:
    """Return which differences may still be the cause when the time or the rounds are over."""
    smallest = findings.search.smallest  # the smallest set that is known to fail
    bisection = findings.bisection
    minutes = plural(round(minutes_of(findings.report.state), 1), "minute")
    # Of versions in their order, `doubtful` is the range in which the first bad one lies.
    if bisection.is_ordered and findings.search.doubtful:
        places = sorted(findings.search.doubtful)
        first, last = bisection.words(places[:1]), bisection.words(places[-1:])
        return f"undecided between {first} and {last} after {minutes}"
    if len(smallest) == 1:
        return f"{bisection.words(smallest)} alone fails; the others are not measured after {minutes}"
    return f"undecided between {bisection.words(smallest)} after {minutes}"


def minutes_of(state: State) -> float:
    return sum(record.seconds for record in state.records) / 60


def finding_lines(findings: BisectFindings, folder: Path) -> Iterator[Line]:
    """Yield the lines below the title, on what the finding rests on. `folder` is the folder of the sweep.

    A report leaves out a line without text.
    """
    report, bisection = findings.report, findings.bisection
    good, bad = findings.good_again, findings.bad
    if good and bad and findings.is_reproduced:
        figures = f"BAD {bad.figures}; GOOD against itself {good.figures}"
        yield Line("reproduced", f"{figures}; {plural(bad.rounds, 'round')}")
    names = ", ".join(difference.words for difference in bisection.differences)
    yield Line("differences", f"{len(bisection.differences)}: {names}")
    yield Line("not testable", "; ".join(bisection.untestable), "careful")
    yield from answer_lines(findings)
    for step in findings.begun:
        if step.reason and step.experiment != BAD:  # The title has BAD's reason.
            yield Line(step.answer, f"{step.experiment}: {step.reason}", "unknown")
    if findings.steps:
        yield Line("steps", steps_text(findings))
    for row in report.rows:
        if row.left_out:
            yield Line("left out", row.left_out, "careful")
    # The results are judged after each step, and then the search goes on.
    coverage_percent = 100 * (1 - report.state.error_rate)
    yield Line("interval", f"{coverage_percent:g} % for all verdicts together, each time the results are judged")
    yield caution_line(report.state.note)
    yield from command_lines(findings, folder)


def answer_lines(findings: BisectFindings) -> Iterator[Line]:
    """Yield how many answers changed, at which token first, and how the scores changed.

    Nothing if no condition is about answers. The lines are for GOOD against itself, for BAD and, if the difference was
    seen again, for the smallest failing step.
    """
    if not any(condition.is_of_answers for condition in findings.conditions):
        return
    steps = [findings.good_again, findings.bad]
    if findings.is_reproduced:
        steps.append(findings.step_of(findings.search.smallest))
    names = dict.fromkeys(step.experiment for step in steps if step)
    for name in names:
        answers = findings.report.compared_answers.get(name)
        if answers:
            label = SIDE_NAMES.get(name, name)
            text = joined_text("; ", f"{label}: {answers.words}", scores_text(answers))
            yield Line("answers", text, answers.tone)


def scores_text(answers: AnswerPair) -> str:
    """Return the main score of both sides and the interval of its change, in words; empty if there is no such score."""
    score = answers.scores.get(SCORE_METRIC)
    if score is None:
        return ""
    figures = f"{score.change:+.2f} ({score.low:+.2f} to {score.high:+.2f})"
    return f"{SCORES[SCORE_METRIC]} {number(score.before)} to {number(score.after)}, {figures}"


def steps_text(findings: BisectFindings) -> str:
    """Return how many steps and minutes the bisection took and, if it was estimated, how many were expected.

    A step is an experiment with some of BAD's values in place of GOOD's.
    """
    names = {step.experiment for step in findings.steps}
    records = findings.report.state.records
    rounds = {record.round for record in records if record.experiment in names}
    # GOOD's runs in the rounds with a step count as well.
    seconds = sum(record.seconds for record in records if record.round in rounds)
    text = f"{plural(len(findings.steps), 'step')} in {number(seconds / 60, 2)} min"
    if not findings.bisection.expected:
        return text
    return f"{text}; expected {findings.bisection.expected}"


def command_lines(findings: BisectFindings, folder: Path) -> Iterator[Line]:
    """Yield the command that repeats the smallest failing step, and the command that continues a bisection.

    The first needs a difference that was seen again, the second a bisection that is not finished.
    """
    if findings.is_reproduced:
        step = findings.step_of(findings.search.smallest)
        if step:
            yield Line("run again", run_command(findings.report.state, step.experiment, folder), is_command=True)
    if findings.wanted:
        command = findings.report.state.command
        if "--resume" not in command:
            command += " --resume"
        yield Line("go on", command, is_command=True)


def run_command(state: State, name: str, folder: Path) -> str:
    """Return the command that runs an experiment by itself, with its environment variables and its interpreter.

    `name` is the experiment, `folder` the folder of the sweep.
    """
    experiments = {experiment.name: experiment for experiment in state.sweep.experiments}
    experiment = experiments[name]
    variables = [f"{key}={shlex.quote(value)}" for key, value in experiment.env.items()]
    first_word, *words = command_of("run").split()
    if experiment.python and first_word == "python":
        first_word = experiment.python  # An installed command would be another word, and has its own interpreter.
    config = shlex.quote(str(folder / name / CONFIG_FILE))
    return " ".join([*variables, shlex.quote(first_word), *words, "--config", config])


def step_table(findings: BisectFindings) -> Table:
    """Return a table of what was tested: whether the condition holds, the figures, the rounds and the differences."""
    rows = []
    for step in findings.begun:  # GOOD against itself and BAD are the first of them.
        differences = findings.bisection.words(step.places, quote="`")
        condition = joined_text(": ", answer_word(step), step.reason)
        rows.append([step.experiment, condition, short_figures(step), step.rounds, differences])
    return Table(STEP_COLUMNS, rows)


def screen_rows(findings: BisectFindings) -> list[list[str]]:
    """Return the steps as rows of a narrow table for the screen, the head first; empty if there are no steps."""
    if not findings.steps:
        return []
    rows = [["step", "condition", "change", "GOOD except for"]]
    for step in findings.steps:
        words = findings.bisection.words(step.places)
        rows.append([step.experiment.removeprefix(STEP_PREFIX), answer_word(step), short_figures(step), words])
    return rows


def short_figures(step: StepFinding) -> str:
    """Return a step's figures without the place of the first differing answer, which the
    report has in a line of its own.
    """
    return step.figures.partition(", the first")[0]


def answer_word(step: StepFinding) -> str:
    """Return the answer of a step in words about the condition that BAD meets: a step fails if it meets it, too."""
    return {"fails": "met", "passes": "not met"}.get(step.answer, step.answer)
