"""What servers tell of themselves: readiness, model and engine before a run, their counters during it."""

import asyncio
import contextlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Literal, NamedTuple

from aiohttp import ClientError, ClientSession, ClientTimeout
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from harness.config import checkpoint
from harness.config.engine import join_url
from harness.config.models import DEFAULT_MODEL, MODELS
from harness.config.run import RunConfig
from harness.core.document import Measured
from harness.core.errors import EndpointError, UsageError
from harness.core.files import did_you_mean
from harness.engines.client import connect, key_hint, read_whole, refusal, why_unreached
from harness.engines.completions import NAMES, VERSIONS, RequestFormat, error_message

ANSWER_S = 10.0  # for what a server tells of itself
READY_S = 1.0  # between two tries of a server that loads
PAGE_S = 1.0  # for a page that it need not have
BUSY, BUSY_S, PAUSE_S = (429, 502, 503, 504), 20.0, 0.5  # statuses that may pass; for how long, and between two tries
UNSTARTED_WEIGHT = 8  # of a request without a first token, in requests: AMD's of MLPerf v6.1; benchmarks.balance
LONGEST_NAME = 60  # characters of what a server calls itself


@dataclass
class Server:
    """One endpoint: its address, what it reports of itself, and how many requests it is answering."""

    address: str
    model: str
    name: str
    version: str
    other_model: str = ""  # that it serves, where that is surely not the one that was named
    form: RequestFormat | None = None
    in_flight: int = 0
    unstarted: int = 0  # of them, those without a first token
    tells_cache: bool = True  # whether each answer so far says what of its prompt came from a cache

    @property
    def load(self) -> int:
        """A request that waits for its first token weighs as much as several that stream theirs."""
        return self.in_flight + UNSTARTED_WEIGHT * self.unstarted


Say = Callable[[str], object]  # shows a line
Model = Mapping[str, object]  # what a server's list tells of one


@dataclass(frozen=True)
class Discovery:
    """Asks the servers of a run, over its session."""

    config: RunConfig
    session: ClientSession
    say: Say = print
    begun: float = field(default_factory=time.monotonic)

    async def ready(self, address: str) -> None:
        """Waits, as long as --wait-ready says, for a server that loads: it refuses connections, answers 503 or lists no
        model.

        What it waits for is shown at once, and again where it changes. What is wrong after that, `discover` reports.
        """
        until, before = self.begun + (self.config.wait_ready or 0.0), ""
        while time.monotonic() < until:
            try:
                status, listed, _ = await self.get(address, "/models")
                if listed.get("data") or status in (401, 403):
                    return
                said = f"status {status}, no model listed"
            except UsageError as error:
                said = str(error).removeprefix(f"--endpoint {address}: ")
            if said != before:
                self.say(f"waiting for {address} (up to {until - time.monotonic():.0f} s): {said}")
            before = said
            await asyncio.sleep(READY_S)

    async def discover(self, address: str, max_model_len: int) -> Server:
        """What a server tells of itself. Raises UsageError where there is none, or it serves too short a context."""
        config = self.config
        found, header = await self.models(address)
        named = config.served_model_name
        wanted = (named,) if named else (config.model, config.model_path)
        chosen = next((item for name, item in found.items() if name in wanted), {})
        if not chosen and not named and is_one(found):
            chosen = next(iter(found.values()))
        most = chosen.get("max_model_len")
        if isinstance(most, int) and most < max_model_len:
            raise UsageError(
                f"--endpoint {address} serves contexts of {most:,} tokens; this run needs {max_model_len:,}: "
                "start the server with a longer one, or give --max-model-len."
            )
        name = NAMES.get(str(chosen.get("owned_by")), f"unknown engine (Server: {header})" if header else "unknown")
        model = str(chosen.get("id", named or config.model_path))
        return Server(address, model, name, await self.version(address), other_model(config, chosen))

    async def models(self, address: str) -> tuple[dict[str, Model], str]:
        """The models that a server lists, by name, and its Server header. Raises UsageError where it wants a key."""
        until = time.monotonic() + BUSY_S
        while (reply := await self.get(address, "/models"))[0] in BUSY and time.monotonic() < until:
            await asyncio.sleep(PAUSE_S)
        status, listed, header = reply
        if status in (401, 403):
            raise UsageError(f"--endpoint {address} {key_hint(header)} ({status}).")
        models = listed.get("data")
        found = models if isinstance(models, list) else []
        return {str(item["id"]): item for item in found if isinstance(item, dict) and "id" in item}, header

    async def version(self, address: str) -> str:
        """The engine's version where the server tells, else empty."""
        for path, key in VERSIONS:
            with contextlib.suppress(UsageError):  # a page that it need not have
                status, reply, _ = await self.get(join_url(address, "", outside=True), path, PAGE_S)
                if status == 200 and isinstance(reply.get(key), str):
                    return error_message(reply[key], LONGEST_NAME)
        return ""

    async def get(self, address: str, path: str, limit_s: float = ANSWER_S) -> tuple[int, Model, str]:
        """Status, JSON object (empty where there is none) and Server header, of 401 and 403 WWW-Authenticate. Raises
        UsageError without an answer."""
        try:
            async with self.session.get(
                join_url(address, path), timeout=ClientTimeout(total=limit_s), allow_redirects=False
            ) as response:
                if path == "/models" and 300 <= response.status < 400:
                    raise UsageError(f"--endpoint {address} answers {response.status}: {await refusal(response)}.")
                header = response.headers.get("WWW-Authenticate" if response.status in (401, 403) else "Server", "")
                try:
                    reply = json.loads(await read_whole(response, address + path))
                except (ValueError, RecursionError):
                    reply = None
                return response.status, reply if isinstance(reply, dict) else {}, error_message(header, LONGEST_NAME)
        except TimeoutError:
            raise UsageError(f"--endpoint {address}: no answer within {limit_s:g} s.") from None
        except EndpointError as error:
            raise UsageError(f"--endpoint {error}.") from None
        except ClientError as error:
            raise UsageError(f"--endpoint {address}: {why_unreached(error, address)}.") from None


def is_one(models: Mapping[str, Model]) -> bool:
    """Whether the models of a list are one: also under several names, which share its root."""
    roots = {item.get("root") for item in models.values()}
    return len(models) == 1 or (len(roots) == 1 and None not in roots)


def other_model(config: RunConfig, listed: Model) -> str:
    """The repository of the hub that a server lists as its model, where it is not the model that was named; what a
    server calls by another name of its own may be that model."""
    names = [name for name in (listed.get("root"), listed.get("id")) if isinstance(name, str)]
    named = {PurePath(name).name.lower() for name in (config.model, config.model_path)}
    if config.served_model_name or any(PurePath(name).name.lower() in named for name in names):
        return ""
    return next((error_message(name) for name in names if "/" in name.strip("/.") and name[0] not in "/."), "")


def list_models(config: RunConfig, say: Say = print) -> dict[str, Model]:
    """The models that all servers of a run serve, by name, asked before anything is loaded. Raises UsageError.

    A server that loads is waited for, as --wait-ready says; one that is not there ends the run here.
    """

    async def ask() -> dict[str, Model]:
        async with connect(config) as session:
            discovery = Discovery(config, session, say)
            lists = []
            for address in config.endpoint:
                await discovery.ready(address)
                lists.append((await discovery.models(address))[0])
            return {name: model for name, model in lists[0].items() if all(name in listed for listed in lists)}

    return asyncio.run(ask())


def with_served_model(config: RunConfig, say: Say = print) -> RunConfig:
    """The configuration with the model that the endpoints serve, where --model names none. Raises UsageError.

    Where the server goes by an alias, the default has to do: its tokenizer is what counts.
    """
    if not config.endpoint:
        return config
    models = list_models(config, say)
    names, named = [*models], config.served_model_name
    if named and names and named not in names:
        raise UsageError(f"--served-model-name {named}: the server serves {', '.join(names)}.")
    if named or {config.model, config.model_path} & set(names):
        return config
    if names and not is_one(models):
        raise UsageError(
            f"the server serves {', '.join(names)}, not --model {config.model}{did_you_mean(config.model, names)} "
            "--served-model-name names the one to ask."
        )
    if config.model != DEFAULT_MODEL or not names:
        return config
    served = config.changed(model=names[0]) if "/" in names[0] or names[0] in MODELS else config
    try:
        checkpoint.load_tokenizer(served)
    except UsageError:
        raise UsageError(
            f"the server serves {names[0]}, but its tokenizer was not found: name a folder or a hub name that has it "
            "with --model."
        ) from None
    return served


async def read_page(address: str, session: ClientSession) -> str:
    """The text of a page, whatever is behind the address. Raises EndpointError where it does not come in time."""
    try:
        async with session.get(address, timeout=ClientTimeout(total=PAGE_S), allow_redirects=False) as response:
            if response.status != 200:
                raise EndpointError(f"status {response.status}")
            return (await read_whole(response, address)).decode(errors="replace")
    except TimeoutError:
        raise EndpointError(f"no answer within {PAGE_S:g} s") from None
    except (ClientError, ConnectionError) as error:
        raise EndpointError(error_message(error) or type(error).__name__) from None


# What engines tell of themselves in Prometheus' text format, as columns of one table.
Readings = dict[str, list[float]]  # by metric, of each replica


class Column(NamedTuple):
    """A column of the table, and the metrics it is made of, by whichever name an engine has for it.

    sum, mean: of all replicas, now; rate: the increase since the last time, a second; ratio: the increase in percent,
    or whatever `scale` says, of that of the metrics `of_all`.
    """

    name: str
    how: Literal["sum", "mean", "rate", "ratio"]
    metrics: str
    scale: float = 1.0
    of_all: str = ""


# The older names last: vLLM's before 0.11, SGLang's before 0.5.
INTER_TOKEN = (
    "vllm:inter_token_latency_seconds{0} sglang:inter_token_latency_seconds{0} vllm:time_per_output_token_seconds{0} "
    "sglang:time_per_output_token_seconds{0}"
)
CACHE = Column(
    "prefix_hit_percent",
    "ratio",
    "vllm:prefix_cache_hits_total vllm:gpu_prefix_cache_hits_total vllm:external_prefix_cache_hits_total "
    "sglang:cached_tokens_total",
    of_all="vllm:prefix_cache_queries_total vllm:gpu_prefix_cache_queries_total sglang:prompt_tokens_total",
    scale=100,
)
GENERATED = "vllm:generation_tokens_total sglang:generation_tokens_total llamacpp:tokens_predicted_total"
COLUMNS = (
    Column("requests_running", "sum", "vllm:num_requests_running sglang:num_running_reqs llamacpp:requests_processing"),
    Column("requests_waiting", "sum", "vllm:num_requests_waiting sglang:num_queue_reqs llamacpp:requests_deferred"),
    Column(
        "kv_cache_percent",
        "mean",
        "vllm:kv_cache_usage_perc vllm:gpu_cache_usage_perc sglang:token_usage llamacpp:kv_cache_usage_ratio "
        "trtllm_kv_cache_utilization",
        scale=100,
    ),
    CACHE,
    Column("inter_token_ms", "ratio", INTER_TOKEN.format("_sum"), of_all=INTER_TOKEN.format("_count"), scale=1000),
    Column("preemptions", "rate", "vllm:num_preemptions_total"),
    Column(
        "prompt_tokens_per_sec",
        "rate",
        "vllm:prompt_tokens_total sglang:prompt_tokens_total llamacpp:prompt_tokens_total",
    ),
    Column("generation_tokens_per_sec", "rate", GENERATED),
)
# What a request waits for before its first token, on average: its turn, and its own prompt. Histograms, in ms.
WAITS = tuple(
    Column(name, "ratio", f"vllm:request_{name}_time_seconds_sum", 1000, f"vllm:request_{name}_time_seconds_count")
    for name in ("queue", "prefill")
)
RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")  # each tells of its whole engine (SGLang)
SOURCES = frozenset(source for column in (*COLUMNS, *WAITS) for source in f"{column.metrics} {column.of_all}".split())


def row(before: Readings, now: Readings, seconds: float) -> list[Measured]:
    """The columns at a reading, so long after the one before; None where the engine does not tell, or there is nothing
    to compare with."""
    found, grown = list[Measured](), partial(increase, before, now)
    for column in COLUMNS:
        values = [value for source in column.metrics.split() for value in now.get(source, [])]
        total, over = {
            "sum": (sum(values), len(values) > 0),
            "mean": (sum(values), len(values)),
            "rate": (grown(column.metrics), seconds),
            "ratio": (grown(column.metrics), grown(column.of_all)),
        }[column.how]
        found.append(round(column.scale * total / over, 2) if total is not None and over else None)
    return found


def increase(before: Readings, now: Readings, metrics: str) -> Measured:
    """Of counters since a reading before; None where a reading has none of them."""
    common = [source for source in metrics.split() if source in now and source in before]
    if not common:
        return None
    return max(0.0, sum(sum(now[source]) - sum(before[source]) for source in common))


def growth(before: Sequence[str], after: Sequence[str]) -> Callable[[str], Measured]:
    """The increase of counters between two readings of all servers; None where a reading lacks a server, or them."""
    then, now = map(samples, (before, after) if len(before) == len(after) else ((), ()))
    return partial(increase, then, now)


def cached_percent(before: Sequence[str], after: Sequence[str]) -> Measured:
    """Of the prompt tokens between two readings, the percentage that came from the servers' prefix caches."""
    part, whole = map(growth(before, after), (CACHE.metrics, CACHE.of_all))
    return None if part is None or whole is None else CACHE.scale * part / max(1.0, whole)


def idle_replicas(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """How many replicas computed no token between two readings of all servers, of how many; 0 of 0 where a reading
    lacks one."""
    then, now = samples(before), samples(after)
    counts = [(then[source], now[source]) for source in GENERATED.split()]
    pairs = [pair for was, is_ in counts if len(was) == len(is_) for pair in zip(was, is_, strict=True)]
    return sum(first == last for first, last in pairs), len(pairs)


def mean_waits(before: Sequence[str], after: Sequence[str]) -> dict[str, float]:
    """Milliseconds of each of WAITS, the mean of the requests that ended between two readings; none unless all are
    reported."""
    grown, means = growth(before, after), {}
    for column in WAITS:
        if count := grown(column.of_all):
            means[column.name] = round(column.scale * (grown(column.metrics) or 0.0) / count, 3)
    return means if len(means) == len(WAITS) else {}


def samples(expositions: Iterable[str]) -> Readings:
    """The values of the metrics in SOURCES, one for each replica; a text that is no exposition counts as empty."""
    found = defaultdict(list)
    for text in expositions:
        with contextlib.suppress(ValueError):
            for name, _, values in fold(parse(text.replace("ray_vllm_", "vllm:"), SOURCES), RANKS):
                found[name].append(max(values))
    return found


def fold(rows: Iterable[Sample], parts: Collection[str]) -> Iterator[tuple[str, dict[str, str], list[float]]]:
    """Name, labels and values of rows that differ in nothing but the labels `parts`, which split one thing into
    several rows."""
    found = defaultdict(list)
    for row in rows:
        labels = frozenset((key, value) for key, value in row.labels.items() if key not in parts)
        found[row.name, labels].append(row.value)
    for (name, labels), values in found.items():
        yield name, dict(labels), values


def parse(text: str, names: Container[str]) -> Iterator[Sample]:
    """The samples of some metrics in Prometheus' text format. Raises ValueError for what is none."""
    lines = (line for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] in names)
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        yield from (sample for sample in family.samples if not math.isnan(sample.value))
