"""`compare` on two servers of this machine whose times are set: what its intervals say of differences that are known.

    python -m benchmarks.two_servers [--sessions 10] [--keep-busy]

Both servers sleep: 100 ms to the first token and 50 ms for each of the two that follow; the second is faster by 0, 2
and 5 %. `--keep-busy` counts tests also while other programs use the cores, which sleeping servers hardly feel.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from benchmarks.start import start
from harness.sweep import report
from harness.sweep.experiment_result import ExperimentResult, experiment_rows

FIRST_S, EACH_S, TOKENS = 0.1, 0.05, 3
FASTER = (0.0, 0.02, 0.05)
FLAGS = ["--model", "demo", "--concurrency", "8", "--min-duration", "2", "--max-new-tokens", str(TOKENS)]
FLAGS += ["--total-sample-count", "64"]
RUN = "import sys; from harness.__main__ import main; sys.argv = ['compare', *sys.argv[1:]]; {}main('compare')"
KEEP_BUSY = "from harness.loadgen import background_load as b; b.SPARE_CPU_SHARE = 10; "


def serve(port: int, scale: float) -> None:
    """A server whose answers take `scale` times their time."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "demo", "owned_by": "vllm", "max_model_len": 4096}]})

    async def complete(request: web.Request) -> web.StreamResponse:
        begin, body = asyncio.get_running_loop().time(), await request.json()
        count, response = min(body["max_tokens"], TOKENS), web.StreamResponse()
        pieces = [
            {"index": 0, "text": "a", "token_ids": [33], "finish_reason": "length" if n == count - 1 else None}
            for n in range(count)
        ]
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}
        if not body.get("stream"):
            await asyncio.sleep(scale * (FIRST_S + EACH_S * (count - 1)))
            whole = {"index": 0, "text": "a" * count, "token_ids": [33] * count, "finish_reason": "length"}
            return web.json_response({"choices": [whole], "usage": usage})
        await response.prepare(request)
        for n, piece in enumerate(pieces):
            due = begin + scale * (FIRST_S + EACH_S * n)
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            await response.write(b"data: " + json.dumps({"choices": [piece]}).encode() + b"\n\n")
        last = json.dumps({"choices": [], "usage": usage})
        await response.write(f"data: {last}\n\ndata: [DONE]\n\n".encode())
        return response

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", complete)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


@contextmanager
def server(scale: float) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port, scale), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()


def session(faster: float, keep_busy: bool) -> ExperimentResult | None:
    """What one comparison says of the second server; None where it failed."""
    with tempfile.TemporaryDirectory() as place, server(1.0) as a, server(1 / (1 + faster)) as b:
        code = RUN.format(KEEP_BUSY if keep_busy else "")
        words = [sys.executable, "-c", code, a, b, *FLAGS, "--wait-ready", "30", "--results-dir", place]
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        found = next(Path(place).glob("sweeps/2*-compare/sweep.json"), None)
        rows = experiment_rows(report.read_state(found.parent)) if found else []
        return next((row for row in rows if row.name == "B"), None)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--sessions", type=int, default=10)
    flags.add_argument("--keep-busy", action="store_true")
    return flags


def main() -> None:
    options = parser().parse_args()
    print("| B is faster by | what was said | interval | covers it | pairs |\n|---|---|---|---|---|", flush=True)
    for faster in FASTER:
        for _ in range(options.sessions):
            found = session(faster, options.keep_busy)
            change = found.change if found and not found.background_load else None
            if found is None or change is None:
                print(f"| {100 * faster:g} % | not judged | | | {len(found.pairs) if found else 0} |", flush=True)
                continue
            low, high = (100 * (ratio - 1) for ratio in (change.low, change.high))
            covers, said = "yes" if low <= 100 * faster <= high else "no", change.describe(found.metric)
            interval = f"{low:+.2f} to {high:+.2f} %"
            print(f"| {100 * faster:g} % | {said} | {interval} | {covers} | {len(found.pairs)} |", flush=True)


if __name__ == "__main__":
    start(main)
