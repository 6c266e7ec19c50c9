"""A command whose flags are the settings of a configuration."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import typer

from harness.config.flags import PANELS, RESULTS_TOPIC, Settings
from harness.config.value_types import TYPE_WORDS, TypeSchema, choices, types_of
from harness.core.command import Command, make_command
from harness.core.errors import one_line_errors
from harness.core.given_values import flag_name
from harness.core.shipped_files import shipped_names

Config = TypeVar("Config", bound=Settings)


def config_command(
    kind: type[Config], main: Callable[[Config], object], about: str, examples: Sequence[str] = (), **attributes: object
) -> Command:
    """Return a command that calls `main` with settings of class `kind`, from its flags and the file of --config.

    `about` is the beginning of its help. `attributes` are further attributes of the Command, such as `rewrite`.
    """

    def function(context: typer.Context, config: str | None, **flags: object) -> object:
        """Run `main` with the settings of the flags that were given, and of the file of --config."""
        named_flags = {}
        for name, value in flags.items():
            source = context.get_parameter_source(name)
            if source is not None and source.name != "DEFAULT":  # a default must not replace a setting of the file
                named_flags[name] = value
        file = Path(config) if config else None
        with one_line_errors(file):
            if file is None:
                return main(kind(**named_flags))
            return main(kind.load(file, **named_flags))

    # Typer reads the flags of a command from the signature of its function. Here they come from the settings instead.
    parameters = command_parameters(kind)
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    basic_flags = [*map(flag_name, kind.BASIC.split()), "--config"]
    # A command that only reads may end silently when its output is closed. One with settings runs or writes something.
    attributes = {"examples": examples, "panels": PANELS, "basic": basic_flags, "is_read_only": False} | attributes
    return make_command(function, about, **attributes)


def command_parameters(kind: type[Settings]) -> list[inspect.Parameter]:
    """Return the parameters of the command: Typer's context, a flag for each setting, and --config.

    The basic flags come first.
    """
    parameter = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    file = typer.Option(
        None,
        help=(
            f"YAML file with any of these settings, or one of {', '.join(shipped_names('configs'))} (for static fp8 "
            "scales; -static for Offline); flags win."
        ),
        rich_help_panel=RESULTS_TOPIC,
        metavar="FILE",
    )
    all_parameters = [parameter("context", annotation=typer.Context)]
    flags = kind.flags()
    basic_names = kind.BASIC.split()
    for name in dict.fromkeys((*basic_names, *kind.model_fields)):  # each name once, although a basic one is in both
        is_flag = bool(flags[name].panel)
        if not is_flag:  # The setting follows from others, so a user cannot set it.
            continue
        hint, default = setting_option(kind, name)
        all_parameters.append(parameter(name, annotation=hint, default=default))
    return [*all_parameters, parameter("config", annotation=str, default=file)]


def setting_option(kind: type[Settings], name: str) -> tuple[object, object]:
    """Return the type and the default of the flag for a setting, as Typer takes them.

    A setting without a description is hidden from the help.
    """
    info = kind.model_fields[name]
    setting_flag, default = kind.flags()[name], info.default
    text = " ".join((info.description or "").split())
    types = types_of(kind, name)
    # A flag whose value has a name of its own takes more than one choice, such as several with commas.
    has_own_value_name = bool(setting_flag.metavar)
    hint = flag_type(types, has_own_value_name)
    flag = flag_name(name)
    if hint is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    elif hint == list[str]:
        default = list(default)
    elif hint is str and default is not None:
        default = str(default)
    metavar = setting_flag.metavar or value_name(types)
    return hint, typer.Option(
        default, flag, help=text, rich_help_panel=setting_flag.panel, hidden=not text, metavar=metavar
    )


def flag_type(types: Mapping[str, TypeSchema], has_own_value_name: bool) -> object:
    """Return the type as which Typer reads a flag. `types` are the types that the setting takes.

    The settings class converts and checks what Typer reads as text. That is also so for a flag whose value has a name
    of its own: it takes several choices at once.
    """
    if "boolean" in types:
        return bool
    if "path" in types:
        return Path
    if "texts" in types:
        return list[str]
    takes_only_choices = list(types) == ["choice"]
    if takes_only_choices and not has_own_value_name:
        return Literal[tuple(map(str, choices(types)))]
    return str


def value_name(types: Mapping[str, TypeSchema]) -> str:
    """Return the values of a flag as the help names them, such as N|auto. `types` are those that the flag takes."""
    name = ""
    for type_name in types:
        if type_name in TYPE_WORDS:
            # A setting has one type with a placeholder. "array" has none, since its items are named.
            name = TYPE_WORDS[type_name].placeholder or name
    if "array" in types:
        name = f"{name}[,{name}...]"
    return "|".join(filter(None, [name, *map(str, choices(types))]))
