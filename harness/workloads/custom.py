"""The samples of a workload, as token ids with the length of each answer: from a file of requests, a data set, lengths
to draw, or a trace.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.config import mlperf
from harness.config.lengths import PromptParts
from harness.config.run import RunConfig
from harness.config.workload import HUB_PREFIX, WORKLOADS, Workload, WorkloadProfile, check_workload, is_profile
from harness.core.errors import UsageError
from harness.core.formatting import plural
from harness.core.message_text import first_line
from harness.core.tokenizer import Tokenizer
from harness.engines.protocol import MessagePrompt
from harness.workloads import hub, requests_file
from harness.workloads.requests_file import Chat, StoredRequest, StoredRequests, TokenIds, is_chat, is_in_vocabulary
from harness.workloads.sample_library import Library, Salt
from harness.workloads.synthetic import (
    DESCRIPTION,
    digest,
    draw_library,
    plain_vocabulary,
    read_profile,
    with_request_set,
)
from harness.workloads.trace_replay import library_of_trace

# Only ShareGPT's conversations within these bounds, in tokens, are used, as in vLLM's own benchmark (vllm bench serve).
SHAREGPT_FEWEST_TOKENS = 4  # the shortest prompt, and the shortest answer
SHAREGPT_LONGEST_PROMPT = 1024
SHAREGPT_MOST_TOKENS = 2048  # the longest prompt with its answer
NO_TEMPLATE = "the tokenizer has no chat template: messages are lines such as `User: ...`, the last is `Assistant:`"
UNCHECKED_IDS = "prompt_token_ids: not checked, since no text stands beside them"
UNCOUNTED_TEMPLATE = "the tokenizer has no chat template: prompt tokens are counted without those of the server's"


def salt_of_requests(parts: PromptParts, tokenizer: Tokenizer, prompts: Iterable[Sequence[int]]) -> Salt:
    """Return the salt (random tokens) for the prompts of a file. It follows the token that begins them all, if any."""
    has_beginning = all(prompt[0] == tokenizer.bos_token_id for prompt in prompts)
    offset = 1 if has_beginning else 0
    return Salt(plain_vocabulary(tokenizer), offset, is_at_start=parts.salt == "start")


def load(config: RunConfig, tokenizer: Tokenizer) -> Library | None:
    """Return the requests that the run sends in place of MLPerf's samples, no more than it needs.

    None if the run uses MLPerf's samples. Raises UsageError if there is no such workload or file, or if the file cannot
    be used.
    """
    if config.is_official_workload:
        return None
    if config.is_replay:  # The requests are those of a recorded trace.
        return library_of_trace(config, tokenizer)
    if config.input_len:  # Random prompts of these lengths are drawn.
        settings = {"about": DESCRIPTION, "salt": config.salt or "none"} | config.values(("input_len", "output_len"))
        profile = WorkloadProfile.from_mapping(settings)
        flags = f"--input-len {config.input_len} --output-len {config.output_len}"
        return draw_library(config, tokenizer, profile, flags)
    name = config.workload
    if name.startswith(HUB_PREFIX):  # a data set of the Hugging Face hub
        return library_from_requests(config, tokenizer, hub.DESCRIPTION, hub.read(config))
    check_workload(name)
    workload = WORKLOADS.get(name) or Workload(Path(name), "requests of the user's own")
    if is_profile(name):  # The file has no requests, but the lengths from which random prompts are drawn.
        profile = read_profile(config, workload)
        place = f"{workload.path}: input_len {profile.input_len}, output_len {profile.output_len}"
        return draw_library(config, tokenizer, profile, place)
    path = workload.path or Path()  # Only MLPerf's samples have no path, and these were left out above.
    stored = requests_file.read(path, config.prompt_column or "")
    return library_from_requests(config, tokenizer, workload.imitates, stored)


class UsableRequests(NamedTuple):
    """The requests of a workload that are sent, their prompts, and the longest length of each answer in tokens. `unfit`
    has the places in the file of the requests that were left out for their lengths.
    """

    requests: list[StoredRequest]
    prompts: list[TokenIds]
    new_tokens: list[int]
    unfit: set[int]


def library_from_requests(config: RunConfig, tokenizer: Tokenizer, about: str, stored: StoredRequests) -> Library:
    """Return the samples of a file of requests or of a data set, with notes on how they were made.

    `about` describes the workload for the report.
    """
    check_length_flag(config, stored)
    usable = usable_requests(config, tokenizer, stored)
    # Requests after the last that the run needs were not tried, and count as fit.
    fit_requests = [request for place, request in enumerate(stored.requests) if place not in usable.unfit]
    content_digest = digest(fit_requests, config.max_new_tokens)
    notes = [stored.fault_note, stored.unread_note, *workload_notes(config, tokenizer, stored, usable)]
    salt = None
    parts = PromptParts(salt=config.salt or "none")
    if parts.salt != "none":
        # Random tokens, so that no server can answer from its cache.
        salt = salt_of_requests(parts, tokenizer, usable.prompts)
        content_digest = digest(content_digest, parts)  # Requests with a salt are another workload.
        notes.append(parts.text.removeprefix("; "))  # the salt in words, as a note that stands alone
    conversations = None
    # At fixed concurrency, a turn of a conversation is sent after the answer to the turn before. No other load waits.
    if stored.has_turns and config.concurrency is not None:
        conversations = [request.number for request in usable.requests]
    library = Library(usable.prompts, str(stored.path), usable.new_tokens, conversations=conversations, salt=salt)
    return with_request_set(
        library,
        name=config.workload_name,
        about=about,
        samples=len(fit_requests),
        longest_at=stored.where(usable.requests[library.longest_sample]),
        exact=False,  # The answers may be shorter than their limits.
        digest=content_digest,
        notes=tuple(filter(None, notes)),
    )


def check_length_flag(config: RunConfig, stored: StoredRequests) -> None:
    """Raise UsageError if the user set --max-new-tokens, but every request says how long its answer is.

    The flag would then have no effect. A request says so by a length or by a recorded answer, which each conversation
    of ShareGPT has.
    """
    if config.max_new_tokens == mlperf.MAX_NEW_TOKENS:  # the default, so the user did not set the flag
        return
    requests = stored.requests[: config.sample_limit]
    if stored.is_sharegpt or all(request.max_tokens or request.answer for request in requests):
        raise UsageError(
            f"--max-new-tokens: every {stored.unit} of {stored.path} says how long its answer is: remove the flag."
        )


def usable_requests(config: RunConfig, tokenizer: Tokenizer, stored: StoredRequests) -> UsableRequests:
    """Return the requests that can be sent, no more than the run takes, with their prompts and lengths.

    Raises UsageError if no request is left, or if a prompt cannot be encoded.
    """
    context = sharegpt_context(config)
    usable = UsableRequests([], [], [], unfit=set())
    for place, request in enumerate(stored.requests):
        if len(usable.prompts) == config.sample_limit:  # The run takes no more. Without a limit, this is never so.
            break
        prompt = prompt_tokens(request, tokenizer, stored.where(request), config.endpoint_api == "chat")
        answer_length = most_answer_tokens(request, config, tokenizer)
        if stored.is_sharegpt and not is_usual_length(len(prompt), answer_length, context):
            usable.unfit.add(place)
            continue
        usable.requests.append(request)
        usable.prompts.append(prompt)
        usable.new_tokens.append(answer_length)
    if not usable.prompts:  # All of them were ShareGPT's conversations, since no others are left out.
        raise UsageError(f"{stored.path}: no conversation fits {context:,} tokens.")
    return usable


def sharegpt_context(config: RunConfig) -> int:
    """Return the most tokens of a prompt of ShareGPT with its answer: vLLM's limit, or the run's context if smaller."""
    return min(SHAREGPT_MOST_TOKENS, config.least_context)


def is_usual_length(prompt_length: int, answer_length: int, context: int) -> bool:
    """Return whether a conversation of ShareGPT is neither too short nor too long to be used.

    `context` is the limit of the prompt with its answer.
    """
    if min(prompt_length, answer_length) < SHAREGPT_FEWEST_TOKENS:
        return False
    return prompt_length <= SHAREGPT_LONGEST_PROMPT and prompt_length + answer_length <= context


def workload_notes(
    config: RunConfig, tokenizer: Tokenizer, stored: StoredRequests, usable: UsableRequests
) -> Iterator[str]:
    """Yield what a reader of the report must know about how the requests were made."""
    if stored.is_sharegpt:
        yield (
            f"ShareGPT: left out {plural(stored.questionless, 'conversation')} without a question and its answer, and "
            f"{len(usable.unfit):,} that are not of {SHAREGPT_FEWEST_TOKENS} to {SHAREGPT_LONGEST_PROMPT:,} tokens, "
            f"{sharegpt_context(config):,} with the answer"
        )
    is_chat_api = config.endpoint_api == "chat"
    kinds = {request.kind for request in usable.requests}
    if "messages" in kinds and not tokenizer.chat_template:
        yield UNCOUNTED_TEMPLATE if is_chat_api else NO_TEMPLATE  # A server of the chat API has a template of its own.
    if "prompt_token_ids" in kinds:
        yield UNCHECKED_IDS
    if not is_chat_api:
        return
    templated = templated_prompts(usable, tokenizer)
    if templated:
        yield (
            f"prompts that hold tokens of a chat template already: {templated:,}; the server puts them into its own "
            "template once more: --endpoint-api completions sends them as they are"
        )


def templated_prompts(usable: UsableRequests, tokenizer: Tokenizer) -> int:
    """Return the number of prompts that were given with tokens of a chat template in them.

    Messages are given without a template, so they are left out. The token that begins every text does not count.
    """
    template_tokens = control_tokens(tokenizer) - {tokenizer.bos_token_id}
    count = 0
    for request, prompt in zip(usable.requests, usable.prompts, strict=True):
        if request.kind != "messages" and not template_tokens.isdisjoint(prompt):
            count += 1
    return count


def control_tokens(tokenizer: Tokenizer) -> set[int]:
    """Return the ids of tokens that structure a text, such as those of a chat template."""
    tokens = set(tokenizer.all_special_ids)
    for token, properties in tokenizer.added_tokens_decoder.items():
        if properties.special:
            tokens.add(token)
    return tokens


def most_answer_tokens(request: StoredRequest, config: RunConfig, tokenizer: Tokenizer) -> int:
    """Return how many tokens the answer to a request may have.

    The request's own limit counts first, then the length of the answer that was recorded with it, then
    --max-new-tokens.
    """
    if request.max_tokens:
        return request.max_tokens
    if request.answer:
        recorded_length = len(tokenizer.encode(request.answer, add_special_tokens=False))
        return max(1, recorded_length)  # An engine takes no limit of 0 tokens.
    return config.max_new_tokens


def prompt_tokens(request: StoredRequest, tokenizer: Tokenizer, where: str, as_messages: bool = False) -> TokenIds:
    """Return a request's prompt as token ids. With `as_messages`, a conversation also keeps its messages.

    Raises UsageError if the model lacks a token, or if its chat template refuses the conversation.
    """
    prompt = request.prompt
    if isinstance(prompt, str):
        return with_one_beginning(tokenizer.encode(prompt), tokenizer)
    if is_chat(prompt):
        if as_messages:  # The server has a chat template of its own.
            return MessagePrompt(chat_tokens_or_lines(prompt, tokenizer), prompt)
        return chat_tokens(prompt, tokenizer, where)
    if not is_in_vocabulary(prompt, len(tokenizer)):
        raise UsageError(f"{where}: token ids outside the model's vocabulary of {len(tokenizer):,}.")
    return list(prompt)


def with_one_beginning(tokens: Sequence[int], tokenizer: Tokenizer) -> TokenIds:
    """Return the token ids of a prompt with only one token that begins a text (`bos`), if there are two.

    The tokenizer puts this token before every prompt, even before a prompt that already has it.
    """
    begin = tokenizer.bos_token_id
    if begin is not None and list(tokens[:2]) == [begin, begin]:
        return list(tokens[1:])
    return list(tokens)


def chat_tokens(messages: Chat, tokenizer: Tokenizer, where: str) -> TokenIds:
    """Return messages as token ids by the tokenizer's chat template, or as plain lines if it has none.

    `where` names the request in errors. Raises UsageError if the template refuses the messages.
    """
    if not tokenizer.chat_template:
        return chat_lines(messages, tokenizer)
    try:
        tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    except Exception as error:  # a template may raise any error
        raise UsageError(f"{where}: the model's chat template refuses it: {first_line(error)}.") from None
    return with_one_beginning(tokens, tokenizer)


def chat_lines(messages: Chat, tokenizer: Tokenizer) -> TokenIds:
    """Return messages as the token ids of lines such as `User: ...`."""
    lines = []
    for message in messages:
        role = message["role"].capitalize()
        lines.append(f"{role}: {message['content']}")
    lines.append("Assistant:")
    return list(tokenizer.encode("\n".join(lines)))


def chat_tokens_or_lines(messages: Chat, tokenizer: Tokenizer) -> TokenIds:
    """Return messages as token ids by the chat template, or as plain lines if there is none or it refuses them.

    The ids only serve to count the prompt's tokens: the server gets the messages, and has a template of its own.
    """
    try:
        return chat_tokens(messages, tokenizer, where="")
    except UsageError:
        return chat_lines(messages, tokenizer)
