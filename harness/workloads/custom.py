"""A workload as samples: a file's requests, a data set's, drawn lengths, a trace's; as token ids, with the length of
each answer.

`python -m harness workloads [NAME OR FILE ...]` prints the token statistics of workloads.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.config import mlperf
from harness.config.checkpoint import load_tokenizer
from harness.config.engine import EngineConfig
from harness.config.run import RunConfig
from harness.config.workload import WORKLOADS, RequestSet, Shared, Workload, is_profile
from harness.core.coerce import no_such_file
from harness.core.errors import UsageError, first_line
from harness.core.markdown import number
from harness.runs.records import Spread
from harness.workloads import hub, requests_file, synthetic
from harness.workloads.cnn_dailymail import Library, Salt
from harness.workloads.requests_file import StoredRequest, StoredRequests

# Which of ShareGPT's conversations count, in tokens: as in the sampling of vLLM's own benchmark (vllm bench serve).
SHAREGPT_LEAST, SHAREGPT_PROMPT, SHAREGPT_WHOLE = 4, 1024, 2048
NO_TEMPLATE = "the tokenizer has no chat template: messages are lines such as `User: ...`, the last is `Assistant:`"


def load(config: RunConfig, tokenizer: Any) -> Library | None:
    """The requests in place of MLPerf's samples, no more than the run takes; None where it is those.

    Raises UsageError in one line that names the file and the line.
    """
    if config.is_official_workload:
        return None
    if config.has_trace_lengths:
        return synthetic.library_of_trace(config, tokenizer)
    library = load_requests(config, tokenizer)
    if not config.is_replay:
        return library
    replay, due = synthetic.replay_trace(config, synthetic.read(config.trace), lengths=False)
    assert library.request_set is not None
    return replace(
        library,
        arrivals=due,
        conversations=None,
        request_set=replace(library.request_set, replay=replay, whole_rounds=False),
    )


def load_requests(config: RunConfig, tokenizer: Any) -> Library:
    if config.input_len:
        return synthetic.draw_library(config, tokenizer, synthetic.of_flags(config))
    if config.workload.startswith(hub.MARK):
        return from_requests(config, tokenizer, Workload(config.workload, None, hub.DESCRIPTION), hub.read(config))
    workload = named_workload(config.workload)
    if is_profile(config.workload):
        return synthetic.draw_library(config, tokenizer, synthetic.of_file(config, workload))
    found = requests_file.read(workload.path or Path(), config.prompt_column or "")
    return from_requests(config, tokenizer, workload, found)


def named_workload(name: str) -> Workload:
    """The workload of a name, or of a file of the user's own. Raises UsageError where it is neither."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    if not Path(name).exists():
        raise no_such_file("--workload", name, list(WORKLOADS))
    return Workload(name, Path(name), "requests of the user's own")


def from_requests(config: RunConfig, tokenizer: Any, workload: Workload, found: StoredRequests) -> Library:
    """The requests of a workload's file, or of a data set; of ShareGPT's the first of a usual length."""
    most = len(found.requests) if config.total_sample_count == "auto" else config.total_sample_count
    if config.max_new_tokens != mlperf.MAX_NEW_TOKENS and (
        found.is_sharegpt or all(each.max_tokens or each.answer for each in found.requests[:most])
    ):
        raise UsageError(
            f"--max-new-tokens: every {found.unit} of {found.path} says how long its answer is: remove the flag."
        )
    context = config.model_spec.context if config.max_model_len == "auto" else config.max_model_len
    whole = min(SHAREGPT_WHOLE, context)
    chosen, prompts, new, unfit = list[StoredRequest](), list[list[int]](), list[int](), 0
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
    notes = [found.left_out] if found.left_out else []
    if found.is_sharegpt:
        notes.append(
            f"ShareGPT: left out {found.passed_over:,} conversations without a question and its answer, and {unfit:,} "
            f"that are not of {SHAREGPT_LEAST} to {SHAREGPT_PROMPT:,} tokens, {whole:,} with the answer"
        )
    if not tokenizer.chat_template and any(request.kind == "messages" for request in chosen):
        notes.append(NO_TEMPLATE)
    kept = found.requests[: len(found.requests) - unfit]
    at = max(range(len(prompts)), key=lambda index: len(prompts[index]) + new[index])
    keeps_turns = found.turns and config.is_ordered  # else LoadGen's random order is the order
    request_set = RequestSet(
        name=workload.name,
        about=workload.imitates,
        samples=len(kept),
        longest=len(prompts[at]) + new[at],
        longest_at=found.where(chosen[at]),
        max_new_tokens=max(new),
        exact=False,
        digest=synthetic.digest(kept, config.max_new_tokens),
        notes=tuple(notes),
        whole_rounds=keeps_turns,
    )
    talks = [request.number for request in chosen] if keeps_turns else None
    made = Library(prompts, [], [], str(found.path), new, request_set, conversations=talks)
    return add_salt(made, config, tokenizer)


def longest(request: StoredRequest, config: RunConfig, tokenizer: Any) -> int:
    """The most tokens of an answer: what the request says, the length of the one that it got, or --max-new-tokens."""
    if request.max_tokens or not request.answer:
        return request.max_tokens or config.max_new_tokens
    return max(1, len(tokenizer.encode(request.answer, add_special_tokens=False)))


def add_salt(found: Library, config: RunConfig, tokenizer: Any) -> Library:
    """The samples with the salt of --salt, if any; after the token that begins every text, where there is one."""
    sharing = Shared(salt=config.salt or "none")
    if sharing.salt == "none" or found.request_set is None:
        return found
    begins = bool(tokenizer.bos_token_id is not None and all(p[0] == tokenizer.bos_token_id for p in found.prompts))
    salt = Salt(synthetic.words_of(tokenizer), int(begins), sharing.salt == "start")
    longer = replace(
        found.request_set,
        longest=found.request_set.longest + sharing.salt_tokens,
        digest=synthetic.digest(found.request_set.digest, sharing),
        notes=(*found.request_set.notes, sharing.text.removeprefix("; ")),
    )
    return replace(found, request_set=longer, salt=salt)


def encode(request: StoredRequest, tokenizer: Any, where: str) -> list[int]:
    """A request's prompt as token ids. Raises UsageError where the model has no such token, or refuses the chat."""
    if request.kind == "messages":
        return chat(request.prompt, tokenizer, where)
    if request.kind == "prompt":
        return list(tokenizer.encode(request.prompt))
    if not all(0 <= token < len(tokenizer) for token in request.prompt):
        raise UsageError(f"{where}: token ids outside the model's vocabulary of {len(tokenizer):,}.")
    return list(request.prompt)


def chat(messages: list[dict[str, str]], tokenizer: Any, where: str) -> list[int]:
    """Messages as the tokenizer's chat template has them, or without one as plain lines."""
    if not tokenizer.chat_template:
        lines = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
        return list(tokenizer.encode("\n".join([*lines, "Assistant:"])))
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # whatever the template's author raises
        raise UsageError(f"{where}: the model's chat template refuses it: {first_line(error)}.") from None
    return list(tokenizer.encode(text, add_special_tokens=False))  # the template's own are in it


def table(names: Sequence[str], model: str) -> str:
    """The token statistics of workloads as a Markdown table. Raises UsageError."""
    lines = [
        "| workload | requests | input tokens: mean, p50, p99 | most output tokens: mean, p50, p99 |",
        "|---|---|---|---|",
    ]
    tokenizer = load_tokenizer(EngineConfig(model=model))
    for name in names:
        found = load(RunConfig(model=model, workload=name, mode="performance", concurrency="auto"), tokenizer)
        if found is not None:
            spreads = (Spread.of([len(prompt) for prompt in found.prompts]), Spread.of(found.new_tokens or []))
            cells = (f"{number(s.mean)}, {number(s.p50)}, {number(s.p99)}" for s in spreads if s)
            lines.append(f"| {' | '.join((name, number(len(found)), *cells))} |")
    return "\n".join(lines)
