"""A server of known capacity, and the search against it in real time.

    python -m benchmarks.known_capacity [--min-duration 300]

The server computes the first token of one request after the other, 60 a second. 15 more tokens follow, which take 4 ms
each. Over 600 s it keeps MLPerf's limits at up to 58.8 queries/s with 19 of 20 sequences of arrivals
(`benchmarks.search`). Other flags go to run.py.
"""

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
from multiprocessing.connection import Connection

from aiohttp import web

from benchmarks.start import start

RATE_PER_S, ANSWER_TOKENS, TOKEN_S = 60.0, 16, 0.004
FLAGS = ["--model", "demo", "--scenario", "server", "--mode", "performance"]
FLAGS += ["--server-target-qps", "max"]
MODELS = {"data": [{"id": "demo", "max_model_len": 4096}]}


def message(ids: list[int], end: str | None) -> bytes:
    """Return the JSON of a message with these token ids. `end` is why the answer ends with it; None if it goes on."""
    choice = {"index": 0, "text": " a" * len(ids), "logprobs": None, "finish_reason": end, "token_ids": ids}
    return json.dumps({"id": "1", "object": "text_completion", "choices": [choice]}).encode()


def event(data: bytes) -> bytes:
    """Return a server-sent event."""
    return b"data: " + data + b"\n\n"


class Server:
    """A server that computes the first tokens of its requests one after the other."""

    free_at = 0.0  # the time by the loop's clock at which it has computed the first tokens of all requests

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for a completion. All tokens after the first come at once, when the last of them is due."""
        body = await request.json()
        tokens = min(ANSWER_TOKENS, body["max_tokens"])
        loop = asyncio.get_running_loop()
        first_at = max(self.free_at, loop.time()) + 1 / RATE_PER_S
        self.free_at = first_at
        answer_s = (tokens - 1) * TOKEN_S  # after the first token
        await asyncio.sleep(first_at - loop.time())
        if not body.get("stream"):
            await asyncio.sleep(answer_s)
            return web.Response(body=message(list(range(tokens)), "length"), content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event(message([0], None)))
        await asyncio.sleep(first_at + answer_s - loop.time())
        await response.write(event(message(list(range(1, tokens)), "length")) + event(b"[DONE]"))
        return response


async def list_models(_request: web.Request) -> web.Response:
    return web.json_response(MODELS)


async def serve_forever(port_sender: Connection) -> None:
    app = web.Application()
    app.add_routes([web.get("/v1/models", list_models), web.post("/v1/completions", Server().complete)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port_sender.send(runner.addresses[0][1])
    await asyncio.Event().wait()


def serve(port_sender: Connection) -> None:
    """Send the number of the server's port, then answer until the process is ended."""
    asyncio.run(serve_forever(port_sender))


def parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        description=__doc__,
        epilog="Further flags are those of run.py.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def main() -> int:
    _, run_flags = parser().parse_known_args()
    port_receiver, port_sender = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(port_sender,), daemon=True)
    server.start()
    endpoint = ["--endpoint", f"http://127.0.0.1:{port_receiver.recv()}/v1"]
    run = subprocess.run([sys.executable, "run.py", *FLAGS, *endpoint, *run_flags], check=False)
    server.kill()
    return run.returncode


if __name__ == "__main__":
    start(main)
