"""A workload as samples: a file's requests, a data set's, drawn lengths, a trace's; as token ids, with the length of
each answer.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from harness.config import mlperf
from harness.config.arrival_patterns import Replay
from harness.config.lengths import SALT_TOKENS, Shared
from harness.config.run import RunConfig
from harness.config.workload import SYNTHETIC_COUNT, WORKLOADS, RequestSet, Workload, WorkloadProfile, is_profile
from harness.core import formatting, reading
from harness.core.errors import UsageError
from harness.core.given_values import read_given, unknown_file_error
from harness.core.message_text import first_line
from harness.workloads import hub, requests_file
from harness.workloads.requests_file import StoredRequest, StoredRequests, Tokens
from harness.workloads.sample_library import Library, Salt
from harness.workloads.traces import Trace, read_trace

MOST_SYNTHETIC = 10**8  # tokens of all prompts: about a GiB
LARGEST_PROFILE = 2**16  # bytes of a profile's file
DESCRIPTION = "random prompts, and answers of exact lengths"


def digest(*content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def words_of(tokenizer: Any) -> Tokens:
    """The token ids that prompts are made of: all but the special ones."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return [token for token in range(len(tokenizer)) if token not in special]


def with_request_set(found: Library, place: Callable[[int], str], **known: Any) -> Library:
    """Samples of a workload with the set that they are, of which more is `known`; `place` is where a sample stands."""
    new, salt = found.new_tokens or [], found.salt
    lengths = [len(prompt) + answer for prompt, answer in zip(found.prompts, new, strict=True)]
    longest = max(lengths)
    request_set = RequestSet(
        longest=longest + (SALT_TOKENS if salt and not salt.replaces else 0),
        longest_at=place(lengths.index(longest)),
        max_new_tokens=max(new),
        whole_rounds=bool(found.conversations or found.arrivals),
        **known,
    )
    return replace(found, request_set=request_set)


def read_profile(config: RunConfig, workload: Workload) -> WorkloadProfile:
    """A profile's YAML file; --salt wins. Raises UsageError."""
    import yaml

    path = workload.path or Path()
    data = read_given("--workload", path, "YAML", reading.load_yaml, yaml.YAMLError, LARGEST_PROFILE)
    if not isinstance(data, dict):
        raise UsageError(f"--workload {path}: expected keys, {', '.join(WorkloadProfile.model_fields)}.")
    try:
        given = {str(key): value for key, value in data.items()} | ({"salt": config.salt} if config.salt else {})
        return WorkloadProfile(**{"about": workload.imitates} | given)
    except UsageError as error:
        raise UsageError(f"--workload {path}: {error}") from None


def draw_library(config: RunConfig, tokenizer: Any, profile: WorkloadProfile, place: str) -> Library:
    """The samples of a profile: conversations of some turns each, of which one is a request without history. `place`
    is where its lengths stand."""
    sharing = Shared(**profile.values(Shared.model_fields))
    read, write, seed = profile.input_len, profile.output_len, config.seed or 0
    source, words = Random(seed), words_of(tokenizer)
    count = config.sample_limit or SYNTHETIC_COUNT
    turns = sharing.turns
    if turns > 1 and config.concurrency is None:
        raise UsageError("turns need --concurrency: elsewhere a turn does not wait for the one before.")
    if count < turns:
        raise UsageError(f"--total-sample-count {count}: a conversation has {turns} turns.")
    mean = sharing.prefix_len + (read.median * (turns + 1) + write.median * (turns - 1)) / 2
    if count * mean > MOST_SYNTHETIC:
        raise UsageError(f"{place}: {count:,} prompts of {mean:,.0f} tokens; use fewer (--total-sample-count).")
    if not sharing.prefix_len and turns == 1:
        prompts = [source.choices(words, k=read.draw(source)) for _ in range(count)]
        new, talks = [write.draw(source) for _ in range(count)], None
    else:
        prompts, new, talks = conversations(profile, source, words, count)
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


def conversations(
    profile: WorkloadProfile, source: Random, words: Sequence[int], count: int
) -> tuple[list[Tokens], list[int], list[int] | None]:
    """Prompts, lengths of answers, and which conversation each is of; None where each is a separate one.

    The answers that a later turn repeats are random tokens of the same lengths: what the model says is not known yet.
    """
    heads = [source.choices(words, k=profile.prefix_len) for _ in range(profile.prefixes)]
    prompts, new, history = list[Tokens](), list[int](), Tokens()
    for each in range(count):
        if each % profile.turns == 0:
            history = list(source.choice(heads))
        prompts.append([*history, *source.choices(words, k=profile.input_len.draw(source))])
        new.append(profile.output_len.draw(source))
        history = [*prompts[-1], *source.choices(words, k=new[-1])]
    return prompts, new, [each // profile.turns for each in range(count)] if profile.turns > 1 else None


def replay_trace(config: RunConfig, trace: Trace) -> tuple[Replay, list[float]]:
    """Seconds from the first request of a trace to each, at the rate that is asked for, as long as --min-duration says.

    Raises UsageError where the trace is shorter than that, or too little of it is left.
    """
    begin, rate = trace.requests[0].at_s, (len(trace.requests) - 1) / trace.span_s
    rate_flag, least = config.server_target_qps, config.min_duration
    faster = rate_flag / rate if isinstance(rate_flag, float) else 1.0
    due = [(one.at_s - begin) / faster for one in trace.requests]
    if least != "auto":
        if due[-1] < least:
            raise UsageError(
                f"--min-duration {least:g}: {trace.path} lasts {formatting.number(due[-1])} s: remove the flag, or lower "
                "the rate."
            )
        due = due[: bisect_left(due, least) + 1]
    if len(due) < 2:
        raise UsageError(f"--arrivals {trace.path}: fewer than two requests within --min-duration.")
    return Replay(len(due), due[-1]), due


def library_of_trace(config: RunConfig, tokenizer: Any) -> Library:
    """The requests of a trace: random tokens of its lengths, and beginnings that are the same where it says so."""
    most = config.model_spec.positions if config.max_model_len == "auto" else config.max_model_len
    trace = read_trace(Path(config.arrivals or ""), config.sample_limit, most)
    replay, due = replay_trace(config, trace)
    requests = trace.requests[: len(due)]
    if (tokens := sum(one.prompt_tokens for one in requests)) > MOST_SYNTHETIC:
        raise UsageError(f"{trace.path}: prompts of {tokens:,} tokens in all; use fewer (--total-sample-count).")
    words, seed = words_of(tokenizer), config.seed or 0
    prompts = [
        [  # those of one prefix begin with the same tokens
            *Random(f"{seed} prefix {one.prefix}").choices(words, k=one.prefix_tokens),
            *Random(f"{seed} line {one.line}").choices(words, k=one.prompt_tokens - one.prefix_tokens),
        ]
        for one in requests
    ]
    notes = {
        f"left out {trace.unfit:,} requests that are longer than {most or 0:,} tokens with their answer": trace.unfit,
        f"left out {trace.empty:,} rows without lengths": trace.empty,
    }
    return with_request_set(
        Library(prompts, str(trace.path), [one.output_tokens for one in requests], arrivals=due, words=words),
        lambda index: f"{trace.path}: line {requests[index].line}",
        name=config.workload_name,
        about=DESCRIPTION,
        samples=len(requests),
        exact=True,
        digest=digest(requests, seed),
        notes=tuple(note for note, count in notes.items() if count),
        replay=replay,
    )


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
    if name.startswith(hub.MARK):
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
    chosen, prompts, new, unfit = list[StoredRequest](), list[Tokens](), list[int](), 0
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


def encode(request: StoredRequest, tokenizer: Any, where: str) -> Tokens:
    """A request's prompt as token ids. Raises UsageError where the model has no such token, or refuses the chat."""
    if request.kind == "messages":
        return chat(request.prompt, tokenizer, where)
    if request.kind == "prompt":
        return list(tokenizer.encode(request.prompt))
    if not all(0 <= token < len(tokenizer) for token in request.prompt):
        raise UsageError(f"{where}: token ids outside the model's vocabulary of {len(tokenizer):,}.")
    return list(request.prompt)


def chat(messages: list[dict[str, str]], tokenizer: Any, where: str) -> Tokens:
    """Messages as the tokenizer's chat template has them, or without one as plain lines."""
    if not tokenizer.chat_template:
        lines = [f"{message['role'].capitalize()}: {message['content']}" for message in messages]
        return list(tokenizer.encode("\n".join([*lines, "Assistant:"])))
    try:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    except Exception as error:  # whatever the template's author raises
        raise UsageError(f"{where}: the model's chat template refuses it: {first_line(error)}.") from None
