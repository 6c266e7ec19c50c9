"""MMLU's questions as prompts, in the words and the layout of the paper."""

from collections.abc import Sequence
from typing import NamedTuple

from harness.core.errors import UsageError
from harness.core.formatting import plural
from harness.core.tokenizer import Tokenizer
from harness.mmlu.question_data import LETTERS, Question, QuestionSet


class QuestionPrompt(NamedTuple):
    """A question as a prompt: token ids of examples and of the question."""

    question: Question
    tokens: list[int]
    examples: int  # the number of examples in the prompt
    dropped: int  # the number of examples that did not fit


def question_text(question: Question) -> str:
    """Return a question with its choices, up to "Answer:", after which the letter of an answer comes."""
    lines = [question.text.strip()]
    for letter, choice in zip(LETTERS, question.choices, strict=True):
        lines.append(f"{letter}. {choice}")
    return "\n".join([*lines, "Answer:"])


def prompt_text(question: Question, examples: Sequence[Question]) -> str:
    """Return the prompt of a question, examples first, in the words and layout of the paper and of lm-eval's `mmlu`."""
    subject = question.subject.replace("_", " ")
    parts = [f"The following are multiple choice questions (with answers) about {subject}."]
    for example in examples:
        parts.append(f"{question_text(example)} {LETTERS[example.answer]}")
    return "\n\n".join([*parts, question_text(question)])


def build_prompts(data: QuestionSet, shots: int, tokenizer: Tokenizer, context: int) -> list[QuestionPrompt]:
    """Return a prompt for each question, with up to `shots` examples, that leaves room for one new token in `context`.

    If a prompt is too long, its last examples are dropped until it fits. Raises UsageError if a prompt does not fit
    without examples.
    """
    prompts = dict[Question, QuestionPrompt]()
    unfit = data.test  # questions whose prompt is too long, or that have none yet
    for count in range(shots, -1, -1):  # the number of examples
        if not unfit:
            break
        texts = [prompt_text(question, first_examples(data, question, count)) for question in unfit]
        encoded_texts = tokenizer(texts)["input_ids"]
        still_unfit = []
        for question, tokens in zip(unfit, encoded_texts, strict=True):
            prompts[question] = QuestionPrompt(question, tokens, examples=count, dropped=shots - count)
            if len(tokens) >= context:  # There is no room for the new token.
                still_unfit.append(question)
        unfit = still_unfit
    if unfit:
        longest_tokens, question = longest_prompt([prompts[question] for question in unfit])
        raise UsageError(
            f"--max-model-len {context} is too short for {len(unfit):,} of {plural(len(data.test), 'question')}, even "
            f"without examples: {question.subject} {question.number} needs {longest_tokens + 1}."
        )
    return [prompts[question] for question in data.test]


def first_examples(data: QuestionSet, question: Question, count: int) -> list[Question]:
    """Return the first `count` examples of a question's subject; fewer if the subject does not have as many."""
    return data.examples.get(question.subject, [])[:count]


def longest_prompt(prompts: Sequence[QuestionPrompt]) -> tuple[int, Question]:
    """Return the number of tokens of the longest prompt, and its question. There must be a prompt."""
    longest = prompts[0]
    for prompt in prompts:
        if len(prompt.tokens) > len(longest.tokens):
            longest = prompt
    return len(longest.tokens), longest.question


def letter_tokens(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the token ids of the letters A to D as they follow a prompt.

    Raises UsageError unless each letter is a single token of its own, since an answer is chosen by the next token.
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
