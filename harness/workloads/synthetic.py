"""Requests of drawn lengths: random prompts and answers of exact lengths."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NotRequired, TypedDict, Unpack

from harness.config.arrival_patterns import Replay
from harness.config.lengths import SALT_TOKENS, PromptParts
from harness.config.run import RunConfig
from harness.config.workload import SYNTHETIC_COUNT, RequestSet, Workload, WorkloadProfile
from harness.core import reading
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_PROFILE
from harness.core.given_values import read_given
from harness.core.tokenizer import Tokenizer
from harness.workloads.requests_file import TokenIds
from harness.workloads.sample_library import Library, Salt

MOST_SYNTHETIC = 10**8  # tokens of all prompts: about a GiB
DESCRIPTION = "random prompts, and answers of exact lengths"


def digest(*content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def words_of(tokenizer: Tokenizer) -> TokenIds:
    """Return the token ids from which random prompts are made: all except special ones."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return [token for token in range(len(tokenizer)) if token not in special]


class SetDescription(TypedDict):
    """The fields of a RequestSet that do not follow from its samples."""

    name: str
    about: str
    samples: int
    exact: bool
    digest: str
    notes: NotRequired[tuple[str, ...]]
    replay: NotRequired[Replay | None]


def with_request_set(found: Library, place: Callable[[int], str], **known: Unpack[SetDescription]) -> Library:
    """Return the samples of a workload with the description of their set.

    `place` returns where a sample comes from. `known` are the fields that do not follow from the samples.
    """
    new, salt = found.new_tokens or [], found.salt
    lengths = [len(prompt) + answer for prompt, answer in zip(found.prompts, new, strict=True)]
    longest = max(lengths)
    salt_tokens = SALT_TOKENS if salt and not salt.replaces else 0
    request_set = RequestSet(
        longest=longest + salt_tokens,
        longest_at=place(lengths.index(longest)),
        max_new_tokens=max(new),
        whole_rounds=bool(found.conversations or found.arrivals),
        **known,
    )
    return replace(found, request_set=request_set)


def read_profile(config: RunConfig, workload: Workload) -> WorkloadProfile:
    """Return the profile in a YAML file, with --salt in place of its own salt. Raises UsageError."""
    import yaml

    path = workload.path or Path()
    data = read_given("--workload", path, "YAML", reading.load_yaml, yaml.YAMLError, most=LARGEST_PROFILE)
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected keys, {', '.join(WorkloadProfile.model_fields)}.", flag="--workload")
    try:
        settings = {"about": workload.imitates} | {str(key): value for key, value in data.items()}
        if config.salt:
            settings["salt"] = config.salt
        return WorkloadProfile.from_mapping(settings)
    except UsageError as error:
        raise UsageError(f"{path}: {error}", flag="--workload") from None


def draw_library(config: RunConfig, tokenizer: Tokenizer, profile: WorkloadProfile, place: str) -> Library:
    """Return samples drawn by a profile: conversations of some turns each, or single requests if there is one turn.

    `place` names the file or the flags that give the lengths. Raises UsageError if there are too many tokens, or too
    few requests for the turns.
    """
    sharing = PromptParts.from_mapping(profile.values(PromptParts.model_fields))
    read, write, seed = profile.input_len, profile.output_len, config.seed or 0
    source, words = Random(seed), words_of(tokenizer)
    count = config.sample_limit or SYNTHETIC_COUNT
    turns = sharing.turns
    if turns > 1 and config.concurrency is None:
        raise UsageError("turns need --concurrency: elsewhere a turn does not wait for the one before.")
    if count < turns:
        raise UsageError(f"{count}: a conversation has {turns} turns.", flag="--total-sample-count")
    mean = sharing.prefix_len + (read.median * (turns + 1) + write.median * (turns - 1)) / 2
    if count * mean > MOST_SYNTHETIC:
        raise UsageError(f"{place}: {count:,} prompts of {mean:,.0f} tokens; use fewer (--total-sample-count).")
    if sharing.prefix_len or turns > 1:
        prompts, new, talks = draw_conversations(profile, source, words, count)
    else:
        prompts = [source.choices(words, k=read.draw(source)) for _ in range(count)]
        new = [write.draw(source) for _ in range(count)]
        talks = None
    salt = Salt.of(sharing, words)
    library = Library(prompts, "random token ids", new, conversations=talks, salt=salt, words=words)
    return with_request_set(
        library,
        lambda index: place,
        name=config.workload_name,
        about=profile.about + sharing.text,
        samples=count,
        exact=True,
        digest=digest(read, write, sharing, seed),
    )


def draw_conversations(
    profile: WorkloadProfile, source: Random, words: Sequence[int], count: int
) -> tuple[list[TokenIds], list[int], list[int] | None]:
    """Return the prompts, the lengths of the answers, and the conversation of each prompt.

    The conversations are None if each has only one turn. A later turn repeats the answers before it. They are random
    tokens of the same lengths, since the model's answers are not known yet.
    """
    heads = [source.choices(words, k=profile.prefix_len) for _ in range(profile.prefixes)]
    prompts, new, history = list[TokenIds](), list[int](), TokenIds()
    for place in range(count):
        if place % profile.turns == 0:
            history = list(source.choice(heads))
        prompts.append([*history, *source.choices(words, k=profile.input_len.draw(source))])
        new.append(profile.output_len.draw(source))
        history = [*prompts[-1], *source.choices(words, k=new[-1])]
    if profile.turns == 1:
        return prompts, new, None
    return prompts, new, [place // profile.turns for place in range(count)]
