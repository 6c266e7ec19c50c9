"""A server with an OpenAI completions API that answers at once, and fails in whatever way a test asks for."""

import asyncio
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import AsyncIterable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from aiohttp import web

from tests.conftest import ROOT

TOKENS = [33, 44, 55, 66]
TEXT = " a b c d"
PROBE = 2  # new tokens that the client's probe asks for: it never meets the fault


async def whole(answer: AsyncIterable[Sequence[int]]) -> list[int]:
    """All token ids of an engine's answer."""
    return [token async for tokens in answer for token in tokens]


@dataclass
class Fake:
    """What the server is like, and what it was asked."""

    fault: str = ""
    end: str = "length"  # why an answer ends
    after: int = 0  # answers that come whole before the fault
    every: int = 1  # of those after them, which one meets it
    token_ids: bool = True  # taken and given back
    extras: bool = True  # whether fields outside OpenAI's own are taken
    obeys: bool = True  # max_tokens
    stream_ids: bool = True  # whether streams hold token ids, too
    compresses: str = ""  # "asked": where the client takes it, as it says; "always"
    probe_too: bool = False  # whether the fault meets the probe as well
    key: str = ""
    moved: str = ""  # where it redirects to: "all", or the completions alone
    is_web_page: bool = False  # whether every page is one for people, as of another program at the port
    without_end: str = ""  # the page that goes on and on
    slow_pages: bool = False  # those that a server need not have
    certificate: ssl.SSLContext | None = None
    models: tuple[str, ...] = ("demo",)
    root: str = ""  # of each
    max_model_len: int = 4096
    cached: int | None = None  # prompt tokens of each answer that its usage says came from a cache
    usage: bool = True  # whether it counts tokens, and takes the question
    owned_by: str = "vllm"
    refuses: tuple[str, ...] = ()  # fields that it does not take
    busy_for: int = 0  # completions that it answers with `busy_status` at first
    busy_status: int = 429
    room: int = 0  # completions that it answers at once; others meet `full`; 0: any number
    full: str = "429"  # a status, "overloaded", "Retry-After", or "closed"
    gone_after: int = 0  # completions, after which it refuses all as one that is full; 0: never
    only_text: int = 0  # the status with which it refuses token ids
    no_chat: str = ""  # why it takes no chats
    challenge: str = ""  # WWW-Authenticate of every completion
    counters: str = ""  # what /metrics says beside the rest; {n} is the number of completions
    by_usage: int = 0  # output tokens of each answer as `usage` has them; 0: as many as there are
    frames: tuple[str, ...] = ()  # a stream, each written at once; {usage} is the message about it
    scores: tuple[float, ...] = ()  # log-probabilities that it gives of the tokens it is asked for by id
    delay_s: float = 0.0
    pause_s: float = 0.0  # between the first message of a stream and the rest
    in_one_piece: bool = False  # whether a stream is one write, so that all its tokens arrive at one time
    port: int = 0
    address: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)  # of all completions
    busy: int = 0
    most_busy: int = 0
    stop: Any = None

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.redirect])
        app.router.add_get("/v1/models", self.list_models)
        app.router.add_get("/version", self.version)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/v1/chat/completions", self.complete)
        return app

    @web.middleware
    async def redirect(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.moved == "all" or (self.moved and request.method == "POST"):
            raise web.HTTPTemporaryRedirect("/elsewhere" + request.path)
        if self.is_web_page:
            return web.Response(text="<html><title>Grafana</title></html>", content_type="text/html")
        if self.without_end and request.path.endswith(self.without_end):
            return await self.endless(request, b" " * 1000)
        response: web.StreamResponse = await handler(request)
        return response

    def compress(self, request: web.Request, response: web.StreamResponse) -> None:
        if self.compresses == "always" or (self.compresses and "gzip" in request.headers.get("Accept-Encoding", "")):
            response.content_length = None
            response.enable_compression(web.ContentCoding.gzip)

    async def list_models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "no key"}}, status=401)
        if self.busy_for:
            self.busy_for -= 1
            return web.Response(status=self.busy_status)
        data = [{"id": name, "owned_by": self.owned_by, "max_model_len": self.max_model_len} for name in self.models]
        return web.json_response({"data": [item | {"root": self.root} for item in data] if self.root else data})

    async def version(self, request: web.Request) -> web.Response:
        await asyncio.sleep(3600 if self.slow_pages else 0)
        return web.json_response({"version": "9.9.9"})

    async def metrics(self, request: web.Request) -> web.Response:
        lines = {"num_requests_running": self.busy, "generation_tokens_total": len(TOKENS) * len(self.asked)}
        text = "".join(f"vllm:{name} {value}\n" for name, value in lines.items())
        return web.Response(text=text + self.counters.format(n=len(self.asked)))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.headers.append(dict(request.headers))
        if ("messages" in body) != request.path.endswith("/chat/completions"):
            return web.json_response({"detail": "prompt or messages"}, status=400)
        if self.no_chat and "messages" in body:
            return web.json_response({"error": {"message": self.no_chat}}, status=400)
        if self.challenge:
            return web.json_response({}, status=401, headers={"WWW-Authenticate": self.challenge})
        if self.busy_for:
            self.busy_for -= 1
            return web.Response(text="<html><title>busy</title></html>", status=self.busy_status)
        if set(self.refuses) & set(body):
            return web.json_response({"detail": "unexpected fields"}, status=400)
        if self.only_text and not isinstance(body.get("prompt", ""), str):
            return web.json_response({"error": {"message": "Unmapped prompt format"}}, status=self.only_text)
        if not self.token_ids and not isinstance(body.get("prompt", ""), str):
            return web.json_response({"detail": "prompt must be a string."}, status=400)
        if not self.extras and {"return_token_ids", "min_tokens"} & set(body):
            return web.json_response({"detail": "unexpected fields"}, status=422)
        if not self.usage and "stream_options" in body:
            return web.json_response({"detail": "unexpected fields"}, status=422)
        if self.scores and (ids := body.get("logprob_token_ids")):
            self.asked.append(body)
            top = dict(zip((f"token_id:{token}" for token in ids), self.scores, strict=True))
            choice = {"text": " a", "finish_reason": "length", "logprobs": {"top_logprobs": [top]}}
            return web.json_response({"choices": [choice], "usage": self.counts(body)})
        is_gone = self.gone_after and len(self.asked) >= self.gone_after
        if body["max_tokens"] != PROBE and (is_gone or (self.room and self.busy >= self.room)):
            return self.refuse(request)
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            if body["max_tokens"] != PROBE:
                self.asked.append(body)
            count = len(self.asked)
            await asyncio.sleep(self.delay_s)
            meets = self.probe_too or body["max_tokens"] != PROBE
            due = count > self.after and count % self.every == 0
            faulty = self.fault and meets and (self.probe_too or due)
            return await self.answer(request, body, self.fault if faulty else "")
        finally:
            self.busy -= 1

    async def answer(self, request: web.Request, body: dict[str, Any], fault: str) -> web.StreamResponse:
        if fault == "echo":  # what it was sent, the key included, beyond what is shown of it
            said = f"{'.' * 190} {request.headers.get('Authorization')}"
            return web.json_response({"error": {"message": said}}, status=500)
        if fault.isdigit():
            return web.json_response({"error": {"message": "too much to do"}}, status=int(fault))
        if fault == "halting":
            response = web.StreamResponse(status=500)
            await response.prepare(request)
            for part in (b'{"error": {"mess', b'age": "too much to do"}}'):
                await response.write(part)
                await asyncio.sleep(0.1)
            return response
        if fault == "silent":
            await asyncio.sleep(3600)
        if fault == "dies":
            self.stop()
            await asyncio.sleep(3600)
        if fault == "no JSON":
            return web.Response(text="<html>gateway</html>")
        if fault == "web page":
            return web.Response(text="<html></html>", content_type="text/html")
        if fault == "endless":
            return await self.endless(request, self.event(self.message(body, TOKENS[:1], TEXT[:2], None)))
        answers: dict[str, list[Any]] = {"long": TOKENS * 50, "words": ["a", "b"], "one": TOKENS[:1], "empty": []}
        answers |= {"foreign": [33, 10**6]}
        tokens, text = answers.get(fault, TOKENS), "" if fault == "empty" else TEXT
        if self.obeys and not fault:
            tokens = tokens[: body["max_tokens"]]
        if not body.get("stream"):
            whole = self.message(body, tokens, text, "abort" if fault == "early" else self.end)
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.content_length = len(whole)
            self.compress(request, response)
            await response.prepare(request)
            await response.write(whole[: len(whole) // 2] if fault == "half" else whole)
            if fault == "half":
                request.transport.close()  # type: ignore[union-attr]
            return response
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.compress(request, response)
        await response.prepare(request)
        if self.frames and body["max_tokens"] != PROBE:
            for frame in self.frames:
                await response.write(frame.encode())
                await asyncio.sleep(0.02)
            return response
        first = self.event(self.message(body, tokens[:1], text[:2], None))
        rest = self.event(self.message(body, tokens[1:], text[2:], self.end))
        if "stream_options" in body:
            rest += self.event(json.dumps({"choices": [], "usage": self.counts(body)}).encode())
        rest += self.event(b"[DONE]")
        if self.in_one_piece and not fault:
            await response.write(first + rest)
            return response
        await response.write(first)
        if fault == "half":
            request.transport.close()  # type: ignore[union-attr]
        elif fault == "error":
            await response.write(b'data: {"error": {"message": "out of memory"}}\n\n')
        elif fault in ("", "long", "words", "foreign", "no ids", "one", "empty"):
            await asyncio.sleep(self.pause_s)
            await response.write(rest)
        return response

    @staticmethod
    def event(message: bytes) -> bytes:
        """A message as one event of a stream."""
        return b"data: " + message + b"\n\n"

    def refuse(self, request: web.Request) -> web.Response:
        """What a server says that is full."""
        if self.full == "closed":
            request.transport.close()  # type: ignore[union-attr]
            return web.Response(status=500)
        if self.full == "overloaded":
            return web.json_response({"error": {"message": "Overloaded, come back"}}, status=529)
        if self.full == "Retry-After":
            return web.Response(status=500, headers={"Retry-After": "1"})
        return web.json_response({"error": {"message": "too much to do"}}, status=int(self.full))

    async def endless(self, request: web.Request, line: bytes) -> web.StreamResponse:
        """Goes on and on, as fast as it is read."""
        response = web.StreamResponse()
        await response.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            await response.write(line * 2000)
        return response

    def message(self, body: dict[str, Any], tokens: list[Any], text: str, end: str | None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": end}
        if "messages" in body:
            kind = "delta" if body.get("stream") else "message"
            choice = {"index": 0, kind: {"role": "assistant", "content": text}, "finish_reason": end}
        if body.get("return_token_ids") and (self.stream_ids or not body.get("stream")):
            choice["token_ids"] = tokens if body["max_tokens"] == PROBE or self.fault != "no ids" else None
        counted = {"usage": self.counts(body)} if self.usage and not body.get("stream") else {}
        return json.dumps({"choices": [choice], **counted}).encode()

    def counts(self, body: dict[str, Any]) -> dict[str, Any]:
        details = None if self.cached is None else {"cached_tokens": self.cached}
        count = self.by_usage or len(TOKENS)
        return {"prompt_tokens": 10, "completion_tokens": count, "prompt_tokens_details": details}


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """The server on its own thread, at `fake.address`."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(fake.app(), shutdown_timeout=0.1)
    up = threading.Event()

    async def begin() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", fake.port, ssl_context=fake.certificate)
        await site.start()
        fake.address = f"http{'s' if fake.certificate else ''}://127.0.0.1:{runner.addresses[0][1]}/v1"
        up.set()

    def serve() -> None:
        loop.run_until_complete(begin())
        loop.run_forever()

    @cache
    def stop() -> "asyncio.Task[None]":
        return loop.create_task(runner.cleanup())

    async def stopped() -> None:
        await stop()

    fake.stop = stop
    threading.Thread(target=serve, daemon=True).start()
    assert up.wait(10)
    try:
        yield fake
    finally:
        asyncio.run_coroutine_threadsafe(stopped(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)


@contextmanager
def serving_vllm(*flags: str) -> Iterator[str]:
    """The address of vLLM's own server with the demo model, on the CPU, without a prefix cache."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(ROOT / "demo" / "model")]
    command += ["--served-model-name", "demo", "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024"]
    command += ["--enforce-eager", "--no-enable-prefix-caching", *flags]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert within(180, lambda: answers(f"http://127.0.0.1:{port}/health"))
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def free_ports(count: int) -> int:
    """Return the first of `count` successive free ports. None of them is given to a server that asks for any port."""
    for first in random.sample(range(20_000, 32_000, count), 100):
        with ExitStack() as sockets:
            try:
                for port in range(first, first + count):
                    sockets.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
        return first
    raise AssertionError("no free ports")


def answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(url, timeout=1).status == 200)
    except OSError:
        return False


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.5)
    return False
