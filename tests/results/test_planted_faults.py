"""The accuracy gate passes the honest run and fails every planted fault."""

import os

import pytest

from tests.support.fault_injection import FAULTS
from tests.support.warm_process import Warm


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The verdict on each fault, all tried on one engine; "none" is the honest run."""
    screen = tmp_path_factory.mktemp("faults") / "screen.txt"
    code = Warm(["tests/support/fault_injection.py", "edge"], os.environ, screen).wait(400)
    assert code == 0, screen.read_text()
    rows = [line.strip("| ").split(" | ") for line in screen.read_text().splitlines() if line.startswith("| ")]
    return {name: verdict for name, *_, verdict in rows}


def test_the_honest_run_passes(verdicts: dict[str, str]) -> None:
    assert verdicts["none"] == "PASS"


@pytest.mark.parametrize("name", FAULTS)
def test_the_gate_fails_on(verdicts: dict[str, str], name: str) -> None:
    assert verdicts[name] == "FAIL"
