"""LoadGen's logs -> typed facts. As a command: `python util_logs.py LOG_DIR` prints them as JSON.

The `:::MLLOG` lines of mlperf_log_detail.txt are the source: they are the same in LoadGen 5.x and 6.x, while the
text of mlperf_log_summary.txt is not.
"""

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DETAIL = "mlperf_log_detail.txt"
TRACE = "mlperf_log_trace.json"
MARK = ":::MLLOG "
LATE = "a latency limit was not kept"
UNSURE = "too few queries within the limits to be sure of the percentile (early stopping)"
SEEDS = ("qsl", "sample_index", "schedule")
SAMPLE_RATE = {
    "Offline": "result_samples_per_second",
    "Server": "result_completed_samples_per_sec",
    "SingleStream": "result_qps_with_loadgen_overhead",
}
PERCENTILES = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")


class LogError(Exception):
    """A log that cannot be trusted; the message names the file and what is wrong."""


@dataclass(frozen=True)
class Latency:
    """Nanoseconds as LoadGen logged them, here in milliseconds."""

    min: float
    mean: float
    max: float
    p50: float
    p90: float
    p95: float
    p97: float
    p99: float
    p99_9: float


@dataclass(frozen=True)
class Facts:
    """What one LoadGen test says of itself. Fields that its scenario or mode does not have are None."""

    loadgen_version: str
    scenario: str
    mode: str
    started: str | None
    valid: bool | None
    invalid_reasons: list[str]
    ran_short: bool  # LoadGen ran out of queries before its minimum duration
    samples: int | None
    queries: int | None
    duration_s: float | None
    tokens_per_s: float | None
    samples_per_s: float | None
    target_qps: float | None
    scheduled_qps: float | None
    latency_ms: Latency | None
    ttft_ms: Latency | None
    tpot_ms: Latency | None
    early_stopping: dict[str, Any]
    seeds: dict[str, int]
    effective: dict[str, Any]
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The log's entries one by one, so that its size does not matter. Raises LogError."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.startswith(MARK):
                    continue
                try:
                    entry = json.loads(line[len(MARK) :])
                except json.JSONDecodeError:
                    entry = None
                if not (isinstance(entry, dict) and isinstance(entry.get("key"), str) and "value" in entry):
                    raise LogError(f"{path}:{number}: a damaged entry; was the run cut short?")
                yield entry
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise LogError(f"{path}: not a text file.") from None


def read(folder: Path, scenario: str = "", mode: str = "") -> Facts:
    """The facts of the test whose logs are in `folder`. Raises LogError rather than guess.

    Also where the log is of another of LoadGen's scenarios or modes than the one given.
    """
    path = folder / DETAIL
    values: dict[str, Any] = {}
    errors: list[str] = []
    warnings: list[str] = []
    for entry in records(path):
        if entry["key"] == "loadgen_version" and entry["key"] in values:
            raise LogError(f"{path}: the logs of two tests in one.")
        values[entry["key"]] = entry["value"]
        about = entry.get("metadata")
        about = about if isinstance(about, dict) else {}
        if about.get("is_error"):
            errors.append(str(entry["value"]))
        elif about.get("is_warning"):
            warnings.append(str(entry["value"]))
    if any(name not in values for name in ("loadgen_version", "effective_scenario", "effective_test_mode")):
        raise LogError(f"{path}: no LoadGen test in it (empty, cut short, or of another program).")
    last = ["result_validity", "num_errors"] if values["effective_test_mode"] == "PerformanceOnly" else ["power_end"]
    if not all(name in values for name in last):
        raise LogError(f"{path}: the test did not come to its end; there is no result in it.")
    for wanted, found in ((scenario, values["effective_scenario"]), (mode, values["effective_test_mode"])):
        if wanted and found != wanted:
            raise LogError(f"{path}: not this test's log: it says {found}, not {wanted}.")
    try:
        return interpret(values, errors, warnings)
    except (KeyError, TypeError, ValueError) as error:
        raise LogError(f"{path}: a damaged value: {type(error).__name__}: {error}.") from None


def interpret(values: dict[str, Any], errors: list[str], warnings: list[str]) -> Facts:
    """The entries of one finished test as facts."""
    scenario, valid = values["effective_scenario"], values.get("result_validity")
    offline = scenario == "Offline"
    queries = values.get("result_query_count")
    samples = values.get("generated_samples_per_query") if offline and queries else queries
    samples_per_s = values.get(SAMPLE_RATE.get(scenario, ""))
    return Facts(
        loadgen_version=values["loadgen_version"],
        scenario=scenario,
        mode=values["effective_test_mode"],
        started=values.get("test_datetime"),
        valid=None if valid is None else valid == "VALID",
        invalid_reasons=reasons(values) if valid == "INVALID" else [],
        ran_short=values.get("result_min_duration_met") is False,
        samples=samples,
        queries=queries,
        duration_s=duration(values, offline, samples, samples_per_s),
        tokens_per_s=values.get("result_tokens_per_second" if offline else "result_completed_tokens_per_second"),
        samples_per_s=samples_per_s,
        target_qps=values.get("effective_target_qps"),
        scheduled_qps=values.get("result_scheduled_samples_per_sec"),
        latency_ms=latency(values, "result_{}_latency_ns", "result_{}_percentile_latency_ns"),
        ttft_ms=latency(values, "result_first_token_{}_latency_ns", "result_first_token_{}_percentile_latency_ns"),
        tpot_ms=latency(values, "result_time_to_output_token_{}", "result_time_per_output_token_{}_percentile_ns"),
        early_stopping={key: value for key, value in values.items() if key.startswith("early_stopping")},
        seeds={name: values[key] for name in SEEDS if (key := f"effective_{name}_rng_seed") in values},
        effective={key.removeprefix("effective_"): v for key, v in values.items() if key.startswith("effective_")},
        errors=errors,
        warnings=warnings,
    )


def duration(values: dict[str, Any], offline: bool, samples: int | None, rate: float | None) -> float | None:
    """Seconds of the measured part, from the numbers LoadGen divided by it.

    Offline: until the last sample was complete. Otherwise LoadGen's rate is (samples - 1) / duration, where the
    duration ends when the last issued query completes (Server) or is issued (SingleStream).
    """
    if offline:
        last = values.get("result_max_latency_ns")
        return None if last is None else last / 1e9
    return (samples - 1) / rate if samples and rate else None


def latency(values: dict[str, Any], edge: str, percentile: str) -> Latency | None:
    """One family of latencies, or None where the log has none."""
    names = [edge.format(name) for name in ("min", "mean", "max")]
    names += [percentile.format(share) for share in PERCENTILES]
    if not all(name in values for name in names):
        return None
    return Latency(*(values[name] / 1e6 for name in names))


def reasons(values: dict[str, Any]) -> list[str]:
    """Why LoadGen said INVALID. Its own reason is empty when only early stopping failed, so each check is named."""
    why = []
    if values.get("result_perf_constraints_met") is False:
        why.append(LATE)
    if values.get("result_min_duration_met") is False:
        why.append(f"shorter than the minimum duration of {values['effective_min_duration_ms'] / 1000:g} s")
    if values.get("result_min_queries_met") is False:
        why.append("too few queries were issued")
    if values.get("early_stopping_met") is False:
        why.append(UNSURE)
    texts = [values.get("result_invalid_reason", "")]
    texts += [values.get(f"early_stopping_{kind}result", "") for kind in ("", "ttft_", "tpot_")]
    said = [" ".join(str(text).split()) for text in texts]
    return why + [text for text in said if text and "Run successful" not in text and "Early stopping 9" not in text]


@dataclass(frozen=True)
class Sample:
    """One query as LoadGen's trace has it; times in milliseconds since the first entry of the trace."""

    order: int  # of issue
    index: int  # in the sample library
    scheduled_ms: float
    ttft_ms: float | None
    latency_ms: float


def read_trace(folder: Path) -> list[Sample]:
    """Every sample of a test, in the order of issue, from LoadGen's own trace. Raises LogError.

    The trace is JSON with one event a line. A sample's first token is a Token_Latency event with the same scheduled
    time (Server), or a Token event with the same number (SingleStream), before the Sample event that closes it.
    """
    path = folder / TRACE
    by_time: dict[tuple[float, int], int] = {}
    by_number: dict[int, int] = {}
    samples = []
    ended = False
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                ended = ended or '"LastTrace"' in line
                if '"Token_Latency"' in line:
                    event = read_event(line)
                    delay = event["args"]["issue_delay"]
                    by_time[event["ts"], delay] = delay + event["args"]["issue_to_done"]
                elif '"ph":"b"' in line and ('"Sample"' in line or '"Token"' in line):
                    event = read_event(line)
                    about = event["args"]
                    number, done = about["sample_seq"], about["complete_ns"]
                    if event["name"] == "Token":
                        by_number[number] = done
                        continue
                    first = by_time.pop((event["ts"], about["issue_start_ns"]), by_number.pop(number, None))
                    ttft = None if first is None else first / 1e6
                    samples.append(Sample(number, about["sample_idx"], event["ts"] / 1e3, ttft, done / 1e6))
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}.") from None
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError):
        raise LogError(f"{path}: a damaged entry; was the run cut short?") from None
    if not ended:
        raise LogError(f"{path}: not a whole trace; was the run cut short?")
    return sorted(samples, key=lambda sample: sample.order)


def read_event(line: str) -> Any:
    return json.loads(line.rstrip().rstrip(","))


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `... | head`
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python util_logs.py LOG_DIR   (a folder with mlperf_log_detail.txt)")
        return 0 if arguments in (["-h"], ["--help"]) else 2
    try:
        print(json.dumps(asdict(read(Path(arguments[0]))), indent=2))
    except LogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
