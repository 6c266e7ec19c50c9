"""Runs each command whose output a page shows again, and replaces the output by what it prints now.

    python -m docs.generate.screens PAGE.md ...

This is done for each block of code after the comment BLOCK_COMMENT. The first line of the block is `$ ` and the
command, which bash runs in the checkout. Commands that start an engine take minutes.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from harness.core.files import write_text
from harness.core.locations import ROOT

BLOCK_COMMENT = "<!-- made by `python -m docs.generate.screens` -->"
# A block of code after the comment. Its group is the command, which may continue on lines after a backslash.
BLOCK = re.compile(rf"(?<={re.escape(BLOCK_COMMENT)}\n```\n)\$ (.*?[^\\])\n.*?(?=^```$)", re.M | re.S)
SCREEN_WIDTH = "100"  # characters


def screen(command: str) -> str:
    """Return a command and what it prints. Paths in the checkout are shown relative to it."""
    programs = Path(sys.executable).parent
    path_variable = f"{programs}:{os.environ['PATH']}"
    process = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=os.environ | {"PATH": path_variable, "COLUMNS": SCREEN_WIDTH, "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    output = process.stdout.replace(f"{programs}/", ".venv/bin/").replace(f"{ROOT}/", "")
    lines = [f"$ {command}", *output.splitlines()]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def page(text: str) -> str:
    """Return the text of a page with the present output of each command."""
    return BLOCK.sub(lambda block: screen(block[1]), text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_text(Path(name), page(Path(name).read_text()))
        print(name)
