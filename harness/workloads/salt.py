"""Tokens that make each prompt another one, so that a prefix cache finds what it is meant to find, or nothing."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from harness.config.workload import SALT_TOKENS, Shared


@dataclass(frozen=True)
class Salt:
    """Random tokens of `words`, put in after the first `after` tokens of a prompt; the same for the turns of a
    conversation where that is not the start. `test` tells the tests of all runs apart.

    Of random prompts without salt, which LoadGen asks again, it `replaces` as many of their tokens, from the second
    round on, so that nothing but the prefix is shared with the rounds before.
    """

    words: Sequence[int]
    after: int
    start: bool
    replaces: bool = False
    test: str = ""

    @classmethod
    def of(cls, sharing: Shared, words: Sequence[int]) -> Self:
        start = sharing.salt == "start"
        return cls(words, 0 if start else sharing.prefix_len, start, replaces=sharing.salt == "none")

    def add_to(self, prompt: Sequence[int], order: int, conversation: int, round: int) -> list[int]:
        """A prompt with its salt: `order` tells requests apart, `conversation` and `round` what belongs together."""
        if self.replaces and not round:
            return [*prompt]
        key = f"request {order}" if self.start else f"conversation {conversation}, round {round}"
        tokens = random.Random(f"{self.test} {key}").choices(self.words, k=SALT_TOKENS)
        if self.replaces:
            return [*prompt[: self.after], *tokens, *prompt[self.after + SALT_TOKENS :]][: len(prompt)]
        return [*prompt[: self.after], *tokens, *prompt[self.after :]]


def drawn_anew(prompts: Sequence[Sequence[int]], words: Sequence[int], test: str) -> list[list[int]]:
    """Random prompts as if drawn again for a test: each token stands for another; lengths and what they share stay."""
    mapped = dict(zip(words, random.Random(test).sample(words, len(words)), strict=True))
    return [[mapped[token] for token in prompt] for prompt in prompts]
