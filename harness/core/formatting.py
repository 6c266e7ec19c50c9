"""Numbers and lists as people read them."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from harness.core.markdown import MarkdownText

Measured = float | None  # None: not measured
CONSONANT_AND_Y = re.compile(r"[^aeiou]y$")  # the end of a noun whose plural ends in "ies", such as query


def percent(share: Measured, digits: int = 2) -> str:
    """Return a share of 1 as percent, without the percent sign. A dash for None."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def number(value: Measured, digits: int = 4, sign: str = "") -> str:
    """Return a number as people read it: thousands separated, at most `digits` significant digits, never an exponent.

    Digits before the point are never rounded. A dash stands for what is no finite number. The `sign` "+" always shows
    the sign.
    """
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"  # A line of history.jsonl that was edited by hand may hold a text.
    if isinstance(value, int) or value == 0:
        return f"{value:{sign},.0f}"
    digits_after_first = math.floor(math.log10(abs(value)))  # before the point; negative for a number below 1
    decimals = max(0, digits - 1 - digits_after_first)
    text = f"{value:{sign},.{decimals}f}"
    if decimals == 0:  # Zeros at the end are then digits before the point.
        return text
    return text.rstrip("0").rstrip(".")


def joined_text(between: str, *parts: str | None) -> str:
    """Return the parts that are not empty, with `between` between them."""
    return between.join(filter(None, parts))


def name_value_text(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def alternatives(texts: Sequence[str]) -> str:
    """Return the texts as a choice of one, such as "a, b or c"."""
    *first_texts, last = texts
    if not first_texts:
        return last
    return f"{', '.join(first_texts)} or {last}"


def first_of(texts: Sequence[str], most: int) -> str:
    """Return the first `most` texts of a list in one line, and how many more there are."""
    if len(texts) <= most:
        return ", ".join(texts)
    return f"{', '.join(texts[:most])} and {len(texts) - most:,} more"


def plural(count: Measured, noun: str) -> str:
    """Return a count with its noun in the right number, as in "1 probe", "1,200 probes" or "0 queries"."""
    count_text = number(count)
    if count_text == "1":
        return f"1 {noun}"
    if CONSONANT_AND_Y.search(noun):
        noun = noun[:-1] + "ie"
    return f"{count_text} {noun}s"


def sentence(value: object) -> str:
    """Return text with its first letter made a capital and the rest unchanged.

    `str.capitalize` would make "2 cpu cores".
    """
    text = str(value)
    return text[:1].upper() + text[1:]


def cell(text: str | None) -> str:
    """Return text that may stand in a cell of a Markdown table: on one line, with "|" escaped.

    A dash stands for None or an empty text. MarkdownText, which holds Markdown already, stays MarkdownText, so that it
    is not escaped later.
    """
    words = (text or "–").split()
    cell_text = " ".join(words).replace("|", "\\|")
    if isinstance(text, MarkdownText):
        return MarkdownText(cell_text)
    return cell_text


def gpu_names(gpus: Sequence[str] | None) -> str:
    """Return GPUs as people name them, such as "8x NVIDIA H200". "none" for an empty list, "unknown" for None."""
    if gpus is None:
        return "unknown"
    names = []
    for name, count in Counter(gpus).items():
        names.append(f"{count}x {name}" if count > 1 else name)
    return ", ".join(names) or "none"
