"""The report of an MMLU evaluation: tables, pictures and answers."""

import json
from collections.abc import Iterator, Sequence

from harness.core.csv_files import write_table
from harness.core.document import Block, Code, Document, Line, Picture, Section, to_markdown
from harness.core.files import whole_or_nothing, write_json, write_text
from harness.core.formatting import gpu_names, listed, number, percent
from harness.core.tables import Table
from harness.mmlu.mmlu_config import MMLUConfig
from harness.mmlu.question_data import DOMAIN_OF, DOMAINS, LETTERS, Data
from harness.mmlu.records import MMLUFacts, Overall
from harness.mmlu.scores import MMLUAnswer, Score, ScoresByName, cells, group_scores, overall
from harness.report.charts import Bar, Bars, Panel, Scale, StackedPart, save
from harness.report.page import page
from harness.report.subject import model_name
from harness.runs import run_folder

DOMAIN_COLORS = dict(zip(DOMAINS, ("blue", "amber", "green", "purple"), strict=True))
GUESSING = 1 / len(LETTERS)
FEW_QUESTIONS = 30  # questions of a subject, below which its interval is wider than 30 points


def write(
    run: run_folder.RunFolder,
    config: MMLUConfig,
    facts: MMLUFacts,
    data: Data,
    seconds: float,
    rows: Sequence[MMLUAnswer],
) -> tuple[Overall, Document]:
    """Writes every result into the run's folder, all or none of them; returns overall.json and the report."""
    summary = overall(rows, seconds, data.whole, config.num_fewshot, deviations(config, data, rows))
    domains, subjects = group_scores(rows, "domain"), group_scores(rows, "subject")
    with whole_or_nothing(run.path) as place:
        write_json(place / "overall.json", summary.model_dump(mode="json"))
        write_json(place / "by_domain.json", {name: part._asdict() for name, part in domains.items()})
        write_json(
            place / "by_subject.json",
            {name: {"domain": DOMAIN_OF[name]} | part._asdict() for name, part in subjects.items()},
        )
        write_table(place / "samples.csv", cells(rows[0]), (cells(answer).values() for answer in rows))
        if config.details:
            write_text(place / "details.jsonl", details(data, rows))
        picture = save({"scores": ("Accuracy by domain and subject", panels(domains, subjects))}, place / "plots")
        parts = sections(config, facts, data.source, summary, domains, subjects, *picture.values())
        found = document(config, facts, summary, domains, subjects)._replace(sections=[*parts])
        write_text(place / "report.md", to_markdown(found))
        write_text(place / "report.html", page(found))
    return summary, found


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
    """The picture, the scores by domain and by subject, and how they came about."""
    system = facts.system
    yield Section(picture.title, "", [picture], is_open=True)
    by_domain = Table(["domain", *SCORE_COLUMNS], [[name, *score_cells(part)] for name, part in domains.items()])
    yield Section("Domains", f"{len(domains)} domains", [by_domain])
    rows = [[name.replace("_", " "), DOMAIN_OF[name], *score_cells(part)] for name, part in subjects.items()]
    yield Section("Subjects", f"{summary.subjects} subjects", [Table(["subject", "domain", *SCORE_COLUMNS], rows)])
    short = summary.shortened_prompts
    fitted = "All examples fitted into every prompt."
    if short["questions"]:
        fitted = (
            f"{number(short['questions'])} prompt(s) did not fit {config.context} tokens with all examples; "
            f"{number(short['examples_dropped'])} examples were dropped, the last ones first: samples.csv lists them."
        )
    method = (
        f"Each question follows {config.num_fewshot} example(s) of its subject from the dev split; the answer is the "
        "likeliest of the letters A to D as the next token, one request a question. "
        f"Exact ties between letters: {summary.ties} (the first in the alphabet counts)."
    )
    quantized = f", {config.quantization}" if config.quantization != "none" else ""
    settings = [
        ["data", source],
        ["started", facts.started],
        ["precision", f"{config.precision}{quantized}, KV cache {config.kv_cache_dtype}"],
        ["software", listed(system.packages)],
        ["engine arguments", " ".join(f"{name}={value}" for name, value in facts.engine_args.items())],
    ]
    blocks: list[Block] = [method, fitted, Table(["", ""], settings), Code(facts.command)]
    yield Section("Method", f"{config.num_fewshot}-shot, one request a question", blocks)


def deviations(config: MMLUConfig, data: Data, rows: Sequence[MMLUAnswer]) -> list[str]:
    """Return why the number is not the model's MMLU score; empty where it is."""
    subjects = len({question.subject for question in data.test})
    cut = sum(answer.prompt.dropped > 0 for answer in rows)
    reasons = {
        config.model_spec.deviation: config.model_spec.deviation,
        "the demo's own questions": config.model_spec.mmlu and not config.dataset_path,
        "dummy weights": config.has_dummy_weights,
        f"a sample of {len(data.test):,} of {data.whole:,} questions, seed {config.seed}": len(data.test) < data.whole,
        f"{subjects} of {len(DOMAIN_OF)} subjects": subjects < len(DOMAIN_OF),
        f"{cut:,} of {len(rows):,} prompts with fewer than {config.num_fewshot} examples": cut,
    }
    return [why for why, applies in reasons.items() if applies]


def details(data: Data, rows: Sequence[MMLUAnswer]) -> str:
    """details.jsonl: each line of samples.csv with the texts of its question, its choices and its examples."""
    lines = (
        cells(answer)
        | {
            "question": question.text,
            "choices": question.choices,
            "examples": [example.text for example in data.examples.get(question.subject, [])[: answer.prompt.examples]],
        }
        for question, answer in zip(data.test, rows, strict=True)
    )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def document(
    config: MMLUConfig, facts: MMLUFacts, summary: Overall, domains: ScoresByName, subjects: ScoresByName
) -> Document:
    """The accuracy with its meaning, by domain, and what must be known of it."""
    error = "" if summary.standard_error is None else f" (standard error {percent(summary.standard_error)})"
    low, high = summary.interval_95
    compared = "worse" if high < GUESSING else "no better"
    guessed = "" if low > GUESSING else f": {compared} than guessing, which gives 25 %"
    system, engine = facts.system, "" if config.endpoint else f", vLLM {facts.system.vllm_version or 'unknown'}"
    machine = gpu_names(system.gpus) if system.gpus else f"{system.cores} CPU cores"
    size = f"{config.num_fewshot}-shot, {model_name(config.model)}, {number(summary.n)} questions"
    small = sum(part.n < FEW_QUESTIONS for part in subjects.values())
    undrawn = f"; {small} of them have fewer than {FEW_QUESTIONS} questions and are not drawn" * bool(small)
    rate = summary.cache_hit_rate
    hits = "unknown" if rate is None else f"{percent(rate, 1)} %"
    notes = "; ".join(summary.notes)
    lines = [
        Line("95 % interval", f"{percent(low)} to {percent(high)} %; {summary.correct:,} of {summary.n:,} right"),
        Line("by domain", ", ".join(f"{name} {percent(part.accuracy)} %" for name, part in domains.items())),
        Line("by subject", f"mean of the {summary.subjects} subjects {percent(summary.macro_average)} %{undrawn}"),
        Line("speed", f"{number(summary.questions_per_s)} questions/s"),
        Line("prefix cache", f"{hits} of {number(summary.prompt_tokens)} prompt tokens"),
        Line("careful", notes and f"not the model's MMLU score: {notes}", "careful"),
    ]
    title = f"{percent(summary.overall_accuracy)} % right{error}{guessed}"
    subject = f"MMLU, {size} on {summary.subjects} subjects, {machine}{engine}"
    return Document(title, subject, lines)


def panels(domains: ScoresByName, subjects: ScoresByName) -> list[Panel]:
    """Accuracy by domain, and by subject where there are enough questions of one."""
    large = {name: part for name, part in subjects.items() if part.n >= FEW_QUESTIONS}
    return [bars(scores) for scores in (domains, large) if scores]


def bars(scores: ScoresByName) -> Bars:
    """Domain after domain, of each the best first, with 95 % intervals."""
    rows = []
    for domain, color in DOMAIN_COLORS.items():
        names = [name for name in scores if domain in (name, DOMAIN_OF.get(name))]
        for name in sorted(names, key=lambda name: -scores[name].accuracy):
            part = scores[name]
            drawn = [StackedPart(0.0, 100 * part.accuracy, color, name=domain * (domain != name))]
            ends = 100 * part.low, 100 * part.high
            rows.append(Bar(f"{name.replace('_', ' ')} ({number(part.n)})", percent(part.accuracy, 1), drawn, ends))
    label = "accuracy, %; lines: 95 % intervals; at 25 %: guessing; the number of questions beside each name"
    return Bars("", label, rows, [100 * GUESSING], Scale(0.0, 110.0))
