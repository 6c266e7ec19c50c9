"""Writes docs/reference/files.md: what a run's JSON files hold, from the demo's run that is kept.

python -m docs.generate.files
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core.files import read_json, write_text

HERE = Path(__file__).parents[1]
PAGE = HERE / "reference" / Path(__file__).with_suffix(".md").name
HEAD = """# Files

What you get: what a run's JSON files hold. One command prints the first: `python run.py --model demo --json`. This page
is made by `python -m docs.generate.files` from [the demo's run](../runs/demo/report.html); of each list and of alike
entries the first are shown. Every key of summary.json: [metrics](metrics.md), `templates/summary.schema.json`. The
columns of requests.csv: [results](../results.md).

"""
SHOWN = {"system", "setup", "work", "performance", "usage", "digests", "plots"}  # of these only the first entries
FIRST = 4


def shortened(value: Any, name: str = "") -> Any:
    """The first of a list, and the first entries of a group that is long."""
    if isinstance(value, list):
        return [shortened(value[0])] if value else []
    if isinstance(value, dict):
        kept = list(value.items())[: FIRST if name in SHOWN else None]
        return {key: shortened(each, key) for key, each in kept if key != "command"}
    return value


def page() -> Iterator[str]:
    yield HEAD
    for name in ("summary.json", "Accuracy/rouge.json"):
        found = json.dumps(shortened(read_json(HERE / "runs" / "demo" / name)), indent=2)
        yield f"## {name}\n\n```json\n{found}\n```\n\n"


if __name__ == "__main__":
    write_text(PAGE, "".join(page()).rstrip() + "\n")
    print(PAGE)
