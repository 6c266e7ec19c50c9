"""The map of the house: imports run downward, each package says what it is for, and the page that shows it is right."""

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from harness import FLOORS
from tests.conftest import ROOT

HARNESS = ROOT / "harness"
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
DOORS = {"__init__", "__main__"}  # which import what they lead to
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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


def modules(root: Path) -> dict[str, set[str]]:
    """Each module of a package below `root`, and the modules of it that it imports, wherever in its code."""
    paths = {".".join(path.relative_to(root.parent).with_suffix("").parts): path for path in root.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        whole = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
        found[name] = ({node.module or "" for node in nodes} | whole) & paths.keys()
    return found


def circles(imports: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves by way of others: what is left when those that lead nowhere are taken out,
    from below and from above, again and again.
    """
    left = {name: found - {name} for name, found in imports.items()}
    while True:
        wanted = set().union(*left.values())
        ends = {name for name, found in left.items() if not found & left.keys() or name not in wanted}
        if not ends:
            return set(left)
        left = {name: found - ends for name, found in left.items() if name not in ends}


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles({n: found for n, found in modules(HARNESS).items() if n.split(".")[-1] not in DOORS}) == set()


def test_a_circle_within_a_package_is_found(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    for name, text in {
        "a": "def f():\n    from p import b\n",
        "b": "from p.c import x\n",
        "c": "from p.a import f\n",
        "d": "from p import a\n",
    }.items():
        (tmp_path / "p" / f"{name}.py").write_text(text)
    assert circles(modules(tmp_path / "p")) == {"p.a", "p.b", "p.c"}


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
        "May import core.",
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


def types_of(tree: ast.Module) -> Iterator[str]:
    """The names of a module's classes, and of what it calls a type: an alias, an enumeration, a type variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from (t.id for t in targets if isinstance(t, ast.Name) and re.fullmatch(r"[A-Z][a-z]\w*", t.id))


def test_types_of_every_kind_are_seen() -> None:
    tree = ast.parse("class A: pass\nKind = Literal['a']\nPair: TypeAlias = int\nMOST = 3\nT = TypeVar('T')\n")
    assert [*types_of(tree)] == ["A", "Kind", "Pair"]


def test_a_type_has_a_name_of_its_own() -> None:
    names = Counter(name for path in HARNESS.rglob("*.py") for name in types_of(ast.parse(path.read_text())))
    assert [name for name, count in names.items() if count > 1] == []


ALIKE = {"ABOUT", "DESCRIPTION", "EXAMPLES"}  # of every command


def test_a_constant_has_a_name_of_its_own() -> None:
    names: Counter[str] = Counter()
    for path in HARNESS.rglob("*.py"):
        assigned = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
        targets = [name for node in assigned for target in node.targets for name in ast.walk(target)]
        names.update(name.id for name in targets if isinstance(name, ast.Name) and name.id.isupper())
    assert [name for name, count in names.items() if count > 1 and name not in ALIKE] == []


HEADING = re.compile(r"\n\n#[^\n]*(\n#[^\n]*)*\n(\n|class |def |async def |@)")


def test_no_comment_divides_a_module() -> None:
    assert HEADING.search("x = 1\n\n# The second subject.\ndef f(): ...\n")
    divided = []
    for path in HARNESS.rglob("*.py"):
        text = path.read_text()
        first = re.search(r"(?m)^(class |def |async def )", text)
        if first and HEADING.search(text, first.start()):
            divided.append(str(path))
    assert divided == []


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


def names_of_function(function: ast.AST) -> list[ast.Name]:
    """The names in a function's own scope, by line; comprehensions and inner functions have scopes of their own."""
    names = []
    stack = list(ast.iter_child_nodes(function))
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    inner += (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name):
            names.append(node)
        if not isinstance(node, inner):
            stack += ast.iter_child_nodes(node)
    return sorted(names, key=lambda name: (name.lineno, name.col_offset))


def values_lost_to_loops(text: str) -> list[str]:
    """The names that a loop takes although they hold a value that is read after it."""
    lost = []
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        names = names_of_function(function)
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For | ast.AsyncFor)]
        targets = {id(name) for loop in loops for name in ast.walk(loop.target)}
        arguments = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
        for loop in loops:
            for taken in {name.id for name in ast.walk(loop.target) if isinstance(name, ast.Name)}:
                same = [name for name in names if name.id == taken]
                stored = [name for name in same if isinstance(name.ctx, ast.Store) and id(name) not in targets]
                had_value = taken in arguments or any(name.lineno < loop.lineno for name in stored)
                after = [name for name in same if name.lineno > (loop.end_lineno or 0)]
                if had_value and after and isinstance(after[0].ctx, ast.Load):
                    lost.append(f"{function.name}: {taken}")
    return lost


def test_no_loop_takes_a_name_whose_value_is_read_after_it() -> None:
    assert values_lost_to_loops("def f(a):\n  n = 'x'\n  for n in a:\n    print(n)\n  return n\n") == ["f: n"]
    assert values_lost_to_loops("def f(a):\n  n = 'x'\n  for n in a:\n    print(n)\n  n = 2\n  return n\n") == []
    for path in HARNESS.rglob("*.py"):
        assert values_lost_to_loops(path.read_text()) == [], path


def dense_expressions(tree: ast.AST) -> Iterator[int]:
    """The lines of expressions that hold several ideas: two loops or two conditions in a comprehension, a conditional
    within a conditional, and a walrus that is no condition of `if` or `while`.
    """
    conditions = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.If | ast.While) for part in ast.walk(node.test)
    }
    for node in ast.walk(tree):
        is_dense = False
        match node:
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                is_dense = len(node.generators) > 1 or any(len(loop.ifs) > 1 for loop in node.generators)
            case ast.IfExp():
                is_dense = any(isinstance(part, ast.IfExp) for part in ast.walk(node) if part is not node)
            case ast.NamedExpr():
                is_dense = id(node) not in conditions
        if is_dense:
            assert isinstance(node, ast.expr)
            yield node.lineno


def test_dense_expressions_of_every_kind_are_seen() -> None:
    lines = (
        "a = [x for y in z for x in y]",
        "b = [x for x in z if x if x > 1]",
        "c = 1 if a else 2 if b else 3",
        "d = (e := 1) + 1",
        "f = [x for x in z if x]",
        "while g := f.pop(): pass",
        "h = 1 if a else 2",
    )
    assert sorted(dense_expressions(ast.parse("\n".join(lines)))) == [1, 2, 3, 4]


def test_an_expression_holds_one_idea() -> None:
    dense = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(HARNESS.rglob("*.py"))
        for line in dense_expressions(ast.parse(path.read_text()))
    ]
    assert dense == []
