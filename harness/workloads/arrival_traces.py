"""Recorded arrivals: when each request of a published trace came, and how long it and its answer were.

Their repositories on GitHub: kvcache-ai/Mooncake, HPMLL/BurstGPT, Azure/AzurePublicDataset,
alibaba-edu/qwen-bailian-usagetraces-anon.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

from harness.common.coerce import no_such_file, read_given
from harness.common.errors import UsageError
from harness.common.markdown import number
from harness.config.arrivals import SHAPES
from harness.config.workload import MOST_TOKENS
from harness.workloads.requests_file import parse_lines

FLAG = "--arrivals"
MOST_BYTES = 2**30
MOST_FIT = 0.9  # of the requests, whose blocks tell how large one is
MOST_RATE = 2000  # requests/s on average, of what one service was ever sent


@dataclass(frozen=True)
class Recorded:
    """One request of a trace. `blocks` name what its prompt is made of, `block` tokens each: requests that begin with
    the same ones share their beginning. It is sent once that at `parent`, a place in the trace, is answered. `line` is
    counted from 1."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    line: int
    blocks: tuple[int, ...] = ()
    block: int = 0
    parent: int | None = None
    chat: tuple[str, str] = ("", "")  # its name, and that of its parent


def milliseconds(value: Any) -> float:
    return float(value) / 1000


def date(value: Any) -> float:
    return datetime.fromisoformat(str(value)).timestamp()


@dataclass(frozen=True)
class Format:
    """A published format, known by its columns; `block`: tokens of one of its hash_ids; `unit`: that of its times."""

    name: str
    time: str
    prompt: str
    output: str
    seconds: Callable[[Any], float]
    unit: str
    block: int = 0
    more: tuple[str, ...] = ()  # columns that another format of the same names lacks

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.time, self.prompt, self.output, *self.more)

    def read(self, cells: Mapping[str, Any], line: int) -> Recorded:
        """Raises ValueError, TypeError for a cell that does not hold what its column should."""
        at = self.seconds(cells[self.time])
        prompt, output = int(cells[self.prompt]), int(cells[self.output])
        if not math.isfinite(at) or not 0 <= min(prompt, output) <= max(prompt, output) <= MOST_TOKENS:
            raise ValueError("out of range")
        chat = tuple(str(cells[name]) for name in self.more) or ("", "")
        return Recorded(at, prompt, output, line, tuple(map(int, cells.get("hash_ids") or ())), chat=chat)  # type: ignore[arg-type]


FORMATS = (
    Format("Bailian", "timestamp", "input_length", "output_length", float, "s", 16, ("chat_id", "parent_chat_id")),
    Format("Mooncake", "timestamp", "input_length", "output_length", milliseconds, "ms", 512),
    Format("BurstGPT", "Timestamp", "Request tokens", "Response tokens", float, "s"),
    Format("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", date, "dates"),
)


@dataclass(frozen=True)
class Trace:
    """A trace in the order of its times. Of the rows up to its last request, `empty` had no prompt or no answer, since
    they failed, and `unfit` are longer than the context: both are left out."""

    path: Path
    format: str
    requests: tuple[Recorded, ...]
    empty: int
    unfit: int

    @property
    def span_s(self) -> float:
        return self.requests[-1].at_s - self.requests[0].at_s


def read(path: Path, most: int | None = None, context: int | None = None) -> Trace:
    """The trace of a file, or the first `most` of its requests that can be sent, in a context of so many tokens. Raises
    UsageError in one line."""
    if not path.exists():
        raise no_such_file(FLAG, str(path), list(SHAPES))
    text = read_given(FLAG, path, "text", str, most=MOST_BYTES)
    rows = json_rows(path, text) if text.lstrip().startswith("{") else csv_rows(path, text)
    first = next(rows, None)
    if first is None:
        raise UsageError(f"{path}: needs at least two requests at different times.")
    form, kept, empty, unfit = format_of(path, first[1]), list[Recorded](), 0, 0
    for line, cells in chain([first], rows):
        try:
            found = form.read(cells, line)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise UsageError(
                f"{path}: line {line}: no request of {form.name}'s format: {' '.join(str(error).split())}."
            ) from None
        if not (found.prompt_tokens and found.output_tokens):
            empty += 1
        elif context and found.prompt_tokens + found.output_tokens > context:
            unfit += 1
        else:
            kept.append(found)
        if len(kept) == most:
            break
    if unfit and len(kept) < 2:
        raise UsageError(f"{path}: {len(kept)} of its {len(kept) + unfit:,} requests fit {context:,} tokens.")
    trace = Trace(path, form.name, in_order(path, kept, form), empty, unfit)
    if len(kept) < 2 or not trace.span_s:
        raise UsageError(f"{path}: needs at least two requests at different times.")
    if (rate := (len(kept) - 1) / trace.span_s) > MOST_RATE:
        raise UsageError(
            f"{path}: {rate:,.0f} requests/s over {number(trace.span_s, 3)} s: are its times in another unit? Those of "
            f"{form.name}'s format are in {form.unit}."
        )
    return trace


def in_order(path: Path, found: Sequence[Recorded], form: Format) -> tuple[Recorded, ...]:
    """Requests by their times, each with the size of its blocks and the place of its parent."""
    ordered = sorted(found, key=lambda one: one.at_s)
    block = block_size(path, ordered, form.block)
    places = {one.chat[0]: place for place, one in enumerate(ordered)}
    return tuple(
        replace(one, block=block, parent=parent if (parent := places.get(one.chat[1], place)) < place else None)
        for place, one in enumerate(ordered)
    )


def block_size(path: Path, found: Sequence[Recorded], usual: int) -> int:
    """Tokens that one of hash_ids stands for: the format's, or else the power of two by which every prompt has as many
    blocks as it names, a last one that is not full counted or not. Raises UsageError where there is none."""
    hashed = [one for one in found if one.blocks]
    for size in (usual or 1, *(1 << n for n in range(13))):
        fitting = [len(one.blocks) in (one.prompt_tokens // size, -(-one.prompt_tokens // size)) for one in hashed]
        if sum(fitting) >= MOST_FIT * len(fitting):
            return size
    raise UsageError(f"{path}: no block size fits input_length and hash_ids.")


def format_of(path: Path, cells: Mapping[str, Any]) -> Format:
    form = next((form for form in FORMATS if set(form.columns) <= set(cells)), None)
    if form is None:
        formats = "; ".join(f"{form.name}: {', '.join(form.columns)}" for form in FORMATS)
        raise UsageError(f"{path}: its columns match no known trace ({formats}).")
    return form


def json_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line, cells in parse_lines(path, text):
        if not isinstance(cells, dict):
            raise UsageError(f"{path}: line {line}: not an object.")
        yield line, cells


def csv_rows(path: Path, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        reader = csv.DictReader(text.lstrip("\ufeff").splitlines(), restkey="", restval="")
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise UsageError(f"{path}: not a table: {error}.") from None
