"""A workload as samples: a file's requests, a data set's, drawn lengths, a trace's; as token ids, with the length of
each answer.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.config import mlperf
from harness.config.lengths import PromptParts
from harness.config.run import RunConfig
from harness.config.workload import WORKLOADS, Workload, WorkloadProfile, is_profile
from harness.core.errors import UsageError
from harness.core.given_values import unknown_file_error
from harness.core.message_text import first_line
from harness.core.tokenizer import Tokenizer
from harness.engines.protocol import MessagePrompt
from harness.workloads import hub, requests_file
from harness.workloads.requests_file import Chat, StoredRequest, StoredRequests, TokenIds, is_chat
from harness.workloads.sample_library import Library, Salt
from harness.workloads.synthetic import DESCRIPTION, digest, draw_library, read_profile, with_request_set, words_of
from harness.workloads.trace_replay import library_of_trace

# Conversations of ShareGPT that count, by their tokens: as in the sampling of vLLM's own benchmark (vllm bench serve).
SHAREGPT_LEAST, SHAREGPT_PROMPT, SHAREGPT_WHOLE = 4, 1024, 2048
NO_TEMPLATE = "the tokenizer has no chat template: messages are lines such as `User: ...`, the last is `Assistant:`"
UNCHECKED_IDS = "prompt_token_ids: not checked, since no text stands beside them"
UNCOUNTED_TEMPLATE = "the tokenizer has no chat template: prompt tokens are counted without those of the server's"


def load(config: RunConfig, tokenizer: Tokenizer) -> Library | None:
    """Return the requests in place of MLPerf's samples, no more than the run takes.

    None if the run uses MLPerf's samples. Raises UsageError, in one line that names the file and the line.
    """
    if config.is_official_workload:
        return None
    if config.is_replay:
        return library_of_trace(config, tokenizer)
    if config.input_len:
        given_settings = config.values(("input_len", "output_len")) | {"salt": config.salt or "none"}
        profile = WorkloadProfile.from_mapping({"about": DESCRIPTION} | given_settings)
        return draw_library(
            config, tokenizer, profile, f"--input-len {config.input_len} --output-len {config.output_len}"
        )
    name = config.workload
    if name.startswith(hub.HUB_PREFIX):
        return from_requests(config, tokenizer, hub.DESCRIPTION, hub.read(config))
    workload = WORKLOADS.get(name, Workload(Path(name), "requests of the user's own"))
    if name not in WORKLOADS and not Path(name).exists():
        raise unknown_file_error("--workload", name, list(WORKLOADS))
    if is_profile(name):
        profile = read_profile(config, workload)
        place = f"{workload.path}: input_len {profile.input_len}, output_len {profile.output_len}"
        return draw_library(config, tokenizer, profile, place)
    stored = requests_file.read(workload.path or Path(), config.prompt_column or "")
    return from_requests(config, tokenizer, workload.imitates, stored)


class Usable(NamedTuple):
    """The requests of a workload that are asked, their prompts and the most tokens of each answer; `unfit` were left
    out for their lengths.
    """

    requests: list[StoredRequest]
    prompts: list[TokenIds]
    new_tokens: list[int]
    unfit: int


def from_requests(config: RunConfig, tokenizer: Tokenizer, about: str, found: StoredRequests) -> Library:
    """Return the samples of a file of requests or of a data set.

    Of ShareGPT only conversations of usual length are used.
    """
    check_length_flag(config, found)
    usable = usable_requests(config, tokenizer, found)
    fitting_requests = found.requests[: len(found.requests) - usable.unfit]
    content = digest(fitting_requests, config.max_new_tokens)
    sharing = PromptParts(salt=config.salt or "none")
    salt = None
    notes = [found.left_out, found.unread, *workload_notes(config, tokenizer, found, usable)]
    if sharing.salt != "none":  # the salt comes after the token that begins every text, if there is one
        begins = all(prompt[0] == tokenizer.bos_token_id for prompt in usable.prompts)
        salt = Salt(words_of(tokenizer), int(begins), sharing.salt == "start")
        content = digest(content, sharing)
        notes.append(sharing.text.removeprefix("; "))
    keeps_turns = found.turns and config.concurrency is not None  # only fixed concurrency waits for the answer before
    talks = None
    if keeps_turns:
        talks = [request.number for request in usable.requests]
    return with_request_set(
        Library(usable.prompts, str(found.path), usable.new_tokens, conversations=talks, salt=salt),
        lambda index: found.where(usable.requests[index]),
        name=config.workload_name,
        about=about,
        samples=len(fitting_requests),
        exact=False,
        digest=content,
        notes=tuple(filter(None, notes)),
    )


def check_length_flag(config: RunConfig, found: StoredRequests) -> None:
    """Raise UsageError if --max-new-tokens is given although every request says how long its answer is."""
    if config.max_new_tokens == mlperf.MAX_NEW_TOKENS:
        return
    asked = found.requests[: config.sample_limit]
    if found.is_sharegpt or all(request.max_tokens or request.answer for request in asked):
        raise UsageError(
            f"--max-new-tokens: every {found.unit} of {found.path} says how long its answer is: remove the flag."
        )


def usable_requests(config: RunConfig, tokenizer: Tokenizer, found: StoredRequests) -> Usable:
    """Return the requests that can be sent, no more than the run takes. Raises UsageError if there is none."""
    whole = min(SHAREGPT_WHOLE, config.least_context)
    usable = Usable([], [], [], 0)
    unfit = 0
    for request in found.requests:
        if len(usable.prompts) == config.sample_limit:
            break
        prompt = prompt_tokens(request, tokenizer, found.where(request), config.endpoint_api == "chat")
        answer = most_answer_tokens(request, config, tokenizer)
        is_usual = min(len(prompt), answer) >= SHAREGPT_LEAST and len(prompt) <= SHAREGPT_PROMPT
        if found.is_sharegpt and not (is_usual and len(prompt) + answer <= whole):
            unfit += 1
            continue
        usable.requests.append(request)
        usable.prompts.append(prompt)
        usable.new_tokens.append(answer)
    if not usable.prompts:
        raise UsageError(f"{found.path}: no conversation fits {whole:,} tokens.")
    return usable._replace(unfit=unfit)


def workload_notes(config: RunConfig, tokenizer: Tokenizer, found: StoredRequests, usable: Usable) -> Iterator[str]:
    """Yield what a reader of the report must know about how the requests were made."""
    whole, is_chat = min(SHAREGPT_WHOLE, config.least_context), config.endpoint_api == "chat"
    if found.is_sharegpt:
        yield (
            f"ShareGPT: left out {found.passed_over:,} conversations without a question and its answer, and "
            f"{usable.unfit:,} that are not of {SHAREGPT_LEAST} to {SHAREGPT_PROMPT:,} tokens, {whole:,} with the "
            "answer"
        )
    has_messages = any(request.kind == "messages" for request in usable.requests)
    if has_messages and not tokenizer.chat_template:
        yield UNCOUNTED_TEMPLATE if is_chat else NO_TEMPLATE
    if any(request.kind == "prompt_token_ids" for request in usable.requests):
        yield UNCHECKED_IDS
    if not is_chat:
        return
    control = control_tokens(tokenizer) - {tokenizer.bos_token_id}
    rendered = 0
    for request, prompt in zip(usable.requests, usable.prompts, strict=True):
        rendered += request.kind != "messages" and not control.isdisjoint(prompt)
    if rendered:
        yield (
            f"{rendered:,} prompts hold tokens of a chat template already, and the server puts them into its own once "
            "more: --endpoint-api completions sends them as they are"
        )


def control_tokens(tokenizer: Tokenizer) -> set[int]:
    """Return the ids of tokens that structure a text, such as those of a chat template."""
    added = tokenizer.added_tokens_decoder.items()
    return set(tokenizer.all_special_ids) | {token for token, about in added if about.special}


def most_answer_tokens(request: StoredRequest, config: RunConfig, tokenizer: Tokenizer) -> int:
    """Return the most tokens of an answer: by the request, or the length of the stored answer, or --max-new-tokens."""
    if request.max_tokens or not request.answer:
        return request.max_tokens or config.max_new_tokens
    return max(1, len(tokenizer.encode(request.answer, add_special_tokens=False)))


def prompt_tokens(request: StoredRequest, tokenizer: Tokenizer, where: str, as_messages: bool = False) -> TokenIds:
    """Return a request's prompt as token ids.

    With `as_messages` a conversation keeps its messages for the server. Raises UsageError if the model does not have
    one of the tokens, or if its chat template refuses the conversation.
    """
    prompt = request.prompt
    if isinstance(prompt, str):
        return with_one_beginning(tokenizer.encode(prompt), tokenizer)
    if is_chat(prompt):
        if as_messages:
            return MessagePrompt(counted_chat(prompt, tokenizer), prompt)
        return chat_tokens(prompt, tokenizer, where)
    if not all(0 <= token < len(tokenizer) for token in prompt):
        raise UsageError(f"{where}: token ids outside the model's vocabulary of {len(tokenizer):,}.")
    return list(prompt)


def with_one_beginning(tokens: Sequence[int], tokenizer: Tokenizer) -> TokenIds:
    """Return token ids with only one token that begins a text.

    The tokenizer puts one before a prompt that was rendered with a beginning of its own.
    """
    begin = tokenizer.bos_token_id
    is_begun_twice = begin is not None and list(tokens[:2]) == [begin, begin]
    return list(tokens[1:]) if is_begun_twice else list(tokens)


def chat_tokens(messages: Chat, tokenizer: Tokenizer, where: str) -> TokenIds:
    """Return messages as token ids by the tokenizer's chat template, or as plain lines if it has none.

    Raises UsageError if the template refuses the messages.
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
    lines = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
    return list(tokenizer.encode("\n".join([*lines, "Assistant:"])))


def counted_chat(messages: Chat, tokenizer: Tokenizer) -> TokenIds:
    """Return messages as token ids, for counting the prompt only.

    The server that gets the messages has its own template.
    """
    try:
        return chat_tokens(messages, tokenizer, "")
    except UsageError:
        return chat_lines(messages, tokenizer)
