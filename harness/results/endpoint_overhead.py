"""An endpoint run against a run of the same work without an endpoint: what HTTP and the server cost."""

from collections.abc import Iterable
from contextlib import suppress

from pydantic import ValidationError

from harness.config.plan import Plan
from harness.results import metrics
from harness.results.history import History
from harness.results.summary import Summary
from harness.runs.records import BaselineRun

SAME_RATE = 0.01  # of the rate: latencies at other rates say nothing of each other


def find(plan: Plan, history: Iterable[dict[str, object]]) -> BaselineRun | None:
    """The last VALID run in this process with the model, samples, answer length and, where it is given, rate of an
    endpoint run; None where there is none. With what the server itself was started cannot be seen."""
    found = None
    for entry in history if plan.config.endpoint and plan.config.mode != "accuracy" else ():
        with suppress(ValidationError):
            line = History.model_validate(entry)
            found = line if alike(plan, line) else found
    if found is None:
        return None
    values = {metric.name: value for metric in metrics.shown("index") if (value := found.metric(metric.name))}
    return BaselineRun(run=found.run, settings=found.settings, metrics=values)


def alike(plan: Plan, line: History) -> bool:
    """Whether a run in this process had the same model and work as an endpoint run."""
    same = line.work == plan.work and (line.model, line.batch_size) == (plan.config.model, plan.config.batch_size)
    rate = line.metric("target_qps") or 0.0
    other_rate = plan.config.scenario_rules.fixed_rate and abs(rate / (plan.target_qps or 1.0) - 1) > SAME_RATE
    return same and bool(line.valid) and (line.setup or {}).get("backend") == "vllm" and not other_rate


def compared(summary: Summary) -> list[tuple[metrics.Metric, float, float, float]]:
    """Each metric of the index that both have: its value, that of the run in this process, the difference in %."""
    theirs = summary.meta.in_process.metrics if summary.meta.in_process else {}
    both = [(metric, value, theirs.get(metric.name)) for metric, value in metrics.rows(summary, "index")]
    return [(metric, value, other, 100 * (value / other - 1)) for metric, value, other in both if other]


def cost(summary: Summary) -> float | None:
    """By how many percent fewer output tokens per second an endpoint gives; None where a rate sets the speed."""
    if summary.scenario.fixed_rate:
        return None
    return next((-percent for metric, *_, percent in compared(summary) if metric.name == "tokens_per_sec"), None)
