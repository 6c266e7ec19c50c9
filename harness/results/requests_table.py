"""Each request of a performance test as a line of a table: when it came, how long it took, how long it was."""

from pathlib import Path

from harness.common.files import write_text
from harness.loadgen import request_times, token_times
from harness.results.performance import prompt_counts

TABLE = "request_times.csv"
COLUMNS = ("arrival_s", "sample", "prompt_tokens", "output_tokens", "ttft_ms", "tpot_ms", "latency_ms")


def write(folder: Path) -> None:
    """Leaves `request_times.csv` beside the logs of a test: a line a request, in the order of issue; a cell is empty
    where its time or its tokens are not known, or it failed. Arrivals are seconds since the first. Nothing without
    LoadGen's trace.

    Raises LogError, UsageError, OSError.
    """
    if not token_times.traced(folder):
        return
    samples, counts, prompts = request_times.samples(folder), token_times.token_counts(folder), prompt_counts(folder)
    begin = min((sample.scheduled_ms for sample in samples), default=0.0)
    lines = [",".join(COLUMNS)]
    for place, sample in enumerate(samples):
        count = counts[place] if len(counts) == len(samples) else None
        prompt = prompts[place] if len(prompts) == len(samples) else None
        lines.append(
            ",".join(
                map(
                    cell,
                    (
                        (sample.scheduled_ms - begin) / 1e3,
                        sample.index,
                        prompt,
                        count,
                        None if sample.failed else sample.ttft_ms,
                        sample.tpot_ms(count),
                        None if sample.failed else sample.latency_ms,
                    ),
                )
            )
        )
    write_text(folder / TABLE, "\n".join(lines) + "\n")


def cell(value: float | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"
