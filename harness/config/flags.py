"""A setting: type, default, topic, help, what it affects; the rules across settings; and their command line."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from harness.config.value_types import choices, describe, kinds
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_SETTINGS
from harness.core.given_values import (
    RENAMED_SETTINGS,
    as_flag,
    check_path,
    check_printable,
    read_given,
    unknown_setting,
)
from harness.core.plain_numbers import has_other_digits
from harness.core.reading import load_yaml
from harness.core.secrets import hide_word

# The part of a run beside the report that may change with a flag.
Affects = Literal["work", "answers", "speed", "nothing"]
MODEL_TOPIC, ENGINE_TOPIC = "Model", "Engine and GPUs"
BENCHMARK_TOPIC, DATA_TOPIC, LOAD_TOPIC, ACCURACY_TOPIC, RESULTS_TOPIC = (
    "Benchmark",
    "Data",
    "Load",
    "Accuracy",
    "Results",
)
SERVER_TOPIC = "A running server"
NUMBER_TYPES = frozenset({"integer", "number", "array"})
TEXT_TYPES = frozenset({"string", "texts", "path"})
PANELS = (
    BENCHMARK_TOPIC,
    LOAD_TOPIC,
    MODEL_TOPIC,
    SERVER_TOPIC,
    ENGINE_TOPIC,
    DATA_TOPIC,
    ACCURACY_TOPIC,
    RESULTS_TOPIC,
)  # in the order of the help


class Flag(NamedTuple):
    """The help of a setting, and what changes with it."""

    panel: str
    affects: Affects
    metavar: str = ""


def setting(key: str) -> str:
    """The setting that a key of a file names, written with '-' or '_', or by an older name."""
    name = key.replace("-", "_")
    return RENAMED_SETTINGS.get(name, name)


def flag(default: object, panel: str, affects: Affects, metavar: str = "") -> Any:
    """A setting that is a command-line flag, a key of `--config` files and a field of `config.json` at once. The text
    below it is its help; without one it is not shown.

    `work` is the work of the engine; speeds at other work are not compared. A flag that affects answers may affect
    speed, too. What two runs must share to be compared, or for one's rate to serve the other, follows from this.
    """
    return Field(default, json_schema_extra={"flag": Flag(panel, affects, metavar)})  # type: ignore[dict-item]


# Pydantic's own older methods have this name, and nothing here uses them.
warnings.filterwarnings("ignore", 'Field name "json"')


class Settings(BaseModel):
    """Settings by name, from flags, from a `--config` file, or from a record. Those that are wrong, unknown, or against
    one of the `problems` of the class, raise UsageError with the flag's name.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
        defer_build=True,
    )
    BASIC: ClassVar = ""
    """The flags of -h, in its order; --help-all has the rest."""
    named: ClassVar[Callable[[str], str]] = as_flag  # as messages call a setting

    def __init__(self, /, **settings: object) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise UsageError(first_mistake(type(self), error, settings)) from None

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> Self:
        """Settings whose names are known only as the program runs. Raises UsageError."""
        return cls(**settings)

    @classmethod
    def load(cls, path: Path, /, **flags: object) -> Self:
        """The settings of a `--config` YAML file, keys as flags are named, with '-' or '_'; `flags` win. Raises
        UsageError.
        """
        import yaml

        data = read_given("--config", path, "YAML", load_yaml, yaml.YAMLError, most=LARGEST_SETTINGS)
        if not isinstance(data, Mapping):
            raise UsageError(f"{path}: expected lines of `flag: value`.", flag="--config", path=path)
        settings = {setting(str(key)): value for key, value in data.items()}
        if twice := [key for key in map(str, data) if setting(key) != key and setting(key) in data]:
            raise UsageError(
                f"{path}: {setting(twice[0])} is given twice, also as {twice[0]}.", flag="--config", path=path
            )
        return cls(**settings | flags)

    @field_validator("*", mode="before")
    @classmethod
    def read(cls, value: object, info: ValidationInfo) -> object:
        """Text as the choice or the list that it writes out; true and false are no numbers."""
        name = str(info.field_name)
        types = kinds(cls, name)
        if isinstance(value, str):
            check_printable(cls.named(name), value)
            if "texts" not in types:
                check_path(cls.named(name), value)
        for choice in choices(types):
            if str(choice) == str(value):
                return choice
        if isinstance(value, bool) and "boolean" not in types:
            raise ValueError  # pydantic would take it as a number
        if types.keys() & NUMBER_TYPES and not types.keys() & TEXT_TYPES:
            items = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(item, str) and has_other_digits(item) for item in items):
                raise ValueError  # pydantic would read them
        if "texts" in types and isinstance(value, str):
            return (value,)
        return tuple(value.split(",")) if "array" in types and isinstance(value, str) and "," in value else value

    @model_validator(mode="after")
    def complete(self) -> Self:
        self.__dict__.update(self.implications(self.given))
        for problem in self.problems():
            raise UsageError(problem)
        return self

    def problems(self) -> Iterator[str]:
        """Yield what of these settings cannot stand together, in a sentence each."""
        yield from ()

    @property
    def given(self) -> frozenset[str]:
        """The settings that the user named, also at their default, but for a switch that is off, and for null."""
        named = self.values(self.model_fields_set).items()
        return frozenset(name for name, value in named if value is not False and value is not None)

    def implications(self, given: frozenset[str]) -> dict[str, object]:
        """The settings that follow from others, some of which were `given`."""
        return {}

    def changed(self, **settings: object) -> Self:
        """Return the same settings but for some, which are checked as all are."""
        return type(self)(**self.values(self.model_fields_set) | settings)

    def values(self, names: Iterable[str]) -> dict[str, object]:
        return {name: getattr(self, name) for name in names}

    @classmethod
    def differing(cls, settings: Mapping[str, object]) -> dict[str, object]:
        """Return what of a record's settings is other than the default, and a setting of this version."""
        changed = dict[str, object]()
        for name, info in cls.model_fields.items():
            if name in settings and to_jsonable_python(settings[name]) != to_jsonable_python(info.default):
                changed[name] = settings[name]
        return changed

    @classmethod
    def flags(cls) -> dict[str, Flag]:
        """Return how each setting is shown, by name."""
        return {name: flag_of(info) for name, info in cls.model_fields.items()}

    @classmethod
    def affecting(cls, *what: Affects) -> tuple[str, ...]:
        """The names of the settings that affect any of `what`."""
        return tuple(name for name, flag in cls.flags().items() if flag.affects in what)


def flag_of(info: FieldInfo) -> Flag:
    """Return how a field of settings is shown: not at all, unless it is a flag."""
    extra = info.json_schema_extra
    flag: object = extra.get("flag") if isinstance(extra, dict) else None
    return flag if isinstance(flag, Flag) else Flag("", "nothing")


def first_mistake(kind: type[Settings], error: ValidationError, settings: Mapping[str, object]) -> str:
    """The first thing that is wrong with settings, in one line."""
    errors = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    name = str(errors[0]["loc"][0])
    if errors[0]["type"] == "extra_forbidden":
        return unknown_setting(name, list(kind.model_fields))
    own_messages = [str(detail["ctx"]["error"]) for detail in errors if detail["type"] == "value_error"]
    own_message = next(filter(None, own_messages), "")
    if own_message:
        return f"{kind.named(name)}: {own_message}."
    if errors[0]["type"] == "missing":
        return f"{kind.named(name)} is missing."
    metavar = kind.flags()[name].metavar
    takes = " or ".join(describe(type_name, schema, metavar) for type_name, schema in kinds(kind, name).items())
    got = settings[name]
    if isinstance(got, str):
        got = hide_word(got)
    return f"{kind.named(name)} takes {takes}; got {got!r}."
