"""The command: a run rendered again from its logs, or runs side by side. `python report.py --help` lists the flags."""

from harness.__main__ import main

if __name__ == "__main__":
    main("report")
