"""MMLU's prompts, to the letter, and examples that do not fit."""

from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.mmlu import question_prompts
from harness.mmlu.question_data import Question, QuestionSet


def test_the_prompt_to_the_letter() -> None:
    example = Question("world_religions", 0, " Which?\n", ("w", "x", "y", "z"), 2)
    question = Question("world_religions", 0, "What is it?", ("a", "b ", "c", "d"), 0)
    assert question_prompts.prompt_text(question, [example]) == (
        "The following are multiple choice questions (with answers) about world religions.\n\n"
        "Which?\nA. w\nB. x\nC. y\nD. z\nAnswer: C\n\n"
        "What is it?\nA. a\nB. b \nC. c\nD. d\nAnswer:"
    )


def test_letters_are_the_tokens_that_follow(tokenizer: Any, demo: QuestionSet) -> None:
    prompt = question_prompts.prompt_text(demo.test[0], [])
    assert [tokenizer.decode([token]) for token in question_prompts.letter_tokens(tokenizer, prompt)] == [
        " A",
        " B",
        " C",
        " D",
    ]

    def by_character(text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def unknown(text: str) -> dict[str, list[int]]:
        return {"input_ids": [0] * len(text.split())}

    for odd in (by_character, unknown):
        with pytest.raises(UsageError, match="one token"):
            question_prompts.letter_tokens(odd, prompt)


def test_examples_that_do_not_fit_are_dropped_from_the_end(tokenizer: Any, demo: QuestionSet) -> None:
    made = question_prompts.build_prompts(demo, 5, tokenizer, 400)
    assert [prompt.question for prompt in made] == demo.test
    assert {prompt.examples for prompt in made} >= {4, 5}
    for prompt in made:
        examples = demo.examples[prompt.question.subject]
        assert (
            prompt.tokens
            == tokenizer(question_prompts.prompt_text(prompt.question, examples[: prompt.examples]))["input_ids"]
        )
        assert len(prompt.tokens) < 400
        if prompt.examples < 5:
            longer = question_prompts.prompt_text(prompt.question, examples[: prompt.examples + 1])
            assert len(tokenizer(longer)["input_ids"]) >= 400
    with pytest.raises(UsageError, match=r"--max-model-len 100 .*: \w+ \d+ needs \d+"):
        question_prompts.build_prompts(demo, 5, tokenizer, 100)
