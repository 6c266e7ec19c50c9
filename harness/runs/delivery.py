"""How answers came from servers, and what that says of our own figures: tokens, the server's cache, times."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Self

from harness.common.markdown import number
from harness.common.schema import Model

SUMS = ("client_tokens", "tokens", "messages", "first_tokens")
SAME_COUNT = 0.02  # by which a server's count of tokens and ours may differ
CACHED_PERCENT = 1.0  # of the prompt tokens that may come from a server's cache without a word


@dataclass(frozen=True, slots=True)
class Usage:
    """A server's own counts of the tokens of one answer; None where it does not give one."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt's, those that were not computed again


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an answer came over the wire: its output tokens, by whose count is the result (docs/reference/metrics.md),
    and by this
    client's; those of the first message, and the messages that held any, as they were read from the connection, where
    was streamed; the server's own counts, None where it gave none."""

    tokens: int
    client_tokens: int = 0
    first_tokens: int = 0
    messages: int = 0
    usage: Usage | None = None

    @property
    def is_bundled(self) -> bool:
        """Whether it came in fewer than half as many messages as tokens, or half of it at once."""
        together = self.first_tokens > 1 and 2 * self.first_tokens >= self.tokens
        return self.messages > 0 and (2 * self.messages < self.tokens or together)


@dataclass(slots=True)
class Exchange:
    """What an engine notes of a request that it sends on: when it was sent, by time.perf_counter, which the processes
    of a machine share, and how its answer came. One that sends nothing on leaves both as they are."""

    sent_at: float
    delivery: Delivery | None = None


class ServerUse(Model):
    """server.json: a test's answers by their servers' own counts, null where an answer came without, and by ours. Sums.

    `sent_tokens` are those of the prompts, `client_tokens` those of the answers as this client counts them, `tokens`
    those of the result; `messages` those that held tokens, and `first_tokens` what the first ones held; `bundled` the
    answers that came in bursts.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt tokens, those that were not computed again."""
    output_tokens: int | None = None
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
    bundled: int = 0

    @classmethod
    def of(cls, found: Collection[Delivery], sent_tokens: int = 0, cache_hit_percent: float | None = None) -> Self:
        counted = [each.usage for each in found if each.usage]
        usages = counted if counted and len(counted) == len(found) else [Usage()]
        return cls(
            prompt_tokens=whole_sum(usage.prompt_tokens for usage in usages),
            cached_tokens=whole_sum(usage.cached_tokens for usage in usages),
            output_tokens=whole_sum(usage.output_tokens for usage in usages),
            uncounted=len(found) - len(counted) if counted else 0,
            answers=len(found),
            sent_tokens=sent_tokens,
            cache_hit_percent=cache_hit_percent,
            bundled=sum(each.is_bundled for each in found),
            **{name: sum(getattr(each, name) for each in found) for name in SUMS},
        )

    @property
    def cached_percent(self) -> float | None:
        """Of the prompt tokens, by `usage` or by the server's metrics, whichever has more; null where neither tells."""
        counted = self.cached_tokens is not None and self.prompt_tokens
        by_usage = 100 * (self.cached_tokens or 0) / (self.prompt_tokens or 1) if counted else None
        return max((share for share in (by_usage, self.cache_hit_percent) if share is not None), default=None)

    @property
    def is_buffered(self) -> bool:
        """Whether TTFT and TPOT are those of a buffer on the way, or in the server: of half of the answers."""
        return self.messages > 0 and 2 * self.bundled >= self.answers

    @property
    def disagreements(self) -> list[str]:
        """What the wire shows and this program's own figures do not, in words."""
        found, each = [], max(1, self.answers)
        counted, came = self.output_tokens, self.client_tokens
        if counted is not None and abs(counted - came) > SAME_COUNT * came:
            more = number(100 * (came - counted) / max(1, counted), 3, "+")
            apart = f"{number(came / each)} are counted here ({more} %)"
            by = "by `usage`" if self.tokens == counted else "by what came"
            found.append(f"`usage` has {number(counted / each)} tokens an answer, {apart}: the result is {by}")
        if self.uncounted and self.tokens != came:
            found.append(
                f"{self.uncounted:,} of {self.answers:,} answers had no `usage`: their text was counted instead"
            )
        if self.prompt_tokens is not None and self.prompt_tokens < (1 - SAME_COUNT) * self.sent_tokens:
            read = f"{number(100 * self.prompt_tokens / self.sent_tokens, 3)} % of the prompt tokens that were sent"
            found.append(f"by `usage` the server read {read}: does it cut prompts?")
        if (self.cached_percent or 0.0) > CACHED_PERCENT:
            found.append(f"{number(self.cached_percent, 3)} % of the prompt came from the server's cache")
        if self.is_buffered:
            counts = (self.tokens, self.messages, self.first_tokens)
            tokens, messages, first = (number(count / each, 3) for count in counts)
            means = f"mean: {tokens} tokens in {messages} messages, {first} in the first message"
            share = f"{number(100 * self.bundled / each, 3)} % of the answers came in bursts"
            found.append(f"TTFT and TPOT are those of the buffering: {share} ({means})")
        return found


def whole_sum(counts: Iterable[int | None]) -> int | None:
    """The sum of counts; None where one of them is not known."""
    each = list(counts)
    return None if None in each else sum(count or 0 for count in each)
