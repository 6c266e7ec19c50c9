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
    """One setting in which BAD differs from GOOD."""

    part: DifferencePart
    name: str
    good: JsonValue = None  # None: GOOD does not set it
    bad: JsonValue = None  # None: BAD does not set it

    @property
    def words(self) -> str:
        """What BAD has in place of GOOD's value, in words: for example `no engine_patch NAME`, or `max_num_seqs=64`."""
        if self.part == "python":  # Another environment, whose name is a description already.
            return self.name
        if self.part == "patch" and self.bad:
            return f"engine_patch {self.name}"
        if self.part == "patch":
            return f"no engine_patch {self.name}"
        if self.bad is None:
            return f"no {self.name}"
        return f"{self.name}={setting_text(self.bad)}"


@dataclass(frozen=True)
class BisectStep:
    """An experiment with GOOD's settings, in which some differences have BAD's values."""

    experiment: str
    places: tuple[int, ...]  # the indexes of these differences in the bisection

    @property
    def subset(self) -> frozenset[int]:
        return frozenset(self.places)


@dataclass(frozen=True)
class Bisection:
    """The search for the differences that make BAD worse than GOOD."""

    good: str  # the name of GOOD
    bad: str
    differences: tuple[SideDifference, ...]
    untestable: tuple[str, ...] = ()  # differences that a run cannot set, in words
    is_ordered: bool = False  # whether each difference is a version that followed the one before
    first_rounds: int = 4  # the rounds of each step
    most_rounds: int = 16  # the rounds of a step that stays undecided
    steps: tuple[BisectStep, ...] = ()
    rounds: tuple[tuple[str, ...], ...] = ()  # for each round, the experiments that run beside the baseline
    expected: str = ""  # the steps and minutes that were announced before the first step

    @property
    def repeats_good(self) -> bool:
        """Tell whether GOOD runs again beside each step, as it must where speeds are compared.

        Where only answers are compared, repetition shows nothing new, so steps get no more than their first rounds.
        """
        return self.most_rounds > self.first_rounds

    @property
    def asked(self) -> Self:
        """The bisection as the user asked for it, before anything ran."""
        return replace(self, steps=(), rounds=(), expected="")

    def scheduled(self, name: str) -> int:
        """Return in how many rounds an experiment was planned so far."""
        return sum(name in names for names in self.rounds)

    def places_of(self, name: str) -> tuple[int, ...]:
        """Return the indexes of the differences that have BAD's values in an experiment: all for BAD, none for GOOD."""
        if name == BAD:
            return tuple(range(len(self.differences)))
        for step in self.steps:
            if step.experiment == name:
                return step.places
        return ()

    def words(self, places: Collection[int], quote: str = "") -> str:
        """Return differences, given by their indexes, in words, such as "a, b and c"; "GOOD" if there are none.

        In an ordered search, the last version stands for all before it. `quote` is put around each difference.
        """
        if not places:
            return "GOOD"
        ordered = sorted(places)
        if self.is_ordered:
            ordered = ordered[-1:]
        names = [f"{quote}{self.differences[place].words}{quote}" for place in ordered]
        return joined_text(" and ", ", ".join(names[:-1]), names[-1])
