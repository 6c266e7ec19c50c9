"""Samples as they are sent to an engine: prompts, references, and the salt that makes prompts distinct."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, Self

from harness.config.lengths import SALT_TOKENS, PromptParts
from harness.config.workload import RequestSet
from harness.engines.protocol import MessagePrompt
from harness.workloads.requests_file import TokenIds


class Salt(NamedTuple):
    """Random tokens of `vocabulary`, put into a prompt after its first `offset` tokens. If the salt is not at the
    start, all turns of a conversation have the same salt. `test` is the name of a test, which no other test has.

    If `replaces_tokens`, the prompts are random and the user asked for no salt. From the second round on, in which
    LoadGen sends the same prompts again, the salt then takes the place of as many tokens, so that nothing but the
    prefix is shared with earlier rounds.
    """

    vocabulary: Sequence[int]
    offset: int
    is_at_start: bool
    replaces_tokens: bool = False
    test: str = ""

    @classmethod
    def from_parts(cls, parts: PromptParts, vocabulary: Sequence[int]) -> Self:
        """Return the salt of random prompts: tokens of `vocabulary` that make a prompt unlike those of any other test.

        A server can then not answer from its cache.
        """
        if parts.salt == "start":
            return cls(vocabulary, offset=0, is_at_start=True)
        after_prefix = cls(vocabulary, offset=parts.prefix_len, is_at_start=False)
        if parts.salt == "after-prefix":
            return after_prefix
        # The user wants no salt. A prompt then gets one only when it is sent again, in place of other tokens.
        return after_prefix._replace(replaces_tokens=True)

    def add_to(self, prompt: Sequence[int], order: int, conversation: int, round: int) -> TokenIds:
        """Return a prompt with its salt: random tokens at `offset` that make it unlike other prompts.

        The salt is inserted or, with `replaces_tokens`, takes the place of as many tokens. `order` is the position of
        the request in the test, and `round` says how often the sample was sent before.
        """
        if self.replaces_tokens and not round:  # The prompt is random, and so unlike others until it is sent again.
            return [*prompt]
        # A salt at the start differs in each request, any other salt in each conversation and round.
        key = f"conversation {conversation}, round {round}"
        if self.is_at_start:
            key = f"request {order}"
        tokens = Random(f"{self.test} {key}").choices(self.vocabulary, k=SALT_TOKENS)
        first_after_salt = self.offset  # the index of the prompt's first token after the salt
        if self.replaces_tokens:
            first_after_salt += SALT_TOKENS  # The prompt keeps its length.
        salted_prompt = [*prompt[: self.offset], *tokens, *prompt[first_after_salt:]]
        if isinstance(prompt, MessagePrompt):  # The client puts the salt before the first message.
            return MessagePrompt(salted_prompt, prompt.messages, tokens)
        if self.replaces_tokens:
            return salted_prompt[: len(prompt)]  # a prompt may be shorter than the prefix and the salt
        return salted_prompt


Prompt = tuple[TokenIds, int | None]  # token ids, and the longest length of the answer; None: that of all answers


@dataclass(frozen=True)
class Library:
    """Samples in the order of the category. Lists have an item for each sample.

    MLPerf's samples have references and articles, and answers of one longest length. A workload has `new_tokens` and a
    `request_set` instead.
    """

    prompts: list[TokenIds]
    source: str  # the name of the data
    new_tokens: list[int] | None = None  # the length of each answer, at most or exactly
    request_set: RequestSet | None = None
    official: bool = True  # MLPerf's own samples, as far as their number and lengths show
    # The number of each sample's conversation, if conversations have several turns. Turns follow one another in order.
    conversations: list[int] | None = None
    salt: Salt | None = None
    arrivals: list[float] | None = None  # the seconds from a trace's first request to each request, in order
    vocabulary: Sequence[int] = ()  # the token ids of which random prompts are made; empty for other prompts
    references: Sequence[str] = ()  # the summaries to match
    articles: Sequence[str] = ()
    notes: tuple[str, ...] = ()  # what a reader must know about how the samples were made

    def request(self, index: int, order: int, round: int = 0) -> Prompt:
        """Return the token ids of sample `index`, and the most tokens of its answer (None if all have one limit).

        `order` is the position of the request in the test, and `round` says how often the sample was sent before.
        """
        token_ids = self.prompts[index]
        if self.salt:
            # Without conversations, each sample is like a conversation with a single turn.
            conversation = self.conversations[index] if self.conversations else index
            token_ids = self.salt.add_to(token_ids, order, conversation, round)
        if not self.new_tokens:
            return token_ids, None
        return token_ids, self.new_tokens[index]

    @property
    def requests(self) -> list[Prompt]:
        """A request for each sample, in order."""
        return [self.request(index, order=index) for index in range(len(self))]

    def with_test_salt(self, test: str, redraw: bool) -> Self:
        """Return the samples with a salt (random tokens in each prompt) for this test alone.

        A server then cannot answer from its cache of another test. With `redraw`, the tokens of random prompts are
        drawn anew, too.
        """
        salt = self.salt
        if salt:
            salt = salt._replace(test=test)
        if not redraw or not self.vocabulary:  # Only random prompts have a vocabulary.
            return replace(self, salt=salt)
        # Each token gets one substitute, so prompts keep their lengths and what they share.
        shuffled = Random(test).sample(self.vocabulary, len(self.vocabulary))
        substitutes = dict(zip(self.vocabulary, shuffled, strict=True))
        prompts = []
        for prompt in self.prompts:
            prompts.append([substitutes[token] for token in prompt])
        return replace(self, prompts=prompts, salt=salt)

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> list[int]:
        """The tokens of each sample of a workload: its prompt and its longest answer."""
        assert self.new_tokens is not None  # A workload gives each sample a length of its own.
        return [len(prompt) + answer for prompt, answer in zip(self.prompts, self.new_tokens, strict=True)]

    @property
    def longest_sample(self) -> int:
        """The index of the workload's longest sample."""
        lengths = self.lengths
        return lengths.index(max(lengths))

    @property
    def mean_prompt_tokens(self) -> float:
        return sum(map(len, self.prompts)) / len(self)
