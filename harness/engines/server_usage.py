"""A server's own counts of one answer, under the names and by the rules of each kind of server."""

from collections.abc import Mapping
from typing import NamedTuple

from harness.core import word_list
from harness.core.json_values import dict_or_empty, list_or_empty
from harness.core.plain_numbers import whole_number
from harness.engines.answer_delivery import COUNT_TOLERANCE, TokenCounts

MOST_COUNT = 2**31  # a count of tokens from here on is taken as no count
# Dictionaries within `usage`, whose counts are read as if they stood in it.
DETAILS = word_list.names_in(
    "prompt_tokens_details input_tokens_details completion_tokens_details output_tokens_details tokens"
)
PROMPT_NAMES = word_list.names_in("prompt_tokens input_tokens promptTokenCount inputTokens prompt_eval_count")
OUTPUT_NAMES = word_list.names_in("completion_tokens output_tokens candidatesTokenCount outputTokens eval_count")
TOTAL_NAMES = word_list.names_in("total_tokens totalTokenCount totalTokens")
# Prompt tokens that were not computed again, by OpenAI, vLLM and SGLang, DeepSeek, Anthropic, Moonshot, Gemini, ...
CACHED_NAMES = word_list.names_in(
    """
    cached_tokens prompt_cache_hit_tokens cache_read_input_tokens cache_read_tokens num_cached_tokens
    cachedContentTokenCount cacheReadInputTokens cached_prompt_tokens
    """
)
# Prompt tokens that were put into a cache. A server whose count of the prompt lacks the cached tokens lacks these, too.
CACHE_WRITE_NAMES = word_list.names_in(
    "cache_creation_input_tokens cache_write_tokens cacheWriteInputTokens cache_creation_tokens"
)
REASONING_NAMES = word_list.names_in("reasoning_tokens thoughtsTokenCount thinking_tokens")
APART_NAME = "cache_read_input_tokens"  # a name of the convention that never counts cached tokens in the prompt


class StatedUsage(NamedTuple):
    """The counts that a server states. `unexplained` are the tokens of its total that are neither prompt nor output:
    what the model thought, or what came from a cache, if the server counts these only in the total.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    unexplained: int = 0

    def counts(self, came: int) -> TokenCounts:
        """Return the counts of an answer, given that this client counted `came` tokens of it.

        Unexplained tokens count as output if the output is near `came` only together with them.
        """
        output = self.output_tokens
        output_with_unexplained = (output or 0) + self.unexplained
        agrees_without = is_near(output or 0, came)
        agrees_with = is_near(output_with_unexplained, came)
        if self.unexplained and agrees_with and not agrees_without:  # They came, so they are output.
            return TokenCounts(self.prompt_tokens, output_with_unexplained, self.cached_tokens)
        return TokenCounts(self.prompt_tokens, output, self.cached_tokens, self.unexplained)


def is_near(stated: int, came: int) -> bool:
    """Return whether a server's count agrees with the tokens that came, within COUNT_TOLERANCE."""
    return abs(stated - came) <= COUNT_TOLERANCE * came


def read_usage(usage: object) -> StatedUsage | None:
    """Return a server's counts of one answer, from its `usage`. None if that is no object.

    Some servers leave tokens out: from the output what the model thinks (`reasoning`), from the prompt what was read
    from a cache or written to it. The server's total shows which tokens are missing.
    """
    if not isinstance(usage, dict):
        return None
    counts = flat_counts(usage)
    # Servers that do not count the prompt or the output write 0, so 0 stands for unknown.
    prompt = first_count(counts, PROMPT_NAMES) or None
    output = first_count(counts, OUTPUT_NAMES) or None
    total = first_count(counts, TOTAL_NAMES) or 0
    reasoning = first_count(counts, REASONING_NAMES) or 0
    cached = first_count(counts, CACHED_NAMES)
    written = first_count(counts, CACHE_WRITE_NAMES) or 0
    cache_tokens = (cached or 0) + written
    unexplained = 0
    if prompt and total:
        unexplained = max(0, total - prompt - (output or 0))
    if prompt and not total:
        # Without a total, the prompt lacks the cache's tokens if their name says so, or if they are more than it has.
        is_lacking_cache = APART_NAME in counts or cache_tokens > prompt
        if is_lacking_cache:
            prompt += cache_tokens
    elif reasoning and unexplained == reasoning:  # The output lacks these tokens.
        output, unexplained = (output or 0) + reasoning, 0
    elif cache_tokens and unexplained == cache_tokens:  # The prompt lacks these tokens.
        prompt, unexplained = (prompt or 0) + cache_tokens, 0
    if cached is not None and prompt and cached > prompt:
        cached = None  # more tokens than the prompt has cannot come from a cache
    return StatedUsage(prompt, output, cached, unexplained)


def flat_counts(usage: Mapping[str, object]) -> dict[str, object]:
    """Return the counts in a server's `usage` and in the dictionaries within it (DETAILS), by name.

    If both have a count of the same name, that of `usage` itself is kept, unless it is null.
    """
    counts = dict[str, object]()
    for name in DETAILS:
        counts |= dict_or_empty(usage, name)
    for name, value in usage.items():
        if name not in DETAILS and value is not None:
            counts[name] = value
    return counts


def first_count(counts: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    """Return the count under the first of the names that has a whole number below MOST_COUNT. None if no name has."""
    for name in names:
        count = whole_number(counts.get(name))
        if count is not None and count < MOST_COUNT:
            return count
    return None


def usage_in(message: Mapping[str, object]) -> StatedUsage | None:
    """Return the server's counts in a message of an answer, from the first place that has any. None if there are none.

    Most servers have them in `usage`, Moonshot in the first choice, Groq in an object of its own.
    """
    places = [message.get("usage")]
    for choice in list_or_empty(message, "choices")[:1]:
        if isinstance(choice, dict):
            places.append(choice.get("usage"))
    places.append(dict_or_empty(message, "x_groq").get("usage"))
    for usage in places:
        stated = read_usage(usage)
        if stated:
            return stated
    return None
