"""docs/reference/metrics.md is what `python -m docs.generate.metrics` writes, and its paths lead to values."""

import re

import pytest

from docs.generate import metrics as pages
from harness.results.metrics import METRICS
from harness.results.summary import Summary
from tests.conftest import tells

ROWS = [re.split(r" \| ", line.strip("| ")) for line in re.findall(r"^\| `.*$", pages.page(), re.M)]


def test_the_page_is_current() -> None:
    assert pages.PAGE.read_text() == pages.page(), "run python -m docs.generate.metrics"


def test_each_metric_stands_in_one_row_and_each_path_too() -> None:
    names = [name for row in ROWS for name in re.findall(r"`(.*?)`", row[0])]
    assert sorted(names) == sorted(metric.name for metric in METRICS)
    cells = [re.findall(r"`(.*?)`", row[3]) for row in ROWS if len(row) == 6 and row[3] != "–"]
    paths = [path for row, *ends in cells for path in ([f"{row}.{end}" for end in ends] or [row])]
    assert len({*paths}) == len(paths) > 40
    stored = [each for each in METRICS if not pages.is_derived(each)]
    assert {*paths} == {each.path for each in stored if pages.TELEMETRY not in each.path}


def test_each_row_has_a_meaning() -> None:
    assert [row[0] for row in ROWS if len(row[-1].split()) < 2] == []


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_each_path_leads_to_a_field(metric: pages.Metric) -> None:
    assert len(list(pages.descriptions(pages.Files, metric.path.split(".")))) == len(metric.path.split("."))


def test_a_meaning_in_the_page_is_of_something_that_has_none_in_the_summary() -> None:
    named = {metric.name for metric in METRICS} | {pages.quantity(each) for each in METRICS if ".usage." in each.path}
    assert {*pages.MEANINGS} <= named


def test_a_description_is_that_of_the_nearest_field() -> None:
    ttft = next(metric for metric in METRICS if metric.name == "ttft_p99_ms")
    assert tells(pages.meaning(ttft), "first token", "Streaming scenarios")
    power = ["run", "performance", "usage", "gpu_power_w", "mean"]
    assert list(pages.descriptions(Summary, power))[3:] == [None, None]


def test_a_path_that_leads_nowhere_is_an_error() -> None:
    with pytest.raises(KeyError):
        list(pages.descriptions(Summary, ["run", "performance", "tokens"]))
