"""A comparison of load generators, each with the same server and the same load.

    python -m benchmarks.crosscheck --endpoint URL

The tools are those of benchmarks/load_tools.py. Those that are installed run one after the other. The folder of --out
has their commands, what each of them printed, and its result.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.load_tools import TOOLS, CrosscheckLoad, Tool, ToolFigures, ToolMeanings
from harness.config import pretrained
from harness.config.run import RunConfig
from harness.core import files, processes
from harness.core.command import make_command, start
from harness.core.errors import DONE, EndpointError, UsageError
from harness.core.locations import ROOT
from harness.core.message_text import first_line
from harness.core.tables import Table
from harness.engines import discovery
from harness.workloads import cnn_dailymail

LONGEST_RUN_S = 3600.0  # A tool that runs longer is ended.


class ToolRun(NamedTuple):
    """One tool's test: its figures, and the time and the lines of text that it takes of its user."""

    tool: Tool
    figures: ToolFigures
    seconds: float  # from the command's start to its end
    line_count: int  # lines that it printed


def crosscheck(
    endpoint: Annotated[str, typer.Option(metavar="URL", help="As in http://host:8000/v1.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="As run.py takes it.")] = "demo",
    dataset_path: Annotated[Path | None, typer.Option(metavar="PATH", help="As run.py takes it.")] = None,
    concurrency: Annotated[int, typer.Option(metavar="N", help="Requests in flight.")] = 4,
    requests: Annotated[int, typer.Option(metavar="N", help="Requests of each tool.")] = 64,
    tokens: Annotated[int, typer.Option(metavar="N", help="Most tokens of an answer.")] = 128,
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder.")] = Path("crosscheck"),
) -> int:
    """Compare load generators with the same server and the same load."""
    config = RunConfig(model=model, endpoint=(endpoint,), dataset_path=dataset_path)
    if min(concurrency, requests, tokens) < 1:
        raise UsageError("--concurrency, --requests and --tokens take 1 or more.")
    if out.exists():
        raise UsageError(f"--out {out} is already there: choose another.")
    out.mkdir(parents=True)
    folder = out.resolve()
    load = CrosscheckLoad(
        config,
        concurrency,
        requests,
        tokens,
        prompts=folder / "prompts.jsonl",
        folder=folder,
        served_model=next(iter(discovery.list_models(config)), config.model_path),
    )
    processes.install_signal_handlers()  # SIGTERM then ends the tools, too.
    write_prompts(load)
    runs = [run_tool(tool, load) for tool in TOOLS if tool.is_installed()]
    page = f"{figure_table(runs)}\n\n{meaning_table([run.tool for run in runs])}\n"
    files.write_text(folder / "figures.md", page)
    print(page)
    return DONE


def write_prompts(load: CrosscheckLoad) -> None:
    """Write the file of prompts: JSONL with the text of one prompt a line.

    Each line has its prompt twice, since aiperf reads the key `text` and the other tools read `prompt`.
    """
    tokenizer = pretrained.load_tokenizer(load.config)
    library = cnn_dailymail.load(load.config, tokenizer, load.request_count)
    lines = []
    for prompt in library.prompts:
        text = tokenizer.decode(prompt, skip_special_tokens=True)
        lines.append(json.dumps({"prompt": text, "text": text}) + "\n")
    files.write_text(load.prompts, "".join(lines))


def run_tool(tool: Tool, load: CrosscheckLoad) -> ToolRun:
    """Run a tool and read its result. Write its command and what it prints to the folder of the load.

    Raises EndpointError with the tool's last line if it fails, and if its result cannot be read or has no requests.
    """
    print(f"{tool.name}: {load.request_count} requests, {load.concurrency} in flight", file=sys.stderr, flush=True)
    file_name = tool.name.replace(" ", "-")
    screen_path = load.folder / f"{file_name}.txt"
    command = tool.command(load)
    files.write_text(load.folder / f"{file_name}.command", shlex.join(command) + "\n")
    started = time.monotonic()
    exit_code = run_command(command, screen_path)
    seconds = time.monotonic() - started
    lines = screen_path.read_text(errors="replace").strip().splitlines()
    if exit_code:
        last_line = lines[-1] if lines else "it printed nothing"
        raise EndpointError(f"{tool.name} ended with {exit_code}: {last_line} ({screen_path}).")
    try:
        figures = tool.read_figures(load)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise EndpointError(f"{tool.name}: its result cannot be read: {first_line(error)} ({load.folder}).") from None
    if not figures.requests:
        raise EndpointError(f"{tool.name}: no request was answered ({screen_path}).")
    return ToolRun(tool, figures, seconds, len(lines))


def run_command(command: Sequence[str], screen_path: Path) -> int:
    """Run a tool's command and return its exit code. What it prints is written to `screen_path`.

    Raises subprocess.TimeoutExpired if it takes longer than LONGEST_RUN_S.
    """
    # With this path, `python -m harness` works from any folder.
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with screen_path.open("w") as screen:
        process = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": python_path},
            stdout=screen,
            stderr=screen,
            timeout=LONGEST_RUN_S,
            check=False,
        )
    return process.returncode


FIGURE_ROWS: Sequence[tuple[str, Callable[[ToolRun], float]]] = (
    ("requests", lambda run: run.figures.requests),
    ("requests/s", lambda run: run.figures.requests_per_s),
    ("output tokens/s", lambda run: run.figures.output_tokens_per_s),
    ("TTFT p50, ms", lambda run: run.figures.ttft_ms.p50),
    ("TTFT p99, ms", lambda run: run.figures.ttft_ms.p99),
    ("TPOT p50, ms", lambda run: run.figures.tpot_ms.p50),
    ("TPOT p99, ms", lambda run: run.figures.tpot_ms.p99),
    ("seconds from start to end", lambda run: run.seconds),
    ("lines on the screen", lambda run: run.line_count),
)


def figure_table(runs: Sequence[ToolRun]) -> Table:
    """Return the table of the figures, with a column for each tool."""
    rows = []
    for label, figure in FIGURE_ROWS:
        rows.append([label, *(figure(run) for run in runs)])
    return Table(["", *(run.tool.name for run in runs)], rows)


def meaning_table(tools: Sequence[Tool]) -> Table:
    """Return the table of what TTFT, TPOT and tokens mean, with a row for each tool."""
    titles = ["tool", *map(column_title, ToolMeanings._fields)]
    return Table(titles, [[tool.name, *tool.meanings] for tool in tools])


def column_title(field: str) -> str:
    """Return the title of a column of the meanings: an abbreviation in capitals, a word as it is."""
    return field if field == "tokens" else field.upper()


command = make_command(crosscheck)


if __name__ == "__main__":
    start(command)
