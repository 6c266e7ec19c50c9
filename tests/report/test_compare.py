"""Runs side by side: the page, the table of several, and what cannot be compared."""

import csv
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.core import files
from harness.core.errors import UsageError
from harness.core.formatting import number
from harness.core.statistics import PairedChange
from harness.report import compare, compare_page, compare_picture, load_pictures, regression
from harness.report import report as rendering
from harness.report.answer_comparison import AnswerPair, Divergence
from harness.results import metrics
from harness.runs.run_folder import RunFolder
from tests.conftest import ROOT, called, tells
from tests.support import example_runs


def report(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return called("report", "report.py", *map(str, arguments))


def both(folder: Path, **changed: Any) -> list[compare.ComparedRun]:
    example_runs.rendered(folder / "a")
    example_runs.rendered(folder / "b", **changed)
    return compare.load_runs([folder / "a", folder / "b"])[0]


def test_performance_only_runs_are_compared(tmp_path: Path) -> None:
    page = example_runs.side_by_side(both(tmp_path, max_num_seqs=8, engine_arg=("block_size=32",)))
    assert "| max_num_seqs | unset | 8 |" in page
    assert "| engine_arg | none | block_size=32 |" in page
    assert "| output tokens/s | 1,024 | 1,024 (1.000) |" in page
    assert "precision" not in page  # the same in both


def test_two_at_a_fixed_rate_have_no_ratio(tmp_path: Path) -> None:
    example_runs.rendered(tmp_path / "a", scenario="server", server_target_qps=8.0)
    example_runs.rendered(tmp_path / "b", scenario="server", server_target_qps=9.0)
    page = example_runs.side_by_side(compare.load_runs([tmp_path / "a", tmp_path / "b"])[0])
    assert tells(page, "# NOT COMPARABLE: ", "configured rate")
    assert "| TTFT p50, ms | 20 | 20 |\n" in page and "| server_target_qps | 8.0 | 9.0 |" in page


def test_rates_of_a_curve_were_configured_those_of_a_search_were_found(tmp_path: Path) -> None:
    fast, slow = ({"scenario": "server", "server_target_qps": rates} for rates in ((8.0, 9.0), (4.0, 5.0)))
    example_runs.rendered(tmp_path / "a", **fast)
    example_runs.rendered(tmp_path / "b", **slow)
    page = example_runs.side_by_side(compare.load_runs([tmp_path / "a", tmp_path / "b"])[0])
    assert tells(page, "# NOT COMPARABLE: ", "configured rate")
    for name in "cd":
        example_runs.rendered(tmp_path / name, scenario="server", server_target_qps="max", max_num_seqs=ord(name))
    assert "COMPARABLE" not in example_runs.side_by_side(compare.load_runs([tmp_path / "c", tmp_path / "d"])[0])


@pytest.mark.parametrize(
    ("flags", "field", "unit", "faster", "quicker"),
    [
        (
            {"concurrency": "1,4"},
            "concurrency",
            ("request in flight", "requests in flight"),
            ("1024.0", "1536.0"),
            " 50 % faster",
        ),
        (
            {"category": "edge", "scenario": "multistream", "samples_per_query": "1,4"},
            "samples_per_query",
            ("samples per query", "samples per query"),
            ("20000000.0", "10000000.0"),
            " twice as fast",
        ),
    ],
    ids=["concurrency", "multistream"],
)
def test_the_loads_of_two_curves_stand_under_each_other(
    tmp_path: Path, flags: dict[str, Any], field: str, unit: tuple[str, str], faster: tuple[str, str], quicker: str
) -> None:
    for name, speed in (("a", 100.0), ("b", 150.0)):
        log = example_runs.run(tmp_path / name, **flags) / "Performance" / "mlperf_log_detail.txt"
        log.write_text(log.read_text().replace(*faster) if name == "b" else log.read_text())
        probes = [
            example_runs.probe(
                None,
                "concurrency" in flags or load < 4,
                10.0,
                5.0,
                tokens_per_sec=speed * load,
                latency_p90=20.0 if name == "a" else 10.0,
                **{field: load},
            )
            for load in (4, 1)
        ]  # type: ignore[arg-type]
        example_runs.levels(tmp_path / name, probes)
        rendering.build_report(tmp_path / name)
    page = example_runs.side_by_side(compare.load_runs([tmp_path / "a", tmp_path / "b"])[0])
    assert tells(page.splitlines()[0], "B ", quicker)
    cells = [line.split(" | ")[:4] for line in page.splitlines() if any(f" {each} | " in line for each in unit)]
    low, high = ("within", "within") if "concurrency" in flags else ("VALID", "INVALID")  # of one's own limits
    assert cells == [
        *(["| a", f"1 {unit[0]}", low, "100"], ["| a", f"4 {unit[1]}", high, "400"]),
        *(["| b", f"1 {unit[0]}", low, "150"], ["| b", f"4 {unit[1]}", high, "600"]),
    ]


def test_what_a_comparison_rests_on_stands_in_it(tmp_path: Path) -> None:
    example_runs.rendered(tmp_path / "a", price_per_hour=1.0)
    example_runs.rendered(tmp_path / "b", price_per_hour=10.0, max_new_tokens=16)
    page = example_runs.side_by_side(compare.load_runs([tmp_path / "a", tmp_path / "b"])[0])
    assert "currency of --price-per-hour" in page
    assert "| price_per_hour | 1.0 | 10.0 |" in page and "| max_new_tokens | 128 | 16 |" in page


def test_a_table_that_cannot_be_written_names_where(tmp_path: Path) -> None:
    for name in "ab":
        example_runs.rendered(tmp_path / name)
    for place, why in ((tmp_path / "none" / "x.csv", "No such file or directory"), (tmp_path, "Is a directory")):
        done = report("--compare", tmp_path / "a", tmp_path / "b", "--csv", place)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.rstrip().endswith(f"{why}.") and "/." not in done.stderr


def test_the_numbers_of_one_run_as_a_csv_file(tmp_path: Path) -> None:
    run, path = tmp_path / "one", tmp_path / "one.csv"
    example_runs.rendered(run)
    assert report(run, "--csv", path).returncode == 0
    with path.open() as file:
        (line,) = csv.DictReader(file)
    assert (line["run"], float(line["tokens_per_sec"])) == ("one", 1024.0)
    assert report(run, "--csv", path, "--check").returncode == 2


def test_many_runs_are_one_table_and_a_csv_file(tmp_path: Path) -> None:
    for name in ("20260131-a", "20260131-b", "20260131-c"):
        example_runs.rendered(
            tmp_path / name, system=example_runs.SYSTEM | {"gpus": ["NVIDIA H200"] * 2}, max_num_seqs=len(name)
        )
    (tmp_path / "latest").symlink_to("20260131-c")
    (tmp_path / "index.md").write_text("")
    (tmp_path / "mmlu").mkdir()
    done = report(
        "--compare", *sorted(tmp_path.iterdir()), "--csv", tmp_path / "all.csv", "--plot", tmp_path / "all.png"
    )
    assert done.returncode == 0, done.stderr
    assert f"left out: {tmp_path / 'mmlu'}: no config.json" in done.stderr
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    assert done.stdout.startswith("# A is not clearly faster or slower than B: +0 % ")
    table = done.stdout[done.stdout.index("| setting or metric | A: ") :]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    heads = "| A: 20260131-a | B: 20260131-b (ratio to A) | C: 20260131-c (ratio to A) |"
    assert rows[0] == f"| setting or metric {heads}"
    assert "| GPU | 2x NVIDIA H200 | 2x NVIDIA H200 | 2x NVIDIA H200 |" in rows
    assert "| output tokens/s | 1,024 | 1,024 (1.000) | 1,024 (1.000) |" in rows
    assert len({row.count("|") for row in rows}) == 1
    header, *lines = (line.split(",") for line in (tmp_path / "all.csv").read_text().splitlines())
    assert [line[header.index("tokens_per_sec")] for line in lines] == ["1024.0"] * 3
    (tmp_path / "20260131-b" / "status.json").write_text("{")
    assert "20260131-a" in report("--last", "2", "--results-dir", tmp_path).stdout
    (tmp_path / "20260131-b" / "status.json").write_text((tmp_path / "20260131-c" / "status.json").read_text())
    newest = report("--last", "2", "--results-dir", tmp_path)
    assert "20260131-c" in newest.stdout and "20260131-a" not in newest.stdout


@pytest.mark.parametrize("odd", "abc")
def test_the_one_of_several_that_differs_does_not_decide(tmp_path: Path, odd: str) -> None:
    """Whichever of them it is, the others are compared with each other."""
    for name in "abc":
        example_runs.rendered(tmp_path / name, **({"max_new_tokens": 64} if name == odd else {}))
    runs, _ = compare.load_runs([tmp_path / name for name in "abc"])
    found, (start, other) = compare_page.document(runs), "abc".replace(odd, "")
    assert tells(found.title, f"{other.upper()} is not clearly faster", f"than {start.upper()}: ")
    assert found.title.endswith(": 1,024 against 1,024 output tokens/s")
    (line,) = [line.text for line in found.lines if line.label == "not comparable"]
    assert line.startswith(f"{start.upper()} and {odd.upper()}: different work (--max-new-tokens)"), line
    (row,) = [row for row in compare_page.table(runs).rows if row[0] == "output tokens/s"]
    assert [str(cell).endswith(" (1.000)") for cell in row[1:]] == [name == other for name in "abc"]


def test_numbers_of_a_comparison_are_rounded_as_on_a_page() -> None:
    speed, steady = (metrics.METRIC_BY_NAME[name] for name in ("tokens_per_sec", "steady_tokens_per_sec"))
    assert [speed.text(value) for value in (96234.6, 24.4384)] == ["96,235", "24.44"]
    assert steady.label.startswith(f"{speed.label} without ")
    assert speed.against(914.0, 988.0) == "914 against 988 output tokens/s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "{a}"], "two runs or more, not 1"),
        (["--compare", "{a}", "{a}"], "; give two runs or more."),
        (["--compare", "{a}", "{a}/nothing"], "nothing: no config.json in it"),
        (["--last", "1"], "--last 1: a comparison needs at least two"),
        (["--last", "2", "--results-dir", "{a}/nothing"], "nothing: no such folder"),
        (["{a}", "--plot", "x.png"], "--page needs --compare or --last"),
        (["--last", "2", "--plot", "x.gif"], "--plot x.gif: "),
        (["{a}", "--last", "2"], "RUN and --last "),
        (["--compare", "{a}", "--last", "2"], "--compare and --last "),
        (["--matrix", "gpu,label"], "--matrix needs RUNs"),
        ([""], "no run is named"),
        ([" ", "--check"], "no run is named"),
        ([], "give one RUN_DIR, or"),
        (["{a}/nothing"], "nothing: no config.json in it"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path: Path, arguments: list[str], message: str) -> None:
    run = tmp_path / "a"
    example_runs.rendered(run)
    done = report(*(word.format(a=run) for word in arguments))
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_summary_that_is_damaged_is_named(tmp_path: Path) -> None:
    example_runs.rendered(tmp_path / "a")
    example_runs.rendered(tmp_path / "b")
    (tmp_path / "b" / "summary.json").write_text('{"meta": 1}')
    with pytest.raises(UsageError, match=r"b/summary.json: meta: not an object"):
        compare.load_runs([tmp_path / "a", tmp_path / "b"])


def test_a_comparison_says_which_run_ended_early(tmp_path: Path) -> None:
    for name in ("a", "b"):
        example_runs.run(tmp_path / name)
    RunFolder(tmp_path, "b").set_status("interrupted")
    for name in ("a", "b"):
        rendering.build_report(tmp_path / name)
    page = example_runs.side_by_side(compare.load_runs([tmp_path / "a", tmp_path / "b"])[0])
    assert "| ended early | \u2013 | interrupted |" in page


def test_the_second_run_is_held_against_the_first(tmp_path: Path) -> None:
    """A run whose answers score a fifth less: side by side, in the gate on the change of a score and on its value."""
    for name, share in (("before", 1.0), ("after", 0.8)):
        example_runs.another(ROOT / "docs" / "runs" / "demo", tmp_path / name)
        path = tmp_path / name / "Accuracy" / "samples.csv"
        head, *rows = csv.reader(path.read_text().splitlines())
        lines = [head, *([*row[:4], *(str(share * float(score)) for score in row[4:8]), row[8]] for row in rows)]
        path.write_text("".join(",".join(line) + "\n" for line in lines))
    before, after = (compare.read_run(tmp_path / name) for name in ("before", "after"))
    score = after.paired_answers(before)
    assert score and score.scores["rouge1"].after == pytest.approx(0.8 * score.scores["rouge1"].before)
    page = example_runs.side_by_side([before, after])
    assert re.search(r"\| rouge1 \| 9\d\.\d+ \| 7\d\.\d+ \| -18", page)
    least = number(score.scores["rouge1"].before - 1)
    for text, verdict in {"rouge1<-3%": "FAIL", "rouge1>+3%": "PASS", f"rouge1<{least}": "FAIL"}.items():
        (found,) = regression.judge(regression.Sides([before], [after]), [regression.parse_condition(text)])[:1]
        assert found.verdict == verdict, (text, found)


@pytest.mark.parametrize(
    ("samples", "few", "differ", "said"),
    [
        (256, True, False, ("All answers are equal.", "1.17 %", "3 / 256")),
        (20, True, True, ("samples are few", "15 %", "3 / 20")),
        (2, True, False, ("100 %",)),
        (256, True, True, ("fewer than 10 samples", "1.17 %")),
        (256, False, True, ()),
    ],
)
def test_an_interval_that_allows_for_unseen_changes_says_so(
    samples: int, few: bool, differ: bool, said: tuple[str, ...]
) -> None:
    score = PairedChange(40.0, 40.0, -1.2, 1.2, few)
    divergence = Divergence(0, 10, 3, "7", "8", 40.0, 41.0)
    answers = AnswerPair(samples, {"rouge1": score}, same_splitter=True, differing=[divergence] * differ)
    notes = [
        block for block in compare_page.score_blocks(answers) if isinstance(block, str) and "rule of three" in block
    ]
    assert len(notes) == bool(said) and all(tells(note, *said) for note in notes)


def test_of_several_runs_the_fastest_is_held_against_the_first_or_the_next(tmp_path: Path) -> None:
    for name, speed in {"A": 1000, "B": 1300, "C": 800}.items():
        example_runs.run(folder := tmp_path / name)
        log = folder / "Performance" / "mlperf_log_detail.txt"
        log.write_text(log.read_text().replace('"value": 1024.0', f'"value": {speed}.0'))
        rendering.build_report(folder)
    runs = {name: compare.read_run(tmp_path / name) for name in "ABC"}
    titles = {
        order: compare_page.speed_finding([compare.LetteredRun(name, runs[name]) for name in order]).text
        for order in ("ABC", "CAB", "BAC", "BCA")
    }
    assert tells(titles["ABC"], "B is 30 % faster than A", "1,300 against 1,000 output tokens/s")
    assert tells(titles["CAB"], "B is 63 % faster than C", "1,300 against 800 output tokens/s")
    assert titles["BAC"] == titles["BCA"] and tells(titles["BAC"], "B is 30 % faster than A")


def test_runs_of_one_label_on_two_machines_are_two_sides(tmp_path: Path) -> None:
    example_runs.rendered(tmp_path / "a", label="night")
    run = compare.read_run(tmp_path / "a")
    system = run.summary.system.model_copy(update={"gpus": ["NVIDIA H200"]})
    other = run._replace(summary=run.summary.model_copy(update={"system": system}))
    two, three = compare.lettered([run, other]), compare.lettered([run, run, other])
    assert tells(compare_page.speed_finding(two).text, "B is not clearly", " than A: ")
    assert tells(compare_page.speed_finding(three).text, "H200: night is", "than a CPU: night: ", "2 and 1 runs")


def with_label(folder: Path, label: str, others: list[str] | None = None) -> compare.ComparedRun:
    example_runs.run(folder, label=label)
    if others:
        files.write_json(folder / "Performance" / "machine.json", {"others": others})
    rendering.build_report(folder)
    return compare.read_run(folder)


def test_where_one_label_has_no_run_left_nothing_is_compared(tmp_path: Path) -> None:
    before = [with_label(tmp_path / f"b{n}", "before") for n in range(2)]
    after = [with_label(tmp_path / f"a{n}", "after", ["a compiler took 1.9 of 2 CPU cores"]) for n in range(2)]
    for runs in ([*before, *after], [*after, *before]):
        found = compare_page.document(runs)
        assert tells(found.title, "NOT COMPARABLE: ", "busy") and found.tone == "careful"
        assert not any(line.label == "measured" and line.text for line in found.lines)


def test_speeds_are_compared_without_the_accuracy_log(tmp_path: Path) -> None:
    for name in "ab":
        example_runs.another(ROOT / "docs" / "runs" / "demo", tmp_path / name)
    (tmp_path / "b" / "Accuracy" / "mlperf_log_accuracy.json").unlink()
    runs = compare.load_runs([tmp_path / "a", tmp_path / "b"])[0]
    found = compare_page.document(runs)
    assert tells(found.title, "B is ", " A")
    assert [line.text for line in found.lines if line.label == "answers"] == [
        "not compared: different samples, or a run's answers are missing"
    ]


def test_where_a_speed_is_missing_the_title_says_so(tmp_path: Path) -> None:
    for name in "ab":
        example_runs.another(ROOT / "docs" / "runs" / "demo", tmp_path / name)
    shutil.rmtree(tmp_path / "b" / "Performance")
    rendering.build_report(tmp_path / "b")
    runs = compare.load_runs([tmp_path / "a", tmp_path / "b"])[0]
    assert compare_page.document(runs).title == "NOT COMPARABLE: not both measured"
    assert compare_page.speed_finding(compare.lettered(runs)).text == ""


def test_two_runs_of_accuracy_alone_have_their_answers_as_title(tmp_path: Path) -> None:
    for name in "ab":
        example_runs.another(ROOT / "docs" / "runs" / "demo", tmp_path / name)
        shutil.rmtree(tmp_path / name / "Performance")
        rendering.build_report(tmp_path / name)
    runs = compare.load_runs([tmp_path / "a", tmp_path / "b"])[0]
    (said,) = (line.text for line in compare_page.document(runs).lines if line.label == "answers")
    assert compare_page.document(runs).title == said


def test_a_time_in_a_title_has_its_unit(tmp_path: Path) -> None:
    for name in "ab":
        example_runs.rendered(tmp_path / name, scenario="singlestream")
    runs = [compare.read_run(tmp_path / name) for name in "ab"]
    found = compare_page.speed_finding(compare.lettered(runs))
    assert re.search(r": latency p90 (\d+) against \1 ms$", found.text)


def test_many_curves_differ_in_colour_or_mark() -> None:
    assert (
        len(set(load_pictures.SERIES_STYLES))
        == len(load_pictures.SERIES_STYLES)
        == len(load_pictures.SERIES_COLORS) * len(load_pictures.SERIES_MARKS)
    )


def test_runs_of_one_long_name_are_told_apart(tmp_path: Path) -> None:
    long = "a rather long label of a run that says what was changed: variant "
    for letter in "AB":
        example_runs.rendered(tmp_path / letter, label=long + letter)
    runs = [compare.read_run(tmp_path / letter) for letter in "AB"]
    assert len({*compare_picture.names_of_runs(runs)}) == 2
