"""A server's own counts: each provider's true ones are read within 2 %, or left aside; never made up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.answer_delivery import COUNT_TOLERANCE, Delivery, ServerUse, TokenCounts
from harness.engines.server_usage import read_usage, usage_in
from tests.engines.test_openai import client, delivery
from tests.support.fake_servers import Fake

# By provider: `usage` of an answer, the tokens that came, and the true counts of prompt, answer and cache.
Truth = tuple[int | None, int | None, int | None]
PROVIDERS: dict[str, tuple[dict[str, Any], int, Truth]] = {
    "vLLM": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 64,
            "total_tokens": 1064,
            "prompt_tokens_details": {"cached_tokens": 900},
        },
        64,
        (1000, 64, 900),
    ),
    "vLLM without details": (
        {"prompt_tokens": 1000, "completion_tokens": 64, "total_tokens": 1064, "prompt_tokens_details": None},
        64,
        (1000, 64, None),
    ),
    "SGLang": (
        {"prompt_tokens": 1000, "completion_tokens": 64, "total_tokens": 1064, "reasoning_tokens": 48},
        64,
        (1000, 64, None),
    ),
    "OpenAI": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 64,
            "total_tokens": 1064,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 48, "rejected_prediction_tokens": 0},
        },
        16,
        (1000, 64, 0),
    ),
    "OpenAI's Responses": (
        {
            "input_tokens": 1000,
            "output_tokens": 64,
            "total_tokens": 1064,
            "input_tokens_details": {"cached_tokens": 900},
        },
        64,
        (1000, 64, 900),
    ),
    "DeepSeek": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 64,
            "total_tokens": 1064,
            "prompt_cache_hit_tokens": 900,
            "prompt_cache_miss_tokens": 100,
        },
        64,
        (1000, 64, 900),
    ),
    "xAI": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 16,
            "total_tokens": 1064,
            "prompt_tokens_details": {"cached_tokens": 900},
            "completion_tokens_details": {"reasoning_tokens": 48},
        },
        16,
        (1000, 64, 900),
    ),
    "thinking counted apart and sent": (
        {"prompt_tokens": 1000, "completion_tokens": 16, "total_tokens": 1064},
        64,
        (1000, 64, None),
    ),
    "Gemini": ({"prompt_tokens": 1000, "completion_tokens": 16, "total_tokens": 1064}, 16, (1000, 16, None)),
    "Anthropic by way of LiteLLM": (
        {
            "prompt_tokens": 1000,
            "completion_tokens": 64,
            "total_tokens": 1064,
            "prompt_tokens_details": {"cached_tokens": 900},
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 0,
        },
        64,
        (1000, 64, 900),
    ),
    "Anthropic": (
        {
            "input_tokens": 80,
            "output_tokens": 64,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 20,
        },
        64,
        (1000, 64, 900),
    ),
    "Portkey": (
        {
            "prompt_tokens": 80,
            "completion_tokens": 64,
            "total_tokens": 1064,
            "cache_read_input_tokens": 900,
            "cache_creation_input_tokens": 20,
        },
        64,
        (1000, 64, 900),
    ),
    "Moonshot": (
        {"prompt_tokens": 1000, "completion_tokens": 64, "total_tokens": 1064, "cached_tokens": 900},
        64,
        (1000, 64, 900),
    ),
    "Ollama": ({"prompt_tokens": 0, "completion_tokens": 64, "total_tokens": 64}, 64, (None, 64, None)),
    "Bedrock": (
        {"inputTokens": 1000, "outputTokens": 64, "totalTokens": 1064, "cacheReadInputTokens": 900},
        64,
        (1000, 64, 900),
    ),
    "Cohere": ({"tokens": {"input_tokens": 1000, "output_tokens": 64}}, 64, (1000, 64, None)),
    "numbers as text": (
        {"prompt_tokens": "1000", "completion_tokens": "64", "total_tokens": 1064.0},
        64,
        (1000, 64, None),
    ),
    "a total alone": ({"total_tokens": 1064}, 64, (None, None, None)),
    "nothing counted": (
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0, "prompt_tokens_details": {}},
        64,
        (None, None, None),
    ),
    "a cache of another prompt": (
        {"prompt_tokens": 10, "completion_tokens": 64, "total_tokens": 74, "cached_tokens": 900},
        64,
        (10, 64, None),
    ),
    "no numbers": (
        {"prompt_tokens": "many", "completion_tokens": -3, "total_tokens": 10.5, "cached_tokens": [1]},
        64,
        (None, None, None),
    ),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_counts_of_a_provider_are_its_true_ones_or_left_aside(provider: str) -> None:
    usage, came, truth = PROVIDERS[provider]
    stated = read_usage(usage)
    assert stated is not None
    found = stated.counts(came)
    for count, true in zip(found[:3], truth, strict=True):
        assert count == true if true is None else count == pytest.approx(true, rel=COUNT_TOLERANCE)


def test_what_a_total_leaves_open_is_said() -> None:
    usage, came, _ = PROVIDERS["Gemini"]
    stated = read_usage(usage)
    assert stated is not None
    deliveries = [Delivery(16, came, usage=stated.counts(came))] * 4
    (line,) = ServerUse.from_deliveries(deliveries).disagreements
    assert "48 tokens an answer" in line
    assert not [*ServerUse.from_deliveries([Delivery(64, 64, usage=TokenCounts(1000, 64))]).disagreements]


@given(
    prompt=st.integers(1, 5000),
    written=st.integers(1, 500),
    thought=st.integers(0, 500),
    share=st.floats(0, 0.99),
    apart=st.tuples(st.booleans(), st.booleans()),
    sends_thoughts=st.booleans(),
)
def test_counts_are_true_whichever_parts_are_counted_apart(
    prompt: int, written: int, thought: int, share: float, apart: tuple[bool, bool], sends_thoughts: bool
) -> None:
    """One of thinking and cache; where both are, the total is of neither."""
    cached, (thought_apart, cache_apart) = int(share * prompt), apart
    if thought_apart and cache_apart and thought and cached:
        return
    usage = {
        "prompt_tokens": prompt - cached * cache_apart,
        "completion_tokens": written + thought * (not thought_apart),
        "total_tokens": prompt + written + thought,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    stated = read_usage(usage)
    assert stated is not None
    found = stated.counts(written + thought * sends_thoughts)
    assert found == TokenCounts(prompt, written + thought, cached)


COUNTS = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}


@pytest.mark.parametrize(
    "message",
    [
        {"choices": [], "usage": COUNTS},
        {"choices": [{"index": 0, "delta": {}, "usage": COUNTS}]},
        {"choices": [{"index": 0, "delta": {}}], "x_groq": {"id": "r", "usage": COUNTS}},
        {"choices": [{"index": 0, "delta": {}}], "usage": None, "x_groq": {"usage": COUNTS}},
    ],
)
def test_counts_are_found_wherever_they_stand(message: dict[str, Any]) -> None:
    stated = usage_in(message)
    assert stated is not None and stated[:2] == (9, 4)


@pytest.mark.parametrize(
    "message", [{}, {"usage": None}, {"usage": "9"}, {"choices": [3], "x_groq": 7}, {"choices": None}]
)
def test_without_counts_there_are_none(message: dict[str, Any]) -> None:
    assert usage_in(message) is None


def test_a_cache_that_is_counted_apart_adds_nothing_to_an_answer() -> None:
    usage = '{"prompt_tokens": 80, "completion_tokens": 2, "total_tokens": 1002, "cache_read_input_tokens": 920}'
    frames = (
        'data: {"choices": [{"text": " a", "finish_reason": null}]}\n\n',
        'data: {"choices": [{"text": " b", "finish_reason": "length"}]}\n\n',
        f'data: {{"choices": [], "usage": {usage}}}\n\n',
        "data: [DONE]\n\n",
    )
    with client(Fake(frames=frames, token_ids=False, extras=False), scenario="server") as engine:
        found = delivery(engine, stream=True)
    assert (found.tokens, found.client_tokens, found.usage) == (2, 2, TokenCounts(1000, 2, 920))
