"""The options of the installed vLLM, read from its sources: importing vLLM takes 10 to 20 seconds."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path


def folder() -> Path | None:
    """Return the folder in which vLLM is installed. None if it is not installed."""
    spec = find_spec("vllm")
    if spec is None or not spec.origin:
        return None
    return Path(spec.origin).parent


def source_text(*names: str) -> str:
    """Return the text of a source file of vLLM, whose path below vLLM's folder is `names`. Empty if it is not there."""
    place = folder()
    path = place.joinpath(*names) if place else None
    if path is None or not path.is_file():
        return ""
    return path.read_text()


@cache
def enumerations() -> frozenset[str]:
    """Return all values of the enumerations (`Literal`) among vLLM's settings. Empty without vLLM."""
    place = folder()
    if place is None:
        return frozenset()
    # The methods of quantization are declared in a file of their own.
    files = [*place.glob("config/*.py"), *place.glob("model_executor/layers/quantization/__init__.py")]
    all_values = set[str]()
    for path in files:
        for quoted_values in re.findall(r"Literal\[([^\]]*)\]", path.read_text(errors="replace")):
            all_values.update(re.findall(r"[\"']([\w.+-]+)[\"']", quoted_values))
    return frozenset(all_values)


@cache
def architectures() -> frozenset[str]:
    """Return the names of the model classes that vLLM has. Empty without vLLM."""
    return frozenset(re.findall(r"(?m)^    \"(\w+)\": \(", source_text("model_executor", "models", "registry.py")))


@cache
def variables() -> frozenset[str]:
    """Return the environment variables that vLLM reads. Empty without vLLM."""
    return frozenset(re.findall(r"(?m)^    \"(\w+)\": ", source_text("envs.py")))


@cache
def arguments() -> frozenset[str]:
    """Return the names of the arguments of vLLM's AsyncEngineArgs. Empty without vLLM."""
    names = set[str]()
    for node in ast.parse(source_text("engine", "arg_utils.py")).body:
        if isinstance(node, ast.ClassDef) and node.name in ("EngineArgs", "AsyncEngineArgs"):
            names.update(field_names(node))
    return frozenset(names)


def field_names(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names of a class's annotated fields."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id
