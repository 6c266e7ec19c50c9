"""docs/reference/metrics.md is what `python -m docs.metrics` writes, and its paths lead to values."""

import pytest

from docs import metrics as pages
from harness.results.metrics import METRICS, Metric
from harness.results.summary import Summary
from tests.conftest import tells


def test_the_page_is_current() -> None:
    assert pages.PAGE.read_text() == pages.page(), "run python -m docs.metrics"


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_each_metric_stands_on_the_page_once(metric: Metric) -> None:
    assert pages.page().count(f"| `{metric.name}` | {metric.label} | `{metric.path}` |") == 1
    assert len(list(pages.descriptions(Summary, metric.path.split(".")))) == len(metric.path.split("."))


def test_a_description_is_that_of_the_nearest_field() -> None:
    ttft = next(metric for metric in METRICS if metric.name == "ttft_p99_ms")
    assert tells(pages.meaning(ttft), "first token", "Streaming scenarios")
    power = ["run", "performance", "usage", "gpu_power_w", "mean"]
    assert list(pages.descriptions(Summary, power))[3:] == [None, None]


def test_a_path_that_leads_nowhere_is_an_error() -> None:
    with pytest.raises(KeyError):
        list(pages.descriptions(Summary, ["run", "performance", "tokens"]))
