"""Runs of several kinds of GPU and workloads in one table, the cheapest within the limits marked."""

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.core.tables import Table
from harness.report import report as rendering
from harness.report.matrix import Matrix
from harness.results.outcome import Doubt, Figure
from harness.results.summary import Summary
from tests.conftest import called
from tests.support import example_runs


def run(place: Path, name: str, gpu: str, price: float, **flags: Any) -> Path:
    system = example_runs.SYSTEM | {"gpus": [gpu], "driver": "550"}
    folder = example_runs.run(
        place / name, system=system, price_per_hour=price, scenario="server", server_target_qps=8.0, **flags
    )
    rendering.build_report(folder)
    return folder


def read(*folders: Path) -> list[Summary]:
    return [Summary.model_validate_json((folder / "summary.json").read_text()) for folder in folders]


def matrix(summaries: list[Summary], axes: list[str], reference: str = "") -> Table:
    return Matrix.of(summaries, axes, reference).table()


def test_the_cheapest_of_each_workload_is_marked(tmp_path: Path) -> None:
    folders = [
        run(tmp_path, f"{gpu}-{workload}", f"NVIDIA {gpu}", price, **flags)
        for gpu, price in (("H200", 4.0), ("L40S", 1.0))
        for workload, flags in (("chat", {"workload": "chat"}), ("summary", {}))
    ]
    table = matrix(read(*folders), ["gpu", "workload"])
    assert list(table.columns[:3]) == ["gpu", "workload", "model"]
    assert [(row[0], row[1], row[-1]) for row in table.rows] == [
        ("NVIDIA H200", "chat", ""),
        ("NVIDIA L40S", "chat", "cheapest within the limits"),
        ("NVIDIA H200", "summarization", ""),
        ("NVIDIA L40S", "summarization", "cheapest within the limits"),
    ]
    done = called("report", "report.py", "--matrix", "gpu,workload", *map(str, folders))
    assert done.returncode == 0 and "cheapest within the limits" in done.stdout and "differ in" in done.stdout


def test_rivals_do_the_same_work(tmp_path: Path) -> None:
    folders = [run(tmp_path, gpu, gpu, 1.0, label=gpu) for gpu in ("one", "other")]
    rendering.build_report(
        example_runs.run(
            tmp_path / "off", system=example_runs.SYSTEM | {"gpus": ["one"]}, price_per_hour=9, label="off"
        )
    )
    table = matrix(read(*folders, tmp_path / "off"), ["gpu"], "one")
    assert "scenario" in table.columns and "scenario" not in matrix(read(*folders), ["gpu"]).columns
    at = [*table.columns].index("scenario")
    # Offline has no rival.
    assert {row[at] for row in table.rows if row[-1] == "cheapest within the limits"} == {"server"}
    assert len([row for row in table.rows if str(row[at + 1]) == "to one"]) == 1  # none to another scenario


def test_a_percentile_of_few_requests_is_in_no_table(tmp_path: Path) -> None:
    folder = run(tmp_path, "a", "one", 1.0)
    (summary,) = read(folder)
    found = Matrix.of([summary], ["gpu"])
    (cell,) = found.cells
    few = cell._replace(figures=cell.figures | {"tokens_per_sec": Figure(7.0, (Doubt.FEW,))})
    heads, rows = found._replace(cells=[few]).csv_table()
    assert rows[0][heads.index("tokens_per_sec")] is None


def test_what_does_not_count_is_not_the_cheapest(tmp_path: Path) -> None:
    folders = [run(tmp_path, gpu, gpu, price) for gpu, price in (("dear", 4.0), ("cheap", 1.0))]
    logs = folders[1] / "Performance"
    (logs / "machine.json").write_text('{"others": ["other programs used 2 of 2 CPU cores"]}')
    rendering.build_report(folders[1])
    rows = {row[0]: row[-1] for row in matrix(read(*folders), ["gpu"]).rows}
    assert rows == {"dear": "cheapest within the limits", "cheap": "other programs used 2 of 2 CPU cores"}


def test_levels_are_lines_where_the_batch_is_an_axis(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", concurrency="1,4", price_per_hour=1.0)
    probes = [
        example_runs.probe(None, True, 10.0, 5.0, tokens_per_sec=100.0, concurrency=1, latency_p50=70.0),
        example_runs.probe(
            None, True, 20.0, 6.0, tokens_per_sec=300.0, concurrency=4, latency_p50=90.0, why="TTFT p99 20 of 5 ms"
        ),
    ]
    example_runs.levels(folder, probes)
    rendering.build_report(folder)
    table = matrix(read(folder), ["gpu", "batch"])
    speed = [*table.columns].index("output tokens/s")
    assert [(row[1], row[speed], row[-1]) for row in table.rows] == [
        ("1 in flight", "100", ""),
        ("4 in flight", "300", "TTFT p99 20 of 5 ms"),
    ]


def test_loads_are_in_their_order_and_no_run_is_left_out(tmp_path: Path) -> None:
    folders = [
        example_runs.run(tmp_path / name, **flags) for name, flags in {"a": {"concurrency": "1,4"}, "b": {}}.items()
    ]
    probes = [
        example_runs.probe(None, True, 1.0, 1.0, tokens_per_sec=9.0, concurrency=level) for level in (16, 4, 1, 1)
    ]
    example_runs.levels(folders[0], probes)
    for folder in folders:
        rendering.build_report(folder)
    silent = read(*folders)
    silent.append(silent[1].model_copy(update={"run": silent[1].run.model_copy(update={"performance": None})}))
    rows = matrix(silent, ["batch"]).rows
    assert [row[0] for row in rows] == ["1 in flight", "4 in flight", "16 in flight", "its own test", "its own test"]
    assert rows[-1][-1] == "no speed was measured" and rows[-2][-1] == ""
    with pytest.raises(UsageError, match="named twice"):
        matrix(silent, ["gpu", "gpu"])


def test_drivers_and_labels_are_in_order(tmp_path: Path) -> None:
    drivers = ["580.159.04", "550", "580.95.05"]
    folders = []
    for driver in drivers:
        system = example_runs.SYSTEM | {"gpus": ["one"], "driver": driver}
        folders.append(example_runs.run(tmp_path / driver, system=system, label=driver))
        rendering.build_report(folders[-1])
    rows = matrix(read(*folders), ["driver"]).rows
    assert sorted(row[0] for row in rows) == sorted(drivers)


def test_a_setting_is_an_axis_and_any_other_word_is_refused(tmp_path: Path) -> None:
    folder = run(tmp_path, "run", "NVIDIA H200", 4.0)
    assert matrix(read(folder), ["max_num_seqs"]).rows[0][0] == "unknown"
    with pytest.raises(UsageError, match="--matrix colour"):
        matrix(read(folder), ["colour"])
    assert matrix(read(folder), ["trust_remote_code"]).rows[0][0] == "False"
    done = called("report", "report.py", "--matrix", "gpu")
    assert done.returncode == 2


def test_ratios_to_a_named_run_are_marked_where_one_was_busy(tmp_path: Path) -> None:
    folders = [run(tmp_path, gpu, gpu, 1.0, label=gpu) for gpu in ("old", "new")]
    (folders[0] / "Performance" / "machine.json").write_text('{"others": ["other programs used 2 of 2 CPU cores"]}')
    rendering.build_report(folders[0])
    table = matrix(read(*folders), ["gpu"], reference="old")
    speed = [*table.columns].index("output tokens/s")
    ratio = next(row for row in table.rows if row[speed - 1] == "to old")
    assert len(table.rows) == 3 and ratio[speed] == "1×*" and "other programs" in ratio[-1]
    with pytest.raises(UsageError, match="--reference none: the runs' labels are new, old"):
        matrix(read(*folders[::-1]), ["gpu"], reference="none")
    out = tmp_path / "table.csv"
    words = ("--matrix", "gpu,batch", *folders, "--csv", out, "--plot", tmp_path / "table.png", "--reference", "old")
    done = called("report", "report.py", *map(str, words))
    assert done.returncode == 0 and "latency mean, ms" in done.stdout and "input tokens/s" in done.stdout, done.stderr
    assert out.read_text().startswith("gpu,batch,model,label,batch_size,tokens_per_sec,input_tokens_per_sec")
    assert folders[0].name not in done.stdout.replace("old", "") and (tmp_path / "table.png").stat().st_size > 1000
