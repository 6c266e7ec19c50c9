"""A workload as samples: a file's requests, a data set's, drawn lengths, a trace's; as token ids, with the length of
each answer.
"""

from pathlib import Path
from typing import Any

from harness.config import mlperf
from harness.config.lengths import Shared
from harness.config.run import RunConfig
from harness.config.workload import WORKLOADS, Workload, WorkloadProfile, is_profile
from harness.core.errors import UsageError
from harness.core.given_values import unknown_file_error
from harness.core.message_text import first_line
from harness.workloads import hub, requests_file
from harness.workloads.requests_file import StoredRequest, StoredRequests, TokenIds
from harness.workloads.sample_library import Library, Salt
from harness.workloads.synthetic import DESCRIPTION, digest, draw_library, read_profile, with_request_set, words_of
from harness.workloads.trace_replay import library_of_trace

# Which of ShareGPT's conversations count, in tokens: as in the sampling of vLLM's own benchmark (vllm bench serve).
SHAREGPT_LEAST, SHAREGPT_PROMPT, SHAREGPT_WHOLE = 4, 1024, 2048
NO_TEMPLATE = "the tokenizer has no chat template: messages are lines such as `User: ...`, the last is `Assistant:`"


def load(config: RunConfig, tokenizer: Any) -> Library | None:
    """The requests in place of MLPerf's samples, no more than the run takes; None where it is those.

    Raises UsageError in one line that names the file and the line.
    """
    if config.is_official_workload:
        return None
    if config.is_replay:
        return library_of_trace(config, tokenizer)
    if config.input_len:
        given = config.values(("input_len", "output_len")) | {"salt": config.salt or "none"}
        profile = WorkloadProfile(about=DESCRIPTION, **given)
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
    found = requests_file.read(workload.path or Path(), config.prompt_column or "")
    return from_requests(config, tokenizer, workload.imitates, found)


def from_requests(config: RunConfig, tokenizer: Any, about: str, found: StoredRequests) -> Library:
    """The requests of a workload's file, or of a data set; of ShareGPT's the first of a usual length."""
    most = config.sample_limit
    if config.max_new_tokens != mlperf.MAX_NEW_TOKENS and (
        found.is_sharegpt or all(each.max_tokens or each.answer for each in found.requests[:most])
    ):
        raise UsageError(
            f"--max-new-tokens: every {found.unit} of {found.path} says how long its answer is: remove the flag."
        )
    whole = min(SHAREGPT_WHOLE, config.least_context)
    chosen, prompts, new, unfit = list[StoredRequest](), list[TokenIds](), list[int](), 0
    for request in found.requests:
        if len(prompts) == most:
            break
        prompt = encode(request, tokenizer, found.where(request))
        answer = longest(request, config, tokenizer)
        is_usual = min(len(prompt), answer) >= SHAREGPT_LEAST and len(prompt) <= SHAREGPT_PROMPT
        if found.is_sharegpt and not (is_usual and len(prompt) + answer <= whole):
            unfit += 1
            continue
        chosen.append(request)
        prompts.append(prompt)
        new.append(answer)
    if not prompts:
        raise UsageError(f"{found.path}: no conversation fits {whole:,} tokens.")
    notes = [found.left_out]
    if found.is_sharegpt:
        notes.append(
            f"ShareGPT: left out {found.passed_over:,} conversations without a question and its answer, and {unfit:,} "
            f"that are not of {SHAREGPT_LEAST} to {SHAREGPT_PROMPT:,} tokens, {whole:,} with the answer"
        )
    if not tokenizer.chat_template and any(request.kind == "messages" for request in chosen):
        notes.append(NO_TEMPLATE)
    kept = found.requests[: len(found.requests) - unfit]
    content, sharing, salt = digest(kept, config.max_new_tokens), Shared(salt=config.salt or "none"), None
    if sharing.salt != "none":  # after the token that begins every text, where there is one
        begins = all(prompt[0] == tokenizer.bos_token_id for prompt in prompts)
        salt = Salt(words_of(tokenizer), int(begins), sharing.salt == "start")
        content = digest(content, sharing)
        notes.append(sharing.text.removeprefix("; "))
    keeps_turns = found.turns and config.concurrency is not None  # else nobody waits for an answer
    talks = [request.number for request in chosen] if keeps_turns else None
    return with_request_set(
        Library(prompts, str(found.path), new, conversations=talks, salt=salt),
        lambda index: found.where(chosen[index]),
        name=config.workload_name,
        about=about,
        samples=len(kept),
        exact=False,
        digest=content,
        notes=tuple(filter(None, notes)),
    )


def longest(request: StoredRequest, config: RunConfig, tokenizer: Any) -> int:
    """The most tokens of an answer: what the request says, the length of the one that it got, or --max-new-tokens."""
    if request.max_tokens or not request.answer:
        return request.max_tokens or config.max_new_tokens
    return max(1, len(tokenizer.encode(request.answer, add_special_tokens=False)))


def encode(request: StoredRequest, tokenizer: Any, where: str) -> TokenIds:
    """A request's prompt as token ids. Raises UsageError where the model has no such token, or refuses the chat."""
    if request.kind == "messages":
        return chat(request.prompt, tokenizer, where)
    if request.kind == "prompt":
        return list(tokenizer.encode(request.prompt))
    if not all(0 <= token < len(tokenizer) for token in request.prompt):
        raise UsageError(f"{where}: token ids outside the model's vocabulary of {len(tokenizer):,}.")
    return list(request.prompt)


def chat(messages: list[dict[str, str]], tokenizer: Any, where: str) -> TokenIds:
    """Messages as the tokenizer's chat template has them, or without one as plain lines."""
    if not tokenizer.chat_template:
        lines = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
        return list(tokenizer.encode("\n".join([*lines, "Assistant:"])))
    try:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    except Exception as error:  # whatever the template's author raises
        raise UsageError(f"{where}: the model's chat template refuses it: {first_line(error)}.") from None
