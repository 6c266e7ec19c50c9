"""Lengths of synthetic prompts and answers: fixed, uniform or drawn, and prefixes that requests share."""

import re
from collections.abc import Iterator
from math import exp, inf
from random import Random
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from harness.config.flags import Settings
from harness.core.errors import UsageError
from harness.core.formatting import plural

MOST_TOKENS = 10**6
MOST_SIGMA = 3.0


class Lengths(NamedTuple):
    """Lengths in tokens. With a `sigma` of 0 all are the median. With a `sigma` up to `MOST_SIGMA` they are log-normal,
    and it is the standard deviation of the logarithm. With a larger one they are normal, and it is in tokens. A length
    out of the bounds is drawn again.
    """

    median: int
    sigma: float = 0.0
    low: int = 1
    high: int | None = None

    def draw(self, source: Random) -> int:
        """Return a random length of at least 1 token, within the bounds.

        A length out of the bounds is drawn again. After MOST_DRAWS such draws, all lengths within the bounds are
        equally likely.
        """
        # A large sigma is that of a normal distribution, in tokens. A small one is that of the length's logarithm.
        is_normal = self.sigma > MOST_SIGMA
        for _ in range(MOST_DRAWS):
            if is_normal:
                length = round(source.gauss(self.median, self.sigma))
            else:
                length = max(1, round(self.median * exp(source.gauss(0.0, self.sigma))))
            if self.low <= length <= (self.high or inf):
                return length
        # No draw was within the bounds, which contain the median. So they are narrow compared with the spread, and all
        # lengths between them are about equally likely.
        return source.randint(self.low, self.high or MOST_TOKENS)

    def __str__(self) -> str:
        """Return the lengths in the form that `lengths` reads: N, N~S or N~S:LOW-HIGH."""
        text = f"{self.median}"
        if self.sigma:
            text += f"~{self.sigma:g}"
        if self.high:
            text += f":{self.low}-{self.high}"
        return text


LENGTHS_PATTERN = r"(?a)(\d+)(?:~(\d*\.?\d+))?(?::(\d+)-(\d+))?"  # N~S:LOW-HIGH
SALT_TOKENS = 8  # tokens that make a prompt unique
MOST_DRAWS = 1000  # after so many draws out of the bounds, all lengths within them are taken as equally likely


class PromptParts(Settings):
    """The parts that prompts share: one of `prefixes` beginnings of `prefix_len` tokens, and the earlier turns of a
    conversation of `turns`. With `salt` at the start they share nothing, with `salt` after the prefix only the prefix.
    """

    prefix_len: Annotated[int, Field(ge=0, le=MOST_TOKENS)] = 0
    prefixes: Annotated[int, Field(ge=1, le=10**5)] = 1
    turns: Annotated[int, Field(ge=1, le=1000)] = 1
    salt: Literal["none", "start", "after-prefix"] = "none"

    message_name = str

    def problems(self) -> Iterator[str]:
        """Yield a sentence if there are to be several prefixes without tokens."""
        yield from super().problems()
        if self.prefixes > 1 and not self.prefix_len:
            yield "prefixes needs prefix_len."

    @property
    def text(self) -> str:
        """These settings in words, as the end of a description. Each follows a semicolon. Empty for the defaults."""
        parts = []
        if self.prefix_len:
            choice = "the same beginning" if self.prefixes == 1 else f"one of {self.prefixes:,} beginnings"
            parts.append(f"{choice} of {plural(self.prefix_len, 'token')}")
        if self.turns > 1:
            parts.append(f"conversations of {self.turns:,} turns")
        if self.salt != "none":
            place = "at the start" if self.salt == "start" else "after the prefix"
            parts.append(f"{SALT_TOKENS} tokens of salt {place}")
        return "".join(f"; {part}" for part in parts)


def lengths(name: str, given: object) -> Lengths:
    """Return the lengths that a text describes: N, N~S or N~S:LOW-HIGH, with N the median.

    S is the spread, in tokens or as the sigma of a log-normal distribution (see Lengths). Raises UsageError if the text
    has another form or a number is out of bounds.
    """
    match = re.fullmatch(LENGTHS_PATTERN, str(given))
    if match:
        median, sigma, low, high = match.groups()
        highest = int(high) if high else None
        parsed = Lengths(int(median), float(sigma or 0), int(low or 1), highest)
        # If the median were out of the bounds, hardly any drawn length would be within them.
        is_within_bounds = 1 <= parsed.low <= parsed.median <= (parsed.high or MOST_TOKENS) <= MOST_TOKENS
        if is_within_bounds and parsed.sigma <= MOST_TOKENS:
            return parsed
    raise UsageError(
        f"{name} takes N tokens from 1 to {MOST_TOKENS:,}, N~S, as in 512~0.5 (log-normal) or 6000~1500 (normal), "
        f"or N~S:LOW-HIGH with N in these bounds; got {given!r}."
    )
