"""A class of settings as a command line: one flag a field, grouped by topic; `--config` files."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from harness.config.engine import EngineConfig
from harness.config.flags import NUMBERS, OUTPUT, PANELS, UNRANKED, items, members
from harness.core.coerce import as_flag
from harness.core.command import Command, make_command
from harness.core.errors import ends_in_one_line

Config = TypeVar("Config", bound=EngineConfig)
PLACEHOLDERS = {
    int: "N",
    float: "X",
    Path: "PATH",
    str: "TEXT",
    bool: "[0|1]",
}  # what a flag of this type takes, in the help


def config_command(
    kind: type[Config], main: Callable[[Config], object], about: str, examples: Sequence[str] = (), **known: Any
) -> Command:
    """A command that reads the command line into a `kind` and runs `main` with it; of a Command more may be `known`."""

    def function(context: typer.Context, config: str | None, **flags: Any) -> object:
        given = {name: value for name, value in flags.items() if context.get_parameter_source(name).name != "DEFAULT"}  # type: ignore[union-attr]
        with ends_in_one_line(f" (with --config {config})" if config else ""):
            return main(kind.load(Path(config), **given) if config else kind(**given))

    function.__signature__ = inspect.Signature(parameters(kind))  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in function.__signature__.parameters.values()}  # type: ignore[attr-defined]
    basic = [as_flag(name) for name, flag in kind.flags().items() if flag.rank < UNRANKED] + ["--config"]
    return make_command(function, about, examples=examples, panels=PANELS, basic=basic, **known)


def parameters(kind: type[EngineConfig]) -> list[inspect.Parameter]:
    file = typer.Option(help="YAML file with any of these settings; flags win.", rich_help_panel=OUTPUT, metavar="FILE")
    found: dict[str, tuple[Any, Any]] = {"context": (typer.Context, inspect.Parameter.empty)}
    ranked = sorted(kind.flags().items(), key=lambda item: item[1].rank)
    found |= {name: option(kind, name, kind.model_fields[name]) for name, _ in ranked}
    found |= {"config": (Annotated[str | None, file], None)}
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in found.items()
    ]


def option(kind: type[EngineConfig], name: str, info: FieldInfo) -> tuple[Any, Any]:
    """A flag as Typer takes it: annotation and default. What is neither a switch, a path, a choice nor a list of text
    is read as text, which the settings convert and check."""
    flag, default, text = kind.flags()[name], info.default, " ".join((info.description or "").split())
    kinds = [*members(info.annotation)]
    lists = [*items(kinds)]
    words = [str(word) for each in kinds if get_origin(each) is Literal for word in get_args(each)]
    number = next((PLACEHOLDERS[each] for each in kinds if each in NUMBERS), "")
    numbers = f"{number}[,{number}...]" if lists and number else number
    hint: Any = str
    if kinds in ([bool], [Path]):
        hint = kinds[0]
    elif lists == [str]:
        hint, default = list[str], list(default)
    elif words and len(kinds) == 1:
        hint = Literal[tuple(words)]
    made = typer.Option(
        f"{as_flag(name)}/--no-{as_flag(name)[2:]}" if hint is bool else as_flag(name),
        help=text,
        rich_help_panel=flag.panel,
        hidden=not text,
        metavar=flag.metavar or "|".join(filter(None, [numbers, *words])) or PLACEHOLDERS[kinds[0]],
    )
    if default is None:
        return Annotated[hint | None, made], None
    return Annotated[hint, made], default if hint is not str else str(default)
