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
from harness.sweep.experiment_result import ExperimentResult, experiment_rows, result_named

FIRST_TOKEN_S, TOKEN_GAP_S = 0.1, 0.05  # of the slower server
TOKENS = 3  # of an answer
SPEED_DIFFERENCES = (0.0, 0.02, 0.05)  # by how much server B is faster, as a share
FLAGS = ["--model", "demo", "--concurrency", "8", "--min-duration", "2", "--max-new-tokens", str(TOKENS)]
FLAGS += ["--total-sample-count", "64"]
COMPARE = "import sys; from harness.__main__ import main; sys.argv = ['compare', *sys.argv[1:]]; {}main('compare')"
KEEP_BUSY = "from harness.loadgen import background_load as b; b.SPARE_CPU_SHARE = 10; "


class SleepingServer:
    """A server that sleeps for the time of an answer, which is `scale` times the set time."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/completions", self.complete)
        return app

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "demo", "owned_by": "vllm", "max_model_len": 4096}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Answer a request for a completion, streamed or as a whole."""
        begin = asyncio.get_running_loop().time()
        body = await request.json()
        tokens = min(body["max_tokens"], TOKENS)
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens}
        if body.get("stream"):
            return await self.stream(request, begin, tokens, usage)
        await asyncio.sleep(self.token_s(tokens - 1))
        return web.json_response({"choices": [choice(tokens, is_end=True)], "usage": usage})

    async def stream(
        self, request: web.Request, begin: float, tokens: int, usage: dict[str, int]
    ) -> web.StreamResponse:
        """Send an event for each token when it is due, and the usage last.

        `begin` is the loop's time at which the request came.
        """
        loop = asyncio.get_running_loop()
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(tokens):
            due = begin + self.token_s(number)
            await asyncio.sleep(max(0.0, due - loop.time()))
            await response.write(event({"choices": [choice(1, is_end=number == tokens - 1)]}))
        await response.write(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    def token_s(self, number: int) -> float:
        """Return the seconds from the request to a token; the first is number 0."""
        return self.scale * (FIRST_TOKEN_S + TOKEN_GAP_S * number)


def choice(tokens: int, is_end: bool) -> dict[str, object]:
    """Return the part of an answer in OpenAI's format. Each token is an "a"."""
    finish_reason = "length" if is_end else None
    return {"index": 0, "text": "a" * tokens, "token_ids": [33] * tokens, "finish_reason": finish_reason}


def event(content: object) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


def serve(port: int, scale: float) -> None:
    web.run_app(SleepingServer(scale).application(), host="127.0.0.1", port=port, print=None)


@contextmanager
def server(scale: float) -> Iterator[str]:
    """Yield the address of a server in a process of its own, which is ended afterwards."""
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port, scale), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()


def compare(speed_difference: float, keep_busy: bool) -> ExperimentResult | None:
    """Run one comparison, and return its result for server B. None if it failed."""
    code = COMPARE.format(KEEP_BUSY if keep_busy else "")
    scale = 1 / (1 + speed_difference)
    with tempfile.TemporaryDirectory() as folder, server(1.0) as address_a, server(scale) as address_b:
        command = [sys.executable, "-c", code, address_a, address_b, *FLAGS]
        command += ["--wait-ready", "30", "--results-dir", folder]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        state_files = list(Path(folder).glob("sweeps/2*-compare/sweep.json"))
        if not state_files:
            return None
        return result_named(experiment_rows(report.read_state(state_files[0].parent)), "B")


def table_row(speed_difference: float, result: ExperimentResult | None) -> str:
    """Return the row of a comparison. It is not judged if other programs used the machine, or without a change."""
    difference_percent = 100 * speed_difference
    change = result.change if result and not result.background_load else None
    if result is None or change is None:
        pairs = len(result.pairs) if result else 0
        return f"| {difference_percent:g} % | not judged | | | {pairs} |"
    low, high = 100 * (change.low - 1), 100 * (change.high - 1)
    covers = "yes" if low <= difference_percent <= high else "no"
    verdict, interval = change.describe(result.metric, "A"), f"{low:+.2f} to {high:+.2f} %"
    return f"| {difference_percent:g} % | {verdict} | {interval} | {covers} | {len(result.pairs)} |"


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--sessions", type=int, default=10)
    flags.add_argument("--keep-busy", action="store_true")
    return flags


def main() -> None:
    arguments = parser().parse_args()
    print("| B is faster by | what was said | interval | covers it | pairs |\n|---|---|---|---|---|", flush=True)
    for speed_difference in SPEED_DIFFERENCES:
        for _session in range(arguments.sessions):
            result = compare(speed_difference, arguments.keep_busy)
            print(table_row(speed_difference, result), flush=True)


if __name__ == "__main__":
    start(main)
