"""A config class as a command line: one flag a field, grouped by topic; `--config` files."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, fields
from itertools import zip_longest
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from harness.config.engine import EngineConfig
from harness.config.flags import OUTPUT, PANELS, UNRANKED, helps, setting
from harness.core.coerce import as_flag, read_given, unknown_setting
from harness.core.command import Command, make_command
from harness.core.errors import UsageError, ends_in_one_line
from harness.core.reading import load_yaml

Config = TypeVar("Config", bound=EngineConfig)
LARGEST_FILE = 4 * 2**20  # bytes of a --config file
ON_OFF = ("0", "1")
PLACEHOLDERS = {int: "N", float: "X", Path: "PATH"}  # what a flag of this type takes, in the help


def config_command(
    kind: type[Config],
    main: Callable[[Config], object],
    about: str,
    examples: Sequence[str] = (),
    rewrite: Callable[[Sequence[str]], Iterable[str]] = lambda words: words,
    operands: str = "",
) -> Command:
    """A command that reads the command line into a `kind` and runs `main` with it; `rewrite` turns its words, which
    the help calls `operands`, into flags."""

    def function(context: typer.Context, **flags: Any) -> object:
        path = context.params.get("config")
        with ends_in_one_line(f" (with --config {path})" if path else ""):
            settings = read_settings(context, kind)
            return main(kind(**settings, given=frozenset(settings)))

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    function.__signature__ = inspect.Signature([context, *parameters(kind)])  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in function.__signature__.parameters.values()}  # type: ignore[attr-defined]
    on_off = switches(kind)
    basic = [as_flag(item.name) for item in by_rank(kind) if item.metadata["rank"] < UNRANKED] + ["--config"]
    return make_command(
        function,
        about,
        examples=examples,
        panels=PANELS,
        rewrite=lambda words: with_values([*rewrite(words)], on_off),
        basic=basic,
        operands=operands,
    )


def by_rank(kind: type[Config]) -> "list[Field[Any]]":
    return sorted(fields(kind), key=lambda item: item.metadata["rank"])


def switches(kind: type[EngineConfig]) -> set[str]:
    """The flags that are on when they are given alone, and take 0 or 1."""
    hints = get_type_hints(kind)
    return {as_flag(name) for name, hint in hints.items() if is_switch(hint)}


def is_switch(hint: Any) -> bool:
    return hint is bool or get_args(hint) == (0, 1)


def with_values(words: Sequence[str], switches: set[str]) -> list[str]:
    """The command line with the 1 that a switch alone stands for."""
    return [
        f"{word}=1" if word in switches and after not in ON_OFF else word
        for word, after in zip_longest(words, words[1:])
    ]


def parameters(kind: type[EngineConfig]) -> list[inspect.Parameter]:
    hints, texts = get_type_hints(kind), helps(kind)
    path = Annotated[
        str | None,
        typer.Option(help="YAML file with any of these settings; flags win.", rich_help_panel=OUTPUT, metavar="FILE"),
    ]
    return [
        *(parameter(item, hints[item.name], texts.get(item.name, "")) for item in by_rank(kind)),
        inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=path),
    ]


def parameter(item: "Field[Any]", hint: Any, text: str) -> inspect.Parameter:
    """One flag. A switch, and a number that may be `auto`, are read as text; the config class converts and checks."""
    default: Any = item.default
    metadata = item.metadata
    option: dict[str, Any] = {"help": text, "rich_help_panel": metadata["panel"], "hidden": not text}
    members = [arg for arg in get_args(hint) if arg is not NoneType]
    if is_switch(hint):
        hint, default = str, str(int(default))
        option["metavar"] = "[0|1]"
    elif get_origin(hint) is Literal:
        hint, default = Literal[tuple(str(choice) for choice in members)], str(default)
        option["metavar"] = "|".join(str(choice) for choice in members)
    elif get_origin(hint) is tuple:
        hint, default = list[str], list(default)
        option["metavar"] = metadata["metavar"]
    elif any(get_origin(arg) in (Literal, tuple) for arg in members):
        hint, default = str, str(default)
        words = [str(word) for arg in members if get_origin(arg) is Literal for word in get_args(arg)]
        number = ["N"] if int in members else ["X"] if float in members else []
        number = [f"{one}[,{one}...]" if any(get_origin(arg) is tuple for arg in members) else one for one in number]
        option["metavar"] = "|".join([*number, *words]) if words else metadata["metavar"]
    option.setdefault(
        "metavar",
        metadata["metavar"] or next((PLACEHOLDERS[arg] for arg in (hint, *members) if arg in PLACEHOLDERS), "TEXT"),
    )
    annotation = Annotated[hint, typer.Option(as_flag(item.name), **option)]
    return inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def read_settings(context: typer.Context, kind: type[EngineConfig]) -> dict[str, Any]:
    """The settings the user gave: those of the `--config` file, then the flags on the command line."""
    flags = dict(context.params)
    path = flags.pop("config", None)
    settings = load_file(Path(path), kind) if path else {}
    for name, value in flags.items():
        if context.get_parameter_source(name).name != "DEFAULT":  # type: ignore[union-attr]
            settings[name] = value
    return settings


def load_file(path: Path, kind: type[EngineConfig]) -> dict[str, Any]:
    """The settings of a `--config` YAML file, keys as flags are named, with '-' or '_'. Raises UsageError."""
    import yaml

    data = read_given("--config", path, "YAML", load_yaml, yaml.YAMLError, LARGEST_FILE)
    if not isinstance(data, Mapping):
        raise UsageError(f"--config {path}: expected lines of `flag: value`.")
    settings = {setting(str(key)): value for key, value in data.items()}
    if twice := [key for key in map(str, data) if setting(key) != key and setting(key) in data]:
        raise UsageError(f"--config {path}: {setting(twice[0])} is given twice, also as {twice[0]}.")
    names = [item.name for item in fields(kind)]
    for key in settings:
        if key not in names:
            raise UsageError(f"--config {path}: {unknown_setting(key, names)}")
    return settings
