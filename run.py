"""The command: one run of the benchmark, from flags to report. `python run.py --help` lists the flags."""

from harness.__main__ import main

if __name__ == "__main__":
    main("run")
