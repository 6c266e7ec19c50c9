"""What a bisection found, in words: the cause and how sure it is, its steps, and the command that runs it again."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.config.mlperf import SCORES
from harness.core.document import Document, Line, Section, Tone
from harness.core.errors import DONE, NOT_ACCEPTED
from harness.core.formatting import joined, number, plural
from harness.core.processes import command_of
from harness.core.tables import Table
from harness.report.answer_comparison import AnswerPair
from harness.results.change import Change
from harness.results.metrics import Metric
from harness.sweep.bisect_findings import BisectFindings, StepFinding
from harness.sweep.bisection import BAD, GOOD_AGAIN, STEP_PREFIX
from harness.sweep.delta_debugging import Subset
from harness.sweep.experiment import CONFIG, State
from harness.sweep.experiment_result import SCORE_METRIC
from harness.sweep.findings import SweepReport, sweep_subject

STEP_COLUMNS = ["step", "GOOD but for", "rounds", "change", "condition"]


def findings_of(report: SweepReport) -> BisectFindings:
    """Return what a bisection has shown; `report` is of one."""
    assert report.state.bisection
    return BisectFindings(report, report.state.bisection)


def exit_code(report: SweepReport) -> int:
    """Return 0 where the cause is known, else 1."""
    return DONE if is_known_for_sure(findings_of(report)) else NOT_ACCEPTED


def is_known_for_sure(findings: BisectFindings) -> bool:
    """Tell whether the set fails, each of its differences is needed, and the search has come to its end."""
    return findings.is_reproduced and findings.search.is_certain and findings.search.wanted is None


def document(
    report: SweepReport, folder: Path, sections: Sequence[Section] = (), more: Sequence[Line] = ()
) -> Document:
    """Return the finding of a bisection, its steps, and what must be known of them."""
    findings = findings_of(report)
    tone: Tone = "good" if is_known_for_sure(findings) else "careful"
    steps = Section("Steps", plural(len(findings.begun), "experiment"), [step_table(findings)], is_open=True)
    rows = screen_rows(findings)
    shown = [*lines(findings, folder), *more]
    return Document(title(findings), sweep_subject(report), shown, rows, tone, [steps, *sections])


def title(findings: BisectFindings) -> str:
    """Return the cause, or why there is none."""
    good, bad = findings.good_again, findings.bad
    if good is None or bad is None:
        return "neither GOOD nor BAD was measured to the end"
    if not findings.is_reproduced:
        return not_reproduced(findings, good, bad)
    if not is_known_for_sure(findings):
        return undecided(findings)
    cause = findings.search.smallest
    step = findings.step_of(cause)
    figures = step.figures if step else ""
    if findings.bisection.is_ordered:
        return f"first {worse_word(bad)}: {findings.bisection.words(cause)}: {figures}"
    names = findings.bisection.words(cause)
    if len(cause) == 1:
        return joined("; ", f"explained by {names} alone: {figures}", others_sentence(findings, cause))
    return joined("; ", f"only together: {names}: {figures}", others_sentence(findings, cause))


def not_reproduced(findings: BisectFindings, good: StepFinding, bad: StepFinding) -> str:
    """Return why the difference was not seen again."""
    if bad.answer == "no verdict":
        return f"not reproduced: BAD has no verdict: {bad.reason}"
    if good.answer == "no verdict":
        return f"not reproduced: GOOD against itself has no verdict: {good.reason}"
    if good.answer == "fails":
        return f"not reproduced: GOOD against itself fails as well: {good.figures}"
    if bad.answer == "fails":
        return f"not reproduced: whether GOOD differs from itself is undecided: {good.figures}"
    return f"not reproduced: BAD is {size_of(findings, bad)}"


def size_of(findings: BisectFindings, step: StepFinding) -> str:
    """Return how much faster or slower a step is, as people say it; for answers how many differ."""
    metric, change = step.condition.metric, change_of(findings, step)
    if metric is None or change is None:
        return f"not worse by the condition: {step.figures}"
    speed = change.speed_change(metric)
    faster, slower, _ = metric.words
    mean, low, high = (100 * (ratio - 1) for ratio in speed[:3])
    word = faster if mean > 0 else slower
    return f"{number(abs(mean), 2)} % {word} ({number(low, 2, '+')} to {number(high, 2, '+')} %)"


def change_of(findings: BisectFindings, step: StepFinding) -> Change | None:
    """Return the change of a step's metric; None where it is judged by its answers."""
    metric = step.condition.metric
    row = next((row for row in findings.report.rows if row.name == step.experiment), None)
    if metric is None or step.condition.is_of_answers or row is None:
        return None
    return row.change if metric is row.metric else findings.report.changes(metric).get(row.name)


def worse_word(bad: StepFinding) -> str:
    """Return what the versions from the first bad one on are: slower, say."""
    metric: Metric | None = bad.condition.metric
    if metric is None:
        return "with other answers"
    if bad.condition.is_of_answers:
        return f"with another {metric.label}"
    faster, slower, _ = metric.words
    return faster if bad.condition.above != metric.is_time else slower


def others_sentence(findings: BisectFindings, cause: Subset) -> str:
    """Return what the differences beside the cause do together."""
    others = frozenset(range(len(findings.bisection.differences))) - cause
    if not others:
        return ""
    step = findings.step_of(others)
    who = "the other difference" if len(others) == 1 else f"the other {len(others)} differences together"
    if step is None:
        return f"{who}: not measured"
    if step.answer == "passes":
        return f"{who} {nothing_words(findings, step)}"
    if step.answer == "fails":
        return f"{who} fail as well: {step.figures}"
    return f"{who}: {step.answer}"


def nothing_words(findings: BisectFindings, step: StepFinding) -> str:
    """Return that a step passes, with its interval where it has one."""
    change = change_of(findings, step)
    verb = "changes" if len(step.places) == 1 else "change"
    if change is None or change.effect != "equal":
        return f"{'does' if len(step.places) == 1 else 'do'} not: {step.figures}"
    low, high = (number(100 * (ratio - 1), 2, "+") for ratio in (change.low, change.high))
    return f"{verb} nothing ({low} to {high} %)"


def undecided(findings: BisectFindings) -> str:
    """Return what is left of the differences at the end of the time or of the rounds."""
    smallest, bisection = findings.search.smallest, findings.bisection
    minutes = plural(round(minutes_of(findings.report.state), 1), "minute")
    if bisection.is_ordered and findings.search.doubtful:
        places = sorted(findings.search.doubtful)
        names = " and ".join(bisection.words((place,)) for place in (places[0], places[-1]))
        return f"undecided between {names} after {minutes}"
    if len(smallest) == 1:
        return f"{bisection.words(smallest)} alone fails; the others are not measured after {minutes}"
    return f"undecided between {bisection.words(smallest)} after {minutes}"


def minutes_of(state: State) -> float:
    return sum(record.seconds for record in state.records) / 60


def lines(findings: BisectFindings, folder: Path) -> Iterator[Line]:
    """Yield what the finding rests on."""
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
        if step.reason and step.experiment != BAD:
            yield Line(step.answer, f"{step.experiment}: {step.reason}", "unknown")
    if findings.steps:
        yield Line("steps", steps_text(findings))
    yield from (Line("left out", row.left_out, "careful") for row in report.rows if row.left_out)
    share = 100 * (1 - report.state.error)
    yield Line("interval", f"of {share:g} % at each look, for all verdicts together")
    yield Line("careful", report.state.note, "careful")
    yield from command_lines(findings, folder)


def answer_lines(findings: BisectFindings) -> Iterator[Line]:
    """Yield how many answers changed, at which token first, and what it did to the scores."""
    if not any(condition.is_of_answers for condition in findings.conditions):
        return
    cause = findings.step_of(findings.search.smallest) if findings.is_reproduced else None
    shown = {step.experiment: step for step in (findings.good_again, findings.bad, cause) if step}
    for step in shown.values():
        pair = findings.report.pairs.get(step.experiment)
        if pair is None:
            continue
        name = {GOOD_AGAIN: "GOOD against itself", BAD: "BAD"}.get(step.experiment, step.experiment)
        yield Line("answers", joined("; ", f"{name}: {pair.words}", scores_text(pair)), pair.tone)


def scores_text(pair: AnswerPair) -> str:
    """Return the score that stands for all, with the interval of its change; empty where there is none."""
    score = pair.scores.get(SCORE_METRIC)
    if score is None:
        return ""
    figures = f"{score.change:+.2f} ({score.low:+.2f} to {score.high:+.2f})"
    return f"{SCORES[SCORE_METRIC]} {number(score.before)} to {number(score.after)}, {figures}"


def steps_text(findings: BisectFindings) -> str:
    """Return how many steps and minutes it took, beside those that were expected."""
    state, steps = findings.report.state, [*findings.steps]
    names = {step.experiment for step in steps}
    rounds = {record.round for record in state.records if record.experiment in names}
    seconds = sum(record.seconds for record in state.records if record.round in rounds)
    taken = f"{plural(len(steps), 'step')} in {number(seconds / 60, 2)} min"
    expected = findings.bisection.expected
    return f"{taken}; expected {expected}" if expected else taken


def command_lines(findings: BisectFindings, folder: Path) -> Iterator[Line]:
    """Yield the command that runs the smallest failing change again, and the one that goes on."""
    if findings.is_reproduced:
        step = findings.step_of(findings.search.smallest)
        if step:
            yield Line("run again", run_command(findings.report.state, step.experiment, folder), is_command=True)
    if findings.wanted:
        command = findings.report.state.command
        yield Line("go on", command if "--resume" in command else f"{command} --resume", is_command=True)


def run_command(state: State, name: str, folder: Path) -> str:
    """Return the command that runs an experiment by itself."""
    item = next(item for item in state.sweep.experiments if item.name == name)
    variables = [f"{key}={shlex.quote(value)}" for key, value in item.env.items()]
    program, *words = command_of("run").split()
    interpreter = item.python if item.python and program == "python" else program
    config = shlex.quote(str(folder / name / CONFIG))
    return " ".join([*variables, shlex.quote(interpreter), *words, "--config", config])


def step_table(findings: BisectFindings) -> Table:
    """Return the steps in their order."""
    rows = []
    for step in findings.begun:
        words = findings.bisection.words(step.places, quote="`")
        condition = joined(": ", answer_word(step), step.reason)
        rows.append([step.experiment, words, step.rounds, short_figures(step), condition])
    return Table(STEP_COLUMNS, rows)


def screen_rows(findings: BisectFindings) -> list[list[str]]:
    """Return the same for a screen, narrower."""
    rows = [["step", "condition", "change", "GOOD but for"]]
    for step in findings.steps:
        words = findings.bisection.words(step.places)
        rows.append([step.experiment.removeprefix(STEP_PREFIX), answer_word(step), short_figures(step), words])
    return rows if findings.steps else []


def short_figures(step: StepFinding) -> str:
    """Return a step's figures without where the first answer differs, which has a line of its own."""
    return step.figures.partition(", the first")[0]


def answer_word(step: StepFinding) -> str:
    return {"fails": "holds", "passes": "does not hold"}.get(step.answer, step.answer)
