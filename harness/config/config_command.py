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
    """Return a command that reads its flags, and the file of --config, into settings of class `kind`, and calls `main`
    with the settings.

    `attributes` are further attributes of Command that differ from its defaults.
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

    # Typer reads a command's flags from the signature, which here follows from the settings.
    parameters = command_parameters(kind)
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    basic = [*map(flag_name, kind.BASIC.split()), "--config"]
    attributes = {"examples": examples, "panels": PANELS, "basic": basic, "is_read_only": False} | attributes
    return make_command(function, about, **attributes)


def command_parameters(kind: type[Settings]) -> list[inspect.Parameter]:
    """Return the parameters of the command: Typer's context, a flag for each setting, and --config.

    The basic flags come first. A setting that follows from others has no flag.
    """
    parameter = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    file = typer.Option(
        None,
        help=f"YAML file with any of these settings, or one of {', '.join(shipped_names('configs'))}; flags win.",
        rich_help_panel=RESULTS_TOPIC,
        metavar="FILE",
    )
    all_parameters = [parameter("context", annotation=typer.Context)]
    flags = kind.flags()
    for name in dict.fromkeys((*kind.BASIC.split(), *kind.model_fields)):
        if not flags[name].panel:  # a setting that follows from others is no flag
            continue
        hint, default = setting_option(kind, name)
        all_parameters.append(parameter(name, annotation=hint, default=default))
    return [*all_parameters, parameter("config", annotation=str, default=file)]


def setting_option(kind: type[Settings], name: str) -> tuple[object, object]:
    """Return the type and the default of the flag for a setting, as Typer takes them.

    Typer itself reads a switch, a path, a choice and a list of texts. Any other setting is read as text, which the
    settings class then converts and checks. A setting without a description is hidden from the help.
    """
    info = kind.model_fields[name]
    setting_flag, default = kind.flags()[name], info.default
    text = " ".join((info.description or "").split())
    types = types_of(kind, name)
    flag = flag_name(name)
    hint: object = str
    if "boolean" in types:
        hint = bool
        flag = f"{flag}/--no-{flag[2:]}"
    elif "path" in types:
        hint = Path
    elif "texts" in types:
        hint, default = list[str], list(default)
    elif list(types) == ["choice"] and not setting_flag.metavar:  # A metavar says that more than a choice is taken.
        hint = Literal[tuple(map(str, choices(types)))]
    elif default is not None:
        default = str(default)
    metavar = setting_flag.metavar or value_name(types)
    return hint, typer.Option(
        default, flag, help=text, rich_help_panel=setting_flag.panel, hidden=not text, metavar=metavar
    )


def value_name(types: Mapping[str, TypeSchema]) -> str:
    """Return the values of a flag as the help names them, such as N|auto. `types` are those that the flag takes."""
    name = ""
    for type_name in types:
        if type_name in TYPE_WORDS:
            name += TYPE_WORDS[type_name].placeholder
    if "array" in types:
        name = f"{name}[,{name}...]"
    return "|".join(filter(None, [name, *map(str, choices(types))]))
