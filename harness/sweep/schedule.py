"""What is run next, and where: rounds, most valuable first, while the time limit lets."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from harness.sweep.choice import Choice
from harness.sweep.experiment import ENDED, ExperimentRecord
from harness.sweep.file import BASELINE, Experiment
from harness.sweep.lanes import Lane

SHORTENED_FLAGS = ("total_sample_count", "min_duration")  # what a finalist runs without: all samples, MLPerf's duration


@dataclass(frozen=True)
class Job:
    """One experiment of one round; a `final` is at full length."""

    item: Experiment
    turn: int
    final: bool = False

    def key(self, lane: Lane) -> tuple[str, int, bool, str]:
        """The key of its record."""
        return self.item.name, self.turn, self.final, lane.gpu if self.item.name == BASELINE else ""

    def label(self, rounds: int) -> str:
        part = " at full length" if self.final else f" ({self.turn + 1} of {rounds})" if rounds > 1 else ""
        return self.item.name + part


@dataclass
class Schedule:
    """The jobs of a sweep, handed out one by one; not by two threads at once. `records` are those so far.

    In each round a lane runs the baseline first, so that whatever follows is compared with its own GPU.
    """

    chosen: Sequence[Experiment]
    choice: Choice
    records: Callable[[], Sequence[ExperimentRecord]]
    began: float = field(default_factory=lambda: time.monotonic())
    taken: set[tuple[str, int, bool, str]] = field(default_factory=set)
    out_of_time: bool = False

    @property
    def deadline(self) -> float:
        limit = self.choice.time_limit
        return self.began + limit if limit else float("inf")

    def next(self, lane: Lane, finalists: Sequence[Experiment] = ()) -> Job | None:
        """The next job of a lane; None where there is none left, or no time for it."""
        for job in self.jobs(finalists):
            baseline = replace(job, item=full(self.chosen[0]) if job.final else self.chosen[0])
            for wanted in (baseline, job):
                if self.open(wanted, lane):
                    return self.take(wanted, lane)
        return None

    def jobs(self, finalists: Sequence[Experiment]) -> Iterator[Job]:
        """What is not begun yet and no baseline, in order; a round's baseline alone where nothing else is wanted."""
        for turn in range(self.choice.repeat):
            jobs = [Job(item, turn) for item in self.ordered(turn)]
            if len(self.chosen) == 1:
                yield Job(self.chosen[0], turn)
            yield from (job for job in jobs if self.open(job))
        yield from (job for item in finalists if self.open(job := Job(full(item), 0, final=True)))

    def open(self, job: Job, lane: Lane = Lane()) -> bool:  # noqa: B008
        """Whether it is neither running nor has ended; an experiment that --only names is tried again."""
        key = job.key(lane)
        before = next((record for record in self.records() if record.key == key), None)
        again = job.item.name in self.choice.only and before is not None and before.status != "complete"
        return key not in self.taken and (before is None or before.status not in ENDED or again)

    def take(self, job: Job, lane: Lane) -> Job | None:
        if time.monotonic() + self.expected(job) > self.deadline:
            self.out_of_time = True
            return None
        self.taken.add(job.key(lane))
        return job

    def expected(self, job: Job) -> float:
        """Seconds it will take, by its own earlier runs or else the mean of all; 0 where none is known.

        The first at full length is expected to take as long as a short one: longer is not known.
        """
        done = [record for record in self.records() if record.seconds]
        same = [record for record in done if record.final == job.final]
        own = [record for record in same if record.experiment == job.item.name]
        return mean(record.seconds for record in own or same or done) if done else 0.0

    def ordered(self, turn: int) -> list[Experiment]:
        """The experiments of a round in the file's order; under a time limit those first that the file calls more
        valuable and, once there are speeds, the faster ones."""
        changes = [item for item in self.chosen if item.name != BASELINE]
        if not self.choice.time_limit:
            return changes
        speeds = {r.experiment: r.outcome.get("tokens_per_sec") or 0.0 for r in self.records() if r.round < turn}
        return sorted(changes, key=lambda item: (-item.priority, -speeds.get(item.name, 0.0)))

    def left(self) -> list[str]:
        """The experiments that some round lacks."""
        open_jobs = (job for job in self.jobs(()) if self.open(job))
        return list(dict.fromkeys(job.item.name for job in open_jobs))


def full(item: Experiment) -> Experiment:
    """An experiment at full official length."""
    return replace(item, settings={key: value for key, value in item.settings.items() if key not in SHORTENED_FLAGS})
