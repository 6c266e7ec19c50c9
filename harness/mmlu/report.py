"""The report of an MMLU evaluation: tables, pictures and answers."""

import json
from collections.abc import Iterator, Sequence

from harness.core.csv_files import write_table
from harness.core.document import Block, Code, Document, Line, Picture, Section, caution_line, to_markdown
from harness.core.files import atomic_update, write_json, write_text
from harness.core.formatting import gpu_names, name_value_text, number, percent
from harness.core.tables import Table
from harness.mmlu.mmlu_config import MMLUConfig
from harness.mmlu.question_data import DOMAIN_OF, DOMAINS, LETTERS, Data
from harness.mmlu.records import MMLUFacts, Overall
from harness.mmlu.scores import MMLUAnswer, Score, ScoresByName, group_scores, overall_of, sample_cells
from harness.report.charts import Bar, Bars, Panel, Scale, StackedPart, save_pictures
from harness.report.page import page
from harness.report.subject import model_name
from harness.runs import run_folder

DOMAIN_COLORS = dict(zip(DOMAINS, ("blue", "amber", "green", "purple"), strict=True))
GUESSING = 1 / len(LETTERS)
FEW_QUESTIONS = 30  # questions of a subject, below which its interval is wider than 30 points


def write_results(
    run: run_folder.RunFolder,
    config: MMLUConfig,
    facts: MMLUFacts,
    data: Data,
    seconds: float,
    rows: Sequence[MMLUAnswer],
) -> tuple[Overall, Document]:
    """Write all result files into the run's folder, or none if one fails.

    Returns the content of overall.json and the report.
    """
    summary = overall_of(rows, seconds, data.whole, config.num_fewshot, deviations(config, data, rows))
    domains, subjects = group_scores(rows, "domain"), group_scores(rows, "subject")
    by_domain = {name: part._asdict() for name, part in domains.items()}
    by_subject = {name: {"domain": DOMAIN_OF[name], **part._asdict()} for name, part in subjects.items()}
    with atomic_update(run.path) as place:
        write_json(place / "overall.json", summary.model_dump(mode="json"))
        write_json(place / "by_domain.json", by_domain)
        write_json(place / "by_subject.json", by_subject)
        write_table(place / "samples.csv", sample_cells(rows[0]), (sample_cells(answer).values() for answer in rows))
        if config.details:
            write_text(place / "details.jsonl", detail_lines(data, rows))
        picture = save_pictures(
            {"scores": ("Accuracy by domain and subject", score_panels(domains, subjects))}, place / "plots"
        )
        parts = sections(config, facts, data.source, summary, domains, subjects, *picture.values())
        report = document(config, facts, summary, domains, subjects)._replace(sections=[*parts])
        write_text(place / "report.md", to_markdown(report))
        write_text(place / "report.html", page(report))
    return summary, report


SCORE_COLUMNS = ("accuracy %", "std. error", "95 % interval", "right", "questions")


def score_cells(part: Score) -> list[object]:
    ends = f"{percent(part.low)} to {percent(part.high)}"
    return [percent(part.accuracy), percent(part.standard_error), ends, part.correct, part.n]


def sections(  # noqa: PLR0913
    config: MMLUConfig,
    facts: MMLUFacts,
    source: str,
    summary: Overall,
    domains: ScoresByName,
    subjects: ScoresByName,
    picture: Picture,
) -> Iterator[Section]:
    """Yield the sections of the report: the picture, scores by domain and by subject, and the method."""
    yield Section(picture.title, "", [picture], is_open=True)
    by_domain = Table(["domain", *SCORE_COLUMNS], [[name, *score_cells(part)] for name, part in domains.items()])
    yield Section("Domains", f"{len(domains)} domains", [by_domain])
    rows = [[name.replace("_", " "), DOMAIN_OF[name], *score_cells(part)] for name, part in subjects.items()]
    yield Section("Subjects", f"{summary.subjects} subjects", [Table(["subject", "domain", *SCORE_COLUMNS], rows)])
    method = (
        f"Each question follows {config.num_fewshot} example(s) of its subject from the dev split; the answer is the "
        "likeliest of the letters A to D as the next token, one request a question. "
        f"Exact ties between letters: {summary.ties} (the first in the alphabet counts)."
    )
    precision: str = config.precision
    if config.quantization != "none":
        precision += f", {config.quantization}"
    settings = [
        ["data", source],
        ["started", facts.started],
        ["precision", f"{precision}, KV cache {config.kv_cache_dtype}"],
        ["software", name_value_text(facts.system.packages)],
        ["engine arguments", " ".join(f"{name}={value}" for name, value in facts.engine_args.items())],
    ]
    blocks: list[Block] = [method, fit_text(config, summary), Table(["", ""], settings), Code(facts.command)]
    yield Section("Method", f"{config.num_fewshot}-shot, one request a question", blocks)


def fit_text(config: MMLUConfig, summary: Overall) -> str:
    """Return a sentence on how many prompts did not fit with all their examples."""
    short = summary.shortened_prompts
    if not short["questions"]:
        return "All examples fitted into every prompt."
    return (
        f"{number(short['questions'])} prompt(s) did not fit {config.context} tokens with all examples; "
        f"{number(short['examples_dropped'])} examples were dropped, the last ones first: samples.csv lists them."
    )


def deviations(config: MMLUConfig, data: Data, rows: Sequence[MMLUAnswer]) -> list[str]:
    """Return why the number is not the model's MMLU score; empty if it is."""
    reasons = []
    if config.model_spec.deviation:
        reasons.append(config.model_spec.deviation)
    if config.model_spec.mmlu and not config.dataset_path:
        reasons.append("the demo's own questions")
    if config.has_dummy_weights:
        reasons.append("dummy weights")
    if len(data.test) < data.whole:
        reasons.append(f"a sample of {len(data.test):,} of {data.whole:,} questions, seed {config.seed}")
    subjects = {question.subject for question in data.test}
    if len(subjects) < len(DOMAIN_OF):
        reasons.append(f"{len(subjects)} of {len(DOMAIN_OF)} subjects")
    cut = sum(answer.prompt.dropped > 0 for answer in rows)
    if cut:
        reasons.append(f"{cut:,} of {len(rows):,} prompts with fewer than {config.num_fewshot} examples")
    return reasons


def detail_lines(data: Data, rows: Sequence[MMLUAnswer]) -> str:
    """Return the text of details.jsonl: each row of samples.csv with the texts of its question, choices and
    examples.
    """
    lines = []
    for question, answer in zip(data.test, rows, strict=True):
        examples = data.examples.get(question.subject, [])[: answer.prompt.examples]
        fields = sample_cells(answer) | {
            "question": question.text,
            "choices": question.choices,
            "examples": [example.text for example in examples],
        }
        lines.append(json.dumps(fields, ensure_ascii=False) + "\n")
    return "".join(lines)


def document(
    config: MMLUConfig, facts: MMLUFacts, summary: Overall, domains: ScoresByName, subjects: ScoresByName
) -> Document:
    """Return the main page: the accuracy with its meaning, the accuracy by domain, and cautions."""
    low, high = summary.interval_95
    by_subject = f"mean of the {summary.subjects} subjects {percent(summary.macro_average)} %"
    small = sum(part.n < FEW_QUESTIONS for part in subjects.values())
    if small:
        by_subject += f"; {small} of them have fewer than {FEW_QUESTIONS} questions and are not drawn"
    hits = "unknown"
    if summary.cache_hit_rate is not None:
        hits = f"{percent(summary.cache_hit_rate, 1)} %"
    lines = [
        Line("95 % interval", f"{percent(low)} to {percent(high)} %; {summary.correct:,} of {summary.n:,} right"),
        Line("by domain", ", ".join(f"{name} {percent(part.accuracy)} %" for name, part in domains.items())),
        Line("by subject", by_subject),
        Line("speed", f"{number(summary.questions_per_s)} questions/s"),
        Line("prefix cache", f"{hits} of {number(summary.prompt_tokens)} prompt tokens"),
    ]
    if summary.notes:
        lines.append(caution_line(f"not the model's MMLU score: {'; '.join(summary.notes)}"))
    return Document(title(summary), subject(config, facts, summary), lines)


def title(summary: Overall) -> str:
    """Return the accuracy as a title. It says so if the accuracy is no better than guessing."""
    text = f"{percent(summary.overall_accuracy)} % right"
    if summary.standard_error is not None:
        text += f" (standard error {percent(summary.standard_error)})"
    low, high = summary.interval_95
    if low <= GUESSING:
        comparison = "worse" if high < GUESSING else "no better"
        text += f": {comparison} than guessing, which gives 25 %"
    return text


def subject(config: MMLUConfig, facts: MMLUFacts, summary: Overall) -> str:
    """Return what was asked, of which model, on which machine."""
    system = facts.system
    machine = gpu_names(system.gpus) if system.gpus else f"{system.cores} CPU cores"
    size = f"{config.num_fewshot}-shot, {model_name(config.model)}, {number(summary.n)} questions"
    text = f"MMLU, {size} on {summary.subjects} subjects, {machine}"
    if not config.endpoint:
        text += f", vLLM {system.vllm_version or 'unknown'}"
    return text


def score_panels(domains: ScoresByName, subjects: ScoresByName) -> list[Panel]:
    """Return the panels of accuracy by domain and by subject. Subjects with few questions are left out."""
    large = {name: part for name, part in subjects.items() if part.n >= FEW_QUESTIONS}
    return [score_bars(scores) for scores in (domains, large) if scores]


def score_bars(scores: ScoresByName) -> Bars:
    """Return bars with 95 % intervals, domain after domain. Within a domain the best comes first."""
    rows = []
    for domain, color in DOMAIN_COLORS.items():
        scores_of_domain = {name: score for name, score in scores.items() if domain in (name, DOMAIN_OF.get(name))}
        for name, score in sorted(scores_of_domain.items(), key=accuracy_of, reverse=True):
            legend = "" if name == domain else domain
            parts = [StackedPart(0.0, 100 * score.accuracy, color, name=legend)]
            ends = 100 * score.low, 100 * score.high
            label = f"{name.replace('_', ' ')} ({number(score.n)})"
            rows.append(Bar(label, percent(score.accuracy, 1), parts, ends))
    axis = "accuracy, %; lines: 95 % intervals; at 25 %: guessing; the number of questions beside each name"
    return Bars("", axis, rows, [100 * GUESSING], Scale(0.0, 110.0))


def accuracy_of(item: tuple[str, Score]) -> float:
    _, score = item
    return score.accuracy
