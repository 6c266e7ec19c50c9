"""The way of one MMLU evaluation: questions, prompts, engine, answers, report."""

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from harness.common import processes, system
from harness.common.errors import DONE, UsageError
from harness.common.files import as_json, write_json
from harness.common.secrets import hide_settings, hide_word
from harness.config import checkpoint
from harness.config.parallelism import parallelism
from harness.engines import vllm, vllm_args
from harness.mmlu import answers, prompts, report, scores
from harness.mmlu import data as questions
from harness.mmlu.config import MMLUConfig
from harness.monitoring import engine_start
from harness.monitoring.watchdog import Watchdog
from harness.runs import folder as results
from harness.runs.folder import RunFolder
from harness.terminal.progress import Display


def evaluate(config: MMLUConfig, run: RunFolder, before: Path | None, display: Display) -> int:
    """The way of one evaluation."""
    facts: dict[str, object] = {"command": processes.command_line(), "started": results.now(), "system": system.facts()}
    record_evaluation(config, run, facts)
    display.say(f"MMLU, {config.model}, {config.num_fewshot}-shot")

    subjects = questions.chosen_subjects(config.subjects)
    data = questions.load(config.folder, subjects, config.num_fewshot, config.total_limit, config.seed)
    rows_before = scores.from_csv(before) if before else []
    if before:
        scores.check_comparable(rows_before, data.test)
    tokenizer = checkpoint.load_tokenizer(config)
    begin = time.perf_counter()
    scored_prompts = prompts.build(data, config.num_fewshot, tokenizer, config.context)
    facts["prompts_s"] = round(time.perf_counter() - begin, 3)
    letters = prompts.letter_tokens(tokenizer, prompts.text(data.test[0], []))
    display.done(f"{len(scored_prompts):,} of {data.whole:,} questions on {len(subjects)} subjects from {data.source}")

    sizes = parallelism(config, system.gpus(), checkpoint.weight_bytes(config))
    engine = vllm.VLLM(vllm_args.choosing_args(config, config.context, sizes, config.seed))
    engine_start.start(engine, run, config.stall_timeout, display)
    watchdog = Watchdog(engine, config.stall_timeout)
    display.stage("warming up", "load")
    answers.warm_up(engine, letters, display, watchdog)
    display.stage("asking", "load")
    answered = answers.collect_answers(engine, scored_prompts, letters, display, run.path, watchdog)
    display.done(f"{len(scored_prompts):,} questions in {answered.seconds:.1f} s")
    display.stage("stopping vLLM")
    engine.close()

    display.stage("writing the report")
    facts |= {"engine_start_s": round(engine.start_s, 1), "engine_args": hide_settings(engine.args)}
    record_evaluation(config, run, facts)
    rows = [scores.scored(answer, config.num_fewshot) for answer in answered.answers]
    changes = scores.compare(rows_before, rows) if before else []
    summary = report.write(run, config, data, answered, rows, changes, before)
    results.finish(run, report.history_line(run, summary), say=display.done)
    with results.or_say(display.done, f"{config.runs / 'index.md'} could not be written"):
        report.write_index(config.runs)
    display.say("")
    display.console.print(report.table(config, summary, rows, changes))
    display.say(f"report: {run.path / 'report.md'}")
    return DONE


def earlier(config: MMLUConfig) -> Path | None:
    """The folder of the run to compare with. Raises UsageError where there is none."""
    if config.compare is None:
        return None
    for folder in (config.compare, config.runs / config.compare):
        if os.path.exists(folder / "samples.csv"):  # no OSError for a name that is too long
            return folder.resolve()
    raise UsageError(f"--compare {config.compare}: no finished evaluation there, nor under {config.runs}.")


def record_evaluation(config: MMLUConfig, run: RunFolder, facts: Mapping[str, object]) -> None:
    """Keeps config.json: every setting, `auto` resolved, and what is known of the run."""
    from harness.common.schema import SCHEMA

    settings = asdict(config) | {"engine_arg": [hide_word(pair) for pair in config.engine_arg]}
    settings |= {"max_model_len": config.context, "data": config.folder or "hub"}
    kept = {"schema_version": SCHEMA, **facts, "config": settings}
    write_json(run.path / "config.json", as_json(kept))
