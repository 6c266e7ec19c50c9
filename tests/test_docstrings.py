"""What docstrings and comments name exists: a back-ticked name in its own file or as a definition of the house, a name
in capitals in its own file, `module.Name` in the module, a path in the repository."""

import ast
import io
import re
import tokenize
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

HARNESS = ROOT / "harness"
FILES = sorted(HARNESS.rglob("*.py"))
PLACES = {path.name: path for folder in (HARNESS, ROOT) for path in folder.iterdir() if path.is_dir()}
ANYWHERE = [path for name in ("harness", "benchmarks", "demo", "docs", "tests") for path in (ROOT / name).rglob("*.py")]
PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(PLACES)})/[\w./-]*\w\.(?!cc\b)\w+")
DOTTED = re.compile(r"(?<![`\w./{-])([a-z_]\w*)\.([A-Za-z_]\w*)(?![\w/]|\.\w)")
ENDINGS = {"conf", "css", "csv", "db", "html", "js", "json", "log", "md", "py", "txt"}
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


MODULES: dict[str, set[str]] = {}  # by name: what stands at the top of those of that name
for each in FILES:
    at_init = each.name == "__init__.py"
    MODULES.setdefault(each.parent.name if at_init else each.stem, set()).update(
        definitions(ast.parse(each.read_text())), (one.stem for one in each.parent.iterdir() if at_init)
    )


def dotted_strangers(text: str, own: Container[str]) -> list[str]:
    """What is written as an attribute of a module of the house, or as a class of any, and is none; `own`: modules that
    the file imports."""
    return [
        f"{module}.{name}"
        for module, name in DOTTED.findall(text)
        if (module in MODULES or (name[0].isupper() and module not in own))
        and name not in MODULES.get(module, ())
        and name not in WORDS | ENDINGS | {"OLD"}
    ]


def lost_paths(text: str) -> list[str]:
    """Paths in a folder of the repository, or in a package of harness/, that lead nowhere; those in results/ are of
    runs."""
    found = [path for path in PATH.findall(text) if not path.startswith("results/") and "FILE" not in path]
    return [path for path in found if not (ROOT / path).exists() and not (HARNESS / path).exists()]


@pytest.mark.parametrize("path", ANYWHERE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_that_is_named_exists(path: Path) -> None:
    source = path.read_text()
    assert [(line, lost) for line, text in texts(ast.parse(source), source) if (lost := lost_paths(text))] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HARNESS)))
def test_what_is_named_of_a_module_exists(path: Path) -> None:
    source = path.read_text()
    tree = ast.parse(source)
    own = names_in(without_docstrings(tree))
    found = [(line, lost) for line, text in texts(ast.parse(source), source) if (lost := dotted_strangers(text, own))]
    assert found == []


def test_paths_and_names_of_modules_that_are_gone_are_found() -> None:
    assert lost_paths("docs/performance.md, docs/rates.md, rates/search.py, rates/nothing.py (results/x.md)") == [
        "docs/performance.md",
        "rates/nothing.py",
    ]
    text = "facts.ServerUse of delivery.ServerUse, delivery.Nothing, yaml.YAMLError, run.py, config.json, run.{NAME}"
    assert dotted_strangers(text, {"yaml"}) == ["facts.ServerUse", "delivery.Nothing"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HARNESS)))
def test_what_a_docstring_names_exists(path: Path) -> None:
    assert strangers(path.read_text()) == []


def test_a_name_that_is_gone_is_found() -> None:
    source = '"""As `opened_once` has it, by `Engine.spawn`."""\n\nLEAST = 1\n# From ENOUGH on, at LEAST, in JSON.\n'
    assert strangers(source) == ["1: opened_once", "4: ENOUGH"]
