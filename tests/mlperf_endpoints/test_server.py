"""The vLLM server that `endpoints run` starts for the official client."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness.common.errors import EngineError
from harness.mlperf_endpoints import server
from tests.conftest import ROOT

SMALL = "--enforce-eager --max-model-len 1024 --max-num-seqs 16 --served-model-name demo/model"
# A client that asks the server for one answer and leaves what the official one would.
CLIENT = """#!{python}
import json, pathlib, sys, urllib.request, yaml
given = yaml.safe_load(open(sys.argv[-1]))
url, folder = given["endpoint_config"]["endpoints"][0], pathlib.Path(given["report_dir"])
messages = [{{"role": "user", "content": "Hi"}}]
given_to = {{"model": given["model_params"]["name"], "messages": messages, "max_tokens": 2}}
request = urllib.request.Request(f"{{url}}/v1/chat/completions", json.dumps(given_to).encode(),
                                 {{"Content-Type": "application/json"}})
answer = json.load(urllib.request.urlopen(request))
(folder.parent / "answers").open("a").write(f"{{answer['usage']['prompt_tokens']}}\\n")
samples = given["settings"]["runtime"]["n_samples_to_issue"]
(folder / "performance").mkdir()
(folder / "performance" / "result_summary.json").write_text(json.dumps(dict(
    n_samples_issued=samples, n_samples_completed=samples, n_samples_failed=0, duration_ns=10**10, complete=True)))
"""


def test_the_first_error_of_a_server_is_told_not_one_that_a_warning_names(tmp_path: Path) -> None:
    lines = ("(APIServer pid=1) WARNING [utils.py:2] this can cause `OSError: [Errno 24] Too many files`",
             "(EngineCore pid=2) ERROR 11-25 10:16:00 [core.py:3] ValueError: too little memory.",
             "RuntimeError: Engine core initialization failed. See root cause above.")  # fmt: skip
    (tmp_path / server.LOG).write_text("\n".join(lines))
    ended = subprocess.Popen(["false"])
    ended.wait()
    with pytest.raises(EngineError, match=r"ended with code 1 .*\(ValueError: too little memory\.\): see "):
        server.wait(ended, 1, tmp_path / server.LOG)


def test_a_command_is_disclosed_without_paths_of_this_machine(tmp_path: Path) -> None:
    told = server.public_command(server.command("m", 8000, tmp_path, ["--max-num-seqs", "4"]))
    assert told.startswith("python -m vllm") and str(tmp_path) not in told and sys.executable not in told
    assert "--chat-template plain.jinja" in told and told.endswith("--max-num-seqs 4")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def run(root: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """`endpoints run` on the demo, with its own server."""
    client = root / "client"
    client.write_text(CLIENT.format(python=sys.executable))
    client.chmod(0o755)
    words = ["-m", "harness", "endpoints", "run", "camp", "--model", str(ROOT / "demo" / "model")]
    words += ["--client", str(client), "--c-max", "48", "--points", "7", "--seconds", "1", *more]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True, timeout=240
    )


def test_a_server_elsewhere_takes_no_flags(tmp_path: Path) -> None:
    ended = run(tmp_path, "--endpoint", "http://127.0.0.1:1", "--serve", "--enforce-eager")
    assert ended.returncode == 2 and "--serve" in ended.stderr


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run(tmp_path, "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 2 and "--port" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.engine
def test_the_server_lasts_as_long_as_it_is_measured(tmp_path: Path) -> None:
    port = free_port()
    given = ("--port", str(port), f"--serve={SMALL.replace('demo/model', str(ROOT / 'demo' / 'model'))}")
    ended = run(tmp_path, *given)
    assert ended.returncode == 0, ended.stderr + (tmp_path / "camp" / "server.log").read_text()[-2000:]
    answers = (tmp_path / "camp" / "points" / "answers").read_text().split()
    assert len(answers) == 14 and len(set(answers)) == 1  # a trial and a point, at seven levels
    with socket.socket() as closed:
        assert closed.connect_ex(("127.0.0.1", port)) != 0
    again = run(tmp_path, *given)
    assert again.returncode == 0 and "server.log" not in again.stdout  # nothing left to measure, so none is started


@pytest.mark.engine
def test_a_server_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    ended = run(tmp_path, "--port", str(free_port()), "--serve=--no-such-flag")
    assert ended.returncode == 3
    assert "server.log" in ended.stderr and "Traceback" not in ended.stderr
    assert "no-such-flag" in (tmp_path / "camp" / "server.log").read_text()
