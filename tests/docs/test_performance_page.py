"""docs/evidence/performance.md is made from the runs in docs/runs, and no measured figure of it is typed."""

import re

from docs.generate import performance

MEASURED = re.compile(r"\d[\d,.]* (?:ms|output tokens/s|tokens/s|samples/s|J\b|W\b|MHz|times)")


def test_the_page_is_current() -> None:
    assert performance.PAGE.read_text() == performance.page() + "\n", "run python -m docs.generate.performance"


def test_no_measured_figure_is_typed() -> None:
    prose = (performance.HERE / "generate" / "performance.md.j2").read_text().partition("## The harness itself")[0]
    assert MEASURED.findall(prose) == []
    assert MEASURED.findall("took 3.2 ms")


def test_the_figures_are_those_of_the_kept_runs() -> None:
    page = " ".join(performance.PAGE.read_text().split())
    assert "| Server, 61 queries/s, graphs to 2,048 | VALID | 61.56 | 7,877 |" in page
    assert "fastest: flashinfer is not clearly faster or slower than the baseline: +3.89 % (" in page
    assert "| cuBLASLt's algorithms by FlashInfer's tuner | Offline | 4, 3 | 66.33, 65.67 (-1.0 %) | – |" in page
    assert "| fp8 | 8,192 | zero | Gaussian | 1,507 | +19.3 | 1,695 |" in page
    assert "speeds differ by at most 0.26 percentage points, energies by at most 1.2." in page
    assert "| bf16 | batch-1024 | 7,772 | +286.1 |" in page


def test_each_trial_names_runs_of_one_test() -> None:
    for trial in performance.trials.TRIALS:
        tests = [performance.summary_of(name).run.performance for name in (*trial.without, *trial.with_it)]
        assert len({test.details.scenario for test in tests if test}) == 1 and all(tests), trial.change
