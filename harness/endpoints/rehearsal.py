"""A curve of this runner beside the rules of MLPerf Endpoints: what a submission of it would break, in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.common.errors import UsageError
from harness.endpoints import official
from harness.endpoints.official import BANDS, Point
from harness.loadgen import log as loadgen_log
from harness.results.summary import Summary
from harness.runs.probe import Probe


def tested(summary: Summary) -> list[Probe]:
    """The levels of a run's curve. Raises UsageError where it has none."""
    found = [probe for probe in summary.run.search or () if probe.concurrency is not None]
    if not found:
        raise UsageError(f"{summary.meta.run}: no curve over concurrency; take a run with --concurrency 1,4,16.")
    return sorted(found, key=lambda probe: probe.concurrency or 0)


@dataclass(frozen=True)
class Length:
    """How long a level was tested, and with how many requests, by LoadGen's log."""

    seconds: float
    requests: int


def lengths(run: Path, levels: Sequence[Probe]) -> list[Length]:
    """Of each level, from the logs in the run's folder. Raises LogError where they are gone."""
    logs = [loadgen_log.read(run / probe.folder) for probe in levels]
    return [Length(log.duration_s or 0.0, log.samples or 0) for log in logs]


def breaches(summary: Summary, levels: Sequence[Probe], tests: Sequence[Length]) -> Iterator[str]:
    """What the rules would reject or warn of; the official client alone can submit, so this is a rehearsal."""
    tried = [probe.concurrency or 0 for probe in levels]
    if len(levels) < official.FEWEST:
        yield f"{len(levels)} levels; the rules ask for {official.FEWEST} with the highest elected as Offline"
    try:
        points = [Point(level, *official.placed(level, regions(tried))) for level in tried]
    except UsageError as error:
        yield str(error)
        return
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
        raise UsageError(f"{error}") from None
