"""Samples as an engine is asked for them: prompts, references, and what makes prompts distinct."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, Self

from harness.config.lengths import SALT_TOKENS, PromptParts
from harness.config.workload import RequestSet
from harness.engines.protocol import MessagePrompt
from harness.workloads.requests_file import TokenIds


class Salt(NamedTuple):
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
    def of(cls, sharing: PromptParts, words: Sequence[int]) -> Self:
        start = sharing.salt == "start"
        return cls(words, 0 if start else sharing.prefix_len, start, replaces=sharing.salt == "none")

    def add_to(self, prompt: Sequence[int], order: int, conversation: int, round: int) -> TokenIds:
        """Return a prompt with its salt.

        `order` tells requests apart. `conversation` and `round` say which requests belong together.
        """
        if self.replaces and not round:
            return [*prompt]
        key = f"request {order}" if self.start else f"conversation {conversation}, round {round}"
        tokens = Random(f"{self.test} {key}").choices(self.words, k=SALT_TOKENS)
        rest = self.after + SALT_TOKENS if self.replaces else self.after
        salted = [*prompt[: self.after], *tokens, *prompt[rest:]]
        if isinstance(prompt, MessagePrompt):
            return MessagePrompt(salted, prompt.messages, tokens)
        return salted[: len(prompt)] if self.replaces else salted


Prompt = tuple[TokenIds, int | None]  # token ids, and the most tokens of the answer; None: as many as in every answer


@dataclass(frozen=True)
class Library:
    """Samples in the order of the category; `prompts[i]` holds token ids, `references[i]` the summary to match.

    A workload has no references; `new_tokens[i]` is then the length of an answer, at most or exactly.
    """

    prompts: list[TokenIds]
    source: str
    new_tokens: list[int] | None = None
    request_set: RequestSet | None = None
    official: bool = True  # MLPerf's own samples, as far as their number and lengths tell
    # The conversation of each sample, if conversations have several turns. Turns follow one another in order.
    conversations: list[int] | None = None
    salt: Salt | None = None
    arrivals: list[float] | None = None  # seconds to each request of a trace, in order
    words: Sequence[int] = ()  # the token ids of which random prompts are made
    references: Sequence[str] = ()
    articles: Sequence[str] = ()
    notes: tuple[str, ...] = ()  # notes for a reader on how they were made

    def request(self, index: int, order: int, round: int = 0) -> Prompt:
        """Return a sample's prompt with its salt, and the most tokens of its answer.

        `order` is the position of the request in the test, and `round` says how often the sample was sent before.
        """
        prompt = self.prompts[index]
        if self.salt:
            talk = self.conversations[index] if self.conversations else index
            prompt = self.salt.add_to(prompt, order, talk, round)
        return prompt, self.new_tokens[index] if self.new_tokens else None

    @property
    def requests(self) -> list[Prompt]:
        """The requests for each sample, once and in order."""
        return [self.request(index, index) for index in range(len(self))]

    def salted(self, test: str, redraw: bool) -> Self:
        """Return the samples with the salt of one test, whose name no other test has.

        With `redraw`, random prompts are drawn anew.
        """
        salt = self.salt._replace(test=test) if self.salt else None
        if not (redraw and self.words):
            return replace(self, salt=salt)
        # Each token is replaced by another one, so prompts keep their lengths and what they share.
        substitutes = dict(zip(self.words, Random(test).sample(self.words, len(self.words)), strict=True))
        prompts = []
        for prompt in self.prompts:
            prompts.append([substitutes[token] for token in prompt])
        return replace(self, prompts=prompts, salt=salt)

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def mean_prompt_tokens(self) -> float:
        return sum(map(len, self.prompts)) / len(self)
