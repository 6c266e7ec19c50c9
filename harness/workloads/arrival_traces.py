"""Recorded arrivals: when each request of a published trace came, and how long it and its answer were.

Their repositories on GitHub: kvcache-ai/Mooncake, HPMLL/BurstGPT, Azure/AzurePublicDataset.
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from harness.common.coerce import did_you_mean, read_given
from harness.common.errors import UsageError
from harness.config.arrivals import SHAPES
from harness.config.workload import MOST_TOKENS

FLAG = "--arrivals"
MOST_BYTES = 2**30
BLOCK = 512  # tokens that one of Mooncake's hash_ids stands for


@dataclass(frozen=True)
class Recorded:
    """One request of a trace. `blocks` name what its prompt is made of, `BLOCK` tokens each: requests that begin with
    the same ones share their beginning. `line` is counted from 1."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    line: int
    blocks: tuple[int, ...] = ()


def milliseconds(value: Any) -> float:
    return float(value) / 1000


def date(value: Any) -> float:
    return datetime.fromisoformat(str(value)).timestamp()


@dataclass(frozen=True)
class Format:
    """A published format, told by its columns."""

    name: str
    time: str
    prompt: str
    output: str
    seconds: Callable[[Any], float]

    def fits(self, cells: Mapping[str, Any]) -> bool:
        return {self.time, self.prompt, self.output} <= set(cells)

    def read(self, cells: Mapping[str, Any], line: int) -> Recorded:
        """Raises ValueError, TypeError for a cell that does not hold what its column should."""
        at = self.seconds(cells[self.time])
        prompt, output = int(cells[self.prompt]), int(cells[self.output])
        if not math.isfinite(at) or not 0 <= min(prompt, output) <= max(prompt, output) <= MOST_TOKENS:
            raise ValueError("out of range")
        return Recorded(at, prompt, output, line, tuple(map(int, cells.get("hash_ids") or ())))


FORMATS = (
    Format("Mooncake", "timestamp", "input_length", "output_length", milliseconds),
    Format("BurstGPT", "Timestamp", "Request tokens", "Response tokens", float),
    Format("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", date),
)


@dataclass(frozen=True)
class Trace:
    """A trace in the order of its times. `empty` requests had no prompt or no answer, and are left out: they failed."""

    path: Path
    format: str
    requests: tuple[Recorded, ...]
    empty: int

    @property
    def span_s(self) -> float:
        return self.requests[-1].at_s - self.requests[0].at_s


def read(path: Path, most: int | None = None) -> Trace:
    """The trace of a file, or the first `most` requests of it. Raises UsageError in one line."""
    if not path.exists():
        shapes = list(SHAPES)
        raise UsageError(
            f"{FLAG} {path}: no such file, and none of {', '.join(shapes)}{did_you_mean(str(path), shapes)}"
        )
    text = read_given(FLAG, path, "text", str, most=MOST_BYTES)
    rows = json_rows(path, text) if text.lstrip().startswith("{") else csv_rows(path, text)
    form: Format | None = None
    found = []
    for line, cells in islice(rows, most):
        form = form or format_of(path, cells)
        try:
            found.append(form.read(cells, line))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise UsageError(
                f"{path}: line {line}: no request of {form.name}'s format: {' '.join(str(error).split())}."
            ) from None
    kept = tuple(sorted((one for one in found if one.prompt_tokens and one.output_tokens), key=lambda one: one.at_s))
    trace = Trace(path, form.name if form else "", kept, len(found) - len(kept))
    if len(kept) < 2 or not trace.span_s:
        raise UsageError(f"{path}: not two requests at different times are in it: no arrivals to replay.")
    return trace


def format_of(path: Path, cells: Mapping[str, Any]) -> Format:
    form = next((form for form in FORMATS if form.fits(cells)), None)
    if form is None:
        formats = "; ".join(f"{form.name}: {form.time}, {form.prompt}, {form.output}" for form in FORMATS)
        raise UsageError(f"{path}: its columns are of none of the known traces ({formats}).")
    return form


def json_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: line {number}: not JSON: {' '.join(str(error).split())}.") from None
        if not isinstance(cells, dict):
            raise UsageError(f"{path}: line {number}: not an object.")
        yield number, cells


def csv_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        reader = csv.DictReader(text.lstrip("\ufeff").splitlines(), restkey="", restval="")
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise UsageError(f"{path}: not a table: {error}.") from None
