"""Addresses of web servers: which can be used."""

from urllib.parse import urlsplit

ADDRESS_VARIABLES = {"HF_ENDPOINT": "https://hub.example:8443"}  # environment variables, with an example of a value


def is_usable(address: str) -> bool:
    """Return whether a text is an http or https address with a host."""
    try:
        parts = urlsplit(address)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and host != b"" and parts.port != 0
    except ValueError:  # the port is no number, or a part of the host's name has more than 63 characters
        return False
