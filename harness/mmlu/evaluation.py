"""One MMLU evaluation: questions, prompts, engine, answers, report."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from harness import engines
from harness.config import checkpoint, pretrained
from harness.config.resolve import resolve
from harness.core import errors, last_screen, nvml, processes, progress, secrets
from harness.core.files import json_value, write_json
from harness.core.formatting import plural
from harness.engines.protocol import Engine
from harness.loadgen.watchdog import Watchdog
from harness.mmlu import question_data as questions
from harness.mmlu import question_prompts
from harness.mmlu.mmlu_config import MMLUConfig
from harness.mmlu.question_prompts import QuestionPrompt
from harness.mmlu.records import MMLUFacts, MMLUHistory, Overall
from harness.mmlu.report import write_results
from harness.mmlu.scores import MMLUAnswer
from harness.results import benchmark_run
from harness.runner import tracking
from harness.runner.start import start_engine
from harness.runs import history, run_folder

REQUESTS_PER_SLOT = 2  # requests in flight for each that the engine can compute at once, so that it is always busy


def evaluate(config: MMLUConfig, run: run_folder.RunFolder, display: progress.Display) -> int:
    """Run one MMLU evaluation from the questions to the report, and return the exit code.

    Raises BenchmarkError if the questions cannot be used, the engine fails, or a file cannot be written.
    """
    facts = MMLUFacts(config=recorded_settings(config), **benchmark_run.first_facts())
    write_json(run.path / "config.json", facts.model_dump(mode="json"))  # so far; it is written again at the end
    display.say(f"MMLU, {config.model}, {config.num_fewshot}-shot")

    asked = prepare_questions(config, facts, display)
    answers, seconds = answers_of_engine(config, facts, asked, run, display)

    processes.ignore_signals()  # All answers are there, and a signal must not lose them now.
    display.stage("writing the report")
    write_json(run.path / "config.json", facts.model_dump(mode="json"))
    summary, report = write_results(run, config, facts, asked.data, seconds, answers)
    add_to_history(run, config, facts, summary, display)
    last_screen.show(display.console, report, run.path / "report.html")
    tracking.send_to_mlflow(run.path, config.mlflow, config.results_dir, display.leave_line)
    return errors.DONE


class AskedQuestions(NamedTuple):
    """The questions of an evaluation, their prompts, and the tokens of the letters that answer them, A to D."""

    data: questions.QuestionSet
    prompts: list[QuestionPrompt]
    letters: list[int]


def prepare_questions(config: MMLUConfig, facts: MMLUFacts, display: progress.Display) -> AskedQuestions:
    """Load the questions and build their prompts. How long the prompts took is noted in `facts`.

    Raises UsageError if the questions cannot be used.
    """
    subjects = questions.chosen_subjects(config.subjects)
    data = questions.load_questions(config.folder, subjects, config.num_fewshot, config.total_sample_count, config.seed)
    tokenizer = pretrained.load_tokenizer(config)
    begin = time.perf_counter()
    prompts = question_prompts.build_prompts(data, config.num_fewshot, tokenizer, config.context)
    facts.prompts_s = round(time.perf_counter() - begin, 3)
    # The token of a letter may depend on the text before it. All prompts end alike, so any of them shows it.
    any_prompt = question_prompts.prompt_text(data.test[0], examples=[])
    letters = question_prompts.letter_tokens(tokenizer, any_prompt)
    all_questions = plural(data.test_questions, "question")
    counts = f"{len(prompts):,} of {all_questions} on {plural(len(subjects), 'subject')}"
    display.leave_line(f"{counts} from {data.source}")
    return AskedQuestions(data, prompts, letters)


def answers_of_engine(
    config: MMLUConfig, facts: MMLUFacts, asked: AskedQuestions, run: run_folder.RunFolder, display: progress.Display
) -> tuple[list[MMLUAnswer], float]:
    """Start the engine, ask it all questions, and stop it. Return the answers and how many seconds they took.

    Raises BenchmarkError if the engine fails.
    """
    prompts, letters = asked.prompts, asked.letters
    plan = resolve(config.engine_run, nvml.gpus(), checkpoint.weight_bytes(config))
    engine = engines.create(plan, run.path, may_score=True)
    start_engine(engine, facts, run, config.stall_timeout, display)
    watchdog = Watchdog(engine, config.stall_timeout)
    display.stage("warming up", "load")
    # vLLM compiles the ranking of log-probabilities at the first request, so that request is not measured. Its prompt
    # is the letters alone, so that no part of a measured prompt is in the prefix cache afterwards.
    warm_up_prompt = prompts[0]._replace(tokens=letters)
    ask_all([warm_up_prompt], letters, engine, watchdog, display, run.path)
    display.stage("asking", "load")
    begin = time.perf_counter()
    answers = ask_all(prompts, letters, engine, watchdog, display, run.path)
    seconds = time.perf_counter() - begin
    display.leave_line(f"{plural(len(prompts), 'question')} in {seconds:.1f} s")
    display.stage(f"stopping {engine.name}")
    engine.close()
    return answers, seconds


def add_to_history(
    run: run_folder.RunFolder, config: MMLUConfig, facts: MMLUFacts, summary: Overall, display: progress.Display
) -> None:
    """Add an evaluation to the history and the index of all evaluations. `summary` is the content of overall.json.

    An index that cannot be written is reported on the screen, and raises no error.
    """
    history_line = facts.config | summary.model_dump(mode="json")
    history_line |= {"started": facts.started, "gpus": facts.system.gpus}
    history.finish(run, history_line, say=display.leave_line)
    with history.report_os_error(display.leave_line, f"{config.runs / 'index.md'} could not be written"):
        history.write_index(config.runs, "mmlu_index.md.j2", MMLUHistory)


def recorded_settings(config: MMLUConfig) -> dict[str, JsonValue]:
    """Return the settings as config.json stores them.

    Secrets are masked. The context and the data source have the values that the evaluation uses, such as 4096 for auto.
    """
    settings = config.model_dump()
    # An engine argument is text, NAME=VALUE, which may be a password.
    settings["engine_arg"] = [secrets.hide_word(name_and_value) for name_and_value in config.engine_arg]
    settings["max_model_len"] = config.context
    settings["dataset_path"] = config.folder or "hub"
    recorded: dict[str, JsonValue] = json_value(settings)
    return recorded


def ask_all(
    prompts: Sequence[QuestionPrompt],
    letters: list[int],
    engine: Engine,
    watchdog: Watchdog,
    display: progress.Display,
    folder: Path,
) -> list[MMLUAnswer]:
    """Return the engine's answers in the order of the prompts.

    `letters` are the tokens of the four choices. `folder` is the run's: the run ends when its disk is full. Raises
    EngineError if the engine fails or stalls, or BenchmarkError for a full disk.
    """
    counters = progress.Counters(issued=len(prompts))

    def watch() -> None:
        """Show how many questions are answered. Raises an error if the engine fails or stalls, or the disk is full."""
        display.tick(counters, len(prompts))
        watchdog.check_run(folder)

    async def answer_all() -> list[MMLUAnswer]:
        """Return the answers to all prompts, which are asked as soon as another request may be in flight."""
        # More requests are in flight than the engine computes at once, so it always has the next one at hand.
        free_places = asyncio.Semaphore(REQUESTS_PER_SLOT * engine.concurrency)

        async def answer(prompt: QuestionPrompt) -> MMLUAnswer:
            """Return the engine's answer to one prompt, with the time from sending it, and count it for the display."""
            async with free_places:  # waits until fewer requests are in flight than there are places
                begin = time.perf_counter()
                choice = await engine.score_choices(prompt.tokens, letters)
                counters.completed += 1
                counters.tokens += len(prompt.tokens)
                return MMLUAnswer(prompt, choice, time.perf_counter() - begin)

        return await asyncio.gather(*map(answer, prompts))

    watchdog.restart_stall_timer()  # Before its first request, the engine had nothing to answer.
    return engine.run(answer_all(), watch)
