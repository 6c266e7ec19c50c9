"""MMLU: the settings of an evaluation, its prompts, and how they are put to the engine."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.config import BENCHMARK, DATA, ENGINE, OUTPUT, Auto, EngineConfig, flag, require
from harness.engines.vllm import VLLM
from harness.errors import EngineError, UsageError
from harness.mmlu_data import LETTERS, Data, Question, chosen_subjects
from harness.progress import Display
from harness.results import check_space
from harness.sut import Counters

QUEUED = 2  # requests handed to the engine for each one it can compute at once: enough to keep it busy
CHECK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class MMLUConfig(EngineConfig):
    """One evaluation, as asked for."""

    max_model_len: int | Auto = flag(
        "auto", ENGINE, "answers", "Longest prompt plus answer, in tokens. auto: 4096; demo: 1024."
    )

    num_fewshot: Literal[0, 1, 2, 3, 4, 5] = flag(
        5, BENCHMARK, "answers", "Examples before each question, from the dev split."
    )
    total_limit: int | None = flag(
        None,
        BENCHMARK,
        "answers",
        "Ask N questions, drawn with the seed from all subjects in proportion. Unset: every question.",
    )
    subjects: str = flag(
        "all",
        BENCHMARK,
        "answers",
        "Subjects with commas between them; or domains: stem, humanities, social_sciences, other.",
    )
    seed: int = flag(0, BENCHMARK, "answers", "Draws the sample of --total-limit, and is vLLM's.")

    data: Path | None = flag(
        None,
        DATA,
        "answers",
        "Folder with the original CSVs, or parquet or `datasets` folders as in cais/mmlu. Unset: downloaded.",
    )

    results_dir: Path = flag(Path("results"), OUTPUT, "nothing", "Where run folders go, below mmlu/.")
    details: Literal[0, 1] = flag(
        0, OUTPUT, "nothing", "1: print every subject's score, and keep the text of each question beside its answer."
    )
    compare: Path | None = flag(
        None,
        OUTPUT,
        "nothing",
        "An earlier evaluation (folder, its name, or latest): differences by domain, McNemar's test.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.total_limit is None or self.total_limit > 0, "--total-limit", "a number above 0")
        require(0 <= self.seed < 2**32, "--seed", "a whole number from 0 to 4294967295")
        chosen_subjects(self.subjects)

    @property
    def context(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self.known.mmlu_context if self.max_model_len == "auto" else self.max_model_len

    @property
    def folder(self) -> Path | None:
        """Where the questions are; None for the hub."""
        return self.data or self.known.mmlu

    @property
    def runs(self) -> Path:
        return self.results_dir / "mmlu"


@dataclass(frozen=True)
class Prompt:
    """A question as token ids, after the first `examples` of its subject's."""

    question: Question
    tokens: list[int]
    examples: int


@dataclass(frozen=True)
class Answer:
    """What the model chose: log-probabilities of the four letters, which sum to 1 as probabilities."""

    prompt: Prompt
    logprobs: tuple[float, ...]
    cached_tokens: int
    latency_s: float  # from when the engine was handed the question


@dataclass(frozen=True)
class Asked:
    """Every answer, in the order of the questions, and the seconds from the first question to the last answer."""

    answers: list[Answer]
    seconds: float


def stem(question: Question) -> str:
    choices = "".join(f"{letter}. {choice}\n" for letter, choice in zip(LETTERS, question.choices, strict=True))
    return f"{question.text.strip()}\n{choices}Answer:"


def text(question: Question, examples: Sequence[Question]) -> str:
    """The prompt, in the words and the layout of the paper and of lm-eval's `mmlu`."""
    subject = question.subject.replace("_", " ")
    solved = "".join(f"{stem(example)} {LETTERS[example.answer]}\n\n" for example in examples)
    about = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    return about + solved + stem(question)


def build(data: Data, shots: int, tokenizer: Any, context: int) -> list[Prompt]:
    """A prompt for each question that leaves engine for one new token in `context`.

    Where one does not fit, the last examples are dropped until it does. Raises UsageError where even none is too many.
    """
    prompts: dict[Question, Prompt] = {}
    left = data.test
    for count in range(shots, -1, -1):
        texts = [text(question, data.examples.get(question.subject, [])[:count]) for question in left]
        encoded = tokenizer(texts)["input_ids"] if texts else []
        made = [Prompt(question, tokens, count) for question, tokens in zip(left, encoded, strict=True)]
        prompts |= {prompt.question: prompt for prompt in made if len(prompt.tokens) < context}
        left = [prompt.question for prompt in made if len(prompt.tokens) >= context]
    if left:
        longest = max(made, key=lambda prompt: len(prompt.tokens))
        raise UsageError(
            f"{len(left):,} of {len(data.test):,} questions do not fit --max-model-len {context} without examples: "
            f"{longest.question.subject} {longest.question.number} needs {len(longest.tokens) + 1}."
        )
    return [prompts[question] for question in data.test]


def letter_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """The token ids of the four letters as they follow a prompt. Raises UsageError unless each is one of its own."""
    start = tokenizer(prompt)["input_ids"]
    ids: list[int] = []
    for letter in LETTERS:
        tokens = tokenizer(f"{prompt} {letter}")["input_ids"]
        if tokens[:-1] != start or tokens[-1] in ids:
            raise UsageError(
                f"this model's tokenizer does not write ' {letter}' after 'Answer:' as one token of its own; "
                "MMLU's way of choosing by one token does not work with it."
            )
        ids.append(tokens[-1])
    return ids


def warm_up(engine: VLLM, letters: list[int], display: Display) -> None:
    """Chooses once for nothing: vLLM compiles what ranks log-probabilities only then, which takes seconds."""
    engine.wait(engine.spawn(engine.choose(letters, letters)), display.tick)


def ask(engine: VLLM, prompts: Sequence[Prompt], letters: list[int], display: Display, folder: Path) -> Asked:
    """Puts every prompt to the engine, in order. Raises EngineError, or BenchmarkError when the disk is full."""
    counters = Counters(issued=len(prompts))
    looked = begin = time.perf_counter()

    def watch() -> None:
        nonlocal looked
        display.tick(counters, len(prompts))
        if engine.failure:
            raise EngineError(engine.failure)
        if time.perf_counter() - looked > CHECK_S:
            looked = time.perf_counter()
            check_space(folder)

    answers = engine.wait(engine.spawn(answer_all(engine, prompts, letters, counters)), watch)
    return Asked(answers, time.perf_counter() - begin)


async def answer_all(engine: VLLM, prompts: Sequence[Prompt], letters: list[int], counters: Counters) -> list[Answer]:
    gate = asyncio.Semaphore(QUEUED * engine.concurrency)

    async def answer(prompt: Prompt) -> Answer:
        async with gate:
            begin = time.perf_counter()
            choice = await engine.choose(prompt.tokens, letters)
            counters.completed += 1
            counters.tokens += len(prompt.tokens)
            return Answer(prompt, choice.logprobs, choice.cached_tokens, time.perf_counter() - begin)

    return await asyncio.gather(*map(answer, prompts))
