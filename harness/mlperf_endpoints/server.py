"""A vLLM server for the official client alone: started, waited for, and ended with the command."""

import contextlib
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.common import files, processes
from harness.common.errors import EngineError, UsageError
from harness.runs.ending import root_cause

HOST, LOG, TEMPLATE = "127.0.0.1", "server.log", "plain.jinja"
PLAIN = "{%- for message in messages %}{{ message['content'] }}{%- endfor %}"  # a chat template that adds nothing
READY_S, AGAIN_S = 1800.0, 1.0  # for the weights and all that is compiled; between two looks


def command(model: str, port: int, folder: Path, more: Sequence[str]) -> list[str]:
    """What starts the server. The prompts of the measurements have no salt, so no cache may know them."""
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", HOST),
        *("--port", str(port), "--chat-template", str((folder / TEMPLATE).resolve()), "--no-enable-prefix-caching"),
        *more,
    ]


def public_command(words: Sequence[str]) -> str:
    """The command as others may run it: without this machine's paths to Python and to the chat template."""
    return shlex.join(["python", *(TEMPLATE if word.endswith(f"/{TEMPLATE}") else word for word in words[1:])])


def address(port: int) -> str:
    return f"http://{HOST}:{port}"


@contextlib.contextmanager
def serving(words: Sequence[str], port: int, folder: Path) -> Iterator[None]:
    """The server runs while this does; its output goes to server.log in the folder.

    Raises UsageError where the port is taken, EngineError where the server ends before it is ready.
    """
    with socket.socket() as free:
        if free.connect_ex((HOST, port)) == 0:
            raise UsageError(f"--port {port} is taken: choose another, or give that server as --endpoint.")
    files.write_text(folder / TEMPLATE, PLAIN)
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            words, stdout=log, stderr=log, env=os.environ | {"VLLM_NO_USAGE_STATS": "1"}, start_new_session=True
        )
        try:
            wait(process, port, folder / LOG)
            yield
        finally:
            processes.end_group(process)


def wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Until the server answers that it is healthy."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if process.poll() is not None:
            ended = f"vLLM's server ended with code {process.returncode} before it was ready"
            cause = root_cause(log)
            raise EngineError(f"{ended}{f' ({cause})' if cause else ''}: see {log}.")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address(port)}/health", timeout=5) as page:
            if page.status == 200:
                return
        time.sleep(AGAIN_S)
    raise EngineError(f"vLLM's server was not ready after {READY_S:,.0f} s: see {log}.")
