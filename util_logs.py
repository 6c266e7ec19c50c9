"""The command: what a LoadGen log says, as JSON. `python util_logs.py LOG_DIR`; for programs, the names below."""

import harness.common.interrupts  # noqa: F401

# isort: split
import sys

from harness.commands.logs import main
from harness.loadgen.log import Latency, LogError, TestResult, read
from harness.loadgen.trace import Sample, read_trace

__all__ = ["Latency", "LogError", "Sample", "TestResult", "read", "read_trace"]

if __name__ == "__main__":
    sys.exit(main())
