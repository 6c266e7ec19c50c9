"""How large the program may be. What a feature needs is taken from somewhere else first; each number stands once."""

import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.config.run import RunConfig
from tests.conftest import ROOT

TOKENS = 178_000  # names, operators, numbers and strings of harness/
TEMPLATE_LINES = 940  # of templates/, without the schema, which is generated
FLAGS = 65  # of run.py
COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)


def tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    with path.open("rb") as file:
        yield from (token for token in tokenize.tokenize(file.readline) if token.type in COUNTED)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="tokens are counted on Python 3.11: 3.12 splits f-strings")
def test_the_program_is_no_larger() -> None:
    assert sum(1 for path in (ROOT / "harness").rglob("*.py") for _ in tokens(path)) <= TOKENS


def test_what_a_token_is(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('x = f(1)  # no comment\n\n"""text\nof two lines"""\n')
    assert [token.string for token in tokens(tmp_path / "a.py")][:6] == ["x", "=", "f", "(", "1", ")"]
    assert len([*tokens(tmp_path / "a.py")]) == 7


def test_the_templates_are_no_larger() -> None:
    paths = [path for path in (ROOT / "templates").rglob("*") if path.is_file() and path.name != "summary.schema.json"]
    assert sum(len(path.read_text().splitlines()) for path in paths) <= TEMPLATE_LINES


def test_there_are_no_more_flags() -> None:
    assert len([info for info in RunConfig.model_fields.values() if info.description] + ["--config"]) <= FLAGS
