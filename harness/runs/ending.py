"""The end of a command: its reason in one line, stored in the status, and no process left running."""

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

FILES_WITHOUT_RESULTS = ("config.json", "engine.log", "status.json")  # files of every run, whatever it measured


def fail(error: BaseException, run: RunFolder, errors: Console) -> int:
    """Print in one line why a run cannot go on, store the reason in the run's status, and return the exit code.

    `errors` is the console for the line. An unexpected error also has a traceback in engine.log.
    """
    ignore_signals()  # so that the reason is not lost
    error = reported_error(error, run.path)
    is_interrupted = isinstance(error, KeyboardInterrupt)
    if is_interrupted:
        code, line = INTERRUPTED, "interrupted"
    elif isinstance(error, EngineError):
        code, line = error.exit_code, explain(error, run.path / "engine.log")  # with the cause that the log shows
    elif isinstance(error, BenchmarkError):
        code, line = error.exit_code, str(error)
    else:
        traceback.print_exception(error)  # standard error is engine.log
        code, line = ENGINE_FAILED, f"{type(error).__name__}: {first_line(error)}"
    line = printable_text(line_of(secrets.hide_text(line)))
    with suppress(OSError):  # a full disk must not keep the process alive
        run.fail("interrupted" if is_interrupted else "failed", line)
    errors.print(line if is_interrupted else f"error: {line}", style="red", markup=False, soft_wrap=True)
    if run.path.is_dir():
        label = "partial results" if has_results(run.path) else "run folder"
        errors.print(f"{label}: {run.path}", markup=False, soft_wrap=True)
    return code


def reported_error(error: BaseException, folder: Path) -> BaseException:
    """Return the error to report for an error of the run in `folder`: usually the error itself.

    A full disk is reported in place of an error that it is likely to have caused.
    """
    if isinstance(error, EngineError | OSError):
        try:
            check_space(folder)
        except BenchmarkError as full_disk:
            error = full_disk
    error = benchmark_error_of(error)
    if isinstance(error, UsageError) and is_within(error.path, folder):
        error = BenchmarkError(str(error))  # One of the run's own files is no mistake of the user's.
    return error


def has_results(folder: Path) -> bool:
    """Tell whether a run left any file beside its settings, its status and its log."""
    return any(path.is_file() and path.name not in FILES_WITHOUT_RESULTS for path in folder.rglob("*"))


def is_within(path: Path | None, folder: Path) -> bool:
    """Tell whether a path is in a folder. False for no path (None)."""
    return path is not None and path.resolve().is_relative_to(folder.resolve())


def exit(code: int, log: Path) -> NoReturn:
    """End this process and all processes that it started, with this exit code.

    The process does not wait for its threads, since threads in C++ may wait for answers that never come. Secrets that
    engines wrote to `log` are masked first.
    """
    # A thread of the engine may be starting a process at this moment. A process that is forked from now on ends itself.
    os.register_at_fork(after_in_child=partial(os._exit, code))
    end_children()
    with suppress(OSError):  # A full disk must not keep the process alive.
        secrets.scrub(log)
        sys.stdout.flush()
        sys.stderr.flush()
    end_children()  # once more, for a process that was started meanwhile in another way than by a fork
    os._exit(code)


def explain(error: EngineError, log: Path) -> str:
    """Return the error's message with its root cause, which vLLM's processes write only to their log.

    The message also names the log if there is one. vLLM's hint to look above is removed, since the message stands
    alone.
    """
    cause, sentence = root_cause(log), str(error).replace(" See root cause above.", "")
    if cause and cause not in sentence:
        sentence += f" ({cause})"
    if log.exists() and log.stat().st_size:
        sentence += f"; more in {log}"
    return sentence


def process_death(text: str) -> tuple[str, bool]:
    """Return in words which of the engine's processes died first, and whether a signal ended it. `text` is its log.

    The words also say where in the code Python was, if the log shows this place. They are empty if no process died.
    """
    worker_pattern = r"Worker proc \D*(?P<worker>\d+) died unexpectedly(?: \(exit code: -(?P<signal>\d+)\))?"
    worker_end = re.search(worker_pattern, text)
    fatal_error = re.search(r"(?m)^Fatal Python error: (?P<description>.+)$", text)
    signal_number = None  # None: no signal ended the process, or the log does not name the signal.
    if worker_end and worker_end["signal"]:
        signal_number = int(worker_end["signal"])
    elif fatal_error:
        signal_number = signal_named(fatal_error["description"])
    if not worker_end and not signal_number:
        return "", False
    process = f"worker {worker_end['worker']}" if worker_end else "a process of it"
    ending = signal_text(signal_number) if signal_number else "died"
    sentence = f"{process} {ending}"
    place = re.search(r'(?m)^Current thread .*\n  File "(.+)", line (\d+) in (\S+)', text)
    if fatal_error and place:
        file, line, function = place.groups()
        sentence += f" in {function}, {file}:{line}"
    return sentence, bool(signal_number)


def signal_named(description: str) -> int | None:
    """Return the number of the signal with this description, such as "Segmentation fault"; None if there is none."""
    for number in signal.valid_signals():
        if signal.strsignal(number) == description:
            return number
    return None


def root_cause(log: Path) -> str:
    """Return in one line what ended the engine's own processes, according to their `log`.

    Empty if the log does not say or cannot be read.
    """
    try:
        text = reading.read_text(log, errors="replace")
    except OSError:
        return ""
    cause, is_by_signal = process_death(text)
    if not is_by_signal:  # An exception after a signal is only its consequence.
        cause = first_exception(text) or cause
    return shorten(cause, LONGEST_QUOTE, placeholder=" ...")


def first_exception(text: str) -> str:
    """Return the first exception in the text of a log, with its message; empty if there is none.

    Exceptions that only point to another one are passed over.
    """
    # Messages with these words only say that another exception is the cause.
    vague_words = ("Engine core initialization failed", "See stack trace (above)", "cancelled")
    # Before the exception's name, a line may have the prefix of a log, which ends with "] ".
    exception_pattern = r"(?m)^(?:.*\] )?((?:\w+\.)*\w*(?:Error|Exception)): (.+)$"
    for name, message in re.findall(exception_pattern, text):
        if not any(words in message for words in vague_words):
            return f"{name}: {message}"
    return ""
