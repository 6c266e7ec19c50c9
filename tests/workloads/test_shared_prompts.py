"""Prompts with shared beginnings, conversations, salt, profiles with bounds, and what data sets are read."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.lengths import SALT_TOKENS, PromptParts, lengths
from harness.config.pretrained import load_tokenizer
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.workloads import custom
from harness.workloads.sample_library import Salt
from tests.conftest import ended


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(RunConfig(model="demo"))


def config(**flags: Any) -> RunConfig:
    return RunConfig(**{"model": "demo", "backend": "echo", "mode": "performance", **flags})


def profile(folder: Path, **keys: object) -> str:
    """The path of a profile with these keys, answers of 8 tokens."""
    path = folder / "profile.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in ({"output_len": 8} | keys).items()))
    return str(path)


def load(tokenizer: Any, **flags: Any) -> Any:
    asked = config(**flags)
    library = custom.load(asked, tokenizer)
    assert library is not None
    resolve(asked, [], 0, request_set=library.request_set)
    return library


def test_prompts_begin_with_one_of_the_prefixes(tokenizer: Any, tmp_path: Path) -> None:
    path = profile(tmp_path, input_len=32, prefix_len=100, prefixes=3)
    found = load(tokenizer, workload=path, total_sample_count=60, concurrency=4)
    heads = Counter(tuple(prompt[:100]) for prompt in found.prompts)
    assert len(heads) == 3 and {len(prompt) for prompt in found.prompts} == {132}
    assert len({tuple(prompt[100:]) for prompt in found.prompts}) == 60
    assert "one of 3 beginnings of 100 tokens" in found.request_set.about


def test_a_turn_begins_with_the_turns_before_it(tokenizer: Any, tmp_path: Path) -> None:
    found = load(tokenizer, workload=profile(tmp_path, input_len=20, turns=4), total_sample_count=12, concurrency=2)
    assert found.conversations == [0] * 4 + [1] * 4 + [2] * 4
    for number in range(12):
        turn = number % 4
        assert len(found.prompts[number]) == 20 + turn * 28
        if turn:
            assert found.prompts[number][: len(found.prompts[number - 1])] == found.prompts[number - 1]
    assert found.request_set.whole_rounds


@given(st.integers(0, 500), st.integers(0, 50), st.integers(0, 3))
def test_salt_at_the_start_makes_every_prompt_another(order: int, talk: int, round: int) -> None:
    words, prompt = list(range(1000, 1400)), list(range(64))
    start, after = (Salt.from_parts(PromptParts(prefix_len=16, salt=at), words) for at in ("start", "after-prefix"))
    salted, same = start.add_to(prompt, order, talk, round), after.add_to(prompt, order, talk, round)
    assert salted[SALT_TOKENS:] == prompt and len(same) == len(prompt) + SALT_TOKENS
    assert same[:16] == prompt[:16] and same[16 + SALT_TOKENS :] == prompt[16:]
    assert salted != start.add_to(prompt, order + 1, talk, round)
    assert same == after.add_to(prompt, order + 1, talk, round)  # a conversation's own, so that its turns are shared
    assert same != after.add_to(prompt, order, talk + 1, round)


def test_salt_is_another_in_every_test_and_run(tokenizer: Any) -> None:
    found = load(tokenizer, input_len="32", output_len="8", salt="start", total_sample_count=6, concurrency=2)
    heads = {tuple(prompt[:SALT_TOKENS]) for test in "abc" for prompt, _ in found.with_test_salt(test, False).requests}
    assert len(heads) == 18
    same, again = (found.with_test_salt("a", False).requests for _ in range(2))
    assert same == again and found.with_test_salt("a", False).prompts == found.prompts


@pytest.mark.parametrize(
    "lines",
    ["", "prefix_len: 24\nprefixes: 2\n", "turns: 3\n", "salt: after-prefix\nprefix_len: 24\n"],
)
def test_random_prompts_are_drawn_anew_with_all_that_they_share(lines: str, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"input_len: 20~0.5\noutput_len: 8\n{lines}")
    found = load(tokenizer, workload=str(path), total_sample_count=12, concurrency=2)
    first, second = found.with_test_salt("run 1", True), found.with_test_salt("run 2", True)
    assert found.with_test_salt("run 1", False).prompts == found.prompts
    for a, b, c in zip(found.prompts, first.prompts, second.prompts, strict=True):
        assert len(a) == len(b) == len(c) and sum(x == y for x, y in zip(b, c, strict=True)) < len(b) / 2
    for i, j in ((0, 1), (1, 2), (0, 11)):
        assert common(*(found.prompts[n] for n in (i, j))) == common(*(first.prompts[n] for n in (i, j)))


def common(a: list[int], b: list[int]) -> int:
    """How many first tokens two prompts share."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.integers(1, 40), st.integers(0, 12), st.integers(0, 3))
def test_a_random_prompt_that_is_asked_again_begins_with_other_tokens(length: int, after: int, talk: int) -> None:
    prompt, head = list(range(length)), Salt(list(range(1000, 1400)), after, False, True, "a test")
    assert head.add_to(prompt, 5, talk, 0) == prompt
    again, later = head.add_to(prompt, 5, talk, 1), head.add_to(prompt, 9, talk, 2)
    assert len(again) == length and again[:after] == prompt[:after]
    assert again[after + SALT_TOKENS :] == prompt[after + SALT_TOKENS :]
    assert all(x != y for x, y in zip(again[after : after + SALT_TOKENS], prompt[after:], strict=False))
    assert (again != later) == (length > after) and head.add_to(prompt, 9, talk, 1) == again


def test_lengths_keep_their_bounds(tokenizer: Any) -> None:
    found = load(tokenizer, input_len="300~80:200-400", output_len="16~0.9:8-32", total_sample_count=200)
    read = [len(prompt) for prompt in found.prompts]
    assert 200 <= min(read) < 240 and 360 < max(read) <= 400
    assert min(found.new_tokens) >= 8 and max(found.new_tokens) <= 32
    assert str(lengths("--input-len", "300~80:200-400")) == "300~80:200-400"


@pytest.mark.parametrize(
    ("keys", "flags", "said"),
    [
        ({"prefixes": 4}, {}, "prefixes needs prefix_len"),
        ({"turns": 0}, {}, "profile.yaml: turns takes"),
        ({"prefix_len": "many"}, {}, "profile.yaml: prefix_len takes"),
        ({"turns": 2}, {"scenario": "server"}, "turns need --concurrency"),
        ({"turns": 2}, {"arrivals": "poisson"}, "turns need --concurrency"),
        (None, {"salt": "start"}, "--salt needs"),
        (None, {"prompt_column": "q"}, "--prompt-column .*--workload"),
    ],
    ids=str,
)
def test_what_does_not_go_together(
    tokenizer: Any, tmp_path: Path, keys: dict[str, Any] | None, flags: dict[str, Any], said: str
) -> None:
    asked = {"workload": profile(tmp_path, input_len=8, **keys)} if keys else {}
    with pytest.raises(UsageError, match=said):
        load(tokenizer, **asked, **flags)


def test_the_long_profiles_have_the_lengths_of_what_they_imitate(tokenizer: Any) -> None:
    asked = RunConfig(
        model="llama3.1-8b-instruct", mode="performance", workload="long-classification", total_sample_count=40
    )
    found = custom.load(asked, tokenizer)
    assert found is not None and found.request_set
    assert all(3000 <= len(prompt) <= 12_000 for prompt in found.prompts) and max(found.new_tokens or []) <= 20
    assert resolve(asked, [], 0, request_set=found.request_set).max_model_len >= found.request_set.longest
    talks = RunConfig(
        model="llama3.1-8b-instruct", mode="performance", workload="long-chat", total_sample_count=40, concurrency=4
    )
    chat = custom.load(talks, tokenizer)
    assert chat is not None and chat.conversations and len(set(chat.conversations)) == 10


def test_a_profile_of_ones_own(tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("about: mine\ninput_len: 40\noutput_len: 8~0.2:4-9\nprefix_len: 16\n")
    found = load(tokenizer, workload=str(path), total_sample_count=10)
    assert {len(prompt) for prompt in found.prompts} == {56} and found.request_set.about.startswith("mine; ")
    for text, said in (
        ("input_len: 40\noutput: 8\n", "unknown setting 'output'; did you mean output_len?"),
        ("input_len: 40\n", "output_len is missing."),
        ("input_len: 40\noutput_len: 0\n", "output_len takes N tokens"),
        ("input_len: 40\noutput_len: 8\nturns: 0\n", "turns takes a whole number from 1 to 1,000; got 0."),
        ("input_len: 40\noutput_len: 8\nprefixes: 2\n", "prefixes needs prefix_len."),
        ("input_len: 40\noutput_len: 8\nsalt: end\n", "salt takes none, start or after-prefix; got 'end'."),
        ("- input_len\n", "expected keys, prefix_len, "),
    ):
        path.write_text(text)
        with pytest.raises(UsageError) as refused:
            load(tokenizer, workload=str(path))
        assert str(refused.value).startswith(f"--workload {path}: ") and said in str(refused.value)


ROLES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who wrote it?"},
    {"role": "assistant", "content": "She did."},
    {"role": "user", "content": "When?"},
    {"role": "assistant", "content": "In the spring of that year, in a small house by the sea."},
]


@pytest.mark.parametrize(
    "content", [[ROLES, ROLES], [{"conversations": ROLES}, {"id": 1, "conversations": ROLES}]], ids=["bare", "named"]
)
def test_conversations_of_role_and_content(tokenizer: Any, content: Any, tmp_path: Path) -> None:
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(content))
    found = load(tokenizer, workload=str(path), concurrency=2)
    assert len(found.prompts) == 4 and found.conversations == [1, 1, 2, 2]
    assert "She did." in tokenizer.decode(found.prompts[1])
    answers = [ROLES[2]["content"], ROLES[4]["content"]]
    assert found.new_tokens[:2] == [len(tokenizer.encode(text, add_special_tokens=False)) for text in answers]


def test_a_column_that_the_user_names(tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"problem": "What is 2 + 2?", "answer": 4}\n{"problem": "And 3 + 3?", "answer": 6}\n')
    found = load(tokenizer, workload=str(path), prompt_column="problem", max_new_tokens=9)
    assert [tokenizer.decode(prompt, skip_special_tokens=True) for prompt in found.prompts] == [
        "What is 2 + 2?",
        "And 3 + 3?",
    ]
    assert found.new_tokens == [9, 9]
    with pytest.raises(UsageError, match=r"line 1: .*'question'; .*problem, answer"):
        load(tokenizer, workload=str(path), prompt_column="question")


def test_a_data_set_as_datasets_reads_it(tokenizer: Any, tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(f'{{"q": "a {split} question"}}\n' * 3)
    name = f"hf:{tmp_path}"
    with pytest.raises(UsageError, match="name a split"):
        load(tokenizer, workload=name, prompt_column="q")
    found = load(tokenizer, workload=f"{name}:test", prompt_column="q")
    assert len(found.prompts) == 3 and "a test question" in tokenizer.decode(found.prompts[0])
    with pytest.raises(UsageError, match=r"no column prompt, .* or messages; .* q; --prompt-column "):
        load(tokenizer, workload=f"{name}:test")
    with pytest.raises(UsageError, match="`datasets` cannot load it"):
        load(tokenizer, workload=f"hf:{tmp_path / 'none'}")


@pytest.mark.slow
def test_a_run_asks_turns_in_their_order(tmp_path: Path) -> None:
    flags = ("--model", "demo", "--backend", "echo", "--mode", "performance", "--concurrency", "3")
    flags += ("--workload", profile(tmp_path, input_len=20, turns=4), "--total-sample-count", "48")
    done = ended("run.py", *flags, "--salt", "start", "--min-duration", "1", "--results-dir", tmp_path / "results")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "results" / "latest" / "Performance" / "requests.csv").open()))
    sent: dict[int, list[tuple[float, int]]] = {}
    for row in rows:
        talk, turn = divmod(int(row["sample"]), 4)
        sent.setdefault(talk, []).append((float(row["issued_s"]), turn))
    assert len(sent) == 12
    for turns in sent.values():
        turns.sort()
        assert [turn for _, turn in turns] == [0, 1, 2, 3] * (len(turns) // 4)
    assert {len(rows) % 48} == {0}
