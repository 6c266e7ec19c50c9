"""Ends a command with one line where its packages are missing, or where it is interrupted while they are imported.

Commands import this before anything else.
"""

import harness.common.interrupts  # noqa: F401

# isort: split
import sys
from importlib.util import find_spec

from harness.common.errors import BAD_INPUT

if missing := [name for name in ("typer", "pydantic", "jinja2") if not find_spec(name)]:
    print(
        f"error: {sys.executable} has no {missing[0]}: use .venv/bin/python, which `make demo` makes, or install "
        "requirements.txt into an environment of your own.",
        file=sys.stderr,
    )
    raise SystemExit(BAD_INPUT)
