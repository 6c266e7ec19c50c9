"""What a LoadGen log says, as JSON. `python util_logs.py LOG_DIR`; for programs, `harness.loadgen.log`."""

import harness.common.interrupts  # noqa: F401

# isort: split
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from harness.common.errors import BAD_INPUT, DONE, ends_in_one_line
from harness.common.interrupts import interruptible
from harness.loadgen.log import read


def main() -> int:
    interruptible()
    arguments = sys.argv[1:]
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `... | head`
    if len(arguments) != 1 or arguments[0].startswith("-"):
        usage = "usage: python util_logs.py LOG_DIR   (a folder with mlperf_log_detail.txt)"
        if arguments in (["-h"], ["--help"]):
            print(usage)
            return DONE
        given = f"not {len(arguments)}" if not arguments[1:] else f"not {len(arguments)} of them"
        print(f"error: name one folder, {given}; {usage}", file=sys.stderr)
        return BAD_INPUT
    with ends_in_one_line():
        print(json.dumps(asdict(read(Path(arguments[0]))), indent=2, allow_nan=False))
    return DONE
