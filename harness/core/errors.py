"""The exit codes, the errors that end a command with one line instead of a stack trace, and what prints that line."""

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.core.interrupts import INTERRUPTED
from harness.core.message_text import line_of, printable_text, system_reason
from harness.core.secrets import hide_text

DONE = 0
NOT_ACCEPTED = 1  # the gate failed, or the result is INVALID and the user asked for that to count
BAD_INPUT = 2
ENGINE_FAILED = 3


class BenchmarkError(Exception):
    """Ends the run; the message says what is wrong, where, and what to do next."""

    exit_code = ENGINE_FAILED


class UsageError(BenchmarkError):
    """A flag, a file or a data set that cannot be used as it is. In the message, `flag` stands before the text, and
    `command`, which mends the fault, behind it. `path` is the file that the error is about.
    """

    exit_code = BAD_INPUT

    def __init__(self, text: str, flag: str = "", path: Path | None = None, command: str = "") -> None:
        """Make an error whose message is the flag, the text and the command, as far as they are given."""
        message = f"{flag} {text}" if flag else text
        if command:
            message += f": `{command}`"
        super().__init__(message)
        self.text, self.flag, self.path, self.command = text, flag, path, command


class NotAcceptedError(BenchmarkError):
    """An error for what cannot be had on this machine."""

    exit_code = NOT_ACCEPTED


class EngineError(BenchmarkError):
    """vLLM did not start, or died."""


class EndpointError(BenchmarkError):
    """A server behind --endpoint did not answer a request, or broke off its answer."""


class ServerFullError(EndpointError):
    """A server refused a request or closed its connection, as a full server does. Whether the server is full shows in
    its other requests: a full server goes on answering them.
    """


class EmptyAnswerError(BenchmarkError):
    """An answer without a single token, where its tokens are timed."""


class OutOfTimeError(BenchmarkError):
    """The time for a measurement is over."""


class LoadGenError(BenchmarkError):
    """LoadGen refused its settings or left no usable log."""


def benchmark_error_of(error: BaseException) -> BaseException:
    """Return the BenchmarkError for an error that the user's files or disk caused, or the error unchanged."""
    # This is how pathlib reports links that lead to each other.
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop from "):
        return UsageError(f"{str(error).removeprefix('Symlink loop from ')}: {os.strerror(errno.ELOOP)}.")
    if not isinstance(error, OSError):
        return error
    if error.filename:
        name = str(error.filename)
    elif error.errno == errno.ENOSPC:
        name = "standard output"  # The disk behind it is full. The system has no file name for it.
    else:  # The error is about no file.
        return error
    shown_name = name
    if error.errno == errno.ENAMETOOLONG:
        file_name = name.rpartition("/")[2]
        shown_name = line_of(file_name)  # cut to a length that can be read
    text = f"{shown_name}: {system_reason(error)}."
    # A full or broken disk is no wrong input, so it has another exit code.
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return BenchmarkError(text)
    return UsageError(text, path=Path(name))


def print_error(error: BenchmarkError, config_file: Path | None) -> None:
    """Print each line of an error's message on standard error, as an error of its own, without secrets.

    If `config_file` is given, each line ends with this file, in which the wrong setting may be.
    """
    lines = []
    for line in str(error).splitlines():
        text = printable_text(line_of(hide_text(line)))
        text = re.sub(r"(?<!\.)\.\.$", ".", text)  # a message that quotes another one may end in two full stops
        if config_file:
            stop = "." if re.search(r"(?<!\.)\.$", text) else ""  # A line that was cut ends in three dots.
            text = f"{text.removesuffix(stop)} (with --config {config_file}){stop}"
        lines.append(f"error: {text}")
    print("\n".join(lines), file=sys.stderr)


@contextlib.contextmanager
def flush_and_convert_errors() -> Iterator[None]:
    """Flush standard output at the end, and convert an error that `benchmark_error_of` knows into a BenchmarkError."""
    try:
        yield
        sys.stdout.flush()
    except (OSError, RuntimeError) as error:  # A RuntimeError may be about links that lead to each other.
        if isinstance(error, OSError) and not error.filename and error.errno in (errno.ENOSPC, errno.EPIPE):
            # Standard output failed. Python flushes what is left of it at exit, which must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise benchmark_error_of(error) from None


@contextlib.contextmanager
def one_line_errors(config_file: Path | None = None) -> Iterator[None]:
    """End the command with a printed line and an exit code, not a stack trace, if the user caused an error within.

    The printed line also names `config_file`. A mistake of this program keeps its stack trace.
    """
    try:
        with flush_and_convert_errors():
            yield
    except BenchmarkError as error:
        is_about_config_file = isinstance(error, UsageError) and error.path == config_file
        print_error(error, None if is_about_config_file else config_file)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:  # The reader of the output went away, as in `... | head`.
        raise SystemExit(DONE) from None
