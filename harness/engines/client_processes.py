"""Clients in separate processes, so that the client of a server is not what is measured."""

import asyncio
import itertools
import multiprocessing
import pickle
import signal
import socket
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from harness.common.errors import BenchmarkError, EngineError, first_line
from harness.config import checkpoint as model
from harness.config.run import RunConfig
from harness.engines.client import Client, WireRequest
from harness.engines.completions import RequestFormat
from harness.engines.protocol import Sampling
from harness.runs.delivery import Exchange

PROCESS_ENDED = "a client process ended unexpectedly"
READY = "ready"
LAST_S = 2.0  # to end by itself


@dataclass(frozen=True)
class Setup:
    config: RunConfig
    sampling: Sampling
    model: str
    form: RequestFormat
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Reply:
    """A part of an answer on its way back, by number; with `exchange`, what is known of it, nothing follows."""

    number: int
    tokens: Sequence[int] = ()
    error: Exception | None = None
    exchange: Exchange | None = None


class Channel:
    """Messages over a socket; those of one turn of the event loop go together."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._waiting: list[Any] = []

    def send(self, message: Any) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(message)

    def _flush(self) -> None:
        data = pickle.dumps(self._waiting, pickle.HIGHEST_PROTOCOL)
        self.writer.write(len(data).to_bytes(8, "big") + data)
        self._waiting = []

    async def receive(self) -> list[Any]:
        """The next messages. Raises EOFError when the other side is gone."""
        try:
            size = int.from_bytes(await self.reader.readexactly(8), "big")
            found: list[Any] = pickle.loads(await self.reader.readexactly(size))
            return found
        except (asyncio.IncompleteReadError, ConnectionError):
            raise EOFError from None


class RemoteClient:
    _channel: Channel  # from `open` on
    _receiving: asyncio.Task[None]

    def __init__(self, setup: Setup) -> None:
        self._ours, theirs = socket.socketpair()
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=serve, args=(setup, theirs), name="client", daemon=True)
        self._process.start()
        theirs.close()
        self._numbers = itertools.count()
        self._parts: dict[int, asyncio.Queue[Reply]] = {}
        self.in_flight = 0
        self.failure: str | None = None

    async def open(self) -> None:
        """Waits until the process is ready; to be called on the loop. Raises EngineError where it is not."""
        self._channel = Channel(*await asyncio.open_connection(sock=self._ours))
        try:
            await self._channel.receive()
        except EOFError:
            raise EngineError(PROCESS_ENDED) from None
        self._receiving = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        try:
            while True:
                for reply in await self._channel.receive():
                    if reply.number in self._parts:
                        self._parts[reply.number].put_nowait(reply)
        except EOFError:
            self.failure = PROCESS_ENDED
            for number, parts in self._parts.items():
                parts.put_nowait(Reply(number, error=EngineError(PROCESS_ENDED)))

    async def answer(self, request: WireRequest, exchange: Exchange | None = None) -> AsyncIterator[Sequence[int]]:
        """As `Client.answer`. Raises EngineError where the process is gone."""
        number = next(self._numbers)
        parts = self._parts[number] = asyncio.Queue()
        try:
            if self.failure:
                raise EngineError(self.failure)
            self._channel.send((number, request))
            while not (reply := await parts.get()).exchange and not reply.error:
                yield reply.tokens
            if exchange and reply.exchange:
                exchange.sent_at, exchange.delivery = reply.exchange.sent_at, reply.exchange.delivery
            if reply.error:
                raise reply.error
        finally:
            del self._parts[number]

    async def disconnect(self) -> None:
        """The process ends once nobody talks to it; to be called on the loop."""
        self._receiving.cancel()
        self._channel.writer.close()

    def close(self) -> None:
        self._process.join(LAST_S)
        self._process.kill()


def serve(setup: Setup, theirs: socket.socket) -> None:
    """What the process does: answer until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it, too: the command ends it
    text = not (setup.form.ids_in and setup.form.ids_out)
    client = Client(
        setup.config, setup.sampling, model.load_tokenizer(setup.config) if text else None, setup.vocabulary
    )
    client.model, client.form = setup.model, setup.form
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(answer_all(client, theirs))


async def answer_all(client: Client, theirs: socket.socket) -> None:
    client.open()
    channel = Channel(*await asyncio.open_connection(sock=theirs))
    channel.send(READY)
    tasks: set[asyncio.Task[None]] = set()
    try:
        while True:
            for number, request in await channel.receive():
                task = asyncio.create_task(answer(client, number, request, channel))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
    except EOFError:
        await client.session.close()


async def answer(client: Client, number: int, request: WireRequest, channel: Channel) -> None:
    """Sends the parts of one answer on as they come."""
    exchange = Exchange(time.perf_counter())
    try:
        async for tokens in client.answer(request, exchange):
            channel.send(Reply(number, tokens))
        channel.send(Reply(number, exchange=exchange))
    except BenchmarkError as error:
        channel.send(Reply(number, error=error, exchange=exchange))
    except Exception as error:
        traceback.print_exception(error)  # to engine.log
        channel.send(Reply(number, error=RuntimeError(f"{type(error).__name__}: {first_line(error)}")))
