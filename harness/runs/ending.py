"""The end of a command: its reason in one line, kept in the status, and nothing left running."""

import os
import re
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import NoReturn

from rich.console import Console

from harness.core import reading, secrets
from harness.core.errors import ENGINE_FAILED, BenchmarkError, EngineError, UsageError, benchmark_error_of
from harness.core.files import check_space
from harness.core.interrupts import INTERRUPTED
from harness.core.message_text import LONGEST_QUOTE, first_line, line_of, printable_text
from harness.core.processes import end_children, ignore_signals, signal_text
from harness.runs.run_folder import RunFolder

BESIDE_RESULTS = ("config.json", "engine.log", "status.json")  # files of every run, whatever it measured


def fail(error: BaseException, run: RunFolder, errors: Console) -> int:
    """Print in one line on `errors` why a run cannot go on, and keep the reason in its status. Return the exit code."""
    ignore_signals()
    if isinstance(error, EngineError | OSError):
        try:
            check_space(run.path)
        except BenchmarkError as cause:
            error = cause
    error = benchmark_error_of(error)
    if isinstance(error, UsageError) and is_within(error.path, run.path):  # the run's own file failed, not an input
        error = BenchmarkError(str(error))
    interrupted = isinstance(error, KeyboardInterrupt)
    if interrupted:
        code, line = INTERRUPTED, "interrupted"
    elif isinstance(error, BenchmarkError):
        code, line = error.exit_code, str(error)
        if isinstance(error, EngineError):
            line = explain(error, run.path / "engine.log")
    else:
        traceback.print_exception(error)  # to engine.log
        code, line = ENGINE_FAILED, f"{type(error).__name__}: {first_line(error)}"
    line = printable_text(line_of(secrets.hide_text(line)))
    with suppress(OSError):  # a full disk must not keep the process alive
        run.fail("interrupted" if interrupted else "failed", line)
    errors.print(line if interrupted else f"error: {line}", style="red", markup=False, soft_wrap=True)
    if run.path.is_dir():
        label = "partial results" if has_results(run.path) else "run folder"
        errors.print(f"{label}: {run.path}", markup=False, soft_wrap=True)
    return code


def has_results(folder: Path) -> bool:
    """Tell whether a run left anything beside its settings, its status and its log."""
    return any(path.is_file() and path.name not in BESIDE_RESULTS for path in folder.rglob("*"))


def is_within(path: Path | None, folder: Path) -> bool:
    return path is not None and path.resolve().is_relative_to(folder.resolve())


def exit(code: int, log: Path) -> NoReturn:
    """End this process and all that it started, at once.

    Threads in C++ may still wait for answers that never come. Secrets that engines wrote to `log` are masked first. The
    engine's thread may be starting a process at this moment. A process that is forked from now on ends itself. Any
    other new process is ended at last.
    """
    os.register_at_fork(after_in_child=partial(os._exit, code))
    end_children()
    with suppress(OSError):
        secrets.scrub(log)
        sys.stdout.flush()
        sys.stderr.flush()
    end_children()
    os._exit(code)


def explain(error: EngineError, log: Path) -> str:
    """Return the error's message with its root cause, which vLLM's processes write only to their log."""
    cause, sentence = root_cause(log), str(error).replace(" See root cause above.", "")
    if cause and cause not in sentence:
        sentence += f" ({cause})"
    if log.exists() and log.stat().st_size:
        sentence += f"; more in {log}"
    return sentence


def process_death(text: str) -> tuple[str, bool]:
    """Return which of the engine's processes died first according to its log, and whether it died by a signal.

    The text also says where Python was, if the log shows it. The text is empty if no process died.
    """
    ended = re.search(r"Worker proc \D*(\d+) died unexpectedly(?: \(exit code: -(\d+)\))?", text)
    fatal = re.search(r"(?m)^Fatal Python error: (.+)$", text)
    named = (number for number in signal.valid_signals() if fatal and signal.strsignal(number) == fatal[1])
    number = int(ended[2]) if ended and ended[2] else next(named, None)
    if not ended and not number:
        return "", False
    process = f"worker {ended[1]}" if ended else "a process of it"
    sentence = f"{process} {signal_text(number) if number else 'died'}"
    where = re.search(r'(?m)^Current thread .*\n  File "(.+)", line (\d+) in (\S+)', text)
    return f"{sentence} in {where[3]}, {where[1]}:{where[2]}" if fatal and where else sentence, bool(number)


def root_cause(log: Path) -> str:
    """Return in one line what ended the engine's own processes, according to their `log`.

    The cause is the process that died by a signal, or else the first exception, or else the first process that died.
    Empty if the log does not say.
    """
    try:
        text = reading.read_text(log, errors="replace")
    except OSError:
        return ""
    died, signalled = process_death(text)
    exceptions = re.findall(r"(?m)^(?:.*\] )?((?:\w+\.)*\w*(?:Error|Exception)): (.+)$", text)
    vague = ("Engine core initialization failed", "See stack trace (above)", "cancelled")
    cause = died
    for name, what in [] if signalled else exceptions:
        if not any(word in what for word in vague):
            cause = f"{name}: {what}"
            break
    return shorten(cause, LONGEST_QUOTE, placeholder=" ...")
