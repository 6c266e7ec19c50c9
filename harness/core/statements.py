"""Statements about a run or a test: typed where the fact is known, put into words once."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class StatementKind(StrEnum):
    REASON = "reason"  # why a result is none, or would be none
    BOUND = "bound"  # the name of a statement on what set the speed
    DEVIATION = "deviation"  # why a result cannot stand beside MLPerf's


@dataclass(frozen=True)
class Statement:
    """One fact. Programs read `kind` and `name`, which may be empty where nothing depends on it; `what` and `remedy`
    are for people.
    """

    what: str
    remedy: str = ""
    name: str = ""
    kind: StatementKind = StatementKind.REASON

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}" if self.remedy else self.what


def merge_by_remedy(statements: Iterable[Statement]) -> str:
    """Return statements in one line. Statements with the same remedy are joined, so that the remedy is given once.

    Statements without a remedy are not joined.
    """
    facts_by_remedy = defaultdict[str, list[str]](list)
    for statement in statements:
        facts_by_remedy[statement.remedy].append(statement.what)
    phrases = list[str]()
    for remedy, facts in facts_by_remedy.items():
        if remedy:
            phrases.append(f"{', and '.join(facts)}: {remedy}")
        else:
            phrases += facts
    return "; ".join(phrases)


def names_of(statements: Iterable[Statement], known: Iterable[str]) -> list[str]:
    """Return the names in `known` that one of the statements has as its name, in the order of `known`."""
    names = {statement.name for statement in statements}
    return [name for name in known if name in names]
