"""The times of each request: LoadGen's, or our own, which LoadGen does not know.

At fixed concurrency and with arrivals of one's own LoadGen issues one Offline query; it logs when each sample is
answered, but not when it was sent. So the system under test notes when each is sent, when its first token and when its
last one is there. `requests.csv` keeps that: seconds since the first was sent, of the process's own clock; of arrivals
also when each was due, from which its latencies count, as LoadGen's do in Server.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.common.errors import UsageError
from harness.common.files import read, read_columns
from harness.loadgen import failures
from harness.loadgen import log as loadgen_log
from harness.loadgen.log import Latency, LogError, TestResult
from harness.loadgen.trace import TRACE, Sample, read_trace

REQUESTS, ISSUED = "requests.csv", "issued.json"
COLUMNS = ("sample", "prompt_tokens", "output_tokens", "sent_s", "first_token_s", "done_s")
DUE, FIRST = "due_s", "first_tokens"


@dataclass(frozen=True)
class SteadyPart:
    """The part of a test in which the engine had all its work: after as many answers as it takes at once, and before as
    few are left. `trend`: the rate of its second half over that of the first."""

    begin_s: float
    end_s: float
    tokens_per_sec: float
    trend: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


Row = tuple[int, int, int, float, float, float]


def write(folder: Path, rows: Sequence[Row], due: Sequence[float] = (), first: Mapping[int, int] | None = None) -> None:
    """Keeps `COLUMNS` of each request, in the order of issue; how many tokens came `first`, where more than one might;
    and when each was `due`, if there was such a time; times by any one clock, in seconds."""
    begin = min(due or [request[3] for request in rows], default=0.0)
    with (folder / REQUESTS).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*COLUMNS, FIRST, *([DUE] if due else [])])
        for place, request in enumerate(rows):
            times = [f"{time - begin:.6f}" for time in (*request[3:], *due[place : place + 1])]
            table.writerow([*request[:3], *times[:3], (first or {}).get(place, 1), *times[3:]])


def samples(folder: Path) -> list[Sample]:
    """Every request of a test in the order of issue, its latencies since it was sent.

    `issued.json` has the samples that LoadGen asked for in this order, as tokens.json has the answers' lengths: what is
    joined by place is of the same test. Raises LogError, UsageError.
    """
    if (folder / REQUESTS).exists():
        return own(folder)
    found = read_trace(folder)
    if (folder / ISSUED).exists() and read(folder / ISSUED, list[int]) != [sample.index for sample in found]:
        raise LogError(f"{folder}: {TRACE} and {ISSUED} are of different tests: their samples differ.")
    return marked(found, folder)


def marked(found: list[Sample], folder: Path) -> list[Sample]:
    """The same, with those that failed told as such."""
    failed = failures.failures_of(folder)
    return [replace(sample, failed=place in failed) for place, sample in enumerate(found)] if failed else found


def own(folder: Path) -> list[Sample]:
    """Those of `requests.csv`. Raises UsageError for a damaged file."""
    columns = read_columns(folder / REQUESTS, COLUMNS)
    begin: Sequence[float | None] = dues(folder) or columns["sent_s"]
    rows = zip(columns["sample"], begin, columns["first_token_s"], columns["done_s"], strict=True)
    together = optional_column(folder, FIRST) or [1.0] * len(begin)
    found = [
        Sample(order, int(index), 1e3 * sent, 1e3 * (first - sent), 1e3 * (done - sent), first_tokens=int(count))
        for order, (count, (index, sent, first, done)) in enumerate(
            zip(together, (tuple(float(cell or 0.0) for cell in cells) for cells in rows), strict=True)
        )
    ]
    return marked(found, folder)


def dues(folder: Path) -> list[float]:
    """When each request of `requests.csv` was due, in the order of issue; none where there was no such time."""
    return optional_column(folder, DUE)


def optional_column(folder: Path, name: str) -> list[float]:
    """The numbers in a column of `requests.csv`; none where it has no such column. Raises UsageError for a gap."""
    values = read_columns(folder / REQUESTS).get(name, [])
    if None in values:
        raise UsageError(f"{folder / REQUESTS}:{values.index(None) + 2}: {name}: an empty cell.")
    return [value for value in values if value is not None]


def with_own_times(result: TestResult, folder: Path, counts: Sequence[int]) -> TestResult:
    """LoadGen's result with the times of each request: at fixed concurrency, which were measured here, and where some
    failed, which are left out."""
    found, counts = answered(samples(folder), counts)
    ttft = [sample.ttft_ms for sample in found if sample.ttft_ms is not None]
    return replace(
        result,
        latency_ms=spread([sample.latency_ms for sample in found]),
        ttft_ms=spread(ttft),
        tpot_ms=spread(per_token(found, counts)),
        mean_sample_latency_ms=sum(sample.latency_ms for sample in found) / len(found) if found else None,
    )


def answered(found: Sequence[Sample], counts: Sequence[int]) -> tuple[list[Sample], list[int]]:
    """The requests that did not fail, and the tokens of each; no tokens where `counts` are of others."""
    kept = [sample for sample in found if not sample.failed]
    if len(found) != len(counts):
        return kept, []
    return kept, [count for sample, count in zip(found, counts, strict=True) if not sample.failed]


def without_ramps(
    result: TestResult, folder: Path, counts: Sequence[int], at_once: int
) -> tuple[TestResult, float | None]:
    """The result over the steady part alone, and its trend; as it is where there is none."""
    found = own(folder)
    part = steady(found, counts, at_once)
    if part is None:
        return result, None
    times = part_times(found, counts, part)
    return replace(result, tokens_per_sec=part.tokens_per_sec, **times) if times else result, part.trend


def part_times(found: Sequence[Sample], counts: Sequence[int], part: SteadyPart) -> dict[str, Any]:
    """Latency, TTFT and TPOT of the requests that were sent and answered in a part of a test; empty without any."""
    chosen, tokens = within(found, counts, part)
    if not chosen:
        return {}
    return {
        "latency_ms": spread([sample.latency_ms for sample in chosen]),
        "ttft_ms": spread([sample.ttft_ms or 0.0 for sample in chosen]),
        "tpot_ms": spread(per_token(chosen, tokens)),
    }


def per_token(found: Sequence[Sample], counts: Sequence[int]) -> list[float]:
    """Milliseconds per output token after the first, of answers that have any; none where `counts` are of others."""
    if len(found) != len(counts):
        return []
    times = (sample.tpot_ms(count) for sample, count in zip(found, counts, strict=True))
    return [time for time in times if time is not None]


def spread(times: Sequence[float]) -> Latency | None:
    """Times as LoadGen summarizes them: each percentile is one of them, the one at its share of their number."""
    if not times:
        return None
    ranked = sorted(times)
    points = [ranked[min(int(len(ranked) * float(share) / 100), len(ranked) - 1)] for share in loadgen_log.PERCENTILES]
    return Latency(ranked[0], sum(ranked) / len(ranked), ranked[-1], *points)


def steady(found: Sequence[Sample], counts: Sequence[int], at_once: int) -> SteadyPart | None:
    """The steady part of a test that computes `at_once` requests at a time; None where there are too few for one."""
    if len(found) != len(counts) or len(found) < 4 * at_once:
        return None
    done = sorted(
        ((sample.scheduled_ms + sample.latency_ms) / 1e3, count) for sample, count in zip(found, counts, strict=True)
    )
    first, last = at_once - 1, len(done) - at_once - 1
    begin, end = done[first][0], done[last][0]
    middle = (begin + end) / 2
    if not begin < middle < end:
        return None
    halves = [
        sum(count for time, count in done[first + 1 : last + 1] if (time > middle) == late) / (middle - begin)
        for late in (False, True)
    ]
    if not halves[0]:
        return None
    return SteadyPart(begin, end, sum(halves) / 2, halves[1] / halves[0])


def within(found: Sequence[Sample], counts: Sequence[int], part: SteadyPart) -> tuple[list[Sample], list[int]]:
    """The requests that were sent and answered in the steady part, and the tokens of each."""
    chosen = [
        (sample, count)
        for sample, count in zip(found, counts, strict=True)
        if not sample.failed
        and sample.scheduled_ms / 1e3 >= part.begin_s
        and (sample.scheduled_ms + sample.latency_ms) / 1e3 <= part.end_s
    ]
    return [sample for sample, _ in chosen], [count for _, count in chosen]
