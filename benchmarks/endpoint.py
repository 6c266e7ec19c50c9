"""What the client of an endpoint sustains: LoadGen -> SUT -> HTTP -> a server that answers at once, and back.

    python -m benchmarks.endpoint [MESSAGES RATE CLIENTS]

The server is its own process; prompts have 778 tokens and answers 128, as the benchmark's have. It streams each
answer in two messages, or in one a token. LoadGen's Server scenario sends at each rate in turn for ten seconds;
queries per second and latency are its own. With one client it is in LoadGen's process.
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
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from benchmarks.start import start
from harness.loadgen import loadgen_test

PROMPT_TOKENS, ANSWER_TOKENS = 778, 128
SAMPLES = 13368
SECONDS = 10
ROWS = (  # messages an answer, client processes, queries/s
    (2, 1, (1000, 1500, 2000)),
    (2, 2, (2000, 2500, 3000)),
    (ANSWER_TOKENS, 1, (400, 600)),
    (ANSWER_TOKENS, 2, (600, 800)),
)


@cache
def streamed(messages: int, tokens: int) -> bytes:
    """An answer as server-sent events in an HTTP response."""
    size = -(-(tokens - 1) // max(messages - 1, 1))
    rest = [list(range(size))[: tokens - 1 - start] for start in range(0, tokens - 1, size)]
    parts = [[0], *rest]
    events = [
        message(ids, "length" if number == len(parts) - 1 else None, "text_completion")
        for number, ids in enumerate(parts)
    ]
    body = b"".join(b"data: " + event + b"\n\n" for event in [*events, b"[DONE]"])
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + b"Content-Length: %d\r\n\r\n" % len(body) + body


def message(ids: list[int], end: str | None, kind: str) -> bytes:
    choice = {"index": 0, "text": " a" * len(ids), "logprobs": None, "finish_reason": end, "token_ids": ids}
    return json.dumps(
        {"id": "cmpl-1", "object": kind, "created": 1795336868, "model": "instant", "choices": [choice]}
    ).encode()


@cache
def whole(tokens: int) -> bytes:
    return plain(message(list(range(tokens)), "length", "text_completion"))


def plain(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Instant(asyncio.Protocol):
    """HTTP as far as the client needs it."""

    messages = 2  # of a streamed answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.rest = b""

    def data_received(self, data: bytes) -> None:
        self.rest += data
        while (end := self.rest.find(b"\r\n\r\n")) >= 0:
            head = self.rest[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self.rest) < end + 4 + length:
                return
            body = self.rest[end + 4 : end + 4 + length]
            self.rest = self.rest[end + 4 + length :]
            self.transport.write(self.answer(head.split(b" ")[1], body))  # type: ignore[attr-defined]

    def answer(self, path: bytes, body: bytes) -> bytes:
        if path == b"/v1/completions":
            tokens = int(body.rpartition(b'"max_tokens":')[2].partition(b",")[0])
            return streamed(self.messages, tokens) if b'"stream":true' in body else whole(tokens)
        return plain(b'{"data": [{"id": "instant"}]}' if path == b"/v1/models" else b"{}")


def serve(messages: int, port: Connection) -> None:
    """Answers until it is ended."""
    Instant.messages = messages

    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(Instant, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(forever())


def measure(messages: int, rate: float, clients: int) -> None:
    """Runs one performance test at `rate` queries/s and prints its line."""
    from harness.config.resolve import resolve
    from harness.config.run import RunConfig
    from harness.engines.openai import OpenAI
    from harness.loadgen import log as loadgen_log
    from harness.loadgen.sut import make_sut
    from harness.workloads.sample_library import Library

    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(messages, theirs), daemon=True)
    server.start()
    endpoint = f"http://127.0.0.1:{ours.recv()}/v1"
    config = RunConfig(
        scenario="server",
        endpoint=(endpoint,),
        server_target_qps=rate,
        min_duration=SECONDS,
        max_in_flight=8192,
    )
    engine = OpenAI(config.with_settings(model="demo"), 2668, processes=clients)
    engine.start()
    plan = resolve(config, gpus=[], weight_bytes=0)
    library = Library([[1234] * PROMPT_TOKENS] * SAMPLES, "one prompt")
    tested = make_sut(engine, library, plan, timed=True, expected=0)

    def watch() -> None:
        if tested.failure is not None:
            raise tested.failure

    with tempfile.TemporaryDirectory() as folder:
        settings = loadgen_test.LoadGenSettings().prepare(plan, Path(folder))
        before = cpu_s(server.pid)
        loadgen_test.run_test("performance", settings, tested, SAMPLES, Path(folder), watch)
        here, there = (now - then for now, then in zip(cpu_s(server.pid), before, strict=True))
        facts = loadgen_log.read(Path(folder))
    assert facts.samples and facts.samples_per_sec and facts.ttft_ms
    print(
        f"{messages:8} {clients:7} {rate:8,.0f} {facts.samples_per_sec:11,.0f} {1e6 * here / facts.samples:12.0f} "
        f"{1e6 * there / facts.samples:10.0f} {facts.ttft_ms.p50:12.2f} {facts.ttft_ms.p99:8.2f}",
        flush=True,
    )
    engine.close()
    server.kill()


def cpu_s(server: int | None) -> tuple[float, float]:
    """Seconds of the processor so far: of this process, LoadGen included, and of the clients below it."""
    below = [child for child in psutil.Process().children() if child.pid != server]
    return time.process_time(), sum(sum(child.cpu_times()[:2]) for child in below)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument(
        "--row", nargs=3, metavar=("MESSAGES", "RATE", "CLIENTS"), help="this row alone, in this process"
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
        for rate in rates:  # a process each: LoadGen reads its settings once
            words = [sys.executable, "-m", "benchmarks.endpoint", "--row", *map(str, (messages, rate, clients))]
            subprocess.run(words, check=True)


if __name__ == "__main__":
    start(main)
