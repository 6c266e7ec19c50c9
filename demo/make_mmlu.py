"""Writes demo/mmlu: short questions on MMLU's 57 subjects, in the shape of cais/mmlu (dev and test, parquet).

    python -m demo.make_mmlu

The questions are ours, not MMLU's, and far easier: facts of general knowledge asked in both directions, and sums with
made-up numbers. They are for trying the command, not for judging a model, and are the same every time.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from pyarrow import Table, parquet

HERE = Path(__file__).parent / "mmlu"
DEV_QUESTIONS, TEST_QUESTIONS = 5, 6  # of a subject


@dataclass(frozen=True)
class Question:
    """A record of cais/mmlu. `answer` is the index of the right choice."""

    question: str
    subject: str
    choices: list[str]
    answer: int


def question(rng: Random, subject: str, text: str, right: str, wrong: list[str]) -> Question:
    """Return a question with the right choice and three of the wrong ones, in random order."""
    choices = [right, *rng.sample(wrong, 3)]
    rng.shuffle(choices)
    return Question(text, subject, choices, choices.index(right))


def from_facts(rng: Random, subject_line: str, facts_line: str) -> list[Question]:
    """Return the questions of a subject from its two lines of facts.txt, which ask each of eight facts both ways.

    Examples and test have questions on different facts: three for the examples, the other five for the test.
    """
    subject, name_question, meaning_question = (part.strip() for part in subject_line.split("|"))
    facts = []
    for fact in facts_line.split("; "):
        name, meaning = fact.strip().split(": ", 1)
        facts.append((name, meaning))
    questions = []
    for name, meaning in rng.sample(facts, len(facts)):
        other_names = [other_name for other_name, _meaning in facts if other_name != name]
        other_meanings = [other_meaning for _name, other_meaning in facts if other_meaning != meaning]
        questions.append(question(rng, subject, name_question.format(meaning), name, other_names))
        questions.append(question(rng, subject, meaning_question.format(name), meaning, other_meanings))
    # The sixth question is of the same fact as the fifth.
    return questions[:DEV_QUESTIONS] + rng.sample(questions[DEV_QUESTIONS + 1 :], TEST_QUESTIONS)


Sum = Callable[[Random], tuple[str, int]]  # returns a question and its result


def power(rng: Random) -> tuple[str, int]:
    base, exponent = rng.randint(2, 9), rng.randint(1, 3)
    return f"What is the derivative of x^{exponent + 1} at x = {base}?", (exponent + 1) * base**exponent


def binary_number(rng: Random) -> tuple[str, int]:
    number = rng.randint(9, 63)
    return f"Which number is {number:b} in binary?", number


def formula(text: str, result: Callable[[int, int], int], low: int, high: int) -> Sum:
    """Return what makes questions with two random numbers, `a` and `b`, from `low` to `high`."""

    def make(rng: Random) -> tuple[str, int]:
        a, b = rng.randint(low, high), rng.randint(low, high)
        return text.format(a=a, b=b), result(a, b)

    return make


SUMS: dict[str, Sum] = {
    "abstract_algebra": formula("What is {a} * {b} in the ring Z_7?", lambda a, b: a * b % 7, 2, 30),
    "college_computer_science": binary_number,
    "college_mathematics": power,
    "college_physics": formula(
        "A force of {a} N moves a body {b} m along its line. What is the work in J?", lambda a, b: a * b, 2, 20
    ),
    "econometrics": formula(
        "The fitted line is y = {a} + {b} x. What is the prediction at x = 3?", lambda a, b: a + 3 * b, 2, 20
    ),
    "elementary_mathematics": formula("What is {a} + {b}?", lambda a, b: a + b, 5, 60),
    "high_school_mathematics": formula("If x - {a} = {b}, what is x?", lambda a, b: a + b, 3, 40),
    "high_school_physics": formula(
        "A car drives {a} m/s for {b} s. How far does it go, in m?", lambda a, b: a * b, 3, 30
    ),
    "high_school_statistics": formula(
        "What is the median of {a}, {b} and 50?", lambda a, b: sorted((a, b, 50))[1], 1, 99
    ),
    "professional_accounting": formula(
        "Liabilities are {a}0 and equity is {b}0. What are the assets?", lambda a, b: 10 * (a + b), 2, 50
    ),
}


def from_sums(rng: Random, subject: str, make: Sum) -> list[Question]:
    """Return different questions of a subject. Wrong choices are near the right one and not negative."""
    questions: dict[str, Question] = {}
    while len(questions) < DEV_QUESTIONS + TEST_QUESTIONS:
        text, right = make(rng)
        wrong = [str(right + step) for step in (-10, -3, -2, -1, 1, 2, 3, 10) if right + step >= 0]
        questions[text] = question(rng, subject, text, str(right), wrong)
    return list(questions.values())


COMPOUNDS: dict[str, Callable[[bool, bool], bool]] = {  # of two statements
    "P and Q": lambda p, q: p and q,
    "P or Q": lambda p, q: p or q,
    "if P then Q": lambda p, q: not p or q,
    "neither P nor Q": lambda p, q: not (p or q),
}
TRUTH_CHOICES = ["true", "false", "neither true nor false", "not to be known"]


def from_logic(rng: Random) -> list[Question]:
    """Return questions of formal logic, on the value of a compound of two statements."""
    questions = []
    for name, holds in COMPOUNDS.items():
        for p, q in ((True, True), (True, False), (False, True)):
            text = f"P is {str(p).lower()} and Q is {str(q).lower()}. What is '{name}'?"
            right = str(holds(p, q)).lower()
            wrong = [choice for choice in TRUTH_CHOICES if choice != right]
            questions.append(question(rng, "formal_logic", text, right, wrong))
    return rng.sample(questions, DEV_QUESTIONS + TEST_QUESTIONS)


def every_subject() -> Iterator[list[Question]]:
    """Yield the questions of each subject, examples first.

    facts.txt has two lines for a subject: its name with how to ask for a name and for its meaning, and eight facts.
    """
    rng = Random(57)
    lines = (HERE / "facts.txt").read_text().splitlines()
    for subject_line, facts_line in zip(lines[::2], lines[1::2], strict=True):
        yield from_facts(rng, subject_line, facts_line)
    for subject, make in SUMS.items():
        yield from_sums(rng, subject, make)
    yield from_logic(rng)


def main() -> None:
    folder = HERE / "all"
    folder.mkdir(exist_ok=True)
    subjects = sorted(every_subject(), key=lambda questions: questions[0].subject)
    splits = {"dev": slice(DEV_QUESTIONS), "test": slice(DEV_QUESTIONS, None)}
    for split, part in splits.items():
        records = []
        for questions in subjects:
            records += [asdict(item) for item in questions[part]]
        parquet.write_table(Table.from_pylist(records), folder / f"{split}-00000-of-00001.parquet")
        print(f"{split}: {len(records)} questions on {len(subjects)} subjects")


if __name__ == "__main__":
    main()
