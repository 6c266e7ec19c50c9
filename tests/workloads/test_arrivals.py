"""Custom arrivals: shapes, and recorded traces; sent at their times by a real LoadGen test."""

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import arrival_patterns
from harness.config.plan import Plan
from harness.config.pretrained import load_tokenizer
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.workloads import custom, traces
from tests.conftest import ended, tells

HEAD = "seconds,input_tokens,output_tokens"
SHARED = f"{HEAD},prefix_id,prefix_tokens\n" + "".join(
    f"{n},{600 + n},{4 + n},{'ab'[n % 2] if n < 5 else ''},{512 - n if n < 5 else ''}\n" for n in range(6)
)
PLAIN = f"{HEAD}\n" + "".join(f"{5 + 0.5 * n},{40 + n},{3 + n}\n" for n in range(6))
PUBLISHED = {
    "Azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
    "BurstGPT": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,40,3,43,API log\n",
    "Mooncake": '{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}\n',
    "Bailian": '{"chat_id": 7, "timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [1]}\n',
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(RunConfig(model="demo"))


@pytest.fixture
def trace(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return path

    return write


def config(**flags: Any) -> RunConfig:
    return RunConfig(**{"model": "demo", "backend": "echo", "mode": "performance", **flags})


def plan(asked: RunConfig, tokenizer: Any) -> tuple[Plan, Any]:
    library = custom.load(asked, tokenizer)
    return resolve(asked, [], 0, request_set=library.request_set if library else None), library


@pytest.mark.parametrize(
    ("text", "variation"), [("poisson", 1.0), ("constant", 0.0), ("gamma:4", 4.0), ("gamma:0.5", 0.5)]
)
def test_a_shape_has_its_rate_and_its_variation(text: str, variation: float) -> None:
    due = arrival_patterns.arrival_times(text, 50.0, 2000.0, 7)
    assert due[0] == 0 and due[-1] >= 2000 > due[-2]
    assert len(due) == pytest.approx(100_000, rel=0.05)
    assert arrival_patterns.gap_variation(due) == pytest.approx(variation, abs=0.06 * variation + 1e-9)


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    due = arrival_patterns.arrival_times("ramp:10-90", 50.0, 1000.0, 7)
    by_quarter = [sum(250 * n <= at < 250 * (n + 1) for at in due) / 250 for n in range(4)]
    assert by_quarter == pytest.approx([20, 40, 60, 80], rel=0.06)


@given(
    st.sampled_from(["poisson", "constant", "gamma:3", "ramp:1-9", "ramp:9-1"]),
    st.floats(0.1, 200),
    st.floats(0.01, 50),
    st.integers(0, 99),
)
def test_times_go_forward_and_end_where_they_should(text: str, rate: float, seconds: float, seed: int) -> None:
    due = arrival_patterns.arrival_times(text, rate, seconds, seed)
    assert list(due) == sorted(due) and due[0] == 0
    assert due[-1] >= seconds > due[-2]
    assert due == arrival_patterns.arrival_times(text, rate, seconds, seed)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"arrivals": "gamma"}, "must be gamma:CV"),
        ({"arrivals": "gamma:0"}, "CV is between 0.05 and 20"),
        ({"arrivals": "ramp:5"}, "must be ramp:A-B"),
        ({"arrivals": "poisson:3"}, "must be poisson"),
        ({"arrivals": "poisson", "scenario": "server"}, "--arrivals .*--scenario server"),
        ({"arrivals": "poisson", "server_target_qps": "max"}, "takes one rate"),
        ({"arrivals": "poisson", "concurrency": 4}, "--arrivals .*--concurrency"),
        ({"arrivals": "poisson", "compliance": "test06"}, "--compliance test06 .*arrivals"),
        ({"arrivals": "poisson", "batch_size": 8}, "--scenario offline"),
    ],
    ids=str,
)
def test_what_does_not_go_together(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        resolve(config(**flags), [], 0)


def test_the_earliest_requests_are_taken_whatever_the_order_of_the_rows(trace: Any) -> None:
    found = traces.read_trace(trace(f"{HEAD}\n9,50,9\n7,90,30\n5,40,3\n6,20,4\n8,20,4\n"), most=3, context=100)
    assert [request.at_s for request in found.requests] == [5, 6, 8]
    assert found.unfit == 1


def test_a_trace_is_read_in_the_order_of_its_times(trace: Any) -> None:
    found = traces.read_trace(trace(f"\ufeff{HEAD}\r\n7,50,9\r\n\r\n5,40,3\r\n"))
    assert [(one.at_s, one.prompt_tokens, one.output_tokens) for one in found.requests] == [(5, 40, 3), (7, 50, 9)]
    assert found.span_s == 2


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_trace_as_it_is_published_is_refused_with_the_page_that_says_how_to_make_one(name: str, trace: Any) -> None:
    said = rf"not a trace; the first line must be {HEAD}.*docs/workloads.md#recorded-arrivals"
    with pytest.raises(UsageError, match=said):
        traces.read_trace(trace(PUBLISHED[name]))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,5,5\n2023-11-16 18:15:46,5,5\n", "line 3: seconds takes .*convert dates to seconds since the first"),
        ("0,5,5\nnan,5,5\n", "line 3: seconds takes a number"),
        ("-1,5,5\n", "line 2: seconds takes a number"),
        ("0,5,0\n", "line 2: output_tokens takes a whole number from 1"),
        ("0,,5\n", "line 2: input_tokens takes a whole number from 1"),
        ("0,5.5,5\n", "line 2: input_tokens takes a whole number from 1"),
        ("0,5,5\n1,5\n", "line 3: 2 cells in place of 3"),
        ('0,5,5\n1,"5,5\n', "line 3: "),
        ("0,5,5\n", "at least two requests"),
        ("0,5,5\n0,5,5\n", "at least two requests"),
        ("0,5,5\n1e-9,5,5\n", "no more than 1,000,000 requests/s"),
        ("", "at least two requests"),
    ],
)
def test_a_bad_row_is_named_by_its_line(rows: str, said: str, trace: Any) -> None:
    with pytest.raises(UsageError, match=said):
        traces.read_trace(trace(f"{HEAD}\n{rows}"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,5,5,a,6", "prefix_tokens takes a whole number from 1 to 5"),
        ("0,5,5,a,", "prefix_tokens takes a whole number"),
        ("0,5,5,,3", "prefix_tokens needs a prefix_id"),
    ],
)
def test_a_bad_prefix_is_named_by_its_line(row: str, said: str, trace: Any) -> None:
    with pytest.raises(UsageError, match=f"line 2: {said}"):
        traces.read_trace(trace(f"{HEAD},prefix_id,prefix_tokens\n{row}\n"))


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "input_tokens,seconds,output_tokens\n"])
def test_a_file_that_is_no_trace(text: str, trace: Any) -> None:
    with pytest.raises(UsageError, match=f"not a trace; the first line must be {HEAD}"):
        traces.read_trace(trace(text))


def test_no_such_file_names_the_shapes() -> None:
    with pytest.raises(UsageError, match="did you mean poisson"):
        traces.read_trace(Path("poison"))


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(UsageError) as error:
        traces.read_trace(path)
    assert "\n" not in str(error.value)


def test_a_replay_asks_for_the_lengths_and_the_shared_beginnings_of_its_trace(tokenizer: Any, trace: Any) -> None:
    found, library = plan(config(arrivals=str(trace(SHARED)), total_sample_count=6), tokenizer)
    assert [len(prompt) for prompt in library.prompts] == [600, 601, 602, 603, 604, 605]
    assert library.new_tokens == [4, 5, 6, 7, 8, 9]
    assert [shared(library.prompts[0], one) for one in library.prompts[1:]] == [0, 510, 0, 508, 0]
    assert shared(library.prompts[1], library.prompts[3]) == 509
    assert library.arrivals == [0, 1, 2, 3, 4, 5]
    assert (found.planned_samples, found.min_duration_s, found.target_qps) == (6, 5.0, 1.0)
    assert any(tells(said, "trace trace.csv instead of") for said in found.deviations)
    assert str(found.replay) == "arrivals: 6 requests in 5 s, 1 a second on average"


def shared(a: list[int], b: list[int]) -> int:
    """How many first tokens two prompts share."""
    return next(n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


def test_a_trace_is_scaled_to_another_rate(tokenizer: Any, trace: Any) -> None:
    path = str(trace(PLAIN))
    found, library = plan(config(arrivals=path, server_target_qps=20.0), tokenizer)
    assert library.arrivals == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25])
    assert found.target_qps == pytest.approx(20)
    shorter, library = plan(config(arrivals=path, min_duration=1.4), tokenizer)
    assert library.arrivals == [0, 0.5, 1.0, 1.5] and shorter.min_duration_s == 1.4
    with pytest.raises(UsageError, match=r"--min-duration .* 2.5 s: "):
        plan(config(arrivals=path, min_duration=60), tokenizer)


def test_requests_that_do_not_fit_are_left_out_and_counted(tokenizer: Any, trace: Any) -> None:
    found, library = plan(config(arrivals=str(trace(SHARED)), max_model_len=610), tokenizer)
    assert found.samples == 4 and any(tells(said, "left out 2 requests", " 610") for said in library.request_set.notes)


@pytest.mark.parametrize(("asked", "samples"), [(6, 6), (7, 6), (3, 3)])
def test_the_first_that_can_be_sent_are_taken(asked: int, samples: int, tokenizer: Any, trace: Any) -> None:
    found, library = plan(config(arrivals=str(trace(PLAIN)), total_sample_count=asked), tokenizer)
    assert found.samples == len(library.prompts) == samples
    assert any(tells(note, f"samples: {samples} of {asked}") for note in found.notes) == (asked > samples)
    long = f"{HEAD}\n1,5,5\n3,5,5\n4,900,900\n5,6,5\n6,7,5\n"
    _, library = plan(config(arrivals=str(trace(long)), total_sample_count=3, max_model_len=1024), tokenizer)
    assert [len(prompt) for prompt in library.prompts] == [5, 5, 6]
    assert len(library.request_set.notes) == 1


def test_an_address_is_not_fetched_and_a_large_file_has_a_remedy(tmp_path: Path, monkeypatch: Any) -> None:
    for flags in ({"arrivals": "https://h/trace.csv"}, {"workload": "https://h/prompts.jsonl"}):
        with pytest.raises(UsageError, match="download the file"):
            custom.load(config(**flags), None)
    (tmp_path / "large.csv").write_text("x" * 100)
    monkeypatch.setattr(traces, "LARGEST_ARRIVALS", 64)
    with pytest.raises(UsageError, match=r"larger than 64 bytes: .*head -n 100000 large.csv"):
        traces.read_trace(tmp_path / "large.csv")


@pytest.mark.parametrize("others", [{"workload": "chat"}, {"input_len": "40", "output_len": "8"}], ids=str)
def test_a_trace_has_its_own_requests(others: dict[str, Any], trace: Any) -> None:
    with pytest.raises(UsageError, match=r"--arrivals .* has its own requests: remove --workload"):
        config(arrivals=str(trace(PLAIN)), **others)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--arrivals", "gamma:4", "--server-target-qps", "40", "--min-duration", "3", "--total-sample-count", "16"),
        ("--arrivals", "trace", "--server-target-qps", "40"),
    ],
    ids=["gamma", "trace"],
)
def test_a_run_sends_each_request_at_its_time(words: tuple[str, ...], tmp_path: Path, trace: Any) -> None:
    rows = [f"{0.025 * n * n % 3:.4f},{40 + n % 9},{3 + n % 5}" for n in range(120)]
    path = trace("\n".join([HEAD, *rows]) + "\n")
    given = [str(path) if word == "trace" else word for word in words]
    flags = ("--model", "demo", "--backend", "echo", "--mode", "performance", "--results-dir", tmp_path / "results")
    done = ended("run.py", *flags, *given)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "latest"
    test = json.loads((folder / "summary.json").read_text())["run"]["performance"]
    requests = list(csv.DictReader((folder / "Performance" / "requests.csv").open()))
    late = [float(row["sent_ms"]) for row in requests]
    assert min(late) >= 0 and statistics.median(late) < 20
    assert test["valid"] and test["samples"] == len(requests) and test["target_qps"] == pytest.approx(40, rel=0.5)
    assert test["client_delay_ms"]["p99"] >= 0
    assert ("arrivals: 120 requests in " in done.stdout + done.stderr) == ("trace" in words)
    first = [float(row["ttft_ms"]) for row in requests]
    assert max(first) == pytest.approx(test["ttft_ms"]["max"], abs=0.01)  # counted from the due time
    page = (folder / "report.md").read_text()
    assert f"--arrivals {test['arrivals']}" in page and "This program measured these times" in page
    if "trace" in words:
        assert sorted(int(row["sample"]) for row in requests) == list(range(120))
        times = sorted(float(row.split(",")[0]) for row in rows)
        scale = (times[-1] - times[0]) / max(float(row["issued_s"]) for row in requests)
        due = sorted(float(row["issued_s"]) for row in requests)
        assert due == pytest.approx([(at - times[0]) / scale for at in times], abs=1e-4)


def test_rows_without_lengths_are_left_out_and_whole_numbers_may_end_in_point_zero(tmp_path: Path) -> None:
    """As pandas writes a column in which a row was empty once."""
    path = tmp_path / "a.csv"
    path.write_text("seconds,input_tokens,output_tokens\n5,47.0,18.\n6,,\n7,60.0,20\n")
    trace = traces.read_trace(path)
    assert [(one.prompt_tokens, one.output_tokens) for one in trace.requests] == [(47, 18), (60, 20)]
    assert (trace.empty, trace.span_s) == (1, 2.0)
    for cell in ("47.5", "1e-3", "-1", "nan", "４７"):
        path.write_text(f"seconds,input_tokens,output_tokens\n5,{cell},18\n7,60,20\n")
        with pytest.raises(UsageError, match="line 2: input_tokens"):
            traces.read_trace(path)
