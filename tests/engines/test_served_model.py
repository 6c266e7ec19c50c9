"""Which model a server is asked for, and whether it is the one that was named."""

import asyncio
from typing import Any

import pytest

from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.engines import discovery
from harness.engines.client import connect
from tests.conftest import tells
from tests.support.fake_servers import Fake, serving

QWEN = "Qwen/Qwen2.5-7B-Instruct"


def served(config: dict[str, Any], **fake: Any) -> RunConfig:
    with serving(server := Fake(**fake)):
        return discovery.config_of_served_model(RunConfig(endpoint=(server.address,), **config), print)


def test_names_with_one_root_are_one_model() -> None:
    assert served({"model": "demo"}, models=("llama-8b", "gpt-3.5-turbo"), root="/models/llama").model == "demo"
    with pytest.raises(UsageError) as error:
        served({"model": "demo"}, models=("llama-8b", "gpt-3.5-turbo"))
    assert tells(str(error.value), "llama-8b, gpt-3.5-turbo", "--served-model-name") and ".." not in str(error.value)


def test_a_name_that_was_given_is_asked_for() -> None:
    config = {"model": "demo", "served_model_name": "b"}
    assert served(config, models=("a", "b")).served_model_name == "b"
    assert served(config, models=("a", "c")).served_model_name == "b"


@pytest.mark.parametrize(
    ("flags", "listed", "asked"),
    [
        ({}, "unknown", "model"),  # a router that does not know its workers' model: the folder of --model
        ({"served_model_name": "llama"}, "unknown", "llama"),
        ({"served_model_name": "llama"}, "other", "llama"),
        ({}, "llama-8b", "llama-8b"),
    ],
)
def test_the_model_that_requests_name(flags: dict[str, Any], listed: str, asked: str) -> None:
    with serving(server := Fake(models=(listed,))):
        config = discovery.config_of_served_model(RunConfig(endpoint=(server.address,), model="demo", **flags), print)

        async def discovered() -> discovery.Server:
            async with connect(config) as session:
                return await discovery.Discovery(config, session).discover(config.endpoint[0], 64)

        assert asyncio.run(discovered()).model.rpartition("/")[2] == asked


@pytest.mark.parametrize(
    ("listed", "name"),
    [
        ({"owned_by": "nvidia", "object": "object"}, "NVIDIA Dynamo"),
        ({"owned_by": "nvidia", "object": "model"}, "an unknown engine (Server: uvicorn)"),
        ({"owned_by": "vllm", "object": "model"}, "vLLM"),
    ],
)
def test_an_engine_is_known_by_how_it_lists_its_models(listed: dict[str, object], name: str) -> None:
    assert discovery.engine_name(listed, "uvicorn") == name


@pytest.mark.parametrize(
    ("flags", "listed", "other"),
    [
        ({"model": "demo"}, {"id": QWEN, "root": QWEN}, QWEN),
        ({"model": "demo"}, {"id": "llama", "root": QWEN}, QWEN),
        ({"model": "demo"}, {"id": "llama", "root": "/models/llama"}, ""),  # may be the one
        ({"model": "demo"}, {"id": "llama"}, ""),
        ({"model": QWEN}, {"id": "q", "root": "/data/qwen2.5-7b-instruct/"}, ""),
        ({"model": "/data/Qwen2.5-7B-Instruct"}, {"id": QWEN}, ""),
        ({"model": "demo", "served_model_name": QWEN}, {"id": QWEN}, ""),  # the user says that it is
        ({"model": "demo"}, {}, ""),
    ],
)
def test_another_model_than_was_named(flags: dict[str, Any], listed: dict[str, object], other: str) -> None:
    assert discovery.other_model(RunConfig(endpoint=("http://h/v1",), **flags), listed) == other
