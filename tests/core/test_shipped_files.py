"""Files that come with the program: called by name, and without a word of a checkout's commands elsewhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.config.run import RunConfig
from harness.core import remedies, shipped_files
from harness.core.errors import UsageError
from harness.sweep import file as sweep_file
from tests.conftest import ROOT

OF_A_CHECKOUT = re.compile(r"\bmake (setup|demo|punkt|data|test)\b|requirements(\.txt|/)")
# These hold the words for both cases, or the files by which a checkout is checked.
KNOW_BOTH = ("core/remedies.py", "runner/doctor.py", "submission/tree.py")


def test_a_shipped_file_is_called_by_its_name() -> None:
    for name in shipped_files.shipped_names("configs"):
        by_name = RunConfig.load(Path(name), model="demo")
        assert by_name == RunConfig.load(ROOT / "configs" / f"{name}.yaml", model="demo")
    for name in shipped_files.shipped_names("sweeps"):
        assert sweep_file.load_sweep(Path(name)) == sweep_file.load_sweep(ROOT / "sweeps" / f"{name}.yaml")


def test_a_users_own_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("h200-fp8-static").write_text("max_num_seqs: 3")
    assert RunConfig.load(Path("h200-fp8-static"), model="demo").max_num_seqs == 3


def test_a_name_that_is_none_tells_which_there_are() -> None:
    with pytest.raises(UsageError, match="did you mean isolation"):
        sweep_file.load_sweep(Path("isolaton"))
    with pytest.raises(UsageError, match=r"--config nothing: not a file, and not one of .*h200-fp8-static"):
        RunConfig.load(Path("nothing"))
    with pytest.raises(UsageError, match="No such file"):
        RunConfig.load(Path("some/nothing.yaml"))


def test_no_message_names_what_only_a_checkout_has() -> None:
    wrong = []
    for path in (ROOT / "harness").rglob("*.py"):
        place = path.relative_to(ROOT / "harness").as_posix()
        tree = ast.parse(path.read_text())
        docstrings = list(docstring_nodes(tree))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node in docstrings:
                continue
            if OF_A_CHECKOUT.search(node.value) and place not in KNOW_BOTH:
                wrong.append(f"{place}:{node.lineno}")
    assert wrong == []


def docstring_nodes(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr):
                yield first.value


def test_an_installed_package_is_mended_by_its_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    assert remedies.install_command("gpu") == "make setup"
    monkeypatch.setattr(remedies, "IS_CHECKOUT", False)
    monkeypatch.setattr(remedies.sys, "executable", "/a b/python")
    assert remedies.install_command("mlflow") == "'/a b/python' -m pip install 'llama31-mlperf[mlflow]'"
    assert remedies.splitter_command() == "'/a b/python' -m nltk.downloader punkt_tab"
