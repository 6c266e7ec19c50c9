"""A curve of this runner beside the rules of MLPerf Endpoints: what a submission of it would break, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.common.errors import UsageError
from harness.loadgen import log as loadgen_log
from harness.loadgen.requests import read_requests
from harness.mlperf_endpoints import official, steady_state
from harness.mlperf_endpoints.official import BANDS, Point
from harness.mlperf_endpoints.steady_state import SteadyState
from harness.results.summary import Summary
from harness.runs.probe import Probe


def levels_of(summary: Summary) -> list[Probe]:
    """The levels of a run's curve. Raises UsageError where it has none."""
    found = [probe for probe in summary.run.search or () if probe.concurrency is not None]
    if not found:
        raise UsageError(f"{summary.meta.run}: no curve over concurrency; take a run with --concurrency 1,4,16.")
    return sorted(found, key=lambda probe: probe.concurrency or 0)


@dataclass(frozen=True)
class Level:
    """How long a level was tested, and with how many requests, by LoadGen's log; its steady state by section 4.4."""

    seconds: float
    requests: int
    steady: SteadyState


def points_of(levels: Sequence[Probe]) -> list[Point]:
    """The points that the levels would be. Raises UsageError where they make no curve."""
    tried = [probe.concurrency or 0 for probe in levels]
    return [Point(level, *official.region_of(level, regions(tried))) for level in tried]


def read_levels(run: Path, levels: Sequence[Probe], points: Sequence[Point], data_set: int) -> list[Level]:
    """Each level, from the logs in the run's folder; a super-pass is a pass of the data set. Raises LogError where they
    are gone."""
    return [in_folder(run / probe.folder, data_set, point.seconds) for probe, point in zip(levels, points, strict=True)]


def in_folder(folder: Path, data_set: int, least_s: float) -> Level:
    """A level, from its own logs; its steady state has to last for so long."""
    log, requests = loadgen_log.read(folder), read_requests(folder)
    steady = steady_state.find(requests, data_set, least_s)
    return Level(log.duration_s or 0.0, log.samples or 0, steady)


def breaches(
    summary: Summary, levels: Sequence[Probe], points: Sequence[Point], tests: Sequence[Level]
) -> Iterator[str]:
    """What the rules would reject or warn of; the official client alone can submit, so this is a rehearsal."""
    if len(levels) < official.FEWEST:
        yield f"{len(levels)} levels; the rules ask for {official.FEWEST} with the highest elected as Offline"
    for band in [band for band in BANDS if band not in {point.region for point in points}]:
        yield f"no level in the region {band}"
    for point, probe, test in zip(points, levels, tests, strict=True):
        at = f"concurrency {point.concurrency}"
        if test.seconds < point.seconds:
            yield f"{at}: {test.seconds:,.0f} s measured; {point.seconds:,.0f} s are the least"
        if not probe.tpot_p90:
            yield f"{at}: no TPOT p90, so no tokens/s per user"
        if test.requests < official.SAMPLES:
            yield f"{at}: {test.requests:,} requests; {official.SAMPLES:,} are the least"
        if not test.steady.official:
            yield f"{at}: figures of the whole run, not of a steady state ({test.steady.words})"
    gate = summary.run.accuracy
    if gate is None:
        yield "no accuracy test: one is needed in each region and at Offline"
    elif gate.verdict != "PASS":
        yield f"the accuracy gate says {gate.verdict}"


def regions(levels: Sequence[int]) -> object:
    """The regions of a curve, whose lowest level counts up to 32. Raises UsageError."""
    try:
        return official.package().models.compute_regions(levels[-1], min(levels[0], 32))
    except ValueError as error:
        raise UsageError(f"the levels make no curve: {error}") from None
