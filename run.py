"""The command: one run of the benchmark, from flags to report. `python run.py --help` lists the flags."""

import sys

sys.path.insert(0, __file__.rpartition("/")[0] or ".")  # which PYTHONSAFEPATH leaves out

from harness.__main__ import main

if __name__ == "__main__":
    main("run")
