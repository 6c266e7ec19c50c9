"""Commands and flags of earlier versions, with what replaces each."""

from harness.core.data_tables import table_beside
from harness.core.errors import UsageError

# Commands and flags that earlier versions had, with what serves now: each ends in one line that names it.
REPLACEMENTS = {row["name"]: row["now"] for row in table_beside(__file__, "moved.csv")}


def raise_if_moved(word: str) -> None:
    """Raises UsageError for a command or flag of an earlier version, with what serves in its place."""
    if word in REPLACEMENTS:
        raise UsageError(f"{word} {REPLACEMENTS[word]}.")
