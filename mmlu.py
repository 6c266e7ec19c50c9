"""The command: an MMLU evaluation on the same engine. `python mmlu.py --help` lists the flags."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # which PYTHONSAFEPATH leaves out

from harness.__main__ import main

if __name__ == "__main__":
    main("mmlu")
