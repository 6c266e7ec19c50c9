"""What a setting is: type, default, topic, help, what it affects; the rules across settings; and their command line."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import typer
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import to_jsonable_python

from harness.core.command import Command, make_command
from harness.core.errors import UsageError, ends_in_one_line
from harness.core.files import RENAMED, as_flag, check_path, check_printable, read_given, unknown_setting
from harness.core.reading import MIB, load_yaml
from harness.core.secrets import hide_word

Affects = Literal["work", "answers", "speed", "nothing"]  # what else than the report may change with a flag
MODEL, ENGINE = "Model", "Engine and GPUs"
BENCHMARK, DATA, RATE, ACCURACY, OUTPUT = "Benchmark", "Data", "Load", "Accuracy", "Results"
SERVER = "A running server"
PANELS = (BENCHMARK, RATE, MODEL, SERVER, ENGINE, DATA, ACCURACY, OUTPUT)  # in the order of the help

# What LoadGen can plan for, beyond which its counters overflow without a word; and requests at once, a connection each,
# of which a client has the ports for about 60,000.
MOST_S, MOST_MS, MOST_AT_ONCE = 30 * 24 * 3600, 10**6, 50_000
LARGEST_FILE = 4 * MIB  # bytes of a --config file


def positive(most: float) -> Any:
    return Field(gt=0, le=most)


def distinct(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Raises ValueError, whose text stands in the message, for a list that names a number twice."""
    if len(set(numbers)) < len(numbers) or not numbers:
        raise ValueError("a number is given twice")
    return numbers


Auto = Literal["auto"]
Seconds = Annotated[float, positive(MOST_S)]
Milliseconds = Annotated[int, positive(MOST_MS)]
AtOnce = Annotated[int, positive(MOST_AT_ONCE)]

Count = Annotated[int, positive(10**6)]
Context = Annotated[int, positive(10**8)]  # tokens
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Rate = Annotated[float, positive(10**6)]
Distinct = AfterValidator(distinct)


class Flag(NamedTuple):
    """How a setting is shown, and what changes with it."""

    panel: str
    affects: Affects
    metavar: str = ""


def setting(key: str) -> str:
    """The setting that a key of a file names, written with '-' or '_', or by an older name."""
    name = key.replace("-", "_")
    return RENAMED.get(name, name)


def flag(default: Any, panel: str, affects: Affects, metavar: str = "") -> Any:
    """A setting that is a command-line flag, a key of `--config` files and a field of `config.json` at once. The text
    below it is its help; without one it is not shown.

    `work` is the work of the engine; speeds at other work are not compared. A flag that affects answers may affect
    speed, too. What two runs must share to be compared, or for one's rate to serve the other, follows from this.
    """
    return Field(default, json_schema_extra={"flag": Flag(panel, affects, metavar)})  # type: ignore[dict-item]


# What is refused: each message, in which {run.NAME} is filled in, and when it is so. `run.given` are the settings that
# the user named.
When = str | Callable[[Any], object]  # an attribute of the run that holds something, or what is made of the run
Rules = Mapping[str, When]


def is_so(when: When, run: object) -> object:
    return attrgetter(when)(run) if isinstance(when, str) else when(run)


def broken(rules: Rules, run: object) -> list[str]:
    """The messages of the rules that a run breaks."""
    return [message.format(run=run) for message, when in rules.items() if is_so(when, run)]


warnings.filterwarnings("ignore", 'Field name "json"')  # of pydantic's own older methods, which nothing here uses


class Settings(BaseModel):
    """Settings by name, from flags, from a `--config` file, or from a record. Those that are wrong, unknown, or against
    the RULES of the class or its bases, raise UsageError with the flag's name."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
        defer_build=True,
    )
    RULES: ClassVar[Rules] = {}
    BASIC: ClassVar = ""
    """The flags of -h, in its order; --help-all has the rest."""
    named: ClassVar[Callable[[str], str]] = as_flag  # as messages call a setting

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise UsageError(mistake(type(self), error, settings)) from None

    @classmethod
    def load(cls, path: Path, /, **flags: Any) -> Self:
        """The settings of a `--config` YAML file, keys as flags are named, with '-' or '_'; `flags` win. Raises
        UsageError."""
        import yaml

        data = read_given("--config", path, "YAML", load_yaml, yaml.YAMLError, LARGEST_FILE)
        if not isinstance(data, Mapping):
            raise UsageError(f"--config {path}: expected lines of `flag: value`.")
        settings = {setting(str(key)): value for key, value in data.items()}
        if twice := [key for key in map(str, data) if setting(key) != key and setting(key) in data]:
            raise UsageError(f"--config {path}: {setting(twice[0])} is given twice, also as {twice[0]}.")
        return cls(**settings | flags)

    @field_validator("*", mode="before")
    @classmethod
    def read(cls, value: Any, info: ValidationInfo) -> Any:
        """Text as the choice or the list that it writes out; true and false are no numbers."""
        name = str(info.field_name)
        found = kinds(cls, name)
        if isinstance(value, str):
            check_printable(cls.named(name), value)
            if "texts" not in found:
                check_path(cls.named(name), value)
        for choice in choices(found):
            if str(choice) == str(value):
                return choice
        if isinstance(value, bool) and "boolean" not in found:
            raise ValueError  # of pydantic's numbers they are some
        if "texts" in found and isinstance(value, str):
            return (value,)
        return tuple(value.split(",")) if "array" in found and isinstance(value, str) and "," in value else value

    @model_validator(mode="after")
    def complete(self) -> Self:
        self.__dict__.update(self.implications(self.given))
        for kind in reversed(type(self).__mro__):
            if found := broken(vars(kind).get("RULES", {}), self):
                raise UsageError(found[0])
        return self

    @property
    def given(self) -> frozenset[str]:
        """The settings that the user named, also at their default, but for a switch that is off, and for null."""
        named = self.values(self.model_fields_set).items()
        return frozenset(name for name, value in named if value is not False and value is not None)

    def implications(self, given: frozenset[str]) -> dict[str, object]:
        """The settings that follow from others, some of which were `given`."""
        return {}

    def changed(self, **settings: Any) -> Self:
        """The same but for some settings, which are checked as all are."""
        return type(self)(**self.values(self.model_fields_set) | settings)

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    @classmethod
    def differing(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What of a record's settings is other than the default, and a setting of this version."""
        return {
            name: settings[name]
            for name, info in cls.model_fields.items()
            if name in settings and to_jsonable_python(settings[name]) != to_jsonable_python(info.default)
        }

    @classmethod
    def flags(cls) -> dict[str, Flag]:
        """How each setting is shown, by name."""
        fields: Mapping[str, Any] = cls.model_fields
        unseen = {"flag": Flag("", "nothing")}
        return {name: (info.json_schema_extra or unseen)["flag"] for name, info in fields.items()}

    @classmethod
    def affecting(cls, *what: Affects) -> tuple[str, ...]:
        """The names of the settings that affect any of `what`."""
        return tuple(name for name, flag in cls.flags().items() if flag.affects in what)


@cache
def kinds(settings: type[BaseModel], name: str) -> dict[str, dict[str, Any]]:
    """The types that a setting may have, but for null, as JSON schemas, each by what it is: "texts" are a list."""
    schema = TypeAdapter(settings.model_fields[name].rebuild_annotation()).json_schema()
    found = {}
    for each in schema.get("anyOf", [schema]):
        match each:
            case {"const": only}:
                found["choice"] = {"enum": [only]}
            case {"enum": _}:
                found["choice"] = each
            case {"items": {"type": "string"}}:
                found["texts"] = each
            case {"format": what} | {"type": what}:
                found[what] = each
    found.pop("null", None)
    return found


def choices(found: Mapping[str, Mapping[str, Any]]) -> Sequence[Any]:
    """The values that are chosen from, if any."""
    return found["choice"]["enum"] if "choice" in found else ()


# What a flag of a type takes: in the help, and in messages.
TYPES = {
    "integer": ("N", "a whole number"),
    "number": ("X", "a number"),
    "path": ("PATH", "a path"),
    "string": ("TEXT", "text"),
    "boolean": ("[0|1]", "true or false"),
    "array": ("", "numbers with commas between"),
}


def describe(name: str, schema: Mapping[str, Any], metavar: str) -> str:
    """A type in words, for messages; `metavar` is an item of a list of texts."""
    if name == "texts":
        return f"a list of {metavar}"
    if name == "choice":
        return " or ".join(map(str, schema["enum"]))
    _, words = TYPES[name]
    match schema:
        case {"exclusiveMinimum": low, "maximum": high}:
            return f"{words} above {low}, at most {high:,}"
        case {"minimum": low, "maximum": high}:
            return f"{words} from {low:,} to {high:,}"
        case {"minimum": low}:
            return f"{words} of {low} or more"
    return words


def mistake(kind: type[Settings], error: ValidationError, settings: Mapping[str, Any]) -> str:
    """The first thing that is wrong with settings, in one line."""
    errors = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    name = str(errors[0]["loc"][0])
    if errors[0]["type"] == "extra_forbidden":
        return unknown_setting(name, list(kind.model_fields))
    if own := [said for each in errors if each["type"] == "value_error" and (said := str(each["ctx"]["error"]))]:
        return f"{kind.named(name)}: {own[0]}."
    if errors[0]["type"] == "missing":
        return f"{kind.named(name)} is missing."
    takes = " or ".join(describe(*each, kind.flags()[name].metavar) for each in kinds(kind, name).items())
    got = hide_word(value) if isinstance(value := settings[name], str) else value
    return f"{kind.named(name)} takes {takes}; got {got!r}."


Config = TypeVar("Config", bound=Settings)


def config_command(
    kind: type[Config], main: Callable[[Config], object], about: str, examples: Sequence[str] = (), **known: Any
) -> Command:
    """A command that reads the command line into a `kind` and runs `main` with it; of a Command more may be `known`."""

    def function(context: typer.Context, config: str | None, **flags: Any) -> object:
        given = {name: value for name, value in flags.items() if context.get_parameter_source(name).name != "DEFAULT"}  # type: ignore[union-attr]
        with ends_in_one_line(f" (with --config {config})" if config else ""):
            return main(kind.load(Path(config), **given) if config else kind(**given))

    taken = parameters(kind)
    function.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in taken}
    basic = [*map(as_flag, kind.BASIC.split()), "--config"]
    return make_command(function, about, examples=examples, panels=PANELS, basic=basic, prints=False, **known)


def parameters(kind: type[Settings]) -> list[inspect.Parameter]:
    parameter = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    file = typer.Option(
        None, help="YAML file with any of these settings; flags win.", rich_help_panel=OUTPUT, metavar="FILE"
    )
    flags = ((name, *option(kind, name)) for name in dict.fromkeys((*kind.BASIC.split(), *kind.model_fields)))
    return [
        parameter("context", annotation=typer.Context),
        *(parameter(name, annotation=hint, default=made) for name, hint, made in flags),
        parameter("config", annotation=str, default=file),
    ]


def option(kind: type[Settings], name: str) -> tuple[Any, Any]:
    """A flag as Typer takes it: type and default. What is neither a switch, a path, a choice nor a list of text is read
    as text, which the settings convert and check."""
    info = kind.model_fields[name]
    flag, default, text = kind.flags()[name], info.default, " ".join((info.description or "").split())
    found = kinds(kind, name)
    words, takes = [*map(str, choices(found))], "".join(TYPES[each][0] for each in found if each in TYPES)
    numbers = f"{takes}[,{takes}...]" if "array" in found else takes
    hint: Any = str
    if "boolean" in found or "path" in found:
        hint = bool if "boolean" in found else Path
    elif "texts" in found:
        hint, default = list[str], list(default)
    elif [*found] == ["choice"]:
        hint = Literal[tuple(words)]
    elif default is not None:
        default = str(default)
    return hint, typer.Option(
        default,
        f"{as_flag(name)}/--no-{as_flag(name)[2:]}" if hint is bool else as_flag(name),
        help=text,
        rich_help_panel=flag.panel,
        hidden=not text,
        metavar=flag.metavar or "|".join(filter(None, [numbers, *words])),
    )
