"""report.html in a real browser: what it shows, what its controls do, and that it runs and loads nothing of others."""

import csv
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.commands import report
from harness.loadgen.requests import Request
from harness.loadgen.test_run import RECORDING
from harness.report import report as rendering
from harness.report.machine_pictures import SHARE_COLORS
from harness.report.published_strip import strip_of
from harness.results.benchmark_run import facts_of
from harness.results.gpu_time_shares import SHARES
from harness.results.outcome import Outcome, Queue
from harness.results.published import Unit, published, results_of
from harness.runs.run_folder import RunFolder
from tests.conftest import ROOT
from tests.support import example_runs
from tests.support.browser import CHROMIUM, Tab, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
HOSTILE = '</script><img src=x onerror="alert(1)">$\\frac{'
LARGEST_PAGE = 1_500_000  # bytes
GREW = Queue(9.0, 7.0, 0.1, 2.0, 0.1, 1.0)


def probe(qps: float, ttft: float | None, tpot: float, **more: object) -> Outcome:
    """A probe at a rate with these p99, and p50 and p90 below them."""
    values = {"ttft_p50": ttft and ttft / 4, "ttft_p90": ttft and ttft / 2, "tpot_p50": tpot / 4, "tpot_p90": tpot / 2}
    values |= {"tokens_per_sec": 128 * qps, "samples_per_sec": qps, "seconds": 30.0, "latency_p50": 1000.0}
    return example_runs.probe(**{"qps": qps, "valid": True, "ttft_p99": ttft, "tpot_p99": tpot, **values, **more})  # type: ignore[arg-type]


PROBES = [probe(4.0, 400.0, 40.0), probe(7.0, 900.0, 70.0), probe(9.0, 950.0, 90.0, queue=GREW)]
PROBES += [probe(12.0, 9000.0, 150.0, valid=False, why="TTFT p99 9,000 of 2,000 ms")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at a rate with probes on both sides of its limits; texts of others are hostile."""
    place = tmp_path_factory.mktemp("pages")
    folder = example_runs.run(
        place / "run", scenario="server", server_target_qps="4,7,9,12,8.5", label=HOSTILE, price_per_hour=2.0
    )
    command = f"python run.py --model /home/someone/{HOSTILE}/model --endpoint http://user:password@host:8000/v1?key=1"
    facts = {"command": command, "engine": f"engine {HOSTILE}", "kernels": {"attention": HOSTILE}}
    example_runs.note(RunFolder(place, "run"), probes=PROBES, **facts)
    slow = {example_runs.FAMILIES["result_time_to_output_token_{}"].format(share): 95e6 for share in ("99.00", "99.90")}
    plan = facts_of(folder).plan
    log = example_runs.log(plan, **slow, result_time_to_output_token_max=95e6, result_max_latency_ns=195e6)
    (folder / "Performance" / "mlperf_log_detail.txt").write_text(log)
    rows = [f"{second},{second % 7 * 10}" for second in range(1, 9)]
    (folder / "Performance" / RECORDING).write_text("\n".join(["seconds,cpu_percent", *rows]) + "\n")
    rendering.build_report(folder)
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def answer(tab: Tab) -> str:
    return str(tab.run("document.getElementById('answer').textContent")).strip()


def test_no_two_parts_of_the_gpus_time_have_one_colour() -> None:
    assert len({*SHARE_COLORS}) == len(SHARES)


def test_it_says_nothing_on_the_console_and_asks_for_nothing_but_itself(run: Path, tab: Tab) -> None:
    page = run / "report.html"
    tab.open(page)
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert tab.console == []
    assert tab.requests == [page.resolve().as_uri()]


def test_what_others_wrote_stays_text(run: Path, tab: Tab) -> None:
    tab.open(run / "report.html")
    assert tab.run("document.querySelectorAll('img, iframe, object, embed, link:not([rel=icon])').length") == 0
    assert tab.run("document.scripts.length") == 2
    handlers = (
        "[...document.querySelectorAll('*')].filter(one => [...one.attributes].some(a => a.name.startsWith('on')))"
    )
    assert tab.run(f"{handlers}.length") == 0
    assert " style=" not in (run / "report.html").read_text()
    assert HOSTILE in tab.run("document.querySelector('.subject').textContent")
    assert HOSTILE in tab.run("document.querySelector('details.more').textContent")
    assert (run / "plots" / "search.png").is_file()


def test_a_page_of_the_same_policy_runs_no_other_script(run: Path, tab: Tab, tmp_path: Path) -> None:
    page = (run / "report.html").read_text()
    assert "unsafe" not in page.partition("</head>")[0]
    changed = tmp_path / "changed.html"
    added = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'><p style='color: red' id=styled>x</p>"
    changed.write_text(page.replace("<main>", f"<main>{added}"))
    tab.open(changed)
    assert tab.run("window.ran") is None
    assert tab.run("getComputedStyle(document.getElementById('styled')).color") != "rgb(255, 0, 0)"
    assert any("Content Security Policy" in said for said in tab.console)


def test_places_and_users_stay_behind(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert "/home" not in page and "someone" not in page
    assert "password" not in page and "key=1" not in page
    assert "http://host:8000/v1" in page


def test_a_phone_shows_the_selected_test_first_and_the_table_in_a_fold(run: Path, tab: Tab) -> None:
    tops = "['.cells', '.controls', '.pair'].map(css => document.querySelector(css).getBoundingClientRect().top)"
    tab.open(run / "report.html", 400)
    assert tab.run(f"{tops}.every((top, i, all) => i == 0 || all[i - 1] < top)")
    assert not tab.run("document.querySelector('details.table').open")
    tab.open(run / "report.html", 1280)
    assert tab.run("document.querySelector('details.table').open")
    assert tab.run("getComputedStyle(document.querySelector('details.table > summary')).display") == "none"


def test_without_a_price_the_cost_is_one_line(tmp_path: Path, tab: Tab) -> None:
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps="4,7,9,12,8.5")
    rendering.build_report(folder)
    tab.open(folder / "report.html")
    assert tab.run("[...document.querySelectorAll('.tile')].every(tile => !tile.textContent.includes('Cost'))")
    tab.type("#price", "2")
    assert "a million output tokens cost 0.5425" in " ".join(
        tab.run("document.querySelector('p.cost').textContent").split()
    )


@pytest.mark.parametrize("width", [360, 1280, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_every_width_in_both_themes(run: Path, tab: Tab, width: int, dark: bool) -> None:
    tab.open(run / "report.html", width, dark)
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert tab.run("document.documentElement.scrollWidth") <= width
    small = "[...document.querySelectorAll('svg text, p, td, li, span')].filter(one => one.getClientRects().length)"
    assert tab.run(f"Math.min(...{small}.map(one => parseFloat(getComputedStyle(one).fontSize)))") >= 9
    assert (tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 27)") == dark
    assert tab.console == []


def test_without_scripts_and_on_paper_it_is_whole(run: Path, tab: Tab) -> None:
    tab.open(run / "report.html", scripts=False)
    words = tab.call("DOM.getDocument", depth=-1)
    assert "8.5 queries/s" in json.dumps(words)
    assert len(tab.printed()) > 10_000


def test_one_s_own_limits_move_the_answer_among_measured_loads(run: Path, tab: Tab) -> None:
    tab.open(run / "report.html")
    assert "the full test at 8.5 queries/s" in answer(tab)
    title = tab.run("document.title")
    tab.type("#my-ttft", "10")
    assert answer(tab).startswith("No test that counts is within these limits")
    tab.type("#my-ttft", "5000")
    tab.type("#my-tpot", "80")
    assert answer(tab).startswith("Best within these limits, by a probe alone")
    assert "the probe at 7 queries/s" in answer(tab)  # nothing between it and the full test, whose TPOT is 95 ms
    assert tab.run("document.getElementById('kept-4').textContent") == "over TPOT"
    assert tab.run("document.querySelector('#mine-tpot text').textContent") == "yours 80 ms"
    tab.type("#my-tpot", "60")
    assert "the probe at 4 queries/s" in answer(tab)
    tab.click("#reset")
    assert tab.run("document.getElementById('my-tpot').value") == "100"
    assert tab.run("document.title") == title
    assert tab.console == []


def test_a_peak_is_divided_by_the_rate_within_the_typed_limits(run: Path, tab: Tab) -> None:
    tab.open(run / "report.html")
    assert "replica" not in answer(tab)
    tab.type("#peak", "70.875")
    assert "needs 10 replicas, each with 7.088 requests/s (90 % of its rate)." in answer(
        tab
    )  # the full test answers 7.875 requests/s
    tab.type("#peak", "72")
    tab.type("#my-tpot", "80")
    assert "A peak of 72 requests/s needs 12 replicas, each with 6.3 " in answer(tab)  # the probe at 7 queries/s
    tab.type("#peak", "0.5")
    assert "needs 1 replica, each with 6.3 " in answer(tab)
    tab.type("#my-tpot", "1")
    assert "replica" not in answer(tab)
    tab.click("#reset")
    assert tab.run("document.getElementById('peak').value") == "" and "replica" not in answer(tab)
    assert tab.console == []


def test_the_percentile_moves_the_marks(run: Path, tab: Tab) -> None:
    tab.open(run / "report.html")
    place = "document.querySelector('svg.mark[data-i=\"0\"]').getAttribute('y')"
    before = tab.run(place)
    tab.click("fieldset label:first-child")
    assert float(tab.run(place)) > float(before)
    assert "p50" in answer(tab)
    assert "100 ms" in tab.run("document.querySelector('svg.mark[data-i=\"0\"] title').textContent")


def test_price_and_watts_recompute_cost_and_energy(run: Path, tab: Tab) -> None:
    tab.open(run / "report.html")
    money, energy = ("document.getElementById('money').textContent", "document.getElementById('energy').textContent")
    assert tab.run(money) == "0.5425"  # 2 an hour at 1,024 tokens/s
    assert tab.run(energy) == "–"
    tab.type("#price", "4")
    tab.type("#watts", "512")
    assert tab.run(money) == "1.085" and tab.run(energy) == "500,000"
    tab.type("#price", "")
    assert tab.run(money) == "–"


def test_one_selector_chooses_the_level_and_a_click_does_too(run: Path, tab: Tab) -> None:
    chosen = "document.getElementById('level').value"
    shown = "document.getElementById('level-ttft_p99_ms').textContent"
    others = "[...document.querySelectorAll('.cells > div > span:last-child')].filter(one => !one.hidden).length"
    tab.open(run / "report.html")
    assert tab.run(chosen) == "4" and tab.run(others) == 0  # the result, beside which nothing is compared
    tab.click("svg.mark[data-i='0'] .hit")
    assert tab.run(chosen) == "0" and tab.run(shown) == "400" and tab.run(others) > 5
    tab.run("document.getElementById('level').focus()")
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key="ArrowDown", code="ArrowDown", windowsVirtualKeyCode=40)
    assert tab.run(chosen) == "1" and tab.run(shown) == "900"
    assert tab.run("document.querySelectorAll('svg.mark.chosen').length") == 2  # in both plots
    tab.click("#reset")
    assert tab.run(chosen) == "4"
    assert tab.console == []


SPOKEN = """[...document.querySelectorAll('button, [role=button], [role=img], [role=region]')]
  .map(one => [one.getAttribute('aria-label') ?? one.innerText, one.innerText ?? ''])"""


def test_a_name_that_is_read_out_holds_what_is_seen(run: Path, tab: Tab) -> None:
    tab.open(run / "report.html")
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = tab.run(f"{SPOKEN}.filter(([, seen]) => seen.length < 40)")
    assert len(found) > 10
    assert [pair for pair in found if not pair[0].strip() or pair[1].strip() not in pair[0]] == []


def test_a_key_reaches_each_table_that_scrolls_and_each_column_has_a_name(run: Path, tab: Tab) -> None:
    tab.open(run / "report.html", 360)
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    wide = "[...document.querySelectorAll('*')].filter(one => one.scrollWidth > one.clientWidth + 1 && one.clientWidth)"
    scrolls = f"{wide}.filter(one => ['auto', 'scroll'].includes(getComputedStyle(one).overflowX))"
    tables = tab.run(f"{scrolls}.map(one => [one.tabIndex, one.getAttribute('role'), one.ariaLabel])")
    assert {(index, role) for index, role, _ in tables} == {(0, "region")}
    assert len({name for _, _, name in tables}) == len(tables) > 1
    assert tab.run("[...document.querySelectorAll('th')].filter(one => !one.textContent.trim()).length") == 0


def test_a_term_is_explained(run: Path, tab: Tab) -> None:
    tab.open(run / "report.html")
    tab.click("button[popovertarget='t-ttft']")
    assert tab.run("document.querySelector('#t-ttft').matches(':popover-open')") is True
    assert "time to first token" in tab.run("document.querySelector('#t-ttft').textContent")


def test_the_data_are_saved_as_csv(run: Path, tab: Tab) -> None:
    tab.open(run / "report.html")
    tab.click("#csv")
    saved, end = tab.folder / "run.csv", time.monotonic() + 10
    while not saved.exists() and time.monotonic() < end:
        time.sleep(0.05)
    rows = list(csv.DictReader(saved.open()))
    assert [row["queries/s"] for row in rows] == ["4", "7", "9", "12", "8.5"]
    assert rows[0]["TTFT p99, ms"] == "400" and rows[0]["GPU idle, %"] == ""
    assert tab.console == []


def test_a_comparison_is_a_page_of_the_same_kind(run: Path, tab: Tab, tmp_path: Path) -> None:
    other, page = example_runs.run(tmp_path / "other", scenario="server", server_target_qps=8.5), tmp_path / "both.html"
    rendering.build_report(other)
    report.compare_runs([run, other], None, None, page)
    tab.open(page, 360)
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert tab.console == [] and tab.requests == [page.resolve().as_uri()]
    assert tab.run("document.querySelectorAll('img, script').length") == 0
    assert tab.run("document.documentElement.scrollWidth") <= 360
    assert HOSTILE in tab.run("document.body.textContent")


@pytest.mark.slow
def test_a_run_of_full_length_stays_small(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps=8.5)
    logs, count = folder / "Performance", 450_000
    plan = facts_of(folder).plan
    (logs / "mlperf_log_detail.txt").write_text(example_runs.log(plan, result_query_count=count))
    times = ((order, 100.0 + order * 7919 % 4001 / 7, 5000.0 + order * 104729 % 40009 / 9) for order in range(count))
    example_runs.requests(
        logs,
        *(Request(n % 13368, 500, 128, 1, n / 700, 0.3, ttft, whole, "loadgen", "", n) for n, ttft, whole in times),
    )
    names = ["requests_running", "requests_waiting", "kv_cache_percent", "generation_tokens_per_sec", "cpu_percent"]
    rows = [",".join(map(str, (n, *((n * k * 7919 % 1009) / 10 for k in range(1, 6))))) for n in range(1, 700)]
    (logs / RECORDING).write_text("\n".join([",".join(["seconds", *names]), *rows]) + "\n")
    rendering.build_report(folder)
    assert (folder / "report.html").stat().st_size < LARGEST_PAGE
    assert not re.search(r"data:image", (folder / "report.html").read_text())


@pytest.mark.parametrize("scenario", sorted({one.scenario for one in published()}))
@pytest.mark.parametrize("rate", [0.01, 57.8, 1000.0])
@pytest.mark.parametrize("unit", ["samples/s", "tokens/s"])
@pytest.mark.parametrize(("device", "count"), [("NVIDIA H100 80GB HBM3", 1), ("Intel(R) Xeon(R) 6787P", 0)])
def test_no_published_result_lies_outside_the_picture(
    scenario: str, rate: float, unit: Unit, device: str, count: int
) -> None:
    found = strip_of(scenario, device, count, rate, unit)
    if found is None:
        assert not results_of(scenario, unit, on_cpu=not count)
        return
    assert {bool(one.accelerators) for one in found.results} == {bool(count)}
    assert sum(len(points) for _, _, points in found.lines) == len(found.results)
    places = [
        found.place,
        *(place for place, _ in found.ticks),
        *(p for _, _, points in found.lines for p, _ in points),
    ]
    assert min(places) >= 0 and max(places) <= 100 and len(found.ticks) > 1


def test_one_card_is_told_what_one_card_was_published_with() -> None:
    """Its own kind's results of a single accelerator; a pool is no such card."""
    found, pool = (strip_of("Offline", "NVIDIA H200", count, 60.0, "samples/s") for count in (1, 8))
    assert found and [round(one.rate("samples/s"), 2) for one in found.alone] == [60.92]
    assert pool and pool.alone == []
    assert "Of a system with one card: 60.92 samples/s" in (ROOT / "docs/runs/h200-whole/report.html").read_text()
