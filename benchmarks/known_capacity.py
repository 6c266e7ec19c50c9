"""A server of known capacity, and the search against it in real time.

    python -m benchmarks.known_capacity [--min-duration 300]

It computes the first token of one request after the other, 60 a second, then gives 15 more at 4 ms each. Over 600 s
58.5 queries/s keep MLPerf's limits with 19 of 20 sequences of arrivals (`benchmarks.search`). Flags go to run.py.
"""

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
from multiprocessing.connection import Connection

from benchmarks.start import start

RATE, TOKENS, TOKEN_S = 60.0, 16, 0.004
FLAGS = ["--model", "demo", "--scenario", "server", "--mode", "performance"]
FLAGS += ["--server-target-qps", "max"]


def event(ids: list[int], end: str | None) -> bytes:
    choice = {"index": 0, "text": " a" * len(ids), "logprobs": None, "finish_reason": end, "token_ids": ids}
    return b"data: " + json.dumps({"id": "1", "object": "text_completion", "choices": [choice]}).encode() + b"\n\n"


def serve(port: Connection) -> None:
    """Answers until it is ended."""
    from aiohttp import web

    free_at = 0.0

    async def complete(request: web.Request) -> web.StreamResponse:
        nonlocal free_at
        body = await request.json()
        count = min(TOKENS, body["max_tokens"])
        loop = asyncio.get_running_loop()
        free_at = first_at = max(free_at, loop.time()) + 1 / RATE
        await asyncio.sleep(first_at - loop.time())
        if not body.get("stream"):
            await asyncio.sleep((count - 1) * TOKEN_S)
            return web.Response(body=event(list(range(count)), "length")[6:], content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event([0], None))
        await asyncio.sleep(first_at + (count - 1) * TOKEN_S - loop.time())
        await response.write(event(list(range(1, count)), "length") + b"data: [DONE]\n\n")
        return response

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "demo", "max_model_len": 4096}]})

    async def forever() -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", complete)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(forever())


def parser() -> argparse.ArgumentParser:
    more = "Further flags are those of run.py."
    return argparse.ArgumentParser(
        description=__doc__, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def main() -> int:
    _, more = parser().parse_known_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    endpoint = ["--endpoint", f"http://127.0.0.1:{ours.recv()}/v1"]
    code = subprocess.run([sys.executable, "run.py", *FLAGS, *endpoint, *more], check=False).returncode
    server.kill()
    return code


if __name__ == "__main__":
    start(main)
