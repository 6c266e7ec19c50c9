"""What servers behind an endpoint show before a run: their models, and one answer, asked for as a run asks."""

import re
from dataclasses import dataclass, replace
from functools import cache

from harness.common.errors import BenchmarkError, UsageError, first_line
from harness.common.schema import gpu_names
from harness.config import checkpoint
from harness.config.run import RunConfig
from harness.engines import discovery
from harness.engines.openai import GREETING, OpenAI
from harness.monitoring import exporter
from harness.runs.delivery import Delivery, Exchange

TRIED_TOKENS = 32  # of the answer that shows how a server delivers


def models(config: RunConfig) -> str:
    names = discovery.list_models(config)
    return f"{', '.join(config.endpoint)}: {', '.join(names) or 'lists no model'}"


@dataclass(frozen=True)
class Tried:
    """What servers showed in one streamed answer, and their pages of metrics."""

    engine: OpenAI
    delivery: Delivery | None
    metrics: str


@cache
def tried(config: RunConfig) -> Tried:
    """The servers, asked as a run asks. Raises UsageError, EndpointError."""
    served = discovery.with_served_model(config)
    one = {"scenario": "concurrency", "concurrency": 1, "arrivals": None, "server_target_qps": "auto"}
    served = replace(served, **one, given=frozenset())  # type: ignore[arg-type]  # one streamed answer shows them
    engine, exchange = OpenAI(served, served.least_context, checkpoint.load_tokenizer(served)), Exchange(0.0)

    async def ask() -> None:
        async for _ in engine.stream(engine.tokenizer.encode(GREETING), TRIED_TOKENS, exchange):
            pass

    try:
        engine.start()
        engine.wait(engine.spawn(ask()), lambda: None)
        return Tried(engine, exchange.delivery, "\n".join(engine.prometheus_metrics()))
    finally:
        engine.close()


def telemetry(config: RunConfig) -> str:
    return gpu_names(exporter.read(config.telemetry_url)[1])


def api(config: RunConfig) -> str:
    args = tried(config).engine.args
    return f"{args['server']}; {args['exchange']}"


def prefix_cache(config: RunConfig) -> str:
    found = re.search(r'enable_prefix_caching="(\w+)"', tried(config).metrics)
    if found is None:
        return "its metrics do not show it; each run reports what came from a cache"
    hint = ": --no-enable-prefix-caching at the server, or --salt start, where prompts are repeated"
    return f"on{hint}" if found[1] == "True" else "off"


def delivery(config: RunConfig) -> str:
    found = tried(config).delivery
    if found is None or not found.messages:
        return "not streamed"
    said = f"{found.tokens} tokens in {found.messages} message{'s' if found.messages > 1 else ''}"
    if found.is_bundled:
        raise UsageError(f"{said}: the server buffers, so TTFT and TPOT would measure its buffer")
    return said


def chat_template(config: RunConfig) -> str:
    wants = config.endpoint_api == "chat"
    try:
        tried(config if wants else replace(config, endpoint_api="chat"))
    except BenchmarkError as error:
        if wants:
            raise
        return f"none; --endpoint-api chat would need one: {first_line(error).removesuffix('.')}"
    return "the server has one"
