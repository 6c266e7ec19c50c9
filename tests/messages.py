"""What the program says where something is wrong, as one file to be read as prose: tests/messages.txt.

Taken from the source of harness/, module by module: the texts of exceptions, of a command line's errors, of its rules,
and of what is printed on standard error, with {} where a value stands. After a change: `python -m tests.messages`, then
read the diff.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SNAPSHOT = Path(__file__).with_suffix(".txt")
COMMAND = "python -m tests.messages"


def templates(node: ast.expr) -> list[str]:
    """The texts that an expression can be, with {} for each value; one for each branch of a condition."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(part.value if isinstance(part, ast.Constant) else "{}" for part in parts)]
        case ast.IfExp(body=body, orelse=other):
            return [*templates(body), *templates(other)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [one + two for one in templates(left) for two in templates(right)]
    return ["{}"]


def shown(call: ast.Call) -> list[ast.expr]:
    """What a call would show to a user."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    on_screen = any(ast.unparse(keyword) == "file=sys.stderr" for keyword in call.keywords)
    return call.args if name.endswith("Error") or name == "error" or (name == "print" and on_screen) else []


def rules(node: ast.AST) -> list[ast.expr]:
    """The messages of RULES, which are the keys of a dictionary."""
    match node:
        case ast.AnnAssign(target=ast.Name(id="RULES"), value=ast.Dict(keys=keys)):
            return [key for key in keys if key]
    return []


def texts(source: str) -> list[str]:
    """The messages of a module in the order of their lines, each once."""
    nodes = list(ast.walk(ast.parse(source)))
    said = [argument for node in nodes if isinstance(node, ast.Call) for argument in shown(node)]
    said += [key for node in nodes for key in rules(node)]
    said.sort(key=lambda text: (text.lineno, text.col_offset))
    found = [re.sub(r"{[^}]+}", "{}", text) for argument in said for text in templates(argument)]
    return [text for text in dict.fromkeys(found) if re.search("[a-z]{2}", text)]


def pages() -> Iterator[str]:
    for path in sorted((ROOT / "harness").rglob("*.py")):
        if found := texts(path.read_text()):
            yield "\n".join([str(path.relative_to(ROOT)), *map(indented, found), ""])


def indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines() if line)


def current() -> str:
    return "\n".join(pages())


if __name__ == "__main__":
    SNAPSHOT.write_text(current())
    print(SNAPSHOT.relative_to(ROOT))
