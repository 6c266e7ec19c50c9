"""MMLU: answers -> accuracy by subject, domain and overall; a whole evaluation and what it leaves in its folder."""

import asyncio
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import JsonValue

from harness import engines
from harness.config import checkpoint, pretrained
from harness.config.resolve import resolve
from harness.core import errors, last_screen, nvml, processes, progress, secrets, statistics
from harness.core.csv_files import write_table
from harness.core.document import Block, Code, Document, Line, Picture, Section, to_markdown
from harness.core.files import as_json, whole_or_nothing, write_json, write_text
from harness.core.formatting import Measured, gpu_names, listed, number, percent
from harness.core.schema import SCHEMA, File, fields_from
from harness.core.tables import Table
from harness.engines.protocol import ChoiceLogprobs, Engine
from harness.loadgen.watchdog import Watchdog
from harness.mmlu import data as questions
from harness.mmlu.data import DOMAIN_OF, DOMAINS, LETTERS, Data, MMLUConfig, Prompt
from harness.report.answer import model_name
from harness.report.charts import Bar, Bars, Panel, Part, Scale, save
from harness.report.page import page
from harness.results import benchmark_run, records
from harness.runner import tracking
from harness.runner.start import start
from harness.runs import history, run_folder


# What an MMLU evaluation leaves behind, typed: config.json, overall.json and the lines of its history.
class MMLUFacts(records.Facts):
    """config.json: every setting, and what is known of the evaluation."""

    config: dict[str, JsonValue]
    prompts_s: Measured = None
    """Seconds in which the prompts were built."""


class Overall(File):
    """overall.json; accuracies are shares of 1."""

    overall_accuracy: float
    n: int
    correct: int
    standard_error: Measured
    interval_95: tuple[float, float]
    macro_average: float
    """The mean of the subjects."""
    subjects: int
    ties: int
    shortened_prompts: dict[Literal["questions", "examples_dropped"], int]
    """Prompts that did not fit with all their examples."""
    prompt_tokens: int
    cached_tokens: int | None
    """Null where a server does not tell."""
    cache_hit_rate: Measured
    questions_per_s: float
    seconds: float
    test_questions: int
    num_fewshot: int
    notes: list[str]


class MMLUHistory(File):
    """What the index shows of a line of results/mmlu/history.jsonl, which has all settings and all of overall.json."""

    run: str
    model: str | None = None
    precision: str | None = None
    quantization: str | None = None
    overall_accuracy: Measured = None
    standard_error: Measured = None
    macro_average: Measured = None
    n: int | None = None
    test_questions: int | None = None
    num_fewshot: int | None = None
    questions_per_s: Measured = None
    notes: list[str] = []


class Answer(NamedTuple):
    """What the model chose for a question: log-probabilities of the four letters, which sum to 1 as probabilities."""

    prompt: Prompt
    choice: ChoiceLogprobs
    latency_s: float  # from when the engine was handed the question

    @property
    def subject(self) -> str:
        return self.prompt.question.subject

    @property
    def domain(self) -> str:
        return DOMAIN_OF[self.subject]

    @property
    def right(self) -> str:
        return LETTERS[self.prompt.question.answer]

    @property
    def prediction(self) -> str:
        """The likeliest letter; where several are, the first in the alphabet."""
        return LETTERS[self.choice.logprobs.index(max(self.choice.logprobs))]

    @property
    def is_correct(self) -> bool:
        return self.prediction == self.right

    @property
    def is_tied(self) -> bool:
        """Whether two letters share the highest log-probability."""
        return self.choice.logprobs.count(max(self.choice.logprobs)) > 1


class Score(NamedTuple):
    """Accuracy over `n` questions; `low` and `high` are Wilson's 95 % interval."""

    n: int
    correct: int
    accuracy: float
    standard_error: Measured
    low: float
    high: float


def score(rows: Iterable[Answer]) -> Score:
    """The standard error is the sample standard deviation of right and wrong over sqrt(n): None for one question."""
    hits = [answer.is_correct for answer in rows]
    n, correct = len(hits), sum(hits)
    accuracy = correct / n
    error = math.sqrt(accuracy * (1 - accuracy) / (n - 1)) if n > 1 else None
    return Score(n, correct, accuracy, error, *statistics.wilson(correct, n))


Scores = dict[str, Score]  # by subject, or by domain


def group_scores(rows: Sequence[Answer], name: str) -> Scores:
    """Scores by `domain` or by `subject`, in the order of the domains, then of the alphabet."""
    order = sorted(rows, key=lambda answer: (list(DOMAINS).index(answer.domain), answer.subject))
    return {key: score(group) for key, group in groupby(order, attrgetter(name))}


def overall(rows: Sequence[Answer], seconds: float, test_questions: int, shots: int, notes: list[str]) -> Overall:
    """What overall.json holds of the answers, which took so many seconds."""
    whole, subjects = score(rows), group_scores(rows, "subject")
    dropped = [answer.prompt.dropped for answer in rows if answer.prompt.dropped]
    prompt_tokens = sum(len(answer.prompt.tokens) for answer in rows)
    counts = [answer.choice.cached_tokens for answer in rows]
    cached = None if None in counts else sum(filter(None, counts))
    return Overall(
        **fields_from(Overall, whole),
        schema_version=SCHEMA,
        overall_accuracy=whole.accuracy,
        interval_95=(whole.low, whole.high),
        macro_average=sum(part.accuracy for part in subjects.values()) / len(subjects),
        subjects=len(subjects),
        ties=sum(answer.is_tied for answer in rows),
        shortened_prompts={"questions": len(dropped), "examples_dropped": sum(dropped)},
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        cache_hit_rate=None if cached is None else cached / prompt_tokens,
        questions_per_s=whole.n / seconds,
        seconds=seconds,
        test_questions=test_questions,
        num_fewshot=shots,
        notes=notes,
    )


def cells(answer: Answer) -> dict[str, object]:
    """A line of samples.csv, by column."""
    prompt, choice = answer.prompt, answer.choice
    return {
        "subject": answer.subject,
        "domain": answer.domain,
        "number": prompt.question.number,
        "answer": answer.right,
        "prediction": answer.prediction,
        "correct": int(answer.is_correct),
        **{f"logprob_{letter}": round(value, 6) for letter, value in zip(LETTERS, choice.logprobs, strict=True)},
        "prompt_tokens": len(prompt.tokens),
        "cached_tokens": choice.cached_tokens,
        "latency_s": round(answer.latency_s, 6),
        "examples": prompt.examples,
        "dropped_examples": prompt.dropped,
    }


COLORS = dict(zip(DOMAINS, ("blue", "amber", "green", "purple"), strict=True))
GUESSING = 1 / len(LETTERS)
FEW = 30  # questions of a subject, below which its interval is wider than 30 points


def write(
    run: run_folder.RunFolder,
    config: MMLUConfig,
    facts: MMLUFacts,
    data: Data,
    seconds: float,
    rows: Sequence[Answer],
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


HEAD = ("accuracy %", "std. error", "95 % interval", "right", "questions")


def score_cells(part: Score) -> list[object]:
    ends = f"{percent(part.low)} to {percent(part.high)}"
    return [percent(part.accuracy), percent(part.standard_error), ends, part.correct, part.n]


def sections(
    config: MMLUConfig,
    facts: MMLUFacts,
    source: str,
    summary: Overall,
    domains: Scores,
    subjects: Scores,
    picture: Picture,
) -> Iterator[Section]:
    """The picture, the scores by domain and by subject, and how they came about."""
    system = facts.system
    yield Section(picture.title, "", [picture], is_open=True)
    by_domain = Table(["domain", *HEAD], [[name, *score_cells(part)] for name, part in domains.items()])
    yield Section("Domains", f"{len(domains)} domains", [by_domain])
    rows = [[name.replace("_", " "), DOMAIN_OF[name], *score_cells(part)] for name, part in subjects.items()]
    yield Section("Subjects", f"{summary.subjects} subjects", [Table(["subject", "domain", *HEAD], rows)])
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


def deviations(config: MMLUConfig, data: Data, rows: Sequence[Answer]) -> list[str]:
    """Why the number is not the model's MMLU score; empty where it is."""
    subjects = len({question.subject for question in data.test})
    cut = sum(answer.prompt.dropped > 0 for answer in rows)
    found = {
        config.model_spec.deviation: config.model_spec.deviation,
        "the demo's own questions": config.model_spec.mmlu and not config.dataset_path,
        "dummy weights": config.has_dummy_weights,
        f"a sample of {len(data.test):,} of {data.whole:,} questions, seed {config.seed}": len(data.test) < data.whole,
        f"{subjects} of {len(DOMAIN_OF)} subjects": subjects < len(DOMAIN_OF),
        f"{cut:,} of {len(rows):,} prompts with fewer than {config.num_fewshot} examples": cut,
    }
    return [why for why, applies in found.items() if applies]


def details(data: Data, rows: Sequence[Answer]) -> str:
    """details.jsonl: each line of samples.csv with the texts of its question, its choices and its examples."""
    lines = (
        cells(answer)
        | {
            "question": question.text,
            "choices": question.choices,
            "examples": [each.text for each in data.examples.get(question.subject, [])[: answer.prompt.examples]],
        }
        for question, answer in zip(data.test, rows, strict=True)
    )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def document(config: MMLUConfig, facts: MMLUFacts, summary: Overall, domains: Scores, subjects: Scores) -> Document:
    """The accuracy with its meaning, by domain, and what must be known of it."""
    error = "" if summary.standard_error is None else f" (standard error {percent(summary.standard_error)})"
    low, high = summary.interval_95
    compared = "worse" if high < GUESSING else "no better"
    guessed = "" if low > GUESSING else f": {compared} than guessing, which gives 25 %"
    system, engine = facts.system, "" if config.endpoint else f", vLLM {facts.system.vllm_version or 'unknown'}"
    machine = gpu_names(system.gpus) if system.gpus else f"{system.cores} CPU cores"
    size = f"{config.num_fewshot}-shot, {model_name(config.model)}, {number(summary.n)} questions"
    small = sum(part.n < FEW for part in subjects.values())
    undrawn = f"; {small} of them have fewer than {FEW} questions and are not drawn" * bool(small)
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


def panels(domains: Scores, subjects: Scores) -> list[Panel]:
    """Accuracy by domain, and by subject where there are enough questions of one."""
    large = {name: part for name, part in subjects.items() if part.n >= FEW}
    return [bars(each) for each in (domains, large) if each]


def bars(scores: Scores) -> Bars:
    """Domain after domain, of each the best first, with 95 % intervals."""
    rows = []
    for domain, color in COLORS.items():
        names = [name for name in scores if domain in (name, DOMAIN_OF.get(name))]
        for name in sorted(names, key=lambda name: -scores[name].accuracy):
            part = scores[name]
            drawn = [Part(0.0, 100 * part.accuracy, color, name=domain * (domain != name))]
            ends = 100 * part.low, 100 * part.high
            rows.append(Bar(f"{name.replace('_', ' ')} ({number(part.n)})", percent(part.accuracy, 1), drawn, ends))
    label = "accuracy, %; lines: 95 % intervals; at 25 %: guessing; the number of questions beside each name"
    return Bars("", label, rows, [100 * GUESSING], Scale(0.0, 110.0))


# The way of one MMLU evaluation: questions, prompts, engine, answers, report.
QUEUE_FACTOR = 2  # requests handed to the engine for each one it can compute at once: enough to keep it busy


def evaluate(config: MMLUConfig, run: run_folder.RunFolder, display: progress.Display) -> int:
    """The way of one evaluation."""
    settings = config.model_dump() | {"engine_arg": [secrets.hide_word(pair) for pair in config.engine_arg]}
    settings |= {"max_model_len": config.context, "dataset_path": config.folder or "hub"}
    facts = MMLUFacts(config=as_json(settings), **benchmark_run.first_facts())
    write_json(run.path / "config.json", facts.model_dump(mode="json"))
    display.say(f"MMLU, {config.model}, {config.num_fewshot}-shot")

    subjects = questions.chosen_subjects(config.subjects)
    data = questions.load(config.folder, subjects, config.num_fewshot, config.total_sample_count, config.seed)
    tokenizer = pretrained.load_tokenizer(config)
    begin = time.perf_counter()
    built = questions.build(data, config.num_fewshot, tokenizer, config.context)
    facts.prompts_s = round(time.perf_counter() - begin, 3)
    letters = questions.letter_tokens(tokenizer, questions.text(data.test[0], []))
    display.done(f"{len(built):,} of {data.whole:,} questions on {len(subjects)} subjects from {data.source}")

    plan = resolve(config.run, nvml.gpus(), checkpoint.weight_bytes(config))
    engine = engines.create(plan, run.path, choosing=True)
    start(engine, facts, run, config.stall_timeout, display)
    watchdog = Watchdog(engine, config.stall_timeout)
    display.stage("warming up", "load")
    # vLLM compiles what ranks log-probabilities only at the first
    ask([built[0]._replace(tokens=letters)], letters, engine, watchdog, display, run.path)
    display.stage("asking", "load")
    begin = time.perf_counter()
    rows = ask(built, letters, engine, watchdog, display, run.path)
    seconds = time.perf_counter() - begin
    display.done(f"{len(built):,} questions in {seconds:.1f} s")
    display.stage(f"stopping {engine.name}")
    engine.close()

    processes.ignore_signals()  # all is asked: what ends a command is not to cost the run
    display.stage("writing the report")
    write_json(run.path / "config.json", facts.model_dump(mode="json"))
    summary, report = write(run, config, facts, data, seconds, rows)
    known = {"started": facts.started, "gpus": facts.system.gpus}
    history.finish(run, facts.config | summary.model_dump(mode="json") | known, say=display.done)
    with history.or_say(display.done, f"{config.runs / 'index.md'} could not be written"):
        history.write_index(config.runs, "mmlu_index.md.j2", MMLUHistory)
    last_screen.show(display.console, report, run.path / "report.html")
    tracking.send_to_mlflow(run.path, config.mlflow, config.results_dir, display.done)
    return errors.DONE


def ask(
    prompts: Sequence[Prompt],
    letters: list[int],
    engine: Engine,
    watchdog: Watchdog,
    display: progress.Display,
    folder: Path,
) -> list[Answer]:
    """The engine's answers, in order. Raises EngineError, or BenchmarkError when the disk is full."""
    counters = progress.Counters(issued=len(prompts))

    def watch() -> None:
        display.tick(counters, len(prompts))
        watchdog.check_run(folder)

    async def answer_all() -> list[Answer]:
        gate = asyncio.Semaphore(QUEUE_FACTOR * engine.concurrency)

        async def answer(prompt: Prompt) -> Answer:
            async with gate:
                begin = time.perf_counter()
                choice = await engine.score_choices(prompt.tokens, letters)
                counters.completed += 1
                counters.tokens += len(prompt.tokens)
                return Answer(prompt, choice, time.perf_counter() - begin)

        return await asyncio.gather(*map(answer, prompts))

    watchdog.reset()
    return engine.run(answer_all(), watch)
