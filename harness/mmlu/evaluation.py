"""The way of one MMLU evaluation: questions, prompts, engine, answers, report."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness import engines
from harness.config import checkpoint
from harness.config.plan import resolve
from harness.core import screen, system
from harness.core.errors import DONE
from harness.core.files import as_json, write_json
from harness.core.processes import ignore_signals
from harness.core.secrets import hide_word
from harness.engines.protocol import Engine
from harness.loadgen.watchdog import Watchdog, start
from harness.mmlu import data as questions
from harness.mmlu import scores
from harness.mmlu.scores import Answer, MMLUFacts, MMLUHistory
from harness.runs import folder as results

QUEUE_FACTOR = 2  # requests handed to the engine for each one it can compute at once: enough to keep it busy


def evaluate(config: questions.MMLUConfig, run: results.RunFolder, display: screen.Display) -> int:
    """The way of one evaluation."""
    settings = config.model_dump() | {"engine_arg": [hide_word(pair) for pair in config.engine_arg]}
    settings |= {"max_model_len": config.context, "dataset_path": config.folder or "hub"}
    facts = MMLUFacts(config=as_json(settings), **results.first_facts())
    write_json(run.path / "config.json", facts.model_dump(mode="json"))
    display.say(f"MMLU, {config.model}, {config.num_fewshot}-shot")

    subjects = questions.chosen_subjects(config.subjects)
    data = questions.load(config.folder, subjects, config.num_fewshot, config.total_sample_count, config.seed)
    tokenizer = checkpoint.load_tokenizer(config)
    begin = time.perf_counter()
    built = questions.build(data, config.num_fewshot, tokenizer, config.context)
    facts.prompts_s = round(time.perf_counter() - begin, 3)
    letters = questions.letter_tokens(tokenizer, questions.text(data.test[0], []))
    display.done(f"{len(built):,} of {data.whole:,} questions on {len(subjects)} subjects from {data.source}")

    plan = resolve(config.run, system.gpus(), checkpoint.weight_bytes(config))
    engine = engines.create(plan, run.path, choosing=True)
    start(engine, facts, run, config.stall_timeout, display)
    watchdog = Watchdog(engine, config.stall_timeout)
    display.stage("warming up", "load")
    # vLLM compiles what ranks log-probabilities only at the first
    ask([replace(built[0], tokens=letters)], letters, engine, watchdog, display, run.path)
    display.stage("asking", "load")
    begin = time.perf_counter()
    rows = ask(built, letters, engine, watchdog, display, run.path)
    seconds = time.perf_counter() - begin
    display.done(f"{len(built):,} questions in {seconds:.1f} s")
    display.stage(f"stopping {engine.name}")
    engine.close()

    ignore_signals()  # all is asked: what ends a command is not to cost the run
    display.stage("writing the report")
    write_json(run.path / "config.json", facts.model_dump(mode="json"))
    summary = scores.write(run, config, facts, data, seconds, rows)
    line = MMLUHistory.of(run.name, facts, summary).model_dump(mode="json", exclude={"run"})
    results.finish(run, line, say=display.done)
    with results.or_say(display.done, f"{config.runs / 'index.md'} could not be written"):
        results.write_index(config.runs, "mmlu_index.md.j2", MMLUHistory)
    screen.show(display.console, scores.document(config, facts, summary, rows), run.path / "report.html")
    return DONE


def ask(
    prompts: Sequence[questions.Prompt],
    letters: list[int],
    engine: Engine,
    watchdog: Watchdog,
    display: screen.Display,
    folder: Path,
) -> list[Answer]:
    """The engine's answers, in order. Raises EngineError, or BenchmarkError when the disk is full."""
    counters = screen.Counters(issued=len(prompts))

    def watch() -> None:
        display.tick(counters, len(prompts))
        watchdog.check_run(folder)

    async def answer_all() -> list[Answer]:
        gate = asyncio.Semaphore(QUEUE_FACTOR * engine.concurrency)

        async def answer(prompt: questions.Prompt) -> Answer:
            async with gate:
                begin = time.perf_counter()
                choice = await engine.score_choices(prompt.tokens, letters)
                counters.completed += 1
                counters.tokens += len(prompt.tokens)
                return Answer(prompt, choice, time.perf_counter() - begin)

        return await asyncio.gather(*map(answer, prompts))

    watchdog.reset()
    return engine.run(answer_all(), watch)
