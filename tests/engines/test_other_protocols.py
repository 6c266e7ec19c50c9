"""What listens at an address is asked, so that the line names it: every protocol under both schemes."""

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest

from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.engines import discovery, other_protocols
from harness.engines.client import connect
from tests.support.fake_servers import Fake, serving

SETTINGS = b"\0\0\6\4\0\0\0\0\0\0\5\0\0\x40\0"
GOAWAY = b"\0\0\x22\7\0\0\0\0\0" + b"\0" * 8 + b"Did not receive HTTP/2 preface"
# Each kind of port: how it answers, and words of the line under http:// and under https://.
PORTS = {
    "HTTP/2 alone": (SETTINGS + GOAWAY, "HTTP/2", "HTTP/2"),
    "HTTP/2, its end alone": (GOAWAY, "HTTP/2", "HTTP/2"),
    "an alert of TLS": (b"\x15\3\1\0\2\2\x46", "https://", ""),
    "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH", "SSH"),
    "mail": (b"220 mail.example ESMTP\r\n", "mail", "mail"),
    "Redis": (b"-ERR unknown command\r\n", "Redis", "Redis"),
    "HTTP without TLS": (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", None, "http://"),
    "another protocol": (b"\x01\x02HELLO \x1b[31m", "HELLO", "HELLO"),
    "nothing": (b"", "closes the connection", "closes the connection"),
}


@contextmanager
def port_of(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with suppress(OSError), connection:
                        answer(connection)

        Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def says(text: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(text)

    return answer


def refusal_of(address: str) -> str:
    """The line with which a run against an address ends."""

    async def ask() -> None:
        config = RunConfig(endpoint=(address,))
        async with connect(config) as session:
            await discovery.Discovery(config, session).discover(address, 1024)

    with pytest.raises(UsageError) as caught:
        asyncio.run(ask())
    return str(caught.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("name", PORTS)
def test_the_line_names_what_the_port_speaks(name: str, scheme: str) -> None:
    text, plain, secure = PORTS[name]
    word = plain if scheme == "http" else secure
    if word is None:
        return  # it answers as the address says
    with port_of(says(text)) as port:
        line = refusal_of(f"{scheme}://127.0.0.1:{port}/v1")
    others = {"HTTP/2", "https:// in", "http:// in", "SSH", "mail", "Redis"} - {word, f"{word} in"}
    assert word in line and not any(other in line for other in others), line
    assert "\n" not in line and "\x1b" not in line and "?" not in line


def certificate_in(folder: Path, *protocols: str) -> ssl.SSLContext:
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made_by = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*made_by, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_a_server_with_tls_under_http_is_named(tmp_path: Path) -> None:
    with serving(Fake(certificate=certificate_in(tmp_path))) as fake:
        line = refusal_of(fake.address.replace("https", "http"))
    assert "it speaks TLS: give https://" in line


def test_a_port_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_protocols, "ASK_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        assert asyncio.run(other_protocols.protocol_hint(address)) == ""
    assert asyncio.run(other_protocols.protocol_hint(address)) == ""  # nobody is there


def test_behind_a_proxy_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with port_of(says(SETTINGS + GOAWAY)) as port:
        monkeypatch.setenv("ENDPOINT_PROXY", f"http://127.0.0.1:{port}")
        line = refusal_of("http://gpu.example:8000/v1")
    assert "HTTP/2 alone" not in line
