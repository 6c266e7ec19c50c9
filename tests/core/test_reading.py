"""Whatever a user names as a file: FIFOs, devices, huge files, YAML that expands; none is read without end."""

import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import yaml
from pyarrow import parquet

from harness.config.run import RunConfig
from harness.core import csv_files, reading
from harness.core.errors import BenchmarkError, UsageError
from harness.core.given_values import read_given
from harness.loadgen import log as loadgen_log
from harness.loadgen import log_entries
from harness.loadgen.requests import TRACE_FILE, read_trace
from harness.mmlu import question_data as mmlu_data
from harness.results import benchmark_run, scoring
from harness.results.test06_verdict import judge_test06
from harness.runs import history, run_folder
from harness.sweep import file as sweep_file

READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "--config": ("config.yaml", RunConfig.load),
    "data": ("data.json", lambda path: read_given("--dataset-path", path, "JSON", str, most=2**32)),
    "sweep": ("sweep.yaml", sweep_file.load_sweep),
    "log": (log_entries.DETAIL, lambda path: loadgen_log.read(path.parent)),
    "trace": (TRACE_FILE, lambda path: read_trace(path.parent)),
    "accuracy log": ("mlperf_log_accuracy.json", lambda path: scoring.read_log(path, 1)),
    "TEST06": ("mlperf_log_accuracy.json", lambda path: judge_test06(path.parent, 1, RunConfig(scenario="server"))),
    "run folder": ("config.json", lambda path: benchmark_run.facts_of(path.parent)),
    "status": ("status.json", lambda path: run_folder.status_of(path.parent)),
    "table": ("samples.csv", csv_files.read_columns),
    "MMLU's table": ("astronomy_test.csv", lambda path: list(mmlu_data.rows_of_csv([path], "test"))),
    "MMLU's parquet": ("test.parquet", lambda path: list(mmlu_data.rows_of_parquet([path]))),
}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**37)


def zeros(path: Path) -> None:
    """A sparse file below the limits of some kinds, which a reader of lines would take for one line."""
    with path.open("wb") as file:
        file.truncate(6 * 2**30)


@pytest.mark.parametrize("make", [fifo, device, huge, zeros, Path.mkdir])
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_hangs_or_fills_the_memory(reader: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    name, read = READERS[reader]
    make(tmp_path / name)
    said: list[BaseException] = []

    def attempt() -> None:
        try:
            read(tmp_path / name)
        except BaseException as error:
            said.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(said[0], BenchmarkError), said
    assert "None" not in str(said[0]) and "\n" not in str(said[0])


@pytest.mark.parametrize("make", [fifo, device, huge, zeros])
def test_a_history_that_is_none_takes_nothing_from_a_run(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "history.jsonl")
    assert list(history.read_history(tmp_path)) == []
    run, said = run_folder.open_run(tmp_path, "run"), list[str]()
    history.finish(run, {"a": 1}, say=said.append)
    assert len(said) == 1 and said[0].startswith(f"{tmp_path / 'history.jsonl'} could not be written: ")
    status = run_folder.status_of(run.path)
    assert status is not None and status.status == "complete"


BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]\n" for old, new in pairwise("abcdefghi")
)


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]", "&a {a: *a}"])
def test_yaml_that_expands_is_refused(text: str, tmp_path: Path) -> None:
    for read, name in ((RunConfig.load, "c.yaml"), (sweep_file.load_sweep, "s.yaml")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=r"more than 100,000 values|recursive"):
            read(tmp_path / name)


def test_an_engine_argument_that_contains_itself_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--engine-arg additional_config: .*recursive"):
        RunConfig(engine_arg=("additional_config={a: &a [*a]}",))
    assert reading.yaml_value("[&a 1, *a]") == [1, 1]


def test_aliases_are_fine_where_they_stay_small() -> None:
    assert reading.load_yaml("a: &a {b: 1}\nc: *a") == {"a": {"b": 1}, "c": {"b": 1}}
    assert reading.load_yaml("") is None
    with pytest.raises(yaml.YAMLError):
        reading.load_yaml("a: [")


def test_a_grid_has_an_end(tmp_path: Path) -> None:
    many = list(range(1, 60))
    grid = {"set": {name: many for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "batch_size")}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"grid": grid}))
    with pytest.raises(UsageError, match=r"12,117,361 .* 1,000"):
        sweep_file.load_sweep(tmp_path / "s.yaml")


@pytest.mark.parametrize("length", [300, 5000])
def test_a_name_that_is_too_long_is_told_in_a_line(length: int, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"extends: {'x' * length}\nisolation: [{{name: a}}]\n")
    with pytest.raises(UsageError, match=r"x.*File name too long") as error:
        sweep_file.load_sweep(tmp_path / "s.yaml")
    assert len(str(error.value)) < 600


def test_millions_of_rows_in_a_small_file_are_refused(tmp_path: Path) -> None:
    table = pyarrow.table({"question": pyarrow.array(["q"] * 1_000_001)})
    parquet.write_table(table, tmp_path / "test.parquet")
    with pytest.raises(UsageError, match=r"1,000,001 rows"):
        list(mmlu_data.rows_of_parquet([tmp_path / "test.parquet"]))
