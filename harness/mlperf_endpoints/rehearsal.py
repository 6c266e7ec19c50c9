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


@dataclass(frozen=True)
class Level:
    """A level of a curve and the point it would be; how long it was tested and with how many requests, by LoadGen's
    log; its steady state by section 4.4."""

    probe: Probe
    point: Point
    seconds: float
    requests: int
    steady: SteadyState


def levels_of(run: Path, summary: Summary, data_set: int) -> list[Level]:
    """The levels of a run's curve, from the logs in its folder; a super-pass is a pass of the data set.

    Raises UsageError where it has none, or they make no curve, LogError where the logs are gone.
    """
    probes = {probe.concurrency: probe for probe in summary.run.search or () if probe.concurrency is not None}
    if not probes:
        raise UsageError(f"{summary.meta.run}: no curve over concurrency; take a run with --concurrency 1,4,16.")
    found = []
    for point in points_of(sorted(probes)):
        probe = probes[point.concurrency]
        log, requests = loadgen_log.read(run / probe.folder), read_requests(run / probe.folder)
        steady = steady_state.find(requests, data_set, point.seconds)
        found.append(Level(probe, point, log.duration_s or 0.0, log.samples or 0, steady))
    return found


def points_of(levels: Sequence[int]) -> list[Point]:
    """The points that the levels would be; the lowest counts up to 32. Raises UsageError where they make no curve."""
    try:
        regions = official.package().models.compute_regions(levels[-1], min(levels[0], 32))
    except ValueError as error:
        raise UsageError(f"the levels make no curve: {error}") from None
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
            yield f"{at}: {level.seconds:,.0f} s measured; {least:,.0f} s are the least"
        if not level.probe.tpot_p90:
            yield f"{at}: no TPOT p90, so no tokens/s per user"
        if level.requests < official.SAMPLES:
            yield f"{at}: {level.requests:,} requests; {official.SAMPLES:,} are the least"
        if not level.steady.is_official:
            yield f"{at}: figures of the whole run, not of a steady state ({level.steady.words})"
    gate = summary.run.accuracy
    if gate is None:
        yield "no accuracy test: one is needed in each region and at Offline"
    elif gate.verdict != "PASS":
        yield f"the accuracy gate says {gate.verdict}"
