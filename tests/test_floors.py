"""The map of the house: imports run downward, each package says what it is for, and the page that shows it is right."""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from harness import FLOORS
from tests.conftest import ROOT

HARNESS = ROOT / "harness"
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
DOORS = {"__init__", "__main__"}  # which import what they lead to
LONGEST, MOST_MODULES = 350, 15
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
VAGUE = {"asked", "known", "others", "beside", "going", "row"}  # as names: each is a noun that says what it holds
# As names of modules, functions, classes and fields, which say what is told, and whose something is.
VAGUE_DEFINED = {"told", "said", "own"}


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """The line of each import of ours, and the package or module of harness/ that it names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "harness":
            parts = (node.module or "").split(".")
            yield from ((node.lineno, name) for name in ([parts[1]] if parts[1:] else [a.name for a in node.names]))
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, a.name.split(".")[1]) for a in node.names if a.name.startswith("harness."))


def package(path: Path) -> str:
    return path.relative_to(HARNESS).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(HARNESS.rglob("*.py")), ids=lambda path: str(path.relative_to(HARNESS)))
def test_imports_run_downward(path: Path) -> None:
    mine = package(path)
    if mine in DOORS:
        return
    wrong = [
        f"{path}:{line}: {mine} imports {name}"
        for line, name in imported(path)
        if name != mine and FLOOR.get(name, len(FLOORS)) >= FLOOR[mine]
    ]
    assert wrong == []


def test_every_package_is_on_a_floor() -> None:
    assert {package(path) for path in HARNESS.rglob("*.py")} == {*FLOOR, *DOORS}


def test_an_import_upward_is_found(tmp_path: Path) -> None:
    lines = ("from harness import benchmark", "from harness.results import metrics as m", "import harness.sweep.loop")
    (tmp_path / "a.py").write_text("\n".join(lines))
    assert list(imported(tmp_path / "a.py")) == [(1, "benchmark"), (2, "results"), (3, "sweep")]


def first_line(name: str) -> str:
    """Of a package's docstring."""
    return (ast.get_docstring(ast.parse((HARNESS / name / "__init__.py").read_text())) or "\n").splitlines()[0]


def highest_named(purpose: str, mine: int) -> int:
    """The highest floor that a package on floor `mine` may import by its docstring: -1 of one that imports nothing."""
    if named := re.search(r"May import (\w+)( and below)?\.$", purpose):
        return FLOOR[named[1]] if named[2] or FLOOR[named[1]] == 0 else -2
    return (
        mine - 1 if "May import all of these" in purpose else -1 if purpose.endswith("Imports nothing of ours.") else -2
    )


def test_the_rule_of_a_docstring_is_read() -> None:
    rules = (
        "May import config and below.",
        "May import common.",
        "May import config.",
        "Imports nothing of ours.",
        "It is.",
    )
    assert [highest_named(f"What it is. {rule}", 9) for rule in rules] == [FLOOR["config"], 0, -2, -1, -2]
    assert highest_named("May import all of these; only the commands import it.", 9) == 8


@pytest.mark.parametrize("name", [name for name in FLOOR if (HARNESS / name).is_dir()])
def test_a_package_names_the_floor_below_it(name: str) -> None:
    highest = highest_named(purpose := first_line(name), FLOOR[name])
    assert highest == FLOOR[name] - 1
    assert "all of these" not in purpose or FLOOR[name] >= len(FLOORS) - 2
    others = {other for path in (HARNESS / name).rglob("*.py") for _, other in imported(path)} - {name}
    assert {other for other in others if FLOOR[other] > highest} == set()


@pytest.mark.parametrize("name", [name for name in FLOOR if (HARNESS / name).is_dir()])
def test_a_package_says_what_it_is_for(name: str) -> None:
    purpose = first_line(name)
    assert purpose.endswith(".")
    assert f"| `{name}` | {purpose} |" in (ROOT / "docs" / "reference" / "architecture.md").read_text()
    assert len([path for path in (HARNESS / name).glob("*.py") if path.name != "__init__.py"]) <= MOST_MODULES


def test_no_file_is_too_long() -> None:
    long = {
        str(path): lines for path in HARNESS.rglob("*.py") if (lines := len(path.read_text().splitlines())) > LONGEST
    }
    assert long == {}


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line of each name that code gives or uses: of variables, parameters, attributes, functions and classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.alias(name=name, asname=asname):
                yield node.lineno, asname or name.split(".")[-1]


def defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line of each function, class and field of a class, and its name."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name, body=body):
                yield node.lineno, name
                for each in body:
                    if isinstance(each, ast.AnnAssign | ast.Assign):
                        targets = [each.target] if isinstance(each, ast.AnnAssign) else each.targets
                        yield from ((each.lineno, one.id) for one in targets if isinstance(one, ast.Name))


def named_here(*more: str) -> Iterator[Path]:
    yield from ROOT.glob("*.py")
    for folder in ("harness", "benchmarks", "demo", "docs", *more):
        yield from (ROOT / folder).rglob("*.py")


def test_no_name_is_vague() -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(named_here())
        for line, name in [(0, path.stem), *names(ast.parse(path.read_text()))]
        if name in VAGUE
    ]
    assert vague == []


def test_no_definition_is_named_by_what_was_told() -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(named_here("tests"))
        for line, name in [(0, path.stem), *defined(ast.parse(path.read_text()))]
        if name in VAGUE_DEFINED
    ]
    assert vague == []


def test_a_definition_is_a_function_a_class_or_a_field() -> None:
    text = "class A:\n    own: int\n    told = x = 1\n    def said(self): y = 2\nasync def f(z): pass\nv = 3\n"
    assert sorted(defined(ast.parse(text))) == [(1, "A"), (2, "own"), (3, "told"), (3, "x"), (4, "said"), (5, "f")]


def test_a_vague_name_is_found_wherever_it_stands() -> None:
    lines = (
        "import known",
        "from a import b as others",
        "def row(asked): pass",
        "beside = 1",
        "a.going",
        "f(known=f'{row}')",
    )
    found = [(line, name) for line, name in names(ast.parse("\n".join(lines))) if name in VAGUE]
    assert sorted(found) == [
        *((1, "known"), (2, "others"), (3, "asked"), (3, "row"), (4, "beside"), (5, "going"), (6, "known"), (6, "row"))
    ]


# Words that end as a participle does and are none, or that say what they are: nouns and adjectives of the field.
NO_PARTICIPLES = {"feed", "need", "seed", "speed"}
IRREGULAR = {
    *(
        "begun",
        "bound",
        "broken",
        "built",
        "chosen",
        "done",
        "drawn",
        "found",
        "given",
        "gone",
        "heard",
        "held",
        "kept",
        "known",
    ),
    *(
        "led",
        "left",
        "lost",
        "made",
        "said",
        "seen",
        "sent",
        "shown",
        "spent",
        "spoken",
        "stood",
        "taken",
        "told",
        "unmet",
        "written",
    ),
}
MOST_PARTICIPLES = 30


def test_functions_are_not_named_by_a_participle() -> None:
    """Effects are verbs (`run_tool`), values are nouns (`verdict`), booleans begin with is_, has_ or may_: a participle
    does not say whether a function computes, runs or writes. What is left are properties that read as adjectives."""
    found = {
        f"{path.relative_to(HARNESS)}:{node.name}"
        for path in HARNESS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.name.strip("_").endswith("ed") or node.name.strip("_") in IRREGULAR)
        and "_" not in node.name.strip("_")
        and node.name not in NO_PARTICIPLES
    }
    assert len(found) <= MOST_PARTICIPLES, sorted(found)


def can_fail(test: ast.AST, helpers: Collection[str]) -> bool:
    """Whether a test asserts, expects an error, or hands something to a helper that does."""
    for node in ast.walk(test):
        match node:
            case ast.Assert() | ast.Attribute(attr="raises" | "fail" | "warns"):
                return True
            case ast.Attribute(attr=name) if name.startswith("assert_"):
                return True
            case ast.Name(id=name) if name in helpers:
                return True
    return False


def test_every_test_can_fail() -> None:
    assert not can_fail(ast.parse("def test_x(): run(raises=1)"), {"check"}) and can_fail(
        ast.parse("check()"), {"check"}
    )
    trees = {path: ast.parse(path.read_text()) for path in (ROOT / "tests").rglob("*.py")}
    found = [(path, node) for path, tree in trees.items() for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    helpers = {node.name for _, node in found if not node.name.startswith("test_") and can_fail(node, ())}
    tests = [(path, node) for path, node in found if node.name.startswith("test_")]
    assert [f"{path}:{node.lineno} {node.name}" for path, node in tests if not can_fail(node, helpers)] == []


# Functions with an effect that say what came of it, and a property of a file's format.
MAY_RETURN_BOOLEANS = {"alone", "extend", "make_folder", "passed", "rounds", "watch", "work"}


def test_booleans_say_that_they_are() -> None:
    """A function that returns a boolean begins with is_, has_ or may_."""
    found = {
        f"{path.relative_to(HARNESS)}:{node.name}"
        for path in HARNESS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, FUNCTIONS) and node.returns and ast.unparse(node.returns).startswith(("bool", "TypeGuard"))
        if not node.name.lstrip("_").startswith(("is_", "has_", "may_", "bool_"))
        if node.name not in MAY_RETURN_BOOLEANS
    }
    assert found == set()
