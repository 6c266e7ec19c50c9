"""A line of results/history.jsonl: what outlives a run's folder."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Self

from pydantic import ConfigDict

from harness.common.markdown import number
from harness.common.schema import SCHEMA, File, stored_as
from harness.config import workload as workloads
from harness.config.comparability import Comparable, differences
from harness.results.summary import Summary
from harness.results.verdicts import Verdict

IGNORED = ("software", "rate")  # of earlier runs, whose speeds stand beside this one


def scatter(own: Mapping[str, Any], name: str, lines: Iterable[Mapping[str, Any]]) -> str:
    """How far a metric of earlier runs of the same settings, work and GPUs differs, by the lines of a history and that
    of the run itself: the doubt of the next run, which no interval of a single test holds. Empty without a valid
    test."""
    mine = replace(Comparable.of_line(own), busyness={})
    if mine.validity:
        return ""
    like = (line for line in lines if not differences(mine, Comparable.of_line(line), IGNORED))
    values = [value for line in like if isinstance(value := line.get(name), float)]
    if not values:
        return "one run: how far runs of these settings differ is not known"
    count = f"{len(values)} earlier run{'s' if len(values) > 1 else ''} of these settings"
    ends = dict.fromkeys((number(min(values)), number(max(values))))
    return f"{count}: {' to '.join(ends)} ({name})"


class History(File):
    """A line of results/history.jsonl: what outlives the run folder. Metrics are further keys, by name."""

    model_config = ConfigDict(extra="allow")

    run: str
    label: str = ""
    started: str | None = None
    mlperf_version: str | None = None
    model: str | None = None
    category: str | None = None
    scenario: str | None = None
    workload: str = workloads.OFFICIAL
    mode: str | None = None
    samples: int | None = None
    comparable: bool | None = None
    precision: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    weights: str | None = None
    load_format: str | None = None
    batch_size: int | None = None
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    max_new_tokens: int | None = None
    samples_per_query: int | None = None
    valid: bool | None = None
    mean_new_tokens: float | None = None
    verdict: Verdict | None = None
    scores: dict[str, float] | None = None
    gpus: list[str] | None = None
    setup: dict[str, object] | None = None
    work: dict[str, object] | None = None
    background_load: Annotated[list[str], stored_as("others", "background_load")] = []

    @classmethod
    def of(cls, summary: Summary, metrics: dict[str, float | None]) -> Self:
        """The line of a run; `metrics` by name."""
        meta, test, score = summary.meta, summary.run.performance, summary.run.accuracy
        tokens = test.total_new_tokens if test else None
        values: dict[str, Any] = {name: value for name, value in meta if name in cls.model_fields}
        values |= metrics
        return cls(
            **values,
            schema_version=SCHEMA,
            valid=test.valid if test else None,
            samples_per_query=test.samples_per_query if test else None,
            mean_new_tokens=tokens / test.samples if test and tokens and test.samples else None,
            verdict=score.verdict if score else None,
            scores=score.scores if score else None,
            gpus=summary.gpu_models,
            background_load=test.background_load if test else [],
        )

    @property
    def format(self) -> str:
        """The number format of the weights, as far as it is known."""
        method = self.quantization if self.quantization not in (None, "none", self.precision) else None
        return self.weights or ", ".join(filter(None, (self.precision, method))) or "–"

    def metric(self, name: str) -> Any:
        """The value of a metric, null where the line has none."""
        return (self.model_extra or {}).get(name)
