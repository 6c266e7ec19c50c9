"""Recorded arrivals: a CSV file of when each request came, how long it and its answer were, and what it shared."""

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from harness.common.coerce import no_such_file, read_given, require
from harness.common.errors import UsageError
from harness.config.arrivals import COLUMNS, MOST_RATE, PREFIX, SHAPES
from harness.config.workload import MOST_TOKENS

FLAG = "--arrivals"
MOST_BYTES = 2**30
MOST_S = 10**10
PAGE = "docs/workloads.md#recorded-arrivals"
PUBLISHED = {  # a column of a published trace -> who published it
    "chat_id": "Bailian",
    "hash_ids": "Mooncake",
    "Request tokens": "BurstGPT",
    "ContextTokens": "Azure",
}


@dataclass(frozen=True)
class Recorded:
    """One request of a trace; `line` is counted from 1. Those of one `prefix` begin with the same tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    line: int
    prefix: str = ""
    prefix_tokens: int = 0


@dataclass(frozen=True)
class Trace:
    """A trace in the order of its times. Of the rows up to its last request, `unfit` are longer than the context, and
    left out."""

    path: Path
    requests: tuple[Recorded, ...]
    unfit: int

    @property
    def span_s(self) -> float:
        return self.requests[-1].at_s - self.requests[0].at_s


def read(path: Path, most: int | None = None, context: int | None = None) -> Trace:
    """The trace of a file, or the first `most` of its requests that can be sent, in a context of so many tokens. Raises
    UsageError in one line."""
    if not path.exists():
        raise no_such_file(FLAG, str(path), list(SHAPES))
    text = read_given(FLAG, path, "text", str, most=MOST_BYTES).removeprefix("\ufeff")
    check_header(path, text.partition("\n")[0])
    reader, kept, unfit = csv.reader(text.splitlines(), strict=True), list[Recorded](), 0
    try:
        names = next(reader)
        for cells in filter(None, reader):
            found = recorded(f"{path}: line {reader.line_num}", reader.line_num, names, cells)
            if context and found.prompt_tokens + found.output_tokens > context:
                unfit += 1
            else:
                kept.append(found)
            if len(kept) == most:
                break
    except csv.Error as error:
        raise UsageError(f"{path}: line {reader.line_num}: {error}.") from None
    if unfit and len(kept) < 2:
        raise UsageError(f"{path}: {len(kept)} of its {len(kept) + unfit:,} requests fit {context:,} tokens.")
    trace = Trace(path, tuple(sorted(kept, key=lambda one: one.at_s)), unfit)
    if len(kept) < 2 or len(kept) > MOST_RATE * trace.span_s:
        most_rate = f"no more than {MOST_RATE:,} requests/s on average"
        raise UsageError(f"{path}: needs at least two requests at different times, and {most_rate}.")
    return trace


def check_header(path: Path, line: str) -> None:
    """Raises UsageError for a file of another kind."""
    if line.strip() not in (COLUMNS, COLUMNS + PREFIX):
        publisher = next((name for column, name in PUBLISHED.items() if column in line), "")
        what = f"a trace as {publisher} publishes it" if publisher else "not a trace"
        raise UsageError(f"{path}: {what}; the first line must be {COLUMNS}[{PREFIX}]: {PAGE} says how to make it.")


def recorded(where: str, line: int, names: list[str], cells: list[str]) -> Recorded:
    """The request of a row. Raises UsageError."""
    if len(cells) != len(names):
        raise UsageError(f"{where}: {len(cells)} cells in place of {len(names)}.")
    seconds, prompt, answer, prefix, shared = *cells, *("", "")[len(cells) - 3 :]
    try:
        at = float(seconds)
    except ValueError:
        at = math.nan
    wanted = f"a number from 0 to {MOST_S:,}; convert dates to seconds since the first request"
    require(0 <= at <= MOST_S, f"{where}: seconds", wanted, seconds)
    length = whole(f"{where}: input_tokens", prompt, 1, MOST_TOKENS)
    new = whole(f"{where}: output_tokens", answer, 1, MOST_TOKENS)
    beginning = whole(f"{where}: prefix_tokens", shared, 1, length) if prefix else 0
    if shared and not prefix:
        raise UsageError(f"{where}: prefix_tokens needs a prefix_id.")
    return Recorded(at, length, new, line, prefix, beginning)


def whole(name: str, text: str, least: int, most: int) -> int:
    found = int(text) if re.fullmatch("[0-9]{1,7}", text) else -1
    require(least <= found <= most, name, f"a whole number from {least} to {most:,}", text)
    return found
