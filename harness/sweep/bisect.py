"""A bisection while it runs: a sweep whose experiments follow from what the earlier ones have shown."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
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
    mistakes_in_experiments,
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

    `words` name both sides. With a single side, its environments (`pythons`) are compared: versions that follow each
    other, of which the first bad one is sought. `rounds` is what the user asked for. Raises UsageError if the sides
    cannot be bisected.
    """
    check_counts(words, pythons)
    is_ordered = len(words) == 1  # The environments of a single side have an order.
    interpreters = in_order(pythons)
    good, bad = checked_sides(words, interpreters, conditions, results_dir)
    differences = list(bisect_sides.environment_changes(interpreters))
    if not is_ordered:
        differences = [*bisect_sides.testable_differences(good, bad), *differences]
    untestable = bisect_sides.untestable_texts(good, bad)
    if not differences:
        raise no_difference_error(words[0], words[-1], untestable)
    first_rounds, most_rounds = round_limits(conditions, rounds)
    good_name, bad_name = words[0], words[-1]
    if is_ordered:
        good_name, bad_name = "the first environment", "the last"
    bisection = Bisection(
        good=good_name,
        bad=bad_name,
        differences=tuple(differences),
        untestable=tuple(untestable),
        is_ordered=is_ordered,
        first_rounds=first_rounds,
        most_rounds=most_rounds,
    )
    experiments = first_experiments(bisection, good, mode_of(conditions))
    condition_text = " or ".join(condition.text for condition in conditions)
    about = f"Which difference between {good_name} and {bad_name} makes {condition_text} hold."
    return Sweep(sweep_name(words), about, experiments), bisection


def checked_sides(
    words: Sequence[str], interpreters: Sequence[str], conditions: Sequence[Condition], results_dir: Path
) -> tuple[Side, Side]:
    """Return GOOD and BAD by the words for them, each with its interpreter if any are given.

    Raises UsageError if a side cannot be read, if GOOD is a run that cannot stand for a good one, or if the two do
    different work.
    """
    good, bad = bisect_sides.load_sides(words, results_dir)
    bisect_sides.check_good(words[0], results_dir, conditions)
    bisect_sides.check_work(good, bad)
    if interpreters:
        good, bad = replace(good, python=interpreters[0]), replace(bad, python=interpreters[-1])
    return good, bad


def first_experiments(bisection: Bisection, good: Side, mode: str) -> tuple[Experiment, ...]:
    """Return the experiments that a bisection begins with: GOOD (the baseline), GOOD against itself, and BAD.

    `mode` says which tests the experiments run. Raises UsageError if a run refuses the settings of an experiment.
    """
    about_good, about_bad = f"GOOD: {bisection.good}", f"BAD: {bisection.bad}"
    experiments = (
        make_step(good, BASELINE, changes=(), mode=mode, about=about_good, kind="baseline"),
        # A condition that holds even here says nothing about the difference.
        make_step(good, GOOD_AGAIN, changes=(), mode=mode, about="GOOD against itself", kind="isolation"),
        make_step(good, BAD, changes=bisection.differences, mode=mode, about=about_bad, kind="isolation"),
    )
    mistakes = list(mistakes_in_experiments([(experiment.name, experiment) for experiment in experiments]))
    if mistakes:
        raise UsageError(mistakes[0])
    return experiments


def no_difference_error(good: str, bad: str, untestable: Sequence[str]) -> UsageError:
    """Return the error for a bisection whose sides differ in nothing that a run can set.

    `good` and `bad` name the sides as the user did. `untestable` describes each difference that a run cannot set.
    """
    reason = f"{good} and {bad} differ in nothing that a run can set"
    if untestable:
        reason += f"; not testable: {'; '.join(untestable)}"
    return UsageError(f"--bisect: {reason}.")


def round_limits(conditions: Sequence[Condition], rounds: int) -> tuple[int, int]:
    """Return the number of rounds that a step begins with, and the most that it may get if it is undecided.

    In each step, a mixture of the settings of GOOD and BAD runs once a round. `rounds` is what the user asked for.
    """
    if all(condition.is_of_answers for condition in conditions):  # Repeated answers show nothing new.
        first_rounds = max(rounds, 1)
        return first_rounds, first_rounds
    first_rounds = max(rounds, FEWEST_ROUNDS)
    return first_rounds, MOST_ROUNDS_FACTOR * first_rounds


def check_counts(words: Sequence[str], pythons: Sequence[str]) -> None:
    """Raise UsageError if the numbers of sides and of environments do not fit together.

    `words` name the sides, `pythons` are the interpreters of the environments.
    """
    if len(words) not in (1, 2):
        raise UsageError(f"--bisect takes GOOD and BAD; got {plural(len(words), 'side')}.")
    if len(words) == 1 and len(pythons) < 2:
        raise UsageError("--bisect with one side needs --python at least twice, the oldest environment first.")
    if len(words) == 2 and len(pythons) > 2:  # GOOD and BAD have no use for a third environment.
        raise UsageError("--python is given once or twice with GOOD and BAD; for versions give one side alone.")


def in_order(pythons: Sequence[str]) -> list[str]:
    """Return the absolute paths of the interpreters, GOOD's first.

    A single one is BAD's; GOOD then has the current one.
    """
    paths = [str(Path(python).absolute()) for python in pythons]
    if len(paths) == 1:
        return [sys.executable, *paths]
    return paths


def mode_of(conditions: Sequence[Condition]) -> str:
    """Return the mode with the tests that the conditions need: "accuracy" for answers,
    "performance" for speeds, or "both".
    """
    are_of_answers = {condition.is_of_answers for condition in conditions}
    if are_of_answers == {True}:
        return "accuracy"
    if are_of_answers == {False}:
        return "performance"
    return "both"


def sweep_name(words: Sequence[str]) -> str:
    """Return a name for a bisection of these sides that may be a folder's name."""
    stems = [Path(word).stem or word for word in words]
    text = "-".join(["bisect", *stems])
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:LONGEST_SWEEP_NAME]


def make_step(
    good: Side, name: str, changes: Sequence[SideDifference], mode: str, about: str, kind: ExperimentKind
) -> Experiment:
    """Return an experiment with GOOD's settings, except that the differences `changes` have BAD's values.

    `mode` says which tests the experiment runs: accuracy, performance or both.
    """
    side = bisect_sides.side_with_changes(good, changes)
    mode_setting: SettingsByPart = {("set", "mode"): mode}
    variant = Variant.model_construct(name=name, about=about, priority=0, group="")
    settings = changed_settings(side.by_part, mode_setting)
    good_settings = changed_settings(good.by_part, mode_setting)
    experiment = make_experiment(variant, kind, settings, baseline=good_settings)
    # The experiment's own words are of settings alone. A difference may also be an engine patch or an environment.
    change_words = tuple(change.words for change in changes)
    return replace(experiment, changes=change_words, python=side.python)


@dataclass
class BisectState(SweepState):
    """A sweep whose rounds and experiments are added as the search asks for them."""

    @property
    def bisection(self) -> Bisection:
        """The bisection as sweep.json has it now."""
        assert self.kept.bisection
        return self.kept.bisection

    def jobs(self, lane: Lane) -> Iterator[Job]:
        """Yield the jobs of all planned rounds in order, every second round backwards.

        There are none if GOOD or BAD never completed. All lanes have the same jobs: `lane` is there because other
        sweeps choose by it.
        """
        if any(map(self.is_hopeless, (BASELINE, GOOD_AGAIN, BAD))):
            return
        items = {item.name: item for item in self.kept.sweep.experiments}
        for round_number, planned_names in enumerate(self.bisection.rounds):
            names = [name for name in planned_names if not self.is_hopeless(name)]
            if not names:  # All experiments of the round have failed before.
                continue
            # The first rounds compare GOOD and BAD. Later ones need GOOD only if a condition compares with it.
            compares_good_and_bad = GOOD_AGAIN in planned_names
            if self.bisection.repeats_good or compares_good_and_bad:
                names.insert(0, BASELINE)
            jobs = [Job(items[name], round_number) for name in names]
            if round_number % 2:  # so that a steady drift of the machine favors no experiment
                jobs.reverse()
            yield from jobs

    def is_hopeless(self, name: str) -> bool:
        """Tell whether an experiment has failed and never completed, so that running it again is of no use.

        An interruption is no failure.
        """
        statuses = {record.status for record in self.kept.records if record.experiment == name}
        return bool(statuses - {"interrupted"}) and "complete" not in statuses

    def extend(self) -> bool:
        """Plan what the bisection needs next, and return whether there is anything to run.

        That is a new step, an experiment between GOOD and BAD, or more rounds of experiments that exist. Before the
        first step, the estimate of all steps is announced.
        """
        can_good_not_run = self.is_hopeless(BASELINE)  # GOOD is the baseline of each step.
        if self.out_of_time or can_good_not_run:
            return False
        findings = BisectFindings(report.read_results(self.folder.path, self.kept), self.bisection)
        wanted = findings.wanted
        self.announcement = ""
        if not wanted:
            return False
        if isinstance(wanted, frozenset):  # a new step, by the indexes of its differences
            is_first_step = not self.bisection.expected  # The estimate of all steps is made at the first one.
            if is_first_step:
                self.announce_estimate()
            self.add_rounds([self.add_step(wanted)])
        else:  # the names of experiments that need rounds
            self.add_rounds(wanted)
        return True

    def add_rounds(self, names: Iterable[str]) -> None:
        """Plan rounds of these experiments, each of which runs once in a round.

        They are the first rounds or, for experiments that have had these, FURTHER_ROUNDS more.
        """
        planned_names = tuple(names)
        have_had_rounds = any(map(self.bisection.scheduled, planned_names))
        count = FURTHER_ROUNDS if have_had_rounds else self.bisection.first_rounds
        planned_rounds = [planned_names] * count
        self.keep(bisection=replace(self.bisection, rounds=(*self.bisection.rounds, *planned_rounds)))

    def add_step(self, places: frozenset[int]) -> str:
        """Add a step to the sweep: GOOD with BAD's values of the differences that have these indexes (`places`).

        Return the name of its experiment. What the step changes is added to the announcement, which is printed.
        """
        bisection = self.bisection
        sweep = self.kept.sweep
        name = f"{STEP_PREFIX}{len(bisection.steps) + 1}"
        step = BisectStep(name, tuple(sorted(places)))
        experiments = (*sweep.experiments, step_between(sweep, bisection, step))
        self.keep(
            sweep=replace(sweep, experiments=experiments),
            bisection=replace(bisection, steps=(*bisection.steps, step)),
        )
        self.announcement = joined_text("; ", self.announcement, f"{name}: {bisection.words(step.places)}")
        return name

    def announce_estimate(self) -> None:
        """Estimate how many steps and minutes the bisection takes, and store and announce the estimate."""
        bisection = self.bisection
        mean_run_s = fmean(record.seconds for record in self.kept.records)
        runs_of_step = bisection.first_rounds
        if bisection.repeats_good:
            runs_of_step *= 2  # Each run of the step has a run of GOOD beside it.
        step_minutes = runs_of_step * mean_run_s / 60
        expected = expected_steps(len(bisection.differences), bisection.is_ordered)
        low, high = number(expected.least * step_minutes, 2), number(expected.most * step_minutes, 2)
        text = f"{expected.words}, of {number(step_minutes, 2)} min each: {low} to {high} min"
        self.keep(bisection=replace(bisection, expected=text))
        self.announcement = f"expected: {text}"

    def left(self) -> list[str]:
        """Return the names of the experiments that the time limit left out; "further steps" if all planned ones ran."""
        lane = Lane()  # A bisection has the same jobs for all lanes, so any lane will do.
        open_jobs = [job for job in self.jobs(lane) if self.is_open(job, lane)]
        names = dict.fromkeys(job.item.name for job in open_jobs)
        return list(names) or ["further steps"]


def step_between(sweep: Sweep, bisection: Bisection, step: BisectStep) -> Experiment:
    """Return the experiment of a step: GOOD, which is the sweep's first experiment, with some of BAD's values."""
    good = sweep.experiments[0]
    side = side_of_experiment(good, bisection.good)
    changes = [bisection.differences[place] for place in step.places]
    return make_step(side, step.experiment, changes, mode=good.settings["mode"], about="", kind="step")


def side_of_experiment(experiment: Experiment, name: str) -> Side:
    """Return the side (GOOD or BAD) that an experiment was made of, under this name.

    It has the experiment's settings without those that are added to every step.
    """
    settings = dict(experiment.settings)
    for key in SETTINGS_OF_STEPS:
        settings.pop(key, None)
    patches = tuple(experiment.settings.get("engine_patch", ()))
    return Side(
        name,
        settings,
        engine=dict(experiment.engine),
        patches=patches,
        env=dict(experiment.env),
        python=experiment.python,
    )


def announcement(bisection: Bisection) -> str:
    """Return as text what a bisection will do, before anything is measured: the differences and the expected steps."""
    names = ", ".join(difference.words for difference in bisection.differences)
    expected = expected_steps(len(bisection.differences), bisection.is_ordered).words
    lines = [f"{plural(len(bisection.differences), 'difference')}: {names}"]
    if bisection.untestable:
        lines.append(f"not testable: {'; '.join(bisection.untestable)}")
    rounds = plural(bisection.first_rounds, "round")
    lines.append(f"first GOOD and BAD again, {rounds}; then {expected}, each of {rounds} or more")
    return "\n".join(lines)
