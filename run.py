"""The command: one run of the benchmark, from flags to report. `python run.py --help` lists the flags."""

import harness.common.interrupts  # noqa: F401

# isort: split
from harness.commands.run import main

if __name__ == "__main__":
    main()
