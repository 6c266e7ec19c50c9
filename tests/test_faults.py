"""The accuracy gate passes the honest run and fails every planted fault."""

from collections.abc import Iterator

import pytest

from tests.faults import FAULTS, Fault, Laboratory, laboratory


@pytest.fixture(scope="module")
def place() -> Iterator[Laboratory]:
    with laboratory() as room:
        yield room


def test_the_honest_run_passes(place: Laboratory) -> None:
    assert place.score(Fault()).verdict == "PASS"


@pytest.mark.parametrize("name", FAULTS)
def test_the_gate_fails_on(place: Laboratory, name: str) -> None:
    assert place.score(FAULTS[name]).verdict == "FAIL"
