"""Probe servers behind an endpoint before a run: their models, and one answer, asked for as a run asks."""

import re
from functools import cache
from typing import NamedTuple

from harness.config.engine import EndpointFlags
from harness.config.run import RunConfig
from harness.core.errors import BenchmarkError, UsageError
from harness.core.formatting import plural
from harness.core.message_text import first_line
from harness.engines import answer_delivery
from harness.engines.openai import PROBE_TEXT, OpenAI

DELIVERY_TOKENS = 32  # tokens of the answer that shows how a server delivers


class ServerProbe(NamedTuple):
    """One streamed answer of servers, and their pages of metrics."""

    engine: OpenAI
    delivery: answer_delivery.Delivery | None
    metrics: str


@cache
def probe_servers(config: RunConfig) -> ServerProbe:
    """Ask the servers for one streamed answer, as a run does it.

    Return the client, which knows by then how they take a prompt and is closed, how they delivered the answer, and
    their metrics. Raises UsageError or EndpointError if they do not answer. The result is cached, as several checks use
    it.
    """
    server_flags = RunConfig.non_default_settings(config.values(EndpointFlags.model_fields))
    # The engine takes the settings of a run, which must have a load.
    probe_config = RunConfig.from_mapping(server_flags | {"concurrency": 1})
    engine = OpenAI(probe_config, probe_config.least_context)  # the client through which a run asks its servers
    exchange = answer_delivery.Exchange()

    async def ask() -> None:
        """Ask for an answer, whose delivery is noted in `exchange`. The answer itself is dropped."""
        async for _ in engine.stream(engine.tokenizer.encode(PROBE_TEXT), DELIVERY_TOKENS, exchange):
            pass

    try:
        engine.start()
        engine.run(ask(), lambda: None)  # A run would check its progress meanwhile; a single answer needs no check.
        return ServerProbe(engine, exchange.delivery, "\n".join(engine.prometheus_metrics()))
    finally:
        engine.close()


def api_text(config: RunConfig) -> str:
    """Return the name of the server and the way in which it takes prompts."""
    args = probe_servers(config).engine.args
    return f"{args['server']}; {args['exchange']}"


def prefix_cache(config: RunConfig) -> str:
    """Return in words whether the server's prefix cache is on, as its metrics say.

    If it is on, the text also says how to turn it off or avoid it.
    """
    setting = re.search(r'enable_prefix_caching="(\w+)"', probe_servers(config).metrics)
    if not setting:
        return "its metrics do not show it; each run reports what came from a cache"
    if setting[1] != "True":
        return "off"
    return "on: --no-enable-prefix-caching at the server, or --salt start, where prompts are repeated"


def delivery_text(config: RunConfig) -> str:
    """Return in how many messages the server sent an answer of how many tokens.

    Raises UsageError, with the remedy, if many tokens came at once: TTFT and TPOT would then measure what held the
    tokens back.
    """
    delivery = probe_servers(config).delivery
    if not delivery or not delivery.messages:
        return "not streamed"
    sentence = f"{plural(delivery.tokens, 'token')} in {plural(delivery.messages, 'message')}"
    if not delivery.is_bundled:
        return sentence
    if delivery.messages < delivery.tokens:  # A message had several tokens, so the server itself bundles them.
        raise UsageError(
            f"{sentence}: the server buffers, so TTFT and TPOT would measure its buffer: no buffering in proxies; "
            "vLLM: --stream-interval 1"
        )
    raise UsageError(
        f"{sentence}, most of them at once: something held them back, and TTFT and TPOT would measure that: no "
        "buffering in proxies, and an idle machine for the server and for this client"
    )


def chat_template(config: RunConfig) -> str:
    """Return whether the server has a chat template, in words.

    If the run uses the chat API, the server must have one: without one, its error is raised. Another run needs none:
    without one, the text has the error that --endpoint-api chat would get.
    """
    if config.endpoint_api == "chat":
        probe_servers(config)
        return "the server has one"
    try:
        probe_servers(config.with_settings(endpoint_api="chat"))
    except BenchmarkError as error:
        reason = first_line(error).removesuffix(".")
        return f"none, nor is one needed; --endpoint-api chat would get: {reason}"
    return "the server has one"
