"""The accuracy gate passes the honest run and fails every planted fault."""

from collections.abc import Iterator

import pytest

from tests.faults import FAULTS, Fault, Laboratory, laboratory


@pytest.fixture(scope="module")
def lab() -> Iterator[Laboratory]:
    with laboratory("edge") as opened:  # the fewest samples that are a whole category
        yield opened


def test_the_honest_run_passes(lab: Laboratory) -> None:
    assert lab.score(Fault()).verdict == "PASS"


@pytest.mark.parametrize("name", FAULTS)
def test_the_gate_fails_on(lab: Laboratory, name: str) -> None:
    assert lab.score(FAULTS[name]).verdict == "FAIL"
