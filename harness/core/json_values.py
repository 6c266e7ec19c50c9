"""Values of JSON whose shape nobody has checked, narrowed to what is expected; empty where they are something else."""

from collections.abc import Mapping


def dict_or_empty(record: Mapping[str, object], key: str) -> dict[str, object]:
    """Return the object under a key of unchecked JSON. Empty if the key is missing or holds anything else."""
    value = record.get(key)
    return value if isinstance(value, dict) else {}


def list_or_empty(record: Mapping[str, object], key: str) -> list[object]:
    """Return the list under a key of unchecked JSON. Empty if the key is missing or holds anything else."""
    value = record.get(key)
    return value if isinstance(value, list) else []
