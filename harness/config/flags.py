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

from harness.config.value_types import choices, type_text, types_of
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_SETTINGS
from harness.core.given_values import (
    RENAMED_SETTINGS,
    check_path,
    check_printable,
    flag_name,
    read_given,
    unknown_setting,
)
from harness.core.plain_numbers import has_other_digits
from harness.core.reading import load_yaml
from harness.core.secrets import hide_word
from harness.core.shipped_files import user_or_shipped_file

# The kinds of effect that a flag may have, apart from its effect on the report.
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
NUMBER_TYPES = frozenset({"integer", "number", "array"})  # types of values, by the names of `types_of`
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
    """Return the name of the setting that a key of a --config file means.

    The key may have '-' in place of '_', or be the name that an older version used.
    """
    name = key.replace("-", "_")
    return RENAMED_SETTINGS.get(name, name)


def flag(default: object, panel: str, affects: Affects, metavar: str = "") -> Any:
    """Return a setting that is a command-line flag, a key of `--config` files, and a field of `config.json`.

    The text below the setting is its help. A setting without a text is not shown in the help.

    `panel` is the topic of the help under which the flag stands, and `metavar` the value's name there.

    `affects` says what changes with the setting, and so what two runs must share to be compared. `work` means what the
    engine has to do. Speeds at different work are not compared. A flag that affects `answers` may affect speed, too.
    """
    return Field(default, json_schema_extra={"flag": Flag(panel, affects, metavar)})  # type: ignore[dict-item]


# The setting `json` has the name of an old method of pydantic, which nothing here uses.
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
    message_name: ClassVar[Callable[[str], str]] = flag_name  # as messages call a setting

    def __init__(self, /, **settings: object) -> None:
        """Check and convert the settings. Raises UsageError, in one line, for the most helpful of the mistakes."""
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise UsageError(first_mistake(type(self), error, settings)) from None

    @classmethod
    def from_mapping(cls, settings: Mapping[str, object]) -> Self:
        """Return settings from a mapping whose keys are known only at run time. Raises UsageError as the class does."""
        return cls(**settings)

    @classmethod
    def load(cls, path: Path, /, **flags: object) -> Self:
        """Return the settings of a `--config` YAML file and of `flags`. If both have a setting, the flag wins.

        `path` may be the name of a config that comes with the program. Raises UsageError for a file or a setting that
        is wrong.
        """
        import yaml

        path = user_or_shipped_file("--config", path, "configs")
        data = read_given("--config", path, "YAML", load_yaml, yaml.YAMLError, most=LARGEST_SETTINGS)
        if not isinstance(data, Mapping):
            raise UsageError(f"{path}: expected lines of `flag: value`.", flag="--config", path=path)
        settings = {}
        for key, value in data.items():  # A key may have '-' or '_'.
            name = setting(str(key))
            if name != str(key) and name in data:  # The file has the setting under two of its names.
                raise UsageError(f"{path}: {name} is given twice, also as {key}.", flag="--config", path=path)
            settings[name] = value
        return cls(**settings | flags)

    @field_validator("*", mode="before")
    @classmethod
    def read(cls, value: object, info: ValidationInfo) -> object:
        """Return the value of a setting as pydantic should read it.

        Raises UsageError for control characters or a misplaced address, and ValueError without a text for a value that
        pydantic would misread.
        """
        name = str(info.field_name)
        types = types_of(cls, name)
        if isinstance(value, str):
            check_printable(cls.message_name(name), value)
            may_be_address = "texts" in types  # Only lists of texts take addresses, as --endpoint does.
            if not may_be_address:
                check_path(cls.message_name(name), value)
        for choice in choices(types):
            if str(choice) == str(value):  # A choice may be a number, which a flag gives as text.
                return choice
        if isinstance(value, bool) and "boolean" not in types:
            raise ValueError  # Pydantic would take true for 1.
        takes_numbers_only = types.keys() & NUMBER_TYPES and not types.keys() & TEXT_TYPES
        if takes_numbers_only and has_unusual_digits(value):
            raise ValueError  # Pydantic would take digits of other scripts, too.
        if "texts" in types and isinstance(value, str):  # a list of one text
            return (value,)
        if "array" in types and isinstance(value, str) and "," in value:  # several numbers, as a flag gives them
            return tuple(value.split(","))
        return value

    @model_validator(mode="after")
    def complete(self) -> Self:
        """Fill in the settings that follow from others. Raises UsageError for the first of the `problems`."""
        self.__dict__.update(self.implications(self.named_settings))  # the model is frozen, so no field can be assigned
        for problem in self.problems():
            raise UsageError(problem)
        return self

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each combination of settings that cannot be used."""
        yield from ()

    @property
    def named_settings(self) -> frozenset[str]:
        """The settings that the user named, even with their default value, except those set to false or null."""
        values = self.values(self.model_fields_set)
        return frozenset(name for name, value in values.items() if value is not False and value is not None)

    def implications(self, given: frozenset[str]) -> dict[str, object]:
        """Return the settings that follow from others. `given` are the settings that the user named."""
        return {}

    def with_settings(self, **settings: object) -> Self:
        """Return these settings with some of them replaced. All are checked again."""
        return type(self)(**self.values(self.model_fields_set) | settings)

    def values(self, names: Iterable[str]) -> dict[str, object]:
        """Return the values of the settings `names`, by name."""
        return {name: getattr(self, name) for name in names}

    @classmethod
    def non_default_settings(cls, settings: Mapping[str, object]) -> dict[str, object]:
        """Return the settings of a record, such as config.json, that differ from their default.

        Settings that this version does not have are left out.
        """
        changed = dict[str, object]()
        for name, info in cls.model_fields.items():
            if name in settings and to_jsonable_python(settings[name]) != to_jsonable_python(info.default):
                changed[name] = settings[name]
        return changed

    @classmethod
    def flags(cls) -> dict[str, Flag]:
        """Return, for each setting by name, what makes it a flag: its topic in the help, its effect and its metavar."""
        return {name: flag_of(info) for name, info in cls.model_fields.items()}

    @classmethod
    def flags_by_effect(cls, *what: Affects) -> tuple[str, ...]:
        """Return the names of the settings that affect any of `what`."""
        return tuple(name for name, flag in cls.flags().items() if flag.affects in what)


def has_unusual_digits(value: object) -> bool:
    """Return whether a value, or an item of a list, is text with digits that are not ASCII."""
    items = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(item, str) and has_other_digits(item) for item in items)


def flag_of(info: FieldInfo) -> Flag:
    """Return the Flag with which a field of settings was declared. Its panel is empty if the field is no flag."""
    extra = info.json_schema_extra
    if isinstance(extra, dict):
        flag: object = extra.get("flag")
        if isinstance(flag, Flag):
            return flag
    return Flag(panel="", affects="nothing")


def first_mistake(kind: type[Settings], error: ValidationError, settings: Mapping[str, object]) -> str:
    """Return the most helpful of the mistakes in `settings`, in one line. `error` is pydantic's, for the class `kind`.

    That is an unknown setting, or else the first wrong one.
    """
    errors = error.errors()
    for detail in errors:
        if detail["type"] == "extra_forbidden":
            return unknown_setting(str(detail["loc"][0]), list(kind.model_fields))
    name = str(errors[0]["loc"][0])
    for detail in errors:
        # This program's own checks raise ValueError. Its text, if any, says more than the allowed values do (below).
        is_of_own_check = detail["type"] == "value_error" and bool(str(detail["ctx"]["error"]))
        if detail["loc"][0] == name and is_of_own_check:
            return f"{kind.message_name(name)}: {detail['ctx']['error']}."
    if errors[0]["type"] == "missing":
        return f"{kind.message_name(name)} is missing."
    got = settings[name]
    if isinstance(got, str):
        got = hide_word(got)  # The value may contain a secret, such as a key.
    return f"{kind.message_name(name)} takes {types_text(kind, name)}; got {got!r}."


def types_text(kind: type[Settings], name: str) -> str:
    """Return the values that a setting takes, in words, such as "a number or auto"."""
    metavar = kind.flags()[name].metavar
    texts = []
    for type_name, schema in types_of(kind, name).items():
        texts.append(type_text(type_name, schema, metavar))
    return " or ".join(texts)
