"""The command: MMLU on the same engine, from flags to report. `python mmlu.py --help` lists the flags."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from harness.cli import run_command
from harness.errors import DONE, UsageError
from harness.mmlu import MMLUConfig
from harness.plan import parallelism
from harness.secrets import hide

if TYPE_CHECKING:
    from harness.progress import Display
    from harness.results import RunFolder


def main(config: MMLUConfig) -> NoReturn:
    """Runs the evaluation in a folder of its own; ends the process with the exit code."""
    from harness import processes, progress, results, secrets

    processes.install_signal_handlers()
    before = earlier(config)
    run = results.open_run(config.runs, label="")
    with progress.screen(run.path / "engine.log") as console:
        try:
            with progress.Display(console) as display:
                code = evaluate(config, run, before, display)
        except (Exception, KeyboardInterrupt) as error:
            code = processes.fail(error, run, console)
        processes.exit(code, run.path / "engine.log", secrets.values(config.engine_args))


def evaluate(config: MMLUConfig, run: "RunFolder", before: Path | None, display: "Display") -> int:
    """The way of one evaluation."""
    from harness import mmlu, mmlu_data, mmlu_report, mmlu_scores, model, processes, results, system, tracking
    from harness.engines import vllm

    facts: dict[str, Any] = {"command": processes.command_line(), "started": results.now(), "system": system.facts()}
    record(config, run, facts)
    display.say(f"MMLU, {config.model}, {config.num_fewshot}-shot")

    subjects = mmlu_data.chosen_subjects(config.subjects)
    data = mmlu_data.load(config.folder, subjects, config.num_fewshot, config.total_limit, config.seed)
    rows_before = mmlu_scores.from_csv(before) if before else []
    if before:
        mmlu_scores.check_comparable(rows_before, data.test)
    tokenizer = model.load_tokenizer(config)
    begin = time.perf_counter()
    prompts = mmlu.build(data, config.num_fewshot, tokenizer, config.context)
    facts["prompts_s"] = round(time.perf_counter() - begin, 3)
    letters = mmlu.letter_tokens(tokenizer, mmlu.text(data.test[0], []))
    display.done(f"{len(prompts):,} of {data.whole:,} questions on {len(subjects)} subjects from {data.source}")

    sizes = parallelism(config, system.gpus(), model.weight_bytes(config))
    engine = vllm.VLLM(vllm.choosing_args(config, config.context, sizes, config.seed))
    display.stage("starting vLLM")
    engine.start(display.tick)
    mmlu.warm_up(engine, letters, display)
    display.done(f"vLLM {engine.version} is up after {engine.start_s:.0f} s")
    display.stage("asking")
    asked = mmlu.ask(engine, prompts, letters, display, run.path)
    display.done(f"{len(prompts):,} questions in {asked.seconds:.1f} s")
    display.stage("stopping vLLM")
    engine.close()

    display.stage("writing the report")
    facts |= {"engine_start_s": round(engine.start_s, 1), "engine_args": hide(engine.args)}
    record(config, run, facts)
    rows = [mmlu_scores.scored(answer, config.num_fewshot) for answer in asked.answers]
    changes = mmlu_scores.compare(rows_before, rows) if before else []
    summary = mmlu_report.write(run, config, data, asked, rows, changes, before)
    results.finish(run, mmlu_report.history_line(run, summary), say=display.done)
    mmlu_report.write_index(config.runs)
    tracking.after(run.path, config.mlflow, config.results_dir, display.done)
    display.say("")
    display.console.print(mmlu_report.table(config, summary, rows, changes))
    display.say(f"report: {run.path / 'report.md'}")
    return DONE


def earlier(config: MMLUConfig) -> Path | None:
    """The folder of the run to compare with. Raises UsageError where there is none."""
    if config.compare is None:
        return None
    for folder in (config.compare, config.runs / config.compare):
        if (folder / "samples.csv").exists():
            return folder.resolve()
    raise UsageError(f"--compare {config.compare}: no finished evaluation there, nor under {config.runs}.")


def record(config: MMLUConfig, run: "RunFolder", facts: dict[str, Any]) -> None:
    """Keeps config.json: every setting, `auto` resolved, and what is known of the run."""
    from harness.facts import SCHEMA
    from harness.results import write_json
    from harness.secrets import hide_word

    settings = asdict(config) | {"engine_arg": [hide_word(pair) for pair in config.engine_arg]}
    settings |= {"max_model_len": config.context, "data": config.folder or "hub"}
    kept = {"schema_version": SCHEMA} | facts | {"config": settings}
    write_json(run.path / "config.json", json.loads(json.dumps(kept, default=str)))


if __name__ == "__main__":
    run_command(
        MMLUConfig, main, "Evaluate a model on MMLU with vLLM: 57 subjects, answers by the likelihood of A to D."
    )
