"""How far runs of the same settings differ, as the history has it."""

import json
from pathlib import Path

from harness.reporting import report as rendering
from harness.results import history
from tests import made
from tests.conftest import tells


def test_scatter_is_that_of_earlier_runs_of_the_same_settings(tmp_path: Path) -> None:
    summary = made.rendered(tmp_path / "a")
    line = json.loads(json.dumps(rendering.history_line(summary)))
    assert tells(history.scatter(summary, []), "one run")
    others = [line | {"tokens_per_sec": 900.0}, line | {"tokens_per_sec": 1100.0}]
    unlike = [
        line | {"setup": {}},
        line | {"valid": False},
        line | {"others": ["a compiler"]},
        {"run": "x", "setup": 3},
    ]
    found = history.scatter(summary, [*others, *unlike])
    assert found == "2 earlier runs of these settings: 900 to 1,100 (tokens_per_sec)"
    assert history.scatter(summary, others[:1]) == "1 earlier run of these settings: 900 (tokens_per_sec)"
    broken = summary.run.performance.model_copy(update={"valid": False}) if summary.run.performance else None
    assert (
        history.scatter(summary.model_copy(update={"run": summary.run.model_copy(update={"performance": broken})}), [])
        == ""
    )
