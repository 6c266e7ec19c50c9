"""What `--endpoint` takes, and what does not go with it."""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Annotated, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from harness.config.engine import EngineConfig
from harness.config.flags import SERVER, AtOnce, Rules, Seconds, above_0, flag
from harness.core.coerce import as_flag
from harness.core.errors import UsageError
from harness.core.reading import names_in
from harness.core.secrets import hide_text, note_address

PLAIN_KEYS = {"api-version", "version"}  # of an address's query: they hold no key
# What only an engine in this process can obey: a server was started with its own settings.
IN_PROCESS = names_in(
    """
    precision quantization kv_cache_dtype load_format tensor_parallel_size data_parallel_size gpu_memory_utilization
    max_num_seqs max_num_batched_tokens engine_arg engine_patch profile
    """
)
ENDPOINT_ONLY = names_in(
    """
    endpoint_api request_timeout wait_ready max_in_flight max_failed metrics_url telemetry_url served_model_name
    new_connections
    """
)


class ServerFlags(EngineConfig):
    """The model, and the engine that serves it: in this process, or a server that already runs."""

    endpoint: tuple[str, ...] = flag((), SERVER, "answers", metavar="URL", rank=14)
    """Address of a running server, as in http://host:8000/v1 (repeatable: they share the load). Its key, if any, is
    OPENAI_API_KEY in the environment."""
    request_timeout: Seconds = flag(600.0, SERVER, "nothing")
    """Seconds after which an unfinished request fails."""
    wait_ready: Annotated[float, above_0(24 * 3600)] | None = flag(None, SERVER, "nothing")
    """Seconds to wait for a server that is still loading. Unset: none."""
    max_in_flight: AtOnce = flag(1024, SERVER, "speed")
    """Maximum concurrent requests per endpoint; others wait in the client."""

    served_model_name: str = flag("", SERVER, "answers", metavar="NAME")
    """Name by which the server knows its model, where it is another than --model, whose tokenizer is used."""
    new_connections: bool = flag(False, SERVER, "speed")
    """Open a connection for each request: a balancer of connections keeps all requests of one with one replica."""

    RULES: ClassVar[Rules] = {
        "--backend openai needs the address of a server: --endpoint http://host:8000/v1.": lambda run: (
            run.backend == "openai" and not run.endpoint
        ),
        "--backend {run.backend} runs in this process: remove --endpoint, or use --backend openai.": lambda run: (
            run.backend != "openai" and run.endpoint
        ),
        "{run.in_vain}: only for an engine in this process; the server behind --endpoint has its own settings.": (
            lambda run: run.endpoint and run.in_vain
        ),
        "{run.in_vain}: only with --endpoint.": lambda run: run.in_vain,
    }

    def implications(self, given: frozenset[str]) -> dict[str, object]:
        backend = self.backend if self.backend != "auto" else "openai" if self.endpoint else "vllm"
        return {"backend": backend, "endpoint": check_addresses(self.endpoint)}

    @property
    def in_vain(self) -> str:
        """The flags that were given and play no part where the engine is: at an endpoint, or in this process."""
        names = IN_PROCESS if self.endpoint else ENDPOINT_ONLY
        return ", ".join(as_flag(name) for name in names if name in self.given)

    @property
    def is_in_process(self) -> bool:
        """Whether this process and those it starts compute the answers, on this machine's GPUs if it has any."""
        return self.backend == "vllm"


class EndpointFlags(ServerFlags):
    endpoint_api: Literal["completions", "chat"] = flag("completions", SERVER, "answers")
    """chat: send each prompt as a user's message. The server's chat template adds to it."""
    max_failed: str = flag("0", SERVER, "nothing")
    """Requests that may fail in a test: N or N%. They are counted and left out of latencies and tokens; never
    comparable with MLPerf. 0: the first failure ends the run."""
    metrics_url: tuple[str, ...] = flag((), SERVER, "nothing", metavar="URL")
    """Address of the server's Prometheus metrics, as in http://host:9090/metrics (repeatable). Unset: /metrics beside
    each --endpoint."""
    telemetry_url: tuple[str, ...] = flag((), SERVER, "nothing", metavar="URL")
    """DCGM exporter page of the server's GPUs, as in http://host:9400/metrics?gpu=0,1 or ?host=NAME (repeatable): GPU
    columns such as power and energy. Implies --extra-metrics."""


def may_fail(most: str, requests: int) -> int:
    """How many of a test's requests --max-failed lets fail. Raises UsageError for what is neither N nor N%."""
    number, percent = most.removesuffix("%"), most.endswith("%")
    try:
        value = float(number) if percent else int(number)
    except ValueError:
        value = -1
    if not 0 <= value <= (100 if percent else 2**40):
        raise UsageError(
            f"--max-failed takes a number of requests, as in 5, or a share of them, as in 1%; got {most!r}."
        )
    return int(requests * value / 100) if percent else int(value)


def check_addresses(addresses: Sequence[str], name: str = "--endpoint") -> tuple[str, ...]:
    """The addresses without a slash at their end. Raises UsageError; its message never holds a password."""
    cleaned = tuple(below(address.rstrip("/"), "") for address in addresses)
    for address in cleaned:
        if not is_usable(address):
            raise UsageError(f"{name} takes an address such as http://host:8000/v1; got {hide_text(address)!r}.")
        parts = urlsplit(address)
        if parts.username or parts.password or not set(query_of(parts.query)) <= PLAIN_KEYS or parts.fragment:
            raise UsageError(f"{name} takes a plain address; a key goes into OPENAI_API_KEY in the environment.")
        note_address(address)
        if cleaned.count(address) > 1:
            raise UsageError(f"{name} {address}: given twice.")
    return cleaned


def query_of(text: str) -> dict[str, str]:
    """Keys and values of an address's query; a word without `=` is a key, too."""
    return dict(part.partition("=")[::2] for part in re.split("[&;]", text) if part)


def exporter(url: str) -> tuple[str, list[str], str]:
    """The page of a GPU exporter, the GPUs on it that are the server's, and their host. Raises UsageError where neither
    is named: others' GPUs may be on it."""
    page, _, query = url.partition("?")
    labels = query_of(unquote(query))
    (address,) = check_addresses([page], "--telemetry-url")
    if not labels or set(labels) - {"gpu", "host"}:
        raise UsageError(f"--telemetry-url {address}: name the server's GPUs by ?gpu=0,1 or ?host=NAME at its end.")
    return address, list(filter(None, labels.get("gpu", "").split(","))), labels.get("host", "")


def below(address: str, path: str, outside: bool = False) -> str:
    """The address of a path below another, whose query it keeps; `outside` the API, below the server's own address."""
    base, mark, query = address.partition("?")
    base = base.rstrip("/")
    return (base.removesuffix("/v1") if outside else base) + path + mark + query


def is_here(addresses: Sequence[str]) -> bool:
    """Whether all engines are on this machine, as one in this process is."""
    return all(is_loopback_host(urlsplit(address).hostname or "") for address in addresses)


def is_loopback_host(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def is_usable(address: str) -> bool:
    """Whether it is an http or https address with a host."""
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and host != b"" and parts.port != 0
    except ValueError:  # a port that is no number, a part of the name with more than 63 characters
        return False
