"""A run folder of format 4, brought to format 5: the seven files in which a test kept its requests become requests.csv.

    python -m tests.format_4 RUN NEW           converts a copy of RUN, renders it, compares every number of summary.json

It is how the two formats are held against each other; the program itself renders its own format alone.
"""

import csv
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.common.schema import SCHEMA
from harness.loadgen.requests import Request, compress, write_requests
from harness.loadgen.trace import TRACE, read_trace
from harness.reporting import report as rendering

SIDE_FILES = (
    "tokens.json",
    "prompt_tokens.json",
    "issued.json",
    "client_times.json",
    "failed.json",
    "request_times.csv",
)


def kept(folder: Path, name: str, default: Any) -> Any:
    path = folder / name
    return json.loads(path.read_text()) if path.exists() else default


def requests_of(folder: Path) -> list[Request]:
    """What the files of one test say of its requests."""
    tokens, prompts = kept(folder, "tokens.json", []), kept(folder, "prompt_tokens.json", [])
    failed = {int(order): said for order, said in kept(folder, "failed.json", {}).items()}
    indices = kept(folder, "issued.json", None)
    own, traced = (folder / "requests.csv").exists(), (folder / TRACE).exists() and (folder / TRACE).stat().st_size
    if indices is None:
        indices = [sample.index for sample in read_trace(folder)] if traced else [0] * len(tokens)
    made = []
    for order, (index, prompt, count) in enumerate(zip(indices, prompts, tokens, strict=True)):
        made.append(Request(index, prompt, count, failure=failed.get(order, ""), order=order))
    if own:
        take_own(made, folder)
    elif traced and folder.parent.name != "Compliance" and folder.name != "Accuracy":
        take_traced(made, folder)
    return made


def take_own(made: list[Request], folder: Path) -> None:
    """Times that were taken by the client: at fixed concurrency, and with arrivals."""
    with (folder / "requests.csv").open(newline="") as file:
        for request, row in zip(made, csv.DictReader(file), strict=True):
            begin = float(row.get("due_s") or row["sent_s"])
            request.issued_s, request.clock = begin, "client"
            request.sent_ms = 1e3 * (float(row["sent_s"]) - begin)
            first = float(row["first_token_s"])  # of a request that failed before it, a time before the test
            request.ttft_ms = None if request.failure and first < begin else 1e3 * (first - begin)
            request.latency_ms = 1e3 * (float(row["done_s"]) - begin)
            request.first_tokens = int(row.get("first_tokens") or 1)
    times = kept(folder, "client_times.json", {})
    if times.get("due_s"):
        for request, sent, due in zip(made, times["sent_s"], times["due_s"], strict=True):
            request.sent_ms = 1e3 * (sent - due)


def take_traced(made: list[Request], folder: Path) -> None:
    """LoadGen's own times; when each request was sent, by the client's clock, brought to LoadGen's."""
    samples, times = read_trace(folder), kept(folder, "client_times.json", {})
    pairs = list(zip(samples, times.get("issued_s", []), strict=False))
    apart = min((1e3 * at - sample.scheduled_ms - sample.delay_ms for sample, at in pairs), default=0.0)
    begin = min((sample.scheduled_ms for sample in samples), default=0.0)
    for request, sample in zip(made, samples, strict=True):
        request.issued_s, request.clock = (sample.scheduled_ms - begin) / 1e3, "loadgen"
        request.ttft_ms, request.latency_ms = sample.ttft_ms, sample.latency_ms
    for request, sample, sent in zip(made, samples, times.get("sent_s", []), strict=False):
        request.sent_ms = 1e3 * sent - apart - sample.scheduled_ms
    compress(folder / TRACE)


def convert(folder: Path) -> None:
    """Brings a run folder to format 5, in place."""
    for detail in sorted(folder.rglob("mlperf_log_detail.txt")):
        test = detail.parent
        write_requests(test, requests_of(test))
        for name in SIDE_FILES:
            (test / name).unlink(missing_ok=True)
    for path in (folder / "config.json", folder / "status.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": SCHEMA}))


def numbers(data: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a summary, with the path to it; not the paths of files and the format's own number."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in ("schema_version", "logs", "plots"):
                yield from numbers(value, f"{name}.{key}")
    elif isinstance(data, list):
        for place, value in enumerate(data):
            yield from numbers(value, f"{name}.{place}")
    elif isinstance(data, int | float):
        yield name, data


def differences(before: Any, after: Any) -> tuple[int, list[str]]:
    """How many numbers are the same, to nine digits; and each that is not, or stands on one side alone."""
    old, new = dict(numbers(before)), dict(numbers(after))
    said, same = [], 0
    for name in sorted(old.keys() | new.keys()):
        here, there = old.get(name), new.get(name)
        if here is None or there is None or abs(here - there) > 1e-9 * max(abs(here), abs(there)):
            said.append(f"{name}: {here} -> {there}")
        else:
            same += 1
    return same, said


def main(run: Path, new: Path) -> int:
    shutil.copytree(run, new)
    before = json.loads((run / "summary.json").read_text())
    convert(new)
    same, said = differences(before, rendering.build(new).model_dump(mode="json"))
    print(f"{run}: {same:,} numbers equal, {len(said)} not", *said, sep="\n  ")
    return bool(said)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
