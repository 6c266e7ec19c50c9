"""Every key of a workload's file is read, known to be harmless, or named; none that changes a request is dropped."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.config.pretrained import load_tokenizer
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.engines.protocol import MessagePrompt
from harness.workloads import custom, request_keys, requests_file
from harness.workloads.request_keys import AMBIGUOUS_LENGTHS, HARMLESS_KEYS, LENGTH_KEYS, NEUTRAL_VALUES, SYSTEM_KEYS
from harness.workloads.requests_file import StoredRequests
from tests.engines.test_openai import client
from tests.support.fake_servers import Fake, whole

USER, ANSWER = {"role": "user", "content": "Where is it?"}, {"role": "assistant", "content": "Over there, I think."}
TALK = [{"from": "human", "value": "Where is it?"}, {"from": "gpt", "value": "Over there, I think."}]


def in_messages(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Puts a row's other keys into its first message."""

    def move(row: dict[str, Any]) -> dict[str, Any]:
        first, *rest = row[name]
        extra = {key: value for key, value in row.items() if key != name}
        return {name: [{**first, **extra}, *rest]}

    return move


def as_lines(row: dict[str, Any]) -> str:
    return f"{json.dumps(row)}\n" * 3


def as_list(row: dict[str, Any]) -> str:
    return json.dumps([row] * 3, indent=1)


def as_table(row: dict[str, Any]) -> str:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(row)
    table.writerows([[cell if isinstance(cell, str) else json.dumps(cell) for cell in row.values()]] * 3)
    return text.getvalue()


# Each format that is read: the row to which a key is added, how the row is changed then, and how a file is written.
FORMATS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]], Callable[..., str], str]] = {
    "prompt": ({"prompt": "Hello"}, dict, as_lines, "a.jsonl"),
    "list": ({"prompt": "Hello"}, dict, as_list, "a.json"),
    "table": ({"prompt": "Hello"}, dict, as_table, "a.csv"),
    "messages": ({"messages": [USER]}, dict, as_lines, "a.jsonl"),
    "a message": ({"messages": [USER]}, in_messages("messages"), as_lines, "a.jsonl"),
    "a conversation": ({"conversation": [USER, ANSWER]}, dict, as_lines, "a.jsonl"),
    "a turn": ({"conversation": [USER, ANSWER]}, in_messages("conversation"), as_lines, "a.jsonl"),
    "token ids": ({"prompt_token_ids": [5, 6, 7]}, dict, as_lines, "a.jsonl"),
    "ShareGPT": ({"conversations": TALK}, dict, as_list, "a.json"),
    "a batch's body": ({"prompt": "Hello"}, lambda row: {"custom_id": "1", "body": row}, as_lines, "a.jsonl"),
    "parameters": (
        {"prompt": "Hello"},
        lambda row: {"prompt": row["prompt"], "parameters": {k: v for k, v in row.items() if k != "prompt"}},
        as_lines,
        "a.jsonl",
    ),
}
NAMES = st.one_of(
    st.text(st.characters(categories=["L", "N"], include_characters="_-"), min_size=1, max_size=12),
    st.sampled_from([*LENGTH_KEYS, *AMBIGUOUS_LENGTHS, *SYSTEM_KEYS, *HARMLESS_KEYS, *NEUTRAL_VALUES]),
    st.sampled_from(["Max_Tokens", "MAX_NEW_TOKENS", "maxTokens", "Temperature", "context", "image", "model"]),
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.floats(-2, 40),
    st.text(max_size=8),
    st.just([1]),
    st.just({"a": 1}),
)


def read(tmp_path: Path, name: str, text: str, column: str = "") -> StoredRequests:
    path = tmp_path / name
    path.write_bytes(text.encode(errors="surrogatepass"))
    return requests_file.read(path, column)


def is_known(key: str, value: Any) -> bool:
    """Whether a key changes nothing by its name, or by its value."""
    name = key.lower()
    neutral = NEUTRAL_VALUES.get(name)
    return value is None or name in HARMLESS_KEYS or (neutral is not None and request_keys.is_neutral(value, neutral))


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=NAMES, value=VALUES)
def test_one_more_key_shows_in_the_request_or_in_a_line(form: str, key: str, value: Any, tmp_path: Path) -> None:
    row, change, write, name = FORMATS[form]
    if key in ("role", "content", "from", "value", "body", "payload", "request", *row):
        return
    before = read(tmp_path, name, write(change(row)))
    try:
        after = read(tmp_path, name, write(change({**row, key: value})))
    except UsageError as error:
        assert key in str(error)
        return
    is_sent = after.requests != before.requests
    is_empty_system = key in SYSTEM_KEYS and value in (None, "")
    is_empty_cell = form == "table" and value == ""
    assert (
        is_sent
        or repr(key) in after.unread_note
        or key in after.unread_note
        or is_known(key, value)
        or is_empty_system
        or (is_empty_cell)
    )


@pytest.mark.parametrize("name", LENGTH_KEYS)
def test_a_length_is_read_by_each_of_its_names(name: str, tmp_path: Path) -> None:
    for value in (16, 16.0, "16", "16.0"):
        found = read(tmp_path, "a.jsonl", as_lines({"prompt": "hi", name: value}))
        assert [request.max_tokens for request in found.requests] == [16] * 3
    talk = read(tmp_path, "a.jsonl", as_lines({"messages": [USER, ANSWER], name: 16}))
    assert [request.max_tokens for request in talk.requests] == [16] * 3


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "hi", "options": {"num_predict": 16}},
        {"prompt": "hi", "parameters": {"max_new_tokens": 16}},
        {"prompt": "hi", "sampling_params": {"max_tokens": 16, "temperature": 0.0, "top_p": 1.0, "stop": []}},
        {"prompt": "hi", "generation_config": {"maxOutputTokens": 16}},
        {"custom_id": "7", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", "max_tokens": 16}},
    ],
)
def test_a_length_within_a_dictionary_is_read(row: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, "a.jsonl", as_lines(row))
    assert [request.max_tokens for request in found.requests] == [16] * 3 and not found.unread_note


@pytest.mark.parametrize("name", AMBIGUOUS_LENGTHS)
def test_a_length_that_may_be_of_both_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"line 1: {name} .* max_tokens"):
        read(tmp_path, "a.jsonl", as_lines({"prompt": "hi", name: 16}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", 0.7),
        ("top_p", 0.9),
        ("n", 2),
        ("stop", ["\n"]),
        ("tools", [{"name": "f"}]),
        ("min_tokens", 16),
        ("ignore_eos", True),
        ("image", "a.png"),
        ("guided_json", {"type": "object"}),
        ("max_tokens", "many"),
        ("logprobs", 5),
        ("response_format", {"type": "json_object"}),
        ("chat_template_kwargs", {"thinking": True}),
    ],
)
def test_what_would_change_an_answer_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"line 1: {key} "):
        read(tmp_path, "a.jsonl", as_lines({"prompt": "hi", key: value}))
    if key == "max_tokens":
        return
    # One row of many is no reason to ask the others as if it were none of theirs.
    rows = [*[{"prompt": "hi"}] * 30, {"prompt": "hi", key: value}]
    with pytest.raises(UsageError, match=f"line 31: {key} "):
        read(tmp_path, "a.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))


def test_of_a_table_with_a_named_column_the_others_are_named(tmp_path: Path) -> None:
    rows = "".join(f"{json.dumps({'q': 'Where?', 'temperature': 21.5, 'max_length': 9, 'id': k})}\n" for k in range(3))
    found = read(tmp_path, "a.jsonl", rows, "q")
    assert [request.prompt for request in found.requests] == ["Where?"] * 3
    assert "'temperature' in 3 lines" in found.unread_note and "'max_length' in 3 lines" in found.unread_note
    assert "'id'" not in found.unread_note


def test_unread_keys_are_counted_and_named_once(tmp_path: Path) -> None:
    rows = [{"prompt": "hi", "context": "x"}] * 2 + [{"prompt": "hi", "context": None, "reward": 1}]
    found = read(tmp_path, "a.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    assert found.unread_note == "not read: 'context' in 2 lines, 'reward' in 1 line"
    many = {f"k{number}": 1 for number in range(30)}
    assert len(read(tmp_path, "a.jsonl", as_lines({"prompt": "hi", **many})).unread_note) < 300


SYSTEM = "Be short."


@pytest.mark.parametrize(
    ("row", "roles"),
    [
        ({"system": SYSTEM, "prompt": "hi"}, ["system", "user"]),
        ({"system_prompt": SYSTEM, "messages": [USER]}, ["system", "user"]),
        ({"system": SYSTEM, "messages": [{"role": "system", "content": SYSTEM}, USER]}, ["system", "user"]),
        ({"system": SYSTEM, "messages": [USER, ANSWER]}, ["system", "user"]),
        ({"system": SYSTEM, "conversations": TALK}, ["system", "user"]),
        ({"conversations": [{"from": "system", "value": SYSTEM}, *TALK]}, ["system", "user"]),
    ],
)
def test_a_system_prompt_beside_the_prompt_is_sent(row: dict[str, Any], roles: list[str], tmp_path: Path) -> None:
    first = read(tmp_path, "a.json", as_list(row)).requests[0]
    assert [message["role"] for message in first.prompt] == roles and first.prompt[0]["content"] == SYSTEM


@pytest.mark.parametrize(
    "row",
    [
        {"system": SYSTEM, "prompt_token_ids": [5, 6]},
        {"system": SYSTEM, "messages": [{"role": "system", "content": "Be long."}, USER]},
        {"system": SYSTEM, "system_prompt": "Be long.", "prompt": "hi"},
        {"system": ["Be short."], "prompt": "hi"},
    ],
)
def test_a_system_prompt_that_cannot_be_sent_is_refused(row: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 1: .*system"):
        read(tmp_path, "a.jsonl", as_lines(row))


def test_content_as_parts_is_its_text_and_an_image_is_refused(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Where "}, {"type": "text", "text": "is it?"}]
    row = {"messages": [{"role": "user", "content": parts}]}
    assert read(tmp_path, "a.jsonl", as_lines(row)).requests[0].prompt == [USER]
    row["messages"][0]["content"] = [*parts, {"type": "image_url", "image_url": {"url": "a.png"}}]
    with pytest.raises(UsageError, match=r"line 1: .*image_url"):
        read(tmp_path, "a.jsonl", as_lines(row))


PROMPTS = ["hello there", 'say "yes", twice']


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", 'hello there\n\nsay "yes", twice\n'),
        ("a.csv", 'prompt,max_tokens\nhello there,\n"say ""yes"", twice",\n'),
        ("a.csv", 'id;prompt\r\n1;hello there\r\n2;"say ""yes"", twice"\r\n'),
        ("a.csv", '\n\nprompt\nhello there\n\n"say ""yes"", twice"\n'),
        ("a.tsv", 'prompt\tid\nhello there\t1\n"say ""yes"", twice"\t2\n'),
        ("a.json", json.dumps(PROMPTS)),
        ("a.jsonl", "".join(f"{json.dumps(prompt)}\n" for prompt in PROMPTS)),
        ("a.txt", "".join(f"{json.dumps({'prompt': prompt})}\n" for prompt in PROMPTS)),
        ("a.csv", "".join(f"{json.dumps({'prompt': prompt})}\n" for prompt in PROMPTS)),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_prompts_come_in_each_form(name: str, text: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert [request.prompt for request in requests_file.read(path).requests] == PROMPTS


def test_a_tables_cells_are_numbers_messages_and_text(tmp_path: Path) -> None:
    rows = "prompt,max_tokens,system\n[INST] 12 [/INST],16.0,\n12,8,Be short.\n"
    first, second = read(tmp_path, "a.csv", rows).requests
    assert (first.prompt, first.max_tokens) == ("[INST] 12 [/INST]", 16)
    assert second.prompt == [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "12"}]
    chat = read(tmp_path, "a.csv", as_table({"messages": [USER], "max_tokens": 7}))
    assert [(request.kind, request.prompt, request.max_tokens) for request in chat.requests] == [
        ("messages", [USER], 7)
    ] * 3


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "question,answer\nWhere?,There\n", "prompt_token_ids"),
        ("a.csv", "prompt,max_tokens\nhello, there,16\n", "line 2: 3 cells"),
        ("a.csv", "prompt\n" + "x" * (2**22 + 1) + "\n", "line 2: field larger"),
        ("a.csv", "", "no column prompt"),
        ("a.txt", "\n\n", "no request"),
        ("a.json", '["hello", 7]', "record 2: not an object"),
    ],
)
def test_what_is_wrong_in_a_table_is_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, name, text)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    if "answer" in text:
        assert [request.prompt for request in read(tmp_path, name, text, "question").requests] == ["Where?"]


# ---- messages stay messages


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}{% endfor %}"
)
CHAT = [{"role": "system", "content": SYSTEM}, USER]


def library(tmp_path: Path, tokenizer: Any, *rows: Any, **flags: Any) -> Any:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    chosen = {"model": "demo", "mode": "performance", "workload": str(path), **flags}
    return custom.load(RunConfig(**chosen), tokenizer)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(RunConfig(model="demo"))


@pytest.mark.parametrize(("salt", "processes"), [(None, 1), ("start", 1), ("start", 2)])
def test_a_server_of_the_chat_api_gets_the_messages_as_they_are(
    tmp_path: Path, tokenizer: Any, salt: str | None, processes: int
) -> None:
    with client(
        fake := Fake(token_ids=False, extras=False), endpoint_api="chat", scenario="server", processes=processes
    ) as engine:
        made = library(
            tmp_path, tokenizer, {"messages": CHAT}, endpoint=(fake.address,), endpoint_api="chat", salt=salt
        )
        prompt, most = made.with_test_salt("test", redraw=True).request(0, 0)
        engine.run(whole(engine.stream(prompt, most)), lambda: None)
    (sent,) = fake.asked
    assert [message["role"] for message in sent["messages"]] == ["system", "user"] and "prompt" not in sent
    first, last = (message["content"] for message in sent["messages"])
    assert last == USER["content"] and first.endswith(SYSTEM)
    assert (first != SYSTEM) == bool(salt)


def test_elsewhere_the_messages_are_rendered(tmp_path: Path, tokenizer: Any) -> None:
    made = library(tmp_path, tokenizer, {"messages": CHAT}, endpoint=("http://h/v1",))
    assert not isinstance(made.prompts[0], MessagePrompt)
    with client(fake := Fake(token_ids=False, extras=False)) as engine:
        engine.run(whole(engine.stream(made.prompts[0], 4, is_whole=True)), lambda: None)
    assert fake.asked[0]["prompt"] == "System: Be short.\nUser: Where is it?\nAssistant:"


def test_a_chat_that_the_tokenizers_template_refuses_is_the_servers_to_judge(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(RunConfig(model="demo"))
    tokenizer.chat_template = "{{ raise_exception('no system prompt') }}"
    flags = {"endpoint": ("http://h/v1",)}
    made = library(tmp_path, tokenizer, {"messages": CHAT}, **flags, endpoint_api="chat")
    assert made.prompts[0].messages == tuple(CHAT)
    with pytest.raises(UsageError, match="no system prompt"):
        library(tmp_path, tokenizer, {"messages": CHAT}, **flags)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "<|begin_of_text|>hello there"},
        {"prompt": "<|begin_of_text|><|begin_of_text|>hello"},
        {"messages": CHAT},
    ],
)
def test_a_rendered_prompt_begins_once(tmp_path: Path, row: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(RunConfig(model="demo"))
    tokenizer.chat_template = TEMPLATE
    (prompt,) = library(tmp_path, tokenizer, row).prompts
    assert prompt[0] == tokenizer.bos_token_id
    assert prompt.count(tokenizer.bos_token_id) == max(1, str(row).count("<|begin_of_text|>"))


def test_a_rendered_prompt_that_the_server_wraps_again_is_told(tmp_path: Path, tokenizer: Any) -> None:
    rows = [{"prompt": "hello<|end_of_text|>"}, {"prompt": "<|begin_of_text|>hello"}, {"prompt_token_ids": [703, 5]}]
    flags = {"endpoint": ("http://h/v1",)}
    notes = library(tmp_path, tokenizer, *rows, **flags, endpoint_api="chat").request_set.notes
    (told,) = (note for note in notes if "--endpoint-api completions" in note)
    assert " template already: 2; " in told
    assert library(tmp_path, tokenizer, *rows, **flags).request_set.notes == (custom.UNCHECKED_IDS,)
