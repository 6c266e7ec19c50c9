"""The report of an MMLU evaluation: tables, pictures and answers."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.core.csv_files import write_table
from harness.core.document import Block, Code, Document, Line, Picture, Section, caution_line, to_markdown
from harness.core.files import atomic_update, write_json, write_text
from harness.core.formatting import gpu_names, name_value_text, number, percent, plural
from harness.core.tables import Table
from harness.mmlu.mmlu_config import MMLUConfig
from harness.mmlu.question_data import DOMAIN_OF, DOMAINS, LETTERS, QuestionSet
from harness.mmlu.question_prompts import first_examples
from harness.mmlu.records import MMLUFacts, Overall
from harness.mmlu.scores import MMLUAnswer, Score, ScoresByName, group_scores, overall_of, sample_cells
from harness.report.charts import Bar, Bars, Panel, Scale, StackedPart, save_pictures
from harness.report.page import page
from harness.report.subject import model_name
from harness.runs import run_folder

DOMAIN_COLORS = dict(zip(DOMAINS, ("blue", "amber", "green", "purple"), strict=True))
GUESSING = 1 / len(LETTERS)  # the accuracy of guessing
FEW_QUESTIONS = 30  # a subject with fewer questions has an interval wider than 30 percentage points


class Evaluation(NamedTuple):
    """The settings, facts and scores of an evaluation that its report shows."""

    config: MMLUConfig
    facts: MMLUFacts
    source: str  # the folder or hub repository of the questions
    summary: Overall
    domains: ScoresByName
    subjects: ScoresByName


def write_results(
    run: run_folder.RunFolder,
    config: MMLUConfig,
    facts: MMLUFacts,
    data: QuestionSet,
    seconds: float,
    answers: Sequence[MMLUAnswer],
) -> tuple[Overall, Document]:
    """Write all result files into the run's folder, or none if a file cannot be written.

    `seconds` is how long the answers took. Return the content of overall.json and the report.
    """
    summary = overall_of(answers, seconds, data.test_questions, config.num_fewshot, deviations(config, data, answers))
    domains, subjects = group_scores(answers, "domain"), group_scores(answers, "subject")
    evaluation = Evaluation(config, facts, data.source, summary, domains, subjects)
    with atomic_update(run.path) as folder:
        write_json(folder / "overall.json", summary.model_dump(mode="json"))
        write_json(folder / "by_domain.json", {name: score._asdict() for name, score in domains.items()})
        write_json(folder / "by_subject.json", subject_entries(subjects))
        sample_rows = [sample_cells(answer) for answer in answers]
        columns = list(sample_rows[0])
        write_table(folder / "samples.csv", columns, [row.values() for row in sample_rows])
        if config.details:
            write_text(folder / "details.jsonl", detail_lines(data, answers))
        panels = score_panels(domains, subjects)
        pictures = save_pictures({"scores": ("Accuracy by domain and subject", panels)}, folder / "plots")
        report_sections = [*sections(evaluation, *pictures.values())]
        report = document(evaluation)._replace(sections=report_sections)
        write_text(folder / "report.md", to_markdown(report))
        write_text(folder / "report.html", page(report))
    return summary, report


def subject_entries(subjects: ScoresByName) -> dict[str, dict[str, object]]:
    """Return the content of by_subject.json: the domain and the score of each subject, by the subject's name."""
    entries = {}
    for name, score in subjects.items():
        entries[name] = {"domain": DOMAIN_OF[name], **score._asdict()}
    return entries


SCORE_COLUMNS = ("accuracy %", "std. error", "95 % interval", "right", "questions")


def score_cells(score: Score) -> list[object]:
    """Return the cells of a score under SCORE_COLUMNS. Shares are in percent."""
    interval = f"{percent(score.low)} to {percent(score.high)}"
    return [percent(score.accuracy), percent(score.standard_error), interval, score.correct, score.n]


def sections(evaluation: Evaluation, picture: Picture) -> Iterator[Section]:
    """Yield the sections of the report: the picture, scores by domain and by subject, and the method."""
    config, summary = evaluation.config, evaluation.summary
    yield Section(picture.title, "", [picture], is_open=True)
    yield Section("Domains", plural(len(evaluation.domains), "domain"), [domain_table(evaluation.domains)])
    yield Section("Subjects", plural(summary.subjects, "subject"), [subject_table(evaluation.subjects)])
    method = (
        f"Each question follows {plural(config.num_fewshot, 'example')} of its subject from the dev split; the answer "
        "is the likeliest of the letters A to D as the next token, one request a question. "
        f"Exact ties between letters: {summary.ties} (the first in the alphabet counts)."
    )
    blocks: list[Block] = [
        method,
        fit_text(config, summary),
        settings_table(evaluation),
        Code(evaluation.facts.command),
    ]
    yield Section("Method", f"{config.num_fewshot}-shot, one request a question", blocks)


def domain_table(domains: ScoresByName) -> Table:
    """Return a table with a row for each domain: its name and its score."""
    rows = []
    for name, score in domains.items():
        rows.append([name, *score_cells(score)])
    return Table(["domain", *SCORE_COLUMNS], rows)


def subject_table(subjects: ScoresByName) -> Table:
    """Return a table with a row for each subject: its name, its domain and its score."""
    rows = []
    for name, score in subjects.items():
        rows.append([name.replace("_", " "), DOMAIN_OF[name], *score_cells(score)])
    return Table(["subject", "domain", *SCORE_COLUMNS], rows)


def settings_table(evaluation: Evaluation) -> Table:
    """Return a table of how an evaluation was made: its data, time, precision, software and engine arguments."""
    config, facts = evaluation.config, evaluation.facts
    precision: str = config.precision
    if config.quantization != "none":
        precision += f", {config.quantization}"
    engine_args = [f"{name}={value}" for name, value in facts.engine_args.items()]
    rows = [
        ["data", evaluation.source],
        ["started", facts.started],
        ["precision", f"{precision}, KV cache {config.kv_cache_dtype}"],
        ["software", name_value_text(facts.system.packages)],
        ["engine arguments", " ".join(engine_args)],
    ]
    return Table(["", ""], rows)


def fit_text(config: MMLUConfig, summary: Overall) -> str:
    """Return a sentence on how many prompts did not fit with all their examples, or that all did."""
    questions = summary.shortened_prompts["questions"]
    if not questions:
        return "All examples fitted into every prompt."
    examples = summary.shortened_prompts["examples_dropped"]
    return (
        f"{plural(questions, 'prompt')} did not fit {config.context} tokens with all examples. The prompts lack "
        f"{plural(examples, 'example')} in all, the last ones first: samples.csv lists them."
    )


def deviations(config: MMLUConfig, data: QuestionSet, answers: Sequence[MMLUAnswer]) -> list[str]:
    """Return why the accuracy is not the model's MMLU score, in words; empty if it is.

    Reasons are another model or data, dummy weights, a part of the questions or subjects, and shortened prompts.
    """
    reasons = []
    if config.model_spec.deviation:
        reasons.append(config.model_spec.deviation)
    if config.model_spec.mmlu and not config.dataset_path:  # Only the demo has questions of its own (`mmlu`).
        reasons.append("the demo's own questions")
    if config.has_dummy_weights:
        reasons.append("dummy weights")
    asked = len(data.test)
    if asked < data.test_questions:
        reasons.append(f"a sample of {asked:,} of {plural(data.test_questions, 'question')}, seed {config.seed}")
    subjects = {question.subject for question in data.test}
    if len(subjects) < len(DOMAIN_OF):
        reasons.append(f"{len(subjects)} of {len(DOMAIN_OF)} subjects")
    shortened = sum(answer.prompt.dropped > 0 for answer in answers)
    if shortened:
        reasons.append(
            f"{shortened:,} of {plural(len(answers), 'prompt')} with fewer than {plural(config.num_fewshot, 'example')}"
        )
    return reasons


def detail_lines(data: QuestionSet, answers: Sequence[MMLUAnswer]) -> str:
    """Return the text of details.jsonl, a line for each answer.

    A line has the row of samples.csv and the texts of the question, the choices and the examples.
    """
    lines = []
    for question, answer in zip(data.test, answers, strict=True):
        fields = sample_cells(answer)
        fields["question"] = question.text
        fields["choices"] = question.choices
        fields["examples"] = [example.text for example in first_examples(data, question, answer.prompt.examples)]
        lines.append(json.dumps(fields, ensure_ascii=False) + "\n")
    return "".join(lines)


def document(evaluation: Evaluation) -> Document:
    """Return the head of the report: the accuracy with its interval, by domain and by subject, the speed, the use of
    the cache, and a caution if the accuracy is not the model's MMLU score.
    """
    summary = evaluation.summary
    low, high = summary.interval_95
    interval = f"{percent(low)} to {percent(high)} %; {summary.correct:,} of {summary.n:,} right"
    domain_texts = []
    for name, score in evaluation.domains.items():
        domain_texts.append(f"{name} {percent(score.accuracy)} %")
    lines = [
        Line("95 % interval", interval),
        Line("by domain", ", ".join(domain_texts)),
        Line("by subject", subject_mean_text(summary, evaluation.subjects)),
        Line("speed", f"{number(summary.questions_per_s)} questions/s"),
        Line("prefix cache", cache_text(summary)),
    ]
    if summary.notes:
        notes = "; ".join(summary.notes)
        lines.append(caution_line(f"not the model's MMLU score: {notes}"))
    setup = setup_text(evaluation.config, evaluation.facts, summary)
    return Document(accuracy_title(summary), setup, lines)


def subject_mean_text(summary: Overall, subjects: ScoresByName) -> str:
    """Return the mean accuracy of the subjects in words, and how many subjects have few questions, if any."""
    text = f"mean of {plural(summary.subjects, 'subject')} {percent(summary.macro_average)} %"
    small = sum(score.n < FEW_QUESTIONS for score in subjects.values())
    if small:
        text += f"; {small} of them have fewer than {FEW_QUESTIONS} questions (hollow bars)"
    return text


def cache_text(summary: Overall) -> str:
    """Return in words which share of the prompt tokens came from the prefix cache.

    Unknown if the server does not report it.
    """
    hits = "unknown"
    if summary.cache_hit_rate is not None:
        hits = f"{percent(summary.cache_hit_rate, 1)} %"
    return f"{hits} of {plural(summary.prompt_tokens, 'prompt token')}"


def accuracy_title(summary: Overall) -> str:
    """Return the accuracy as a title, with its standard error if there is one.

    The title also says if the accuracy is clearly worse than guessing, or is not clearly better. The 95 % interval
    decides what is clear.
    """
    text = f"{percent(summary.overall_accuracy)} % right"
    if summary.standard_error is not None:
        text += f" (standard error {percent(summary.standard_error)})"
    low, high = summary.interval_95
    if low <= GUESSING:
        comparison = "worse" if high < GUESSING else "no better"
        text += f": {comparison} than guessing, which gives 25 %"
    return text


def setup_text(config: MMLUConfig, facts: MMLUFacts, summary: Overall) -> str:
    """Return in words what was evaluated: number of examples, model, questions, machine and version of vLLM.

    The version of a server behind an endpoint is not known, so it is left out.
    """
    system = facts.system
    machine = plural(system.cores, "CPU core")
    if system.gpus:
        machine = gpu_names(system.gpus)
    size = f"{config.num_fewshot}-shot, {model_name(config.model)}, {plural(summary.n, 'question')}"
    text = f"MMLU, {size} on {plural(summary.subjects, 'subject')}, {machine}"
    if not config.endpoint:
        text += f", vLLM {system.vllm_version or 'unknown'}"
    return text


def score_panels(domains: ScoresByName, subjects: ScoresByName) -> list[Panel]:
    """Return the panels of accuracy by domain and by subject. A panel without scores is left out."""
    return [score_bars(scores) for scores in (domains, subjects) if scores]


def score_bars(scores: ScoresByName) -> Bars:
    """Return a panel of bars with 95 % intervals, domain after domain. Within a domain the best comes first.

    `scores` are those of domains or of subjects. Bars of subjects have the color of their domain, named in the legend.
    """
    bars = []
    best_first = sorted(scores.items(), key=accuracy_of, reverse=True)
    for domain, color in DOMAIN_COLORS.items():
        for name, score in best_first:
            is_domain = name == domain
            is_subject = DOMAIN_OF.get(name) == domain
            if is_domain or is_subject:
                legend = "" if is_domain else domain
                bars.append(score_bar(name, score, color, legend))
    axis = "accuracy, %; lines: 95 % intervals; at 25 %: guessing; the number of questions beside each name"
    span = Scale(0.0, 110.0)  # Beyond 100 % is room for the text of a bar.
    return Bars(title="", axis=axis, rows=bars, lines=[100 * GUESSING], span=span)


def accuracy_of(item: tuple[str, Score]) -> float:
    _, score = item
    return score.accuracy


def score_bar(name: str, score: Score, color: str, legend: str) -> Bar:
    """Return a bar with its interval and the number of questions. It is hollow if there are few questions.

    `legend` is the text for the bar's color in the legend, empty if it has none.
    """
    is_hollow = score.n < FEW_QUESTIONS
    parts = [StackedPart(begin=0.0, end=100 * score.accuracy, color=color, is_hollow=is_hollow, name=legend)]
    interval = 100 * score.low, 100 * score.high
    label = f"{name.replace('_', ' ')} ({number(score.n)})"
    return Bar(label, percent(score.accuracy, 1), parts, interval)
