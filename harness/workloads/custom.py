"""A workload as samples: requests of a file, or synthetic lengths, as token ids with the length of each answer.

`python -m harness.workload_samples [NAME OR FILE ...]` prints the token statistics of workloads.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.common.coerce import near
from harness.common.errors import DONE, Arguments, UsageError, ends_in_one_line, first_line
from harness.common.markdown import number
from harness.config import mlperf
from harness.config.checkpoint import load_tokenizer
from harness.config.engine import EngineConfig
from harness.config.run import RunConfig
from harness.config.workload import OFFICIAL, SYNTHETIC_COUNT, WORKLOADS, RequestSet, Workload, lengths
from harness.runs.records import Spread
from harness.workloads import requests_file
from harness.workloads.cnn_dailymail import Library
from harness.workloads.requests_file import Request, Requests

# Which of ShareGPT's conversations count, in tokens: as in the sampling of vLLM's own benchmark (vllm bench serve).
SHAREGPT_LEAST, SHAREGPT_PROMPT, SHAREGPT_WHOLE = 4, 1024, 2048
MOST_SYNTHETIC = 10**8  # tokens of all prompts: about a GiB
NO_TEMPLATE = "the tokenizer has no chat template: messages are lines such as `User: ...`, the last is `Assistant:`"


def load(config: RunConfig, tokenizer: Any) -> Library | None:
    """What is asked instead of MLPerf's samples, no more than the run takes; None where it is those.

    Raises UsageError in one line that names the file and the line.
    """
    if config.official_workload:
        return None
    return synthetic(config, tokenizer) if config.input_len else from_file(config, tokenizer, row(config.workload))


def row(name: str) -> Workload:
    """The workload of a name, or of a file of the user's own. Raises UsageError where it is neither."""
    if name in WORKLOADS:
        return WORKLOADS[name]
    if not Path(name).exists():
        known = list(WORKLOADS)
        raise UsageError(f"--workload {name}: no such file, and none of {', '.join(known)}{near(name, known)}")
    return Workload(name, Path(name), "requests of the user's own")


def from_file(config: RunConfig, tokenizer: Any, workload: Workload) -> Library:
    """The requests of a workload's file."""
    found = requests_file.read("--workload", workload.path or Path())
    requests = found.requests if config.total_sample_count == "auto" else found.requests[: config.total_sample_count]
    if config.max_new_tokens != mlperf.MAX_NEW_TOKENS and (found.sharegpt or all(each.max_tokens for each in requests)):
        raise UsageError(
            f"--max-new-tokens: every {found.unit} of {found.path} says how long its answer is: leave it out."
        )
    if found.sharegpt:
        return sharegpt(config, tokenizer, found, workload)
    prompts = [encode(request, tokenizer, found.where(request)) for request in requests]
    new = [request.max_tokens or config.max_new_tokens for request in requests]
    plain = not tokenizer.chat_template and any(request.kind == "messages" for request in requests)
    notes = (NO_TEMPLATE,) if plain else ()
    return library(prompts, new, [found.where(request) for request in requests], workload, found, config, notes)


def sharegpt(config: RunConfig, tokenizer: Any, found: Requests, workload: Workload) -> Library:
    """The first conversations of a usual length; an answer is as long as the published one at most."""
    context = config.model_spec.context if config.max_model_len == "auto" else config.max_model_len
    whole = min(SHAREGPT_WHOLE, context)
    most = len(found.requests) if config.total_sample_count == "auto" else config.total_sample_count
    prompts: list[list[int]] = []
    new: list[int] = []
    places: list[str] = []
    unfit = 0
    for request in found.requests:
        if len(prompts) == most:
            break
        prompt = encode(request, tokenizer, found.where(request))
        answer = len(tokenizer.encode(request.answer, add_special_tokens=False))
        if min(len(prompt), answer) < SHAREGPT_LEAST or len(prompt) > SHAREGPT_PROMPT or len(prompt) + answer > whole:
            unfit += 1
            continue
        prompts.append(prompt)
        new.append(answer)
        places.append(found.where(request))
    if not prompts:
        raise UsageError(f"{found.path}: no conversation fits {whole:,} tokens.")
    note = (
        f"ShareGPT: left out {found.passed_over:,} conversations without a question and its answer, and {unfit:,} that "
        f"are not of {SHAREGPT_LEAST} to {SHAREGPT_PROMPT:,} tokens, {whole:,} with the answer"
    )
    fitting = replace(found, requests=found.requests[: len(found.requests) - unfit])
    return library(prompts, new, places, workload, fitting, config, (note,))


def library(
    prompts: list[list[int]],
    new: list[int],
    places: Sequence[str],
    workload: Workload,
    found: Requests,
    config: RunConfig,
    notes: tuple[str, ...],
) -> Library:
    """The samples of a file; `new` holds the most tokens of each answer, `places` where each request stands."""
    longest = max(range(len(prompts)), key=lambda index: len(prompts[index]) + new[index])
    asked = RequestSet(
        name=workload.name,
        about=workload.imitates,
        samples=len(found.requests),
        longest=len(prompts[longest]) + new[longest],
        longest_at=places[longest],
        max_new_tokens=max(new),
        exact=False,
        digest=digest(found.requests, config.max_new_tokens),
        notes=notes,
    )
    return Library(prompts, [], [], str(found.path), new, asked)


def encode(request: Request, tokenizer: Any, where: str) -> list[int]:
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


def synthetic(config: RunConfig, tokenizer: Any) -> Library:
    """Random prompts and exact answers of the lengths of --input-len and --output-len."""
    inputs, outputs = config.input_len or "", config.output_len or ""
    read, write = lengths("--input-len", inputs), lengths("--output-len", outputs)
    count = SYNTHETIC_COUNT if config.total_sample_count == "auto" else config.total_sample_count
    if count * read.median > MOST_SYNTHETIC:
        raise UsageError(f"--input-len: {count:,} prompts of {read.median:,} tokens; use fewer (--total-sample-count).")
    source = random.Random(config.seed or 0)
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    words = [token for token in range(len(tokenizer)) if token not in special]
    prompts = [source.choices(words, k=read.draw(source)) for _ in range(count)]
    new = [write.draw(source) for _ in range(count)]
    longest = max(len(prompt) + answer for prompt, answer in zip(prompts, new, strict=True))
    asked = RequestSet(
        name=config.workload_name,
        about="random prompts, and answers of exact lengths",
        samples=count,
        longest=longest,
        longest_at=f"--input-len {inputs} --output-len {outputs}",
        max_new_tokens=max(new),
        exact=True,
        digest=digest(inputs, outputs, config.seed or 0),
    )
    return Library(prompts, [], [], "random token ids", new, asked)


def digest(*content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def table(names: Sequence[str], model: str) -> str:
    """The token statistics of workloads as a Markdown table. Raises UsageError."""
    lines = [
        "| workload | requests | input tokens: mean, p50, p99 | most output tokens: mean, p50, p99 |",
        "|---|---|---|---|",
    ]
    tokenizer = load_tokenizer(EngineConfig(model=model))
    for name in names:
        found = load(RunConfig(model=model, workload=name, mode="performance"), tokenizer)
        if found is not None:
            spreads = (Spread.of([len(prompt) for prompt in found.prompts]), Spread.of(found.new_tokens or []))
            cells = (f"{number(s.mean)}, {number(s.p50)}, {number(s.p99)}" for s in spreads if s)
            lines.append(f"| {' | '.join((name, number(len(found)), *cells))} |")
    return "\n".join(lines)


def main() -> int:
    """Prints the token statistics of workloads, as a Markdown table."""
    parser = Arguments(prog="python -m harness.workload_samples", description=main.__doc__)
    parser.add_argument("workload", nargs="*", default=[name for name in WORKLOADS if name != OFFICIAL])
    parser.add_argument("--model", default="demo", help="whose tokenizer counts")
    arguments = parser.parse_args()
    with ends_in_one_line():
        print(table(arguments.workload, arguments.model))
    return DONE
