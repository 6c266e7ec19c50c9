"""The findings of a bisection so far: the answer of each step, by the gate's judge, and the cause."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.report import regression
from harness.report.regression import Condition, GateVerdict, Judgement
from harness.sweep.bisection import BAD, GOOD_AGAIN, Bisection
from harness.sweep.delta_debugging import Answers, SearchState, StepAnswer, search, search_first
from harness.sweep.experiment_result import ExperimentResult, result_named
from harness.sweep.findings import SweepReport

ANSWERS_BY_VERDICT: dict[GateVerdict, StepAnswer] = {"FAIL": "fails", "PASS": "passes", "NOT JUDGED": "undecided"}


@dataclass(frozen=True)
class StepFinding:
    """The finding of one experiment of a bisection."""

    experiment: str
    places: tuple[int, ...]  # the indexes of the differences that have BAD's values
    answer: StepAnswer
    rounds: int
    condition: Condition  # the condition that decides
    judgement: Judgement | None = None  # the judgement of this condition; None if no round was complete
    reason: str = ""  # why there is no clear answer
    can_go_on: bool = False  # whether further rounds may decide it

    @property
    def figures(self) -> str:
        """The change that the step was judged by, or else its value; empty if it was not judged."""
        if self.judgement is None:
            return ""
        return self.judgement.change_text or self.judgement.run


@dataclass(frozen=True)
class BisectFindings:
    """The findings of a bisection so far, by its report."""

    report: SweepReport
    bisection: Bisection

    @property
    def conditions(self) -> list[Condition]:
        return [regression.parse_condition(text) for text in self.report.state.fail_if]

    @cached_property
    def good_again(self) -> StepFinding | None:
        """GOOD against itself; None if it was not tested."""
        return self.finding(GOOD_AGAIN)

    @cached_property
    def bad(self) -> StepFinding | None:
        return self.finding(BAD)

    @cached_property
    def steps(self) -> list[StepFinding]:
        """The findings on the steps that have begun, in their order."""
        findings = [self.finding(step.experiment) for step in self.bisection.steps]
        return [finding for finding in findings if finding]

    @property
    def begun(self) -> list[StepFinding]:
        """The findings on GOOD against itself, BAD, and the steps, as far as they have begun."""
        findings = (self.good_again, self.bad, *self.steps)
        return [finding for finding in findings if finding]

    @property
    def is_reproduced(self) -> bool:
        """Tell whether the difference was seen again: BAD fails against GOOD, and GOOD passes against itself.

        An experiment fails if a condition of --fail-if holds for it.
        """
        good, bad = self.good_again, self.bad
        return bool(good and bad and good.answer == "passes" and bad.answer == "fails")

    @property
    def answers(self) -> Answers:
        """The final answers of the steps, such as "passes" or "fails", by the set of differences that a step has.

        A step that may still get rounds has no final answer.
        """
        return {frozenset(step.places): step.answer for step in self.steps if not step.can_go_on}

    @cached_property
    def search(self) -> SearchState:
        """The state of the search by the final answers so far: the smallest failing set, and what to test next.

        For versions in their order, it is the search for the first bad one.
        """
        count = len(self.bisection.differences)
        if self.bisection.is_ordered:
            return search_first(count, self.answers)
        return search(count, self.answers)

    def step_of(self, places: frozenset[int]) -> StepFinding | None:
        """Return the finding on the experiment with exactly these differences; None if none has begun."""
        for finding in self.begun:
            if frozenset(finding.places) == places:
                return finding
        return None

    def finding(self, name: str) -> StepFinding | None:
        """Return the finding on an experiment; None if it has not begun.

        The answer is "fails" if a condition of --fail-if holds for the experiment against GOOD.
        """
        result = result_named(self.report.rows, name)
        if result is None:
            return None
        places = self.bisection.places_of(name)
        if not result.done:  # No round is complete, so no condition decides, and the finding has any of them.
            reason = result.failure.failure_text if result.failure else ""
            return StepFinding(name, places, "no verdict", rounds=0, condition=self.conditions[0], reason=reason)
        judgements = [self.report.judge(result, condition) for condition in self.conditions]
        judgement = regression.gravest(judgements)
        condition = self.conditions[judgements.index(judgement)]  # The judgements are in the order of the conditions.
        answer = answer_of(judgement, result)
        is_clear = answer in ("passes", "fails")
        has_rounds_left = self.bisection.scheduled(name) < self.bisection.most_rounds
        return StepFinding(
            experiment=name,
            places=places,
            answer=answer,
            rounds=len(result.done),
            condition=condition,
            judgement=judgement,
            reason="" if is_clear else judgement.why,
            can_go_on=answer == "undecided" and has_rounds_left,
        )

    @property
    def wanted(self) -> Sequence[str] | frozenset[int]:
        """What to run next: the names of experiments that need rounds, or a set of differences to test in a new step.

        Empty if the bisection is finished.
        """
        good, bad = self.good_again, self.bad
        if good is None or bad is None:
            return (GOOD_AGAIN, BAD)
        if self.is_reproduced:
            return self.wanted_step
        is_bad_fine = bad.answer == "passes"  # BAD is not worse by the condition, so there is nothing to explain.
        # An experiment of which no run can be judged has no verdict, and further runs would have none either.
        lacks_verdict = "no verdict" in (good.answer, bad.answer)
        if is_bad_fine or lacks_verdict:
            return ()
        if self.bisection.scheduled(BAD) >= self.bisection.most_rounds:  # GOOD and BAD have had all their rounds.
            return ()
        return (GOOD_AGAIN, BAD)  # An answer is undecided, and further rounds may decide it.

    @property
    def wanted_step(self) -> Sequence[str] | frozenset[int]:
        """The next step of the search: the name of its experiment if one exists, else its differences.

        A step is an experiment in which some of the differences have BAD's values. Empty if the search is finished.
        """
        subset = self.search.wanted
        if subset is None:
            return ()
        for step in self.bisection.steps:
            if step.subset == subset:
                return (step.experiment,)
        return subset


def answer_of(judgement: Judgement, result: ExperimentResult) -> StepAnswer:
    """Return the answer that a judgement of an experiment gives.

    An undecided experiment has no verdict if more rounds cannot give it one.
    """
    answer = ANSWERS_BY_VERDICT[judgement.verdict]
    if answer == "undecided" and not can_rounds_help(result, judgement):
        return "no verdict"
    return answer


def can_rounds_help(result: ExperimentResult, judgement: Judgement) -> bool:
    """Tell whether more rounds may give an undecided experiment a verdict.

    That is so if it has a change, whose interval can become narrower; if the machine was busy, which may end; or if
    short tests left a doubt, since further tests show their scatter.
    """
    has_change, was_busy = bool(judgement.change_text), bool(result.background_load)
    return has_change or was_busy or bool(result.doubt)
