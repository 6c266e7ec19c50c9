"""Clients in separate processes, so that the client of a server is not what is measured."""

import asyncio
import itertools
import multiprocessing
import pickle
import signal
import socket
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import uvloop

from harness.config import pretrained
from harness.core.errors import BenchmarkError, EngineError
from harness.core.message_text import first_line
from harness.engines.answer_delivery import Exchange
from harness.engines.client import Client, WireRequest
from harness.engines.protocol import TokenStream

PROCESS_ENDED = "a client process ended unexpectedly"
READY = "ready"
MessageT = TypeVar("MessageT")
PROCESS_GRACE_S = 2.0  # the time in which a process may end by itself before it is killed


class Reply(NamedTuple):
    """A part of an answer on its way back from the process, with the number of its request. The last part of an answer
    has its `exchange`, and an `error` if the request failed. If the process is gone, it has only an `error`.
    """

    number: int
    tokens: Sequence[int] = ()
    error: Exception | None = None
    exchange: Exchange | None = None


class NumberedRequest(NamedTuple):
    """A request on its way to the process, with the number that its replies will have."""

    number: int
    request: WireRequest


def send(writer: asyncio.StreamWriter, message: object) -> None:
    """Send a message to the other process: its length in 8 bytes, and the pickled message.

    Does not wait until the message is written: the event loop (uvloop) writes all messages of one turn together.
    """
    data = pickle.dumps(message)
    writer.write(len(data).to_bytes(8, "big") + data)


async def receive(reader: asyncio.StreamReader, kind: type[MessageT]) -> MessageT:
    """Return the next message of the other process, which must be of type `kind`.

    Raises EOFError if the other process is gone, even in the middle of a message.
    """
    try:
        size = int.from_bytes(await reader.readexactly(8), "big")
        message = pickle.loads(await reader.readexactly(size))
    except ConnectionError:  # A message that is cut short is an EOFError already.
        raise EOFError from None
    assert isinstance(message, kind)
    return message


class RemoteClient:
    """A client in a process of its own, which answers as `Client` does. The process starts when this object is made."""

    # These exist from `open` on.
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _receiving: asyncio.Task[None]

    def __init__(self, client: Client) -> None:
        """Start a process with a copy of `client`, and connect it to this process by a pair of sockets."""
        self._own_end, process_end = socket.socketpair()
        # The process loads the tokenizer itself, if it needs one.
        arguments = (replace(client, tokenizer=None), process_end)  # type: ignore[arg-type]
        spawn = multiprocessing.get_context("spawn")  # A fork of this process, which has threads, might hang.
        self._process = spawn.Process(target=serve, args=arguments, name="client", daemon=True)
        self._process.start()
        # The process has a copy of this socket. Once that copy is the only one, the connection closes with the process.
        process_end.close()
        self._numbers = itertools.count()  # numbers for requests
        self._replies: dict[int, asyncio.Queue[Reply]] = {}  # the replies to each request that is not answered yet
        self.in_flight = 0  # requests that this client answers now; the caller of `answer` counts them
        self.failure: str | None = None  # why the process can answer no more

    async def open(self) -> None:
        """Wait until the process is ready. Must be called on the loop. Raises EngineError if the process ends."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._own_end)
        try:
            await receive(self._reader, str)
        except EOFError:
            raise EngineError(PROCESS_ENDED) from None
        self._receiving = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        """Hand each reply to the answer that waits for it, until the process is gone.

        Then every answer that still waits for replies gets an error, and `failure` says that the process is gone.
        """
        try:
            while True:
                reply = await receive(self._reader, Reply)
                if reply.number in self._replies:  # If not, nobody waits for that answer any more.
                    self._replies[reply.number].put_nowait(reply)
        except EOFError:  # The process is gone.
            self.failure = PROCESS_ENDED
            for number, replies in self._replies.items():
                replies.put_nowait(Reply(number, error=EngineError(PROCESS_ENDED)))

    async def answer(self, request: WireRequest, exchange: Exchange) -> TokenStream:
        """Yield the token ids of an answer as the client process sends them, and note its delivery in `exchange`.

        Raises the error of a request that failed, and EngineError if the client process is gone.
        """
        number = next(self._numbers)
        replies = self._replies[number] = asyncio.Queue()
        try:
            if self.failure:
                raise EngineError(self.failure)
            send(self._writer, NumberedRequest(number, request))
            while True:
                reply = await replies.get()
                is_last = reply.exchange is not None or reply.error is not None
                if is_last:  # The last reply has no tokens.
                    break
                yield reply.tokens
            if reply.exchange:  # The exchange is missing only if the process is gone.
                exchange.sent_at, exchange.delivery = reply.exchange.sent_at, reply.exchange.delivery
            if reply.error:
                raise reply.error
        finally:  # Nobody waits for replies to this request any more, also if the caller gave the answer up.
            del self._replies[number]

    async def disconnect(self) -> None:
        """Close the connection, after which the process ends by itself. Must be called on the loop."""
        self._receiving.cancel()
        self._writer.close()

    def close(self) -> None:
        """Wait for the process to end, and kill it if it does not."""
        self._process.join(PROCESS_GRACE_S)
        self._process.kill()


def serve(client: Client, connection: socket.socket) -> None:
    """Answer the requests that the benchmark's process sends through the socket, until that process is gone.

    This is all that a client process does.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # On Ctrl-C, the benchmark's process ends this one in good order.
    has_texts = not (client.form.ids_in and client.form.ids_out)
    if has_texts:  # Without texts, nothing is encoded or decoded here.
        client.tokenizer = pretrained.load_tokenizer(client.config)
    uvloop.run(answer_all(client, connection))


async def answer_all(client: Client, connection: socket.socket) -> None:
    """Answer the requests that come from the benchmark's process, beside each other, until that process is gone.

    Before the first request, say that this process is ready.
    """
    client.open()
    reader, writer = await asyncio.open_connection(sock=connection)
    send(writer, READY)
    tasks = set[asyncio.Task[None]]()  # The event loop has no lasting reference to its tasks, so this set has them.
    try:
        while True:
            number, request = await receive(reader, NumberedRequest)
            task = asyncio.create_task(send_answer(client, writer, number, request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    except EOFError:  # The benchmark's process is gone.
        await client.session.close()


async def send_answer(client: Client, writer: asyncio.StreamWriter, number: int, request: WireRequest) -> None:
    """Send the parts of answer `number` to the benchmark's process as they come, then its exchange and any error."""
    exchange = Exchange()
    error: Exception | None = None
    try:
        async for tokens in client.answer(request, exchange):
            send(writer, Reply(number, tokens))
    except BenchmarkError as known:
        error = known
    except Exception as unknown:
        traceback.print_exception(unknown)  # to engine.log
        error = RuntimeError(f"{type(unknown).__name__}: {first_line(unknown)}")  # Not every exception can be pickled.
    send(writer, Reply(number, error=error, exchange=exchange))
