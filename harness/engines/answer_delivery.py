"""The delivery of servers' answers, and which of our own figures it makes doubtful."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from harness.core import buffering, schema
from harness.core.formatting import number, plural

# Beyond these limits, the way in which answers came makes our own figures doubtful.
RUSH_S = 1e-4  # two messages of one answer that are closer together came from a buffer
COUNT_TOLERANCE = 0.02  # a server's count of tokens and ours may differ by this share
CACHED_PERCENT = 1.0  # a higher percentage of prompt tokens from a server's cache is reported
WHOLE_SHARE = 0.1  # this share of answers in one message, or a larger one, is reported
TEMPLATE_TOKENS = 64  # tokens that a chat template may add to a prompt without being reported
FEWER_READ_REASON = "it truncates prompts, or leaves out of `usage` what came from its cache"
MORE_READ_REASON = "it adds to them, as a chat template or a system prompt does"


class TokenCounts(NamedTuple):
    """A server's own counts of the tokens of one answer. None for a count that it does not give."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # tokens of the prompt that were not computed again
    unexplained_tokens: int = 0  # tokens of the server's total that are neither prompt nor output


class Delivery(NamedTuple):
    """The delivery of one answer over the wire: what came of it, when, and how it ended."""

    tokens: int  # the count that results use (docs/reference/metrics.md)
    client_tokens: int = 0  # tokens as this client counts them
    first_tokens: int = 0  # tokens that came in the same read of the connection as the first one
    messages: int = 0  # messages that held tokens, if the answer was streamed
    usage: TokenCounts | None = None  # the server's own counts
    rushed: int = 0  # messages that came less than RUSH_S after the message before
    is_capped: bool = False  # the answer ended by length with fewer tokens than were asked for
    end: str = ""  # the server's word for the end of the answer, if it is an unusual one
    model: str = ""  # the model that the server names in the answer, if it named another one at first
    is_hidden: bool = False  # `usage` counts tokens of the answer, but none came
    why_empty: str = ""  # why the answer has no token, in words

    @property
    def is_whole(self) -> bool:
        """Tell whether the answer came in one message, so that it has no time per output token."""
        return self.messages == 1 and self.tokens > 1

    @property
    def is_bundled(self) -> bool:
        """Tell whether a buffer between the engine and this client held tokens of the answer back.

        Messages of several tokens at even distances are no sign of that: an engine may make several tokens in a step.
        """
        if self.is_whole:
            return True
        # The first read brought several tokens, and more than twice as many as a mean message (tokens / messages).
        has_long_start = self.first_tokens > 1 and self.first_tokens * self.messages > 2 * self.tokens
        # At least half of the messages came directly after the message before (`rushed`), which the first cannot.
        later_messages = self.messages - 1
        is_mostly_rushed = later_messages > 0 and 2 * self.rushed >= later_messages
        return has_long_start or is_mostly_rushed


@dataclass(slots=True)
class Exchange:
    """An engine's notes on a request that it sends to a server: the time, by time.perf_counter, which all processes of
    a machine share, and the delivery of the answer. An engine that sends requests nowhere leaves both as they are.
    """

    sent_at: float = field(default_factory=time.perf_counter)
    delivery: Delivery | None = None


def known_sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of counts. None if one of them is unknown (None), or if there are no counts."""
    all_counts = [*counts]
    known = [count for count in all_counts if count is not None]
    if not all_counts or len(known) < len(all_counts):
        return None
    return sum(known)


# The fields of ServerUse that are sums over all answers, each with the attribute of a delivery that is summed up.
DELIVERY_SUMS = {
    "client_tokens": "client_tokens",
    "tokens": "tokens",
    "messages": "messages",
    "first_tokens": "first_tokens",
    "rushed": "rushed",
    "bundled": "is_bundled",
    "whole": "is_whole",
    "capped": "is_capped",
    "hidden": "is_hidden",
}


class ServerUse(schema.FrozenModel):
    """server.json: sums over the answers of a test, as their servers count them and as this client does.

    A sum of the servers' counts is null if an answer came without them. `sent_tokens` are those of the prompts,
    `client_tokens` those of the answers as this client counts them, `tokens` those of the result. The other fields are
    those of `Delivery`. `bundled`, `whole`, `capped` and `hidden` count answers.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt tokens, those that were not computed again."""
    output_tokens: int | None = None
    unexplained_tokens: int | None = None
    """Of the servers' totals, tokens that are neither prompt nor output."""
    cache_hit_percent: float | None = None
    """Prompt tokens from the servers' prefix caches, by their own metrics before and after the test."""
    answers: int = 0
    uncounted: int = 0
    """Answers without `usage` where others had one."""
    sent_tokens: int = 0
    client_tokens: int = 0
    tokens: int = 0
    messages: int = 0
    first_tokens: int = 0
    rushed: int = 0
    bundled: int = 0
    whole: int = 0
    capped: int = 0
    hidden: int = 0
    """Answers without text whose tokens `usage` counts."""
    ends: dict[str, int] = {}
    """Answers by the server's word for their end, where it is none of the usual ones."""
    models: list[str] = []
    """That answered beside the one that the server named at first."""
    has_template: bool = False
    """Whether the server puts each prompt into a chat template."""
    replicas: tuple[int, int] = (0, 0)
    """How many computed no token in the test, and how many there are, by their metrics; 0 of 0 where those do not
    tell."""

    @classmethod
    def from_deliveries(
        cls,
        deliveries: Collection[Delivery],
        sent_tokens: int = 0,
        cache_hit_percent: float | None = None,
        has_template: bool = False,
        replicas: tuple[int, int] = (0, 0),
    ) -> Self:
        """Return the sums over all answers of a test, from the delivery of each answer.

        The other arguments become fields of the same names. `replicas` has the number of idle replicas, and that of
        all.
        """
        totals = dict[str, int]()
        for name, attribute in DELIVERY_SUMS.items():
            totals[name] = sum(getattr(delivery, attribute) for delivery in deliveries)
        usages = [delivery.usage for delivery in deliveries if delivery.usage]
        # If no answer has `usage`, the server does not send it, so no answer is an exception.
        uncounted = len(deliveries) - len(usages) if usages else 0
        if uncounted:
            usages = []  # The sums are then unknown: a sum over some answers would be misleading.
        return cls(
            prompt_tokens=known_sum(usage.prompt_tokens for usage in usages),
            cached_tokens=known_sum(usage.cached_tokens for usage in usages),
            output_tokens=known_sum(usage.output_tokens for usage in usages),
            unexplained_tokens=known_sum(usage.unexplained_tokens for usage in usages),
            cache_hit_percent=cache_hit_percent,
            answers=len(deliveries),
            uncounted=uncounted,
            sent_tokens=sent_tokens,
            ends=Counter(delivery.end for delivery in deliveries if delivery.end),
            models=sorted({delivery.model for delivery in deliveries if delivery.model}),
            has_template=has_template,
            replicas=replicas,
            **totals,
        )

    @property
    def cached_percent(self) -> float | None:
        """The percentage of prompt tokens that came from the server's cache. None if unknown.

        If both `usage` (the counts in the answers) and the server's metrics tell the percentage, the higher one counts.
        """
        percentages = []
        if self.cache_hit_percent is not None:
            percentages.append(self.cache_hit_percent)
        if self.cached_tokens is not None and self.prompt_tokens:
            percentages.append(100 * self.cached_tokens / self.prompt_tokens)
        return max(percentages, default=None)

    @property
    def is_buffered(self) -> bool:
        """Tell whether a buffer held back half of the answers or more, so that TTFT and TPOT are not the engine's."""
        return buffering.is_buffered(self.messages, self.bundled, self.answers)

    @property
    def disagreements(self) -> Iterator[str]:
        """Sentences on how the servers' answers contradict this program's own figures."""
        yield from self._differing_counts()
        yield from self._odd_answers()
        yield from self._doubtful_times()

    def _differing_counts(self) -> Iterator[str]:
        """Yield a sentence for each of the servers' own counts of tokens (`usage`) that differs from this client's.

        The counts are those of the output, the total and the prompt. A sentence also says if answers had no `usage`.
        """
        answers = max(1, self.answers)
        stated_tokens = self.output_tokens  # by `usage`
        client_tokens = self.client_tokens
        result_tokens = self.tokens  # one of both: the count that the result is made of
        tolerance = COUNT_TOLERANCE * client_tokens
        if stated_tokens is not None and abs(stated_tokens - client_tokens) > tolerance:
            excess = number(100 * (client_tokens - stated_tokens) / max(1, stated_tokens), 3, "+")
            basis = "`usage`" if result_tokens == stated_tokens else "what came"
            yield (
                f"`usage` has {plural(stated_tokens / answers, 'token')} an answer, {number(client_tokens / answers)} "
                f"are counted here ({excess} %): the result is by {basis}"
            )
        unexplained = self.unexplained_tokens or 0
        if unexplained > tolerance:
            yield (
                f"by `usage` {number(unexplained / answers)} tokens an answer are neither prompt nor "
                "output: thinking that is not sent, or prompts from a cache; they are not in the result"
            )
        is_result_by_usage = result_tokens != client_tokens  # Only then do answers without `usage` matter.
        if self.uncounted and is_result_by_usage:
            yield f"{self.share_of_answers(self.uncounted)} had no `usage`: their text was counted instead"
        yield from self._differing_prompts()

    def share_of_answers(self, count: int) -> str:
        """Return in words how many of all answers these are, such as "3 of 256 answers"."""
        return f"{count:,} of {plural(self.answers, 'answer')}"

    def _differing_prompts(self) -> Iterator[str]:
        """Yield a sentence if the server read fewer or more prompt tokens than were sent, beyond COUNT_TOLERANCE.

        A chat template may add TEMPLATE_TOKENS to each answer's prompt.
        """
        read, sent = self.prompt_tokens, self.sent_tokens
        if read is None or not sent:
            return
        most = (1 + COUNT_TOLERANCE) * sent
        if self.has_template:
            most += TEMPLATE_TOKENS * self.answers
        if not (1 - COUNT_TOLERANCE) * sent <= read <= most:
            explanation = FEWER_READ_REASON if read < sent else MORE_READ_REASON
            yield (
                f"by `usage` the server read {number(100 * read / sent, 3)} % of the prompt tokens that were sent: "
                f"{explanation}"
            )

    def _odd_answers(self) -> Iterator[str]:
        """Yield a sentence for each way in which answers are not what was asked for: hidden thinking, a cap of the
        server's own, another model, and replicas that answered nothing.
        """
        if self.hidden:
            yield (
                f"{self.share_of_answers(self.hidden)} came without text, and `usage` counts their tokens: the server "
                "hides what the model thinks; they have no TTFT and no TPOT"
            )
        if self.capped:
            yield (
                f"{self.share_of_answers(self.capped)} ended by length with fewer tokens than were asked for: the "
                "server has a cap of its own"
            )
        if self.models:  # models with other names than the first answer's
            yield f"answers came from {', '.join(self.models)}: the server changed its model during the test"
        idle, replicas = self.replicas
        if 0 < idle < replicas <= self.answers:  # With fewer answers than replicas, some must be idle.
            yield (
                f"{idle:,} of {replicas:,} replicas computed nothing, by their metrics: --new-connections spreads "
                "requests behind a balancer"
            )

    def _doubtful_times(self) -> Iterator[str]:
        """Yield a sentence for each reason why speeds and latencies may not be those of the engine."""
        answers = max(1, self.answers)
        if (self.cached_percent or 0.0) > CACHED_PERCENT:
            yield f"{number(self.cached_percent, 3)} % of the prompt came from the server's cache"
        has_many_whole_answers = self.whole > 0 and self.whole >= WHOLE_SHARE * self.answers
        if has_many_whole_answers:
            yield f"{self.share_of_answers(self.whole)} came in one message and have no TPOT"
        if self.is_buffered:  # A buffer held back many answers (`bundled`).
            bundled_percent = number(100 * self.bundled / answers, 3)
            # The means over all answers: tokens, messages, tokens of the first read, and messages that came at once.
            tokens = number(self.tokens / answers, 3)
            messages = number(self.messages / answers, 3)
            first_tokens = number(self.first_tokens / answers, 3)
            rushed = number(self.rushed / answers, 3)
            yield (
                f"TTFT and TPOT do not describe the engine: {bundled_percent} % of the answers came in bursts (mean: "
                f"{tokens} tokens in {messages} messages, {first_tokens} at first, {rushed} messages at once)"
            )

    @property
    def notes(self) -> list[str]:
        """Sentences on what is worth knowing but makes no number doubtful: unusual words for the end of answers."""
        sentences = []
        for word, count in self.ends.items():
            sentences.append(f"{plural(count, 'answer')} ended with finish_reason {word!r}, which is taken as `stop`")
        return sentences
