"""Numbers and lists as people read them."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from harness.core.markdown import Finished

Measured = float | None  # None: not measured


def percent(share: Measured, digits: int = 2) -> str:
    """A share of 1 as percent, without the sign; a dash for none."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def number(value: Measured, digits: int = 4, sign: str = "") -> str:
    """A number as people read it: thousands separated, at most `digits` significant ones, never an exponent; a dash for
    none. `sign`: "+" shows it always.
    """
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"  # also where a line of the history was edited by hand
    if isinstance(value, int) or value == 0:
        return f"{value:{sign},.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:{sign},.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def joined(between: str, *parts: str | None) -> str:
    """The parts that say something."""
    return between.join(filter(None, parts))


def listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def first_of(texts: Sequence[str], most: int) -> str:
    """Return the first texts of a list in one line, and how many more there are."""
    if len(texts) <= most:
        return ", ".join(texts)
    return f"{', '.join(texts[:most])} and {len(texts) - most} more"


def plural(count: float, noun: str) -> str:
    """So many of a thing: 1 probe, 1,200 probes."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def sentence(value: object) -> str:
    """Text with a capital letter at its beginning, and nothing else changed: `capitalize` makes "2 cpu cores"."""
    text = str(value)
    return text[:1].upper() + text[1:]


def cell(text: str | None) -> str:
    """Text that may stand in a Markdown table; a dash for none."""
    cell_text = " ".join((text or "–").split()).replace("|", "\\|")
    return Finished(cell_text) if isinstance(text, Finished) else cell_text


def gpu_names(gpus: Sequence[str] | None) -> str:
    """GPUs as people name them: 8x NVIDIA H200; none; unknown for None."""
    if gpus is None:
        return "unknown"
    names = []
    for name, count in Counter(gpus).items():
        names.append(f"{count}x {name}" if count > 1 else name)
    return ", ".join(names) or "none"
