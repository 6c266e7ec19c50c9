"""Delta debugging: the smallest set of differences that still fails a test, with few tests.

A set is tested once. The search first asks as if one difference were the cause, which halves them; then by QuickXplain
(Junker, 2004), which also finds sets that act only together; then it takes parts away as long as what is left still
fails (Zeller and Hildebrandt, 2002). An answer that is not "fails" keeps the search from relying on a set, so that a
set without a verdict costs steps and not the result.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal

StepAnswer = Literal["fails", "passes", "no verdict", "undecided"]
Subset = frozenset[int]  # differences by their place in the list
Answers = Mapping[Subset, StepAnswer]
Asks = Callable[[Subset], bool]
NOTHING: Subset = frozenset()
MOST_PLANTED = 24  # differences, of which every pair is tried for the expected number of steps


class StepNeeded(Exception):  # noqa: N818
    """A set whose answer the search must know before it goes on."""

    def __init__(self, subset: Subset) -> None:
        super().__init__(str(sorted(subset)))
        self.subset = subset


@dataclass(frozen=True)
class SearchState:
    """The state of a search: the smallest set that is known to fail, and the set to test next, if any."""

    smallest: Subset
    wanted: Subset | None
    doubtful: Subset
    """Those of the smallest set without which it is not known to pass."""

    @property
    def is_certain(self) -> bool:
        """Tell whether the set fails, and passes without any one of its differences."""
        return not self.doubtful


def search(count: int, answers: Answers) -> SearchState:
    """Return the state of the search among `count` differences. All together are known to fail, and none to pass."""
    everything = frozenset(range(count))
    known: dict[Subset, StepAnswer] = {**answers, everything: "fails", NOTHING: "passes"}

    def fails(subset: Subset) -> bool:
        if subset not in known:
            raise StepNeeded(subset)
        return known[subset] == "fails"

    wanted = None
    try:
        ask_halves(sorted(everything), fails)
        failing = smallest_failing(known)
        if len(failing) > 1:
            fails(explain_failure(NOTHING, sorted(failing), fails, has_changed=False))
            take_away(smallest_failing(known), fails)
        fails(everything - smallest_failing(known))  # whether the others matter as well
    except StepNeeded as needed:
        wanted = needed.subset
    return state_of(known, wanted)


def search_first(count: int, answers: Answers) -> SearchState:
    """Return the state of the search for the first bad change of `count` consecutive changes.

    Each tested set has all changes up to one of them. The next set ends nearest to the middle of the open range.
    """
    known: dict[Subset, StepAnswer] = {**answers, first_places(count): "fails", NOTHING: "passes"}
    low, high = 0, count
    while high - low > 1:
        place = nearest_to_middle(low, high, known)
        if place is None:
            return SearchState(first_places(high), None, frozenset(range(low, high)))
        if first_places(place) not in known:
            return SearchState(first_places(high), first_places(place), frozenset(range(low, high)))
        if known[first_places(place)] == "fails":
            high = place
        else:
            low = place
    return SearchState(first_places(high), None, NOTHING)


def nearest_to_middle(low: int, high: int, known: Answers) -> int | None:
    """Return the place nearest to the middle between `low` and `high` that is untested or has a clear answer; None if
    none is.
    """
    middle, nearest = (low + high) / 2, None
    for place in range(low + 1, high):
        if known.get(first_places(place), "passes") not in ("fails", "passes"):
            continue
        if nearest is None or abs(place - middle) < abs(nearest - middle):
            nearest = place
    return nearest


def first_places(count: int) -> Subset:
    return frozenset(range(count))


def ask_halves(items: Sequence[int], fails: Asks) -> None:
    """Ask for halves down to a single difference, as if exactly one were the cause."""
    while len(items) > 1:
        middle = len(items) // 2
        first_half, second_half = items[:middle], items[middle:]
        items = first_half if fails(frozenset(first_half)) else second_half
    fails(frozenset(items))


def explain_failure(background: Subset, items: Sequence[int], fails: Asks, has_changed: bool) -> Subset:
    """Return a smallest part of the items that fails together with the background, by QuickXplain."""
    if has_changed and fails(background):
        return NOTHING
    if len(items) == 1:
        return frozenset(items)
    middle = len(items) // 2
    first_half, second_half = items[:middle], items[middle:]
    from_second = explain_failure(background | frozenset(first_half), second_half, fails, has_changed=True)
    from_first = explain_failure(background | from_second, first_half, fails, has_changed=bool(from_second))
    return from_second | from_first


def take_away(failing: Subset, fails: Asks) -> None:
    """Test the failing set without each of its parts, large parts first, until no single difference can be left out."""
    size = max(len(failing) // 2, 1)
    while len(failing) > 1:
        smaller = next(filter(fails, without_parts(failing, size)), None)
        if smaller is not None:
            failing = smaller
            size = max(min(size, len(failing) // 2), 1)
        elif size > 1:
            size //= 2
        else:
            return


def without_parts(failing: Subset, size: int) -> Iterator[Subset]:
    """Yield the set without each part of this size. The empty set is left out, because it is known to pass."""
    items = sorted(failing)
    for start in range(0, len(items), size):
        left = failing - frozenset(items[start : start + size])
        if left:
            yield left


def smallest_failing(known: Answers) -> Subset:
    """Return the smallest failing set. Of several, it is the one with the earliest differences."""
    failing = [subset for subset, answer in known.items() if answer == "fails"]
    return min(failing, key=size_and_places)


def size_and_places(subset: Subset) -> tuple[int, list[int]]:
    return len(subset), sorted(subset)


def state_of(known: Answers, wanted: Subset | None) -> SearchState:
    smallest = smallest_failing(known)
    doubtful = [item for item in smallest if known.get(smallest - {item}) != "passes"]
    return SearchState(smallest, wanted, frozenset(doubtful))


@dataclass(frozen=True)
class ExpectedSteps:
    """The steps of a search where one difference is the cause, at least and at most, and for two that act together."""

    least: int
    most: int
    for_pairs: int | None = None
    """The mean; None where the search has none."""

    @property
    def words(self) -> str:
        text = f"{self.most} steps"
        if self.most == 1:
            text = "1 step"
        if self.least != self.most:
            text = f"{self.least} to {text}"
        if self.for_pairs:
            text += f", about {self.for_pairs} if two act only together"
        return text


def expected_steps(count: int, is_ordered: bool) -> ExpectedSteps:
    """Estimate how many steps a search takes, by simulating it with planted causes."""
    counts = []
    for place in range(count):
        cause = first_places(place + 1) if is_ordered else frozenset([place])
        counts.append(count_steps(count, cause, is_ordered))
    if is_ordered or count <= 2:
        return ExpectedSteps(min(counts), max(counts))
    pairs = combinations(range(min(count, MOST_PLANTED)), 2)
    in_pairs = [count_steps(count, frozenset(pair), is_ordered=False) for pair in pairs]
    return ExpectedSteps(min(counts), max(counts), round(fmean(in_pairs)))


def count_steps(count: int, cause: Subset, is_ordered: bool) -> int:
    """Return the steps until a planted cause is known."""
    answers: dict[Subset, StepAnswer] = {}
    find = search
    if is_ordered:
        find = search_first
    while True:
        wanted = find(count, answers).wanted
        if wanted is None:
            return len(answers)
        answers[wanted] = "passes"
        if cause <= wanted:
            answers[wanted] = "fails"
