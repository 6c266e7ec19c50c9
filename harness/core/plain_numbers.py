"""Numbers as people and programs write them, in ASCII digits alone."""

import math
import re

WHOLE = re.compile(r"[0-9]{1,25}(?:\.0*)?(?:[eE]\+?[0-9]{1,2})?")
DECIMAL = re.compile(r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,3})?|[0-9]+\.")


def has_other_digits(text: str) -> bool:
    """Return whether a text has characters that are not ASCII, or an underscore as in 1_000.

    Python would read some of these texts as numbers, but a person may have meant something else.
    """
    return not text.isascii() or "_" in text


def whole_number(value: object) -> int | None:
    """Return the non-negative whole number that a value stands for, as in 16, 16.0, "16" or "1e3", or None."""
    # CSV files hold only text. pandas writes whole numbers as 16.0 if a cell of the column is empty.
    if isinstance(value, str):
        if not WHOLE.fullmatch(value.strip()):
            return None
        mantissa, _, exponent = value.strip().lower().partition("e")
        # WHOLE allows only zeros after the point, and no negative exponent.
        whole_part = int(mantissa.partition(".")[0])
        return int(whole_part * 10 ** int(exponent or 0))
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    if isinstance(value, int):
        return value
    return int(value) if value.is_integer() else None


def decimal_number(text: str) -> float | None:
    """Return the non-negative finite number that a text stands for. None for any other text."""
    if not DECIMAL.fullmatch(text.strip()):
        return None
    number = float(text)
    return number if math.isfinite(number) else None
