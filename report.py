"""A run folder -> summary.json, plots and report.md; results/index.md. As a command: render again from the logs.

`python report.py RUN_DIR` (or a sweep's folder) needs nothing but the folder: config.json, LoadGen's logs, rouge.json.
"""

import argparse
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import util_logs
from harness import compliance, plots, results, rules, sweep_report, system
from harness.cli import in_utf8
from harness.compare import compare
from harness.errors import BAD_INPUT, DONE, BenchmarkError, UsageError
from harness.pages import number, render
from harness.results import read_json, write_json, write_text

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("model", "category", "scenario", "verdict", "valid", "tokens_per_s", "samples_per_s", "comparable")


def build(folder: Path) -> dict[str, Any]:
    """Writes summary.json, plots/ and report.md into a run folder; returns the summary. Raises UsageError."""
    facts = results.facts_of(folder)
    summary = summarize(folder, facts)
    if not summary["run"]:
        reason = read_json(folder / "status.json").get("reason")
        raise UsageError(f"{folder}: no test came to its end{f' ({reason})' if reason else ''}; nothing to render.")
    summary["plots"] = plots.draw(folder, summary)
    page = render("report.md.j2", folder=folder, config=facts["plan"]["config"], **summary)
    write_json(folder / "summary.json", summary)
    write_text(folder / "report.md", page)
    return summary


def summarize(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The summary without its plots: what the folder's logs say. Raises LogError on a log that cannot be trusted."""
    plan = facts["plan"]
    config = plan["config"]
    run: dict[str, Any] = {}
    if rouge := read_json(folder / "Accuracy" / "rouge.json"):
        run["accuracy"] = accuracy(rouge)
    if (folder / "Performance" / util_logs.DETAIL).exists():
        run["performance"] = performance(folder / "Performance", plan)
    if probes := facts.get("probes"):
        run["search"] = probes
    if tests := compliance.outcomes(folder):
        run["compliance"] = tests
    shortcomings = [*facts["shortcomings"], *reservations(run, config["mode"])]
    return {
        "meta": {
            "run": folder.resolve().name,
            "started": facts["started"],
            "command": facts["command"],
            "mlperf_version": config["version"],
            "model": config["model"],
            "category": config["category"],
            "scenario": config["scenario"],
            "mode": config["mode"],
            "samples": plan["samples"],
            "comparable": not shortcomings,
            "shortcomings": shortcomings,
            "notes": plan["notes"],
            "precision": config["precision"],
            "quantization": plan["running"]["quantization"],
            "kv_cache_dtype": plan["running"]["kv_cache_dtype"],
            "load_format": config["load_format"],
            "tensor_parallel_size": plan["tensor_parallel_size"],
            "data_parallel_size": plan["data_parallel_size"],
            "max_model_len": plan["max_model_len"],
            "max_new_tokens": config["max_new_tokens"],
            "batch_size": config["batch_size"],
            "prefix_caching": plan["running"]["prefix_caching"],
            "data": facts.get("data"),
            "mean_prompt_tokens": facts.get("mean_prompt_tokens"),
            "engine_start_s": facts.get("engine_start_s"),
            "stages": facts.get("stages", []),
            "engine_args": facts.get("engine_args", {}),
        },
        "system": facts["system"],
        "run": run,
        "logs": {
            test: sorted(str(path.relative_to(folder)) for path in (folder / place).glob("*") if path.is_file())
            for test, place in results.FOLDER.items()
            if (folder / place).is_dir()
        },
        "plots": {},
    }


def reservations(run: dict[str, Any], mode: str) -> Iterator[str]:
    """Why what came out cannot stand beside MLPerf's, whatever the settings were."""
    score, test = run.get("accuracy"), run.get("performance")
    if test and not score:
        yield "accuracy was not checked"
    if score and score["verdict"] == "FAIL":
        yield "the accuracy gate failed"
    if score and score["approximate"]:
        yield f"approximate {' and '.join(score['approximate'])}"
    if mode != "accuracy" and not test:
        yield "performance was not measured"
    if test and not test["valid"]:
        yield "INVALID by LoadGen"
    if test and test["errors"]:
        yield "LoadGen logged errors"
    yield from (f"{name.upper()} failed" for name, found in run.get("compliance", {}).items() if not found["passed"])


def accuracy(rouge: dict[str, Any]) -> dict[str, Any]:
    """The accuracy part of the summary, from rouge.json."""
    scores = {check["name"]: check["score"] for check in rouge["checks"]}
    return {
        **{key: rouge[key] for key in ("verdict", "note", "samples", "full_set", "high_accuracy")},
        **{key: rouge[key] for key in ("generated_tokens", "characters", "at_token_limit")},
        **{key: rouge[key] for key in ("splitter", "approximate", "checks")},
        "scores": scores,
    }


def performance(folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """The performance part of the summary: LoadGen's numbers, and the token counts that were reported to it.

    Raises LogError for the log of another run.
    """
    scenario = plan["config"]["scenario"]
    facts = util_logs.read(folder, rules.LOADGEN_SCENARIO[scenario], "PerformanceOnly")
    for name, found, told in (
        ("seeds", facts.seeds, plan["seeds"]),
        ("minimum duration, ms", facts.effective["min_duration_ms"], round(1000 * plan["min_duration_s"])),
    ):
        if found != told:
            raise util_logs.LogError(f"{folder}: a log of another run: its {name}: {found}, not {told}.")
    tokens = read_json(folder / "tokens.json")
    limits = rules.LIMITS.get(scenario)
    return {
        "scenario": scenario,
        "valid": facts.valid,
        "invalid_reasons": facts.invalid_reasons,
        "duration_s": facts.duration_s,
        "samples": facts.samples,
        "total_new_tokens": sum(tokens) if tokens else None,
        "tokens_per_sec": facts.tokens_per_s,
        "samples_per_sec": facts.samples_per_s,
        "target_qps": facts.target_qps,
        "achieved_qps": facts.samples_per_s,
        "latency_ms": facts.latency_ms and asdict(facts.latency_ms),
        "ttft_ms": facts.ttft_ms and asdict(facts.ttft_ms),
        "tpot_ms": facts.tpot_ms and asdict(facts.tpot_ms),
        "limits_ms": limits and {"ttft": limits.ttft_ms, "tpot": limits.tpot_ms},
        "early_stopping": facts.early_stopping,
        "peak_memory_gib": system.peak_memory_gib(folder / "machine.csv"),
        "seeds": facts.seeds,
        "loadgen_version": facts.loadgen_version,
        "errors": counted(facts.errors),
        "warnings": counted(facts.warnings),
    }


def counted(texts: Sequence[str]) -> list[str]:
    """Each text once, with how often it was said."""
    return [f"{text} ({times:,} times)" if times > 1 else text for text, times in Counter(texts).items()]


def history_line(summary: dict[str, Any]) -> dict[str, Any]:
    """What results/history.jsonl keeps of a run."""
    meta, test = summary["meta"], summary["run"].get("performance", {})
    score = summary["run"].get("accuracy", {})
    kept = [
        *("started", "mlperf_version", "model", "category", "scenario", "mode", "samples", "comparable"),
        *("precision", "quantization", "kv_cache_dtype", "load_format", "batch_size"),
        *("tensor_parallel_size", "data_parallel_size", "max_new_tokens"),
    ]
    tokens, count = test.get("total_new_tokens"), test.get("samples")
    return {
        **{key: meta[key] for key in kept},
        "valid": test.get("valid"),
        "tokens_per_s": test.get("tokens_per_sec"),
        "samples_per_s": test.get("samples_per_sec"),
        "mean_new_tokens": tokens / count if tokens and count else None,
        "verdict": score.get("verdict"),
        "scores": score.get("scores"),
        "gpus": summary["system"]["gpus"],
    }


def write_index(results_dir: Path) -> None:
    """Renders results/index.md, newest run first."""
    results.write_index(results_dir, "index.md.j2", COLUMNS)


def table(summary: dict[str, Any]) -> "Table":
    """The result as one table for the terminal."""
    from rich.table import Table

    meta, run = summary["meta"], summary["run"]
    rows = Table(title=f"{meta['model']}  {meta['category']} {meta['scenario']}", show_header=False, title_style="bold")
    if "accuracy" in run:
        score = run["accuracy"]
        rows.add_row("accuracy", score["verdict"], style={"PASS": "green", "FAIL": "red"}.get(score["verdict"], ""))
        for check in score["checks"]:
            floor = f"at least {number(check['low'], 6)}" + (
                f", at most {number(check['high'], 6)}" if check["high"] else ""
            )
            name = f"{check['name']}{' (approximate)' if check['name'] in score['approximate'] else ''}"
            rows.add_row(f"  {name}", f"{number(check['score'], 6)}  ({floor})")
    if "performance" in run:
        test = run["performance"]
        rows.add_row("performance", "VALID" if test["valid"] else "INVALID", style="green" if test["valid"] else "red")
        for reason in [*test["invalid_reasons"], *(f"LoadGen error: {error}" for error in test["errors"])]:
            rows.add_row("", reason)
        rows.add_row("  tokens/s", number(test["tokens_per_sec"]))
        rows.add_row("  samples/s", number(test["samples_per_sec"]))
        rows.add_row("  duration", f"{test['duration_s']:.1f} s, {test['samples']:,} samples")
        if meta["scenario"] == "singlestream" and test["latency_ms"]:
            rows.add_row("  latency p90", f"{number(test['latency_ms']['p90'])} ms")
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("latency", "latency_ms")):
            if test[key] and meta["scenario"] != "offline":
                rows.add_row(f"  {name} p50 / p99", f"{number(test[key]['p50'])} / {number(test[key]['p99'])} ms")
    for name, test in run.get("compliance", {}).items():
        rows.add_row(name.upper(), "PASS" if test["passed"] else "FAIL", style="green" if test["passed"] else "red")
    if meta["shortcomings"]:
        rows.add_row("note", "not comparable with MLPerf results")
    return rows


def main() -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `... | head`
    parser = argparse.ArgumentParser(description="Render a run's report again from its logs, or a sweep's.")
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN_DIR")
    parser.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("RUN_A", "RUN_B"),
        help="print two runs, both with accuracy, side by side",
    )
    arguments = parser.parse_args()
    if (arguments.run is None) == (arguments.compare is None):
        parser.error("name one RUN_DIR, or --compare RUN_A RUN_B")
    try:
        if arguments.compare:
            print(compare(*arguments.compare))
        else:
            render_again = sweep_report.build if (arguments.run / "sweep.json").exists() else build
            render_again(arguments.run)
            print(arguments.run / "report.md")
    except (BenchmarkError, util_logs.LogError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}.", file=sys.stderr)
        return BAD_INPUT
    except Exception as error:  # files that are not as a run leaves them
        where = arguments.run or " and ".join(map(str, arguments.compare))
        print(f"error: {where}: a damaged run: {type(error).__name__}: {error}", file=sys.stderr)
        return BAD_INPUT
    return DONE


if __name__ == "__main__":
    in_utf8()
    sys.exit(main())
