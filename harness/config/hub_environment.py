"""The Hugging Face hub as the environment has it: its address, proxies, and whether it can be reached."""

import functools
import socket
from os import environ
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

HUB_VARIABLE = "HF_ENDPOINT"
HUB_ADDRESS = "https://huggingface.co"
HUB_TIMEOUT_S = 5.0
PORTS = {"https": 443, "http": 80}


def hub_address() -> SplitResult:
    """Return the address of the hub or of its mirror. Every command has checked it at its start."""
    return urlsplit(environ.get(HUB_VARIABLE) or HUB_ADDRESS)


def proxy_of(address: SplitResult) -> str:
    """Return the proxy that libraries use for an address, by the variables HTTPS_PROXY, ALL_PROXY and the like.

    Empty if there is none, or if NO_PROXY excepts the host. Python's own functions read the variables, in lower and
    upper case, and all forms of NO_PROXY.
    """
    proxies = getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all")
    host = address.netloc.rpartition("@")[2]  # with the port, but without a user and a password
    if not proxy or proxy_bypass(host):
        return ""
    return proxy


@functools.cache
def is_hub_reachable() -> bool:
    """Return whether the hub accepts connections, by opening one. Only the first call in a process opens one."""
    from huggingface_hub import constants

    address = hub_address()
    if constants.HF_HUB_OFFLINE:  # By this variable, the user forbids to ask the hub.
        return False
    if proxy_of(address):  # A direct connection may fail although the proxy reaches the hub.
        return True
    try:
        place = (address.hostname or "", address.port or PORTS[address.scheme])
        socket.create_connection(place, HUB_TIMEOUT_S).close()
    except OSError:
        return False
    return True
