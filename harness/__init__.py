"""The harness behind the commands, a package for each idea. Imports run downward only: FLOORS, which a test holds.

What each package is for stands in its __init__; docs/reference/architecture.md has the way of one run, and where to
change what.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    version = sys.version.split()[0]
    print(
        f"error: {sys.executable}: Python {version} is too old: 3.11 or later is needed; use .venv/bin/python.",
        file=sys.stderr,
    )
    raise SystemExit(2)

import harness.core.interrupts  # noqa: F401

# From the ground up; the packages of one floor do not import each other.
FLOORS = (
    ("core",),
    ("config",),
    ("engines",),
    ("workloads",),
    ("runs",),
    ("loadgen",),
    ("results",),
    ("rates",),
    ("report",),
    ("runner",),
    ("submission", "mmlu"),
    ("sweep",),
    ("commands",),
)
