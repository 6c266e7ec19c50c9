"""Servers under the same requests: the interval under the stopping rule, the words, the exit code, and real rounds."""

import json
from pathlib import Path

import pytest

from benchmarks.rounds import simulate
from harness.commands import compare
from harness.core.schema import SCHEMA
from harness.report import regression
from harness.report import report as rendering
from harness.report.regression import AnswerChange
from harness.sweep import rounds
from harness.sweep.rounds import ServerComparison, SideTest, change_in_words, document, finding, judge
from tests import made as folders
from tests.conftest import called, ended
from tests.servers import Fake, serving

SCATTER = (1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99)


@pytest.mark.parametrize("drift", [0.0, 0.05])
@pytest.mark.parametrize("scatter", [0.01, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("ratio", [0.0, 0.02, 0.05])
def test_the_interval_holds_under_the_rule_by_which_a_session_ends(ratio: float, scatter: float, drift: float) -> None:
    found = simulate(ratio, scatter, drift, sessions=4000)
    assert found.covered >= 0.93
    if not ratio:
        assert found.different <= 0.05


def test_an_interval_without_the_correction_would_not_hold() -> None:
    assert simulate(0.0, 0.01, 0.0, sessions=4000, share=0.95).different > 0.06


def made(ratio: float = 1.0, pairs: int = 8, busy: tuple[int, ...] = (), within: float = 2.0) -> ServerComparison:
    """A comparison whose B is `ratio` times as fast as A in pairs that scatter by a percent."""
    tests = [
        SideTest(
            letter=letter,
            pair=n,
            values={
                "tokens_per_sec": 100 * (ratio * SCATTER[n % 8] if letter == "B" else 1.0),
                "ttft_p99_ms": 50.0 + n % 2,
            },
            busy="other programs" if n in busy and letter == "A" else "",
        )
        for n in range(1, pairs + 1)
        for letter in ("AB" if n % 2 else "BA")
    ]
    return ServerComparison(
        schema_version=SCHEMA,
        command="c",
        started="s",
        subject="demo",
        servers={"A": "http://a", "B": "http://b"},
        first_metric="tokens_per_sec",
        within_percent=within,
        ended="stopped after --rounds 4",
        tests=tests,
        same_answers={"B": (256, 256)},
    )


def test_a_difference_is_said_with_its_interval_and_none_with_its_size() -> None:
    assert change_in_words("tokens_per_sec", AnswerChange(12.1, 9.2, 15.4)) == "12 % faster (9.2 to 15)"
    assert change_in_words("tokens_per_sec", AnswerChange(-12.1, -15.4, -9.2)) == "12 % slower (9.2 to 15)"
    assert change_in_words("ttft_p99_ms", AnswerChange(-12.1, -15.4, -9.2)) == "TTFT p99 12 % lower (9.2 to 15)"
    assert change_in_words("ttft_p99_ms", AnswerChange(1.1, -2.01, 3.91)) == "TTFT p99 equal within 4 %"
    found = made(1.12)
    said = finding(found, "B")
    assert said.startswith("B is 12 % faster (") and said.endswith(
        "TTFT p99 equal within 0 %, 256 of 256 answers the same"
    )
    assert finding(made(1.0), "B").startswith("B: output tokens/s equal within 1.")


def test_pairs_on_a_busy_machine_are_left_out() -> None:
    found = made(1.12, busy=(1, 2, 3))
    assert [one.pair for one, _ in found.pairs("B")] == [4, 5, 6, 7, 8]
    assert found.is_told and found.code == 0
    hollow = made(1.12, busy=(1, 2, 3, 4, 5))
    assert not hollow.is_told and hollow.code == 2 and hollow.change("B", "tokens_per_sec") is None
    assert document(hollow).title.startswith("NOT JUDGED: 3 pairs")


def test_a_session_ends_when_enough_is_known() -> None:
    known, unknown = made(1.0, within=5.0), made(1.0, within=0.1)
    assert known.is_known and not unknown.is_known
    assert rounds.why_ended(known, 8, 10, 60).startswith("known")
    assert rounds.why_ended(unknown, 8, 10, 60) == ""
    assert "--minutes" in rounds.why_ended(unknown, 8, 10, 590)
    assert "--rounds" in rounds.why_ended(unknown, 4, 10, 60)
    assert not made(1.0, pairs=2).is_known  # of fewer than four pairs nothing is


def test_the_gate_has_the_conditions_of_finished_runs() -> None:
    found = made(0.9)
    for text, expected in (
        ("output_tokens_per_s<-3%", "FAIL"),
        ("output_tokens_per_s<-20%", "PASS"),
        ("output_tokens_per_s<-10%", "NOT JUDGED"),
        ("ttft_p99_ms>2000", "PASS"),
        ("ttft_p99_ms>50", "FAIL"),
        ("tpot_p99_ms>+1%", "NOT JUDGED"),
        ("answers changed", "NOT JUDGED"),
    ):
        assert judge(found, "B", regression.condition(text), None).verdict == expected, text
    judged = [
        judge(found, "B", regression.condition(text), None) for text in ("output_tokens_per_s<-3%", "answers changed")
    ]
    assert judged[0].condition == "B: output_tokens_per_s<-3%"
    slow = found.model_copy(update={"judged": judged})
    assert slow.code == 1 and {"FAIL", "NOT JUDGED"} <= {line.label for line in document(slow).lines}
    assert found.model_copy(update={"judged": judged[1:]}).code == 2 and found.code == 0


def test_the_page_is_made_of_the_file_again(tmp_path: Path) -> None:
    rounds.write(tmp_path, made(1.12))
    page = (tmp_path / "report.md").read_text()
    (tmp_path / "report.md").unlink()
    assert called("report", "report.py", str(tmp_path)).returncode == 0
    assert (tmp_path / "report.md").read_text() == page and "% faster (" in page.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1:9/v1"], "at least two servers"),
        (["http://127.0.0.1:9/v1", "before"], "at least two servers"),
        (["http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"], "given twice"),
        (["before", "after", "--quantization", "fp8"], "sweep.py FILE --repeat"),
        (["http://127.0.0.1:8/v1", "http://127.0.0.1:9/v1", "--quantization", "fp8"], "sweep.py FILE --repeat"),
        (["http://127.0.0.1:8/v1", "http://127.0.0.1:9/v1", "--server-target-qps", "max"], "single number"),
        (["http://127.0.0.1:8/v1", "http://127.0.0.1:9/v1", "--concurrency", "1,2"], "single number"),
        (["http://127.0.0.1:8/v1", "http://127.0.0.1:9/v1", "--fail-if", "speed<3"], "no metric speed"),
        (["http://127.0.0.1:8/v1", "http://127.0.0.1:9/v1", "--rounds", "1"], "rounds"),
        (["nothing", "nowhere"], "no path"),
    ],
)
def test_what_cannot_be_compared_ends_in_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    done = called("compare", "compare", *words, "--results-dir", str(tmp_path))
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_servers_and_runs_come_first() -> None:
    assert list(compare.with_sides(["http://a", "b", "--model", "http://c"])) == [
        *("--endpoint=http://a", "--side=b"),
        *("--model", "http://c"),
    ]


def test_without_flags_it_is_a_short_test() -> None:
    servers = ("http://a", "http://b")
    config = compare.CompareConfig(model="demo", endpoint=servers)
    assert (config.levels, config.mode, config.total_sample_count, config.min_duration) == ((16,), "both", 256, 10.0)
    config = compare.CompareConfig(
        model="demo", endpoint=servers, server_target_qps=2.0, workload="chat", min_duration=5.0
    )
    assert (config.scenario, config.mode, config.min_duration) == ("server", "performance", 5.0)


@pytest.mark.slow
def test_two_servers_whose_times_are_set(tmp_path: Path) -> None:
    """Real LoadGen; the second server takes 60 ms an answer less."""
    common = [
        "--model",
        "demo",
        "--concurrency",
        "8",
        "--min-duration",
        "2",
        "--total-sample-count",
        "32",
        "--rounds",
        "2",
    ]
    with serving(Fake(delay_s=0.2, pause_s=0.06)) as a, serving(Fake(delay_s=0.14, pause_s=0.06)) as b:
        done = ended("-m", "harness", "compare", a.address, b.address, *common, "--results-dir", str(tmp_path))
        bodies = [[body for body in fake.asked if "prompt" in body] for fake in (a, b)]
    (folder,) = tmp_path.glob("*compare")
    found = ServerComparison.model_validate(json.loads((folder / "comparison.json").read_text()))
    assert [f"{test.letter}{test.pair}" for test in found.tests] == ["A1", "B1", "B2", "A2", "A3", "B3", "B4", "A4"]
    assert found.same_answers == {"B": (32, 32)}
    prompts = [{tuple(body["prompt"]) for body in asked} for asked in bodies]
    assert prompts[0] == prompts[1]
    quiet = found.model_copy(update={"tests": [test.model_copy(update={"busy": ""}) for test in found.tests]})
    change = quiet.change("B", "tokens_per_sec")
    assert change and 15 < change.percent < 35, change  # 260 ms to 200 ms
    assert done.returncode == found.code, done.stdout + done.stderr
    assert json.loads((folder / "status.json").read_text())["status"] == "complete"


@pytest.mark.slow
def test_a_server_that_fails_ends_it_and_keeps_what_was_measured(tmp_path: Path) -> None:
    common = ["--model", "demo", "--concurrency", "4", "--min-duration", "1", "--total-sample-count", "16"]
    with serving(Fake(delay_s=0.05)) as a, serving(Fake(delay_s=0.05, fault="500", after=16 + 8 + 40 + 66)) as b:
        done = ended("-m", "harness", "compare", a.address, b.address, *common, "--results-dir", str(tmp_path))
    assert done.returncode == 3 and "too much to do" in done.stderr
    (folder,) = tmp_path.glob("*compare")
    assert json.loads((folder / "status.json").read_text())["status"] == "failed"
    assert list(folder.glob("A/Rounds/1/mlperf_log_detail.txt"))


def test_finished_runs_are_compared_as_report_does(tmp_path: Path) -> None:
    runs = [str(folders.run(tmp_path / name)) for name in ("before", "after")]
    for run in runs:
        rendering.build(Path(run))
    done, same = called("compare", "compare", *runs), called("report", "report.py", "--compare", *runs)
    assert done.returncode == 0 and "before" in done.stdout and done.stdout == same.stdout
