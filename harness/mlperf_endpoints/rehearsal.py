"""A curve of this runner beside the rules of MLPerf Endpoints: what a submission of it would break, in words."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.common import files, processes
from harness.common.errors import UsageError
from harness.common.markdown import number
from harness.common.paths import ROOT
from harness.config.plan import Plan
from harness.loadgen.test_run import TestRun
from harness.mlperf_endpoints import official, steady_state
from harness.mlperf_endpoints.official import BANDS, Point
from harness.mlperf_endpoints.steady_state import SteadyState
from harness.results.summary import Summary
from harness.runs.folder import facts_of
from harness.runs.probe import Probe


@dataclass(frozen=True)
class Level:
    """A level of a curve and the point it would be; how long it was tested and with how many requests, by LoadGen's
    log; its steady state by section 4.4."""

    probe: Probe
    point: Point
    seconds: float
    requests: int
    steady: SteadyState


def run_curve(points: Sequence[Point], seconds: float | None, results_dir: Path, further: Sequence[str]) -> str:
    """Runs the benchmark at the points with run.py's `further` flags; the name of the finished run."""
    seconds = seconds or max(point.seconds for point in points)
    levels = ",".join(str(point.concurrency) for point in points)
    command = [sys.executable, "-m", "harness", "run", "--concurrency", levels, "--min-duration", f"{seconds:g}"]
    command += ["--results-dir", str(results_dir), *further]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    processes.install_signal_handlers()
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        code = process.wait()
    finally:
        processes.end_group(process)
    if code:
        raise SystemExit(code)
    return "latest"


def judgement(folder: Path) -> Iterator[str]:
    """What the rules would say of a run's curve, and its figures, in lines. Raises UsageError, LogError."""
    summary = files.read(folder / "summary.json", Summary)
    levels = levels_of(folder, summary, facts_of(folder).plan)
    yield f"{folder}: MLPerf Endpoints accepts only the official client's measurements. For this curve its rules say:"
    yield from (f"  {line}" for line in [*breaches(summary, levels)] or ["nothing"])
    for level in levels:
        probe, steady = level.probe, level.steady
        yield f"  r{probe.concurrency}: {figures(probe.tokens_per_sec, probe.tokens_per_sec_per_user, probe.ttft_p90)}"
        if steady.tokens_per_sec and steady.tpot_p90:
            found = figures(steady.tokens_per_sec, 1000 / steady.tpot_p90, steady.ttft_p90)
            yield f"    steady: {found} ({steady.words})"


def figures(speed: float | None, each: float | None, first: float | None) -> str:
    return f"system_tps {number(speed)}, tps_per_user {number(each)}, TTFT p90 {number(first)} ms"


def levels_of(run: Path, summary: Summary, plan: Plan) -> list[Level]:
    """The levels of a run's curve, from the logs in its folder; a super-pass is a pass of the data set.

    Raises UsageError where it has none, or they make no curve, LogError where the logs are gone.
    """
    probes = {probe.concurrency: probe for probe in summary.run.search or () if probe.concurrency is not None}
    if not probes:
        raise UsageError(f"{summary.meta.run} has no concurrency curve; use a run with --concurrency 1,4,16.")
    found = []
    for point in points_of(sorted(probes)):
        probe = probes[point.concurrency]
        test = TestRun.read(run / probe.folder, replace(plan, concurrency=point.concurrency))
        steady = steady_state.find(test.requests, plan.samples, point.seconds)
        found.append(Level(probe, point, test.result.duration_s or 0.0, test.result.samples or 0, steady))
    return found


def points_of(levels: Sequence[int]) -> list[Point]:
    """The points that the levels would be; the lowest counts up to 32. Raises UsageError where they make no curve."""
    try:
        regions = official.package().models.compute_regions(levels[-1], min(levels[0], 32))
    except ValueError as error:
        raise UsageError(f"these levels do not form a curve: {error}") from None
    return [Point(level, *official.region_of(level, regions)) for level in levels]


def breaches(summary: Summary, levels: Sequence[Level]) -> Iterator[str]:
    """What the rules would reject or warn of; the official client alone can submit, so this is a rehearsal."""
    if len(levels) < official.FEWEST:
        yield f"{len(levels)} levels; the rules ask for {official.FEWEST} with the highest elected as Offline"
    for band in [band for band in BANDS if band not in {level.point.region for level in levels}]:
        yield f"no level in the region {band}"
    for level in levels:
        at, least = f"concurrency {level.point.concurrency}", level.point.seconds
        if level.seconds < least:
            yield f"{at}: {level.seconds:,.0f} s measured; the minimum is {least:,.0f} s"
        if not level.probe.tpot_p90:
            yield f"{at}: no TPOT p90, so no tokens/s per user"
        if level.requests < official.SAMPLES:
            yield f"{at}: {level.requests:,} requests; the minimum is {official.SAMPLES:,}"
        if not level.steady.is_official:
            yield f"{at}: figures of the whole run, not of a steady state ({level.steady.words})"
    gate = summary.run.accuracy
    if gate is None:
        yield "no accuracy test: one is needed in each region and at Offline"
    elif gate.verdict != "PASS":
        yield f"the accuracy gate says {gate.verdict}"
