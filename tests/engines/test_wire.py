"""What stands on the wire: events by the standard, how answers come, whose count is the result, what a server takes."""

import json
import shutil
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.run import RunConfig
from harness.core.errors import EndpointError, UsageError
from harness.engines import discovery, openai, server_metrics
from harness.engines.answer_delivery import Delivery, ServerUse, TokenCounts
from harness.engines.completions import BROKEN_WORDS, EventReader, completion_chunk, server_text
from harness.engines.openai import OpenAI
from harness.engines.request_formats import NEUTRAL_FIELDS
from harness.report import answer as answers
from harness.report import compare
from harness.report import report as rendering
from harness.report.regression import Sides, parse_condition
from harness.results import metrics, outcome
from tests.conftest import patience, run, tells
from tests.engines.test_openai import PROMPT, answer, client, delivery, refused
from tests.support import example_runs
from tests.support.fake_servers import TEXT, TOKENS, Fake, serving


def message(text: str, end: str | None = None) -> str:
    """One message of a stream, as JSON."""
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": end}]})


STREAM = (
    "\ufeffdata: \nid: 0\nretry: 3000\n\n"
    ': a comment\n\nevent: ping\ndata: {"type": "ping"}\n\ndata: {}\n\ndata:keep-alive\n\ndata\n\n'
    f"data: {message(' a', '')}\n\n"
    'event: message\ndata: {"choices": [\ndata: {"text": " b", "finish_reason": "null"}]}\n\n'
    f"data: {message(' c', 'length')}\n\ndata: [DONE]\n\n"
)


@given(st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, len(STREAM.encode()) + 40), max_size=12))
def test_events_are_those_of_the_standard_wherever_reads_end(line_end: str, cuts: list[int]) -> None:
    data, reader = STREAM.replace("\n", line_end).encode(), EventReader("http://h/v1")
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found = [event for a, b in pairwise(edges) for event in reader.feed(data[a:b])]
    pieces = [completion_chunk(event, "http://h/v1") for event in found]
    assert [(one.text, one.end) for one in pieces] == [(" a", None), (" b", None), (" c", "length")]


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        (
            b'{"error": {"message": "exceeds the context."}}',
            "closed an answer before its end: exceeds the context",
        ),
        (b'error: {"message": "too long"}\n\ndata: [DONE]\n\n', "closed an answer before its end: too long"),
        (b"<html><head><title>502 Bad &amp; Gateway</title></head></html>", "serves there: 502 Bad & Gateway"),
        (b"<!doctype html><body><h1>Not here</h1></body>", "serves there: Not here"),
        (b"data: " + message("a").encode() + b"\n\n<html>restarting</html>", "before its end: restarting"),
        (message("a", "length").encode(), "does not stream"),
        (b'data: {"detail": "no replica"}\n\n', "before its end: no replica"),
        (b"data: " + message("a").encode() + b"\n\n", "closed an answer before its end"),
    ],
)
def test_bytes_that_were_no_event_stand_in_the_line(sent: bytes, line: str) -> None:
    reader = EventReader("http://h/v1")
    reader.feed(sent)
    assert str(reader.missing_end_error()).endswith(line) or line in str(reader.missing_end_error())


@pytest.mark.parametrize(
    "sent",
    [
        b'event: error\ndata: {"message": "out of memory", "code": 500}\n\n',
        b'data: {"error": {"message": "out of memory"}}\n\n',
        b'event: error\ndata: {"error": {"message": "out of memory"}}\n\n',
    ],
)
def test_an_error_event_is_one(sent: bytes) -> None:
    with pytest.raises(EndpointError, match=r"failed while answering: out of memory$"):
        for event in EventReader("http://h/v1").feed(sent):
            completion_chunk(event, "http://h/v1")


def test_an_event_that_is_cut_is_no_heartbeat() -> None:
    (event,) = EventReader("http://h/v1").feed(b'data: {"choices": [{"text": " a"\n\n')
    with pytest.raises(EndpointError, match="an invalid completion"):
        completion_chunk(event, "http://h/v1")


def test_what_a_server_says_ends_without_a_full_stop() -> None:
    assert server_text(b'{"error": {"message": "Bad request."}}') == "Bad request"
    assert server_text("a < b and c > d") == "a < b and c > d"


# ---- how an answer comes


def frames(*messages: str) -> tuple[str, ...]:
    return (*messages, "data: [DONE]\n\n")


def event(text: str, end: str | None = None) -> str:
    return f"data: {message(text, end)}\n\n"


USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": %d}}\n\n'
TEXT_ALONE: dict[str, Any] = {"token_ids": False, "extras": False}


@pytest.mark.parametrize("processes", [1, 2])
def test_of_text_the_servers_count_is_the_result_and_else_ours(processes: int) -> None:
    stream = frames(*(event(" a") for _ in range(7)), event(" a", "length"), USAGE % 11)
    with client(Fake(frames=stream, **TEXT_ALONE), scenario="server", processes=processes) as engine:
        found = delivery(engine, stream=True)
    assert (found.tokens, found.client_tokens, found.first_tokens, found.messages) == (11, 8, 1, 8)
    assert not found.is_bundled
    without = frames(*(event(" a") for _ in range(7)), event(" a", "length"))
    with client(Fake(frames=without, **TEXT_ALONE), scenario="server", processes=processes) as engine:
        assert delivery(engine, stream=True).tokens == 8
    with client(Fake(by_usage=9), scenario="server") as engine:  # ids came: they are counted
        assert delivery(engine, stream=True).tokens == len(TOKENS)


def test_a_stop_at_the_cap_adds_no_token() -> None:
    from harness.engines.protocol import Sampling

    stream = frames(*(event(" a") for _ in range(7)), event(" a", "stop"))
    for most, count in ((8, 8), (9, 9)):
        with client(Fake(frames=stream, **TEXT_ALONE), scenario="server", sampling=Sampling(most)) as engine:
            assert sum(map(len, answer(engine, stream=True))) == count


def test_a_heartbeat_in_the_middle_ends_nothing() -> None:
    beats = ("data: \n\n", ": ping\n\n", "event: ping\ndata: {}\n\n", "data: alive\n\n")
    stream = frames(event(" a"), *beats, event(" b"), *beats, event(" c d", "length"))
    with client(Fake(frames=stream, **TEXT_ALONE), scenario="server") as engine:
        first, rest = answer(engine, stream=True)
        assert engine.tokenizer.decode([*first, *rest]) == TEXT


@pytest.mark.parametrize(
    ("found", "bundled"),
    [
        (Delivery(16, 16, 1, 16), False),
        (Delivery(16, 16, 1, 8), False),
        (Delivery(16, 16, 1, 3), False),  # the first alone, then steps of eight
        (Delivery(16, 16, 4, 4), False),  # steps of four
        (Delivery(16, 16, 2, 7), False),
        (Delivery(16, 16, 3, 14), True),  # three steps at once
        (Delivery(16, 16, 8, 9), True),  # half of it with the first
        (Delivery(16, 16, 16, 1), True),  # whole
        (Delivery(16, 16, 1, 16, rushed=8), True),  # eight, each at once with the one before
        (Delivery(16, 16, 1, 16, rushed=7), False),
        (Delivery(2, 2, 1, 2), False),
        (Delivery(1, 1, 1, 1), False),
        (Delivery(16, 16), False),  # not streamed
    ],
)
def test_when_an_answer_comes_in_bursts(found: Delivery, bundled: bool) -> None:
    assert found.is_bundled == bundled
    assert ServerUse.from_deliveries([found, Delivery(16, 16, 1, 16)]).is_buffered == bundled  # half of the answers
    assert not ServerUse.from_deliveries([found, *[Delivery(16, 16, 1, 16)] * 2]).is_buffered


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([Delivery(100, 100, usage=TokenCounts(output_tokens=99))], ()),
        ([Delivery(100, 100, usage=TokenCounts(output_tokens=97))], ("97", "100", "by what came")),
        ([Delivery(32, 45, usage=TokenCounts(output_tokens=32))] * 3, ("32 tokens an answer", "45", "by `usage`")),
        ([Delivery(9, 9, usage=TokenCounts(prompt_tokens=50, output_tokens=9))], ("50 %", "prompt tokens")),
        ([Delivery(9, 9, usage=TokenCounts(prompt_tokens=99, cached_tokens=90))], ("90.9 %", "cache")),
        ([Delivery(9, 9, usage=TokenCounts(prompt_tokens=900, cached_tokens=8))], ()),
        ([Delivery(9, 7, usage=TokenCounts(output_tokens=9)), Delivery(9, 9)], ("1 of 2", "no `usage`")),
        ([Delivery(9, 9, usage=TokenCounts(prompt_tokens=200, output_tokens=9))], ("200 %", "prompt tokens")),
        ([Delivery(8, 8, is_capped=True), *[Delivery(9, 9)] * 3], ("1 of 4", "cap of its own")),
        ([Delivery(9, 9, model="other"), Delivery(9, 9)], ("other", "changed its model")),
        ([Delivery(8, 8, 8, 1), *[Delivery(9, 9, 1, 9)] * 9], ("1 of 10", "one message", "no TPOT")),
        ([Delivery(8, 8, 8, 1), *[Delivery(9, 9, 1, 9)] * 10], ()),
    ],
)
def test_what_disagrees_is_said(found: list[Delivery], said: tuple[str, ...]) -> None:
    lines = [
        *ServerUse.from_deliveries(found, sent_tokens=100 * len(found) if "prompt tokens" in said else 0).disagreements
    ]
    assert len(lines) == bool(said) and (not said or tells(lines[0], *said))


def test_a_chat_template_may_add_to_a_prompt() -> None:
    found = [Delivery(9, 9, usage=TokenCounts(prompt_tokens=150, output_tokens=9))]
    assert [*ServerUse.from_deliveries(found, 100, has_template=True).disagreements] == []
    assert len([*ServerUse.from_deliveries(found, 80, has_template=True).disagreements]) == 1


def test_an_unknown_word_for_the_end_is_noted_and_doubts_nothing() -> None:
    found = ServerUse.from_deliveries([Delivery(9, 9, end="end_turn"), Delivery(9, 9, end="end_turn"), Delivery(9, 9)])
    assert [*found.disagreements] == []
    assert tells(found.notes[0], "2 answers", "'end_turn'", "`stop`")


@pytest.mark.parametrize(
    ("word", "end"),
    [("stop", "stop"), ("STOP", "stop"), ("end_turn", "stop"), ("max_tokens", "length"), ("model_length", "length")],
)
def test_words_for_the_end_of_a_whole_answer(word: str, end: str) -> None:
    assert completion_chunk({"choices": [{"text": "a", "finish_reason": word}]}, "http://h/v1").end == end


@pytest.mark.parametrize("word", BROKEN_WORDS)
def test_words_for_an_answer_that_is_not_all_there(word: str) -> None:
    with pytest.raises(EndpointError, match=f"finish_reason '{word}'"):
        completion_chunk({"choices": [{"text": "a", "finish_reason": word}]}, "http://h/v1")


def test_rows_of_one_engine_are_one() -> None:
    page = "".join(f'sglang:num_running_reqs{{tp_rank="{rank}",dp_rank="{n}"}} 6\n' for rank in "01" for n in "01")
    assert server_metrics.metric_values([page]) == {"sglang:num_running_reqs": [6, 6]}


def test_a_cache_that_is_counted_apart_is_one() -> None:
    def exposed(prompt: int, local: int, external: int) -> str:
        counts = {"prefix_cache_queries": prompt, "prefix_cache_hits": local, "external_prefix_cache_hits": external}
        return "".join(f'vllm:{name}_total{{engine="0"}} {count}\n' for name, count in counts.items())

    assert server_metrics.cached_percent([exposed(0, 0, 0)], [exposed(100, 0, 90)]) == pytest.approx(90)
    assert server_metrics.cached_percent([exposed(0, 0, 0)], [exposed(100, 5, 50)]) == pytest.approx(55)


CACHES = {  # hits, then queries
    "vLLM": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    "before 0.11": ("vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total"),
    "Ray Serve": ("ray_vllm_prefix_cache_hits_total", "ray_vllm_prefix_cache_queries_total"),
    "SGLang": ("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
}


@pytest.mark.parametrize("kind", CACHES)
def test_the_cache_is_read_from_the_servers_own_counters(kind: str) -> None:
    def exposed(*counts: int) -> str:
        return "".join(f'{name}{{engine="0"}} {n}\n' for name, n in zip(CACHES[kind], counts, strict=True))

    before, after, other = exposed(50, 100), exposed(140, 200), exposed(50, 100)
    assert server_metrics.cached_percent([before], [after]) == pytest.approx(90)
    assert server_metrics.cached_percent([before, before], [after, other]) == pytest.approx(90)
    assert server_metrics.cached_percent([before], [before]) == 0
    assert server_metrics.cached_percent([before, before], [after]) is None  # one did not answer
    assert server_metrics.cached_percent([""], [after]) is server_metrics.cached_percent([], []) is None


def test_what_a_request_waits_for_is_a_mean_of_the_test() -> None:
    def exposed(count: int, queue: float, prefill: float) -> str:
        sums = {"queue": queue, "prefill": prefill}
        found = ((f"vllm:request_{name}_time_seconds", total) for name, total in sums.items())
        lines = (f"# TYPE {name} histogram\n{name}_sum {total}\n{name}_count {count}\n" for name, total in found)
        return "".join(lines)

    before, after = exposed(10, 1.0, 2.0), exposed(30, 1.5, 8.0)
    assert server_metrics.mean_waits([before], [after]) == {"queue": 25.0, "prefill": 300.0}
    assert server_metrics.mean_waits([before], [before]) == {}  # no request ended between the two
    assert server_metrics.mean_waits([before, before], [after]) == server_metrics.mean_waits([], []) == {}


def replicas(*tokens: int) -> list[str]:
    return [f'vllm:generation_tokens_total{{engine="0"}} {count}\n' for count in tokens]


def test_a_replica_that_computed_nothing_is_counted() -> None:
    assert server_metrics.idle_replicas(replicas(5, 7), replicas(5, 9)) == (1, 2)
    assert server_metrics.idle_replicas(
        ["".join(replicas(5)) + 'vllm:generation_tokens_total{engine="1"} 4'], [""]
    ) == (
        0,
        0,
    )
    assert server_metrics.idle_replicas(replicas(5), replicas(5, 9)) == server_metrics.idle_replicas([], []) == (0, 0)
    for found, said in (((1, 2), True), ((0, 2), False), ((2, 2), False), ((0, 0), False)):
        assert any("replicas" in line for line in ServerUse(answers=9, replicas=found).disagreements) is said
    assert not [*ServerUse(answers=1, replicas=(1, 2)).disagreements]


def rendered(folder: Path, **found: Any) -> tuple[Any, str]:
    """A run behind an endpoint whose server.json holds what is given."""
    example_runs.run(folder, endpoint="http://h/v1", scenario="server", server_target_qps=8.5)
    (folder / "Performance" / "server.json").write_text(json.dumps(found))
    config = json.loads((folder / "config.json").read_text())
    config["engine_args"] = {"server": "s", "serves": "m", "exchange": "text", "max_in_flight": 9}
    (folder / "config.json").write_text(json.dumps(config))
    return rendering.build_report(folder), (folder / "report.md").read_text()


BUFFERED = {"answers": 64, "tokens": 1024, "client_tokens": 1024, "messages": 64, "first_tokens": 1024, "bundled": 64}


def test_a_disagreement_is_the_first_thing_that_a_person_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "FEWEST_P99", 64)
    summary, page = rendered(tmp_path / "a", **BUFFERED)
    (line,) = summary.run.performance.disagreements
    assert tells(line, "TTFT and TPOT", "100 %", "bursts", "16 tokens in 1 messages", "16 at first")
    assert line in map(str, summary.meta.deviations) and not summary.meta.comparable
    rows = [row for row in page.split("## Measured")[0].splitlines() if row.startswith("| ") and row.strip("| ")]
    assert page.startswith("# DISPUTED: ") and line in next(row for row in rows if row)
    assert "| TTFT of the buffering |" in page and "TTFT p99 of the buffering" in page.partition("## Measured")[0]
    screen = answers.document(summary)
    assert screen.title.startswith("DISPUTED: ") and (screen.lines[0].label, screen.lines[0].text) == ("disputed", line)
    test = summary.run.performance.details.whole
    assert (test.slo_attainment, test.goodput) == (None, None) and "SLO attainment" not in page
    fine, page = rendered(tmp_path / "b", **{**BUFFERED, "messages": 1024, "first_tokens": 64, "bundled": 0})
    assert not fine.run.performance.disagreements and "DISPUTED" not in page and "of the buffering" not in page


def test_a_gate_does_not_judge_what_is_disputed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "FEWEST_P99", 64)
    for name, found in (("a", {}), ("b", {"answers": 64, "cache_hit_percent": 57.2})):
        rendered(tmp_path / name, **found)
    a, b = (compare.read_run(tmp_path / name) for name in "ab")
    latency = metrics.METRIC_BY_NAME["latency_p99_ms"]
    condition = parse_condition("latency_p99_ms>+10%")
    assert Sides([a], [a]).reason_not_to_judge(condition, latency) == ""
    assert tells(Sides([a], [b]).reason_not_to_judge(condition, latency), "b: ", "57.2 %", "cache")


# ---- what a server takes


def test_sampling_is_sent_in_neutral_values_and_what_is_not_taken_is_said() -> None:
    with client(fake := Fake()) as engine:
        answer(engine, stream=False)
        assert "repetition_penalty" not in engine.args["exchange"]
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert fake.asked[-1].items() >= {**neutral, "repetition_penalty": 1.0, "temperature": 0.0}.items()
    with client(fake := Fake(refuses=("top_k", "repetition_penalty"))) as engine:
        answer(engine, stream=False)
        assert "does not take top_k, repetition_penalty:" in engine.args["exchange"]
    assert {name for name, _ in NEUTRAL_FIELDS} - set(fake.asked[-1]) == {"top_k", "repetition_penalty"}
    with client(fake := Fake(refuses=tuple(name for name, _ in NEUTRAL_FIELDS))) as engine:
        assert all(name in engine.args["exchange"] for name, _ in NEUTRAL_FIELDS)


@pytest.mark.parametrize("status", [400, 422, 500, 501])
def test_a_gateway_that_takes_text_alone_gets_text_whatever_its_status(status: int) -> None:
    with client(Fake(only_text=status)) as engine:
        assert str(engine.args["exchange"]).startswith("text in")
    assert "Unmapped prompt format" not in refused(Fake(only_text=500, extras=False, refuses=("model",)))


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_server_that_is_busy_is_asked_again(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (openai, discovery):
        monkeypatch.setattr(module, "PAUSE_S", 0.05)
    with client(Fake(busy_for=6, busy_status=status, models=("an-alias",))) as engine:
        assert engine.servers[0].model == "an-alias"
        assert len(answer(engine, stream=False)[0]) == len(TOKENS)
    for module in (openai, discovery):
        monkeypatch.setattr(module, "BUSY_S", 0.2)
    begin = time.monotonic()
    assert f"answers {status} to a completion: busy." in refused(Fake(busy_for=10**6, busy_status=status))
    assert time.monotonic() - begin < patience(5)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_the_other_scheme_is_named_where_it_may_be_meant(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    asked = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*asked, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    for server, other in ((Fake(certificate=context), "https"), (Fake(), "http")):
        with serving(server) as fake:
            address = fake.address.replace("https:", "x:").replace("http:", "https:").replace("x:", "http:")
            config = RunConfig(model="demo", endpoint=(address,))
            engine = OpenAI(config, 1024)
            with pytest.raises(UsageError, match=rf"{other}://") as caught:
                engine.start()
            engine.close()
        assert "no server there" not in str(caught.value)


def test_a_basic_challenge_names_where_it_is_answered() -> None:
    assert tells(refused(Fake(challenge='Basic realm="x"')), "ENDPOINT_HEADERS", "Basic", "(401)")


def test_a_probe_without_an_event_fails() -> None:
    class Whole(Fake):
        async def answer(self, request: Any, body: dict[str, Any], fault: str) -> Any:
            return await super().answer(request, {**body, "stream": False}, fault)

    assert "does not stream" in refused(Whole(), scenario="server")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://h/v1/?api-version=2024-10-21", "http://h/v1?api-version=2024-10-21"),
        ("http://h:80/v1", "http://h:80/v1"),
    ],
)
def test_a_version_in_an_address_is_kept(given: str, kept: str) -> None:
    assert RunConfig(endpoint=(given,)).endpoint == (kept,)
    for secret in ("?api-key=abc", "?sig=abc", "?api-version=1&token=abc", "#x"):
        with pytest.raises(UsageError, match="takes a plain address"):
            RunConfig(endpoint=(f"http://h/v1{secret}",))


def test_a_version_in_an_address_goes_with_every_request() -> None:
    with client(fake := Fake()) as engine:
        engine.servers[0].address += "?api-version=7"
        answer(engine, stream=False)
        assert engine.prometheus_metrics()
    assert fake.asked[-1]["prompt"] == PROMPT


def test_metrics_may_stand_elsewhere() -> None:
    with client(Fake(), Fake()) as counted:
        address = counted.servers[1].address.removesuffix("/v1") + "/metrics"
        with client(Fake(), metrics_url=(address,)) as engine:
            answer(counted, stream=False)
            assert engine.prometheus_metrics() == [counted.prometheus_metrics()[1]]
    with pytest.raises(UsageError, match="--metrics-url: only with --endpoint"):
        RunConfig(metrics_url=("http://h/metrics",))


class MetricsPage(BaseHTTPRequestHandler):
    """A page of metrics that notes the headers of who asks for it."""

    seen: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"vllm:num_requests_running 1\n")

    def log_message(self, *_: object) -> None:
        """Say nothing on the screen."""


@pytest.mark.parametrize(("host", "is_given"), [("127.0.0.1", True), ("localhost", False)])
def test_a_key_goes_only_to_hosts_that_it_was_given_for(
    host: str, is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the-key")
    monkeypatch.setenv("ENDPOINT_HEADERS", "X-Team: search")
    MetricsPage.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), MetricsPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://{host}:{server.server_port}/metrics"
    with client(Fake(key="the-key"), metrics_url=(url,)) as engine:
        assert engine.prometheus_metrics() == ["vllm:num_requests_running 1\n"]
    server.shutdown()
    credentials = {"Authorization", "X-Team"} if is_given else set()
    assert MetricsPage.seen
    assert all({"Authorization", "X-Team"} & seen.keys() == credentials for seen in MetricsPage.seen)


@pytest.mark.slow
def test_a_run_names_what_came_from_the_cache_and_in_bursts(tmp_path: Path) -> None:
    counters = "vllm:prefix_cache_hits_total {n}7\nvllm:prefix_cache_queries_total {n}9\n"
    counters += 'vllm:generation_tokens_total{{engine="1"}} 0\n'
    with client(Fake(counters=counters)) as engine:
        address = engine.servers[0].address
        flags = ("--endpoint", address, "--concurrency", "2,4", "--mode", "performance", "--input-len", "16")
        done = run(tmp_path, *flags, "--output-len", "4", "--min-duration", "1")
    assert done.code == 0, done.output
    test = done.summary["run"]["performance"]
    assert done.output.count("% of the prompt came from the server's cache") >= 2  # of each level
    assert not any("cannot be seen" in why["what"] for why in done.summary["meta"]["deviations"])
    assert any(
        tells(why["what"], "1 of 2 replicas computed nothing", "--new-conn")
        for why in done.summary["meta"]["deviations"]
    )
    assert test["server"]["cache_hit_percent"] == pytest.approx(100, abs=2)
    assert test["duration_s"] < 3  # a test at fixed concurrency ends by its time, however fast the server
    assert test["samples"] == test["server"]["answers"] == test["total_new_tokens"] / 4
