"""LoadGen's times against those of requests.csv: what it cuts off is no disagreement, a digit more is."""

from hypothesis import given
from hypothesis import strategies as st

from harness.loadgen.log import Latency
from harness.loadgen.requests import latency_summary
from harness.results.claims import Claim


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(2, 2000)), min_size=1, max_size=300))
def test_what_loadgen_cuts_off_is_no_disagreement(answers: list[tuple[int, int]]) -> None:
    """It divides nanoseconds by tokens, and their sum by the requests, in whole numbers."""
    whole = [span // (tokens - 1) for span, tokens in answers]
    found = latency_summary(span / (tokens - 1) / 1e6 for span, tokens in answers)
    points = latency_summary(value / 1e6 for value in whole)
    assert found is not None and points is not None
    logged = Latency(**vars(points) | {"mean": sum(whole) // len(whole) / 1e6})
    said = {
        point: Claim(f"tpot_ms.{point}", value, "requests.csv", getattr(found, point))
        for point, value in vars(logged).items()
    }
    assert {claim.verdict for claim in said.values()} == {"equal"}
    assert said["mean"]._replace(stated=logged.mean - 5e-6).verdict == "differs"
