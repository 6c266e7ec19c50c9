"""What the client of an endpoint sustains: LoadGen -> SUT -> HTTP -> a server that answers at once, and back.

    python -m benchmarks.endpoint [--row MESSAGES RATE CLIENTS]

The server runs in a process of its own. Prompts have 778 tokens and answers 128, as the benchmark's have. It streams
each answer in two messages, or in one for each token. LoadGen's Server scenario sends at each rate in turn for ten
seconds; queries per second and latency are LoadGen's. A single client runs in LoadGen's process.
"""

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from functools import cache
from math import ceil
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.start import start
from harness.config.plan import Plan
from harness.loadgen import loadgen_test
from harness.loadgen import log as loadgen_log
from harness.loadgen.log import TestResult
from harness.loadgen.sut import SUT

PROMPT_TOKENS, ANSWER_TOKENS = 778, 128
SAMPLES = 13368
SECONDS = 10
ROWS = (  # messages of an answer, client processes, queries/s
    (2, 1, (1000, 1500, 2000)),
    (2, 2, (2000, 2500, 3000)),
    (ANSWER_TOKENS, 1, (400, 600)),
    (ANSWER_TOKENS, 2, (600, 800)),
)
MOST_IN_FLIGHT = 8192
HEAD_END = b"\r\n\r\n"  # between the head and the body of an HTTP message


@cache
def streamed_response(messages: int, tokens: int) -> bytes:
    """Return the HTTP response for a streamed answer: server-sent events, at most `messages` of them with tokens.

    The first message has one token, and the others share the rest evenly. The answer has at least two tokens.
    """
    later_tokens = tokens - 1
    largest_part = ceil(later_tokens / max(messages - 1, 1))
    parts = [[0]]
    for first in range(0, later_tokens, largest_part):
        part_tokens = min(largest_part, later_tokens - first)
        parts.append(list(range(part_tokens)))
    *earlier_parts, last_part = parts
    events = [message(part, None, "text_completion") for part in earlier_parts]
    events += [message(last_part, "length", "text_completion"), b"[DONE]"]
    return http_response(b"text/event-stream", b"".join(b"data: " + event + b"\n\n" for event in events))


def message(ids: list[int], end: str | None, kind: str) -> bytes:
    """Return the JSON of a message with these token ids. `end` is why the answer ends with it; None if it goes on."""
    choice = {"index": 0, "text": " a" * len(ids), "logprobs": None, "finish_reason": end, "token_ids": ids}
    content = {"id": "cmpl-1", "object": kind, "created": 1795336868, "model": "instant", "choices": [choice]}
    return json.dumps(content).encode()


@cache
def whole_response(tokens: int) -> bytes:
    """Return the HTTP response for an answer that is not streamed."""
    return json_response(message(list(range(tokens)), "length", "text_completion"))


def json_response(body: bytes) -> bytes:
    return http_response(b"application/json", body)


def http_response(content_type: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d" % (content_type, len(body))
    return head + HEAD_END + body


class Instant(asyncio.Protocol):
    """A connection to a server that answers at once. It knows as much of HTTP as the client needs."""

    messages = 2  # the messages of a streamed answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.unread = b""

    def data_received(self, data: bytes) -> None:
        """Answer the requests that are complete, and keep the rest for later."""
        self.unread += data
        while (head_end := self.unread.find(HEAD_END)) >= 0:
            head = self.unread[:head_end].lower()
            body_start = head_end + len(HEAD_END)
            body_end = body_start + content_length(head)
            if len(self.unread) < body_end:
                return
            path, body = head.split(b" ")[1], self.unread[body_start:body_end]
            self.unread = self.unread[body_end:]
            self.transport.write(self.answer(path, body))  # type: ignore[attr-defined]

    def answer(self, path: bytes, body: bytes) -> bytes:
        """Return the response to a request, whose body has "max_tokens" before another key."""
        if path == b"/v1/completions":
            tokens = int(body.rpartition(b'"max_tokens":')[2].partition(b",")[0])
            is_streamed = b'"stream":true' in body
            return streamed_response(self.messages, tokens) if is_streamed else whole_response(tokens)
        if path == b"/v1/models":
            return json_response(b'{"data": [{"id": "instant"}]}')
        return json_response(b"{}")


def content_length(head: bytes) -> int:
    """Return the length of the body after the head of a request, in lower case; 0 if the head has none."""
    value = head.partition(b"content-length:")[2].split(b"\r\n")[0]
    return int(value or 0)


def serve(messages: int, port_sender: Connection) -> None:
    """Send the number of the server's port, then answer until the process is ended."""
    Instant.messages = messages

    async def serve_forever() -> None:
        server = await asyncio.get_running_loop().create_server(Instant, "127.0.0.1", 0)
        port_sender.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve_forever())


def measure(messages: int, rate: float, clients: int) -> None:
    """Run one performance test at `rate` queries/s and print its row."""
    from harness.config.resolve import resolve
    from harness.config.run import RunConfig
    from harness.engines.openai import OpenAI
    from harness.loadgen.sut import make_sut
    from harness.workloads.sample_library import Library

    port_receiver, port_sender = multiprocessing.Pipe()
    spawning = multiprocessing.get_context("spawn")
    server = spawning.Process(target=serve, args=(messages, port_sender), daemon=True)
    server.start()
    config = RunConfig(
        scenario="server",
        endpoint=(f"http://127.0.0.1:{port_receiver.recv()}/v1",),
        server_target_qps=rate,
        min_duration=SECONDS,
        max_in_flight=MOST_IN_FLIGHT,
    )
    engine = OpenAI(config.with_settings(model="demo"), 2668, processes=clients)
    engine.start()
    plan = resolve(config, gpus=[], weight_bytes=0)
    library = Library([[1234] * PROMPT_TOKENS] * SAMPLES, "one prompt")
    sut = make_sut(engine, library, plan, timed=True, expected=0)
    result, cpu = run_test(plan, sut, server.pid)
    assert result.samples and result.samples_per_sec and result.ttft_ms
    own_us = 1e6 * cpu.own_s / result.samples
    clients_us = 1e6 * cpu.clients_s / result.samples
    print(
        f"{messages:8} {clients:7} {rate:8,.0f} {result.samples_per_sec:11,.0f} {own_us:12.0f} "
        f"{clients_us:10.0f} {result.ttft_ms.p50:12.2f} {result.ttft_ms.p99:8.2f}",
        flush=True,
    )
    engine.close()
    server.kill()


class CpuTimes(NamedTuple):
    """CPU time in seconds."""

    own_s: float  # used by this process, with LoadGen's threads
    clients_s: float  # used by the clients, which are child processes


def cpu_times(server_pid: int | None) -> CpuTimes:
    """Return the CPU time that this process and its clients have used so far. The server is no client."""
    clients_s = 0.0
    for child in psutil.Process().children():
        if child.pid != server_pid:
            times = child.cpu_times()
            clients_s += times.user + times.system
    return CpuTimes(time.process_time(), clients_s)


def run_test(plan: Plan, sut: SUT, server_pid: int | None) -> tuple[TestResult, CpuTimes]:
    """Run a performance test. Return LoadGen's result, and the CPU time that the test took."""

    def watch() -> None:
        if sut.failure is not None:
            raise sut.failure

    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        settings = loadgen_test.LoadGenSettings().prepare(plan, folder)
        before = cpu_times(server_pid)
        loadgen_test.run_test("performance", settings, sut, SAMPLES, folder, watch)
        after = cpu_times(server_pid)
        result = loadgen_log.read(folder)
    return result, CpuTimes(after.own_s - before.own_s, after.clients_s - before.clients_s)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument(
        "--row", nargs=3, metavar=("MESSAGES", "RATE", "CLIENTS"), help="run only this row, in this process"
    )
    return flags


def main() -> None:
    row = parser().parse_args().row
    if row:
        messages, rate, clients = row
        measure(int(messages), float(rate), int(clients))
        return
    print("                                           CPU us per query       TTFT, ms")
    print("messages clients   sent/s completed/s  LoadGen, SUT    clients          p50      p99", flush=True)
    for messages, clients, rates in ROWS:
        for rate in rates:
            # Each row has its own process, since LoadGen reads its settings only once in a process.
            row = [str(messages), str(rate), str(clients)]
            subprocess.run([sys.executable, "-m", "benchmarks.endpoint", "--row", *row], check=True)


if __name__ == "__main__":
    start(main)
