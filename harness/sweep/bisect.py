"""A bisection while it runs: a sweep whose experiments follow from what the earlier ones have shown."""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from harness.core.errors import UsageError
from harness.core.formatting import joined_text, number, plural
from harness.report.regression import Condition
from harness.sweep import bisect_sides, report
from harness.sweep.bisect_findings import BisectFindings
from harness.sweep.bisect_sides import Side
from harness.sweep.bisection import BAD, GOOD_AGAIN, STEP_PREFIX, Bisection, BisectStep, SideDifference
from harness.sweep.delta_debugging import expected_steps
from harness.sweep.experiment import Job
from harness.sweep.file import (
    BASELINE,
    Experiment,
    ExperimentKind,
    SettingsByPart,
    Sweep,
    Variant,
    changed_settings,
    make_experiment,
    rejected_settings,
)
from harness.sweep.lanes import Lane
from harness.sweep.sweep_state import FEWEST_ROUNDS, SweepState

MOST_ROUNDS_FACTOR = 4  # the most rounds of an undecided step, as a multiple of its first rounds
FURTHER_ROUNDS = 2  # rounds that an undecided step gets at a time, so that as many are backwards as forwards
LONGEST_SWEEP_NAME = 60  # characters
# Settings that an experiment has beside those of the side that it was made of.
SETTINGS_OF_STEPS = ("no_exit_on_accuracy_fail", "extra_metrics", "engine_arg", "engine_patch")


def bisection_plan(
    words: Sequence[str], pythons: Sequence[str], conditions: Sequence[Condition], rounds: int, results_dir: Path
) -> tuple[Sweep, Bisection]:
    """Return the sweep that measures GOOD and BAD again, and the bisection with their differences.

    `words` name GOOD and BAD, or one side whose environments (`pythons`) are compared in their order. Raises UsageError
    if the sides cannot be bisected, such as by doing different work or having no difference that a run can set.
    """
    check_counts(words, pythons)
    is_ordered = len(words) == 1
    good, bad = bisect_sides.load_sides(words, results_dir)
    bisect_sides.check_good(words[0], results_dir, conditions)
    bisect_sides.check_work(good, bad)
    interpreters = in_order(pythons)
    changes = list(bisect_sides.environment_changes(interpreters))
    if interpreters:
        good, bad = replace(good, python=interpreters[0]), replace(bad, python=interpreters[-1])
    if not is_ordered:
        changes = [*bisect_sides.testable_differences(good, bad), *changes]
    untestable = bisect_sides.untestable_texts(good, bad)
    if not changes:
        raise no_difference_error(words, untestable)
    first_rounds, most_rounds = round_limits(conditions, rounds)
    good_name, bad_name = words[0], words[-1]
    if is_ordered:
        good_name, bad_name = "the first environment", "the last"
    bisection = Bisection(good_name, bad_name, tuple(changes), tuple(untestable), is_ordered, first_rounds, most_rounds)
    mode = mode_of(conditions)
    items = (
        make_step(good, BASELINE, (), mode, f"GOOD: {good_name}", "baseline"),
        make_step(good, GOOD_AGAIN, (), mode, "GOOD against itself", "isolation"),
        make_step(good, BAD, changes, mode, f"BAD: {bad_name}", "isolation"),
    )
    mistakes = list(rejected_settings([(item.name, item) for item in items]))
    if mistakes:
        raise UsageError(mistakes[0])
    condition_text = " or ".join(condition.text for condition in conditions)
    about = f"Which difference between {good_name} and {bad_name} makes {condition_text} hold."
    return Sweep(sweep_name(words), about, items), bisection


def no_difference_error(words: Sequence[str], untestable: Sequence[str]) -> UsageError:
    """Return the error for sides without a difference that a run can set."""
    reason = f"{words[0]} and {words[-1]} differ in nothing that a run can set"
    if untestable:
        reason += f"; not testable: {'; '.join(untestable)}"
    return UsageError(f"--bisect: {reason}.")


def round_limits(conditions: Sequence[Condition], rounds: int) -> tuple[int, int]:
    """Return the number of rounds that a step begins with, and the most that it may get.

    Both are the same if all conditions are about answers, since repeated answers show nothing new.
    """
    if all(condition.is_of_answers for condition in conditions):
        first = max(rounds, 1)
        return first, first
    first = max(rounds, FEWEST_ROUNDS)
    return first, MOST_ROUNDS_FACTOR * first


def check_counts(words: Sequence[str], pythons: Sequence[str]) -> None:
    """Raise UsageError if the number of sides or environments does not fit a bisection."""
    if len(words) not in (1, 2):
        raise UsageError(f"--bisect takes GOOD and BAD; got {plural(len(words), 'side')}.")
    if len(words) == 1 and len(pythons) < 2:
        raise UsageError("--bisect with one side needs --python at least twice, the oldest environment first.")
    if len(words) == 2 and len(pythons) > 2:
        raise UsageError("--python is given once or twice with GOOD and BAD; for versions give one side alone.")


def in_order(pythons: Sequence[str]) -> list[str]:
    """Return the absolute paths of the interpreters, GOOD's first.

    A single interpreter is BAD's, so the current one comes before it as GOOD's.
    """
    paths = [str(Path(python).absolute()) for python in pythons]
    if len(paths) == 1:
        return [sys.executable, *paths]
    return paths


def mode_of(conditions: Sequence[Condition]) -> str:
    """Return the mode with the tests that the conditions need: "accuracy", "performance" or "both"."""
    kinds = {condition.is_of_answers for condition in conditions}
    if kinds == {True}:
        return "accuracy"
    if kinds == {False}:
        return "performance"
    return "both"


def sweep_name(words: Sequence[str]) -> str:
    """Return a folder's name for a bisection of these sides."""
    stems = [Path(word).stem or word for word in words]
    text = "-".join(["bisect", *stems])
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:LONGEST_SWEEP_NAME]


def make_step(
    good: Side, name: str, changes: Sequence[SideDifference], mode: str, about: str, kind: ExperimentKind
) -> Experiment:
    """Return an experiment with GOOD's settings, in which the given differences have BAD's values.

    `mode` has the tests that it runs.
    """
    side = bisect_sides.side_with_changes(good, changes)
    shared: SettingsByPart = {("set", "mode"): mode}
    item = make_experiment(
        Variant.model_construct(name=name, about=about, priority=0, group=""),
        kind,
        changed_settings(side.by_part, shared),
        changed_settings(good.by_part, shared),
    )
    words = tuple(change.words for change in changes)
    return replace(item, changes=words, python=side.python)


@dataclass
class BisectState(SweepState):
    """A sweep whose rounds and experiments are added as the search asks for them."""

    @property
    def bisection(self) -> Bisection:
        """The bisection as sweep.json has it now."""
        assert self.kept.bisection
        return self.kept.bisection

    def jobs(self, lane: Lane) -> Iterator[Job]:
        """Yield the jobs of the rounds in order, every second round backwards.

        A round has GOOD beside its experiments if GOOD is repeated. An experiment that failed and never completed gets
        no further rounds. If that is GOOD or BAD, there are no jobs at all.
        """
        if any(map(self.is_hopeless, (BASELINE, GOOD_AGAIN, BAD))):
            return
        items = {item.name: item for item in self.kept.sweep.experiments}
        for place, planned_names in enumerate(self.bisection.rounds):
            names = [name for name in planned_names if not self.is_hopeless(name)]
            if not names:
                continue
            if self.bisection.repeats_good or GOOD_AGAIN in planned_names:
                names.insert(0, BASELINE)
            jobs = [Job(items[name], place) for name in names]
            if place % 2:
                jobs.reverse()
            yield from jobs

    def is_hopeless(self, name: str) -> bool:
        """Tell whether an experiment has failed and never completed. An interruption is no failure."""
        statuses = {record.status for record in self.kept.records if record.experiment == name}
        return bool(statuses - {"interrupted"}) and "complete" not in statuses

    def extend(self) -> bool:
        """Plan the next step, or further rounds of undecided steps. Return whether there is anything to run.

        Before the first step, the estimate of all steps is announced.
        """
        if self.out_of_time or self.is_hopeless(BASELINE):
            return False
        findings = BisectFindings(report.read_results(self.folder.path, self.kept), self.bisection)
        next_step = findings.wanted  # the differences of a new step, or the names of undecided steps
        self.announcement = ""
        if not next_step:
            return False
        if isinstance(next_step, frozenset):
            if not self.bisection.expected:
                self.announce()
            steps_to_run: tuple[str, ...] = (self.add_step(next_step),)
        else:
            steps_to_run = tuple(next_step)
        count = self.bisection.first_rounds
        if any(map(self.bisection.scheduled, steps_to_run)):
            count = FURTHER_ROUNDS
        further_rounds = [steps_to_run] * count
        self.keep(bisection=replace(self.bisection, rounds=(*self.bisection.rounds, *further_rounds)))
        return True

    def add_step(self, places: frozenset[int]) -> str:
        """Add the experiment with these differences, given by their indexes, and return its name."""
        bisection, sweep = self.bisection, self.kept.sweep
        name = f"{STEP_PREFIX}{len(bisection.steps) + 1}"
        step = BisectStep(name, tuple(sorted(places)))
        experiments = (*sweep.experiments, step_between(sweep, bisection, step))
        self.keep(
            sweep=replace(sweep, experiments=experiments),
            bisection=replace(bisection, steps=(*bisection.steps, step)),
        )
        self.announcement = joined_text("; ", self.announcement, f"{name}: {bisection.words(step.places)}")
        return name

    def announce(self) -> None:
        """Estimate how many steps and minutes the bisection takes, and keep the estimate."""
        bisection = self.bisection
        seconds_a_run = fmean(record.seconds for record in self.kept.records)
        minutes = bisection.first_rounds * seconds_a_run / 60
        if bisection.repeats_good:
            minutes *= 2  # GOOD runs beside each step
        expected = expected_steps(len(bisection.differences), bisection.is_ordered)
        low, high = number(expected.least * minutes, 2), number(expected.most * minutes, 2)
        text = f"{expected.words}, of {number(minutes, 2)} min each: {low} to {high} min"
        self.keep(bisection=replace(bisection, expected=text))
        self.announcement = f"expected: {text}"

    def left(self) -> list[str]:
        """Return the experiments that the time limit left out, or "further steps" if none is planned."""
        lane = Lane()
        open_jobs = [job for job in self.jobs(lane) if self.is_open(job, lane)]
        names = dict.fromkeys(job.label(0) for job in open_jobs)
        return list(names) or ["further steps"]


def step_between(sweep: Sweep, bisection: Bisection, step: BisectStep) -> Experiment:
    """Return the experiment of a step: the baseline, which is GOOD, with some of BAD's settings."""
    good = sweep.experiments[0]
    side = side_of_experiment(good, bisection.good)
    changes = [bisection.differences[place] for place in step.places]
    return make_step(side, step.experiment, changes, good.settings["mode"], "", "step")


def side_of_experiment(item: Experiment, name: str) -> Side:
    """Return the side that an experiment was made of, with this name."""
    settings = dict(item.settings)
    for key in SETTINGS_OF_STEPS:
        settings.pop(key, None)
    patches = tuple(item.settings.get("engine_patch", ()))
    return Side(name, settings, dict(item.engine), patches, dict(item.env), item.python)


def announcement(bisection: Bisection) -> str:
    """Return the differences, and how many steps they take, before anything is measured."""
    names = ", ".join(difference.words for difference in bisection.differences)
    expected = expected_steps(len(bisection.differences), bisection.is_ordered).words
    lines = [f"{plural(len(bisection.differences), 'difference')}: {names}"]
    if bisection.untestable:
        lines.append(f"not testable: {'; '.join(bisection.untestable)}")
    rounds = plural(bisection.first_rounds, "round")
    lines.append(f"first GOOD and BAD again, {rounds}; then {expected} are expected, {rounds} each or more")
    return "\n".join(lines)
