"""What a message of an answer may hold: parts, thinking under several names, calls, half a character."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import EndpointError
from harness.engines.answer_text import message_text, whole_characters
from harness.engines.completions import EventReader, completion_chunk
from tests.engines.test_openai import answer, client, delivery
from tests.support.fake_servers import Fake

TEXT_ALONE: dict[str, Any] = {"token_ids": False, "extras": False}


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"content": " a"}, " a"),
        ({"content": None}, ""),
        ({"content": ""}, ""),
        ({"role": "assistant"}, ""),
        ({"content": [{"type": "text", "text": " a"}, {"type": "text", "text": " b"}]}, " a b"),
        ({"content": [" a", " b"]}, " a b"),
        ({"content": {"type": "text", "text": " a"}}, " a"),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": " a"}], "closed": True}]}, " a"),
        ({"content": [{"type": "reference", "reference_ids": [1]}, {"type": "text", "text": " a"}]}, " a"),
        ({"content": [{"type": "image_url", "image_url": {"url": "x"}}]}, ""),
        ({"reasoning": " a"}, " a"),
        ({"reasoning_content": " a"}, " a"),
        ({"reasoning": " a", "reasoning_content": " a"}, " a"),  # vLLM sends both for a while
        ({"reasoning": " a", "reasoning_details": [{"type": "reasoning.text", "text": " a"}]}, " a"),  # OpenRouter
        ({"reasoning_details": [{"type": "reasoning.summary", "summary": " a"}]}, " a"),
        ({"reasoning_content": " a", "thinking_blocks": [{"type": "thinking", "thinking": " a"}]}, " a"),  # LiteLLM
        ({"reasoning": {"content": " a"}}, " a"),
        ({"thinking": " a", "content": " b"}, " a b"),
        ({"refusal": " no"}, " no"),
        ({"audio": {"id": "x", "transcript": " a"}}, " a"),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": '{"x"'}}]}, 'f{"x"'),
        ({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}, ": 1}"),
        ({"function_call": {"name": "f", "arguments": "{}"}}, "f{}"),
        ({"content": 7, "annotations": [], "reasoning": None}, ""),
        (" a", " a"),
        (None, ""),
    ],
    ids=str,
)
def test_the_text_of_a_message_is_read_whatever_holds_it(delta: Any, text: str) -> None:
    assert message_text({"index": 0, "delta": delta}) == text
    assert message_text({"index": 0, "message": delta}) == text


def test_a_completions_text_is_its_text() -> None:
    assert message_text({"text": " a", "logprobs": None}) == " a"
    assert message_text({"text": None}) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "type", "content", "thinking", "function"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(delta=st.dictionaries(st.sampled_from(["content", "reasoning", "tool_calls", "audio", "refusal"]), JSON))
def test_any_message_is_text_or_an_error_of_one_line(delta: dict[str, Any]) -> None:
    try:
        found = completion_chunk({"choices": [{"delta": delta, "finish_reason": None}]}, "http://h/v1")
    except EndpointError as error:
        assert "\n" not in str(error)
    else:
        assert isinstance(found.text, str)


@given(text=st.text(max_size=12), cuts=st.lists(st.integers(0, 30), max_size=6))
def test_text_that_was_cut_anywhere_in_utf_16_is_whole_again(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-16-le")
    edges = [0, *sorted(2 * min(cut, len(data) // 2) for cut in cuts), len(data)]
    parts = [data[a:b].decode("utf-16-le", "surrogatepass") for a, b in pairwise(edges)]
    messages = [json.dumps({"choices": [{"delta": {"content": part}}]}).encode() for part in parts]
    assert whole_characters(completion_chunk(message, "h").text for message in messages) == (text, "")


def event(delta: Any, end: str | None = None) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': end}]})}\n\n"


HALVES = ("\ud83d", "\ude00")


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("before", [" a", ""])
def test_an_emoji_in_two_messages_is_one(before: str, processes: int) -> None:
    frames = (event({"content": before}), *(event({"content": half}) for half in HALVES), event({}, "stop"))
    chat = {"endpoint_api": "chat", "scenario": "server", "processes": processes}
    with client(Fake(frames=(*frames, "data: [DONE]\n\n"), **TEXT_ALONE), **chat) as engine:
        tokens = [token for part in answer(engine, stream=True) for token in part]
        assert engine.tokenizer.decode(tokens, skip_special_tokens=True) == f"{before}\U0001f600"


def test_half_a_character_at_the_end_is_one_that_cannot_be_shown() -> None:
    frames = (event({"content": " a"}), event({"content": HALVES[0]}), event({}, "length"), "data: [DONE]\n\n")
    with client(Fake(frames=frames, **TEXT_ALONE), endpoint_api="chat", scenario="server") as engine:
        tokens = [token for part in answer(engine, stream=True) for token in part]
        assert engine.tokenizer.decode(tokens) == " a\ufffd"


def test_a_message_that_is_cut_is_no_half_of_a_character() -> None:
    (damaged,) = EventReader("http://h/v1").feed(b'data: {"choices": [{"delta": {"content": "\\ud83d"}\n\n')
    with pytest.raises(EndpointError, match="an invalid completion"):
        completion_chunk(damaged, "http://h/v1")


def test_thinking_in_parts_is_the_first_token() -> None:
    thought = {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": " a"}]}]}
    frames = (event(thought), event({"content": " b"}), event({"content": " c"}, "length"), "data: [DONE]\n\n")
    with client(Fake(frames=frames, **TEXT_ALONE), endpoint_api="chat", scenario="server") as engine:
        found = delivery(engine, stream=True)
    assert (found.client_tokens, found.first_tokens, found.messages) == (3, 1, 3)
