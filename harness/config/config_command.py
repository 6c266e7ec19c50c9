"""A command whose flags are the settings of a configuration."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import typer

from harness.config.flags import PANELS, RESULTS_TOPIC, Settings
from harness.config.value_types import TYPE_WORDS, choices, kinds
from harness.core.command import Command, make_command
from harness.core.errors import one_line_errors
from harness.core.given_values import flag_name

Config = TypeVar("Config", bound=Settings)


def config_command(
    kind: type[Config], main: Callable[[Config], object], about: str, examples: Sequence[str] = (), **known: object
) -> Command:
    """Return a command that reads the command line into a `kind` and runs `main` with it.

    `known` sets attributes of Command.
    """

    def function(context: typer.Context, config: str | None, **flags: object) -> object:
        named_flags = {}
        for name, value in flags.items():
            source = context.get_parameter_source(name)
            if source is not None and source.name != "DEFAULT":
                named_flags[name] = value
        with one_line_errors(Path(config) if config else None):
            return main(kind.load(Path(config), **named_flags) if config else kind(**named_flags))

    accepted = command_parameters(kind)
    function.__signature__ = inspect.Signature(accepted)  # type: ignore[attr-defined]
    function.__annotations__ = {
        accepted_parameter.name: accepted_parameter.annotation for accepted_parameter in accepted
    }
    basic = [*map(flag_name, kind.BASIC.split()), "--config"]
    return make_command(function, about, examples=examples, panels=PANELS, basic=basic, prints=False, **known)


def command_parameters(kind: type[Settings]) -> list[inspect.Parameter]:
    """Return the parameters of the command: a flag for each setting, and --config."""
    parameter = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    file = typer.Option(
        None, help="YAML file with any of these settings; flags win.", rich_help_panel=RESULTS_TOPIC, metavar="FILE"
    )
    all_parameters = [parameter("context", annotation=typer.Context)]
    for name in dict.fromkeys((*kind.BASIC.split(), *kind.model_fields)):
        hint, default = setting_option(kind, name)
        all_parameters.append(parameter(name, annotation=hint, default=default))
    return [*all_parameters, parameter("config", annotation=str, default=file)]


def setting_option(kind: type[Settings], name: str) -> tuple[object, object]:
    """Return the type and the default of a flag, as Typer takes them.

    A setting that is no switch, path, choice or list of texts is read as text. The settings class then converts and
    checks the text.
    """
    info = kind.model_fields[name]
    setting_flag, default = kind.flags()[name], info.default
    text = " ".join((info.description or "").split())
    types = kinds(kind, name)
    words = [*map(str, choices(types))]
    takes = "".join(TYPE_WORDS[type_name][0] for type_name in types if type_name in TYPE_WORDS)
    if "array" in types:
        takes = f"{takes}[,{takes}...]"
    hint: object = str
    if "boolean" in types or "path" in types:
        hint = bool if "boolean" in types else Path
    elif "texts" in types:
        hint, default = list[str], list(default)
    elif [*types] == ["choice"]:
        hint = Literal[tuple(words)]
    elif default is not None:
        default = str(default)
    flag = flag_name(name)
    if hint is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    metavar = setting_flag.metavar or "|".join(filter(None, [takes, *words]))
    return hint, typer.Option(
        default, flag, help=text, rich_help_panel=setting_flag.panel, hidden=not text, metavar=metavar
    )
