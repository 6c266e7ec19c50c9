"""The command: an MMLU evaluation on the same engine. `python mmlu.py --help` lists the flags."""

import harness.common.interrupts  # noqa: F401

# isort: split
from harness.commands.mmlu import main

if __name__ == "__main__":
    main()
