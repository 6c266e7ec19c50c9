"""The command: a run rendered again from its logs, or runs side by side. `python report.py --help` lists the flags."""

import harness.common.interrupts  # noqa: F401

# isort: split
from harness.commands.report import main

if __name__ == "__main__":
    main()
