"""The parts that all files of this program share: a format number, frozen models, GPUs as people name them."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, field_validator
from pydantic.fields import FieldInfo

from harness.core.statements import Statement

SCHEMA = 6  # the format of all these files; 1 had no number
OLDEST_REPORT_SCHEMA = 5  # the oldest format of which a report can be made again


def stored_field(key: str, name: str) -> FieldInfo:
    """Return pydantic's settings for a field `name` that files store under an older name, `key`. Both are read."""
    return FieldInfo(validation_alias=AliasChoices(key, name), serialization_alias=key)


def statement_of(stored: object) -> object:
    """Return the statement for a text. Files up to format 5 hold only the text of a statement."""
    return Statement(stored) if isinstance(stored, str) else stored


StoredStatement = Annotated[Statement, BeforeValidator(statement_of)]


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, serialize_by_alias=True)

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy with the values in `update` in place of some.

        Raises AttributeError for a name that is no field. Pydantic would accept the name, and the value would be lost.
        """
        unknown = (update or {}).keys() - type(self).model_fields.keys()
        if unknown:
            raise AttributeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        return super().model_copy(update=update, deep=deep)


class File(FrozenModel):
    """A file of this program. A newer format is refused. A field that an older format lacks has a default, or else the
    file is refused.
    """

    schema_version: int = 1

    @field_validator("schema_version")
    @classmethod
    def not_newer(cls, version: int) -> int:
        """Return the format of a file unchanged. Raises ValueError for a format that this version does not know yet."""
        if version > SCHEMA:
            raise ValueError(f"format {version} was written by a newer version; this one reads up to {SCHEMA}")
        return version
