"""Custom arrivals: shapes, and traces in their published formats; sent at their times by a real LoadGen test."""

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.common.errors import UsageError
from harness.config import arrivals
from harness.config.checkpoint import load_tokenizer
from harness.config.plan import Plan, resolve
from harness.config.run import RunConfig
from harness.workloads import arrival_traces, custom
from tests.conftest import ended, tells

MOONCAKE = [
    {"timestamp": 1000 * n, "input_length": 600 + n, "output_length": 4 + n, "hash_ids": [0, 1 + n]} for n in range(6)
]
BAILIAN = [  # seconds, 16 tokens a block; the last two are second turns of the first two
    {"chat_id": n, "parent_chat_id": parent, "timestamp": at, "input_length": length, "output_length": 5, "turn": 1}
    | {"hash_ids": blocks}
    for n, parent, at, length, blocks in (
        *((7, -1, 0.0, 40, [1, 2, 3]), (8, -1, 0.5, 16, [1]), (9, 99, 1.0, 17, [4, 5]), (10, -1, 3.0, 33, [1, 2, 6])),
        *((11, 7, 4.0, 64, [1, 2, 3, 8]), (12, 8, 5.0, 20, [1, 9])),
    )
]
FILES = {
    "Mooncake": "".join(f"{json.dumps(row)}\n" for row in MOONCAKE),
    "BurstGPT": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    + "".join(f"{5 + 0.5 * n},ChatGPT,{40 + n},{3 + n},{43 + 2 * n},Conversation log\n" for n in range(6))
    + "9,ChatGPT,40,0,40,API log\n",
    "Azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2023-11-16 18:15:{46 + n}.6805900,{50 + n},{9 + n}\n" for n in range(6)),
    "Bailian": "".join(f"{json.dumps(row)}\n" for row in BAILIAN),
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(RunConfig(model="demo"))


@pytest.fixture
def trace(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "trace.jsonl"
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
    due = arrivals.times(text, 50.0, 2000.0, 7)
    assert due[0] == 0 and due[-1] >= 2000 > due[-2]
    assert len(due) == pytest.approx(100_000, rel=0.05)
    assert arrivals.variation(due) == pytest.approx(variation, abs=0.06 * variation + 1e-9)


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    due = arrivals.times("ramp:10-90", 50.0, 1000.0, 7)
    by_quarter = [sum(250 * n <= at < 250 * (n + 1) for at in due) / 250 for n in range(4)]
    assert by_quarter == pytest.approx([20, 40, 60, 80], rel=0.06)


@given(
    st.sampled_from(["poisson", "constant", "gamma:3", "ramp:1-9", "ramp:9-1"]),
    st.floats(0.1, 200),
    st.floats(0.01, 50),
    st.integers(0, 99),
    st.integers(1, 7),
)
def test_times_go_forward_and_end_where_they_should(
    text: str, rate: float, seconds: float, seed: int, together: int
) -> None:
    due = arrivals.times(text, rate, seconds, seed, together)
    assert list(due) == sorted(due) and due[0] == 0
    assert due[-1] >= seconds and len(due) % together == 0
    assert len(due) <= together or due[-1 - together] < seconds
    assert due == arrivals.times(text, rate, seconds, seed, together)


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


@pytest.mark.parametrize("name", FILES)
def test_a_trace_is_told_by_its_columns(name: str, trace: Any) -> None:
    found = arrival_traces.read(trace(FILES[name]))
    assert (found.format, len(found.requests)) == (name, 6)
    assert found.span_s == pytest.approx(2.5 if name == "BurstGPT" else 5)
    assert found.empty == (name == "BurstGPT")
    first = {"Mooncake": (600, 4), "BurstGPT": (40, 3), "Azure": (50, 9), "Bailian": (40, 5)}[name]
    assert (found.requests[0].prompt_tokens, found.requests[0].output_tokens) == first


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "its columns .*Mooncake"),
        ('{"timestamp": 0, "input_length": 5, "output_length": "x"}\n', "line 1: .*Mooncake"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 5}\n{"a"', "line 2: not JSON"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 5}\n', "at least two requests"),
        ("Timestamp,Request tokens,Response tokens\n0,5,5\nnan,5,5\n", "line 3: .*BurstGPT"),
        ("", "at least two requests"),
    ],
)
def test_a_file_that_is_no_trace(text: str, said: str, trace: Any) -> None:
    with pytest.raises(UsageError, match=said):
        arrival_traces.read(trace(text))


def test_no_such_file_names_the_shapes() -> None:
    with pytest.raises(UsageError, match="did you mean poisson"):
        arrival_traces.read(Path("poison"))


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(UsageError) as error:
        arrival_traces.read(path)
    assert "\n" not in str(error.value)


def test_a_replay_asks_for_the_lengths_and_the_shared_blocks_of_its_trace(tokenizer: Any, trace: Any) -> None:
    found, library = plan(config(arrivals=str(trace(FILES["Mooncake"])), total_sample_count=6), tokenizer)
    assert [len(prompt) for prompt in library.prompts] == [600, 601, 602, 603, 604, 605]
    assert library.new_tokens == [4, 5, 6, 7, 8, 9]
    assert library.prompts[0][:512] == library.prompts[5][:512] and library.prompts[0][512:] != library.prompts[1][512:]
    assert library.arrivals == [0, 1, 2, 3, 4, 5]
    assert (found.queries, found.min_duration_s, found.target_qps) == (6, 5.0, 1.0)
    assert any(tells(said, "trace trace.jsonl instead of") for said in found.deviations)


def test_a_trace_is_scaled_to_another_rate(tokenizer: Any, trace: Any) -> None:
    path = str(trace(FILES["BurstGPT"]))
    found, library = plan(config(arrivals=path, server_target_qps=20.0), tokenizer)
    assert library.arrivals == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25])
    assert found.target_qps == pytest.approx(20)
    shorter, library = plan(config(arrivals=path, min_duration=1.4), tokenizer)
    assert library.arrivals == [0, 0.5, 1.0, 1.5] and shorter.min_duration_s == 1.4
    with pytest.raises(UsageError, match=r"--min-duration .* 2.5 s: "):
        plan(config(arrivals=path, min_duration=60), tokenizer)


def test_requests_that_do_not_fit_are_left_out_and_counted(tokenizer: Any, trace: Any) -> None:
    found, library = plan(config(arrivals=str(trace(FILES["Mooncake"])), max_model_len=610), tokenizer)
    assert found.samples == 4 and any(tells(said, "left out 2 requests", " 610") for said in library.request_set.notes)


def test_bailians_blocks_have_16_tokens_and_its_turns_parents(tokenizer: Any, trace: Any) -> None:
    _, library = plan(config(arrivals=str(trace(FILES["Bailian"]))), tokenizer)
    prompts = library.prompts
    shared = [next((n for n, (x, y) in enumerate(zip(prompts[0], one, strict=False)) if x != y), 16) for one in prompts]
    assert shared[1] == 16 and shared[2] < 4 and 32 <= shared[3] < 36
    assert library.parents == [None, None, None, None, 0, 1]


def blocks(size: int, count: int = 6, whole: bool = False) -> str:
    """A trace of Mooncake's columns with blocks of a size, counted also where they are not full, or not."""
    lengths = [3 * size + 40 * n for n in range(count)]
    ids = [list(range(length // size if whole else -(-length // size))) for length in lengths]
    rows = [{"timestamp": 1000 * n, "input_length": length, "output_length": 4} for n, length in enumerate(lengths)]
    return "".join(f"{json.dumps(row | {'hash_ids': own})}\n" for row, own in zip(rows, ids, strict=True))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("size", [16, 64, 512])
def test_the_number_of_blocks_tells_their_size(size: int, whole: bool, trace: Any) -> None:
    assert {one.block for one in arrival_traces.read(trace(blocks(size, whole=whole))).requests} == {size}


def test_blocks_of_no_size_are_refused(trace: Any) -> None:
    rows = [row | {"hash_ids": list(range(5 + 90 * (n % 2)))} for n, row in enumerate(MOONCAKE)]
    with pytest.raises(UsageError, match="hash_ids"):
        arrival_traces.read(trace("".join(f"{json.dumps(row)}\n" for row in rows)))


def test_times_in_another_unit_are_refused(trace: Any) -> None:
    rows = [{"timestamp": n / 8, "input_length": 5, "output_length": 5} for n in range(40)]
    with pytest.raises(UsageError, match=r"8,000 requests/s .* are in ms"):
        arrival_traces.read(trace("".join(f"{json.dumps(row)}\n" for row in rows)))


@pytest.mark.parametrize(("asked", "samples", "left"), [(6, 6, 0), (7, 6, 1), (8, 6, 1), (3, 3, 0)])
def test_the_first_that_can_be_sent_are_taken(asked: int, samples: int, left: int, tokenizer: Any, trace: Any) -> None:
    found, library = plan(config(arrivals=str(trace(FILES["BurstGPT"])), total_sample_count=asked), tokenizer)
    assert found.samples == len(library.prompts) == samples
    assert any(tells(note, f"samples: {samples} of {asked}") for note in found.notes) == (asked > samples)
    assert any(tells(note, f"left out {left} ") for note in library.request_set.notes) == bool(left)
    failed = "Timestamp,Request tokens,Response tokens\n0,5,0\n1,5,5\n2,0,5\n3,5,5\n4,900,900\n5,6,5\n6,7,5\n"
    _, library = plan(config(arrivals=str(trace(failed)), total_sample_count=3, max_model_len=1024), tokenizer)
    assert [len(prompt) for prompt in library.prompts] == [5, 5, 6]
    assert len(library.request_set.notes) == 2


def test_an_address_is_not_fetched_and_a_large_file_has_a_remedy(tmp_path: Path, monkeypatch: Any) -> None:
    for flags in ({"arrivals": "https://h/trace.csv"}, {"workload": "https://h/prompts.jsonl"}):
        with pytest.raises(UsageError, match="download the file"):
            custom.load(config(**flags), None)
    (tmp_path / "large.csv").write_text("x" * 100)
    monkeypatch.setattr(arrival_traces, "MOST_BYTES", 64)
    with pytest.raises(UsageError, match=r"larger than 0 MiB: .*head -n 100000 large.csv"):
        arrival_traces.read(tmp_path / "large.csv")


@pytest.mark.slow
def test_a_turn_waits_for_its_parent(tmp_path: Path, trace: Any) -> None:
    """The parent takes 4 s here, and the turn is due 0.2 s after it."""
    rows = [BAILIAN[0] | {"output_length": 40}, BAILIAN[1], BAILIAN[4] | {"timestamp": 0.2}]
    path = trace("".join(f"{json.dumps(row)}\n" for row in rows))
    flags = ("--model", "demo", "--backend", "echo", "--mode", "performance", "--results-dir", tmp_path / "results")
    done = ended("run.py", *flags, "--arrivals", str(path), "--engine-arg", "token_s=0.1")
    assert done.returncode == 0, done.stderr
    table = csv.DictReader((tmp_path / "results" / "latest" / "Performance" / "requests.csv").open())
    first, turn, _ = sorted(table, key=lambda row: int(row["sample"]))
    done_s = float(first["issued_s"]) + float(first["latency_ms"]) / 1000
    assert done_s > 3.5
    assert float(turn["issued_s"]) == pytest.approx(done_s, abs=0.05)
    assert float(turn["issued_s"]) + float(turn["sent_ms"]) / 1000 >= done_s


def test_other_requests_at_the_times_of_a_trace(tokenizer: Any, trace: Any) -> None:
    found, library = plan(config(arrivals=str(trace(FILES["Azure"])), workload="chat"), tokenizer)
    assert len(library.prompts) > 6 and (found.queries, len(library.arrivals)) == (6, 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--arrivals", "gamma:4", "--server-target-qps", "40", "--min-duration", "3", "--total-sample-count", "16"),
        ("--arrivals", "BurstGPT", "--server-target-qps", "40"),
    ],
    ids=["gamma", "trace"],
)
def test_a_run_sends_each_request_at_its_time(words: tuple[str, ...], tmp_path: Path, trace: Any) -> None:
    rows = [f"{0.025 * n * n % 3:.4f},{40 + n % 9},{3 + n % 5}" for n in range(120)]
    path = trace("Timestamp,Request tokens,Response tokens\n" + "\n".join(rows) + "\n")
    given = [str(path) if word == "BurstGPT" else word for word in words]
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
    first = [float(row["ttft_ms"]) for row in requests]
    assert max(first) == pytest.approx(test["ttft_ms"]["max"], abs=0.01)  # counted from the due time
    page = (folder / "report.md").read_text()
    assert f"--arrivals {test['arrivals']}" in page and "This program took these times" in page
    if "BurstGPT" in words:
        assert sorted(int(row["sample"]) for row in requests) == list(range(120))
        times = sorted(float(row.split(",")[0]) for row in rows)
        scale = (times[-1] - times[0]) / max(float(row["issued_s"]) for row in requests)
        due = sorted(float(row["issued_s"]) for row in requests)
        assert due == pytest.approx([(at - times[0]) / scale for at in times], abs=1e-4)
