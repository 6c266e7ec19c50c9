"""A config dataclass as a command line: one flag a field, grouped by topic."""

import codecs
import inspect
import locale
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import typer

from harness.config import EngineConfig, as_flag, load_file
from harness.errors import BenchmarkError

Config = TypeVar("Config", bound=EngineConfig)


def in_utf8() -> None:
    """Starts this command over in Python's UTF-8 mode where the locale has another encoding.

    Data, reports and the sources that torch reads are in UTF-8 on every machine.
    """
    if codecs.lookup(locale.getpreferredencoding(False)).name != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def run_command(kind: type[Config], main: Callable[[Config], NoReturn], about: str) -> None:
    """Reads the command line into a `kind` and runs `main` with it; what the user did wrong ends with one line."""
    in_utf8()

    def command(context: typer.Context, **flags: Any) -> None:
        try:
            main(kind(**given(context, kind)))
        except BenchmarkError as error:
            path = context.params.get("config")
            where = f" (with --config {path})" if path and str(path) not in str(error) else ""
            print(f"error: {error}{where}", file=sys.stderr)
            raise SystemExit(error.exit_code) from None

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    command.__signature__ = inspect.Signature([context, *parameters(kind)])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in command.__signature__.parameters.values()}  # type: ignore[attr-defined]
    command.__doc__ = about
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command()(command)
    app()


def parameters(kind: type[EngineConfig]) -> list[inspect.Parameter]:
    """The flags of a config class, and `--config`."""
    hints = get_type_hints(kind)
    path = Annotated[
        Path | None, typer.Option(help="YAML file with any of these settings; flags win.", rich_help_panel="Results")
    ]
    return [
        *(parameter(item.name, hints[item.name], item.default, item.metadata) for item in fields(kind)),
        inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=path),
    ]


def parameter(name: str, hint: Any, default: Any, metadata: Any) -> inspect.Parameter:
    """One flag. A number that may be `auto` is read as text; the config class converts and checks it."""
    option: dict[str, Any] = {"help": metadata["help"], "rich_help_panel": metadata["panel"]}
    members = [arg for arg in get_args(hint) if arg is not NoneType]
    if get_origin(hint) is Literal:
        hint, default = Literal[tuple(str(choice) for choice in members)], str(default)
    elif get_origin(hint) is tuple:
        hint, default = list[str], list(default)
        option["metavar"] = "KEY=VALUE"
    elif any(get_origin(arg) is Literal for arg in members):
        hint = str
        words = [str(word) for arg in members for word in get_args(arg)]
        option["metavar"] = "|".join(["N" if int in members else "X", *words])
    annotation = Annotated[hint, typer.Option(as_flag(name), **option)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def given(context: typer.Context, kind: type[EngineConfig]) -> dict[str, Any]:
    """The settings the user gave: those of the `--config` file, then the flags on the command line."""
    values = dict(context.params)
    path = values.pop("config", None)
    settings = load_file(path, kind) if path else {}
    for name, value in values.items():
        if context.get_parameter_source(name).name != "DEFAULT":  # type: ignore[union-attr]
            settings[name] = value
    return settings
