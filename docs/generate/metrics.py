"""Writes docs/reference/metrics.md: every metric as `METRICS` declares it, with what its field in the summary says
of it.

python -m docs.generate.metrics
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from docs.generate.wrapping import wrapped
from harness.core.files import write_text
from harness.loadgen.machine_use import MachineUse
from harness.rates.quick import Estimate
from harness.results.figures import Figures
from harness.results.metrics import ESTIMATE, METRICS, TEST_PATH, Metric
from harness.results.outcome import Outcome
from harness.results.summary import Summary
from harness.results.test_details import TestDetails

PAGE = Path(__file__).parents[1] / "reference" / Path(__file__).with_suffix(".md").name
HEAD = """# Metrics

Made by `python -m docs.generate.metrics` from `harness/results/metrics.csv` and the descriptions of the fields in
the summary; not written by hand. *Name* is the metric of [`--fail-if`](../regression.md), and the column of `--csv` and
the key in MLflow where the third column says that these have it. *In summary.json* is the path to the value, absent or
null where a run has none; `estimate` is `estimate.json` of `--quick`. Terms are in the [glossary](glossary.md).

At a fixed concurrency the CSV, MLflow and comparisons have the values of the steady part
(`run.performance.steady`). The p99 of fewer than 100 requests is their slowest, so both leave it out. MLflow also has
the other points of each latency, such as `ttft_p95_ms` and `latency_max_ms`.

**Whose count of tokens is the result.** Where a server gives token ids, those that came are counted. Where it gives
text alone, its own count (`usage`) is, answer by answer; an answer without one is encoded with the model's tokenizer.
LoadGen is given that count, so its tokens/s and TPOT follow from it. `disagreements` of the performance test names a
difference of more than 2 % between the server's count and this program's, whichever is the result.

**TPOT.** LoadGen divides the time after the first token by the tokens but one. At fixed concurrency and with custom
arrivals, where times are this program's, it is the time after the first message over the tokens that came after it: a
message may have several. Where half of the answers come in fewer than half as many messages as tokens, or with half
of their tokens in the first, the report says that TTFT and TPOT describe the buffering, and SLO attainment, goodput and
tokens/s per user are left out.

| name | label | in | in summary.json | better | meaning |
|---|---|---|---|---|---|
"""


class Files(Summary):
    """Where the paths of METRICS begin."""

    estimate: Estimate


TELEMETRY = ".usage."
TELEMETRY_HEAD = """
## Telemetry

Recorded once a second with `--extra-metrics` ([how to read it](../telemetry.md)), as mean and maximum over the
performance test: two metrics a row, both in MLflow. Neither direction is better by itself. In summary.json they are
`mean` and `max` of `run.performance.usage.QUANTITY`, the name without its end.

| names | label | in CSV | meaning |
|---|---|---|---|
"""
WHERE = {"compare": "CSV", "mlflow": "MLflow"}
PERCENTILE = "From sending a request to its last token; in Offline from the start of the test."
MEANINGS = {  # of what has no description in the summary, by name; of telemetry by quantity
    "samples_per_sec": "Answers per second, as LoadGen measured.",
    **{f"latency_{point}_ms": PERCENTILE for point in ("mean", "p50", "p90", "p99")},
    "requests_per_hour": "The rate of answers in the test, for an hour.",
    "requests_per_day": "The same for a day.",
    "cost_per_million_output_tokens": "`--price-per-hour` over the output tokens of an hour, for a million.",
    "cost_per_thousand_requests": "The same for a thousand requests.",
    "tested_samples": "Answers that LoadGen counted, repeated samples included.",
    "mean_output_tokens": "Tokens of an answer in the performance test, the mean.",
    "checked_tokens": "Tokens of all answers of the accuracy test, before they are decoded.",
    "engine_start_s": "From the start of vLLM until it takes requests.",
    "requests_running": "Requests in the engine's current batch.",
    "requests_waiting": "Requests that the engine has and does not compute yet.",
    "kv_cache_percent": "The share of the KV cache that requests fill.",
    "prefix_hit_percent": "Prompt tokens whose keys and values were there already.",
    "inter_token_ms": "Between one token of an answer and the next, the mean over the tokens of a second.",
    "preemptions": "Requests that were stopped for want of KV cache, and computed again later.",
    "prompt_tokens_per_sec": "Prompt tokens that the engine computed.",
    "generation_tokens_per_sec": "Output tokens that the engine computed.",
    "gpu_load_percent": "The time in which a kernel ran, the mean over the GPUs.",
    "gpu_memory_gib": "Memory in use, the sum over the GPUs.",
    "gpu_power_w": "Power, the sum over the GPUs.",
    "gpu_clock_mhz": "Clock of the multiprocessors, the mean over the GPUs.",
    "gpu_max_clock_mhz": "The highest clock that the card has.",
    "gpu_temperature_c": "Temperature of the chip.",
    "gpu_memory_load_percent": "The time in which memory was read or written.",
    "gpu_memory_clock_mhz": "Clock of the memory.",
    "gpu_memory_temperature_c": "Temperature of the memory.",
    "gpu_power_capped_percent": "The time in which the power limit lowered the clock.",
    "gpu_too_hot_percent": "The time in which heat lowered the clock.",
    "gpu_nvlink_sent_gb_per_s": "To other GPUs, the sum over the GPUs.",
    "gpu_nvlink_received_gb_per_s": "From other GPUs, the sum over the GPUs.",
    "gpu_pcie_sent_gb_per_s": "To the host, in 20 ms of each second, the sum over the GPUs.",
    "gpu_pcie_received_gb_per_s": "From the host, in 20 ms of each second, the sum over the GPUs.",
    "cpu_percent": "Load of all cores that the machine has.",
    "others_cpu_percent": "Share of this program's cores that other programs took; empty if a server's is unknown.",
    "memory_gib": "Main memory in use.",
}


def page() -> str:
    """The whole page, in Markdown."""
    sampled = [metric for metric in METRICS if TELEMETRY in metric.path]
    plain = [metric for metric in METRICS if metric not in sampled]
    lines = (table_line([*alike]) for _, alike in groupby(plain, row_of))
    recorded = (telemetry_line([*alike]) for _, alike in groupby(sampled, quantity))
    return wrapped("".join((HEAD, *lines, TELEMETRY_HEAD, *recorded)))


def row_of(metric: Metric) -> str:
    """What the metrics of a row share: the points of one latency, the scores, or the path."""
    parent = metric.path.rpartition(".")[0]
    return parent if parent.endswith(("_ms", ".scores")) else metric.path


def table_line(metrics: Sequence[Metric]) -> str:
    """Metrics of one row: more than one where they are points of the same, or where scenarios call one differently."""
    first, row = metrics[0], row_of(metrics[0])
    ends = "" if row == first.path else f": {', '.join(f'`{metric.steps[-1]}`' for metric in metrics)}"
    cells = (
        ", ".join(f"`{metric.name}`" for metric in metrics),
        label_of(metrics),
        "; ".join(places_of(metrics)) or ("a sweep" if first.steps[0] == ESTIMATE else "the report"),
        "–" if is_derived(first) else f"`{row}`{ends}",
        first.better or "–",
        meaning(first),
    )
    return f"| {' | '.join(cells)} |\n"


def is_derived(metric: Metric) -> bool:
    """Tell whether no file has it, since it follows from others."""
    return metric.path.startswith(TEST_PATH) and isinstance(getattr(Outcome, metric.steps[0], None), property)


def label_of(metrics: Sequence[Metric]) -> str:
    """The label, without the point where there are several of one latency."""
    labels = [metric.label for metric in metrics]
    shared = {re.sub(r" (mean|p\d+)\b", "", label) for label in labels}
    return "; ".join(shared if len(shared) == 1 else labels)


def places_of(metrics: Sequence[Metric]) -> Iterator[str]:
    """Where the metrics of a row are, and which of them where it is not all."""
    for place, word in WHERE.items():
        found = [metric for metric in metrics if place in metric.places]
        some = f" ({', '.join(metric.steps[-1] for metric in found)})" if len(found) < len(metrics) else ""
        yield from [f"{word}{some}"] if found else []


def telemetry_line(metrics: Sequence[Metric]) -> str:
    """The metrics of one quantity."""
    cells = (
        ", ".join(f"`{metric.name}`" for metric in metrics),
        metrics[0].label.rpartition(", ")[0],
        ", ".join(metric.name.rpartition("_")[2] for metric in metrics if "compare" in metric.places) or "–",
        MEANINGS[quantity(metrics[0])],
    )
    return f"| {' | '.join(cells)} |\n"


def quantity(metric: Metric) -> str:
    return metric.steps[1]


def meaning(metric: Metric) -> str:
    """The description that is nearest to the value: of its field, or else of what the field belongs to."""
    found = [text for text in descriptions(Files, metric.path.split(".")) if text]
    parts = [MEANINGS.get(metric.name) or " ".join(found[-1].split()).replace("|", "\\|")]
    if metric.steps[0] in ("ttft_ms", "tpot_ms"):
        parts.append("Streaming scenarios only.")
    if metric.in_process:
        parts.append("vLLM in this process only.")
    return " ".join(parts)


PERFORMANCE_MODELS: tuple[type[BaseModel], ...] = (TestDetails, Figures, MachineUse, Outcome)


def descriptions(kind: type, steps: list[str]) -> Iterator[str | None]:
    """Of each step of a path below a type, the outermost first. Raises KeyError for a path that leads nowhere."""
    if not steps:
        return
    name, *rest = steps
    if get_origin(kind) is dict:
        text, below = None, get_args(kind)[1]
    elif is_dataclass(kind):
        text, below = None, kind.__annotations__[name]
    else:
        assert issubclass(kind, BaseModel)
        # `run.performance` has the fields of all these in one object.
        models = PERFORMANCE_MODELS if kind is Outcome else (kind,)
        having = [model for model in models if name in {**model.model_fields, **model.model_computed_fields}]
        model = having[0] if having else kind
        derived = getattr(Outcome, name, None)
        if not having and isinstance(derived, property):
            yield derived.__doc__
            return
        field: Any = model.model_fields.get(name) or model.model_computed_fields[name]
        text, below = field.description, getattr(field, "annotation", None) or field.return_type
    yield text
    yield from descriptions(bare(below), rest)


def bare(kind: Any) -> Any:
    """A type without None and annotations."""
    if isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping):
        return kind
    kinds = [bare(part) for part in get_args(kind) if part is not type(None) and hasattr(part, "__name__")]
    return kinds[0] if kinds else kind


def main() -> None:
    write_text(PAGE, page())
    print(PAGE)


if __name__ == "__main__":
    main()
