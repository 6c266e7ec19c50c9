"""Answers of two runs to the same samples: every kind of difference is found, an answer that was cut short, too."""

import json
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.config.mlperf import ROUGE
from harness.loadgen.requests import ANSWERS_FILE
from harness.report.answer_comparison import SAMPLES_FILE, compare_answers

ANSWER = [11, 12, 13, 14]


def written(folder: Path, given_answers: Sequence[Sequence[int]]) -> Path:
    """The files of an accuracy test with these answers."""
    folder.mkdir()
    entries = [
        {"seq_id": n, "qsl_idx": n, "data": array("i", tokens).tobytes().hex(), "token_count": len(tokens)}
        for n, tokens in enumerate(given_answers)
    ]
    (folder / ANSWERS_FILE).write_text(json.dumps(entries))
    rows = [f"{n},100,{','.join('40' for _ in ROUGE)}" for n in range(len(given_answers))]
    (folder / SAMPLES_FILE).write_text("\n".join([f"index,prompt_tokens,{','.join(ROUGE)}", *rows]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("a", "b", "position", "tokens"),
    [
        (ANSWER, [11, 99, 13, 14], 1, ("12", "99")),
        (ANSWER, ANSWER[:2], 2, ("13", "(ended)")),
        (ANSWER[:3], ANSWER, 3, ("(ended)", "14")),
        (ANSWER, [], 0, ("11", "(ended)")),
    ],
)
def test_where_two_answers_part(
    a: list[int], b: list[int], position: int, tokens: tuple[str, str], tmp_path: Path
) -> None:
    pair = compare_answers(
        written(tmp_path / "a", [ANSWER, a]), written(tmp_path / "b", [ANSWER, b]), same_splitter=True
    )
    assert pair and pair.samples == 2
    (parted,) = pair.differing
    assert (parted.sample, parted.position, parted.a, parted.b) == (1, position, *tokens)


TOKENS = st.lists(st.integers(0, 3), max_size=5)


@given(pairs=st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
def test_answers_are_equal_only_where_all_of_both_is(
    pairs: list[tuple[list[int], list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("pair")
    sides = [written(place / name, [pair[n] for pair in pairs]) for n, name in enumerate("ab")]
    found = compare_answers(*sides, same_splitter=True)
    assert found and [one.sample for one in found.differing] == [n for n, (a, b) in enumerate(pairs) if a != b]
