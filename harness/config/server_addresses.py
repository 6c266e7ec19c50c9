"""Addresses of servers and exporters: checked, joined, and recognised as this machine's."""

import re
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from harness.core.errors import UsageError
from harness.core.secrets import hide_text, note_address
from harness.core.web_addresses import is_usable


def check_addresses(addresses: Sequence[str], name: str = "--endpoint") -> tuple[str, ...]:
    """Return the addresses without slashes at their ends. From now on, possible keys in their paths are masked.

    Raises UsageError if an address may hold a secret, is not usable, or is given twice. The message never holds a
    password.
    """
    plain_addresses = tuple(join_url(address.rstrip("/"), path="") for address in addresses)
    for address in plain_addresses:
        if "@" in address:  # A password may stand before it, so the message does not repeat the address.
            raise UsageError(f"{name} takes a plain address; a key goes into OPENAI_API_KEY in the environment.")
        if not is_usable(address):
            raise UsageError(f"{name} takes an address such as http://host:8000/v1; got {hide_text(address)!r}.")
        parts = urlsplit(address)
        if not set(query_of(parts.query)) <= PLAIN_QUERY_NAMES or parts.fragment:
            raise UsageError(f"{name} takes a plain address; a key goes into OPENAI_API_KEY in the environment.")
        note_address(address)  # masks parts of its path that may be a key
        if plain_addresses.count(address) > 1:
            raise UsageError(f"{name} {address}: given twice.")
    return plain_addresses


def query_of(text: str) -> dict[str, str]:
    """Return the values in an address's query, such as "gpu=0&host=a", by name.

    A word without `=` is a name with an empty value.
    """
    query = {}
    for word in re.split("[&;]", text):
        if word:
            key, _, value = word.partition("=")
            query[key] = value
    return query


class ExporterAddress(NamedTuple):
    """The page of a GPU exporter, with what names the server's GPUs on it.

    Without numbers in `gpus`, all GPUs of `host` are the server's. With an empty `host`, those numbers of any host are.
    """

    page: str
    gpus: list[str]
    host: str


def parse_exporter_address(url: str) -> ExporterAddress:
    """Return what an address of --telemetry-url says: the page of a GPU exporter, and which of its GPUs are meant.

    Raises UsageError if the query names neither GPUs nor a host, has an empty value, or has another name.
    """
    page, _, query = url.partition("?")
    labels = query_of(unquote(query))
    (address,) = check_addresses([page], "--telemetry-url")
    gpus = [name for name in labels.get("gpu", "").split(",") if name]
    host = labels.get("host", "")
    has_empty_label = ("gpu" in labels and not gpus) or ("host" in labels and not host)
    has_unknown_label = not labels.keys() <= {"gpu", "host"}
    if not labels or has_empty_label or has_unknown_label:  # The page may have GPUs of other servers.
        raise UsageError(f"--telemetry-url {address}: name the server's GPUs by ?gpu=0,1 or ?host=NAME at its end.")
    return ExporterAddress(address, gpus, host)


def join_url(address: str, path: str, outside: bool = False) -> str:
    """Return the address of `path`, relative to the address of the server's API. The API's query is kept.

    If `outside`, the page is not part of the API, like /metrics, and its address has no /v1.
    """
    base, question_mark, query = address.partition("?")
    base = base.rstrip("/")
    if outside:
        base = base.removesuffix("/v1")
    return base + path + question_mark + query


def is_here(addresses: Sequence[str]) -> bool:
    """Return whether the engines at all these addresses are on this machine.

    True without addresses, since the engine is then in this process.
    """
    return all(is_loopback_host(urlsplit(address).hostname or "") for address in addresses)


def is_loopback_host(host: str) -> bool:
    """Return whether a host is this machine by its own address, such as 127.0.0.1, ::1 or localhost."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # the host is a name, not an IP address
        return host == "localhost"


PLAIN_QUERY_NAMES = {"api-version", "version"}  # names in an address's query whose values are no secrets
