"""Engines behind an OpenAI endpoint: what is asked of them, how they are distinguished, and every way they fail."""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from aiohttp import web

from harness.config import pretrained, server_addresses
from harness.config.models import DEFAULT_MODEL
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import BenchmarkError, EndpointError, EngineError, UsageError
from harness.core.secrets import hide_known
from harness.engines import discovery, openai
from harness.engines.answer_delivery import Delivery, Exchange, ServerUse
from harness.engines.completions import EventReader
from harness.engines.discovery import config_of_served_model
from harness.engines.openai import OpenAI
from harness.engines.protocol import Engine, Sampling
from harness.engines.vllm import VLLM
from harness.loadgen.watchdog import Watchdog
from harness.report import report as rendering
from tests.conftest import patience, run, tells
from tests.support import example_runs
from tests.support.fake_servers import TEXT, TOKENS, Fake, serving, serving_vllm, whole
from tests.support.warm_process import cold

PROMPT = [702, 33, 44, 55]
IDS_BOTH_WAYS = "token ids in, token ids out"
CACHING = "caching is unknown"
KEY = "sk-" + "neverwritethisdown"
FAULTS = {  # what the server does -> what the run says
    "429": "answered 429: too much to do",
    "500": "answered 500: too much to do",
    "halting": "answered 500: too much to do",
    "silent": r"did not finish an answer within 1 s \(--request-timeout\): .* \(--max-in-flight\)",
    "dies": "broke the connection off",
    "half": "broke the connection off in the middle of an answer$",
    "no JSON": "",
    "long": "ignores max_tokens: it sent 200 tokens instead of 128",
    "words": "sent an invalid completion",
    "endless": "sent more than .* MiB in one answer, and continued|still sending after 1,257 messages",
    "no ids": "sent text without its token ids",
    "foreign": "sent the token id 1,000,000, which is none of the model's vocabulary of",
}


@contextmanager
def client(*fakes: Fake, sampling: Sampling | None = None, processes: int = 0, **flags: Any) -> Iterator[OpenAI]:
    """A client of these servers, started."""
    with ExitStack() as stack:
        addresses = tuple(stack.enter_context(serving(fake)).address for fake in fakes)
        config = RunConfig(**{"model": "demo", "endpoint": addresses, **flags})
        engine = OpenAI(config, 1024, sampling, processes)
        try:
            engine.start()
            yield engine
        finally:
            engine.close()


@pytest.fixture(params=[1, 2])
def processes(request: pytest.FixtureRequest) -> int:
    """Clients: in this process, or in others."""
    return int(request.param)


def answer(engine: OpenAI, stream: bool) -> list[Sequence[int]]:
    async def work() -> list[Sequence[int]]:
        return [tokens async for tokens in engine.stream(PROMPT, is_whole=not stream)]

    return engine.run(work(), lambda: None)


def delivery(engine: OpenAI, stream: bool) -> Delivery:
    """How one answer comes."""
    exchange = Exchange(0.0)

    async def work() -> None:
        async for _ in engine.stream(PROMPT, None, exchange, is_whole=not stream):
            pass

    engine.run(work(), lambda: None)
    assert exchange.delivery is not None
    return exchange.delivery


def test_token_ids_go_in_and_come_out(processes: int) -> None:
    with client(fake := Fake(), processes=processes) as engine:
        assert answer(engine, stream=True) == [TOKENS[:1], TOKENS[1:]]
        assert answer(engine, stream=False) == [TOKENS]
        assert engine.args["exchange"] == IDS_BOTH_WAYS
        assert engine.args["server"] == "vLLM 9.9.9"
    streamed, whole = fake.asked
    assert streamed["prompt"] == whole["prompt"] == PROMPT
    assert streamed["stream"] and not whole.get("stream")
    for body in fake.asked:
        assert (body["temperature"], body["max_tokens"], body["min_tokens"]) == (0, 128, 1)
        assert body["return_token_ids"] is True


def test_text_goes_where_token_ids_do_not() -> None:
    with client(fake := Fake(token_ids=False, extras=False)) as engine:
        tokenizer = engine.tokenizer
        streamed, (whole,) = answer(engine, stream=True), answer(engine, stream=False)
        assert tokenizer.decode([*streamed[0], *streamed[1]]) == tokenizer.decode(whole) == TEXT
        assert str(engine.args["exchange"]).startswith("text in, text out, ")
        assert "does not take min_tokens" in engine.args["exchange"]
        assert [body["prompt"] for body in fake.asked] == [tokenizer.decode(PROMPT, skip_special_tokens=True)] * 2


def test_a_gateway_that_drops_the_token_ids_of_streams_is_asked_for_text() -> None:
    """As LiteLLM does in front of vLLM, which gives them."""
    with client(Fake(stream_ids=False), scenario="server") as engine:
        assert str(engine.args["exchange"]).startswith("token ids in, text out, ")
        first, rest = answer(engine, stream=True)
        assert engine.tokenizer.decode([*first, *rest]) == TEXT
        assert engine.tokenizer.decode(answer(engine, stream=False)[0]) == TEXT
    with client(Fake(stream_ids=False), scenario="offline") as engine:  # which streams nothing
        assert engine.args["exchange"] == IDS_BOTH_WAYS


@pytest.mark.parametrize("compresses", ["asked", "always"])
def test_a_gateway_that_compresses(compresses: str) -> None:
    with client(Fake(compresses=compresses), scenario="server") as engine:
        assert answer(engine, stream=True) == [TOKENS[:1], TOKENS[1:]]
        assert answer(engine, stream=False) == [TOKENS]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_that_fails_gives_nothing(fault: str, stream: bool) -> None:
    said = FAULTS[fault]
    if fault == "no JSON":
        said = "with a web page, .*: gateway$"
    with client(Fake(fault=fault), request_timeout=1.0) as engine:
        begin = time.monotonic()
        with pytest.raises(EndpointError, match=said):
            answer(engine, stream)
        assert time.monotonic() - begin < patience(5)
        assert engine.servers[0].in_flight == 0


def test_requests_that_fail_in_another_process() -> None:
    with client(Fake(fault="429"), processes=2) as engine:
        with pytest.raises(EndpointError, match="answered 429: too much to do"):
            answer(engine, stream=True)
        assert (engine.servers[0].in_flight, engine.failure) == (0, None)
    with client(Fake(fault="silent"), processes=2) as engine:
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # one of an earlier test that has just ended
                if "spawn_main" in " ".join(process.cmdline()):
                    threading.Timer(0.5, process.kill).start()
        with pytest.raises(EngineError, match="a client process ended unexpectedly"):
            answer(engine, stream=True)
        assert engine.failure == "a client process ended unexpectedly"


@pytest.mark.slow
def test_clients_in_processes_take_text_and_share_the_load() -> None:
    async def many(engine: OpenAI) -> list[Sequence[int]]:
        return await asyncio.gather(*(whole(engine.stream(PROMPT, is_whole=True)) for _ in range(40)))

    with client(fake := Fake(token_ids=False, extras=False, delay_s=0.1), processes=2) as engine:
        answers = engine.run(many(engine), lambda: None)
        assert {engine.tokenizer.decode(tokens) for tokens in answers} == {TEXT}
    assert fake.most_busy > 20


@pytest.mark.parametrize(("here", "processes"), [(1, 1), (2, 1), (6, 3), (64, 8)])
def test_half_of_the_cores_are_clients_and_an_evaluation_has_one(
    here: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai, "core_count", lambda: here)
    plan = resolve(RunConfig(model="demo", endpoint=("http://h/v1",)), [], 0)
    for choosing, count in ((False, processes), (True, 1)):
        engine = openai.create(plan, Path(), choosing)
        engine.loop.close()
        assert engine.processes == count


def test_an_answer_without_its_end_is_none() -> None:
    with client(Fake(fault="early")) as engine:
        with pytest.raises(EndpointError, match="before its end"):
            answer(engine, stream=True)
        with pytest.raises(EndpointError, match="finish_reason 'abort'"):
            answer(engine, stream=False)


def test_an_error_in_mid_stream_is_one() -> None:
    with client(Fake(fault="error")) as engine, pytest.raises(EndpointError, match="out of memory"):
        answer(engine, stream=True)


def test_the_load_goes_to_the_server_with_the_fewest_in_flight() -> None:
    async def many(engine: OpenAI) -> None:
        await asyncio.gather(*(whole(engine.stream(PROMPT, is_whole=True)) for _ in range(60)))

    with client(slow := Fake(delay_s=0.2), fast := Fake(delay_s=0.02), max_in_flight=4) as engine:
        engine.run(many(engine), lambda: None)
    assert len(slow.asked) + len(fast.asked) == 60
    assert len(fast.asked) > 3 * len(slow.asked)
    assert max(slow.most_busy, fast.most_busy) <= 4


def refused(*fakes: Fake, **flags: Any) -> str:
    with pytest.raises(UsageError) as caught, client(*fakes, **flags):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_servers_own_metrics_come_with_it() -> None:
    with serving(Fake()) as fake, serving(Fake()) as other, client(fake, other) as engine:
        texts = engine.prometheus_metrics()
        assert [text.splitlines()[0] for text in texts] == ["vllm:num_requests_running 0"] * 2
        assert "vllm:generation_tokens_total 0" in texts[0]


def test_servers_must_be_alike() -> None:
    assert "serve different models" in refused(Fake(models=("a",)), Fake(models=("b",)))
    assert "take prompts differently" in refused(Fake(), Fake(token_ids=False, extras=False))


def test_what_is_no_such_server_is_refused_before_any_test(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ignores max_tokens" in refused(Fake(obeys=False))
    assert "with a web page, not as the completions API; check what serves there: gateway." in refused(
        Fake(fault="no JSON", probe_too=True)
    )
    with serving(Fake()) as fake:
        config = RunConfig(model="demo", endpoint=(fake.address.removesuffix("/v1"),))
        engine = OpenAI(config, 1024)
        with pytest.raises(UsageError, match=r"answers 404 .*/v1"):
            engine.start()
        engine.close()
    monkeypatch.setenv("OPENAI_API_KEY", "a\nb")
    assert tells(refused(Fake()), "OPENAI_API_KEY ", " header")


def test_pages_without_end_are_not_read_on() -> None:
    for page in ("/models", "/completions"):
        gone_on = r"^(--endpoint )?http\S+ sent more than 16 MiB in one answer, and continued\.?$"
        with pytest.raises(BenchmarkError, match=gone_on), client(Fake(without_end=page)):
            pass
    for page in ("/version", "/metrics"):  # which it need not have
        with client(Fake(without_end=page)) as engine:
            assert len(answer(engine, stream=False)[0]) == len(TOKENS)
            assert engine.prometheus_metrics() == [] or page == "/version"


def test_a_line_without_end_is_not_read_on() -> None:
    reader = EventReader("http://host/v1")
    with pytest.raises(EndpointError, match=r"^http://host/v1 .* 16 MiB"):
        while True:
            reader.feed(b"x" * 2**20)


def test_answers_of_exact_length_are_counted() -> None:
    exact = Sampling(max_new_tokens=8, min_new_tokens=8, exact=True)
    with client(Fake(), sampling=exact) as engine:  # which has four tokens to give
        for stream in (True, False):
            with pytest.raises(EndpointError, match=r"max_tokens: .* 4 tokens instead of 8"):
                answer(engine, stream)


def test_which_servers_are_on_this_machine() -> None:
    assert server_addresses.is_here(()) and server_addresses.is_here(
        ("http://localhost:1/v1", "http://127.0.0.5/v1", "http://[::1]:2/v1")
    )
    assert not server_addresses.is_here(("http://127.0.0.1/v1", "http://10.0.0.1/v1"))
    assert not server_addresses.is_here(("http://gpu-box/v1",))
    local, remote = (resolve(RunConfig(model="demo", endpoint=(f"http://{h}/v1",)), [], 0) for h in ("localhost", "h"))
    assert (local.watched_gpus, remote.watched_gpus) == (None, 0)


def test_a_context_too_short_is_refused() -> None:
    assert tells(refused(Fake(max_model_len=512)), "contexts of 512 tokens", "needs 1,024")


def test_nobody_there_is_bad_usage() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    config = RunConfig(model="demo", endpoint=(address,))
    engine = OpenAI(config, 1024)
    with pytest.raises(UsageError, match=f"--endpoint {address}: no server there"):
        engine.start()
    engine.close()


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "set OPENAI_API_KEY" in refused(Fake(key=KEY))
    monkeypatch.setenv("OPENAI_API_KEY", "another key")
    assert "refuses the key in OPENAI_API_KEY" in refused(Fake(key=KEY))
    monkeypatch.setenv("ENDPOINT_HEADERS", "Authorization: Bearer third")
    assert "refuses the Authorization in ENDPOINT_HEADERS" in refused(Fake(key=KEY))
    monkeypatch.delenv("ENDPOINT_HEADERS")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with client(Fake(key=KEY)) as engine:
        assert answer(engine, stream=False) == [TOKENS]
        assert KEY not in json.dumps(engine.args)


@pytest.mark.parametrize("stream", [True, False])
def test_what_a_server_counts_itself_is_kept(processes: int, stream: bool) -> None:
    scenario = "server" if stream else "offline"
    with client(Fake(cached=8), processes=processes, scenario=scenario) as engine:
        found = ServerUse.from_deliveries([delivery(engine, stream) for _ in range(3)])
        assert (found.prompt_tokens, found.cached_tokens, found.output_tokens, found.answers) == (30, 24, 12, 3)
        assert found.cached_percent == pytest.approx(80) and found.tokens == found.client_tokens == 12
    with client(Fake(), processes=processes, scenario=scenario) as engine:
        found = ServerUse.from_deliveries([delivery(engine, stream)])
        assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (10, None, 4)  # of caches nothing
    with client(Fake(usage=False), processes=processes, scenario=scenario) as engine:
        found = ServerUse.from_deliveries([delivery(engine, stream)])
        assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (None, None, None)


def test_a_server_with_a_switch_for_its_cache_is_asked_for_none() -> None:
    for name, switched in (("llamacpp", True), ("vllm", False)):
        with client(fake := Fake(owned_by=name)) as engine:
            assert str(engine.args["exchange"]).endswith("; cache_prompt false") == switched
            answer(engine, stream=False)
        assert [body.get("cache_prompt") for body in fake.asked] == [False if switched else None]


def test_a_report_says_what_came_from_the_servers_cache(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", endpoint="http://h/v1")
    config = json.loads((folder / "config.json").read_text())
    config["engine_args"] = {"server": "vLLM 1.0", "serves": "demo", "exchange": "text in", "max_in_flight": 64}
    (folder / "config.json").write_text(json.dumps(config))
    told = {"prompt_tokens": 6916, "cached_tokens": 6900, "output_tokens": 16}
    (folder / "Performance" / "server.json").write_text(json.dumps(told))
    summary, page = rendering.build_report(folder), (folder / "report.md").read_text()
    assert tells(page, "6,916 prompt tokens, 99.8 % of them from its cache", "16 output tokens")
    (said,) = [line for line in map(str, summary.meta.deviations) if "cache" in line]
    assert tells(said, "99.8 %", "prompt", "cache")


def test_whoever_hangs_is_named_by_its_address() -> None:
    with client(Fake()) as engine:
        watchdog = Watchdog(engine, 1e-9)
        with pytest.raises(EngineError, match=f"client of vLLM 9.9.9 at {engine.config.endpoint[0]} "):
            watchdog.check_progress()


def test_redirects_are_not_followed() -> None:
    said = "a redirect, which is not followed, to /elsewhere/v1/"
    assert f"answers 307: {said}models." in refused(Fake(moved="all"))
    assert f"answers 307 to a completion: {said}completions." in refused(Fake(moved="completions"))
    with client(fake := Fake()) as engine:
        fake.moved = "completions"
        with pytest.raises(EndpointError, match=f"answered 307: {said}completions"):
            answer(engine, stream=True)


def test_a_web_page_is_no_server() -> None:
    said = refused(Fake(is_web_page=True))
    assert tells(said, "--endpoint http://", "a web page, not as an OpenAI server", "port", "Grafana")


def test_a_web_page_is_no_completion() -> None:
    with client(Fake(fault="web page")) as engine, pytest.raises(EndpointError, match=r"with a web page.*there$"):
        answer(engine, stream=True)
    assert "with a web page" in refused(Fake(fault="web page", probe_too=True))


def test_a_page_that_a_server_need_not_have_may_be_slow() -> None:
    with client(Fake(slow_pages=True)) as engine:
        assert engine.args["server"] == "vLLM"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_a_certificate_that_nobody_signed(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made_by = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*made_by, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    said = refused(Fake(certificate=context))
    assert "its certificate is not trusted: " in said and "SSL_CERT_FILE" in said and "no server" not in said


def test_a_proxy_that_is_not_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://me:secret@127.0.0.1:1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config = RunConfig(model="demo", endpoint=(f"http://127.0.0.1:{free.getsockname()[1]}/v1",))
    engine = OpenAI(config, 1024)
    with pytest.raises(UsageError, match=r"proxy .*not used") as caught:
        engine.start()
    engine.close()
    assert "secret" not in str(caught.value)


def test_a_server_that_echoes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key := "key of no known maker")
    with client(Fake(fault="echo")) as engine, pytest.raises(EndpointError, match="answered 500") as caught:
        answer(engine, stream=False)
    assert key[:4] not in str(caught.value).partition("500")[2]

    async def version(*_: object) -> web.Response:
        return web.json_response({"version": f"\x1b[2J {key}"})

    monkeypatch.setattr(Fake, "version", version)
    with client(Fake(models=(f"a {key}\x1b[2J",))) as engine:
        assert key not in str(engine.args) and "\\x1b" not in repr(engine.args)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"backend": "openai"}, "openai needs .*--endpoint http://"),
        ({"backend": "vllm", "endpoint": "http://h:8000/v1"}, "--backend vllm .*--endpoint"),
        ({"endpoint": "h:8000/v1"}, "http://host:8000/v1; got 'h:8000/v1'"),
        ({"endpoint": "ftp://h/v1"}, "takes an address such as"),
        ({"endpoint": "http://h:99999/v1"}, "takes an address such as"),
        ({"endpoint": "http://"}, "takes an address such as"),
        ({"endpoint": "http://me:secret@h/v1"}, "takes a plain address"),
        ({"endpoint": ("http://h/v1", "http://h/v1/")}, "given twice"),
        ({"endpoint": "http://h/v1", "tensor_parallel_size": 2}, "--tensor-parallel-size: .*--endpoint"),
        ({"endpoint": "http://h/v1", "quantization": "fp8"}, "--quantization: .*--endpoint"),
        ({"endpoint": "http://h/v1", "engine_arg": "enforce_eager=true"}, "--engine-arg: .*--endpoint"),
        ({"endpoint": "http://h/v1", "request_timeout": 0}, "--request-timeout takes a number above 0"),
        ({"request_timeout": 5}, "--request-timeout: only with --endpoint"),
    ],
)
def test_flags_that_do_not_go_together(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunConfig(**flags)
    assert re.search(said, str(caught.value))
    assert "secret" not in str(caught.value)


def test_backend_follows_the_endpoint() -> None:
    assert RunConfig().backend == "vllm"
    config = RunConfig(endpoint=("http://h:8000/v1/",))
    assert (config.backend, config.endpoint) == ("openai", ("http://h:8000/v1",))


def test_what_cannot_be_seen_is_said() -> None:
    with client(Fake()) as engine:
        config = RunConfig(model="demo", endpoint=tuple(engine.args["endpoints"]))
        plan = resolve(config, [], 0)
        assert not tells("\n".join(map(str, plan.deviations)), CACHING)
        plan = replace(plan, engine_state=engine.engine_state)
        assert tells("\n".join(map(str, plan.deviations)), CACHING)
        assert plan.setup["quantization"] == "unknown"
        assert plan.setup["endpoint"] == engine.args["endpoints"]


SHORT = ("--mode", "performance", "--total-sample-count", "16", "--min-duration", "1")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["offline", "server"])
def test_a_run_says_who_answered(tmp_path: Path, scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    rate = ("--server-target-qps", "100") if scenario == "server" else ()
    with serving(Fake(key=KEY)) as fake:
        flags = (*SHORT, "--scenario", scenario, "--min-duration", "5" if rate else "1", *rate, "--extra-metrics")
        done = run(tmp_path, "--endpoint", fake.address, *flags, start=cold)
    assert done.code == 0, done.output
    summary, report = done.summary, (done.folder / "report.md").read_text()
    test = summary["run"]["performance"]
    assert test["total_new_tokens"] == len(TOKENS) * test["samples"]
    assert summary["meta"]["endpoints"] == [fake.address]
    assert summary["meta"]["precision"] == "unknown"
    assert summary["meta"]["prefix_caching"] is None
    assert CACHING in report[:2000]
    assert re.search(r"\| requests in flight \| .*1,024.* \|\n\| client processes \| \d \|\n", report)
    assert "| engine | vLLM 9.9.9, behind an endpoint |" in report and f"| exchange | {IDS_BOTH_WAYS} |" in report
    if rate:  # Offline is over before a second has passed
        assert test["usage"]["generation_tokens_per_sec"]["mean"] == pytest.approx(len(TOKENS) * 100, rel=0.5)
        assert "| requests running |" in report
    kept = [path for path in done.results.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert kept == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"), [("dies", "broke the connection off"), ("429", "answered 429"), ("half", "")]
)
def test_a_run_ends_in_one_line(tmp_path: Path, fault: str, said: str) -> None:
    with serving(Fake(fault=fault, after=40)) as fake:
        flags = (*SHORT, "--scenario", "server", "--server-target-qps", "50")
        done = run(tmp_path, "--endpoint", fake.address, *flags, start=cold)
    assert done.code == 3, done.output
    assert f"error: {fake.address} " in done.output and said in done.output
    assert "Traceback" not in done.output + (done.folder / "engine.log").read_text()
    assert done.status["status"] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_ends_a_run_at_fixed_concurrency(fault: str, tmp_path: Path) -> None:
    with serving(Fake(fault=fault, after=40)) as fake:
        flags = ("--concurrency", "1,4", "--mode", "performance", "--total-sample-count", "64", "--min-duration", "2")
        done = run(tmp_path, "--endpoint", fake.address, *flags, "--request-timeout", "1", start=cold)
    assert done.code == 3, done.output
    assert f"error: {fake.address}" in done.output and re.search(FAULTS[fault].rstrip("$"), done.output)
    assert "Traceback" not in done.output + (done.folder / "engine.log").read_text()
    assert done.status["status"] == "failed"


@pytest.mark.slow
def test_headers_of_the_environment_reach_the_server(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDPOINT_HEADERS", "X-Team: search-quality\n\nX-Route:blue-green")
    with client(fake := Fake(), processes=processes) as engine:
        answer(engine, stream=True)
    for headers in fake.headers:
        assert (headers["X-Team"], headers["X-Route"]) == ("search-quality", "blue-green")
    assert fake.headers and "search-quality" not in hide_known("sent search-quality")


@pytest.mark.parametrize("given", ["X-Team", "X Team: a", "X-Team: a\tb", "Host: elsewhere", ": a"])
def test_what_is_no_header_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDPOINT_HEADERS", given)
    with pytest.raises(UsageError, match="ENDPOINT_HEADERS: line 1"), client(Fake()):
        pass


def test_a_server_that_loads_is_waited_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(discovery, "READY_S", 0.05)
    fake = Fake(models=())
    shown = discovery.Discovery.get

    async def get(self: Any, *where: Any) -> Any:
        found = await shown(self, *where)
        fake.models = ("demo",)  # the second time
        return found

    monkeypatch.setattr(discovery.Discovery, "get", get)
    with client(fake, wait_ready=60.0) as engine:
        assert engine.servers[0].model == "demo"
    assert "status 200, no model listed" in capsys.readouterr().out


def test_a_server_that_never_comes_is_not_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "READY_S", 0.05)
    config = RunConfig(model="demo", endpoint=("http://127.0.0.1:9/v1",), wait_ready=0.3)
    engine = OpenAI(config, 1024)
    with pytest.raises(UsageError, match="no server there"):
        engine.start()
    engine.close()


def test_a_run_without_a_server_ends_at_once(tmp_path: Path) -> None:
    done = run(tmp_path, "--endpoint", "http://127.0.0.1:9/v1", *SHORT, start=cold)
    assert done.code == 2, done.output
    assert tells(done.output, "error: --endpoint http://127.0.0.1:9/v1: ", "no server")


@pytest.fixture(scope="module")
def vllm_serve() -> Iterator[str]:
    with serving_vllm("--max-num-seqs", "64") as address:
        yield address


@pytest.mark.engine
def test_vllm_serve_keeps_the_gate(vllm_serve: str, tmp_path: Path) -> None:
    done = run(tmp_path, "--endpoint", vllm_serve, "--category", "edge")
    assert done.code == 0, done.output
    assert done.summary["run"]["accuracy"]["verdict"] == "PASS"
    assert done.summary["run"]["performance"]["valid"]
    assert done.summary["meta"]["engine_args"]["exchange"] == IDS_BOTH_WAYS
    assert done.summary["meta"]["engine_args"]["server"].startswith("vLLM ")


def test_errors_of_a_server_are_no_errors_of_ours() -> None:
    assert issubclass(EndpointError, BenchmarkError) and EndpointError.exit_code == 3


@pytest.mark.parametrize(
    ("kind", "name", "failure", "said"),
    [
        (Engine, "client of http://h:1/v1", "a process ended", "client of http://h:1/v1: a process ended"),
        (VLLM, "vLLM", "vLLM's engine process ended", "vLLM's engine process ended"),
    ],
)
def test_an_engine_that_ended_is_named_with_its_address(kind: Any, name: str, failure: str, said: str) -> None:
    assert kind.failure_text.fget(SimpleNamespace(name=name, failure=failure, _links=None)) == said


# Chat, proxies, which server, which model.


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)], indirect=True)
def test_a_chat_takes_messages_and_gives_their_text(processes: int) -> None:
    with client(
        fake := Fake(token_ids=False, extras=False), endpoint_api="chat", scenario="server", processes=processes
    ) as engine:
        first, rest = answer(engine, stream=True)
        assert (
            engine.tokenizer.decode([*first, *rest]) == engine.tokenizer.decode(answer(engine, stream=False)[0]) == TEXT
        )
        assert str(engine.args["exchange"]).startswith("chat messages in, text out")
        text = engine.tokenizer.decode(PROMPT, skip_special_tokens=True)
    assert [body["messages"] for body in fake.asked] == [[{"role": "user", "content": text}]] * 2


def test_a_chat_is_not_comparable() -> None:
    config = RunConfig(model="demo", endpoint=("http://h/v1",), endpoint_api="chat")
    assert any("chat messages" in str(why) for why in resolve(config, [], 1).deviations)


def test_a_proxy_of_ones_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(fake := Fake()) as proxy:
        monkeypatch.setenv("ENDPOINT_PROXY", proxy.address.removesuffix("/v1"))
        config = RunConfig(model="demo", endpoint=("http://nowhere.invalid/v1",))
        engine = OpenAI(config, 1024)
        try:
            engine.start()
            assert answer(engine, stream=False) == [TOKENS]
        finally:
            engine.close()
    assert fake.headers[-1]["Host"] == "nowhere.invalid"


def test_a_proxy_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDPOINT_PROXY", "proxy:3128")
    with pytest.raises(UsageError, match="ENDPOINT_PROXY"), client(Fake()):
        pass


def test_a_request_without_a_first_token_weighs_more() -> None:
    streaming, loading = (discovery.Server("", "", "", "", in_flight=5), discovery.Server("", "", "", "", in_flight=1))
    assert min((streaming, loading), key=lambda server: server.load) is loading
    loading.unstarted = 1
    assert min((streaming, loading), key=lambda server: server.load) is streaming


def test_what_ended_before_its_first_token_weighs_nothing_any_more() -> None:
    with client(Fake(fault="500"), Fake(), scenario="server") as engine:
        with pytest.raises(EndpointError):
            answer(engine, stream=True)
        assert [server.load for server in engine.servers] == [0, 0]


def test_the_model_is_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Fake(models=("demo",))) as fake:
        assert config_of_served_model(RunConfig(endpoint=(fake.address,))).model == "demo"
        assert config_of_served_model(RunConfig(model="demo", endpoint=(fake.address,))).model == "demo"
    monkeypatch.setattr(pretrained, "load_tokenizer", lambda config: None)
    with serving(Fake(models=("an-alias",))) as fake:  # the default model's tokenizer has to do
        assert config_of_served_model(RunConfig(endpoint=(fake.address,))).model == DEFAULT_MODEL
    monkeypatch.undo()
    for name in ("an-alias", "nobody/no-model"):  # neither can be had here
        with serving(Fake(models=(name,))) as fake, pytest.raises(UsageError, match=f"{name}, but its .* --model"):
            config_of_served_model(RunConfig(endpoint=(fake.address,)))
    with (
        serving(Fake(models=("demo-8b", "other"))) as fake,
        pytest.raises(UsageError, match=r"demo-8b, other.*demo-8b\?"),
    ):
        config_of_served_model(RunConfig(model="demo-8", endpoint=(fake.address,)))
    with pytest.raises(UsageError, match="no server there"):
        config_of_served_model(RunConfig(endpoint=("http://127.0.0.1:9/v1",)))


def test_a_client_process_that_dies_as_it_starts_is_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dead(openai.RemoteClient):
        async def open(self) -> None:
            self._process.kill()
            self._process.join()
            await super().open()

    monkeypatch.setattr(openai, "RemoteClient", Dead)
    with pytest.raises(EngineError, match="a client process ended unexpectedly"), client(Fake(), processes=2):
        pass
