"""What a VALID run leaves to try."""

from pathlib import Path
from typing import Any

import pytest

from harness.core.statements import Statement
from harness.loadgen.machine_use import Usage
from harness.report import report as rendering
from harness.report.headroom import headroom_lines
from harness.results.outcome import Outcome
from harness.results.summary import Summary
from tests.support import example_runs

HOPPER = example_runs.SYSTEM | {"gpus": ["NVIDIA H200"]}


def changed_test(summary: Summary, **values: Any) -> Outcome:
    """The run's own test with other values, by flat names, and its details."""
    test = summary.run.performance
    assert test is not None
    return example_runs.changed(test, **values).with_details(test.details, test.trend)


def served(folder: Path, ttft_p99: float, tpot_p99: float, search: list[Outcome] | None = None, **test: Any) -> Summary:
    """A Server run at 8.5 queries/s; its limits are 2,000 and 100 ms."""
    summary = example_runs.rendered(folder, scenario="server", server_target_qps=8.5)
    own = changed_test(summary, ttft_p99=ttft_p99, tpot_p99=tpot_p99, queries=500, **test)
    run = summary.run.model_copy(update={"performance": own, "search": search})
    meta = summary.meta.model_copy(update={"command": "python run.py --server-target-qps 8.5"})
    return summary.model_copy(update={"run": run, "meta": meta})


def test_latencies_well_below_their_limits_leave_room_for_a_rate(tmp_path: Path) -> None:
    room, next_step = headroom_lines(served(tmp_path / "run", 820.0, 73.0))
    assert "TTFT p99 at 41 % and TPOT p99 at 73 %" in room.text
    assert next_step.is_command and next_step.text == "python run.py --server-target-qps max"


@pytest.mark.parametrize(("ttft", "tpot"), [(820.0, 81.0), (1700.0, 20.0)])
def test_one_latency_near_its_limit_leaves_none(tmp_path: Path, ttft: float, tpot: float) -> None:
    assert headroom_lines(served(tmp_path / "run", ttft, tpot)) == []


def test_no_rate_is_advised_above_one_that_failed(tmp_path: Path) -> None:
    failed = example_runs.probe(9.0, False, 2500.0, 90.0, why="TTFT")
    assert headroom_lines(served(tmp_path / "failed", 820.0, 73.0, [failed])) == []
    lower = example_runs.probe(5.0, False, 2500.0, 90.0, why="TTFT")
    assert headroom_lines(served(tmp_path / "lower", 820.0, 73.0, [lower]))


def test_an_invalid_test_or_one_on_a_busy_machine_leaves_none(tmp_path: Path) -> None:
    assert headroom_lines(served(tmp_path / "invalid", 820.0, 73.0, valid=False)) == []
    busy = served(tmp_path / "busy", 820.0, 73.0)
    test = changed_test(busy, busy="other programs used 1 of 2 CPU cores")
    assert headroom_lines(busy.model_copy(update={"run": busy.run.model_copy(update={"performance": test})})) == []


@pytest.mark.parametrize(
    ("bound", "gpu_load", "quantization", "is_advised"),
    [
        ("held_by_power", 99.0, "none", True),
        ("busy", 99.0, "none", True),
        ("busy", 60.0, "none", False),  # the CPU was
        ("kv_cache", 99.0, "none", False),
        ("busy", 99.0, "compressed-tensors", False),
        ("", 99.0, "none", False),
    ],
)
def test_fewer_bits_are_advised_where_work_bounds_the_gpu(
    tmp_path: Path, bound: str, gpu_load: float, quantization: str, is_advised: bool
) -> None:
    example_runs.run(tmp_path / "run", system=HOPPER, model="other")
    summary = rendering.build_report(tmp_path / "run")
    test = summary.run.performance
    assert test is not None
    bounds = [Statement("what set the speed", name=bound)] if bound else []
    own = test.with_details(
        test.details.model_copy(
            update={"ran_out": bounds, "usage": {"gpu_load_percent": Usage(mean=gpu_load, max=100.0)}}
        ),
        test.trend,
    )
    run = summary.run.model_copy(update={"performance": own})
    meta = summary.meta.model_copy(update={"quantization": quantization})
    lines = headroom_lines(summary.model_copy(update={"run": run, "meta": meta}))
    assert bool(lines) is is_advised
    assert not lines or "--quantization fp8" in lines[-1].text
