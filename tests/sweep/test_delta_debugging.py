"""The search for the smallest set that fails: planted sets, sets without a verdict, the steps it takes."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.sweep import delta_debugging
from harness.sweep.delta_debugging import (
    NO_DIFFERENCES,
    SearchState,
    StepAnswer,
    Subset,
    expected_steps,
    search,
    search_first,
)

MOST_DIFFERENCES = 9


def run(
    count: int, ask: Callable[[Subset], StepAnswer], find: Callable[..., SearchState] = search
) -> tuple[SearchState, dict[Subset, StepAnswer]]:
    """Search to the end; the state, and the answers on the way."""
    answers: dict[Subset, StepAnswer] = {}
    while (wanted := find(count, answers).wanted) is not None:
        assert wanted not in answers and wanted not in (NO_DIFFERENCES, frozenset(range(count)))
        answers[wanted] = ask(wanted)
    return find(count, answers), answers


@st.composite
def planted(draw: st.DrawFn) -> tuple[int, Subset]:
    """A number of differences, and those that act only together."""
    count = draw(st.integers(1, MOST_DIFFERENCES))
    cause = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=min(count, 3)))
    return count, frozenset(cause)


@given(planted())
def test_a_planted_set_is_found_whatever_its_size(case: tuple[int, Subset]) -> None:
    count, cause = case
    state, answers = run(count, lambda subset: "fails" if cause <= subset else "passes")
    assert state.smallest == cause and state.is_certain
    others = frozenset(range(count)) - cause
    assert not others or answers[others] == "passes"


@given(planted(), st.data())
def test_sets_without_a_verdict_cost_certainty_alone(case: tuple[int, Subset], data: st.DataObject) -> None:
    count, cause = case
    silent: dict[Subset, StepAnswer] = {}

    def ask(subset: Subset) -> StepAnswer:
        answer: StepAnswer = "fails" if cause <= subset else "passes"
        return silent.setdefault(subset, data.draw(st.sampled_from([answer, answer, "no verdict", "undecided"])))

    state, answers = run(count, ask)
    assert cause <= state.smallest
    assert state.smallest == frozenset(range(count)) or answers[state.smallest] == "fails"
    if state.is_certain:
        assert state.smallest == cause


@given(st.integers(2, MOST_DIFFERENCES), st.data())
def test_a_setting_that_needs_another_to_start_does_not_hide_the_cause(count: int, data: st.DataObject) -> None:
    places = st.integers(0, count - 1)
    cause, dependent, needed = data.draw(places), data.draw(places), data.draw(places)

    def ask(subset: Subset) -> StepAnswer:
        if dependent in subset and needed not in subset:
            return "no verdict"
        return "fails" if cause in subset else "passes"

    state, _ = run(count, ask)
    assert cause in state.smallest
    assert state.smallest in ({cause}, {dependent, needed})


@given(st.integers(1, 12), st.data())
def test_any_answers_come_to_an_end_with_a_set_that_failed(count: int, data: st.DataObject) -> None:
    kinds = st.sampled_from(["fails", "passes", "no verdict", "undecided"])
    for find in (search, search_first):
        state, answers = run(count, lambda _: data.draw(kinds), find)
        assert state.smallest == frozenset(range(count)) or answers[state.smallest] == "fails"


@given(st.integers(1, 30), st.data())
def test_the_first_that_fails_is_found_by_halves(count: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(1, count))
    state, answers = run(count, lambda subset: "fails" if len(subset) >= place else "passes", search_first)
    assert len(state.smallest) == place and state.is_certain
    assert len(answers) <= count.bit_length()


def test_an_order_with_places_that_do_not_start_ends_between_two() -> None:
    def ask(subset: Subset) -> StepAnswer:
        return "no verdict" if len(subset) in (4, 5) else "fails" if len(subset) > 5 else "passes"

    state, _ = run(8, ask, search_first)
    assert state.smallest == frozenset(range(6)) and state.doubtful == {3, 4, 5}


def test_a_state_before_the_end_names_the_smallest_set_so_far() -> None:
    half = frozenset({0, 1, 2})
    state = search(6, {half: "fails"})
    assert state.smallest == half and state.wanted == {0} and state.doubtful == half and not state.is_certain


@pytest.mark.parametrize(("count", "most"), [(1, 0), (2, 2), (6, 5), (20, 7)])
def test_steps_are_expected_by_searching_for_planted_causes(count: int, most: int) -> None:
    assert expected_steps(count, is_ordered=False).most == most
    counts = [
        len(run(count, lambda subset, place=place: "fails" if place in subset else "passes")[1])
        for place in range(count)
    ]
    expected = expected_steps(count, is_ordered=False)
    assert (expected.least, expected.most) == (min(counts), max(counts))


def test_the_expected_steps_are_said() -> None:
    assert expected_steps(6, is_ordered=False).words == "3 to 5 steps, about 12 if two act only together"
    assert expected_steps(2, is_ordered=True).words == "1 step"
    assert delta_debugging.ExpectedSteps(2, 3).words == "2 to 3 steps"
