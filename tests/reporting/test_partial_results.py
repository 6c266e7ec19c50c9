"""What a report says of a run, or of a test, that did not come to its end."""

import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness.common.errors import UsageError
from harness.loadgen.log import LogError
from harness.reporting import report as rendering
from harness.runs.folder import RunFolder
from harness.runs.probe import Probe
from tests import made


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        ("interrupted", "interrupted", r"interrupted at \d{4}-\S+\."),
        ("failed", "vLLM's engine process ended", r"failed at \d{4}-\S+: vLLM's engine process ended\."),
        ("running", "", r"it was killed, or still runs\."),
    ],
)
@pytest.mark.parametrize("log", ["none", "cut short"])
def test_a_run_that_ends_after_two_of_three_rates(
    tmp_path: Path, status: Any, reason: str, said: str, log: str
) -> None:
    folder = made.run(tmp_path / "run", scenario="server", server_target_qps="4,8.5,16")
    logs = folder / "Performance" / "mlperf_log_detail.txt"
    if log == "none":
        shutil.rmtree(folder / "Performance")
    else:
        logs.write_text("".join(line for line in logs.read_text().splitlines(True) if "result_" not in line))
    run = RunFolder(tmp_path, "run")
    probes = [Probe(qps, True, 10 * qps, qps, 5 * qps, qps / 2, 128 * qps, qps) for qps in (4.0, 8.5)]
    made.note(run, probes=[asdict(probe) for probe in probes])
    run.set_status(status, reason)
    summary, page = rendering.build(folder), (folder / "report.md").read_text()
    verdict = page.partition("## Verdict")[2].partition("## ")[0]
    assert re.search(rf"did not come to its end\*\*: {said} 2 loads were tried", verdict)
    assert "| 8.5 | VALID | 1,088 | 42.5 | 85 | 4.25 | 8.5 |" in page
    assert "![Latency by load" in page and (folder / "plots" / "search.png").exists()
    assert "the run did not come to its end" in summary.meta.deviations


def test_a_test_that_was_cut_short_is_no_result(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", scenario="server", server_target_qps="4,8.5,16")
    logs = folder / "Performance" / "mlperf_log_detail.txt"
    logs.write_text("".join(line for line in logs.read_text().splitlines(True) if "result_" not in line))
    with pytest.raises(LogError, match="did not come to its end"):
        rendering.build(folder)
    RunFolder(tmp_path, "run").set_status("interrupted")
    with pytest.raises(UsageError, match="no test came to its end"):
        rendering.build(folder)
