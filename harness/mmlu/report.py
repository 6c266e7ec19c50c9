"""MMLU: what a finished evaluation leaves in its folder, and the pictures in it."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.core.files import whole_or_nothing, write_json, write_text
from harness.core.markdown import number, percent, render
from harness.core.schema import gpu_names
from harness.core.screen import LastScreen, Line
from harness.mmlu.data import DOMAIN_OF, DOMAINS, LETTERS, Data, MMLUConfig
from harness.mmlu.scores import Answer, MMLUFacts, Overall, Score, group_scores, overall, write_csv
from harness.report.answer import model_name
from harness.report.page import of_screen
from harness.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, pyplot, save
from harness.runs.folder import RunFolder

COLORS = dict(zip(DOMAINS, (BLUE, ORANGE, GREEN, PURPLE), strict=True))
GUESSING, WORSE, NO_BETTER = 1 / len(LETTERS), "worse", "no better"
FEW = 30  # questions of a subject, below which its interval is wider than 30 points


def write(
    run: RunFolder,
    config: MMLUConfig,
    facts: MMLUFacts,
    data: Data,
    seconds: float,
    rows: Sequence[Answer],
) -> Overall:
    """Writes every result into the run's folder, all or none of them; returns what overall.json holds."""
    summary = overall(rows, seconds, data.whole, config.num_fewshot, deviations(config, data, rows))
    domains, subjects = group_scores(rows, "domain"), group_scores(rows, "subject")
    with whole_or_nothing(run.path) as place:
        write_json(place / "overall.json", summary.model_dump(mode="json"))
        write_json(place / "by_domain.json", {name: asdict(part) for name, part in domains.items()})
        write_json(
            place / "by_subject.json",
            {name: {"domain": DOMAIN_OF[name]} | asdict(part) for name, part in subjects.items()},
        )
        write_csv(place / "samples.csv", rows)
        if config.details:
            write_text(place / "details.jsonl", details(data, rows))
        drawn = save({"score_by_subject": by_subject(subjects)}, place / "plots")
        shown = {"Accuracy of each subject": drawn["score_by_subject"]}
        values = dict(
            run=run.name,
            config=config,
            source=data.source,
            summary=summary,
            domains=domains,
            subjects=subjects,
            domain_of=DOMAIN_OF,
            letters=LETTERS,
            facts=facts,
        )
        screen = last_screen(config, facts, summary, rows)
        write_text(place / "report.md", f"{render('mmlu.md.j2', sent=False, **values)}\n")
        page = of_screen(screen, place, render("mmlu.md.j2", sent=True, **values), shown)
        write_text(place / "report.html", page)
    return summary


def deviations(config: MMLUConfig, data: Data, rows: Sequence[Answer]) -> list[str]:
    """Why the number is not the model's MMLU score; empty where it is."""
    subjects = len({question.subject for question in data.test})
    cut = sum(answer.prompt.dropped > 0 for answer in rows)
    found = {
        config.model_spec.deviation: config.model_spec.deviation,
        "the demo's own questions": config.model_spec.mmlu and config.dataset_path is None,
        "dummy weights": config.has_dummy_weights,
        f"a sample of {len(data.test):,} of {data.whole:,} questions, seed {config.seed}": len(data.test) < data.whole,
        f"{subjects} of {len(DOMAIN_OF)} subjects": subjects < len(DOMAIN_OF),
        f"{cut:,} of {len(rows):,} prompts with fewer than {config.num_fewshot} examples": cut,
    }
    return [why for why, applies in found.items() if applies]


def details(data: Data, rows: Sequence[Answer]) -> str:
    """details.jsonl: each question with its text and its answer."""
    lines = (
        {
            "subject": question.subject,
            "number": question.number,
            "answer": answer.right,
            "prediction": answer.prediction,
            "correct": answer.is_correct,
            "question": question.text,
            "choices": question.choices,
            "logprobs": dict(zip(LETTERS, answer.choice.logprobs, strict=True)),
            "examples": [each.text for each in data.examples.get(question.subject, [])[: answer.prompt.examples]],
        }
        for question, answer in zip(data.test, rows, strict=True)
    )
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def last_screen(config: MMLUConfig, facts: MMLUFacts, summary: Overall, rows: Sequence[Answer]) -> LastScreen:
    """The accuracy with its meaning, by domain, and what must be known of it."""
    error = "" if summary.standard_error is None else f" (standard error {percent(summary.standard_error)})"
    low, high = summary.interval_95
    guessed = "" if low > GUESSING else f": {WORSE if high < GUESSING else NO_BETTER} than guessing, which gives 25 %"
    system, engine = facts.system, "" if config.endpoint else f", vLLM {facts.system.vllm_version or 'unknown'}"
    machine = gpu_names(system.gpus) if system.gpus else f"{system.cores} CPU cores"
    size = f"{config.num_fewshot}-shot, {model_name(config.model)}, {number(summary.n)} questions"
    domains = (f"{name} {percent(part.accuracy)} %" for name, part in group_scores(rows, "domain").items())
    few = summary.n // summary.subjects
    rate = summary.cache_hit_rate
    hits = "" if rate is None else f", {percent(rate, 1)} % prefix-cache hits"
    lines = [
        Line("by domain", ", ".join(domains)),
        Line("by subject", f"mean of the subjects {percent(summary.macro_average)} %"),
        Line("speed", f"{number(summary.questions_per_s)} questions/s{hits}"),
        *(Line("careful", note, "careful") for note in summary.notes),
        Line("careful", f"{few} questions a subject: too few to compare subjects" if few < FEW else "", "careful"),
    ]
    title = f"{percent(summary.overall_accuracy)} % right{error}{guessed}"
    subject = f"MMLU, {size} on {summary.subjects} subjects, {machine}{engine}"
    return LastScreen(title, subject, [line for line in lines if line.text])


def by_subject(subjects: dict[str, Score]) -> Any:
    """Accuracy by subject. One bar each, by domain, best first; the bars of error are 95 % intervals."""
    places, at = {}, 0.0
    for domain in DOMAINS:
        names = [name for name in subjects if DOMAIN_OF[name] == domain]
        for name in sorted(names, key=lambda name: (-subjects[name].accuracy, name)):
            places[name] = at
            at += 1
        at += 0.8 if names else 0
    figure, axes = pyplot().subplots(figsize=(9, 0.21 * at + 1.2))
    for domain, color in COLORS.items():
        names = [name for name in places if DOMAIN_OF[name] == domain]
        parts = [subjects[name] for name in names]
        ends = [
            [100 * (part.accuracy - part.low) for part in parts],
            [100 * (part.high - part.accuracy) for part in parts],
        ]
        total, correct = sum(part.n for part in parts), sum(part.correct for part in parts)
        axes.barh(
            [places[name] for name in names],
            [100 * part.accuracy for part in parts],
            height=0.72,
            color=color,
            xerr=ends,
            error_kw={"ecolor": "#444", "elinewidth": 0.9, "capsize": 1.5},
            label=f"{domain} {100 * correct / total:.1f} %" if total else domain,
        )
    axes.axvline(25, color=GREY, linestyle="--", linewidth=1, label="guessing")
    labels = [f"{name.replace('_', ' ')} ({subjects[name].n:,})" for name in places]
    axes.set_yticks(list(places.values()), labels, fontsize=8)
    axes.set_ylim(at - 0.9, -0.8)
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy, % (95 % intervals; number of questions beside each name)")
    axes.grid(axis="y", visible=False)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower center", bbox_to_anchor=(0.35, 1.0), ncols=5, fontsize=8, frameon=False)
    return figure
