"""What docstrings and comments name exists: a back-ticked name in its own file or as a definition of the house, a name
in capitals in its own file."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

HARNESS = ROOT / "harness"
FILES = sorted(HARNESS.rglob("*.py"))
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
TICKED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`")
CAPITALS = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b|\b[A-Z]{4,}\b")
# Words of the field, placeholders, and names in other programs' sources.
WORDS = {
    *("CUDA", "CUTLASS", "DCGM", "DONE", "EMPTY", "FIFO", "FILE", "HPMLL", "HTML", "HTTP", "INVALID", "JSON", "JSONL"),
    *(
        "MLFLOW_TRACKING_URI",
        "MMLU",
        "MODEL",
        "NAME",
        "NLTK",
        "NVIDIA",
        "NVML",
        "PATH",
        "README",
        "RUN_DIR",
        "SIGILL",
        "TPOT",
    ),
    *("TTFT", "VALID", "VALUE", "VLLM", "WHATWG", "YAML"),
}
FOREIGN = {
    *("ARCH_REQ_XCOMP_PERM", "ENXIO", "MIN_TREND_N", "NVML_FI_DEV_MEMORY_TEMP", "SYSTEM_DESC_", "VLLM_"),
    *("MessageQueue", "PROFILED_STEPS", "TZ", "benchmarks", "capitalize", "conf", "owned_by", "py"),
}


def texts(tree: ast.Module, source: str) -> Iterator[tuple[int, str]]:
    """Every docstring, of attributes too, and every comment, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            for each in node.body:
                if (
                    isinstance(each, ast.Expr)
                    and isinstance(each.value, ast.Constant)
                    and isinstance(each.value.value, str)
                ):
                    yield each.lineno, each.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def names_in(tree: ast.Module) -> set[str]:
    """Every name that the code of a file gives or uses, those in its texts for programs included."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=asname):
                found |= {*name.split("."), asname or name}
            case ast.ImportFrom(module=str(name)):
                found |= {*name.split(".")}
            case ast.Constant(value=str(text)):
                found |= {*re.findall(r"\w+", text)}
    return found


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            node.body = [
                each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return tree


def definitions(tree: ast.Module) -> Iterator[str]:
    """The names of functions, classes, constants, fields and methods."""
    for node in [*tree.body, *(each for one in tree.body if isinstance(one, ast.ClassDef) for each in one.body)]:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AnnAssign(target=target) | ast.Assign(targets=[target]):
                yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def words_alone(tree: ast.Module) -> Iterator[str]:
    """Texts of one word: settings, columns, values of flags."""
    nodes = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    yield from filter(str.isidentifier, nodes)


BESIDE = [*ROOT.glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
HOUSE = {part for path in (*FILES, *BESIDE) for part in path.with_suffix("").parts} | {
    name
    for tree in (ast.parse(path.read_text()) for path in FILES)
    for name in (*definitions(tree), *words_alone(tree))
}


def strangers(source: str) -> list[str]:
    """The names in docstrings and comments that name nothing, with their lines."""
    own, found = names_in(without_docstrings(ast.parse(source))) | FOREIGN, []
    for line, text in texts(ast.parse(source), source):
        ticked = [name for name in TICKED.findall(text) if not {*name.split(".")} <= own | HOUSE]
        capitals = [name for name in CAPITALS.findall(text) if name not in own | WORDS]
        found += [f"{line}: {name}" for name in dict.fromkeys((*ticked, *capitals))]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HARNESS)))
def test_what_a_docstring_names_exists(path: Path) -> None:
    assert strangers(path.read_text()) == []


def test_a_name_that_is_gone_is_found() -> None:
    source = '"""As `opened_once` has it, by `Engine.spawn`."""\n\nLEAST = 1\n# From ENOUGH on, at LEAST, in JSON.\n'
    assert strangers(source) == ["1: opened_once", "4: ENOUGH"]
