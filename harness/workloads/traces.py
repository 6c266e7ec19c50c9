"""Recorded arrivals: a CSV file of when each request came, how long it and its answer were, and which prefix it had."""

import csv
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from harness.config.arrival_patterns import ARRIVAL_SHAPES, MOST_RATE, TRACE_COLUMNS, TRACE_PREFIX_COLUMNS
from harness.config.lengths import MOST_TOKENS
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_ARRIVALS
from harness.core.formatting import plural
from harness.core.given_values import read_given, unknown_file_error, value_refusal
from harness.core.plain_numbers import decimal_number, whole_number

FLAG = "--arrivals"
LONGEST_TRACE_S = 10**10  # a larger number is no time in seconds
PAGE = "docs/workloads.md#recorded-arrivals"


class Recorded(NamedTuple):
    """One request of a trace. `line` is counted from 1. Requests with the same `prefix` begin with the same tokens.

    The names of this class and its fields go into the digest of a workload, so they must not change.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    line: int
    prefix: str
    prefix_tokens: int


class Trace(NamedTuple):
    """The requests of a trace that are sent, in the order of their times.

    `unfit` earlier requests are longer than the context, and `empty` rows of the file have no lengths: both are left
    out.
    """

    path: Path
    requests: tuple[Recorded, ...]
    unfit: int
    empty: int

    @property
    def span_s(self) -> float:
        return self.requests[-1].at_s - self.requests[0].at_s


def read_trace(path: Path, most: int | None = None, context: int | None = None) -> Trace:
    """Return the trace in a file: the `most` earliest of its requests that fit a context of `context` tokens.

    A limit of None does not apply. Raises UsageError if the file is no trace that can be replayed.
    """
    recorded, empty = recorded_rows(path)
    requests = list[Recorded]()
    unfit = 0
    for request in sorted(recorded, key=attrgetter("at_s")):  # The rows may be in any order.
        if len(requests) == most:
            break
        if context and request.prompt_tokens + request.output_tokens > context:
            unfit += 1
        else:
            requests.append(request)
    trace = Trace(path, tuple(requests), unfit, empty)
    # The second check also refuses requests that are all at one time, since their span is 0 s.
    if len(requests) < 2 or len(requests) > MOST_RATE * trace.span_s:
        condition = f" that fit {context:,} tokens" if unfit else ""
        raise UsageError(
            f"{path}: needs at least two requests at different times{condition}, and no more than {MOST_RATE:,} "
            "requests/s on average."
        )
    return trace


def recorded_rows(path: Path) -> tuple[list[Recorded], int]:
    """Return the requests of a trace in the order of its rows, and the number of rows without lengths.

    Raises UsageError if the file is missing or no trace, or if a row is damaged.
    """
    if not path.exists():
        raise unknown_file_error(FLAG, str(path), list(ARRIVAL_SHAPES))
    text = read_given(FLAG, path, "text", str, most=LARGEST_ARRIVALS)
    if text.partition("\n")[0].strip() not in (TRACE_COLUMNS, TRACE_COLUMNS + TRACE_PREFIX_COLUMNS):
        raise UsageError(
            f"{path}: not a trace; the first line must be {TRACE_COLUMNS}[{TRACE_PREFIX_COLUMNS}]: "
            f"{PAGE} says how to make it."
        )
    reader = csv.reader(text.splitlines(), strict=True)
    recorded = list[Recorded]()
    empty = 0
    try:
        names = next(reader)
        for cells in filter(None, reader):
            if cells[1:3] == ["", ""]:
                empty += 1  # The request failed when it was recorded.
                continue
            recorded.append(recorded_request(f"{path}: line {reader.line_num}", reader.line_num, names, cells))
    except csv.Error as error:
        raise UsageError(f"{path}: line {reader.line_num}: {error}.") from None
    return recorded, empty


def recorded_request(where: str, line: int, names: list[str], cells: list[str]) -> Recorded:
    """Return the request of a row with cells in the columns `names`. Raises UsageError if a cell cannot be used."""
    if len(cells) != len(names):
        raise UsageError(f"{where}: {plural(len(cells), 'cell')} in place of {len(names)}.")
    seconds, input_tokens, output_tokens = cells[:3]
    prefix, prefix_tokens = cells[3:] or ("", "")  # a trace may lack the columns of prefixes
    at_s = decimal_number(seconds)
    if at_s is None or at_s > LONGEST_TRACE_S:
        wanted = f"a number from 0 to {LONGEST_TRACE_S:,}; convert dates to seconds since the first request"
        raise value_refusal(f"{where}: seconds", wanted, seconds)
    prompt_length = length_of(f"{where}: input_tokens", input_tokens, MOST_TOKENS)
    answer_length = length_of(f"{where}: output_tokens", output_tokens, MOST_TOKENS)
    prefix_length = 0
    if prefix:
        prefix_length = length_of(f"{where}: prefix_tokens", prefix_tokens, prompt_length)
    elif prefix_tokens:
        raise UsageError(f"{where}: prefix_tokens needs a prefix_id.")
    return Recorded(at_s, prompt_length, answer_length, line, prefix, prefix_length)


def length_of(name: str, text: str, most: int) -> int:
    """Return the number of tokens in a cell's `text`.

    Raises UsageError, which begins with `name`, unless the cell has a whole number from 1 to `most`.
    """
    number = whole_number(text)
    if not number or number > most:
        raise value_refusal(name, f"a whole number from 1 to {most:,}", text)
    return number
