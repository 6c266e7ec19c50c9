"""Runs again each command whose output a page shows, and puts in what it prints now.

    python -m docs.generate.screens PAGE.md ...

A block of code is of this kind where the comment MADE stands before it; its first line is `$ ` and the command, as bash
runs it in the checkout. Commands take minutes where they start an engine.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from harness.core.files import write_text
from harness.core.locations import ROOT

MADE = "<!-- made by `python -m docs.generate.screens` -->"
BLOCK = re.compile(rf"(?<={re.escape(MADE)}\n```\n)\$ (.*?[^\\])\n.*?(?=^```$)", re.M | re.S)
WIDTH = "100"


def screen(command: str) -> str:
    """The command and what it prints, without the checkout's place."""
    python = Path(sys.executable).parent
    known = os.environ | {"PATH": f"{python}:{os.environ['PATH']}", "COLUMNS": WIDTH, "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=known,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = done.stdout.replace(f"{python}/", ".venv/bin/").replace(f"{ROOT}/", "")
    return "".join(f"{line.rstrip()}\n" for line in (f"$ {command}", *said.splitlines()))


def page(text: str) -> str:
    return BLOCK.sub(lambda block: screen(block[1]), text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_text(Path(name), page(Path(name).read_text()))
        print(name)
