"""Commands and flags of earlier versions, with what replaces each."""

from harness.core.data_tables import table_beside
from harness.core.errors import UsageError

# For each command or flag of an earlier version, the end of its error message, which begins with the word itself.
REPLACEMENTS = {row["name"]: row["now"] for row in table_beside(__file__, "moved.csv")}


def raise_if_moved(word: str) -> None:
    """Raise UsageError, which names the replacement, if a command or flag is of an earlier version."""
    if word in REPLACEMENTS:
        raise UsageError(f"{word} {REPLACEMENTS[word]}.")
