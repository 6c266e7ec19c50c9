"""Counts in words: "1 query" and "2 queries", wherever a text of the program counts something."""

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest

from harness.core.formatting import plural
from tests.conftest import ROOT

NOUN_AFTER_COUNT = re.compile(r" (?:[a-z]+ )?([a-z]+)\b(?!/)")  # not the unit of a rate, such as queries/s
CONSTANT = re.compile(r"[A-Z_0-9]+|\w+\.[A-Z_0-9]+")
# Expressions whose value is never 1, and values that are no count.
NEVER_ONE = {
    "address",
    "config.official_samples",
    "context",
    "count_after",  # in "1 and 3 runs"
    "len(DOMAIN_OF)",
    "len(named_folders)",
    "len(names)",
    "len(pretrained.load_tokenizer(served))",
    "len(self.failed)",
    "len(self.test.repeats)",
    "len(value)",
    "messages",  # a mean
    "meta.max_model_len",
    "needed",
    "number(self.prompt, 3)",
    "plan.samples_per_query",
    "queries",
    "rate * seconds",
    "reading.length",
    "self.longest",
    "task.samples",
    "test.over_in",  # such as "1 of 4"
    "token_count",
    "tokens",
    "typical_length",
}
TREES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "harness").rglob("*.py"))}


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "query", "1 query"),
        (0, "query", "0 queries"),
        (2, "more query", "2 more queries"),
        (2, "key", "2 keys"),
        (1.0, "token", "1 token"),
        (1.00001, "token", "1 token"),
        (1.2, "token", "1.2 tokens"),
        (13368, "sample", "13,368 samples"),
        (None, "sample", "– samples"),
    ],
)
def test_a_noun_agrees_with_its_count(count: float | None, noun: str, text: str) -> None:
    assert plural(count, noun) == text


def counted_nouns(trees: Iterable[ast.Module]) -> set[str]:
    """The plurals of all nouns that a call of `plural` has."""
    nouns = set()
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name("plural"), args=[_, ast.Constant(str(noun))]):
                    nouns.add(plural(2, noun).split()[-1])
    return nouns


def counts_without_plural(tree: ast.Module, nouns: set[str]) -> Iterator[tuple[int, str]]:
    """The line and the text of each count that stands before one of the nouns in an f-string."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for part, after in pairwise(node.values):
            match part, after:
                case ast.FormattedValue(value=value), ast.Constant(str(text)):
                    noun = NOUN_AFTER_COUNT.match(text)
                    count = ast.unparse(value)
                    if noun and noun[1] in nouns and count not in NEVER_ONE and not CONSTANT.fullmatch(count):
                        yield node.lineno, f"{{{count}}}{text}"


def test_a_count_without_its_noun_in_the_right_number_is_seen() -> None:
    tree = ast.parse("f'{len(runs)} finished runs; {plural(n, \"run\")}, {MOST} runs, {rate} queries/s'")
    assert list(counts_without_plural(tree, {"runs", "queries"})) == [(1, "{len(runs)} finished runs; ")]


def test_every_text_counts_in_the_right_number() -> None:
    nouns = counted_nouns(TREES.values())
    assert {"queries", "samples", "requests", "files"} <= nouns
    problems = []
    for path, tree in TREES.items():
        for line, text in counts_without_plural(tree, nouns):
            problems.append(f"{path.relative_to(ROOT)}:{line}: {text}")
    assert problems == []
