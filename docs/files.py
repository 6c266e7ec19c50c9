"""Writes docs/reference/files.md: what a run's files hold, from the folders of a run and of an MMLU run.

python -m docs.files RUN MMLU
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.core.files import read_json, write_text
from harness.loadgen.requests import COLUMNS, FILE, Request

PAGE = Path(__file__).parent / "reference" / Path(__file__).with_suffix(".md").name
HEAD = """# Files

What you get: what a run's JSON files hold, from real runs. One command prints the first:
`python run.py --model demo --json`.

"""
ALIKE = {"usage", "variables", "packages", "setup", "work", "engine_args", "kernels", "digests", "subjects", "plots"}
MEANINGS = {
    "sample": "which sample of the set",
    "prompt_tokens": "tokens of its prompt",
    "output_tokens": "tokens of its answer",
    "first_tokens": "tokens that TPOT leaves out: those of a streamed answer's first message; one where LoadGen timed",
    "issued_s": "seconds since the first request: LoadGen's scheduled time, the due time of an arrival, or, at fixed "
    "concurrency, the time of sending",
    "sent_ms": "milliseconds after `issued_s` until it was sent",
    "ttft_ms": "until its first token",
    "latency_ms": "until its last token",
    "clock": "who timed: `loadgen` (its trace, kept beside as `mlperf_log_trace.json.gz`) or `client` (fixed "
    "concurrency, arrivals)",
    "failure": "the error message of a request that failed under `--max-failed`; its times are those of the failure",
}


def shortened(value: Any, name: str = "") -> Any:
    """The first of a list, and of a group of entries that are alike."""
    if isinstance(value, list):
        return [shortened(value[0])] if value else []
    if isinstance(value, dict):
        kept = list(value.items())[: 1 if name in ALIKE else None]
        return {key: shortened(each, key) for key, each in kept}
    return value


def page(run: Path, mmlu: Path) -> Iterator[str]:
    yield HEAD
    for name in ("summary.json", "Accuracy/rouge.json"):
        yield f"## {name}\n\n"
        if name == "summary.json":
            yield "Every key: [metrics](metrics.md), `templates/summary.schema.json`.\n\n"
        yield f"```json\n{json.dumps(shortened(read_json(run / name)), indent=2)}\n```\n\n"
    yield f"## Performance/{FILE}\n\nA line for each request, in the order of issue:\n\n```\n"
    yield "".join((run / "Performance" / FILE).read_text().splitlines(keepends=True)[:3])
    yield "```\n\n| column | what it holds |\n|---|---|\n"
    yield from (f"| `{name}` | {MEANINGS[name]} |\n" for name in COLUMNS)
    overall = json.dumps(shortened(read_json(mmlu / "overall.json")), indent=2)
    yield f"\n## overall.json\n\n`mmlu.py`:\n\n```json\n{overall}\n```\n"


def main() -> None:
    run, mmlu = map(Path, sys.argv[1:])
    assert {*MEANINGS} == {*COLUMNS} <= {field.name for field in fields(Request)}
    write_text(PAGE, "".join(page(run, mmlu)))
    print(PAGE)


if __name__ == "__main__":
    main()
