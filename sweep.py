"""The command: a tuning sweep, each experiment one run.py. `python sweep.py --help` lists the flags."""

import harness.common.interrupts  # noqa: F401

# isort: split
from harness.commands.sweep import main

if __name__ == "__main__":
    main()
