"""What the installed vLLM's sources say of it, read as text: importing vLLM takes 10 to 20 seconds."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

LITERAL, WORD = re.compile(r"Literal\[([^\]]*)\]"), re.compile(r"[\"']([\w.+-]+)[\"']")
VARIABLE = re.compile(r"^    \"(\w+)\": ", re.M)
ARCHITECTURE = re.compile(r"^    \"(\w+)\": \(", re.M)


def folder() -> Path | None:
    """Where vLLM is installed; None where it is not."""
    spec = find_spec("vllm")
    return Path(spec.origin).parent if spec and spec.origin else None


@cache
def enumerations() -> frozenset[str]:
    """The values of the enumerations among vLLM's settings; none without vLLM."""
    place = folder()
    files = [*place.glob("config/*.py"), *place.glob("model_executor/layers/quantization/__init__.py")] if place else []
    lists = (found for path in files for found in LITERAL.findall(path.read_text(errors="replace")))
    return frozenset(word for found in lists for word in WORD.findall(found))


@cache
def architectures() -> frozenset[str]:
    """The names of the model classes that vLLM has; none without vLLM."""
    place = folder()
    text = (place / "model_executor" / "models" / "registry.py").read_text() if place else ""
    return frozenset(ARCHITECTURE.findall(text))


@cache
def variables() -> frozenset[str]:
    """The environment variables that vLLM reads; none without vLLM."""
    place = folder()
    return frozenset(VARIABLE.findall((place / "envs.py").read_text())) if place else frozenset()


@cache
def arguments() -> frozenset[str]:
    """The arguments of vLLM's AsyncEngineArgs; none without vLLM."""
    place = folder()
    return frozenset(fields(place / "engine" / "arg_utils.py")) if place else frozenset()


def fields(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name in ("EngineArgs", "AsyncEngineArgs"):
            yield from (
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            )
