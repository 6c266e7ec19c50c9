"""Discovery of servers from what they report of themselves: readiness, model and engine before a run, their counters
during it.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout

from harness.config import pretrained
from harness.config.models import DEFAULT_MODEL, MODELS
from harness.config.run import RunConfig
from harness.config.server_addresses import join_url
from harness.core.errors import EndpointError, UsageError
from harness.core.given_values import spelling_hint
from harness.core.json_values import list_or_empty
from harness.engines.client import connect, connection_problem, key_hint, read_whole, refusal
from harness.engines.completions import ENGINE_NAMES, VERSION_PAGES, server_text
from harness.engines.metrics_pages import is_one_of
from harness.engines.request_formats import RequestFormat

ANSWER_S = 10.0  # the time limit for a page on which a server describes itself
READY_S = 1.0  # the pause between two tries while a server is loading
PAGE_S = 1.0  # the time limit for a page that a server need not have
# Statuses that may pass, how long a server with one of them is asked again, and the pause between two tries.
BUSY_STATUSES, BUSY_S, PAUSE_S = (429, 502, 503, 504), 20.0, 0.5
# The weight of a request without a first token when loads are compared, in requests: that of AMD's submission to MLPerf
# v6.1. Measured by benchmarks.balance.
UNSTARTED_WEIGHT = 8
UNNAMED_MODEL = "unknown"  # sglang-router lists its workers' model by this name
# NVIDIA NIM lists its models as NVIDIA's as well, each as an object "model".
DYNAMO_OWNER, DYNAMO_OBJECT = "nvidia", "object"
LONGEST_SERVER_NAME = 60  # characters of what a server calls itself


@dataclass
class Server:
    """One endpoint: its address, what it reports of itself, and how many requests it is answering."""

    address: str
    model: str
    name: str
    version: str
    other_model: str = ""  # the model that it serves, if that is surely not the one that was named
    form: RequestFormat | None = None
    in_flight: int = 0
    unstarted: int = 0  # requests in flight that have no first token yet
    tells_cache: bool = True  # each answer so far says how many of its prompt's tokens came from a cache

    @property
    def version_text(self) -> str:
        return f"{self.name} {self.version}".strip()

    @property
    def load(self) -> int:
        """The load by which requests are spread over servers.

        A request that waits for its first token weighs more, by UNSTARTED_WEIGHT, than one that streams its tokens.
        """
        return self.in_flight + UNSTARTED_WEIGHT * self.unstarted


ShowLine = Callable[[str], object]  # shows a line
ServerReply = Mapping[str, object]  # the JSON object in a page
ListedModel = Mapping[str, object]  # an entry of a server's list of models


class UnreachedError(UsageError):
    """A server that does not answer, and the reason, as a sentence."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}", flag="--endpoint")
        self.reason = reason


@dataclass(frozen=True)
class Discovery:
    """Asks the servers of a run, over its session."""

    config: RunConfig
    session: ClientSession
    say: ShowLine = print
    begun: float = field(default_factory=time.monotonic)

    async def ready(self, address: str) -> None:
        """Wait for a server that is still loading, for at most --wait-ready seconds.

        The reason for the wait is shown at once, and again if it changes. `discover` reports what is wrong after that
        time.
        """
        until = self.begun + (self.config.wait_ready or 0.0)
        shown_state = ""
        while time.monotonic() < until:
            try:
                status, listed, _ = await self.get(address, "/models")
                if listed.get("data") or status in (401, 403):  # A server that wants a key is ready.
                    return
                state = f"status {status}, no model listed"
            except UnreachedError as error:
                state = error.reason
            except UsageError as error:
                state = str(error)
            if state != shown_state:
                self.say(f"waiting for {address} (up to {until - time.monotonic():.0f} s): {state}")
            shown_state = state
            await asyncio.sleep(READY_S)

    async def discover(self, address: str, max_model_len: int) -> Server:
        """Return what a server reports of itself, and the name by which to ask for its model.

        Raises UsageError if there is no server, or if its context is shorter than `max_model_len` tokens.
        """
        config = self.config
        models, server_header = await self.models(address)
        listed = listed_model(config, models)
        context = listed.get("max_model_len")
        if isinstance(context, int) and context < max_model_len:
            raise UsageError(
                f"--endpoint {address} serves contexts of {context:,} tokens; this run needs {max_model_len:,}: "
                "start the server with a longer one, or give --max-model-len."
            )
        listed_name = str(listed.get("id", UNNAMED_MODEL))
        if config.served_model_name:
            model = config.served_model_name
        elif listed_name == UNNAMED_MODEL:  # The server lists no name for the model.
            model = config.model_path
        else:
            model = listed_name
        version = await self.version(address)
        return Server(address, model, engine_name(listed, server_header), version, other_model(config, listed))

    async def models(self, address: str) -> tuple[dict[str, ListedModel], str]:
        """Return the models that a server lists, by name, and the server's Server header, which may name the engine.

        Raises UsageError if the server wants a key, or if no answer comes.
        """
        until = time.monotonic() + BUSY_S
        status, page, header = await self.get(address, "/models")
        while status in BUSY_STATUSES and time.monotonic() < until:
            await asyncio.sleep(PAUSE_S)
            status, page, header = await self.get(address, "/models")
        if status in (401, 403):  # The header is then WWW-Authenticate: what the server asks for.
            raise UsageError(f"--endpoint {address} {key_hint(challenge=header)} ({status}).")
        models = dict[str, ListedModel]()
        for item in list_or_empty(page, "data"):
            if isinstance(item, dict) and "id" in item:
                models[str(item["id"])] = item
        return models, header

    async def version(self, address: str) -> str:
        """Return the engine's version, from the first page that has it. Empty if the server does not tell it."""
        for path, key in VERSION_PAGES:
            root_address = join_url(address, path="", outside=True)  # without the /v1 of the API, which lacks this page
            with contextlib.suppress(UsageError):  # servers need not have this page
                status, reply, _ = await self.get(root_address, path, PAGE_S)
                if status == 200 and isinstance(reply.get(key), str):
                    return server_text(reply[key], LONGEST_SERVER_NAME)
        return ""

    async def get(self, address: str, path: str, limit_s: float = ANSWER_S) -> tuple[int, ServerReply, str]:
        """Return the status, the JSON object (else empty), and the Server header of a page.

        For status 401 and 403, the header is WWW-Authenticate. Raises UsageError if the page cannot be used,
        UnreachedError if no answer comes in `limit_s` seconds.
        """
        try:
            async with self.session.get(
                join_url(address, path), timeout=ClientTimeout(total=limit_s), allow_redirects=False
            ) as response:
                if path == "/models":
                    await check_is_api(response, address)
                wants_key = response.status in (401, 403)
                header_name = "WWW-Authenticate" if wants_key else "Server"
                header = server_text(response.headers.get(header_name, ""), LONGEST_SERVER_NAME)
                reply = object_or_empty(await read_whole(response, address + path))
                return response.status, reply, header
        except TimeoutError:
            raise UnreachedError(address, f"no answer within {limit_s:g} s.") from None
        except EndpointError as error:  # The answer is too large.
            raise UsageError(f"--endpoint {error}.") from None
        except ClientError as error:
            raise UnreachedError(address, f"{await connection_problem(error, address)}.") from None


async def check_is_api(response: ClientResponse, address: str) -> None:
    """Raise UsageError if the list of models is redirected or is a web page: no OpenAI server is at the address."""
    if 300 <= response.status < 400:
        raise UsageError(f"--endpoint {address} answers {response.status}: {await refusal(response)}.")
    if response.status == 200 and response.content_type == "text/html":
        raise UsageError(
            f"--endpoint {address} answers with a web page, not as an OpenAI server; check its port and "
            f"path: {await refusal(response)}."
        )


def object_or_empty(page: bytes) -> ServerReply:
    """Return the JSON object in a page. Empty if the page is no JSON object."""
    try:
        reply = json.loads(page)
    except (ValueError, RecursionError):
        return {}
    return reply if isinstance(reply, dict) else {}


def engine_name(listed: ListedModel, header: str) -> str:
    """Return the name of a server's engine, recognized by the owner that its list of models gives.

    `listed` is a model's entry in that list. An unknown engine is named by the server's Server header (`header`), with
    an article, since sentences have the name.
    """
    owner = str(listed.get("owned_by"))
    if owner == DYNAMO_OWNER and listed.get("object") == DYNAMO_OBJECT:
        return "NVIDIA Dynamo"
    if owner in ENGINE_NAMES:
        return ENGINE_NAMES[owner]
    if header:
        return f"an unknown engine (Server: {header})"
    return "an unknown engine"


def listed_model(config: RunConfig, models: Mapping[str, ListedModel]) -> ListedModel:
    """Return the entry of the run's model in a server's list. Empty if there is none."""
    own_names = [config.model, config.model_path]
    if config.served_model_name:
        own_names = [config.served_model_name]
    for name, entry in models.items():
        if name in own_names:
            return entry
    if not config.served_model_name and is_single_model(models):  # The listed name may be an alias.
        return next(iter(models.values()))
    return {}


def is_single_model(models: Mapping[str, ListedModel]) -> bool:
    """Return whether a server's list holds only one model. Several names of one model have the same root."""
    roots = {item.get("root") for item in models.values()}
    return len(models) == 1 or (len(roots) == 1 and None not in roots)


def other_model(config: RunConfig, listed: ListedModel) -> str:
    """Return the hub repository that a server lists as its model, if it is surely not the model that the user named.

    Empty otherwise. Only a name OWNER/NAME is surely another model, since a path or an alias may stand for the named
    one.
    """
    if config.served_model_name:  # The user says by this flag that the name on the server stands for the model.
        return ""
    names = [name for name in (listed.get("root"), listed.get("id")) if isinstance(name, str)]
    if any(is_one_of(name, (config.model, config.model_path)) for name in names):  # The server lists the named model.
        return ""
    for name in names:
        is_repository = "/" in name.strip("/.") and name[0] not in "/."  # OWNER/NAME, and no path
        if is_repository:
            return server_text(name)
    return ""


def list_models(config: RunConfig, say: ShowLine = print) -> dict[str, ListedModel]:
    """Return the models that all servers of a run serve, by name.

    The servers are asked before this program loads anything. A server that is still loading is waited for, as
    --wait-ready says. Raises UsageError if a server is not there.
    """

    async def ask() -> dict[str, ListedModel]:
        """Ask each server in turn, and return the models that all of them list."""
        async with connect(config) as session:
            discovery = Discovery(config, session, say)
            lists = []
            for address in config.endpoint:
                await discovery.ready(address)
                models, _ = await discovery.models(address)
                lists.append(models)
            common_names = set(lists[0]).intersection(*lists)
            return {name: model for name, model in lists[0].items() if name in common_names}

    return asyncio.run(ask())


def config_of_served_model(config: RunConfig, say: ShowLine = print) -> RunConfig:
    """Return the configuration with the model that the endpoints serve, if the user named no model.

    Raises UsageError if the servers serve several models but not the run's, or if the served model's tokenizer is not
    found.
    """
    if not config.endpoint:
        return config
    models = list_models(config, say)
    names = list(models)
    served_name = config.served_model_name
    if served_name:
        if names and served_name not in names:
            say(f"the server lists {', '.join(names)}; {served_name} is asked for, as --served-model-name says")
        return config
    is_listed = config.model in names or config.model_path in names
    if is_listed or not names:  # The model is served, or the server does not say what it serves.
        return config
    if not is_single_model(models):
        raise UsageError(
            f"the server serves {', '.join(names)}, not --model {config.model}{spelling_hint(config.model, names)} "
            "--served-model-name names the one to ask."
        )
    if config.model != DEFAULT_MODEL:  # The user named a model. The server's name for it may be an alias.
        return config
    return config_of_listed_model(config, names[0])


def config_of_listed_model(config: RunConfig, name: str) -> RunConfig:
    """Return the configuration with the model that a server lists as `name`, or as it is if that is only an alias.

    By an alias, no tokenizer can be found, so the configured model's is used. Raises UsageError if the tokenizer is not
    found.
    """
    is_alias = "/" not in name and name not in MODELS
    served = config if is_alias else config.with_settings(model=name)
    try:
        pretrained.load_tokenizer(served)
    except UsageError:
        raise UsageError(
            f"the server serves {name}, but its tokenizer was not found: name a folder that has it, or a model on the "
            "Hugging Face Hub, with --model."
        ) from None
    return served


async def read_page(address: str, session: ClientSession) -> str:
    """Return the text of a page. Raises EndpointError if it does not come in time, or with another status than 200."""
    try:
        async with session.get(address, timeout=ClientTimeout(total=PAGE_S), allow_redirects=False) as response:
            if response.status != 200:
                raise EndpointError(f"status {response.status}")
            return (await read_whole(response, address)).decode(errors="replace")
    except TimeoutError:
        raise EndpointError(f"no answer within {PAGE_S:g} s") from None
    except (ClientError, ConnectionError) as error:
        raise EndpointError(server_text(error) or type(error).__name__) from None
