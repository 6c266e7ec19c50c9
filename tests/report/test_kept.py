"""Runs of every kind that an older version made: today's gives every number of theirs."""

import json
import lzma
import tarfile
from collections.abc import Iterator
from io import BytesIO
from math import isclose
from pathlib import Path
from typing import Any

import pytest

from harness.config.patterns import Batched
from harness.core import files
from harness.core.errors import UsageError
from harness.loadgen.log import LATENCY_KINDS
from harness.report import consistency
from harness.report import report as rendering
from harness.results.benchmark_run import facts_of
from harness.results.claims import leaves
from harness.results.outcome import Outcome, Times, from_flat
from harness.results.summary import CURVE_UNITS, Summary
from harness.sweep import report as sweeps
from harness.sweep.experiment import from_summary

KEPT = Path(__file__).parents[1] / "kept"
RUNS = sorted(path.name.removesuffix(".tar.xz") for path in KEPT.glob("*.tar.xz"))
WITHOUT_SUMMARY = {"mmlu"}
NEW: frozenset[str] = frozenset()  # metrics that came after these runs, by name


def unpacked(name: str, place: Path) -> Path:
    data = lzma.decompress((KEPT / f"{name}.tar.xz").read_bytes())
    with tarfile.open(fileobj=BytesIO(data)) as archive:
        archive.extractall(place, filter="data")
    return place


def numbers(summary: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Every number of a summary.json by its path, tests at several loads by the names that they have today."""
    run = dict(summary["run"])
    for name in ("search", "attempts"):
        if run.get(name) and "qps" in run[name][0]:
            run[name] = [
                {key: value for key, value in from_flat(probe).items() if key in Outcome.model_fields}
                for probe in run[name]
            ]
    for path, value in leaves(run | {"meta": summary["meta"]}):
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield path, value


# Percentiles' intervals are estimated in another way since format 6; how often they hold is tested by simulation.
OTHER_ESTIMATES = (".queue.", ".intervals.")
# MultiStream's speeds are over the time of issue since format 6, as its tokens/s were before: they differ by the last
# query's time.
MULTISTREAM_TOLERANCE = 0.01


def tolerance(summary: Summary) -> float:
    """Return the share by which a number may differ from the one that an earlier version wrote."""
    return MULTISTREAM_TOLERANCE if isinstance(summary.scenario.pattern, Batched) else 1e-9


def chosen(old: Summary, made: Summary) -> Outcome | None:
    """The test at several loads whose numbers are the run's today, where they were those of another."""
    before, after = old.result, made.result
    return after if before and after and after.unit in CURVE_UNITS and after.load != before.load else None


@pytest.mark.parametrize("name", [name for name in RUNS if name not in WITHOUT_SUMMARY])
def test_every_number_of_a_kept_run_is_the_same(name: str, tmp_path: Path) -> None:
    for path in sorted(unpacked(name, tmp_path).rglob("summary.json")):
        before = dict(numbers(files.read_json(path)))
        old = files.read(path, Summary)
        made = rendering.build_report(path.parent)
        after = dict(numbers(files.read_json(path)))
        before = {key: value for key, value in before.items() if not any(part in key for part in OTHER_ESTIMATES)}
        lost = {
            key: value
            for key, value in before.items()
            if not isclose(after.get(key, float("nan")), value, rel_tol=tolerance(made))
        }
        if (best := chosen(old, made)) is not None:  # the numbers are those of another test: the best, not the last
            lost = {key: value for key, value in lost.items() if not key.startswith("performance.")}
            assert made.result is not None
            assert made.result.details.counted.tokens_per_sec == pytest.approx(best.tokens_per_sec, rel=1e-6)
        assert {key: (value, after.get(key)) for key, value in lost.items()} == {}, path.parent.name
        assert len(before) > 100 and {key for key in before if key.startswith("performance.")}
        if best is None:
            theirs, ours = from_summary(old).values, from_summary(made).values
            for key in theirs.keys() - NEW:
                expected, share = theirs[key], max(tolerance(made), 1e-6)
                assert ours[key] == (None if expected is None else pytest.approx(expected, rel=share)), key


def test_every_number_of_a_kept_sweep_is_the_same(tmp_path: Path) -> None:
    (path,) = unpacked("sweep", tmp_path).rglob("sweep.json")
    state = sweeps.read_state(path.parent)
    complete = [record for record in state.records if record.status == "complete"]
    assert len(complete) == 3
    for record in complete:
        assert record.run is not None
        made = from_summary(rendering.build_report(path.parent / record.run))
        values = {name: made.values[name] for name in record.outcome.values}
        assert values == pytest.approx(record.outcome.values), record.experiment


def test_kept_levels_are_read_by_today_s_names(tmp_path: Path) -> None:
    (path,) = unpacked("concurrency-echo", tmp_path).rglob("config.json")
    for flat in json.loads(path.read_text())["probes"]:
        read = facts_of(path.parent).probes
        outcome = next(each for each in read if each.load == flat["concurrency"])
        for kind in LATENCY_KINDS:
            for point in Times.model_fields:
                if (value := flat.get(f"{kind}_{point}")) is not None:
                    assert outcome.at(kind, point) == value
        assert outcome.why == flat["why"] and outcome.has_own_limits


def test_a_run_of_an_older_format_is_made_again_and_not_checked(tmp_path: Path) -> None:
    (path,) = unpacked("server", tmp_path).rglob("config.json")
    with pytest.raises(UsageError, match=r"of format 5, .* this version checks format 6 and later"):
        consistency.check_run(path.parent)
    rendering.build_report(path.parent)
    path.write_text(path.read_text().replace('"schema_version": 5', '"schema_version": 4'))
    with pytest.raises(UsageError, match=r"of format 4, .* this version renders format 5 and later"):
        rendering.build_report(path.parent)
