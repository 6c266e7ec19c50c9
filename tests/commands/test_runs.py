"""Runs in order: the best first, those that are named deleted, `latest` on the newest that is left."""

from pathlib import Path

import pytest

from harness.__main__ import main
from harness.core.errors import UsageError
from harness.core.files import write_json
from harness.report.report import write_index
from harness.runs import find, history, run_folder
from tests.conftest import called, tells

SPEEDS = {"slow": 10.0, "fast": 30.0, "middling": 20.0}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three finished runs, one after the other."""
    for day, (label, speed) in enumerate(SPEEDS.items(), 1):
        run = run_folder.RunFolder(tmp_path, f"2026010{day}-100000-{label}")
        run.path.mkdir()
        line = {"scenario": "offline", "label": label, "tokens_per_sec": speed, "latency_p99_ms": speed}
        history.finish(run, line)
    return tmp_path


def test_scenarios_stand_apart_and_what_is_flawed_last(place: Path) -> None:
    for number, more in enumerate(({"flaws": ["INVALID"], "setup": {"backend": "echo"}}, {"scenario": "concurrency"})):
        run = run_folder.RunFolder(place, f"2026020{number + 1}-100000-more")
        run.path.mkdir()
        history.finish(run, {"scenario": "offline", "label": f"more{number}", "tokens_per_sec": 1e6, **more})
    rows = [[cell.strip() for cell in row.split("|")] for row in runs(place)[1].splitlines()[2:]]
    assert [row[2] for row in rows] == ["more1", "fast", "middling", "slow", "more0"]
    assert rows[-1][6] == "backend=echo" and rows[1][6] == ""


def test_the_result_tells_the_gate_and_a_busy_machine(place: Path) -> None:
    lines: dict[str, dict[str, object]] = {
        "sound": {"result": "VALID", "verdict": "PASS", "tokens_per_sec": 1.0},
        "bad-answers": {"result": "VALID", "verdict": "FAIL", "tokens_per_sec": 9e6},
        "disputed": {"result": "VALID", "is_disputed": True, "flaws": ["tokens differ"], "tokens_per_sec": 4.0},
        "busy": {"result": "VALID", "others": ["other programs used 1 of 2 CPU cores"], "tokens_per_sec": 2.0},
        "answers-only": {"result": None, "verdict": "PASS"},
    }
    for number, (label, line) in enumerate(lines.items(), 1):
        run = run_folder.RunFolder(place, f"2026030{number}-100000-more")
        run.path.mkdir()
        history.finish(run, {"scenario": "zero", "label": label, **line})
    rows = [[cell.strip() for cell in row.split("|")] for row in runs(place)[1].splitlines()[2:]]
    results = {row[2]: row[3] for row in rows}
    assert results["sound"] == "VALID" and results["busy"] == "VALID, machine busy"
    assert results["disputed"] == "VALID, disputed"
    assert results["bad-answers"] == "VALID, accuracy FAIL" and results["answers-only"] == "accuracy PASS"
    flawed = [row[2] for row in rows if row[1].startswith("2026030")][-2:]
    assert flawed == ["bad-answers", "disputed"]  # the fastest ones come last, since their answers or figures are wrong


def test_samples_and_the_settings_that_differ_stand_beside_the_speed(place: Path) -> None:
    setups = [{"backend": "vllm", "max_num_seqs": 8, "engine_arg": ["a=1"]}, {"backend": "vllm", "max_num_seqs": None}]
    for number, setup in enumerate(setups):
        run = run_folder.RunFolder(place, f"2026040{number + 1}-100000-more")
        run.path.mkdir()
        history.finish(run, {"scenario": "zero", "tokens_per_sec": 9.0 - number, "samples": 64, "setup": setup})
    _head, _, *rows = runs(place)[1].splitlines()
    cells = [[cell.strip() for cell in row.split("|")] for row in rows if "-more" in row]
    assert [row[5] for row in cells] == ["64", "64"]
    # The runs of the fixture have no settings, so that the backend differs, too.
    assert cells[0][6] == 'backend=vllm, max_num_seqs=8, engine_arg=["a=1"]'
    assert cells[1][6] == "backend=vllm"


@pytest.mark.parametrize("has_other", [False, True])
def test_a_label_of_failed_runs_is_deleted_and_says_why_it_has_no_results(place: Path, has_other: bool) -> None:
    failed = run_folder.open_run(place, "broken")
    write_json(failed.path / "config.json", {"plan": {"config": {"label": "broken"}}})
    failed.set_status("failed", "vLLM did not start")
    if has_other:
        sound = run_folder.open_run(place, "broken")
        write_json(sound.path / "config.json", {"plan": {"config": {"label": "broken"}}})
        sound.set_status("complete")
        assert find.folders(["broken"], place) == [sound.path]
    else:
        with pytest.raises(UsageError, match=f"broken: no run.*{failed.name} is failed: vLLM did not start"):
            find.folders(["broken"], place)
    assert runs(place, "--delete", "broken")[0] == 0 and not failed.path.exists()


def runs(place: Path, *words: str) -> tuple[int, str, str]:
    done = called(main, "llama31-mlperf", "runs", "--results-dir", str(place), *words)
    return done.returncode, done.stdout, done.stderr


def test_the_best_comes_first(place: Path) -> None:
    code, shown, _ = runs(place)
    head, _, *rows = shown.splitlines()
    assert code == 0 and "output tokens/s" in head
    assert [row.split("|")[2].strip() for row in rows] == ["fast", "middling", "slow"]
    _, _, *rows = runs(place, "--by", "latency_p99_ms")[1].splitlines()
    assert [row.split("|")[2].strip() for row in rows] == ["slow", "middling", "fast"]
    code, _, said = runs(place, "--by", "tokens_per_secs")
    assert code == 2 and tells(said, "--by tokens_per_secs", "did you mean", "tokens_per_sec")


def test_a_metric_has_the_name_that_a_gate_takes(place: Path) -> None:
    assert runs(place, "--by", "output_tokens_per_s") == runs(place, "--by", "tokens_per_sec")


def test_a_folder_without_finished_runs_is_told(tmp_path: Path) -> None:
    code, shown, told = runs(tmp_path)
    assert code == 0 and not shown and "no finished runs" in told


def test_a_deleted_run_leaves_nothing_behind(place: Path) -> None:
    newest = (place / "latest").resolve().name
    write_index(place)
    with (place / "history.jsonl").open("a") as file:
        file.write('{"run": "cut sho\n')
    code, shown, _ = runs(place, "--delete", newest)
    assert code == 0 and f"deleted {newest}" in shown and not (place / newest).exists()
    assert newest not in (place / "history.jsonl").read_text() + (place / "index.md").read_text()
    assert (place / "history.jsonl").read_text().endswith('{"run": "cut sho\n')  # other lines are left alone
    assert (place / "latest").resolve().name.endswith("fast")
    others = [path.name for path in place.glob("2*")]
    code, _, _ = runs(place, "--delete", others[0], others[1])
    assert code == 0 and not (place / "latest").is_symlink()


def test_what_is_no_finished_run_of_the_folder_is_not_deleted(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = run_folder.open_run(tmp_path_factory.mktemp("other"), "x")
    elsewhere.set_status("complete")
    running = run_folder.open_run(place, "running")
    first = next(path.name for path in place.glob("2*-slow"))
    for name, why in ((str(elsewhere.path), "not a run in"), (running.name, "still runs"), ("latest", "not a run in")):
        code, _, said = runs(place, "--delete", first, "--delete", name)
        assert code == 2 and tells(said, why, "nothing was deleted")
        assert (place / first).exists()


def test_latest_of_a_run_that_was_removed_by_hand_moves_on(place: Path) -> None:
    newest = (place / "latest").resolve()
    for path in sorted(newest.rglob("*"), reverse=True):
        path.unlink()
    newest.rmdir()
    assert not (place / "latest").exists()
    assert [path.resolve().name for path in find.folders(["latest"], place)] == [(place / "latest").resolve().name]
    assert (place / "latest").resolve().name.endswith("fast")
