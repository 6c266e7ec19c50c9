"""How many streams the client of an endpoint holds at once: N requests in flight against a server of a set pace.

    python -m benchmarks.streams [N]

The server, its own process, sends the first token of each answer after a second and each of the 31 others 0.1 s
later, one message a token. LoadGen's Offline query behind the cap of N in flight, as --concurrency has it. Whatever is
measured beyond the set times is the client's lateness, or the server's.
"""

import argparse
import asyncio
import csv
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.endpoint import Instant, message
from benchmarks.start import start

FIRST_S, EACH_S, TOKENS = 1.0, 0.1, 32
PROMPT_TOKENS, WAVES = 778, 5
ROWS = (256, 1000, 2000)  # in flight


class Paced(Instant):
    """Streams at a pace; chunked, since nobody knows the length of what is still to come."""

    def answer(self, path: bytes, body: bytes) -> bytes:
        if path != b"/v1/completions" or b'"stream":true' not in body:
            return super().answer(path, body)
        tokens = int(body.rpartition(b'"max_tokens":')[2].partition(b",")[0])
        loop = asyncio.get_running_loop()
        for number in range(tokens):
            end = "length" if number == tokens - 1 else None
            data = b"data: " + message([number], end, "text_completion") + b"\n\n"
            loop.call_later(FIRST_S + number * EACH_S, self.send, data, end is not None)
        return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    def send(self, data: bytes, last: bool) -> None:
        data += b"data: [DONE]\n\n" if last else b""
        tail = b"0\r\n\r\n" if last else b""
        self.transport.write(b"%x\r\n%s\r\n%s" % (len(data), data, tail))  # type: ignore[attr-defined]


def serve(port: Connection) -> None:
    """Answers until it is ended."""

    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(Paced, "127.0.0.1", 0, backlog=4096)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(forever())


def measure(streams: int) -> None:
    """Runs one test with so many in flight, by run.py, and prints its line."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    least = WAVES * (FIRST_S + TOKENS * EACH_S)
    with tempfile.TemporaryDirectory() as folder:
        words = ["--model", "demo", "--endpoint", f"http://127.0.0.1:{ours.recv()}/v1", "--mode", "performance"]
        words += ["--input-len", str(PROMPT_TOKENS), "--output-len", str(TOKENS), "--concurrency", str(streams)]
        words += ["--max-in-flight", str(streams), "--min-duration", str(least)]
        done = subprocess.run(
            [sys.executable, "run.py", *words, "--results-dir", folder], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
        with (Path(folder) / "latest" / "Performance" / "requests.csv").open() as file:
            rows = list(csv.DictReader(file))
    server.kill()
    sent, first, done_at = (
        [float(request[name]) for request in rows] for name in ("sent_s", "first_token_s", "done_s")
    )
    ttft = sorted(1e3 * (there - at - FIRST_S) for at, there in zip(sent, first, strict=True))
    tpot = sorted(1e3 * ((end - at) / (TOKENS - 1) - EACH_S) for at, end in zip(first, done_at, strict=True))
    events = sorted([(at, 1) for at in sent] + [(at, -1) for at in done_at])
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    speed = len(rows) * TOKENS / (max(done_at) - min(sent))
    p99 = int(0.99 * len(rows))
    print(
        f"{streams:9,} {most:10,} {speed:10,.0f} {statistics.median(ttft):11.1f} {ttft[p99]:8.1f} "
        f"{statistics.median(tpot):11.2f} {tpot[p99]:8.2f}",
        flush=True,
    )


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("streams", type=int, nargs="*", default=ROWS, help="answers in flight, a row each")
    return flags


def main() -> None:
    given = parser().parse_args()
    print("             most at             TTFT late, ms        TPOT late, ms")
    print("in flight       once messages/s         p50      p99         p50      p99", flush=True)
    for streams in given.streams:
        measure(streams)


if __name__ == "__main__":
    start(main)
