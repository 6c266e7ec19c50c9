"""Published results: samples/s per accelerator, none of systems of unlike accelerators."""

import pytest

from harness.results.economics import points, published
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("scenario", "accelerator", "best", "submitter"),
    [
        ("Offline", "NVIDIA H200", 64.5, "HPE"),
        ("Server", "NVIDIA H200", 62.9, "HPE"),
        ("Interactive", "NVIDIA H200", 52.4, "Quanta_Cloud_Technology"),
        ("Offline", "NVIDIA H100 80GB HBM3", 45.1, "RedHat"),
        ("Server", "NVIDIA H100-SXM-80GB", 39.6, "RedHat"),
    ],
)
def test_the_best_point(scenario: str, accelerator: str, best: float, submitter: str) -> None:
    first, *others = points(scenario, accelerator)
    assert (round(first.samples_per_sec, 1), first.submitter) == (best, submitter)
    assert all(each.samples_per_sec <= first.samples_per_sec for each in others)
    assert first.is_vllm == (submitter == "RedHat")


def test_unlike_accelerators_have_no_point() -> None:
    text = (ROOT / "harness" / "results" / "published.csv").read_text()
    assert "NVIDIA H200 and AMD Instinct MI350X" in text
    assert not any(" and " in each.accelerator for each in published())
    assert all(each.samples_per_sec > 0 and each.source for each in published())
    assert points("Offline", "a card of tomorrow") == []


def test_the_page_of_speeds_has_the_best_published() -> None:
    page = (ROOT / "docs" / "evidence" / "performance.md").read_text()
    for name in ("Offline", "Server", "Interactive"):
        assert f"{name} {points(name, 'NVIDIA H200')[0].samples_per_sec:.4g} samples/s" in page
