"""The command: a tuning sweep, each experiment one run.py. `python sweep.py --help` lists the flags."""

from harness.__main__ import main

if __name__ == "__main__":
    main("sweep")
