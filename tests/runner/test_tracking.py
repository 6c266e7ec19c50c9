"""MLflow that is asked for and not installed ends a command before anything is measured."""

from pathlib import Path

import pytest

from harness.runner import tracking
from tests.conftest import called

COMMANDS = {
    "run": ["--model", "demo", "--backend", "echo"],
    "mmlu": ["--model", "demo"],
    "sweep": ["sweeps/demo.yaml"],
    "compare": ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_that_mlflow_is_missing_before_it_measures(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    done = called(command, command, *COMMANDS[command], "--mlflow", "--results-dir", str(tmp_path / "results"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: MLflow is not installed: ") and done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_nothing_is_asked_of_mlflow_where_nobody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    assert tracking.check_installed(False) is None
