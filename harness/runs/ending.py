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
from harness.core.errors import ENGINE_FAILED, BenchmarkError, EngineError, UsageError, as_input
from harness.core.files import check_space
from harness.core.interrupts import INTERRUPTED
from harness.core.message_text import LONGEST_QUOTE, first_line, line_of, plain
from harness.core.processes import by_signal, end_children, ignore_signals
from harness.runs.run_folder import RunFolder


def fail(error: BaseException, run: RunFolder, errors: Console) -> int:
    """Says in one line, on `errors`, why a run cannot go on, keeps it in the status, and returns the exit code."""
    ignore_signals()
    if isinstance(error, EngineError | OSError):
        try:
            check_space(run.path)
        except BenchmarkError as cause:
            error = cause
    error = as_input(error)
    if isinstance(error, UsageError) and is_within(error.path, run.path):  # no wrong input, but the disk of the run
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
    line = plain(line_of(secrets.hide_text(line)))
    with suppress(OSError):  # a full disk must not keep the process alive
        run.fail("interrupted" if interrupted else "failed", line)
    errors.print(line if interrupted else f"error: {line}", style="red", markup=False, soft_wrap=True)
    if run.path.is_dir():
        errors.print(f"partial results: {run.path}", markup=False, soft_wrap=True)
    return code


def is_within(path: Path | None, folder: Path) -> bool:
    return path is not None and path.resolve().is_relative_to(folder.resolve())


def exit(code: int, log: Path) -> NoReturn:
    """Ends this process and all it started, at once: threads in C++ may still wait for answers that never come.

    What engines wrote to `log` of secrets is hidden first. The engine's thread may be starting a process just
    now: what is forked from here on ends itself, what was begun otherwise is ended last.
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
    """The error with its root cause, which vLLM's processes tell only to their log."""
    cause, sentence = root_cause(log), str(error).replace(" See root cause above.", "")
    if cause and cause not in sentence:
        sentence += f" ({cause})"
    if log.exists() and log.stat().st_size:
        sentence += f"; more in {log}"
    return sentence


def process_death(text: str) -> tuple[str, bool]:
    """The first of the engine's processes that died, by its log: which, where Python was; and whether by a signal."""
    ended = re.search(r"Worker proc \D*(\d+) died unexpectedly(?: \(exit code: -(\d+)\))?", text)
    fatal = re.search(r"(?m)^Fatal Python error: (.+)$", text)
    named = (number for number in signal.valid_signals() if fatal and signal.strsignal(number) == fatal[1])
    number = int(ended[2]) if ended and ended[2] else next(named, None)
    if not ended and not number:
        return "", False
    process = f"worker {ended[1]}" if ended else "a process of it"
    sentence = f"{process} {by_signal(number) if number else 'died'}"
    where = re.search(r'(?m)^Current thread .*\n  File "(.+)", line (\d+) in (\S+)', text)
    return f"{sentence} in {where[3]}, {where[1]}:{where[2]}" if fatal and where else sentence, bool(number)


def root_cause(log: Path) -> str:
    """Return what ended the engine's own processes, by their `log`, as one line: a signal, else the first exception;
    empty where it does not say.
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
