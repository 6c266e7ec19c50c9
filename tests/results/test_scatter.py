"""How far runs of the same settings differ, as the history has it."""

import json
from pathlib import Path

from harness.report import report as rendering
from harness.results import history_line
from tests.conftest import tells
from tests.support import example_runs

SPEED = "tokens_per_sec"
WORDS = "output tokens/s"


def test_scatter_is_that_of_earlier_runs_of_the_same_settings(tmp_path: Path) -> None:
    line = json.loads(json.dumps(rendering.history_line(example_runs.rendered(tmp_path / "a"))))
    assert tells(history_line.range_in_earlier_runs(line, SPEED, WORDS, []), "none with these settings")
    others = [line | {"tokens_per_sec": 900.0}, line | {"tokens_per_sec": 1100.0}]
    unlike = [
        line | {"setup": {}},
        line | {"valid": False},
        line | {"others": ["a compiler"]},
        line | {"concurrency": 16},
        {"run": "x", "setup": 3},
    ]
    found = history_line.range_in_earlier_runs(line, SPEED, WORDS, [*others, *unlike])
    assert found == "2 with these settings: 900 to 1,100 output tokens/s"
    of_one = history_line.range_in_earlier_runs(line, SPEED, WORDS, others[:1])
    assert of_one == "1 with these settings: 900 output tokens/s"
    assert history_line.range_in_earlier_runs(line | {"valid": False}, SPEED, WORDS, others) == ""
