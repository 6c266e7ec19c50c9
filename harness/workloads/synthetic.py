"""Requests of drawn lengths: random prompts and answers of exact lengths."""

import hashlib
from collections.abc import Sequence
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

MOST_SYNTHETIC_TOKENS = 10**8  # tokens of all prompts together: roughly a GiB
DESCRIPTION = "random prompts, and answers of exact lengths"


def digest(*content: object) -> str:
    """Return a short hash by which two workloads are recognized as the same.

    The hash is of the `repr` of these objects, so it changes if a class or a field is renamed.
    """
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def plain_vocabulary(tokenizer: Tokenizer) -> TokenIds:
    """Return the token ids from which random prompts are made: all except special tokens."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return [token for token in range(len(tokenizer)) if token not in special]


class SetDescription(TypedDict):
    """The fields of a RequestSet that do not follow from its samples."""

    name: str
    about: str
    samples: int
    longest_at: str  # where the longest sample comes from
    exact: bool
    digest: str
    notes: NotRequired[tuple[str, ...]]
    replay: NotRequired[Replay | None]


def with_request_set(library: Library, **description: Unpack[SetDescription]) -> Library:
    """Return the samples of a workload with a RequestSet that describes them.

    The RequestSet has the fields in `description` and those that follow from the samples.
    """
    assert library.new_tokens  # Workloads with a RequestSet always have them.
    longest = max(library.lengths)
    if library.salt and not library.salt.replaces_tokens:  # The salt makes each prompt longer.
        longest += SALT_TOKENS
    request_set = RequestSet(
        longest=longest,
        max_new_tokens=max(library.new_tokens),
        # The turns of a conversation belong together, and so do the requests of a trace. A test then sends each sample
        # equally often.
        whole_rounds=bool(library.conversations or library.arrivals),
        **description,
    )
    return replace(library, request_set=request_set)


def read_profile(config: RunConfig, workload: Workload) -> WorkloadProfile:
    """Return the profile in a workload's YAML file, with --salt, if it is given, in place of the profile's own salt.

    Raises UsageError if the file cannot be read, or if a key or a value is wrong.
    """
    import yaml

    path = workload.path or Path()  # A profile always has a path.
    data = read_given("--workload", path, "YAML", reading.load_yaml, yaml.YAMLError, most=LARGEST_PROFILE)
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected keys, {', '.join(WorkloadProfile.model_fields)}.", flag="--workload")
    settings: dict[str, object] = {"about": workload.imitates}  # unless the file has a description
    for key, value in data.items():
        settings[str(key)] = value
    if config.salt:
        settings["salt"] = config.salt
    try:
        return WorkloadProfile.from_mapping(settings)
    except UsageError as error:
        raise UsageError(f"{path}: {error}", flag="--workload") from None


def check_drawable(config: RunConfig, profile: WorkloadProfile, count: int, place: str) -> None:
    """Raise UsageError if a run cannot have `count` requests drawn by a profile.

    `place` names the file or the flags that give the lengths.
    """
    if profile.turns > 1 and config.concurrency is None:
        raise UsageError("turns need --concurrency: without it, a turn is sent before the one before is answered.")
    if count < profile.turns:
        raise UsageError(f"{count}: a conversation has {profile.turns} turns.", flag="--total-sample-count")
    typical_length = typical_prompt_length(profile)
    if count * typical_length > MOST_SYNTHETIC_TOKENS:
        raise UsageError(
            f"{place}: {count:,} prompts of {typical_length:,.0f} tokens; use fewer (--total-sample-count)."
        )


def draw_library(config: RunConfig, tokenizer: Tokenizer, profile: WorkloadProfile, place: str) -> Library:
    """Return samples drawn by a profile: conversations of some turns each, or single requests if there is one turn.

    They are the same for the same --seed. `place` names the file or the flags that give the lengths. Raises UsageError
    as `check_drawable` does.
    """
    count = config.sample_limit or SYNTHETIC_COUNT
    check_drawable(config, profile, count, place)
    parts = PromptParts.from_mapping(profile.values(PromptParts.model_fields))
    input_len, output_len = profile.input_len, profile.output_len
    seed = config.seed or 0
    random = Random(seed)
    vocabulary = plain_vocabulary(tokenizer)
    if parts.prefix_len or parts.turns > 1:  # Prompts share a prefix, or the earlier turns of their conversation.
        prompts, new_tokens, conversations = draw_conversations(profile, random, vocabulary, count)
    else:  # Prompts share nothing.
        prompts = [random.choices(vocabulary, k=input_len.draw(random)) for _ in range(count)]
        new_tokens = [output_len.draw(random) for _ in range(count)]
        conversations = None
    library = Library(
        prompts,
        "random token ids",
        new_tokens,
        conversations=conversations,
        salt=Salt.from_parts(parts, vocabulary),  # the tokens that keep prompts apart in a prefix cache
        vocabulary=vocabulary,
    )
    return with_request_set(
        library,
        name=config.workload_name,
        about=profile.about + parts.text,  # `parts.text` says what the prompts share.
        samples=count,
        longest_at=place,
        exact=True,  # Each answer has exactly its drawn length.
        digest=digest(input_len, output_len, parts, seed),
    )


def typical_prompt_length(profile: WorkloadProfile) -> float:
    """Return how many tokens a prompt has on average, if all questions and answers have their median lengths.

    Each turn of a conversation repeats the earlier ones: turn t has t questions and t - 1 answers.
    """
    mean_questions, mean_answers = (profile.turns + 1) / 2, (profile.turns - 1) / 2
    questions = mean_questions * profile.input_len.median
    return profile.prefix_len + questions + mean_answers * profile.output_len.median


def draw_conversations(
    profile: WorkloadProfile, random: Random, vocabulary: Sequence[int], count: int
) -> tuple[list[TokenIds], list[int], list[int] | None]:
    """Return `count` prompts, the lengths of their answers, and the number of each prompt's conversation.

    The conversations are None if each has only one turn. A conversation begins with one of the profile's prefixes.
    """
    prefixes = [random.choices(vocabulary, k=profile.prefix_len) for _ in range(profile.prefixes)]
    prompts, new_tokens, history = list[TokenIds](), list[int](), TokenIds()
    for index in range(count):
        if index % profile.turns == 0:  # a new conversation begins
            history = list(random.choice(prefixes))
        question = random.choices(vocabulary, k=profile.input_len.draw(random))
        prompt = [*history, *question]
        answer_length = profile.output_len.draw(random)
        answer = random.choices(vocabulary, k=answer_length)  # The model's answer is not known yet.
        history = [*prompt, *answer]
        prompts.append(prompt)
        new_tokens.append(answer_length)
    if profile.turns == 1:
        return prompts, new_tokens, None
    return prompts, new_tokens, [index // profile.turns for index in range(count)]
