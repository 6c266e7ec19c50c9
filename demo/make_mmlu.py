"""Writes demo/mmlu: short questions on MMLU's 57 subjects, in the shape of cais/mmlu (dev and test, parquet).

    python -m demo.make_mmlu

Ours, not MMLU's, and far easier: facts of general knowledge asked in both directions, and sums with made-up numbers.
They are for trying the command, not for judging a model. The same every time.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from pyarrow import Table, parquet

HERE = Path(__file__).parent / "mmlu"
DEV, TEST = 5, 6


@dataclass(frozen=True)
class Question:
    """A record of cais/mmlu; `answer` is the place of the right choice, from 0."""

    question: str
    subject: str
    choices: list[str]
    answer: int


def question(rng: Random, subject: str, text: str, right: str, wrong: list[str]) -> Question:
    choices = [right, *rng.sample(wrong, 3)]
    rng.shuffle(choices)
    return Question(text, subject, choices, choices.index(right))


def from_facts(rng: Random, line: str, pairs_line: str) -> list[Question]:
    """Each of eight facts asked in both directions; three facts for the examples, the other five for the test."""
    subject, forward, backward = (part.strip() for part in line.split("|"))
    pairs = [tuple(part.strip().split(": ", 1)) for part in pairs_line.split("; ")]
    names, whats = zip(*pairs, strict=True)
    questions = []
    for name, what in rng.sample(pairs, len(pairs)):
        questions.append(question(rng, subject, forward.format(what), name, [n for n in names if n != name]))
        questions.append(question(rng, subject, backward.format(name), what, [w for w in whats if w != what]))
    return questions[:DEV] + rng.sample(questions[DEV + 1 :], TEST)


Sum = Callable[[Random], tuple[str, int]]


def power(rng: Random) -> tuple[str, int]:
    base, exponent = rng.randint(2, 9), rng.randint(1, 3)
    return f"What is the derivative of x^{exponent + 1} at x = {base}?", (exponent + 1) * base**exponent


def formula(form: str, result: Callable[[int, int], int], low: int, high: int) -> Sum:
    """Questions with two random numbers."""

    def make(rng: Random) -> tuple[str, int]:
        a, b = rng.randint(low, high), rng.randint(low, high)
        return form.format(a=a, b=b), result(a, b)

    return make


SUMS: dict[str, Sum] = {
    "abstract_algebra": formula("What is {a} * {b} in the ring Z_7?", lambda a, b: a * b % 7, 2, 30),
    "college_computer_science": lambda rng: (f"Which number is {(n := rng.randint(9, 63)):b} in binary?", n),
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
    questions: dict[str, Question] = {}
    while len(questions) < DEV + TEST:
        text, right = make(rng)
        near = [str(right + step) for step in (-10, -3, -2, -1, 1, 2, 3, 10) if right + step >= 0]
        questions[text] = question(rng, subject, text, str(right), near)
    return list(questions.values())


def from_logic(rng: Random) -> list[Question]:
    """Formal logic: the value of a compound of two statements."""
    forms: list[tuple[str, Callable[[bool, bool], bool]]] = [
        ("P and Q", lambda p, q: p and q),
        ("P or Q", lambda p, q: p or q),
        ("if P then Q", lambda p, q: not p or q),
        ("neither P nor Q", lambda p, q: not (p or q)),
    ]
    values = ["true", "false", "neither true nor false", "not to be known"]
    questions = []
    for name, holds in forms:
        for p, q in ((True, True), (True, False), (False, True)):
            text = f"P is {str(p).lower()} and Q is {str(q).lower()}. What is '{name}'?"
            right = values[0] if holds(p, q) else values[1]
            questions.append(question(rng, "formal_logic", text, right, [value for value in values if value != right]))
    return rng.sample(questions, DEV + TEST)


def every_subject() -> Iterator[list[Question]]:
    """facts.txt holds two lines a subject: how to ask for the name and for what it is; eight pairs of both."""
    rng = Random(57)
    lines = (HERE / "facts.txt").read_text().splitlines()
    for line, pairs in zip(lines[::2], lines[1::2], strict=True):
        yield from_facts(rng, line, pairs)
    for subject, make in SUMS.items():
        yield from_sums(rng, subject, make)
    yield from_logic(rng)


def main() -> None:
    folder = HERE / "all"
    folder.mkdir(exist_ok=True)
    subjects = sorted(every_subject(), key=lambda questions: questions[0].subject)
    for split, part in (("dev", slice(DEV)), ("test", slice(DEV, None))):
        records = [asdict(item) for questions in subjects for item in questions[part]]
        parquet.write_table(Table.from_pylist(records), folder / f"{split}-00000-of-00001.parquet")
        print(f"{split}: {len(records)} questions on {len(subjects)} subjects")


if __name__ == "__main__":
    main()
