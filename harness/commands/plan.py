"""Machines for a day's traffic, from the measured curve of one: `python -m harness plan RUN --peak 120`."""

import csv
import math
from pathlib import Path
from typing import Annotated

from harness.common import files
from harness.common.coerce import read_given
from harness.common.errors import DONE, UsageError
from harness.common.markdown import Column, Table, number, render
from harness.results import replicas
from harness.results.replicas import CurvePoint, Fleet
from harness.results.summary import Summary
from harness.runs import names
from harness.terminal.command import argument, make_command, option

LARGEST_FILE = 2**26  # bytes of a traffic file: some years by minute
MOST_MINUTES = 60 * 24 * 366
MOST_REQUESTS = 10**9  # of a minute, and a second of --peak


def plan(
    run: Annotated[str, argument("RUN", "A run with a curve: a path, latest, a run's id or label.")],
    peak: Annotated[float | None, option("N", "Requests/s in the busiest minute of every hour.")] = None,
    traffic: Annotated[
        Path | None, option("FILE.csv", "CSV with one line per minute; the last column is the number of requests.")
    ] = None,
    headroom: Annotated[float, option("SHARE", "Share of a replica's rate to keep free.")] = 0.1,
    price_per_hour: Annotated[float | None, option("X", "The price of one replica per hour, in any currency.")] = None,
    results_dir: Annotated[Path, option("PATH", "Folder of the runs.")] = Path("results"),
) -> int:
    """Plan machines for a day's traffic, from the measured curve of one."""
    if (peak is None) == (traffic is None):
        raise UsageError("give either --peak N or --traffic FILE.csv.")
    if not 0 <= headroom < 1:
        raise UsageError("--headroom takes a share from 0 to below 1, as in 0.1.")
    if price_per_hour is not None and not 0 <= price_per_hour < math.inf:
        raise UsageError("--price-per-hour takes a number of 0 or more.")
    if peak is not None and not 0 < peak <= MOST_REQUESTS:
        raise UsageError(f"--peak takes requests/s above 0, at most {MOST_REQUESTS:,}.")
    minutes = by_minute(traffic) if traffic else [peak or 0.0]
    folder = names.find_run([run], results_dir, "a plan is made from one.")
    summary = files.read(folder / "summary.json", Summary)
    curve = replicas.points(summary)
    kept = "within the limits" if summary.scenario.limits else "VALID"
    print(page(curve, replicas.fleet(curve, minutes, headroom, price_per_hour), kept))
    return DONE


command = make_command(plan, prints=True)


def by_minute(path: Path) -> list[float]:
    """The requests/s of each minute. Raises UsageError, naming the line."""
    found = []
    for line, text in enumerate(read_given("--traffic", path, "text", str.splitlines, most=LARGEST_FILE), 1):
        try:
            (cells,) = csv.reader([text], strict=True) if text.strip() else ([],)
        except (csv.Error, ValueError) as error:
            raise UsageError(f"--traffic {path}: line {line}: {error}.") from None
        try:
            requests = float(cells[-1]) if cells else 0.0
        except ValueError:
            if line == 1:  # names of columns
                continue
            requests = -1.0
        if not 0 <= requests <= MOST_REQUESTS:
            raise UsageError(f"--traffic {path}: line {line}: the last column is not a number of requests.")
        if cells:
            found.append(requests / 60)
    if not any(found) or len(found) > MOST_MINUTES:
        has = f"it has {len(found):,} minutes"
        raise UsageError(f"--traffic {path} needs 1 minute to 366 days of data with at least one request; {has}.")
    return found


def page(curve: list[CurvePoint], fleet: Fleet, kept: str) -> str:
    """The plan as Markdown; `kept` is what a load had to be."""
    latencies: dict[str, Column] = {"TTFT p99, ms": "ttft_p99", "TPOT p99, ms": "tpot_p99"}
    loads = Table.of(curve, {"load": "load", "requests/s": "rate", **latencies, kept: judgement})
    hours = {"hour": "hour", "busiest minute, requests/s": "peak", "replicas": "replicas"}
    parts = {"loads": loads, "hours": Table.of(fleet.hours, hours), "fleet": fleet, "kept": kept}
    return render("plan.md.j2", **parts, at_peak=latency(fleet.at_peak), without_one=latency(fleet.without_one))


def judgement(point: CurvePoint) -> str:
    return f"not judged: {point.unjudged}" if point.unjudged else "yes" if point.kept else "no"


def latency(point: CurvePoint | None) -> str:
    if point is None:
        return "over the measured capacity of the rest"
    if point.ttft_p99 is None or point.tpot_p99 is None:
        return f"its p99 is not known ({point.load})"
    return f"TTFT p99 at most {number(point.ttft_p99)} ms, TPOT p99 {number(point.tpot_p99)} ms ({point.load})"
