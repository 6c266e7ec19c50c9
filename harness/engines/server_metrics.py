"""The metrics that engines publish in Prometheus' text format, as columns of one table."""

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from harness.core.formatting import Measured

Readings = dict[str, list[float]]  # the values of each metric, one for each replica


class MetricColumn(NamedTuple):
    """A column of the table, and the metrics that it is made of, by the names that engines have for them.

    `how` is one of these: the sum or the mean over all replicas now, the rate of increase per second since the last
    reading, or the ratio of that increase to the increase of the metrics `of_all`. The value is multiplied by `scale`.
    """

    name: str
    how: Literal["sum", "mean", "rate", "ratio"]
    metrics: str
    scale: float = 1.0
    of_all: str = ""

    @property
    def sources(self) -> list[str]:
        """The names of all metrics that the column is made of."""
        return f"{self.metrics} {self.of_all}".split()


# Older names come last: vLLM's before 0.11, SGLang's before 0.5.
INTER_TOKEN = (
    "vllm:inter_token_latency_seconds{0} sglang:inter_token_latency_seconds{0} vllm:time_per_output_token_seconds{0} "
    "sglang:time_per_output_token_seconds{0} dynamo_frontend_inter_token_latency_seconds{0}"
)
CACHE = MetricColumn(
    "prefix_hit_percent",
    "ratio",
    "vllm:prefix_cache_hits_total vllm:gpu_prefix_cache_hits_total vllm:external_prefix_cache_hits_total "
    "sglang:cached_tokens_total dynamo_frontend_cached_tokens_sum",
    of_all="vllm:prefix_cache_queries_total vllm:gpu_prefix_cache_queries_total sglang:prompt_tokens_total "
    "dynamo_frontend_input_sequence_tokens_sum",
    scale=100,
)
GENERATED = (
    "vllm:generation_tokens_total sglang:generation_tokens_total llamacpp:tokens_predicted_total "
    "dynamo_frontend_output_tokens_total"
)
# The beginning of the names of Dynamo's frontend, which counts the same requests as the engines behind it.
FRONTEND_PREFIX = "dynamo_frontend_"
METRIC_COLUMNS = (
    MetricColumn(
        "requests_running",
        "sum",
        "vllm:num_requests_running sglang:num_running_reqs llamacpp:requests_processing "
        "dynamo_frontend_inflight_requests",
    ),
    MetricColumn(
        "requests_waiting",
        "sum",
        "vllm:num_requests_waiting sglang:num_queue_reqs llamacpp:requests_deferred dynamo_frontend_queued_requests",
    ),
    MetricColumn(
        "kv_cache_percent",
        "mean",
        "vllm:kv_cache_usage_perc vllm:gpu_cache_usage_perc sglang:token_usage llamacpp:kv_cache_usage_ratio "
        "trtllm_kv_cache_utilization",
        scale=100,
    ),
    CACHE,
    MetricColumn(
        "inter_token_ms", "ratio", INTER_TOKEN.format("_sum"), of_all=INTER_TOKEN.format("_count"), scale=1000
    ),
    MetricColumn("preemptions", "rate", "vllm:num_preemptions_total"),
    MetricColumn(
        "prompt_tokens_per_sec",
        "rate",
        "vllm:prompt_tokens_total sglang:prompt_tokens_total llamacpp:prompt_tokens_total "
        "dynamo_frontend_input_sequence_tokens_sum",
    ),
    MetricColumn("generation_tokens_per_sec", "rate", GENERATED),
)
# The mean waits of a request before its first token, in ms: in the queue, and during the prefill of its prompt. vLLM
# has histograms of them.
WAITS = tuple(
    MetricColumn(
        name, "ratio", f"vllm:request_{name}_time_seconds_sum", 1000, f"vllm:request_{name}_time_seconds_count"
    )
    for name in ("queue", "prefill")
)
RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")  # labels of an engine's ranks, each of which reports the whole engine
# The names of all metrics that the columns are made of.
SOURCES = frozenset(chain.from_iterable(column.sources for column in (*METRIC_COLUMNS, *WAITS)))


def metric_cells(before: Readings, now: Readings, seconds: float) -> list[Measured]:
    """Return the values of METRIC_COLUMNS at the reading `now`, which is `seconds` after the reading `before`.

    A value is None if the engine does not report it, or if a rate or a ratio has nothing to be compared with.
    """
    cells = list[Measured]()
    for column in METRIC_COLUMNS:
        dividend, divisor = column_parts(column, before, now, seconds)
        if dividend is None or not divisor:
            cells.append(None)
        else:
            cells.append(round(column.scale * dividend / divisor, 2))
    return cells


def column_parts(column: MetricColumn, before: Readings, now: Readings, seconds: float) -> tuple[Measured, Measured]:
    """Return the dividend and the divisor of a column's value, before it is scaled.

    If the engine does not report the column, the dividend is None, or the divisor is None or 0.
    """
    if column.how == "rate":
        return counter_increase(before, now, column.metrics), seconds
    if column.how == "ratio":
        return counter_increase(before, now, column.metrics), counter_increase(before, now, column.of_all)
    values = list[float]()
    for source in column.metrics.split():
        values += now.get(source, [])
    if column.how == "mean":
        return sum(values), len(values)
    return sum(values), 1 if values else 0  # without values there is no sum


def counter_increase(before: Readings, now: Readings, metrics: str) -> Measured:
    """Return how much counters have increased together between two readings, over all replicas.

    `metrics` are the counters' names with spaces between. None if no counter is in both readings. If the counters
    decreased, for example because a server was restarted, the increase is 0.
    """
    common = [source for source in metrics.split() if source in now and source in before]
    if not common:
        return None
    increase = sum(sum(now[source]) - sum(before[source]) for source in common)
    return max(0.0, increase)


def growth(before: Sequence[str], after: Sequence[str]) -> Callable[[str], Measured]:
    """Return a function that takes the names of counters and returns how much these increased between two readings.

    A reading is a page of metrics for each server. The increase is None if the two readings have different numbers of
    servers, so that they cannot be compared, or if a reading lacks the counters.
    """
    if len(before) != len(after):
        return partial(counter_increase, {}, {})  # None for all counters
    return partial(counter_increase, metric_values(before), metric_values(after))


def cached_percent(before: Sequence[str], after: Sequence[str]) -> Measured:
    """Return the percentage of the prompt tokens that came from the servers' prefix caches between two readings.

    A reading is a page of metrics for each server. None if the servers do not report both counts.
    """
    increase_of = growth(before, after)
    cached, total = increase_of(CACHE.metrics), increase_of(CACHE.of_all)
    if cached is None or total is None:
        return None
    return CACHE.scale * cached / max(1.0, total)  # 0 if there were no prompts


def have_cache_counters(pages: Sequence[str]) -> bool:
    """Return whether the servers' pages of metrics count the prompt tokens that came from their prefix caches."""
    return cached_percent(pages, pages) is not None  # None only if a counter is missing


def idle_replicas(before: Sequence[str], after: Sequence[str]) -> tuple[int, int]:
    """Return how many replicas computed no token between two readings of all servers, and how many replicas there are.

    Both are 0 if no counter of generated tokens can be compared.
    """
    values_before, values_after = metric_values(before), metric_values(after)
    idle = replicas = 0
    for source in GENERATED.split():  # The counter's name depends on the engine.
        counts_before, counts_after = values_before[source], values_after[source]
        if len(counts_before) == len(counts_after):
            replicas += len(counts_after)
            for count_before, count_after in zip(counts_before, counts_after, strict=True):
                idle += count_before == count_after  # A replica that computed no token adds one.
    return idle, replicas


def mean_waits(before: Sequence[str], after: Sequence[str]) -> dict[str, float]:
    """Return the mean milliseconds of each of WAITS (queue, prefill), by name, over the requests that ended between two
    readings.

    Empty if one of WAITS is not reported, or if no request ended.
    """
    increase_of = growth(before, after)
    means = {}
    for column in WAITS:
        request_count = increase_of(column.of_all)
        if not request_count:
            return {}
        total_wait = increase_of(column.metrics) or 0.0
        means[column.name] = round(column.scale * total_wait / request_count, 3)
    return means


def metric_values(expositions: Iterable[str]) -> Readings:
    """Return the values of the metrics in SOURCES on the servers' pages, by metric, one for each engine.

    Damaged rows are left out.
    """
    values_by_name = defaultdict(list)
    for text in expositions:
        rows = parse_rows(page_with_vllm_names(text), SOURCES)
        # A group has the rows of one metric and one engine, which differ only in the rank.
        for name, _, values_of_ranks in row_groups(rows, RANKS):
            values_by_name[name].append(max(values_of_ranks))  # Each rank (process) reports the whole engine.
    frontend_names = [name for name in values_by_name if name.startswith(FRONTEND_PREFIX)]
    # If the engines behind the frontend are there as well, its rows would count each request twice.
    has_rows_of_engines = len(frontend_names) < len(values_by_name)
    if has_rows_of_engines:
        for name in frontend_names:
            del values_by_name[name]
    return values_by_name


def page_with_vllm_names(text: str) -> str:
    """Return a page with vLLM's own names of its metrics, without the prefix that Ray Serve puts before them."""
    return text.replace("ray_vllm_", "vllm:")


def row_groups(rows: Iterable[Sample], parts: Collection[str]) -> Iterator[tuple[str, dict[str, str], list[float]]]:
    """Yield each group of rows that differ only in the labels `parts`: its name, its other labels, and its values.

    Such a label splits one thing into several rows: an engine into its ranks, or a GPU into its parts (MIG).
    """
    values_by_group = defaultdict(list)
    for row in rows:
        other_labels = frozenset((key, value) for key, value in row.labels.items() if key not in parts)
        values_by_group[row.name, other_labels].append(row.value)
    for (name, other_labels), values in values_by_group.items():
        yield name, dict(other_labels), values


def parse_rows(text: str, names: Container[str]) -> list[Sample]:
    """Return the samples of the metrics `names` on a page in Prometheus' text format.

    The rows are parsed together, which is faster. If one of them is damaged, they are parsed one by one, and damaged
    rows are left out.
    """
    # A metric's name ends at its labels or, without labels, at a space.
    lines = [line for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] in names]
    try:
        return parse_page("\n".join(lines))
    except ValueError:  # A row is damaged.
        pass
    rows = []
    for line in lines:
        with contextlib.suppress(ValueError):
            rows += parse_page(line)
    return rows


def parse_page(text: str) -> list[Sample]:
    """Return the samples of a page in Prometheus' text format, without those that are NaN.

    Raises ValueError if the page is no such text.
    """
    families = text_string_to_metric_families(f"{text}\n")
    samples = list[Sample]()
    for family in families:
        samples += [sample for sample in family.samples if not math.isnan(sample.value)]
    return samples
