"""LoadGen's trace: the times of each sample of a test, taken into its requests once and then kept compressed."""

import gzip
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.common.errors import why
from harness.common.reading import opened
from harness.loadgen.log import DECODER, LARGEST_LOG, LogError
from harness.loadgen.requests import Request

TRACE = "mlperf_log_trace.json"
LEVEL = 1  # of compression: a tenth of the size at a hundred MB/s


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample as LoadGen's trace has it; times in milliseconds since the first entry of the trace."""

    order: int  # of issue
    index: int  # in the sample library
    scheduled_ms: float
    ttft_ms: float | None
    latency_ms: float
    delay_ms: float = 0.0  # from its scheduled time until LoadGen issued it


def read_trace(folder: Path) -> list[Sample]:
    """Every sample of a test, in the order of issue, from LoadGen's own trace. Raises LogError.

    The trace is JSON with one event a line. A sample's first token is a Token_Latency event with the same scheduled
    time (Server), or a Token event with the same number (SingleStream), before the Sample event that closes it.
    """
    path = folder / TRACE
    by_time: dict[tuple[float, int], float] = {}
    by_number: dict[int, float] = {}
    samples = []
    ended = False
    try:
        with opened(path, LARGEST_LOG, encoding="utf-8") as lines:
            for line in lines:
                ended = ended or '"LastTrace"' in line
                if '"Token_Latency"' in line:
                    event = read_event(line)
                    delay = event["args"]["issue_delay"]
                    by_time[event["ts"], delay] = (delay + event["args"]["issue_to_done"]) / 1e6
                elif '"ph":"b"' in line and ('"Sample"' in line or '"Token"' in line):
                    event = read_event(line)
                    about = event["args"]
                    number, done = int(about["sample_seq"]), about["complete_ns"] / 1e6
                    if event["name"] == "Token":
                        by_number[number] = done
                        continue
                    first = by_time.pop((event["ts"], about["issue_start_ns"]), by_number.pop(number, None))
                    index, delay = int(about["sample_idx"]), about["issue_start_ns"] / 1e6
                    samples.append(Sample(number, index, event["ts"] / 1e3, first, done, delay))
    except OSError as error:
        raise LogError(f"{path}: {why(error)}.") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise LogError(f"{path}: a damaged entry; was the run cut short?") from None
    if not ended:
        raise LogError(f"{path}: not a whole trace; was the run cut short?")
    return sorted(samples, key=lambda sample: sample.order)


def read_event(line: str) -> Any:
    return DECODER.decode(line.rstrip().rstrip(","))


def take_times(requests: Sequence[Request], folder: Path) -> None:
    """Gives each request LoadGen's own times in place of the client's, and compresses the trace they came from.

    When a request was sent, only the client knows, by a clock of its own. The two clocks are as far apart as in the
    request that came through from LoadGen's issue to the client's code fastest. Raises LogError for the trace of
    another test.
    """
    samples = read_trace(folder)
    if [sample.index for sample in samples] != [request.sample for request in requests]:
        raise LogError(f"{folder / TRACE}: the trace of another test: its samples are not those that were issued.")
    pairs = list(zip(requests, samples, strict=True))
    apart = min((1e3 * (r.issued_s or 0.0) - s.scheduled_ms - s.delay_ms for r, s in pairs), default=0.0)
    begin = min((sample.scheduled_ms for sample in samples), default=0.0)
    for request, sample in pairs:
        if request.sent_ms is not None:
            at = 1e3 * (request.issued_s or 0.0) + request.sent_ms - apart
            request.sent_ms = max(0.0, at - sample.scheduled_ms)
        request.issued_s = (sample.scheduled_ms - begin) / 1e3
        request.ttft_ms, request.latency_ms, request.clock = sample.ttft_ms, sample.latency_ms, "loadgen"
    compress(folder / TRACE)


def compress(path: Path) -> None:
    """Replaces a file by `path`.gz. Raises OSError."""
    with path.open("rb") as whole, gzip.open(f"{path}.gz", "wb", compresslevel=LEVEL) as small:
        shutil.copyfileobj(whole, small)
    path.unlink()
