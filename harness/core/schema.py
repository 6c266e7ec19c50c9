"""What all files of this program have in common: a format number, frozen models, GPUs as people name them."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from harness.core.document import Statement
from harness.core.statistics import percentile

SCHEMA = 6  # the format of all these files; 1 had no number
RENDERED = 5  # the oldest format of which a report can be made again


def is_absent(value: object) -> bool:
    """For fields that a file leaves out where they are null."""
    return value is None


def stored_as(key: str, name: str) -> Any:
    """For a field `name` that files keep under another key."""
    return Field(validation_alias=AliasChoices(key, name), serialization_alias=key)


# A statement; until format 5 it was its text.
Said = Annotated[Statement, BeforeValidator(lambda said: Statement(said) if isinstance(said, str) else said)]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, serialize_by_alias=True)


class File(Model):
    """A file of this program. A newer format is refused; what an older one lacks has a default, or is refused."""

    schema_version: int = 1

    @field_validator("schema_version")
    @classmethod
    def not_newer(cls, version: int) -> int:
        if version > SCHEMA:
            raise ValueError(f"format {version} was written by a newer version; this one reads up to {SCHEMA}")
        return version


class Spread(Model):
    """Lengths in tokens; each percentile is one of the lengths."""

    min: int
    mean: float
    p50: int
    p99: int
    max: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Self | None:
        """None where there are none."""
        if not lengths:
            return None
        ranked = sorted(lengths)
        return cls(
            min=ranked[0],
            mean=sum(ranked) / len(ranked),
            p50=percentile(ranked, 0.5),
            p99=percentile(ranked, 0.99),
            max=ranked[-1],
        )
