"""Published results: samples/s per accelerator, none of systems of unlike accelerators."""

import pytest

from docs.generate.performance import published_results
from harness.results.published import published, results_of, software_of_model
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
    first, *others = published_results(scenario, accelerator)
    assert (round(first.rate("samples/s"), 1), first.submitter) == (best, submitter)
    assert all(each.rate("samples/s") <= first.rate("samples/s") for each in others)
    assert first.is_vllm == (submitter == "RedHat")


def test_unlike_accelerators_have_no_point() -> None:
    text = (ROOT / "harness" / "results" / "published.csv").read_text()
    assert "NVIDIA H200 and AMD Instinct MI350X" in text
    assert not any(" and " in each.device for each in published())
    assert all(each.samples_per_sec != 0 and each.source for each in published())
    assert published_results("Offline", "a card of tomorrow") == []


def test_processors_stand_beside_processors() -> None:
    found = results_of("Offline", on_cpu=True)
    assert len(found) > 10 and all("Intel Xeon 6" in each.device for each in found)
    assert not any(each.share for each in found) and found[0].rate("samples/s") == 16.161


def test_a_version_for_each_model_is_shown_as_that_of_llama() -> None:
    listed = "PyTorch: rgat: 2.7.0+cpu, llama3.1-8b: 2.8.0.dev20250627+cpu"
    assert software_of_model(listed) == "PyTorch 2.8.0.dev20250627+cpu"
    assert software_of_model("TensorRT 10.14, CUDA 13.1") == "TensorRT 10.14, CUDA 13.1"


def test_rows_with_tokens_alone_are_there_in_tokens() -> None:
    (alone,) = [
        each for each in results_of("SingleStream", "tokens/s") if each.submitter == "Intel" and "B60" in each.device
    ]
    assert alone.samples_per_sec is None and alone.rate("tokens/s") == 37.72
    assert alone not in results_of("SingleStream")


def test_a_rate_of_several_accelerators_is_said_to_be_a_share() -> None:
    pool, one = (
        published_results("Offline", "NVIDIA H200")[0],
        [p for p in published_results("Offline", "NVIDIA H200") if p.accelerators == 1],
    )
    assert pool.share == "a share of a pool of 8" and [(each.rate("samples/s"), each.share) for each in one] == [
        (60.9166, "")
    ]


def test_the_page_of_speeds_has_the_best_published() -> None:
    page = (ROOT / "docs" / "evidence" / "performance.md").read_text()
    for name in ("Offline", "Server", "Interactive"):
        assert f"{name} {published_results(name, 'NVIDIA H200')[0].rate('samples/s'):.4g} samples/s" in page
