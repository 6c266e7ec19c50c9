"""The command: what a LoadGen log says, as JSON. `python util_logs.py LOG_DIR`; for programs, the names below.

It needs no package: any Python 3.11 reads logs.
"""

import sys

sys.path.insert(0, __file__.rpartition("/")[0] or ".")  # which PYTHONSAFEPATH leaves out

import harness.core.interrupts  # noqa: F401

# isort: split
import signal
from pathlib import Path

from harness.core.errors import NOT_ACCEPTED, UsageError, one_line_errors
from harness.core.given_values import check_path
from harness.core.interrupts import enable_interrupts
from harness.core.message_text import say
from harness.loadgen.log import Latency, TestResult, read, result_json
from harness.loadgen.log_entries import LogError
from harness.loadgen.requests import Sample, read_trace
from harness.results.claims import report_claims

__all__ = ["Latency", "LogError", "Sample", "TestResult", "read", "read_trace"]
USAGE = "usage: python util_logs.py LOG_DIR   (a folder with mlperf_log_detail.txt), or RUN --check"


def main(words: list[str]) -> None:
    """As `python -m harness logs`."""
    enable_interrupts()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `... | head`
    if words in (["-h"], ["--help"]):
        say(USAGE)
        return
    with one_line_errors():
        check = "--check" in words
        words = [word for word in words if word != "--check"]
        if len(words) != 1 or words[0].startswith("-"):
            given = f"not {len(words)}" if not words[1:] else f"not {len(words)} of them"
            raise UsageError(f"name one folder, {given}; {USAGE}")
        check_path("LOG_DIR", words[0])
        lines, agrees = report_claims(Path(words[0])) if check else ([result_json(Path(words[0]))], True)
        say("\n".join(lines))
        sys.exit(0 if agrees else NOT_ACCEPTED)


if __name__ == "__main__":
    main(sys.argv[1:])
