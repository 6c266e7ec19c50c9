"""The models of files: a field that is renamed is missed where it is copied."""

import ast
from pathlib import Path

import pytest

from harness.core.locations import ROOT
from harness.core.schema import FrozenModel


class Example(FrozenModel):
    speed: float = 1.0


def test_a_copy_has_other_values_of_known_fields_alone() -> None:
    assert Example().model_copy(update={"speed": 2.0}).speed == 2.0
    with pytest.raises(AttributeError, match="Example has no field sped"):
        Example().model_copy(update={"sped": 2.0})


def fields_of_models(kind: type[FrozenModel] = FrozenModel) -> set[str]:
    """The fields of all models of the program."""
    names = set(kind.model_fields)
    for child in kind.__subclasses__():
        names |= fields_of_models(child)
    return names


def copied_fields(path: Path) -> set[str]:
    """The names in each `model_copy(update={...})` of a file."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "model_copy":
            for keyword in node.keywords:
                for key in getattr(keyword.value, "keys", ()):
                    if isinstance(key, ast.Constant):
                        names.add(str(key.value))
    return names


def test_each_field_that_is_copied_by_name_exists() -> None:
    import harness.report.report
    import harness.runner.steps  # noqa: F401  # all models are then known

    copied = {name for path in (ROOT / "harness").rglob("*.py") for name in copied_fields(path)}
    assert len(copied) > 8
    assert copied <= fields_of_models()
