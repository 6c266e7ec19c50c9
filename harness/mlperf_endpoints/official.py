"""What the official package says: regions of concurrency, least durations, published seeds, and its verdict."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.common.errors import UsageError

PACKAGE = "endpoints-submission-cli==1.5.3.0"
MODEL, DATASET, SAMPLES = "llama3_1-8b", "cnn_dailymail", 13368
FEWEST = 7  # points, where the highest is elected as the Offline result
BANDS = ("low_latency", "low_concurrency", "med_concurrency", "high_concurrency")


@dataclass(frozen=True)
class Point:
    """A concurrency that is measured; its region; the seconds that its steady part has to last."""

    concurrency: int
    region: str
    seconds: float
    accuracy: bool = False  # all samples are scored at it, too


def package() -> Any:
    """The official package. Raises UsageError where it is not installed."""
    try:
        import submission_checker.checker
        import submission_checker.models
        import submission_checker.models.regions
        import submission_checker.seed_sets
    except ImportError:
        raise UsageError(f"MLPerf Endpoints' own package is not installed: pip install {PACKAGE!r}.") from None
    return submission_checker


def points(lowest: int, highest: int, count: int = FEWEST + 1) -> list[Point]:
    """`count` levels from the lowest to the highest, at about equal ratios, and at least one in each region.

    The highest is the Offline result by election, so FEWEST suffice. Raises UsageError for what the rules do not take.
    """
    checker = package()
    try:
        regions = checker.models.compute_regions(highest, lowest)
    except ValueError as error:
        raise UsageError(f"--c-min {lowest}, --c-max {highest}: {error}.") from None
    ends = [getattr(regions, band).end for band in BANDS]
    levels = sorted({level for level in ends if lowest <= level <= highest})
    while len(levels) < count:
        gaps = [(after / before, before, after) for before, after in itertools.pairwise(levels) if after - before > 1]
        if not gaps:
            raise UsageError(f"--c-min {lowest}, --c-max {highest}: there are only {len(levels)} levels between them.")
        _, before, after = max(gaps)
        levels = sorted({*levels, min(max(before + 1, round((before * after) ** 0.5)), after - 1)})
    scored = set(ends)  # one of each region; the highest is Offline's, too
    return [Point(level, *region_of(level, regions), level in scored) for level in levels]


def region_of(level: int, regions: Any) -> tuple[str, float]:
    """The region of a level, and the seconds of its test, by the official library."""
    library = package().models.regions
    region = library.classify_concurrency(level, regions) or ""
    return region, library.min_duration_ms(region, level, agentic=False) / 1000


def seeds(name: str | None = None) -> Any:
    """The published set of that name, or the last, as the package has it. Raises UsageError where there is none."""
    published = package().seed_sets.load_seed_sets()
    if name is not None and name not in published:
        raise UsageError(f"--seed-set {name}: not a published seed set; choose {', '.join(published)}.")
    return published[name] if name is not None else list(published.values())[-1]


def check(tree: Path) -> list[Any]:
    """What the official checker says of a submission, for each rule and file: its own results."""
    results: list[Any] = package().checker.SubmissionChecker(tree).run().results
    return results
