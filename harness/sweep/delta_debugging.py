"""Delta debugging: the smallest set of differences that still fails a test, with few tests.

A set is tested once. The search first tests halves, as if a single difference were the cause. Then it uses QuickXplain
(Junker, 2004), which also finds differences that act only together. Then it takes parts away as long as the rest still
fails (Zeller and Hildebrandt, 2002). It relies on a set only if the answer is "fails", so a set without a verdict costs
steps and not the result.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Literal

from harness.core.formatting import plural

StepAnswer = Literal["fails", "passes", "no verdict", "undecided"]
Subset = frozenset[int]  # differences by their index in the list
Answers = Mapping[Subset, StepAnswer]
FailureTest = Callable[[Subset], bool]  # tells whether a set fails, or raises StepNeeded
NO_DIFFERENCES: Subset = frozenset()
MOST_PAIRED = 24  # differences whose pairs are simulated to estimate the number of steps


class StepNeeded(Exception):  # noqa: N818
    """A set whose answer the search must know before it goes on."""

    def __init__(self, subset: Subset) -> None:
        super().__init__(str(sorted(subset)))
        self.subset = subset


@dataclass(frozen=True)
class SearchState:
    """The state of a search."""

    smallest: Subset  # the smallest set that is known to fail
    wanted: Subset | None  # the set to test next; None: the search is finished
    doubtful: Subset  # the differences of the smallest set that may not be needed: without them it may fail as well

    @property
    def is_certain(self) -> bool:
        """Tell whether the set fails, and passes without any one of its differences."""
        return not self.doubtful


def search(count: int, answers: Answers) -> SearchState:
    """Return the state of the search among `count` differences, given the answers so far.

    All differences together are known to fail. The search runs from its start with the known answers, until it asks for
    a set that was not tested.
    """
    everything = frozenset(range(count))
    known: dict[Subset, StepAnswer] = {**answers, everything: "fails", NO_DIFFERENCES: "passes"}

    def require_answer(subset: Subset) -> None:
        """Raise StepNeeded, which ends the search for now, unless the answer of a set is known."""
        if subset not in known:
            raise StepNeeded(subset)

    def fails(subset: Subset) -> bool:
        """Tell whether a set fails. Raises StepNeeded if that is not known."""
        require_answer(subset)
        return known[subset] == "fails"

    try:
        # Each step below asks for answers, and its result is then read from `known`. Often a single difference is the
        # cause, which the fewest tests find.
        ask_halves(sorted(everything), fails)
        failing = smallest_failing(known)
        if len(failing) > 1:  # No single difference fails, so several act together.
            # Find a set that should fail by itself, and of which no difference can be left out.
            explanation = explain_failure(NO_DIFFERENCES, sorted(failing), fails, is_new_background=False)
            # That this set fails was only concluded from other sets, so it is tested itself.
            require_answer(explanation)
            take_away(smallest_failing(known), fails)
        # The report says whether the other differences fail as well.
        require_answer(everything - smallest_failing(known))
    except StepNeeded as needed:
        return state_of(known, wanted=needed.subset)
    return state_of(known, wanted=None)


def search_first(count: int, answers: Answers) -> SearchState:
    """Return the state of the search for the first bad change of `count` consecutive changes.

    Each tested set has all changes up to one of them.
    """
    known: dict[Subset, StepAnswer] = {**answers, first_places(count): "fails", NO_DIFFERENCES: "passes"}
    low, high = 0, count  # the first `low` changes pass, the first `high` changes fail
    while high - low > 1:
        place = next_place(low, high, known)  # not tested yet, or with a clear answer
        open_range = frozenset(range(low, high))
        if place is None:  # All sets of the range were tested without a clear answer.
            return SearchState(first_places(high), wanted=None, doubtful=open_range)
        next_set = first_places(place)
        if next_set not in known:
            return SearchState(first_places(high), wanted=next_set, doubtful=open_range)
        if known[next_set] == "fails":
            high = place
        else:
            low = place
    return SearchState(first_places(high), wanted=None, doubtful=NO_DIFFERENCES)


def next_place(low: int, high: int, known: Answers) -> int | None:
    """Return the place between `low` and `high` that halves the range best, of those that may have a clear answer.

    None if all places between them were tested without a clear answer.
    """
    middle = (low + high) / 2
    usable_places = [
        place for place in range(low + 1, high) if known.get(first_places(place)) not in ("no verdict", "undecided")
    ]
    return min(usable_places, key=lambda place: abs(place - middle), default=None)


def first_places(count: int) -> Subset:
    """Return the set of the first `count` differences."""
    return frozenset(range(count))


def ask_halves(items: Sequence[int], fails: FailureTest) -> None:
    """Test halves down to a single difference, as if exactly one were the cause.

    If the first half does not fail, the cause is taken to be in the second. The caller takes the result from the known
    answers, as the smallest set that fails.
    """
    while len(items) > 1:
        middle = len(items) // 2
        first_half, second_half = items[:middle], items[middle:]
        items = first_half if fails(frozenset(first_half)) else second_half
    fails(frozenset(items))


def explain_failure(background: Subset, items: Sequence[int], fails: FailureTest, is_new_background: bool) -> Subset:
    """Return the items that make a failure: they fail together with the background, and none of them can be left out.

    By QuickXplain. The background (differences that every test has) and all items together must fail. Unless
    `is_new_background`, the background alone is known to pass.
    """
    if is_new_background and fails(background):  # No item is needed for the failure.
        return NO_DIFFERENCES
    if len(items) == 1:  # The background passes without this item, so it is needed.
        return frozenset(items)
    middle = len(items) // 2
    first_half, second_half = items[:middle], items[middle:]
    # First ask what is needed of the second half beside the whole first half. Then ask what is needed of the first half
    # beside that.
    from_second = explain_failure(background | frozenset(first_half), second_half, fails, is_new_background=True)
    from_first = explain_failure(background | from_second, first_half, fails, is_new_background=bool(from_second))
    return from_second | from_first


def take_away(failing: Subset, fails: FailureTest) -> None:
    """Test a failing set without each of its parts, large parts first, until no single difference can be left out.

    The caller takes the result from the known answers, as the smallest set that fails.
    """
    part_size = max(len(failing) // 2, 1)
    while len(failing) > 1:
        still_failing = next(filter(fails, without_parts(failing, part_size)), None)
        if still_failing is not None:  # A part was not needed. Go on with the smaller set, in at least two parts.
            failing = still_failing
            part_size = max(min(part_size, len(failing) // 2), 1)
        elif part_size > 1:  # Every part is needed, but perhaps not every difference in it.
            part_size //= 2
        else:  # Every single difference is needed.
            return


def without_parts(failing: Subset, size: int) -> Iterator[Subset]:
    """Yield the failing set without each of its parts of `size` differences, one part at a time.

    The empty set is left out, because it is known to pass.
    """
    items = sorted(failing)
    for start in range(0, len(items), size):
        remaining = failing - frozenset(items[start : start + size])
        if remaining:
            yield remaining


def smallest_failing(known: Answers) -> Subset:
    """Return the smallest set that is known to fail; of several, the one with the earliest differences."""
    failing = [subset for subset, answer in known.items() if answer == "fails"]
    return min(failing, key=size_and_places)


def size_and_places(subset: Subset) -> tuple[int, list[int]]:
    return len(subset), sorted(subset)


def state_of(known: Answers, wanted: Subset | None) -> SearchState:
    """Return the state of a search by the answers that are known.

    `wanted` is the set to test next, None if there is none. A difference of the smallest set is doubtful unless the set
    without it is known to pass.
    """
    smallest = smallest_failing(known)
    doubtful = [item for item in smallest if known.get(smallest - {item}) != "passes"]
    return SearchState(smallest, wanted, frozenset(doubtful))


@dataclass(frozen=True)
class ExpectedSteps:
    """The expected number of steps of a search."""

    least: int  # if a single difference is the cause
    most: int
    for_pairs: int | None = None  # the mean if two differences act only together; None if the search cannot find pairs

    @property
    def words(self) -> str:
        """The number of steps in words, such as "3 to 5 steps, about 9 if two act only together"."""
        text = plural(self.most, "step")
        if self.least != self.most:
            text = f"{self.least} to {text}"
        if self.for_pairs:
            text += f", about {self.for_pairs} if two act only together"
        return text


def expected_steps(count: int, is_ordered: bool) -> ExpectedSteps:
    """Estimate how many steps a search among `count` differences takes, by simulating it with each possible cause.

    The result has the fewest and the most steps for a single cause, and the mean for pairs of differences.
    """
    counts = []
    for place in range(count):
        # Each version contains the one before.
        cause = first_places(place + 1) if is_ordered else frozenset([place])
        counts.append(count_steps(count, cause, is_ordered))
    # With two differences or fewer, a pair is all of them.
    if is_ordered or count <= 2:
        return ExpectedSteps(min(counts), max(counts))
    pairs = combinations(range(min(count, MOST_PAIRED)), 2)
    counts_for_pairs = [count_steps(count, frozenset(pair), is_ordered=False) for pair in pairs]
    return ExpectedSteps(min(counts), max(counts), round(fmean(counts_for_pairs)))


def count_steps(count: int, cause: Subset, is_ordered: bool) -> int:
    """Return the number of steps after which a search among `count` differences has found this cause.

    The answers are simulated: a set fails if it contains the whole cause, else it passes.
    """
    answers: dict[Subset, StepAnswer] = {}
    find = search
    if is_ordered:
        find = search_first
    while True:
        next_set = find(count, answers).wanted
        if next_set is None:
            return len(answers)
        answers[next_set] = "passes"
        if cause <= next_set:
            answers[next_set] = "fails"
