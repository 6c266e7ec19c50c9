"""What a report says of the machine: the engine's own, or the client's beside a server."""

from pathlib import Path

import pytest

from harness.report.report import build_report
from tests.support import example_runs


@pytest.mark.parametrize("endpoint", [(), ("http://10.0.0.1:8000/v1",)])
def test_beside_a_server_the_machine_is_the_clients_and_the_rows_say_so(
    tmp_path: Path, endpoint: tuple[str, ...]
) -> None:
    folder = example_runs.run(tmp_path / "run", endpoint=endpoint, concurrency="2")
    build_report(folder)
    page = (folder / "report.md").read_text()
    for name in ("CPU", "memory", "software"):
        assert (f"| client's {name} |" in page) == bool(endpoint)
        assert (f"| {name} |" in page) == (not endpoint)
    assert ("| server's GPUs | unknown |" in page) == bool(endpoint)
