"""The fit of how long an answer takes."""

import numpy as np
import pytest

from harness.results.queue_fit import nonnegative_fit


def test_factors_of_exact_sums_are_found() -> None:
    terms = np.array([[1.0, 2.0, 0.0], [3.0, 1.0, 1.0], [2.0, 5.0, 4.0], [1.0, 1.0, 7.0]])
    assert nonnegative_fit(terms, terms @ (0.5, 0.0, 2.0)) == pytest.approx([0.5, 0.0, 2.0])


def test_no_factor_is_below_zero() -> None:
    """The third column lowers the sums, and the first two alone make them best where it counts nothing."""
    terms = np.array([[1.0, 0.0, 0.1], [0.0, 1.0, 0.2], [1.0, 1.0, 0.4]])
    sums = terms @ (1.0, 2.0, -0.5)
    assert (np.linalg.lstsq(terms, sums)[0] < 0).any()
    factors = nonnegative_fit(terms, sums)
    assert factors[2] == 0 and factors[:2] == pytest.approx(np.linalg.lstsq(terms[:, :2], sums)[0].tolist())


def test_sums_below_zero_leave_no_factor() -> None:
    assert nonnegative_fit(np.eye(3), np.full(3, -1.0)) == [0.0, 0.0, 0.0]
