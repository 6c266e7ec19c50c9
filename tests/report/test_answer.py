"""The first screen of a report, its HTML page, and what its pictures say."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from docs.generate import pictures as kept_pictures
from harness.core import files, last_screen
from harness.core.document import Picture
from harness.core.statements import Statement
from harness.loadgen.test_run import Recording
from harness.report import answer, compare, machine_pictures, next_command, pictures
from harness.report import report as rendering
from harness.report.charts import Bar, Bars, LinePanel, Scale, Series, StackedPart, draw_figure
from harness.report.page import block_html, without_private_paths
from harness.results import outcome
from harness.results.advice import findings
from harness.results.outcome import Outcome
from harness.results.summary import Summary
from harness.runs import history
from harness.runs.run_folder import RunFolder
from tests.conftest import called, ended, tells
from tests.support import example_runs

HOPPER = example_runs.SYSTEM | {"gpus": ["NVIDIA H200"]}


def short(qps: float, **changed: Any) -> Outcome:
    """A test of too few queries for LoadGen."""
    return example_runs.changed(
        example_runs.probe(qps, False, 20.0, 2.0, more=300, why="300 more queries needed"), **changed
    )


def first_screen(folder: Path) -> str:
    return (folder / "report.md").read_text().partition("## What")[0]


@pytest.mark.parametrize(
    ("asked", "title", "of"),
    [
        ({}, "1,024 output tokens/s (8 samples/s)", "Offline, demo model, 2 CPU cores, vLLM 0.32.0"),
        (
            {"model": "llama3.1-8b-instruct"},
            "1,024 output tokens/s (8 samples/s)",
            "Offline, Llama-3.1-8B, 1 x NVIDIA H200, vLLM 0.32.0",
        ),
        (
            {"category": "edge", "scenario": "singlestream"},
            "20 ms for an answer (p90: 9 of 10 are as fast), one request at a time",
            "SingleStream, demo model, 2 CPU cores, vLLM 0.32.0",
        ),
        (
            {"scenario": "server", "server_target_qps": 8.5},
            "7.875 samples/s within both limits (1,024 output tokens/s)",
            "Server, demo model, 2 CPU cores, vLLM 0.32.0",
        ),
        (
            {"scenario": "interactive", "server_target_qps": 8.5},
            "7.875 samples/s within both limits (1,024 output tokens/s)",
            "Interactive, demo model, 2 CPU cores, vLLM 0.32.0",
        ),
    ],
)
def test_the_answer_and_its_subject_come_first(tmp_path: Path, asked: dict[str, Any], title: str, of: str) -> None:
    system = HOPPER if "model" in asked else example_runs.SYSTEM
    screen = answer.document(example_runs.rendered(tmp_path / "run", system=system, **asked))
    assert (screen.title, screen.subject, screen.tone) == (title, of, "good")
    assert (tmp_path / "run" / "report.md").read_text().startswith(f"# {title}\n")


@pytest.mark.parametrize(
    ("asked", "parts", "missing"),
    [
        ({"category": "edge", "scenario": "multistream"}, ("1,024 output", "8 samples", "20 ms", "p90"), "requests/s"),
        ({"arrivals": "poisson"}, ("8 requests/s", "1,024 output", "64", "within"), "TTFT"),
        ({"arrivals": "gamma:2", "ttft_limit": 15}, ("8 requests/s", "1,024 output", "over", "TTFT"), "TPOT"),
        ({"arrivals": "gamma:2", "tpot_limit": 15}, ("8 requests/s", "1,024 output", "over", "TPOT"), "TTFT"),
    ],
    ids=str,
)
def test_the_title_of_batches_and_of_arrivals(
    tmp_path: Path, asked: dict[str, Any], parts: tuple[str, ...], missing: str
) -> None:
    load = {"server_target_qps": 8.0} if "arrivals" in asked else {"samples_per_query": 8}
    title = answer.title(example_runs.rendered(tmp_path / "run", **load, **asked))
    assert tells(title, *parts) and missing not in title and "VALID" not in title


def shown(summary: Summary) -> list[str]:
    """The last screen of a run as it is printed on 80 columns."""
    console = Console(record=True, width=80)
    last_screen.show(console, answer.document(summary), "results/latest/report.html")
    return console.export_text().splitlines()


def test_a_test_that_is_invalid_has_its_reason_as_title_and_a_next_step(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps=8.5, ttft_limit=15)
    log = folder / "Performance" / "mlperf_log_detail.txt"
    log.write_text(log.read_text().replace('"VALID"', '"INVALID"'))
    page = shown(rendering.build_report(folder))
    assert page[1] == "INVALID at 8.5 queries/s: slowest TTFT 20 ms, over the limit of 15 ms"
    assert "INVALID        64 queries in 8 s at 8.5 queries/s" in page
    (command,) = [line.split(maxsplit=1)[1] for line in page if line.startswith("next ")]
    assert command == "python run.py --server-target-qps max"
    assert page[-1] == "report: results/latest/report.html"


def test_the_speed_and_the_cost_of_an_invalid_test_carry_its_mark(tmp_path: Path) -> None:
    for verdict, marks in (("VALID", 0), ("INVALID", 2)):
        folder = example_runs.run(tmp_path / verdict, scenario="server", server_target_qps=8.5, price_per_hour=2.0)
        log = folder / "Performance" / "mlperf_log_detail.txt"
        log.write_text(log.read_text().replace('"VALID"', f'"{verdict}"'))
        rendering.build_report(folder)
        assert (folder / "report.html").read_text().count("of an INVALID test") == marks


def test_a_curve_is_answered_by_its_best_level_within_the_limits(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", concurrency="1,4,16")
    over = "TTFT p99 3,000 of 2,000 ms"
    probes = [
        example_runs.probe(None, True, 10.0, 5.0, tokens_per_sec=100.0, concurrency=1),
        example_runs.probe(None, True, 20.0, 6.0, tokens_per_sec=300.0, concurrency=4),
        example_runs.probe(None, True, 3000.0, 7.0, tokens_per_sec=900.0, concurrency=16, why=over),
    ]
    example_runs.levels(folder, probes)
    page = shown(rendering.build_report(folder))
    assert page[1] == "300 output tokens/s with 4 requests in flight, within the limits"
    assert tells(page[3], "in flight", "tokens/s", "TTFT p99")
    assert [line.split()[:2] for line in page[4:7]] == [["1", "100"], ["4", "300"], ["16", "900"]]
    assert page[6].endswith("over: TTFT") and page[5].endswith("within")
    assert not any("VALID" in line for line in page)
    example_runs.levels(folder, [example_runs.changed(probe, why=over) for probe in probes])
    page = shown(rendering.build_report(folder))
    assert page[1] == "no level is within the limits: the lowest, 1 request in flight, is over"


def test_levels_whose_answers_came_in_bursts_are_named(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", concurrency="1,4,16")
    probes = [
        example_runs.probe(None, True, 10.0, 5.0, tokens_per_sec=100.0 * level, concurrency=level, buffered=level < 16)
        for level in (1, 4, 16)
    ]
    example_runs.levels(folder, probes)
    page = " ".join(" ".join(shown(rendering.build_report(folder))).split())
    assert tells(page, "in bursts with 1 request in flight, 4 requests in flight, so TTFT and TPOT there")


def test_the_last_test_of_a_level_is_its_verdict(tmp_path: Path) -> None:
    """The search's third test decides between two, and the run's own is the longest: no maximum over repeats."""
    folder = example_runs.run(tmp_path / "run", concurrency="4,8,16")
    over, level = (
        "TTFT p99 3,000 of 2,000 ms",
        example_runs.probe(None, True, 20.0, 6.0, tokens_per_sec=300.0, concurrency=16),
    )
    probes = [
        example_runs.probe(None, True, 10.0, 5.0, tokens_per_sec=100.0, concurrency=4),
        example_runs.changed(level, tokens_per_sec=950.0),
        example_runs.changed(level, why=over),
        example_runs.changed(level, concurrency=8, why=over),
        example_runs.changed(level, concurrency=8, tokens_per_sec=200.0),
        example_runs.changed(level, why=over, folder="Performance"),
    ]
    example_runs.levels(folder, probes)
    page, html = shown(rendering.build_report(folder)), (folder / "report.html").read_text()
    assert page[1] == "200 output tokens/s with 8 requests in flight, within the limits"
    assert [line.split()[0] for line in page[4:7]] == ["4", "8", "16"] and page[6].endswith("over: TTFT")
    assert "within, overruled by a later test" in html and "with 16 requests in flight" in html
    assert "with 16 requests in flight, 16" not in html
    assert "over: TTFT, overruled by a later test" in html


@pytest.mark.parametrize(
    ("command", "probes", "wanted"),
    [
        ("--server-target-qps 20,80", [short(20), short(80)], "--server-target-qps 80"),
        ("--server-target-qps 20,80", [short(20, more=None, valid=True), short(80)], "--server-target-qps 20"),
        ("--server-target-qps 20,80", [short(20, why="TPOT p99 9 of 5 ms")], "--server-target-qps 10"),
        ("--server-target-qps max", [short(50, valid=True), short(57.6, valid=True)], "--server-target-qps 54"),
    ],
)
def test_what_an_interrupted_run_goes_on_with(tmp_path: Path, command: str, probes: list[Outcome], wanted: str) -> None:
    """After "max" a full test was INVALID, which probes that held do not change: it went on at a lower rate."""
    planned = 54.0 if "max" in command else None
    summary = example_runs.rendered(tmp_path / "run")
    update = {"command": f"python run.py {command}", "ended": "interrupted", "target_qps": planned}
    meta = summary.meta.model_copy(update=update)
    run = summary.run.model_copy(update={"performance": None, "search": probes})
    said = next_command.next_command(summary.model_copy(update={"meta": meta, "run": run}))
    assert said == f"python run.py {wanted}"
    assert called("run", *shlex.split(said)[1:], "--model", "demo", "--scenario", "server", "--dry-run").returncode == 0


def level(in_flight: int, why: str = "") -> Outcome:
    return example_runs.probe(None, True, 9.0, 9.0, tokens_per_sec=9.0, concurrency=in_flight, why=why)


@pytest.mark.parametrize(
    ("flag", "ended", "levels", "wanted"),
    [
        ("1,2,4,8", "failed: 503", [level(1), level(2)], "1,2"),
        ("1,2,4,8", "failed: 503", [], None),
        ("1,2,4,8", "interrupted", [level(1), level(2)], "1,2,4,8"),
        ("1,2,4,8", "it is not known whether it still runs", [], "1,2,4,8"),
        ("max", "failed: the engine died", [level(1), level(4), level(16, why="TTFT")], "1,4"),
        ("max", "failed: a single request exceeds the limits", [level(1, why="TTFT")], None),
    ],
)
def test_what_levels_that_ended_early_go_on_with(
    tmp_path: Path, flag: str, ended: str, levels: list[Outcome], wanted: str | None
) -> None:
    """A command that failed is not repeated."""
    summary = example_runs.rendered(tmp_path / "run", concurrency="1,2,4,8")
    meta = summary.meta.model_copy(update={"command": f"python run.py --concurrency {flag}", "ended": ended})
    run = summary.run.model_copy(update={"performance": None, "search": levels})
    advice = next_command.next_command(summary.model_copy(update={"meta": meta, "run": run}))
    assert advice == (f"python run.py --concurrency {wanted}" if wanted else "")


@pytest.mark.parametrize(("flag", "wanted"), [("1,4", "max"), ("max", None)])
def test_a_search_for_the_highest_level_is_advised_once(tmp_path: Path, flag: str, wanted: str | None) -> None:
    folder = example_runs.run(tmp_path / "run", concurrency="1,4")
    example_runs.levels(folder, [level(1), level(4)])
    summary = rendering.build_report(folder)
    meta = summary.meta.model_copy(update={"command": f"python run.py --concurrency {flag}"})
    advice = next_command.next_command(summary.model_copy(update={"meta": meta}))
    assert advice == (f"python run.py --concurrency {wanted}" if wanted else "")


def test_a_title_within_the_limits_says_what_was_left_out(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", concurrency="1,4")
    example_runs.levels(folder, [level(1), level(4)])
    result = rendering.build_report(folder).result
    assert result
    details = result.details.model_copy(update={"failed_requests": 13})
    assert tells(answer.limits_text(result.model_copy(update={"details": details})), "within the limits, 13 requests")
    no_tpot = result.model_copy(update={"tpot_ms": outcome.Times()})
    assert answer.limits_text(no_tpot).endswith("within the limits, TPOT not measured")


def test_a_label_of_any_script_is_drawn_without_warnings(tmp_path: Path) -> None:
    """The label stands in pictures; a machine without a font for it draws boxes."""
    done = ended("report.py", str(example_runs.run(tmp_path / "run", label="한국")))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_limits_of_a_curve_say_where_the_server_was_full(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", concurrency="1,4")
    example_runs.levels(folder, [level(1), level(4)])
    example_runs.note(RunFolder(tmp_path, "run"), full_at=4)
    page = " ".join(" ".join(shown(rendering.build_report(folder))).split())
    assert "the server was full at 4 requests in flight" in page and "highest level" not in page


def test_what_a_rate_over_its_limits_goes_on_with(tmp_path: Path) -> None:
    summary = example_runs.rendered(tmp_path / "run", scenario="server", server_target_qps=8.5)
    test, flags = summary.run.performance, "--server-target-qps 5,8.5"
    assert test is not None and test.details.limits_ms is not None
    over = example_runs.with_performance(test, valid=False, limits_ms=replace(test.details.limits_ms, ttft=1))
    meta = summary.meta.model_copy(update={"command": f"python run.py {flags}"})
    for probes, rate in (([short(5, valid=True)], "5.00"), ([], "max")):
        run = summary.run.model_copy(update={"performance": over, "search": probes})
        said = next_command.next_command(summary.model_copy(update={"meta": meta, "run": run}))
        assert said == f"python run.py --server-target-qps {rate}"


def test_nothing_lower_than_one_request_in_flight_is_advised(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", concurrency="1,4")
    probes = [
        example_runs.probe(None, True, 9.0, 9.0, tokens_per_sec=9.0, concurrency=level, why="TTFT") for level in (1, 4)
    ]
    for tested, said in ((probes, False), (probes[1:], True)):
        example_runs.levels(folder, tested)
        assert bool(next_command.next_command(rendering.build_report(folder))) is said


def test_no_line_is_wider_than_a_terminal_but_a_command(tmp_path: Path) -> None:
    folder = example_runs.run(
        tmp_path / "run", label="x" * 200, scenario="server", server_target_qps=8.5, min_duration=1.0
    )
    page = shown(rendering.build_report(folder))
    assert all(len(line) <= 80 for line in page if not line.startswith("next "))
    assert any(line.startswith("not comparable with MLPerf: ") for line in page)


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("python run.py --scenario server", "python run.py --scenario server --concurrency 4"),
        ("python run.py --concurrency 16,64 --label a", "python run.py --concurrency 4 --label a"),
        ("python run.py --concurrency=16", "python run.py --concurrency=4"),
        ("python run.py --label 'a b'", "python run.py --label 'a b' --concurrency 4"),
    ],
)
def test_a_command_with_another_value(command: str, wanted: str) -> None:
    assert next_command.command_with_flag(command, "--concurrency", "4") == wanted


def test_the_first_screen_has_what_a_number_needs(tmp_path: Path) -> None:
    folder = example_runs.run(
        tmp_path / "run", system=HOPPER, model="other", price_per_hour=3.6, label="before | after"
    )
    files.write_json(folder / "Performance" / "machine.json", {"others": ["other programs used 1 of 2 CPU cores"]})
    rendering.build_report(folder)
    page = first_screen(folder)
    for line in (
        "| VALID | 64 samples in 8 s |",
        "| accuracy | not checked |",
        "| not comparable with MLPerf | ",
        "| caution | other programs used 1 of 2 CPU cores; do not pass this number on |",
        "| cost | 0.9766 per million output tokens, if the machine costs 3.6 per hour |",
        "| label | before \\| after |",
        "| precision | bf16, quantization none |",
        "| KV cache type | auto |",
        "| engine | vLLM 0.32.0 |",
        "| GPU | 1 x NVIDIA H200 |",
        "| date | 2026-01-31, run run |",
    ):
        assert line in page


def test_offline_has_no_latency_table(tmp_path: Path) -> None:
    example_runs.rendered(tmp_path / "offline")
    example_runs.rendered(tmp_path / "server", scenario="server", server_target_qps=8.5)
    tables = ["| latency | 20 |" in (tmp_path / name / "report.md").read_text() for name in ("offline", "server")]
    assert tables == [False, True]


def summary(folder: Path, csv: str = "", **asked: Any) -> Summary:
    example_runs.run(folder, **asked)
    if csv:
        (folder / "Performance" / "machine.csv").write_text(csv)
    return rendering.build_report(folder)


def behind_an_endpoint(found: Summary) -> Summary:
    return found.model_copy(update={"meta": found.meta.model_copy(update={"endpoints": ["http://h/v1"]})})


def test_a_valid_run_says_what_bounds_it(tmp_path: Path) -> None:
    assert "--extra-metrics" in findings(summary(tmp_path / "unknown"))[0]
    capped = "seconds,gpu0_load_percent,gpu0_clock_mhz,gpu0_power_capped_percent\n1,99,1980,100\n2,99,990,100\n"
    first, busy = findings(summary(tmp_path / "capped", capped, system=HOPPER, model="other"))
    assert tells(first, "**Bottleneck**: ", "power", "24.8 %", ": ")
    assert tells(busy, "GPU ", " 99 % of the time.")
    idle = "seconds,cpu_percent\n1,5\n2,5\n"
    assert tells(findings(summary(tmp_path / "idle", idle))[0], "the CPU", "Not known: the KV cache, request slots")
    whole = "seconds,cpu_percent,kv_cache_percent,requests_waiting\n1,5,9,0\n2,5,9,0\n"
    assert findings(summary(tmp_path / "whole", whole))[0].startswith("No resource was saturated")
    remote = findings(behind_an_endpoint(summary(tmp_path / "remote", whole)))[0]
    assert tells(remote, "the client's CPU", "Not known: the GPU") and "No resource was" not in remote
    assert "What limits the speed" in (tmp_path / "capped" / "report.md").read_text()


def latencies_under_p99(page: str) -> list[str]:
    """The cells of a page's tables that a head, or the first cell of their line, calls the p99 of a latency."""
    found: list[str] = []
    for block in re.findall(r"(?:^\|.*\n)+", page, re.M):
        if block.startswith(("| tokens of a request", "| output tokens")):
            continue
        head, _, *lines = ([cell.strip() for cell in line.strip("| \n").split(" | ")] for line in block.splitlines())
        for line in lines:
            named = zip(head, line, strict=False)
            found += [cell for name, cell in named if re.search(r"p99(?!.9)", f"{name} {line[0]}") and cell != line[0]]
    return found


@pytest.mark.parametrize("load", [{"server_target_qps": 8.5}, {"scenario": "singlestream"}, {"concurrency": "1,4"}])
def test_every_p99_of_few_requests_is_marked_as_their_slowest(
    tmp_path: Path, load: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [example_runs.run(tmp_path / name, **load) for name in "ab"]
    probes = [example_runs.probe(None, True, 9, 9, 5, 5, 90, 9, concurrency=n, queries=64) for n in (1, 4)]
    for folder in folders:
        example_runs.levels(folder, probes if "concurrency" in load else [])
        rendering.build_report(folder)
    runs = [compare.read_run(folder) for folder in folders]
    pages = [(folders[0] / "report.md").read_text(), example_runs.side_by_side(runs)]
    for page in pages:
        cells = latencies_under_p99(re.sub("limit at p99", "limit", page))
        assert cells and all(cell.startswith(("\N{LESS-THAN OR EQUAL TO} ", "\N{EN DASH}")) for cell in cells)
    monkeypatch.setattr(outcome, "FEWEST_P99", 32)
    rendering.build_report(folders[0])
    cells = latencies_under_p99((folders[0] / "report.md").read_text())
    assert any(cell[:1].isdigit() for cell in cells)


@pytest.mark.parametrize("queries", [64, 640])
def test_the_sign_of_few_requests_is_explained_below_a_table_that_has_it(tmp_path: Path, queries: int) -> None:
    folder = example_runs.run(tmp_path / "run", concurrency="1,4")
    levels = [example_runs.probe(None, True, 9, 9, 5, 5, 90, 9, concurrency=n, queries=queries) for n in (1, 4)]
    example_runs.levels(folder, levels)
    summary = rendering.build_report(folder)
    labels = [line.label for line in answer.document(summary).lines]
    is_used = any(outcome.AT_MOST_SIGN in cell for row in answer.document(summary).levels for cell in row)
    assert is_used == (outcome.AT_MOST_SIGN in labels)
    assert is_used or queries == 640


def test_a_page_draws_its_pictures_with_its_own_colours(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps="4,8.5")
    rendering.build_report(folder)
    assert not [*folder.rglob("*.svg")]
    series = [Series("one <b>", [(1.0, 2.0), (2.0, nan), (3.0, 4.0)], "green", texts=["a <i>"])]
    panel = LinePanel("a <picture>", "s", "ms", series, Scale(0.0, 4.0), Scale(0.0, 8.0), {5.0: "limit 5 ms"})
    page = block_html(
        Picture("x", "a <picture>", "plots/x.png", [panel, Bars("", "", [Bar("r", "1", [StackedPart(0, 1)])])])
    )
    root = ElementTree.fromstring(page)
    assert root.get("aria-label") == "a <picture>" and "var(--green)" in page and "var(--blue)" in page
    assert "style=" not in page and "<i>" not in page and "<b>a" not in page
    assert len([*root.iter("polyline")]) == 2 and root.find(".//line[@class='limit']").get("y1") == "45.0"  # type: ignore[union-attr]


def test_markdown_of_others_brings_no_picture() -> None:
    assert "<img" not in block_html("![a plot](../secret.png)")


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("--model /home/me/models/llama --mode both", "--model llama --mode both"),
        ("--dataset-path ~/data/cnn.json '../x/y z'", "--dataset-path cnn.json 'y z'"),
        ("http://me:word@host:8000/v1?key=1#a and more", "http://host:8000/v1 and more"),
        (
            "1,024 tokens/s, TTFT/TPOT, 24/7, meta-llama/Llama-3.1-8B",
            "1,024 tokens/s, TTFT/TPOT, 24/7, meta-llama/Llama-3.1-8B",
        ),
        ("[logs](Performance/requests.csv) in `Probes/`", "[logs](Performance/requests.csv) in `Probes/`"),
    ],
)
def test_a_page_says_neither_where_nor_who(text: str, sent: str) -> None:
    assert without_private_paths(text) == (sent or text)


def test_a_line_at_the_edge_is_not_cut_and_prompts_have_an_axis_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "machine.csv"
    path.write_text("seconds,gpu0_load_percent,generation_tokens_per_sec,prompt_tokens_per_sec\n1,100,0,9\n2,100,5,9\n")
    bound = [Statement(what="the GPU was busy 100 % of the time", remedy="nothing")]
    panels = machine_pictures.machine_panels(Recording.read(path), bound, [])
    drawn = draw_figure(panels).axes
    for axes in drawn:
        low, high = axes.get_ylim()
        assert all(low < value < high for line in axes.lines for value in line.get_ydata())
    assert [len(axes.lines) for axes in drawn] == [0, 1, 1, 1]  # the strip of cells first
    assert tells(panels[0].title, "Bottleneck: ", "GPU", "100 % of the time")


def test_every_picture_says_what_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pictures, "save_pictures", lambda drawn, place, words: said.append(words) or {})
    folder = example_runs.run(tmp_path / "run", system=HOPPER, model="other", label="night")
    (folder / "Performance" / "machine.csv").write_text("seconds,cpu_percent\n1,5\n2,6\n")
    rendering.build_report(folder)
    middle = " \N{MIDDLE DOT} "
    assert said == [
        middle.join(
            ("night", "Offline, other, 1 x NVIDIA H200, vLLM 0.32.0", "2026-01-31", "not comparable with MLPerf")
        )
    ]


def test_scores_without_the_official_splitter_are_marked_on_the_screen() -> None:
    score = files.read(kept_pictures.RUNS / "demo" / "summary.json", Summary).accuracy
    assert score and score.approximate
    assert tells(
        answer.scores_text(score),
        "rouge1 91.19 (minimum 90.28); rougeLsum and gen_len are approximate; all 256 samples checked",
    )
    assert "approximate" not in answer.scores_text(score.model_copy(update={"approximate": []}))


def test_a_label_is_kept_everywhere(tmp_path: Path) -> None:
    found = example_runs.rendered(tmp_path / "20260131-a", label="night")
    history.finish(RunFolder(tmp_path, "20260131-a"), rendering.history_line(found))
    rendering.write_index(tmp_path)
    assert found.meta.label == json.loads((tmp_path / "history.jsonl").read_text())["label"] == "night"
    assert "report.html) night |" in (tmp_path / "index.md").read_text()
    assert answer.document(found).subject.startswith("night: Offline, demo model")


@pytest.mark.parametrize("run", [run for run, _ in kept_pictures.PAGES.values()])
def test_a_run_that_is_kept_whole_has_the_page_that_is_made_today(run: str, tmp_path: Path) -> None:
    kept = kept_pictures.RUNS / run
    shutil.copytree(kept, tmp_path / run)
    rendering.build_report(tmp_path / run)
    for name in ("report.html", "report.md", "summary.json"):
        assert (tmp_path / run / name).read_text() == (kept / name).read_text(), "make pictures"


def test_the_pictures_of_the_docs_are_drawn_from_kept_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_pictures, "IMAGES", tmp_path)
    monkeypatch.setattr(kept_pictures, "PAGES", {})
    kept_pictures.main()
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {f"{name}.png" for name in kept_pictures.PICTURES} | {"h200-settings.png"}
    assert drawn <= {path.name for path in (kept_pictures.HERE / "img").iterdir()}
