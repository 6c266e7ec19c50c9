"""The command: an MMLU evaluation on the same engine. `python mmlu.py --help` lists the flags."""

import sys

sys.path.insert(0, __file__.rpartition("/")[0] or ".")  # which PYTHONSAFEPATH leaves out

from harness.__main__ import main

if __name__ == "__main__":
    main("mmlu")
