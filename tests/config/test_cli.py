"""Flags and configuration files: what they hold, what is refused, and the help."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.commands.run import EXAMPLES
from harness.config import mlperf
from harness.config.config_command import config_command
from harness.config.flags import setting
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.config.workload import WORKLOADS
from harness.core.command import start
from harness.core.errors import BAD_INPUT, UsageError
from harness.core.formatting import alternatives
from harness.core.given_values import flag_name
from harness.core.locations import ROOT
from tests.conftest import ASCII, tells

HEAVY = {"vllm", "torch", "transformers", "datasets", "matplotlib", "numpy", "mlperf_loadgen"}
PLAIN = {**os.environ, "COLUMNS": "160", "TERMINAL_WIDTH": "160", "NO_COLOR": "1", "TERM": "dumb"}
PAIRS = [(category, scenario) for category in mlperf.SCENARIOS_BY_CATEGORY for scenario in mlperf.SCENARIOS]
ALLOWED = [(category, scenario) for category, scenario in PAIRS if scenario in mlperf.SCENARIOS_BY_CATEGORY[category]]


def run_py(*words: str | Path, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "run.py", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=PLAIN, capture_output=True, text=True, timeout=60)


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch):
    """The command line in this process: words -> the RunConfig that `main` would get."""

    def from_words(*words: str | Path) -> RunConfig:
        return parsed(monkeypatch, *words)

    return from_words


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> RunConfig:
    seen: list[RunConfig] = []
    monkeypatch.setattr(sys, "argv", ["run.py", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        start(config_command(RunConfig, seen.append, "About."))
    if not seen:
        raise end.value
    return seen[0]


@pytest.fixture
def refusal(parse, capsys: pytest.CaptureFixture[str]):
    """The one line that a wrong command line ends with."""

    def line(*words: str | Path) -> str:
        with pytest.raises(SystemExit) as end:
            parse(*words)
        assert end.value.code == BAD_INPUT
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1, lines
        return lines[0]

    return line


@pytest.fixture
def file(tmp_path: Path):
    """Writes a configuration file."""

    def write(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return write


def test_help_lists_every_flag_in_its_panel():
    panels: dict[str, str] = {}
    panel = ""
    for line in run_py("--help-all").stdout.splitlines():
        if title := re.match(r"(\w[\w ]+):$", line):
            panel = title[1]
        elif flag := re.match(r"  (--[\w-]+)", line):
            panels[flag[1]] = panel
    texts = {name: info.description or "" for name, info in RunConfig.model_fields.items()}
    expected = {flag_name(name): flag.panel for name, flag in RunConfig.flags().items() if texts[name]}
    assert panels == {**expected, "--config": "Results"}
    assert [name for name, text in texts.items() if not text] == ["following_scenarios", "dataset"]


def test_help_is_short_and_its_examples_run():
    narrow = PLAIN | {"COLUMNS": "80"}
    page = subprocess.run(
        [sys.executable, "run.py", "-h"], cwd=ROOT, env=narrow, capture_output=True, text=True
    ).stdout.splitlines()
    flags = [found[1] for line in page if (found := re.match(r"  (--[\w-]+)", line))]
    ranks = map(flag_name, RunConfig.BASIC.split())
    listed = [word for line in page if (word := line.strip().partition(" ")[0]) in WORKLOADS]
    assert listed == [*WORKLOADS]
    assert {*flags} == {*ranks, "--config"} and flags[:3] == ["--category", "--scenario", "--mode"]
    assert len(page) < 140 and max(map(len, page)) <= 80
    assert re.fullmatch(r"--help-all shows \d\d more flags\.", page[-1])
    assert [line.strip() for line in page if line.startswith("  python run.py ")] == list(EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_help_are_commands(parse, example: str):
    assert parse(*example.split()[2:]) is not None


def test_help_imports_no_heavy_library():
    trace = run_py("--help", python=("-X", "importtime")).stderr
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in trace.splitlines()}
    assert "typer" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize(("category", "scenario"), sorted(set(PAIRS) - set(ALLOWED)))
def test_a_wrong_scenario_ends_with_the_allowed_ones(category: str, scenario: str):
    ended = run_py("--category", category, "--scenario", scenario)
    assert ended.returncode == BAD_INPUT
    takes = alternatives(mlperf.SCENARIOS_BY_CATEGORY[category])
    assert ended.stderr == f"error: --category {category} takes --scenario {takes}; not {scenario}.\n"


@pytest.mark.parametrize(("category", "scenario"), ALLOWED)
def test_allowed_scenarios_are_accepted(parse, category: str, scenario: str):
    config = parse("--category", category, "--scenario", scenario)
    assert (config.category, config.scenario) == (category, scenario)


def test_a_results_folder_that_cannot_be_made_ends_before_anything_starts(tmp_path: Path):
    (tmp_path / "file").touch()
    ended = run_py("--model", "demo", "--results-dir", tmp_path / "file" / "results")
    assert ended.returncode == BAD_INPUT
    assert ended.stderr.startswith("error: --results-dir ") and len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--gpu-memory-utilization", "1.5"), "at most 1"),
        (("--gpu-memory-utilization", "much"), "a number above 0, at most 1 or auto; got 'much'"),
        (("--gpu-memory-utilization", "nan"), "a number above 0"),
        (("--tensor-parallel-size", "0"), "above 0"),
        (("--data-parallel-size", "1.5"), "a whole number above 0"),
        (("--max-num-seqs", "-1"), "above 0"),
        (("--total-sample-count", "0"), "above 0"),
        (("--min-duration", "inf"), "above 0"),
        (("--min-duration", "1e300"), "at most 2,592,000"),
        (("--batch-size", "100000000000000000000"), "at most 10,000,000"),
        (("--offline-expected-qps", "1e15"), "at most 1,000,000"),
        (("--server-target-qps", "nan"), "above 0"),
        (("--engine-arg", "novalue"), "KEY=VALUE; got 'novalue'"),
        (("--engine-arg", "=1"), "KEY=VALUE"),
    ],
)
def test_a_wrong_value_ends_with_what_the_flag_takes(refusal, words: tuple[str, str], wanted: str):
    line = refusal(*words)
    assert line.startswith(f"error: {words[0]} takes ") and wanted in line


@pytest.mark.parametrize(
    ("argument", "flag"), [("quantization=fp8", "--quantization"), ("dtype=float16", "--precision")]
)
def test_an_engine_argument_that_has_a_flag_is_refused(refusal, argument: str, flag: str):
    assert tells(refusal("--engine-arg", argument), "--engine-arg", f"use {flag}")


def test_answers_that_loadgen_cannot_time_are_refused(refusal):
    one = ("--max-new-tokens", "1")
    assert tells(
        refusal("--scenario", "server", *one), "--max-new-tokens 1: ", "less than 2 tokens", "--scenario server"
    )
    assert RunConfig(max_new_tokens=1).max_new_tokens == 1
    assert RunConfig(scenario="server", max_new_tokens=1, mode="accuracy").max_new_tokens == 1


def test_a_rate_that_takes_for_ever_is_refused() -> None:
    def asked(**flags: Any) -> object:
        return resolve(RunConfig(model="demo", total_sample_count=32, **flags), [], 0)

    for rates in (1e-6, (1e-6, 5.0)):
        with pytest.raises(UsageError, match=r"--server-target-qps 1e-06: 32 queries .* 370 days"):
            asked(scenario="server", server_target_qps=rates)
    assert asked(offline_expected_qps=1e-6)  # Offline has all at once


@pytest.mark.parametrize("seed", ["-1", str(2**64)])
def test_a_seed_that_loadgen_cannot_hold_is_refused(refusal, seed: str):
    assert "--seed" in refusal("--seed", seed)


@pytest.mark.parametrize("words", [("--batch-size", "4"), ("--sort-by-length",)])
def test_batches_are_for_offline_only(refusal, words: tuple[str, ...]):
    assert tells(refusal("--scenario", "server", *words), words[0], "--scenario offline", "--scenario server")


@pytest.mark.parametrize(
    ("words", "scenario"),
    [
        (("--concurrency", "4"), "concurrency"),
        (("--arrivals", "poisson", "--server-target-qps", "2"), "arrivals"),
        (("--samples-per-query", "8"), "multistream"),
        (("--server-target-qps", "3"), "server"),
        (("--server-target-qps", "3", "--scenario", "interactive"), "interactive"),
        (("--offline-expected-qps", "auto"), "offline"),
        (("--ttft-limit", "9", "--concurrency", "4"), "concurrency"),
    ],
)
def test_a_flag_chooses_the_scenario_that_it_needs(parse, words: tuple[str, ...], scenario: str):
    assert parse(*words).scenario == scenario


@pytest.mark.parametrize(
    ("words", "other"),
    [
        (("--concurrency", "4", "--scenario", "offline"), "--scenario offline"),
        (("--server-target-qps", "auto", "--scenario", "offline"), "--scenario offline"),
        (("--offline-expected-qps", "auto", "--scenario", "server"), "--scenario server"),
        (("--samples-per-query", "8", "--scenario", "offline"), "--scenario offline"),
        (("--arrivals", "poisson", "--concurrency", "auto"), "--concurrency"),
        (("--batch-size", "4", "--server-target-qps", "2"), "--server-target-qps"),
        (("--concurrency", "1,4", "--mode", "accuracy"), "--mode accuracy"),
        (("--samples-per-query", "1,4", "--mode", "accuracy"), "--mode accuracy"),
        (("--tpot-limit", "4", "--scenario", "offline"), "--scenario offline"),
        (("--max-in-flight", "1024"), "--endpoint"),
        (("--precision", "bf16", "--endpoint", "http://h/v1"), "--endpoint"),
    ],
)
def test_a_flag_that_would_play_no_part_is_refused_with_the_other_one(refusal, words: tuple[str, ...], other: str):
    line = refusal(*words)
    assert words[0] in line and other in line


def test_a_flag_of_a_file_counts_as_given(tmp_path: Path, refusal):
    (tmp_path / "run.yaml").write_text("scenario: offline\nconcurrency: 4\n")
    assert "--concurrency implies --scenario concurrency: remove --scenario offline" in refusal(
        "--config", str(tmp_path / "run.yaml")
    )


def test_a_line_and_a_file_are_read_into_the_same(file, parse):
    path = file("model: demo\nconcurrency: [1, 4]\nextra_metrics: true\n")
    words = ["--model", "demo", "--concurrency", "1,4", "--extra-metrics"]
    assert parse(*words) == RunConfig.load(path) == parse("--config", str(path))
    assert parse("--config", str(path), "--extra-metrics", "0") == RunConfig.load(path, extra_metrics=False)


def test_no_flags_means_the_defaults(parse):
    assert parse() == RunConfig()


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_key_of_a_shipped_file_is_a_setting(path: Path) -> None:
    assert {setting(key) for key in yaml.safe_load(path.read_text())} <= {*RunConfig.model_fields}


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_the_help_says_of_the_shipped_files_holds_for_each(path: Path) -> None:
    head = path.read_text().partition("\n")[0]
    assert "static fp8 scales" in head and ("static" in path.stem) == (", Offline," in head)


def test_flags_win_over_the_file(parse, file):
    path = file("model: demo\nmax-num-seqs: 8\nmode: accuracy\nengine_arg: [a=1, b=2]\nround: 6.1\n")
    config = parse("--config", path, "--max-num-seqs", "9", "--mode", "both")
    assert (config.model, config.max_num_seqs, config.mode) == ("demo", 9, "both")
    assert (config.engine_arg, config.round) == (("a=1", "b=2"), "6.1")


def test_the_round_by_its_older_name(parse, file):
    words = [("--version", "6.1"), ("--version=6.1",), ("--config", file("version: 6.1\n"))]
    assert [parse(*each).round for each in words] == ["6.1"] * 3


def test_a_flag_given_with_its_default_still_wins(parse, file):
    assert parse("--config", file("precision: fp16"), "--precision", "bf16").precision == "bf16"


def test_repeated_engine_args_are_kept_in_order(parse):
    assert parse("--engine-arg", "b=2", "--engine-arg", "a=x=y").engine_arg == ("b=2", "a=x=y")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_num_seq: 8", "'max_num_seq'; did you mean max_num_seqs?"),
        ("tensor-paralel-size: 2", "'tensor_paralel_size'; did you mean tensor_parallel_size"),
        ("zzzz: 1", "unknown setting 'zzzz' ("),
        ("self: 1", "unknown setting 'self'"),
        ("cls: 1", "unknown setting 'cls'"),
        ("path: 1", "unknown setting 'path'"),
        ("settings: 1", "unknown setting 'settings'"),
        ("config: other.yaml", "unknown setting 'config'"),
        ("no-enable-prefix-caching: true", "engine_arg: enable_prefix_caching=VALUE"),
        ("compilation_config: {}", "engine_arg: compilation_config=VALUE"),
        ("- model", "expected lines of `flag: value`"),
        ("", "expected lines of `flag: value`"),
        ("model: [", "not YAML"),
        ("model: 2024-13-45", "not YAML"),
        ("max_num_seqs: many", "a whole number above 0, at most 1,000,000; got 'many'"),
        ("max_num_seqs: 1.5", "at most 1,000,000; got 1.5"),
        ("max_num_seqs: true", "at most 1,000,000; got True"),
        ("sort_by_length: 2", "true or false; got 2"),
        ("keep_all: 2", "--keep-all takes true or false; got 2"),
        ("precision: int8", "bf16 or fp32; got 'int8'"),
        ("engine_arg: {a: 1}", "a list of KEY=VALUE"),
        ("engine_arg: [1]", "--engine-arg takes KEY=VALUE; got '1'"),
        ("engine_arg: novalue", "--engine-arg takes KEY=VALUE; got 'novalue'"),
        ("dataset_path: [a]", "--dataset-path takes a path"),
        ("min_duration: soon", "at most 2,592,000 or auto; got 'soon'"),
        ("category: edge\nscenario: server", "--category edge takes --scenario offline,"),
    ],
)
def test_a_wrong_file_ends_with_one_line(refusal, file, text: str, message: str):
    assert message in refusal("--config", file(text))


def test_a_missing_file_is_named_once(refusal):
    line = refusal("--config", "nosuch")
    assert line.count("nosuch") == 1 and line.endswith("-static.")


@pytest.mark.parametrize(("label", "part"), [("", "empty"), (" ", "empty"), ("x" * 101, " 100 characters")])
def test_a_label_is_a_name_that_fits_into_a_table(file, label: str, part: str):
    words = ("--model", "demo", "--dry-run")
    for source in (("--label", label), ("--config", file(f"label: '{label}'"))):
        ended = run_py(*words, *source)
        assert (ended.returncode, ended.stderr.count("\n")) == (BAD_INPUT, 1)
        assert tells(ended.stderr, "error: --label ", part)


def test_a_flag_of_other_scenarios_names_them(refusal):
    line = refusal("--model", "demo", "--ttft-limit", "10", "--scenario", "offline")
    assert tells(line, "--ttft-limit", "--scenario offline: ", " server, interactive, concurrency or arrivals.")


def test_an_empty_value_in_a_file_is_refused_where_a_setting_must_have_one(file):
    accepted = set()
    for name in RunConfig.model_fields:
        with contextlib.suppress(UsageError):
            assert RunConfig.load(file(f"{name}:\n")) == RunConfig()
            accepted.add(name)
    assert accepted == {name for name, info in RunConfig.model_fields.items() if info.default is None}


def test_a_missing_file_and_a_folder_end_with_one_line(refusal, tmp_path: Path):
    assert "No such file" in refusal("--config", tmp_path / "none.yaml")
    assert "directory" in refusal("--config", tmp_path)


def test_a_file_that_is_no_text_ends_with_one_line(refusal, tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"model: \xff\xfe\x00")
    assert "not text in UTF-8" in refusal("--config", path)


NUMBERS = st.one_of(st.integers(1, 10**4), st.just("auto"))
RATES = st.one_of(st.integers(1, 10**6), st.floats(1e-3, 1e6), st.just("auto"))
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["demo", "a/b", "5", "llama3.1-8b-instruct"]),
        "precision": st.sampled_from(["fp16", "bf16", "fp32"]),
        "quantization": st.sampled_from(["none", "fp8"]),
        "round": st.sampled_from(["5.1", "6.0", 6.0, 6.1]),
        "keep_all": st.sampled_from([0, 1]),
        "tensor_parallel_size": NUMBERS,
        "max_model_len": NUMBERS,
        "total_sample_count": NUMBERS,
        "max_num_seqs": st.integers(1, 10**6),
        "seed": st.integers(0, 2**32 - 1),
        "gpu_memory_utilization": st.one_of(st.floats(0.01, 1), st.just(1), st.just("auto")),
        "server_target_qps": RATES,
        "min_duration": RATES,
        "dataset_path": st.sampled_from(["a.json", "/data/cnn"]),
        "results_dir": st.sampled_from(["out", "/tmp/out"]),
        "engine_arg": st.lists(st.sampled_from(["a=1", "b=", "c=x=y"]), max_size=3),
    },
)


@settings(max_examples=60, deadline=None)
@given(chosen=SETTINGS)
def test_a_file_and_the_command_line_agree(tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, Any]):
    path = tmp_path_factory.mktemp("yaml") / "run.yaml"
    path.write_text(yaml.safe_dump(chosen))
    words: list[str] = []
    for name, value in chosen.items():
        for item in value if isinstance(value, list) else [value]:
            words += [flag_name(name), str(item)]
    with pytest.MonkeyPatch.context() as patch:
        typed = parsed(patch, *words)
    loaded = RunConfig.load(path)
    assert loaded == typed
    assert [type(value) for value in vars(loaded).values()] == [type(value) for value in vars(typed).values()]


@pytest.mark.parametrize(
    ("name", "value", "held"),
    [
        ("round", 6.0, "6.0"),
        ("keep_all", "0", False),
        ("max_num_seqs", "8", 8),
        ("max_model_len", 1024.0, 1024),
        ("gpu_memory_utilization", 1, 1.0),
        ("min_duration", "2.5", 2.5),
        ("seed", str(2**32 - 1), 2**32 - 1),
        ("results_dir", "out", Path("out")),
        ("engine_arg", "a=1", ("a=1",)),
        ("model", 5, "5"),
    ],
)
def test_values_become_what_the_setting_holds(name: str, value: Any, held: Any):
    got = getattr(RunConfig(**{name: value}), name)
    assert (got, type(got)) == (held, type(held))


def test_a_wrong_value_in_a_file_names_the_file(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("scenario: öffline\n")
    command = [sys.executable, "run.py", "--config", str(path)]
    for locale in ({}, ASCII):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | locale)
        assert done.returncode == BAD_INPUT
        assert f"got 'öffline' (with --config {path}).\n" in done.stderr


@pytest.mark.parametrize("name", ["high_accuracy", "extra_metrics", "mlflow", "exit_on_invalid"])
def test_a_switch_takes_an_optional_0_or_1(parse, name: str):
    flag = flag_name(name)
    assert getattr(parse(flag), name) is True
    assert getattr(parse(flag, "1"), name) is True
    assert getattr(parse(flag, "0"), name) is False
    assert getattr(parse(flag, "--mode", "both"), name) is True
    words = {"1": True, "true": True, "YES": True, "on": True, "0": False, "False": False, "no": False, "off": False}
    assert {word: getattr(parse(f"{flag}={word}"), name) for word in words} == words


@pytest.mark.parametrize("word", ["", "2", "x"])
def test_a_switch_takes_no_other_word(refusal, word: str):
    assert f"--json takes 0 or 1; got {word!r}." in refusal(f"--json={word}")


def test_a_switch_that_is_off_is_not_given(parse, file):
    path = file("sort_by_length: true\nprofile: true\n")
    off = ("--sort-by-length=0", "--no-profile")
    config = parse("--config", path, *off, "--endpoint", "http://h/v1", "--scenario", "server")
    assert not config.sort_by_length and not config.profile
    assert parse("--keep-all", "0").with_settings(label="a").keep_all is False


def test_a_value_that_is_refused_shows_no_secret(refusal):
    assert "got 'hf_token=***'." in refusal("--max-new-tokens", "hf_token=SECRETxyz")


def test_a_switch_that_is_on_by_default_is_one_as_others(parse):
    assert [parse(*words).keep_all for words in ((), ("--keep-all",), ("--keep-all", "0"))] == [True, True, False]


def test_a_switch_in_a_file_may_be_0_or_1(parse, file):
    path = file("high_accuracy: 1\nextra_metrics: 0\n")
    config = parse("--config", path)
    assert (config.high_accuracy, config.extra_metrics) == (True, False)
    assert parse("--config", path, "--high-accuracy", "0").high_accuracy is False


def test_help_names_what_a_switch_takes():
    shown = run_py("--help-all").stdout
    assert "<bool>" not in shown
    assert "[0|1]" in shown


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_a_device_is_no_configuration(refusal, path: str):
    assert f"--config {path}: not a regular file" in refusal("--config", path)


def test_a_huge_file_is_no_configuration(refusal, tmp_path: Path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as huge:
        huge.truncate(2**30)
    assert "larger than 4 MiB" in refusal("--config", path)


def test_every_flag_says_what_it_affects():
    assert {flag.affects for flag in RunConfig.flags().values()} == {"work", "answers", "speed", "nothing"}
    assert "max_num_seqs" in RunConfig.flags_by_effect("speed")
    assert "results_dir" not in RunConfig.flags_by_effect("answers", "speed")


def test_the_table_of_scenarios():
    assert set(ALLOWED) == {
        ("datacenter", "offline"),
        ("datacenter", "multistream"),
        ("edge", "multistream"),
        ("datacenter", "server"),
        ("datacenter", "interactive"),
        ("edge", "offline"),
        ("edge", "singlestream"),
        ("datacenter", "concurrency"),
        ("edge", "concurrency"),
        ("datacenter", "arrivals"),
        ("edge", "arrivals"),
    }
