"""LoadGen's trace: the times of each sample of a test."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.common.errors import why
from harness.common.reading import open_regular
from harness.loadgen.log import DECODER, LARGEST_LOG, LogError

TRACE = "mlperf_log_trace.json"


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
        with open_regular(path, LARGEST_LOG, encoding="utf-8") as lines:
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
