"""Workloads: what a run asks instead of MLPerf's samples; every file that cannot serve ends in one line."""

import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.lengths import Lengths, lengths
from harness.config.plan import Plan
from harness.config.pretrained import load_tokenizer
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.config.workload import WORKLOADS, WORKLOADS_FOLDER, is_profile
from harness.core.errors import EndpointError, UsageError
from harness.core.locations import ROOT
from harness.core.statistics import Spread
from harness.engines import sampling_of
from harness.engines.openai import OpenAI
from harness.engines.protocol import Sampling
from harness.report import compare, compare_page
from harness.report import report as rendering
from harness.runner.trial_rate import last_offline_rate
from harness.runs.run_folder import RunFolder
from harness.workloads import custom as workload_samples
from harness.workloads import requests_file
from tests.conftest import tells
from tests.engines.test_openai import PROMPT, client
from tests.support import example_runs
from tests.support.fake_servers import Fake, serving, whole

SHIPPED = [name for name, row in WORKLOADS.items() if row.path and not is_profile(name)]
TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(RunConfig(model="demo"))


@pytest.fixture
def file(tmp_path: Path):
    """Writes a file of requests: text as it is, anything else a line each."""

    def write(content: Any) -> Path:
        path = tmp_path / "own.jsonl"
        path.write_text(content if isinstance(content, str) else "".join(f"{json.dumps(row)}\n" for row in content))
        return path

    return write


def config(workload: Any = "chat", **flags: Any) -> RunConfig:
    return RunConfig(**{"model": "demo", "mode": "performance", "workload": str(workload), **flags})


def synthetic(**flags: Any) -> RunConfig:
    return RunConfig(**{"model": "demo", "mode": "performance", "input_len": "64~0.5", "output_len": "16", **flags})


def load(asked: RunConfig, tokenizer: Any) -> Any:
    library = workload_samples.load(asked, tokenizer)
    assert library is not None
    return library


def plan(asked: RunConfig, tokenizer: Any) -> Plan:
    return resolve(asked, [], 0, request_set=load(asked, tokenizer).request_set)


def refusal(asked: RunConfig, tokenizer: Any) -> str:
    with pytest.raises(UsageError) as error:
        plan(asked, tokenizer)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_workload_runs_on_the_demo_in_every_scenario(tokenizer: Any, name: str) -> None:
    for category, scenario in (("datacenter", "server"), ("edge", "singlestream")):
        found = plan(config(name, category=category, scenario=scenario), tokenizer)
        assert found.max_model_len == 1024
        assert 30 <= found.samples <= 60
        assert any(tells(said, f"workload {name} instead of") for said in found.deviations)


def test_the_shipped_workloads_differ_from_line_to_line(tokenizer: Any) -> None:
    prompts = [str(prompt) for name in SHIPPED for prompt in load(config(name), tokenizer).prompts]
    assert len(set(prompts)) == len(prompts)


def test_the_documentation_says_what_each_imitates_and_how_long_its_requests_are(tokenizer: Any) -> None:
    page = (ROOT / "docs" / "workloads.md").read_text()
    for name, row in WORKLOADS.items():
        assert f"`{name}`" in page and row.imitates in page
        if found := workload_samples.load(config(name, concurrency="auto"), tokenizer):
            read, written = found.mean_prompt_tokens, sum(found.new_tokens or []) / len(found)
            (line,) = (line for line in page.splitlines() if line.startswith(f"| `{name}`"))
            assert line.endswith(f"| {read:,.0f} | {written:,.0f} |")
            assert (row.input_tokens, row.output_tokens) == (round(read), round(written))


def test_every_shipped_file_is_a_workload_by_name() -> None:
    assert {path.stem for path in WORKLOADS_FOLDER.iterdir()} == {name for name, row in WORKLOADS.items() if row.path}


def test_summarization_is_mlperfs_own(tokenizer: Any) -> None:
    official = config("summarization")
    assert workload_samples.load(official, tokenizer) is None
    assert "workload" not in resolve(official, [], 0).setup


def test_each_kind_of_request_becomes_token_ids(tokenizer: Any, file: Any) -> None:
    talk = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Who?"},
    ]
    rows = [{"prompt": "Hello", "max_tokens": 5}, {"messages": talk}, {"prompt_token_ids": [7, 8], "max_tokens": None}]
    library = load(config(file(rows), max_new_tokens=77), tokenizer)
    plain = "System: Be brief.\nUser: Hello\nAssistant: Hi.\nUser: Who?\nAssistant:"
    assert library.prompts == [tokenizer.encode("Hello"), tokenizer.encode(plain), [7, 8]]
    assert library.new_tokens == [5, 77, 77]
    assert library.requests == list(zip(library.prompts, [5, 77, 77], strict=True))
    assert library.request_set.notes == (workload_samples.NO_TEMPLATE, workload_samples.UNCHECKED_IDS)
    assert (library.request_set.longest, library.request_set.max_new_tokens) == (len(library.prompts[1]) + 77, 77)


def test_messages_take_the_models_chat_template(file: Any) -> None:
    tokenizer = load_tokenizer(RunConfig(model="demo"))
    tokenizer.chat_template = TEMPLATE
    own = config(file([{"messages": [{"role": "user", "content": "Hello"}]}]))
    library = load(own, tokenizer)
    assert tokenizer.decode(library.prompts[0]) == "<user>Hello<assistant>"
    assert library.request_set.notes == ()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    assert tells(refusal(own, tokenizer), "own.jsonl: line 1: ", "chat template", ": roles must alternate.")


ONE = {"prompt": "Hello"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not JSON"),
        ("[1]" * 3, "not JSON"),
        ("7", "not an object"),
        ({}, "none of prompt, messages, prompt_token_ids"),
        ({"prompt": None}, "none of prompt"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "more than one of prompt"),
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": " \n"}, "prompt is empty"),
        ({"prompt": ["a"]}, "prompt is not text"),
        ({"prompt": "x \ud83d"}, "lone surrogate"),
        ({"messages": []}, "last of messages"),
        ({"messages": "Hello"}, "messages is not a list"),
        ({"messages": ["Hello"]}, "messages is not a list"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "'wizard'; known are system, user"),
        ({"messages": [{"content": "a"}]}, "role None"),
        ({"messages": [{"role": "user", "content": ""}]}, "content is empty"),
        ({"messages": [{"role": "user"}]}, "content is not text"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "last of messages"),
        ({"prompt_token_ids": []}, "prompt_token_ids is not a list"),
        ({"prompt_token_ids": [1, True]}, "prompt_token_ids is not a list"),
        ({"prompt_token_ids": [1, 704]}, "vocabulary of 704"),
        ({"prompt_token_ids": [-1]}, "token ids outside"),
        *(
            ({**ONE, name: most}, f"{name} must be a whole number")
            for name in ("max_tokens", "max_completion_tokens", "output_tokens")
            for most in (0, -1, 1.5, "many", True, 10**9)
        ),
        ({"prompt": "word " * 2000}, "prompt and answer take"),
        ({**ONE, "max_tokens": 1023}, "prompt and answer take"),
        ({**ONE, "max_tokens": 5, "output_tokens": 6}, "max_tokens 5 and output_tokens 6 disagree"),
    ],
    ids=str,
)
def test_a_line_that_is_no_request_is_named(tokenizer: Any, file: Any, row: Any, said: str) -> None:
    bad = row if isinstance(row, str) else json.dumps(row)
    path = file(f"{json.dumps(ONE)}\n\n{bad}\n{json.dumps(ONE)}\n")
    line = refusal(config(path), tokenizer)
    assert line.startswith(f"{path}: line 3: ") and said in line
    assert len(line) < 300


EMPTY = [("", "no request is in it"), ("\n \n", "no request"), ("[]", "no request")]


@pytest.mark.parametrize(("content", "said"), EMPTY)
def test_an_empty_file_is_named(tokenizer: Any, file: Any, content: str, said: str) -> None:
    assert said in refusal(config(file(content)), tokenizer)


def test_files_that_cannot_be_read_are_named(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--workload chatt: not a file" in refusal(config("chatt"), tokenizer)
    assert "did you mean chat?" in refusal(config("chatt"), tokenizer)
    assert "a directory" in refusal(config(tmp_path), tokenizer)
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(config(tmp_path / "pipe"), tokenizer)
    (tmp_path / "binary").write_bytes(b"\x80\x81")
    assert "not text" in refusal(config(tmp_path / "binary"), tokenizer)
    monkeypatch.setattr(requests_file, "LARGEST_WORKLOAD", 3)
    (tmp_path / "large").write_text("{}{}")
    assert "larger than" in refusal(config(tmp_path / "large"), tokenizer)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "prompt",
                    "messages",
                    "prompt_token_ids",
                    "max_tokens",
                    "role",
                    "content",
                    "conversations",
                    "from",
                    "value",
                ]
            ),
            inner | st.sampled_from(["user", "human", "gpt", "assistant"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(rows=st.lists(ANYTHING.map(json.dumps) | st.text(), max_size=4), whole=st.booleans())
def test_any_file_is_read_or_refused_in_one_line(
    rows: list[str], whole: bool, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text(f"[{','.join(rows)}]" if whole else "\n".join(rows), errors="surrogatepass")
    try:
        library = load(config(path), tokenizer)
    except UsageError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        assert len(library.prompts) == len(library.new_tokens) > 0
        assert all(map(len, library.prompts)) and min(library.new_tokens) > 0


def conversation(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in turns]}


def test_sharegpts_first_question_is_asked_with_its_answers_length(tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "ShareGPT.json"
    talks = [
        conversation(
            ("human", "What is the weather like?"), ("gpt", "It rains all day."), ("human", "Again?"), ("gpt", "Yes.")
        ),
        conversation(("gpt", "A late answer."), ("human", "Where is the train?"), ("bing", "It has left already.")),
        conversation(("human", "Nobody answers this.")),
        conversation(),
        conversation(("human", "word " * 900), ("gpt", "It is too long for this model.")),
    ]
    path.write_text(json.dumps(talks))
    library = load(config(path), tokenizer)
    assert [tokenizer.decode(prompt, skip_special_tokens=True) for prompt in library.prompts] == [
        "What is the weather like?",
        "Where is the train?",
    ]
    answers = ["It rains all day.", "It has left already."]
    assert library.new_tokens == [len(tokenizer.encode(text, add_special_tokens=False)) for text in answers]
    (note,) = library.request_set.notes
    assert "left out 2 conversations" in note and "and 1 that" in note
    assert load(config(path, total_sample_count=1), tokenizer).request_set.samples >= 1
    assert "this data set has 2 samples" in refusal(config(path, total_sample_count=4), tokenizer)
    assert "every record of" in refusal(config(path, max_new_tokens=64), tokenizer)
    path.write_text(json.dumps([*talks, {"id": "y"}]))
    assert "record 6: none of prompt" in refusal(config(path), tokenizer)


def test_the_digest_is_of_the_conversations_that_can_be_sent(tokenizer: Any, tmp_path: Path) -> None:
    """One of unusual length is left out, and another conversation after it is another workload."""
    path = tmp_path / "ShareGPT.json"
    weather, train, ship = (
        conversation(("human", f"Where is the {what}?"), ("gpt", "It has left already."))
        for what in ("weather", "train", "ship")
    )
    long = conversation(("human", "word " * 900), ("gpt", "It is too long for this model."))

    def digest_of(*talks: dict[str, Any]) -> str:
        path.write_text(json.dumps(talks))
        return load(config(path), tokenizer).request_set.digest

    assert digest_of(weather, long, train) != digest_of(weather, long, ship)
    assert digest_of(weather, train, long) == digest_of(weather, train)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"workload": "chat", "mode": "both"}, "--workload chat .*--mode performance"),
        ({"workload": "chat", "mode": "accuracy"}, "--mode performance"),
        ({"input_len": "8", "output_len": "8", "mode": "both"}, "--input-len has no reference answers"),
        ({"input_len": "8"}, "--input-len and --output-len"),
        ({"output_len": "8"}, "--input-len and --output-len"),
        ({"workload": "chat", "input_len": "8", "output_len": "8"}, "--workload has its own prompts"),
        ({"input_len": "8", "output_len": "8", "max_new_tokens": 9}, "--max-new-tokens: --output-len says"),
        ({"workload": "chat", "compliance": "test06"}, "--compliance .*--workload"),
        ({"workload": "chat", "dataset_path": "x.json"}, "--dataset-path .*--workload"),
        *(
            ({"input_len": text, "output_len": "8"}, "--input-len takes N tokens")
            for text in (
                "",
                "0",
                "-1",
                "1.5",
                "many",
                "8~",
                "8~x",
                "8~-1",
                "8~nan",
                "8~10000001",
                "8:9-4",
                "~1",
                "10000001",
            )
        ),
    ],
    ids=str,
)
def test_what_does_not_go_together_ends_before_anything_starts(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        RunConfig(**{"model": "demo", "mode": "performance", **flags})


def test_lengths_are_fixed_or_log_normal(tokenizer: Any) -> None:
    assert lengths("--input-len", "512") == Lengths(512)
    assert lengths("--input-len", "512~0.5") == Lengths(512, 0.5)
    library = load(synthetic(), tokenizer)
    read = sorted(map(len, library.prompts))
    assert (
        len(read) == 1000
        and read[500] == pytest.approx(64, rel=0.06)
        and read[840] == pytest.approx(64 * 1.65, rel=0.1)
    )
    assert set(library.new_tokens) == {16}
    special = set(tokenizer.all_special_ids)
    assert not any(special & set(prompt) for prompt in library.prompts)
    assert load(synthetic(), tokenizer).prompts == library.prompts
    assert load(synthetic(seed=1), tokenizer).prompts != library.prompts
    assert len(load(synthetic(total_sample_count=7), tokenizer)) == 7


def test_lengths_beyond_the_context_say_so(tokenizer: Any) -> None:
    line = refusal(synthetic(input_len="512~0.5"), tokenizer)
    assert line.startswith("--input-len 512~0.5 --output-len 16: ")
    assert tells(line, "demo ", "1,024 ", "sigma")
    assert "--max-model-len is 50" in refusal(synthetic(max_model_len=50), tokenizer)
    assert "use fewer" in refusal(synthetic(total_sample_count=10**8), tokenizer)


def test_a_longer_workload_gets_the_context_it_needs(tokenizer: Any, file: Any) -> None:
    own = config(file([{"prompt_token_ids": [1] * 4000, "max_tokens": 100}]), model="some/model")
    assert plan(own, tokenizer).max_model_len == 4100
    assert "--max-model-len is 4,000" in refusal(own.with_settings(max_model_len=4000), tokenizer)


def test_answers_of_one_token_are_measured_too(tokenizer: Any, file: Any) -> None:
    own = file([{**ONE, "max_tokens": 1}])
    assert load(config(own), tokenizer).new_tokens == [1]
    assert load(config(own, scenario="server"), tokenizer).new_tokens == [1]


def test_a_workload_repeats_for_the_whole_duration(tokenizer: Any) -> None:
    few = plan(config(total_sample_count=16), tokenizer)
    assert (few.samples, few.min_duration_s) == (16, 10)
    assert "40 samples" in refusal(config(total_sample_count=41), tokenizer)


def test_rates_and_comparisons_do_not_mix_workloads(tokenizer: Any, file: Any) -> None:
    official = resolve(config("summarization"), [], 0)
    own = [file([{"prompt": "Hello", "max_tokens": 128}])]
    plans = [official, plan(config(own[0]), tokenizer), *(plan(config(name), tokenizer) for name in SHIPPED)]
    file([{"prompt": "Hullo", "max_tokens": 128}])  # another file of the same name
    plans += [
        plan(config(own[0]), tokenizer),
        plan(synthetic(), tokenizer),
        plan(synthetic(output_len="17"), tokenizer),
    ]
    line = {"run": "r", "category": "datacenter", "scenario": "offline", "valid": True, "gpus": []}
    line |= {"tokens_per_sec": 100.0, "mean_new_tokens": 10.0}
    for n, one in enumerate(plans):
        kept = json.loads(json.dumps(line | {"setup": one.setup}))
        assert [last_offline_rate(other, [], [kept]) is not None for other in plans] == [
            n == m for m in range(len(plans))
        ]


def rendered(folder: Path, tokenizer: Any, asked: RunConfig) -> Any:
    """A finished run of a workload, made without an engine."""
    example_runs.run(folder)
    found = plan(asked.with_settings(min_duration=5.0), tokenizer)
    example_runs.record(RunFolder(folder.parent, folder.name), found)
    return rendering.build_report(folder)


def test_the_report_says_what_was_asked(tokenizer: Any, tmp_path: Path) -> None:
    summary = rendered(tmp_path / "r", tokenizer, config())
    page = (tmp_path / "r" / "report.md").read_text()
    assert page.startswith("# 1,024 output tokens/s") and "\nOffline, chat, demo model, " in page
    assert "the workload chat instead of" in page
    assert "answers of at most 384 tokens" in page and workload_samples.NO_TEMPLATE in page
    assert summary.result.details.input_lengths == Spread(500, 500, 500, 500, 500)
    assert summary.result.details.output_lengths == Spread(128, 128, 128, 128, 128)
    assert (summary.meta.workload, summary.meta.max_new_tokens) == ("chat", 384)
    line = rendering.history_line(summary)
    assert line["workload"] == "chat" and line["comparable"] is False
    assert summary.meta.setup["workload"].startswith("chat ")


def test_two_workloads_are_not_compared(tokenizer: Any, tmp_path: Path) -> None:
    for name in ("chat", "code"):
        rendered(tmp_path / name, tokenizer, config(name, total_sample_count=16))
    (a, b), _ = compare.load_runs([tmp_path / "chat", tmp_path / "code"])
    assert compare_page.refusal_text(a, b, "A", "B") == "different work (--workload)"
    assert re.search(
        r"\| workload \| chat \w{12} \| code \w{12} \|", example_runs.side_by_side([a, b])
    )  # also of one name


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=300))
def test_percentiles_are_lengths_that_occurred(values: list[int]) -> None:
    found = Spread.from_lengths(values)
    assert found is not None and {found.p50, found.p99} <= set(values)
    for value, share in (
        (found.p99, 0.99),
        (found.p50, 0.5),
    ):  # as LoadGen counts: what lies below is its share at most
        assert sum(v < value for v in values) <= share * len(values) < sum(v <= value for v in values)
    assert Spread.from_lengths([]) is None


def test_exact_answers_have_no_other_length(tokenizer: Any) -> None:
    assert sampling_of(plan(synthetic(), tokenizer)) == Sampling(16, exact=True)
    assert Sampling(16, exact=True).for_request(9) == Sampling(9, 9, exact=True)
    assert sampling_of(plan(config(), tokenizer)).for_request(9) == Sampling(9, 1)
    assert Sampling(128).for_request(None) == Sampling(128)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "output_tokens"])
def test_the_longest_answer_by_any_of_its_names(name: str) -> None:
    line = json.dumps({"prompt": "Hello", name: 7, "max_tokens": 7})
    assert requests_file.stored_request(json.loads(line), 1, "f: line 1").max_tokens == 7
    assert requests_file.stored_request({"prompt": "Hello", name: 7}, 1, "f: line 1").max_tokens == 7


def test_a_server_is_asked_for_each_answers_length() -> None:
    fake = Fake(end="stop")
    with client(fake) as engine:
        engine.run(whole(engine.stream(PROMPT, 9, is_whole=True)), lambda: None)
    early = r"ended an answer early \(stop\): it ignores ignore_eos"
    with client(fake, sampling=Sampling(16, exact=True)) as engine, pytest.raises(EndpointError, match=early):
        engine.run(whole(engine.stream(PROMPT, 7, is_whole=True)), lambda: None)
    one, exact = fake.asked
    assert (one["max_tokens"], one["min_tokens"]) == (9, 1) and "ignore_eos" not in one
    assert (exact["max_tokens"], exact["min_tokens"], exact["ignore_eos"]) == (7, 7, True)


def test_special_tokens_of_a_chat_reach_a_server_that_takes_text(tokenizer: Any) -> None:
    end = tokenizer.eos_token_id
    with client(fake := Fake(token_ids=False)) as engine:
        engine.run(whole(engine.stream([tokenizer.bos_token_id, 33, end, 44], is_whole=True)), lambda: None)
    assert fake.asked[0]["prompt"] == tokenizer.decode([33]) + tokenizer.eos_token + tokenizer.decode([44])


def test_exact_lengths_take_a_server_that_takes_token_ids() -> None:
    with ExitStack() as stack:
        address = stack.enter_context(serving(Fake(token_ids=False))).address
        asked = RunConfig(model="demo", endpoint=(address,))
        engine = OpenAI(asked, 1024, Sampling(16, exact=True))
        stack.callback(engine.close)
        with pytest.raises(UsageError, match=r"--endpoint .* --input-len "):
            engine.start()


def test_a_large_workload_is_asked_no_longer_than_its_duration(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt_token_ids": [1], "max_tokens": 2}\n' * 2000)
    asked = {"model": "demo", "mode": "performance", "workload": str(path), "scenario": "server"}
    for more, fewest, most in (({"min_duration": 10.0}, 80, 120), ({}, 2000, 2000)):
        config = RunConfig(**asked, server_target_qps=10.0, **more)
        library = workload_samples.load(config, load_tokenizer(config))
        assert library is not None
        queries = resolve(config, [], 0, request_set=library.request_set).planned_samples
        assert queries is not None and fewest <= queries <= most


def test_a_role_that_nobody_knows_is_named_wherever_it_stands(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([[{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]]))
    assert tells(refusal(config(path), tokenizer), "record 1: role 'tool'; known are system, user")


ASKED, ANSWERED = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}
ROWS: dict[str, tuple[dict[str, Any], list[str]]] = {  # a row, and the questions of its requests
    "prompt": ({"prompt": "Why?"}, ["Why?"]),
    "chat": ({"messages": [ASKED, ANSWERED, {"role": "user", "content": "And?"}]}, ["And?"]),
    "fine-tuning": ({"messages": [ASKED, ANSWERED]}, ["Why?"]),
    "WildChat": ({"conversation": [ASKED, ANSWERED, ASKED, ANSWERED], "turn": 2}, ["Why?", "Why?"]),
    "ShareGPT": (
        {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]},
        ["Why?"],
    ),
    "nothing to ask": ({"conversations": []}, []),
    "an empty answer in between": (
        {"conversation": [ASKED, {"role": "assistant", "content": ""}, ASKED, ANSWERED]},
        ["Why?"],
    ),
}


def questions(path: Path) -> list[str]:
    prompts = [request.prompt for request in requests_file.read(path).requests]
    return [prompt if isinstance(prompt, str) else prompt[-1]["content"] for prompt in prompts]


@pytest.mark.parametrize("first", ROWS)
@pytest.mark.parametrize("second", ROWS)
def test_lines_and_a_list_of_the_same_rows_are_read_alike(first: str, second: str, tmp_path: Path) -> None:
    rows = [ROWS[first][0], ROWS[second][0]]
    (tmp_path / "a.jsonl").write_text("\ufeff" + "".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    if wanted := ROWS[first][1] + ROWS[second][1]:
        assert questions(tmp_path / "a.jsonl") == questions(tmp_path / "a.json") == wanted
    else:
        for path in tmp_path.iterdir():
            with pytest.raises(UsageError, match="no conversation has a question"):
                requests_file.read(path)


def test_rows_that_are_none_are_left_out_up_to_a_share(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"prompt": "Why?"})] * 18
    path.write_text("\n".join([*lines, '{"prompt": "Wh', '{"prompt": ""}']))
    found = requests_file.read(path)
    assert len(found.requests) == 18
    assert tells(found.fault_note, "2 of 20 lines", "line 19: not JSON")
    path.write_text("\n".join([*lines, '{"prompt": "Wh', '{"prompt": ""}', "{}"]))
    with pytest.raises(UsageError, match="line 19: not JSON"):
        requests_file.read(path)
