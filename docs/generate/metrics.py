"""Writes docs/reference/metrics.md: every metric as `METRICS` declares it, with what its field in the summary says
of it.

python -m docs.generate.metrics
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

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
    """The files in which the paths of METRICS begin: the summary, and estimate.json of --quick."""

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
PLACE_NAMES = {"compare": "CSV", "mlflow": "MLflow"}
LATENCY = "From sending a request to its last token; in Offline from the start of the test."
# The meanings of metrics without a description in the summary, by name; those of telemetry by quantity.
MEANINGS = {
    "samples_per_sec": "Answers per second, as LoadGen measured.",
    **{f"latency_{point}_ms": LATENCY for point in ("mean", "p50", "p90", "p99")},
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
    telemetry_metrics = [metric for metric in METRICS if TELEMETRY in metric.path]
    other_metrics = [metric for metric in METRICS if TELEMETRY not in metric.path]
    lines = [HEAD]
    for _value, metrics in groupby(other_metrics, row_key):
        lines.append(table_line([*metrics]))
    lines.append(TELEMETRY_HEAD)
    for _quantity, metrics in groupby(telemetry_metrics, quantity):
        lines.append(telemetry_line([*metrics]))
    return wrapped("".join(lines))


def row_key(metric: Metric) -> str:
    """Return the path that the metrics of a row have in common.

    The points of a latency share a row, and so do the scores.
    """
    parent = metric.path.rpartition(".")[0]
    return parent if parent.endswith(("_ms", ".scores")) else metric.path


def table_line(metrics: Sequence[Metric]) -> str:
    """Return a row of the first table.

    It has several metrics if they are points of one latency, scores, or names of one value in different scenarios.
    """
    first = metrics[0]
    cells = (
        code_list(metric.name for metric in metrics),
        label_of(metrics),
        place_cell(metrics),
        path_cell(metrics),
        first.better or "–",
        meaning(first),
    )
    return f"| {' | '.join(cells)} |\n"


def code_list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def label_of(metrics: Sequence[Metric]) -> str:
    """Return the labels of a row's metrics, or their common label without the point of a latency."""
    labels = [metric.label for metric in metrics]
    labels_without_point = {re.sub(r" (mean|p\d+)\b", "", label) for label in labels}
    return "; ".join(labels_without_point if len(labels_without_point) == 1 else labels)


def place_cell(metrics: Sequence[Metric]) -> str:
    """Return where else the metrics of a row are, and which of them, if not all are there."""
    texts = []
    for place, place_name in PLACE_NAMES.items():
        metrics_there = [metric for metric in metrics if place in metric.places]
        if len(metrics_there) == len(metrics):
            texts.append(place_name)
        elif metrics_there:
            texts.append(f"{place_name} ({', '.join(metric.steps[-1] for metric in metrics_there)})")
    if texts:
        return "; ".join(texts)
    return "a sweep" if metrics[0].steps[0] == ESTIMATE else "the report"


def path_cell(metrics: Sequence[Metric]) -> str:
    """Return the path to the values of a row in the summary; a dash for values that no file has."""
    first = metrics[0]
    if is_derived(first):
        return "–"
    common_path = row_key(first)
    if common_path == first.path:
        return f"`{common_path}`"
    return f"`{common_path}`: {code_list(metric.steps[-1] for metric in metrics)}"


def is_derived(metric: Metric) -> bool:
    """Tell whether no file has it, since it follows from others."""
    return metric.path.startswith(TEST_PATH) and isinstance(getattr(Outcome, metric.steps[0], None), property)


def telemetry_line(metrics: Sequence[Metric]) -> str:
    """Return a row of the table of telemetry: the mean and the maximum of one quantity."""
    statistics_in_csv = [metric.name.rpartition("_")[2] for metric in metrics if "compare" in metric.places]
    cells = (
        code_list(metric.name for metric in metrics),
        metrics[0].label.rpartition(", ")[0],
        ", ".join(statistics_in_csv) or "–",
        MEANINGS[quantity(metrics[0])],
    )
    return f"| {' | '.join(cells)} |\n"


def quantity(metric: Metric) -> str:
    """Return the name of a quantity of telemetry, which its mean and its maximum share."""
    return metric.steps[1]


def meaning(metric: Metric) -> str:
    """Return what a metric means: from MEANINGS or, if it is not there, from the descriptions of the summary's fields.

    The description nearest to the value counts: that of its own field or, without one, of the field around it.
    """
    texts = [text for text in descriptions(Files, metric.path.split(".")) if text]
    parts = [MEANINGS.get(metric.name) or " ".join(texts[-1].split()).replace("|", "\\|")]
    if metric.steps[0] in ("ttft_ms", "tpot_ms"):
        parts.append("Streaming scenarios only.")
    if metric.in_process:
        parts.append("vLLM in this process only.")
    return " ".join(parts)


PERFORMANCE_MODELS: tuple[type[BaseModel], ...] = (TestDetails, Figures, MachineUse, Outcome)


def descriptions(kind: type, steps: list[str]) -> Iterator[str | None]:
    """Yield the description of each step of a path in the summary, the outermost first; None for a step without one.

    `kind` is the type in which the path begins. Raises KeyError if the path leads nowhere.
    """
    if not steps:
        return
    name, *further_steps = steps
    field = field_of(kind, name)
    yield field.description
    if field.kind is not None:
        yield from descriptions(bare_type(field.kind), further_steps)


class Field(NamedTuple):
    """A field of the summary: its description, if it has one, and its type, or None where no path leads further."""

    description: str | None
    kind: Any


def field_of(kind: type, name: str) -> Field:
    """Return the field of a type by its name. Raises KeyError if the type has no such field."""
    if get_origin(kind) is dict:
        _key_type, value_type = get_args(kind)
        return Field(None, value_type)
    if is_dataclass(kind):
        return Field(None, kind.__annotations__[name])
    assert issubclass(kind, BaseModel)
    # `run.performance` has the fields of all these models in one object.
    models = PERFORMANCE_MODELS if kind is Outcome else (kind,)
    for model in models:
        if name in model.model_fields:
            stored = model.model_fields[name]
            return Field(stored.description, stored.annotation)
        if name in model.model_computed_fields:
            computed = model.model_computed_fields[name]
            return Field(computed.description, computed.return_type)
    derived = getattr(Outcome, name, None)
    if isinstance(derived, property):
        return Field(derived.__doc__, None)
    raise KeyError(name)


def bare_type(kind: Any) -> Any:
    """Return a type without None and without annotations."""
    origin = get_origin(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return kind
    parts = [part for part in get_args(kind) if part is not type(None) and hasattr(part, "__name__")]
    return bare_type(parts[0]) if parts else kind


def main() -> None:
    write_text(PAGE, page())
    print(PAGE)


if __name__ == "__main__":
    main()
