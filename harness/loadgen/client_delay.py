"""How late this client sends: from the time for which a query was scheduled until it is on its way to the engine.

LoadGen counts latencies from the scheduled time, so the client's own delay is a part of each TTFT. It has three parts:
until LoadGen issued the query, which its trace has; until this program's code had it, by two clocks, whose difference
is taken from the query that came through fastest; until it was handed to the engine in this process, or written to a
connection (`SUT.sent_at`), after it had waited for a place (--max-in-flight) and for a new connection.
"""

from collections.abc import Sequence
from pathlib import Path

from harness.common.files import read, write_json
from harness.loadgen import request_times
from harness.loadgen.log import Latency
from harness.loadgen.request_times import spread
from harness.loadgen.trace import TRACE

FILE = "client_times.json"


def write(folder: Path, issued: Sequence[float], sent: Sequence[float], due: Sequence[float] = ()) -> None:
    """Keeps when each query came and was sent, in the order of issue, in seconds since the first came; and when it was
    due, where the schedule was our own."""
    begin = min(issued, default=0.0)
    columns = {"issued_s": issued, "sent_s": sent} | ({"due_s": due} if due else {})
    write_json(folder / FILE, {name: [round(time - begin, 6) for time in times] for name, times in columns.items()})


def client_delays(folder: Path) -> Latency | None:
    """The delays of a test in milliseconds; None where they were not recorded. Raises LogError, UsageError."""
    if not (folder / FILE).exists() or not (folder / TRACE).exists():
        return None
    times, samples = read(folder / FILE, dict[str, list[float]]), request_times.samples(folder)
    issued, sent = times.get("issued_s", []), times.get("sent_s", [])
    if times.get("due_s"):  # arrivals of one's own, by one clock
        return spread([1e3 * (at - due) for at, due in zip(sent, times["due_s"], strict=True)])
    if not samples or not len(samples) == len(issued) == len(sent):
        return None
    apart = min(1e3 * at - sample.scheduled_ms - sample.delay_ms for sample, at in zip(samples, issued, strict=True))
    return spread([1e3 * at - apart - sample.scheduled_ms for sample, at in zip(samples, sent, strict=True)])
