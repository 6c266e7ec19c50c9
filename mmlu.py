"""The command: an MMLU evaluation on the same engine. `python mmlu.py --help` lists the flags."""

from harness.__main__ import main

if __name__ == "__main__":
    main("mmlu")
