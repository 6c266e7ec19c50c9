"""The sections of a report on what was asked and whether the answers are right: workload, accuracy, compliance."""

from collections.abc import Iterator

from harness.core.document import Block, Section
from harness.core.formatting import number, percent, plural
from harness.core.markdown import MarkdownText
from harness.core.tables import Table, TableColumn
from harness.report.run_report import RunReport
from harness.results.accuracy import Accuracy, ScoreCheck

PART_NOTE = " (part of the set; since the reference covers all of it, bootstrap intervals decide the verdict)"
WORST_NOTE = (
    "[The ten answers with the lowest scores](Accuracy/worst.md), with article and reference; "
    "[every sample](Accuracy/samples.csv)."
)
CHECK_WORDS = {True: "yes", False: "no", None: "not required in Offline"}


def workload(report: RunReport) -> Iterator[Section]:
    """Yield the section on the user's own workload: its requests and how long the answers were.

    Nothing for MLPerf's samples.
    """
    request_set = report.facts.plan.request_set
    if not request_set:
        return
    lengths = "exactly the given lengths"
    if not request_set.exact:
        lengths = f"at most {plural(request_set.max_new_tokens, 'token')}, as each request says"
    blocks: list[Block] = [
        f"{request_set.name} ({request_set.about}), not MLPerf's: {number(report.summary.meta.samples)} of "
        f"{plural(request_set.samples, 'request')}, answers of {lengths}; digest {request_set.digest}."
    ]
    if request_set.notes:
        blocks.append(request_set.notes)
    yield Section("Workload", request_set.name, blocks)


def accuracy(report: RunReport) -> Iterator[Section]:
    """Yield the section on the scores: a picture, a table and the basis of the scores.

    Nothing without an accuracy test.
    """
    score = report.summary.accuracy
    if not score:
        return
    first_scores = ", ".join(f"{check.name} {number(check.score)}" for check in score.checks[:3])
    blocks: list[Block] = [
        *report.picture("scores"),
        table_of_scores(score),
        score_text(score),
        MarkdownText(WORST_NOTE),
    ]
    yield Section("Accuracy", f"{score.verdict}: {first_scores}; {plural(score.samples, 'sample')}", blocks)


def table_of_scores(score: Accuracy) -> Table:
    """Return a table with each score, the reference's, what the score must be, and the verdict.

    If only a part of the samples ran, the interval of each score decides its verdict, so the table has that, too.
    """

    def name_of(check: ScoreCheck) -> str:
        name = "gen_len, characters" if check.name == "gen_len" else check.name
        if check.name in score.approximate:
            return f"{name} (approximate)"
        return name

    columns: dict[str, TableColumn[ScoreCheck]] = {
        "score": name_of,
        "this run": ("score", 6),  # the attribute of a check, and its digits
        "reference": ("reference", 6),
        "must be": threshold_text,
    }
    if not score.full_set:
        columns["95 % interval"] = interval_text
    columns["verdict"] = "verdict"
    return Table.from_items(score.checks, columns)


def threshold_text(check: ScoreCheck) -> str:
    """Return what a score must be. Only gen_len has an upper bound."""
    if not check.high:
        return f"at least {number(check.low, 6)}"
    return range_text(check.low, check.high)


def interval_text(check: ScoreCheck) -> str:
    """Return the 95 % interval of a score as text; a dash if it has none."""
    if check.interval is None:
        return number(None)
    return range_text(*check.interval)


def range_text(low: float, high: float) -> str:
    return f"{number(low, 6)} to {number(high, 6)}"


def score_text(score: Accuracy) -> str:
    """Return what the scores rest on, in words.

    These are the samples, tokens and characters, the answers cut at the token limit, and what split the answers into
    sentences.
    """
    part_note = PART_NOTE  # on how the scores of a part of the set are judged
    if score.full_set:
        part_note = ""
    splitter = f"the {score.splitter} splitter"
    if score.splitter_version:
        splitter += f" of NLTK {score.splitter_version}"
    if score.approximate:
        splitter += f", not MLPerf's, so {' and '.join(score.approximate)} are approximate"
    at_limit = percent(score.at_token_limit / score.samples, 0)
    return (
        f"{plural(score.samples, 'sample')}{part_note}, {plural(score.generated_tokens, 'generated token')}, "
        f"{plural(score.characters, 'character')}; {at_limit} % of the answers end at the token limit. Sentences "
        f"were split by {splitter}."
    )


def compliance(report: RunReport) -> Iterator[Section]:
    """Yield the section on the compliance tests: their verdicts and checks; none for a run that was not asked for them.

    If a test was asked for and there is no result, it did not finish, which the section says.
    """
    audits, asked = report.summary.run.compliance, report.facts.config.compliance
    if audits:
        texts, verdicts = [], []
        for name, audit in audits.items():
            verdicts.append(f"{name.upper()} {audit.verdict}")
            checks = "; ".join(f"{check}: {CHECK_WORDS[verdict]}" for check, verdict in audit.checks.items())
            texts.append(
                f"**{name.upper()}: {audit.verdict}** – {checks}. {audit.facts['samples']} answers of a performance "
                "test, compared with what was reported to LoadGen while it ran."
            )
        yield Section("Compliance", ", ".join(verdicts), [texts])
    elif asked != "none":
        verdict = f"{asked.upper()}: no verdict"
        yield Section("Compliance", verdict, [f"**{verdict}** – it did not finish."])
