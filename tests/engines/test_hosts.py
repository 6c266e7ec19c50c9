"""An engine on another host: its connection is watched. A whole run over two hosts: tests/two_hosts.sh."""

import asyncio
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import zmq
import zmq.asyncio

from harness.config.run import RunConfig
from harness.engines.vllm import RemoteEngineConnections

ENGINE = """
import sys, time, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
socket.send(b"ready")
time.sleep(60)
"""


def test_an_engine_that_is_lost_breaks_its_link() -> None:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def bound() -> zmq.asyncio.Socket:
        socket = zmq.asyncio.Context().socket(zmq.ROUTER)
        socket.bind("tcp://127.0.0.1:*")
        return socket

    async def heard(socket: zmq.asyncio.Socket) -> list[bytes]:
        return await socket.recv_multipart()

    socket = asyncio.run_coroutine_threadsafe(bound(), loop).result(10)
    address = socket.getsockopt(zmq.LAST_ENDPOINT).decode()  # type: ignore[union-attr]
    with subprocess.Popen([sys.executable, "-c", ENGINE, address]) as engine:
        assert asyncio.run_coroutine_threadsafe(heard(socket), loop).result(20)[-1] == b"ready"
        links = RemoteEngineConnections(SimpleNamespace(resources=SimpleNamespace(input_socket=socket)))
        assert not links.is_broken
        engine.kill()
    end = time.monotonic() + 10
    while not links.is_broken and time.monotonic() < end:
        time.sleep(0.05)
    assert links.is_broken
    assert links.is_broken  # and stays so
    loop.call_soon_threadsafe(loop.stop)


@pytest.mark.parametrize(
    ("pair", "spans"),
    [
        ("data_parallel_size_local=1", True),
        ("nnodes=2", True),
        ("distributed_executor_backend=ray", True),
        ("data_parallel_backend=ray", True),
        ("block_size=32", False),
    ],
)
def test_which_engines_span_hosts(pair: str, spans: bool) -> None:
    assert RunConfig(model="demo", engine_arg=(pair,)).has_other_hosts is spans
