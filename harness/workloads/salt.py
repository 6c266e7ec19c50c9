"""Salt: tokens that make each prompt another one, so that a prefix cache finds what it is meant to find, or nothing."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from harness.config.workload import SALT_TOKENS, Shared


@dataclass(frozen=True)
class Salt:
    """Random tokens of `words`, put in after the first `after` tokens of a prompt; the same for the turns of a
    conversation where that is not the start."""

    words: Sequence[int]
    after: int
    start: bool

    @classmethod
    def of(cls, sharing: Shared, words: Sequence[int]) -> Self | None:
        if sharing.salt == "none":
            return None
        start = sharing.salt == "start"
        return cls(words, 0 if start else sharing.prefix_len, start)

    def salted(self, prompt: Sequence[int], order: int, conversation: int, round: int) -> list[int]:
        """A prompt with its salt: `order` tells requests apart, `conversation` and `round` what belongs together."""
        key = f"request {order}" if self.start else f"conversation {conversation}, round {round}"
        tokens = random.Random(key).choices(self.words, k=SALT_TOKENS)
        return [*prompt[: self.after], *tokens, *prompt[self.after :]]
