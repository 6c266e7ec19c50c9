"""A line of results/history.jsonl: what outlives a run's folder."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import ConfigDict

from harness.config.comparability import Comparable, differences
from harness.config.workload import OFFICIAL_WORKLOAD
from harness.core import word_list
from harness.core.formatting import Measured, number
from harness.core.schema import SCHEMA, File, stored_field
from harness.results.accuracy import GateResult
from harness.results.outcome import Outcome
from harness.results.summary import Summary

# Earlier runs may differ in these aspects and still count for the scatter.
IGNORED_IN_SCATTER = ("software", "rate")


def range_in_earlier_runs(
    run_line: Mapping[str, Any], name: str, label: str, lines: Iterable[Mapping[str, Any]]
) -> str:
    """Return in words how far the metric `name` ranged in earlier runs with the same settings, work and GPUs.

    `run_line` is the run's own line of the history, `lines` those of earlier runs. `label` is the metric's unit. Empty
    if the run has no valid test.
    """
    # A busy machine in this run does not matter here; as a difference, it would rule out every earlier run.
    run = Comparable.from_history(run_line)._replace(busyness={})
    flaws_of_test = run.validity
    if flaws_of_test:
        return ""
    values = []
    for line in lines:
        value = line.get(name)
        if isinstance(value, int | float) and not differences(run, Comparable.from_history(line), IGNORED_IN_SCATTER):
            values.append(value)
    if not values:
        return "none with these settings, so the variation from run to run is not known"
    count = f"{len(values)} with these settings"
    ends = dict.fromkeys((number(min(values)), number(max(values))))  # equal ends are given once
    return f"{count}: {' to '.join(ends)} {label}"


HISTORY_FIELDS = word_list.names_in(
    """
    started mlperf_version mode samples kv_cache_dtype load_format batch_size tensor_parallel_size data_parallel_size
    max_new_tokens setup work
    """
)


class History(File):
    """A line of results/history.jsonl: what outlives the run folder.

    These fields are the ones that the index reads. A line also has HISTORY_FIELDS of the summary's `meta`, the run's
    metrics by name, and the values of `test_values`.
    """

    model_config = ConfigDict(extra="allow")

    run: str
    label: str = ""
    model: str | None = None
    category: str | None = None
    scenario: str | None = None
    workload: str = OFFICIAL_WORKLOAD
    comparable: bool | None = None
    precision: str | None = None
    quantization: str | None = None
    weights: str | None = None
    valid: bool | None = None
    verdict: GateResult | None = None
    gpus: list[str] | None = None
    background_load: Annotated[list[str], stored_field("others", "background_load")] = []
    result: str | None = None
    """The outcome in a word: LoadGen's verdict, or the verdict on the run's own limits; null in lines of older
    versions."""
    flaws: list[str] = []
    """What keeps the run's figures from being compared."""
    is_disputed: bool | None = None
    """Whether the client's records or LoadGen's log contradict the figures; null without a test, and in lines of older
    versions."""

    @classmethod
    def of(cls, summary: Summary, metrics: dict[str, Measured]) -> Self:
        """Return the history line of a run: its metadata, `metrics` by name, the values of its test, and its verdict.

        Of the metadata only the fields of this class and HISTORY_FIELDS are kept.
        """
        values = {name: value for name, value in summary.meta if name in (*cls.model_fields, *HISTORY_FIELDS)}
        values |= metrics
        values |= test_values(summary.result)
        values |= dict(
            schema_version=SCHEMA,
            verdict=summary.gate,
            scores=summary.accuracy.scores if summary.accuracy else None,
            gpus=summary.gpu_models,
            background_load=summary.background_load,
        )
        return cls(**values)


def test_values(test: Outcome | None) -> dict[str, object]:
    """Return what a history line keeps of the run's performance test.

    Without a test all values are None and `flaws` is empty. The mean length of answers is None if their tokens or their
    number are not known.
    """
    if test is None:
        return dict(valid=None, samples_per_query=None, mean_new_tokens=None, result=None, flaws=[], is_disputed=None)
    details = test.details
    mean_new_tokens = None
    if details.total_new_tokens and details.samples:
        mean_new_tokens = details.total_new_tokens / details.samples
    return dict(
        valid=test.valid,
        samples_per_query=details.samples_per_query,
        mean_new_tokens=mean_new_tokens,
        result=test.verdict.word,
        flaws=test.flaws,
        is_disputed=bool(test.disagreements),
    )
