"""How many streams the client of an endpoint holds at once: N requests in flight against a server of a set pace.

    python -m benchmarks.streams [N]

The server, its own process, sends the first token of each answer after a second and each of the 31 others 0.1 s
later, one message a token. Requests are LoadGen's Offline query behind a cap of N in flight, as --concurrency has it.
What is measured beyond the set times is the client's lateness, or the server's.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from benchmarks.endpoint import Instant, message
from benchmarks.start import start
from harness.loadgen.requests import read_requests

FIRST_TOKEN_S = 1.0  # from the request
TOKEN_GAP_S = 0.1
TOKENS = 32  # of an answer
PROMPT_TOKENS = 778
WAVES = 5  # answers one after the other in each stream, at least
STREAM_COUNTS = (256, 1000, 2000)
BACKLOG = 4096  # connections that the server has not yet accepted
ERROR_CHARACTERS = 2000  # of the output of a run that failed


class PacedServer(Instant):
    """Streams tokens at a fixed pace.

    The answers are chunked, as HTTP has it for answers whose length is not known at their start.
    """

    def answer(self, path: bytes, body: bytes) -> bytes:
        """Return the head of a stream's response, and schedule its tokens. Other requests are answered at once."""
        if path != b"/v1/completions" or b'"stream":true' not in body:
            return super().answer(path, body)
        tokens = int(body.rpartition(b'"max_tokens":')[2].partition(b",")[0])
        loop = asyncio.get_running_loop()
        for number in range(tokens):
            is_last = number == tokens - 1
            event = b"data: " + message([number], "length" if is_last else None, "text_completion") + b"\n\n"
            loop.call_later(FIRST_TOKEN_S + number * TOKEN_GAP_S, self.send_event, event, is_last)
        return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    def send_event(self, event: bytes, is_last: bool) -> None:
        """Send an event as a chunk, the last one with the end of the stream."""
        end_of_response = b""
        if is_last:
            event += b"data: [DONE]\n\n"
            end_of_response = b"0\r\n\r\n"
        chunk = b"%x\r\n%s\r\n" % (len(event), event)
        self.transport.write(chunk + end_of_response)  # type: ignore[attr-defined]


def serve(port: Connection) -> None:
    """Serve on a free port, which is sent to `port`, until the process is ended."""

    async def serve_forever() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(PacedServer, "127.0.0.1", 0, backlog=BACKLOG)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve_forever())


class RequestTimes(NamedTuple):
    """When a request was sent, and when its first and its last token came, in seconds of the test."""

    sent: float
    first_token: float
    done: float

    @property
    def ttft_lateness_ms(self) -> float:
        return 1e3 * (self.first_token - self.sent - FIRST_TOKEN_S)

    @property
    def tpot_lateness_ms(self) -> float:
        return 1e3 * ((self.done - self.first_token) / (TOKENS - 1) - TOKEN_GAP_S)


def run_test(streams: int, port: int) -> list[RequestTimes]:
    """Run a test with so many requests in flight by run.py. Ends this program with its output if it fails."""
    shortest_s = WAVES * (FIRST_TOKEN_S + TOKENS * TOKEN_GAP_S)
    flags = ["--model", "demo", "--endpoint", f"http://127.0.0.1:{port}/v1", "--mode", "performance"]
    flags += ["--input-len", str(PROMPT_TOKENS), "--output-len", str(TOKENS), "--concurrency", str(streams)]
    flags += ["--max-in-flight", str(streams), "--min-duration", str(shortest_s)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "run.py", *flags, "--results-dir", folder]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            sys.exit(process.stdout[-ERROR_CHARACTERS:] + process.stderr[-ERROR_CHARACTERS:])
        return read_times(Path(folder) / "latest" / "Performance")


def read_times(test_folder: Path) -> list[RequestTimes]:
    """Return the times of a test's requests. Ends this program if one was not answered."""
    times = []
    for request in read_requests(test_folder):
        if request.sent_ms is None or request.ttft_ms is None or request.done_s is None:
            sys.exit(f"a request of sample {request.sample} has no times: see {test_folder}")
        sent_s = request.begin_s + request.sent_ms / 1e3
        first_token_s = request.begin_s + request.ttft_ms / 1e3
        times.append(RequestTimes(sent_s, first_token_s, request.done_s))
    return times


def most_at_once(times: list[RequestTimes]) -> int:
    """Return the largest number of requests that were in flight at one time."""
    changes = [(request.sent, 1) for request in times] + [(request.done, -1) for request in times]
    in_flight = most = 0
    for _time, change in sorted(changes):
        in_flight += change
        most = max(most, in_flight)
    return most


def measure(streams: int) -> None:
    """Run one test with so many requests in flight, and print its line of the table."""
    port, server_end = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(server_end,), daemon=True)
    server.start()
    times = run_test(streams, port.recv())
    server.kill()
    print(table_line(streams, times), flush=True)


def table_line(streams: int, times: list[RequestTimes]) -> str:
    duration_s = max(request.done for request in times) - min(request.sent for request in times)
    messages_per_s = len(times) * TOKENS / duration_s
    ttft = sorted(request.ttft_lateness_ms for request in times)
    tpot = sorted(request.tpot_lateness_ms for request in times)
    p99 = int(0.99 * len(times))
    return (
        f"{streams:9,} {most_at_once(times):10,} {messages_per_s:10,.0f} {statistics.median(ttft):11.1f} "
        f"{ttft[p99]:8.1f} {statistics.median(tpot):11.2f} {tpot[p99]:8.2f}"
    )


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("streams", type=int, nargs="*", default=STREAM_COUNTS, help="answers in flight, a row each")
    return flags


def main() -> None:
    arguments = parser().parse_args()
    print("             most at             TTFT late, ms        TPOT late, ms")
    print("in flight       once messages/s         p50      p99         p50      p99", flush=True)
    for streams in arguments.streams:
        measure(streams)


if __name__ == "__main__":
    start(main)
