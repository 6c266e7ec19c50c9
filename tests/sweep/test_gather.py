"""Tasks of a cluster, gathered to one report: each change is against the baseline of its own node."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core import files
from harness.core.system import System
from harness.runs import run_folder
from harness.sweep import report
from harness.sweep.experiment import Job, State
from harness.sweep.file import BASELINE, Sweep
from harness.sweep.lanes import Lane
from harness.sweep.report import STATE_ADAPTER
from tests.conftest import called
from tests.support import example_sweeps

TEXT = (
    example_sweeps.SHORT
    + "isolation:\n- {name: fast, set: {max_num_seqs: 8}}\n- {name: slow, set: {max_num_seqs: 4}}\n"
)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return example_sweeps.loaded(
        tmp_path, "- {name: fast, set: {max_num_seqs: 8}}\n- {name: slow, set: {max_num_seqs: 4}}\n"
    )


def task(place: Path, sweep: Sweep, name: str, node: str, speeds: tuple[float, float], **system: object) -> Path:
    """A task of one experiment that ended, in its folder."""
    folder = run_folder.open_run(place / name / "sweeps", sweep.name).path
    records = [
        replace(example_sweeps.ran(item, speed), node=node)
        for item, speed in zip((BASELINE, name), speeds, strict=True)
    ]
    about = System(**{"cpu": "a CPU", "cores": 2, "packages": {"vllm": "0"}, **system})  # type: ignore[arg-type]
    state = State("python sweep.py", "2026-01-31T10:00:00+0000", about, sweep, tuple(records))
    files.write_json(folder / "sweep.json", STATE_ADAPTER.dump_python(state, by_alias=True))
    return folder


def gathered(place: Path, tmp_path: Path) -> tuple[int, str, str]:
    done = called("sweep", "sweep.py", str(tmp_path / "mine.yaml"), "--gather", str(place))
    path = Path(done.stdout.strip())
    return done.returncode, done.stderr, path.read_text() if done.returncode == 0 else ""


def test_the_experiments_are_listed_one_a_line(sweep: Sweep, tmp_path: Path) -> None:
    assert called("sweep", "sweep.py", str(tmp_path / "mine.yaml"), "--list").stdout == "fast\nslow\n"


def test_each_change_is_against_the_baseline_of_its_own_task(sweep: Sweep, tmp_path: Path) -> None:
    place = tmp_path / "shared"
    task(place, sweep, "fast", "n0", (100.0, 150.0))
    task(place, sweep, "slow", "n1", (200.0, 100.0), driver="550")
    code, said, page = gathered(place, tmp_path)
    assert code == 0, said
    state = report.read_state(next((place / "sweeps").iterdir()))
    ratios = {result.name: result.gain.mean for result in report.experiment_rows(state) if result.gain}
    assert ratios["fast"] == pytest.approx(1.5) and ratios["slow"] == pytest.approx(0.5)
    assert "the nodes differ in driver" in page and "on n0/fast" in page
    assert "submit the array again" not in page


def test_what_has_no_result_is_named(sweep: Sweep, tmp_path: Path) -> None:
    place = tmp_path / "shared"
    task(place, sweep, "fast", "n0", (100.0, 150.0))
    code, said, page = gathered(place, tmp_path)
    assert code == 0 and "no result of slow: submit the array again" in page, said
    assert "the nodes differ" not in page


@pytest.mark.parametrize("kind", ["nothing", "another sweep"])
def test_what_cannot_be_gathered(kind: str, sweep: Sweep, tmp_path: Path) -> None:
    place = tmp_path / "shared"
    if kind == "another sweep":
        task(place, replace(sweep, about="another"), "fast", "n0", (100.0, 150.0))
    code, said, _ = gathered(place, tmp_path)
    assert code == 2 and len(said.splitlines()) == 1 and str(place) in said
    assert not (place / "sweeps").exists()


def test_a_baseline_on_another_node_is_not_the_tasks_own(sweep: Sweep) -> None:
    job = Job(sweep.experiments[0], 0)
    assert job.key(Lane(node="n0")) != job.key(Lane(node="n1"))
    assert job.key(Lane(node="n0")) == replace(example_sweeps.ran(BASELINE, 1.0), node="n0").key
