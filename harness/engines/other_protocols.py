"""The protocol of a server that does not answer as its address says: found by asking the server, never guessed."""

import asyncio
import contextlib
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from harness.engines.completions import server_text

ASK_S = 3.0  # the time limit of each try to find out what a server speaks
GREETING_BYTES = 64  # enough bytes of an answer to recognize a protocol
REQUEST = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
HTTP_2 = "h2"  # as ALPN names it


class Greeting(NamedTuple):
    """The bytes that a server of some protocol sends, from position `start` on, and what they mean for the user."""

    start: int
    text: bytes
    meaning: str
    scheme: str = ""  # the greeting means this only if the address has this scheme; empty: with any


HTTP_2_PORT = "it speaks HTTP/2 alone, as gRPC ports do: give the port of its HTTP API"
GREETINGS = (
    Greeting(0, b"HTTP/", "it speaks HTTP without TLS: give http:// in the address", "https"),
    Greeting(0, b"\x15\x03", "it speaks TLS: give https:// in the address", "http"),
    Greeting(0, b"SSH-", "it is an SSH server: give the port of the API"),
    Greeting(0, b"220 ", "it is a mail or FTP server: give the port of the API"),
    Greeting(0, b"-ERR", "it is a Redis server: give the port of the API"),
    # A frame of HTTP/2: three bytes of its length, then its kind, which is SETTINGS or GOAWAY.
    Greeting(3, b"\x04\x00\x00\x00\x00\x00", HTTP_2_PORT),
    Greeting(3, b"\x07\x00\x00\x00\x00\x00", HTTP_2_PORT),
)


async def protocol_hint(address: str) -> str:
    """Return which protocol the server at an address speaks, and what to do about it, in words.

    Empty if the server sends nothing in time, or if nothing is wrong with its protocol.
    """
    parts = urlsplit(address)
    host = parts.hostname or ""
    default_ports = {"https": 443}
    port = parts.port or default_ports.get(parts.scheme, 80)
    reply_start = await first_bytes(host, port)
    if reply_start is None:
        return ""
    for greeting in GREETINGS:
        is_wrong_here = greeting.scheme in ("", parts.scheme)  # Some protocols are wrong for http or for https only.
        if is_wrong_here and reply_start.startswith(greeting.text, greeting.start):
            return greeting.meaning
    protocol = await tls_protocol(host, port)
    if protocol is None:  # The server speaks no TLS.
        return meaning_of_text(reply_start)
    return meaning_of_tls(protocol, parts.scheme)


def meaning_of_tls(protocol: str, scheme: str) -> str:
    """Return what is wrong with a server that speaks TLS and chooses this protocol in it, in words.

    HTTP/2 is not supported. If the user's address begins with http (`scheme`), it should begin with https. Empty if
    nothing is wrong.
    """
    if protocol == HTTP_2:
        return "it speaks HTTP/2 alone over TLS: give an address that speaks HTTP/1.1"
    if scheme == "http":
        return "it speaks TLS: give https:// in the address"
    return ""


def meaning_of_text(reply_start: bytes) -> str:
    """Return what is wrong with a server that begins its reply with these bytes, in words. Empty for HTTP or TLS.

    These two are the protocols of an endpoint, so nothing is wrong with them.
    """
    if not reply_start:
        return "it closes the connection without an answer"
    if reply_start.startswith((b"HTTP/", b"\x15\x03")):  # The second is an alert in TLS.
        return ""
    shown_bytes = repr(reply_start)[2:-1]  # without b'...'
    return f"it does not speak HTTP; it sends {server_text(shown_bytes)}: give the port of the API"


async def first_bytes(host: str, port: int) -> bytes | None:
    """Return the first bytes that a server sends in reply to an HTTP request; empty if it closes the connection.

    None if there is no connection, or if too few bytes come in time.
    """
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(REQUEST)
                return await received_bytes(reader)
            finally:
                writer.close()
    return None


async def received_bytes(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes that come until there are GREETING_BYTES, or until the connection ends, even by an error."""
    head = b""
    with contextlib.suppress(ConnectionError):
        while len(head) < GREETING_BYTES:
            more = await reader.read(GREETING_BYTES - len(head))
            if not more:
                break
            head += more
    return head


async def tls_protocol(host: str, port: int) -> str | None:
    """Return the protocol that a server chooses within TLS (ALPN): empty if it chooses none, None if it speaks no
    TLS.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    chosen = await alpn_protocol(host, port, context)
    if chosen is None:
        # The first try offered no protocol, so that a server uses HTTP/1.1 if it can. A server that only speaks HTTP/2
        # may refuse that.
        context.set_alpn_protocols([HTTP_2])
        chosen = await alpn_protocol(host, port, context)
    return chosen


async def alpn_protocol(host: str, port: int, context: ssl.SSLContext) -> str | None:
    """Open a TLS connection, and return the protocol that the server chooses in it (ALPN).

    Empty if it chooses none, None if no connection is made in time.
    """
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ASK_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
            chosen = connection.selected_alpn_protocol() or ""
            writer.close()
            return chosen
    return None
