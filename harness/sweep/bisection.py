"""A bisection as sweep.json keeps it: the differences of its two sides, its steps, and the rounds that they run in."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal, Self

from pydantic import JsonValue

from harness.core.formatting import joined_text
from harness.core.reading import setting_text

DifferencePart = Literal["set", "engine", "patch", "env", "python"]
GOOD_AGAIN, BAD = "good-again", "bad"  # experiments beside the baseline, which is GOOD
STEP_PREFIX = "step-"


@dataclass(frozen=True)
class SideDifference:
    """One setting in which BAD differs from GOOD; None is one that a side does not set."""

    part: DifferencePart
    name: str
    good: JsonValue = None
    bad: JsonValue = None

    @property
    def words(self) -> str:
        """BAD's value of the difference in words."""
        if self.part == "python":
            return self.name
        if self.part == "patch" and self.bad:
            return f"engine_patch {self.name}"
        if self.part == "patch":
            return f"no engine_patch {self.name}"
        if self.bad is None:
            return f"no {self.name}"
        return f"{self.name}={setting_text(self.bad)}"

    @property
    def good_words(self) -> str:
        """GOOD's value of the difference in words."""
        if self.good is None:
            return "not"
        return setting_text(self.good)


@dataclass(frozen=True)
class BisectStep:
    """An experiment with GOOD's settings but for those differences."""

    experiment: str
    places: tuple[int, ...]

    @property
    def subset(self) -> frozenset[int]:
        return frozenset(self.places)


@dataclass(frozen=True)
class Bisection:
    """The search for the differences that make BAD worse than GOOD."""

    good: str
    bad: str
    differences: tuple[SideDifference, ...]
    untestable: tuple[str, ...] = ()
    is_ordered: bool = False
    """Whether each difference is a version that followed the one before."""
    first_rounds: int = 4
    most_rounds: int = 16
    steps: tuple[BisectStep, ...] = ()
    rounds: tuple[tuple[str, ...], ...] = ()
    """Of each round the experiments that run beside the baseline."""
    expected: str = ""
    """Steps and minutes that were announced before the first step."""

    @property
    def repeats_good(self) -> bool:
        """Tell whether GOOD runs again beside each step.

        Answers need only one run of GOOD, because repetition shows nothing new.
        """
        return self.most_rounds > self.first_rounds

    @property
    def asked(self) -> Self:
        """The bisection as it was before anything ran."""
        return replace(self, steps=(), rounds=(), expected="")

    def scheduled(self, name: str) -> int:
        """Return how many rounds an experiment has been given."""
        return sum(name in names for names in self.rounds)

    def places_of(self, name: str) -> tuple[int, ...]:
        """Return the places of an experiment's differences in the list: all for BAD, none for GOOD."""
        if name == BAD:
            return tuple(range(len(self.differences)))
        for step in self.steps:
            if step.experiment == name:
                return step.places
        return ()

    def words(self, places: Collection[int], quote: str = "") -> str:
        """Return differences in words. In an ordered search, the last version stands for all before it."""
        if not places:
            return "GOOD"
        ordered = sorted(places)
        if self.is_ordered:
            ordered = ordered[-1:]
        names = [f"{quote}{self.differences[place].words}{quote}" for place in ordered]
        return joined_text(" and ", ", ".join(names[:-1]), names[-1])
