"""LoadGen's times against those of requests.csv: what it cuts off is no disagreement, a digit more is."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.log import Latency
from harness.loadgen.requests import spread
from harness.report import check


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(2, 2000)), min_size=1, max_size=300))
def test_what_loadgen_cuts_off_is_no_disagreement(answers: list[tuple[int, int]]) -> None:
    """It divides nanoseconds by tokens, and their sum by the requests, in whole numbers."""
    whole = [span // (tokens - 1) for span, tokens in answers]
    found = spread(span / (tokens - 1) / 1e6 for span, tokens in answers)
    points = spread(value / 1e6 for value in whole)
    assert found is not None and points is not None
    logged = Latency(**vars(points) | {"mean": sum(whole) // len(whole) / 1e6})
    assert list(check.latency_differences(Path("Performance"), "TPOT", logged, found)) == []
    wrong = Latency(**vars(logged) | {"mean": logged.mean - 3e-6})
    assert len(list(check.latency_differences(Path("Performance"), "TPOT", wrong, found))) == 1
