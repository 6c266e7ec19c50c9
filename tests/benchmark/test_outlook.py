"""--dry-run says what a run would do, and --json prints its summary alone."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from harness.benchmark import outlook, rate, steps
from harness.common.errors import UsageError
from harness.config.run import RunConfig
from harness.loadgen.target_rate import Need
from tests.conftest import ended


def said(**flags: Any) -> str:
    lines: list[str] = []
    assert steps.dry_run(RunConfig(**{"model": "demo", **flags}), lines.append) == 0
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, ["accuracy test: 256 samples", "calibration of at most 1.0 min", "at least 10 s", "no: the demo model"]),
        ({"scenario": "server", "server_target_qps": "4,8"}, ["2 rates, about", "performance test: at least 20 s"]),
        ({"scenario": "server", "server_target_qps": 8}, ["512 queries in about 1.1 min"]),
        ({"scenario": "server", "server_target_qps": "max"}, ["search for the highest rate"]),
        ({"concurrency": "1,4,16"}, ["2 lower levels, at least 40 s"]),
        ({"scenario": "multistream", "samples_per_query": "1,2", "mode": "performance"}, ["2 batches"]),
        ({"mode": "accuracy"}, ["accuracy test"]),
    ],
    ids=str,
)
def test_it_says_what_would_be_run(flags: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    page = said(**flags, results_dir=tmp_path / "none")
    assert all(word in page for word in words), page
    assert not (tmp_path / "none").exists()


def test_every_way_to_a_rate_is_said() -> None:
    assert set(outlook.PREPARATIONS) == set(get_args(Need)) == {"nothing", *rate.FINDERS}


def test_it_ends_where_the_run_would() -> None:
    with pytest.raises(UsageError, match="this data set has 256 samples"):
        said(total_sample_count=257)


@pytest.mark.slow
def test_the_summary_alone_is_printed(tmp_path: Path) -> None:
    flags = ("--model", "demo", "--backend", "echo", "--mode", "performance", "--min-duration", "1", "--json")
    done = ended("run.py", *flags, "--results-dir", str(tmp_path))
    assert json.loads(done.stdout)["run"]["performance"]["valid"]
    assert "performance: VALID" in done.stderr
