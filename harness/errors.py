"""The exit codes, and the errors that end a run with one line instead of a stack trace."""

DONE = 0
NOT_ACCEPTED = 1  # the gate failed, or the result is INVALID and the user asked for that to count
BAD_INPUT = 2
ENGINE_FAILED = 3
INTERRUPTED = 130


class BenchmarkError(Exception):
    """Ends the run; the message says what is wrong, where, and what to do next."""

    exit_code = ENGINE_FAILED


class UsageError(BenchmarkError):
    """A flag, a file or a data set that cannot be used as it is."""

    exit_code = BAD_INPUT


class NotAcceptedError(BenchmarkError):
    """What was asked for cannot be had on this machine."""

    exit_code = NOT_ACCEPTED


class EngineError(BenchmarkError):
    """vLLM did not start, or died."""


class LoadGenError(BenchmarkError):
    """LoadGen refused its settings or left no usable log."""


def first_line(error: BaseException) -> str:
    """The gist of an exception as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
