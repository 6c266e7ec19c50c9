"""MMLU's questions as prompts, in the words and the layout of the paper."""

from collections.abc import Sequence
from typing import NamedTuple

from harness.core.errors import UsageError
from harness.core.tokenizer import Tokenizer
from harness.mmlu.question_data import LETTERS, Data, Question


class QuestionPrompt(NamedTuple):
    """A question as token ids, after the first `examples` of its subject's; `dropped` more did not fit."""

    question: Question
    tokens: list[int]
    examples: int
    dropped: int


def question_text(question: Question) -> str:
    lines = [question.text.strip()]
    for letter, choice in zip(LETTERS, question.choices, strict=True):
        lines.append(f"{letter}. {choice}")
    return "\n".join([*lines, "Answer:"])


def prompt_text(question: Question, examples: Sequence[Question]) -> str:
    """Return the prompt in the words and layout of the paper and of lm-eval's `mmlu`."""
    subject = question.subject.replace("_", " ")
    parts = [f"The following are multiple choice questions (with answers) about {subject}."]
    for example in examples:
        parts.append(f"{question_text(example)} {LETTERS[example.answer]}")
    return "\n\n".join([*parts, question_text(question)])


def build_prompts(data: Data, shots: int, tokenizer: Tokenizer, context: int) -> list[QuestionPrompt]:
    """Return a prompt for each question that leaves room for one new token in `context`.

    If a prompt is too long, its last examples are dropped until it fits. Raises UsageError if it does not fit without
    examples.
    """
    prompts = dict[Question, QuestionPrompt]()
    left = data.test
    for count in range(shots, -1, -1):
        texts = [prompt_text(question, data.examples.get(question.subject, [])[:count]) for question in left]
        encoded = tokenizer(texts)["input_ids"] if texts else []
        for question, tokens in zip(left, encoded, strict=True):
            prompts[question] = QuestionPrompt(question, tokens, count, shots - count)
        left = [question for question in left if len(prompts[question].tokens) >= context]
    if left:
        longest = max((prompts[question] for question in left), key=length_of)
        raise UsageError(
            f"{len(left):,} of {len(data.test):,} questions do not fit --max-model-len {context} without examples: "
            f"{longest.question.subject} {longest.question.number} needs {length_of(longest) + 1}."
        )
    return [prompts[question] for question in data.test]


def length_of(prompt: QuestionPrompt) -> int:
    return len(prompt.tokens)


def letter_tokens(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the token ids of the four letters as they follow a prompt.

    Raises UsageError unless each is a single, different token.
    """
    start = tokenizer(prompt)["input_ids"]
    ids = list[int]()
    for letter in LETTERS:
        tokens = tokenizer(f"{prompt} {letter}")["input_ids"]
        if tokens[:-1] != start or tokens[-1] in ids:
            raise UsageError(
                f"this model's tokenizer does not write ' {letter}' after 'Answer:' as a single token; "
                "MMLU's way of choosing by one token does not work with it."
            )
        ids.append(tokens[-1])
    return ids
