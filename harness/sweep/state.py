"""A sweep while it runs: what is asked for, what has ended, what is being done, and what is next.

What has ended is kept in sweep.json at once, so that a sweep can be resumed. Not for two threads at the same time.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from pydantic import TypeAdapter

from harness.common import files
from harness.runs.folder import RunFolder
from harness.sweep.experiment import ENDED, ExperimentRecord, Job, RunKey
from harness.sweep.file import BASELINE, COMBINED, Change, Experiment, Part, Parts, differences, experiment, merge_parts
from harness.sweep.lanes import Lane
from harness.sweep.rows import SPEED, ExperimentResult, State, finalists, gain, rows

SHORTENED_FLAGS = ("total_sample_count", "min_duration")  # what a finalist runs without: all samples, MLPerf's duration
STATE = TypeAdapter(State)


@dataclass(frozen=True)
class SweepOptions:
    """How the experiments of a sweep are run."""

    repeat: int = 1
    timeout: float = 7200.0  # seconds, of each
    limit: float | None = None  # seconds, of all
    finalists: int = 0  # so many of the fastest run again at full length
    combine: bool = False  # the changes that helped run together, after all others
    again: tuple[str, ...] = ()  # those that are tried again where they failed


@dataclass
class SweepState:
    """The experiments to run, the baseline first; `kept` is sweep.json."""

    folder: RunFolder
    kept: State
    chosen: list[Experiment]
    options: SweepOptions = SweepOptions()
    skipped: Mapping[str, str] = field(default_factory=dict)  # why experiments are, by name
    finals: list[Experiment] = field(default_factory=list)
    taken: set[RunKey] = field(default_factory=set)
    began: float = field(default_factory=lambda: time.monotonic())
    out_of_time: bool = False

    def keep(self, **changes: object) -> None:
        """Changes what is kept of the sweep."""
        self.kept = replace(self.kept, **changes)  # type: ignore[arg-type]
        files.write_json(self.folder.path / "sweep.json", STATE.dump_python(self.kept, by_alias=True))

    def put(self, record: ExperimentRecord) -> None:
        """Keeps a record in place of an earlier one of the same run."""
        self.keep(records=(*(earlier for earlier in self.kept.records if earlier.key != record.key), record))

    @property
    def is_late(self) -> bool:
        """Whether the time limit is over."""
        return self.options.limit is not None and time.monotonic() > self.began + self.options.limit

    def next(self, lane: Lane) -> Job | None:
        """The next job of a lane; None where there is none left, or no time for it.

        In each round a lane runs the baseline first, so that whatever follows is compared with its own GPU.
        """
        for job in self.jobs():
            baseline = replace(job, item=full(self.chosen[0]) if job.final else self.chosen[0])
            for wanted in (baseline, job):
                if self.is_open(wanted, lane):
                    return self.take(wanted, lane)
        return None

    def jobs(self) -> Iterator[Job]:
        """What is not begun yet and no baseline, in order; a round's baseline alone where nothing else is wanted."""
        for number in range(self.options.repeat):
            jobs = [Job(item, number) for item in self.order_of(number)]
            if len(self.chosen) == 1:
                yield Job(self.chosen[0], number)
            yield from (job for job in jobs if self.is_open(job))
        yield from (job for item in self.finals if self.is_open(job := Job(full(item), 0, final=True)))

    def is_open(self, job: Job, lane: Lane = Lane()) -> bool:  # noqa: B008
        """Whether it is neither running nor has ended."""
        key = job.key(lane)
        before = next((record for record in self.kept.records if record.key == key), None)
        again = job.item.name in self.options.again and before is not None and before.status != "complete"
        return key not in self.taken and (before is None or before.status not in ENDED or again)

    def take(self, job: Job, lane: Lane) -> Job | None:
        if self.options.limit is not None and time.monotonic() + self.seconds_of(job) > self.began + self.options.limit:
            self.out_of_time = True
            return None
        self.taken.add(job.key(lane))
        return job

    def seconds_of(self, job: Job) -> float:
        """Seconds it will take, by its own earlier runs or else the mean of all; 0 where none is known.

        The first at full length is expected to take as long as a short one: longer is not known.
        """
        done = [record for record in self.kept.records if record.seconds]
        same = [record for record in done if record.final == job.final]
        own = [record for record in same if record.experiment == job.item.name]
        return mean(record.seconds for record in own or same or done) if done else 0.0

    def order_of(self, number: int) -> list[Experiment]:
        """The experiments of a round in the file's order; under a time limit those first that the file calls more
        valuable and, once there are speeds, the faster ones."""
        changes = [item for item in self.chosen if item.name != BASELINE]
        if self.options.limit is None:
            return changes
        speeds = {r.experiment: r.outcome.values.get(SPEED) or 0.0 for r in self.kept.records if r.round < number}
        return sorted(changes, key=lambda item: (-item.priority, -speeds.get(item.name, 0.0)))

    def extend(self) -> bool:
        """Whether more is to be run once all is done: the changes that helped together, and then the finalists."""
        wanted = self.options.combine and self.chosen[-1].kind != "combined"
        if wanted and (made := self.kept.combined or combine_helpful(rows(self.kept))):
            self.keep(combined=made)
            self.chosen = [*self.chosen, made]
            return True
        if self.options.finalists and not self.finals:
            names = finalists(rows(self.kept), self.options.finalists)
            self.finals = [item for item in self.chosen if item.name in names]
            return True
        return False

    def left(self) -> list[str]:
        """The experiments that some round lacks, or the finalists."""
        rest = dict.fromkeys(job.item.name for job in self.jobs() if not job.final and self.is_open(job))
        return list(rest) or ["finalists"]


def full(item: Experiment) -> Experiment:
    """An experiment at full official length."""
    return replace(item, settings={key: value for key, value in item.settings.items() if key not in SHORTENED_FLAGS})


def combine_helpful(found: Sequence[ExperimentResult]) -> Experiment | None:
    """The baseline with the changes of all isolated experiments that helped and count; None with fewer than two.

    Of changes to the same setting, that of the faster experiment is taken whole.
    """
    base = next((parts(result.experiment) for result in found if result.name == BASELINE), None)
    helped = [result for result in found if result.effect == "helped" and result.is_usable]
    if base is None:
        return None
    taken: dict[tuple[Part, str], Any] = {}
    names: list[str] = []
    for result in sorted(helped, key=gain, reverse=True):
        change = differences(parts(result.experiment), base)
        if result.experiment.kind == "isolation" and not change.keys() & taken.keys():
            taken |= change
            names.append(result.name)
    together = Change(name=COMBINED, about=f"all that helped together: {', '.join(names)}")
    for (part, key), value in taken.items():
        getattr(together, part)[key] = value
    return experiment(together, "combined", merge_parts(base, together), base) if len(names) > 1 else None


def parts(item: Experiment) -> Parts:
    """Its settings as a sweep file has them."""
    given = {key: value for key, value in item.settings.items() if key != "engine_arg"}
    return {"set": given, "engine": dict(item.engine), "env": dict(item.env)}
