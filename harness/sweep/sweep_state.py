"""A sweep while it runs: what is asked for, what has ended, what is being done, and what is next.

Ended experiments are kept in sweep.json at once, so that a sweep can be resumed.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from operator import attrgetter
from statistics import mean
from typing import NamedTuple

from harness.config.mlperf import MIN_DURATION_S
from harness.results.change import FEWEST_PAIRS
from harness.runs.run_folder import RunFolder
from harness.sweep import report
from harness.sweep.experiment import ENDED, ExperimentRecord, Job, RunKey, State
from harness.sweep.experiment_result import (
    CAP_METRIC,
    Results,
    best_estimate,
    experiment_rows,
    finalist_names,
    is_known,
)
from harness.sweep.file import BASELINE, CAPPED_KIND, Experiment, change_text
from harness.sweep.lanes import Lane

CAP_FLAG = "max_num_seqs"  # the setting that caps running requests
# A finalist runs without these: it has all samples, MLPerf's duration and no estimate.
SHORTENED_FLAGS = ("total_sample_count", "min_duration", "quick")
SHORTEST_FULL_TEST_S = 60  # the shortest full test of an estimate, under a time limit
FEWEST_ROUNDS = 4  # before a sweep ends because enough is known
IGNORED_ON_RESUME = (
    *report.IGNORED_BETWEEN_MACHINES,
    "driver",
)  # aspects of the machine that may differ when a sweep is resumed; its file is compared whole


class SweepOptions(NamedTuple):
    """The options by which the experiments of a sweep are run."""

    repeat: int = 1
    timeout: float = 7200.0  # seconds, of each
    limit: float = inf  # seconds, of all
    finalists: int = 0  # how many of the fastest run again at full length
    again: Sequence[str] = ()  # those that are tried again where they failed
    alternate: bool = False  # every second round backwards, A B B A, so that what changes evenly cancels out
    mlflow: bool = False
    json: bool = False  # the verdicts of --fail-if go to standard output, all else to standard error


@dataclass
class SweepState:
    """The experiments to run, the baseline first; `kept` is sweep.json."""

    folder: RunFolder
    kept: State
    chosen: list[Experiment]
    options: SweepOptions
    skipped: dict[str, str]  # why experiments are, by name
    finals: list[Experiment] = field(default_factory=list)
    taken: set[RunKey] = field(default_factory=set)
    began: float = field(default_factory=lambda: time.monotonic())
    out_of_time: bool = False
    announcement: str = ""  # the latest plan, for the screen

    def keep(self, **changes: object) -> None:
        """Change the kept state of the sweep and write it to the folder."""
        self.kept = replace(self.kept, **changes)  # type: ignore[arg-type]
        report.write_state(self.folder.path, self.kept)

    def put(self, record: ExperimentRecord) -> None:
        """Keep a record. It replaces an earlier record of the same run."""
        records = [earlier for earlier in self.kept.records if earlier.key != record.key]
        self.keep(records=(*records, record))

    def is_late(self, seconds: float = 0.0) -> bool:
        """Tell whether the time limit is over now, or will be in `seconds`."""
        return time.monotonic() + seconds > self.began + self.options.limit

    def next(self, lane: Lane) -> Job | None:
        """Return the next job of a lane; None if no job is left or there is no time for one.

        Time that is too short for one job is left to the finalists.
        """
        for job in self.jobs(lane):
            if self.is_open(job, lane) and self.take(job, lane):
                return job
        return None

    def jobs(self, lane: Lane) -> Iterator[Job]:
        """Yield the jobs that a lane may run, in order.

        Each round begins with the baseline, so that the others are compared with a baseline on their own GPU. If rounds
        alternate, every second round runs backwards and ends with the baseline.
        """
        options = self.options
        changes = sorted(self.chosen[1:], key=attrgetter("priority"), reverse=True)
        for number in range(options.repeat):
            is_second = number % 2 == 1
            if self.kept.within and number >= FEWEST_ROUNDS and not is_second and is_known(self.kept, number):
                break
            turn = self.turn([self.chosen[0], *changes], number, lane)
            if options.alternate and is_second:
                turn.reverse()
            yield from turn
        if self.finals:
            yield from self.turn(self.finals, 0, lane, final=True)

    def turn(self, items: Sequence[Experiment], number: int, lane: Lane, final: bool = False) -> list[Job]:
        """Return the baseline and the open jobs of a round.

        Empty if all other jobs of the round are done, unless rounds alternate.
        """
        base, *jobs = (Job(item, number, final) for item in items)
        open_jobs = [job for job in jobs if self.is_open(job, lane)]
        if jobs and not open_jobs and not self.options.alternate:
            return []
        return [base, *open_jobs]

    def is_open(self, job: Job, lane: Lane) -> bool:
        """Tell whether a job can be started: it is not running and has not ended.

        A job that is to be tried again counts as ended only if it is complete.
        """
        key, final_statuses = job.key(lane), ENDED
        if job.item.name in self.options.again:
            final_statuses = ("complete",)
        ended = {record.key for record in self.kept.records if record.status in final_statuses}
        return key not in self.taken and key not in ended

    def take(self, job: Job, lane: Lane) -> bool:
        """Tell whether there is time for a job, and reserve it for this lane if so.

        Once a job was too long, only finalists run.
        """
        seconds = self.seconds_of(job)
        if job.item.is_estimate:
            seconds += seconds + SHORTEST_FULL_TEST_S  # it is confirmed
        is_late = self.is_late(seconds)
        self.out_of_time |= is_late
        has_no_time = is_late if job.final else self.out_of_time
        if has_no_time:
            return False
        self.taken.add(job.key(lane))
        return True

    def seconds_of(self, job: Job) -> float:
        """Estimate the seconds of a job by its own earlier runs, else by the mean of all runs; 0 if there are none.

        The first run at full length is expected to take as long as a short one, because nothing better is known.
        """
        done = [record for record in self.kept.records if record.seconds]
        if not done:
            return 0.0
        of_same_length = [record for record in done if record.final == job.final]
        of_same_item = [record for record in of_same_length if record.experiment == job.item.name]
        return mean(record.seconds for record in of_same_item or of_same_length or done)

    def extend(self) -> bool:
        """Tell whether more is to run after the rounds, and plan it: the capped best estimate, then the finalists."""
        results, is_ranked = experiment_rows(self.kept), self.chosen[0].is_estimate
        if is_ranked:
            capped = self.kept.capped or cap_fastest(results)
            if capped and capped not in self.chosen:
                self.keep(capped=capped)
                self.chosen = [*self.chosen, capped]
                return True
        if self.finals:
            return False
        names = []
        if is_ranked:
            best = best_estimate(results)
            names = [best.name] if best else []
        elif self.options.finalists:
            names = finalist_names(results, self.options.finalists)
        self.finals = [self.full(item) for item in self.chosen if item.name in names]
        return bool(self.finals)

    def full(self, item: Experiment) -> Experiment:
        """Return an experiment at full official length.

        An estimated experiment becomes a search for its rate, with full tests short enough that two fit into the time
        left.
        """
        settings = {key: value for key, value in item.settings.items() if key not in SHORTENED_FLAGS}
        if item.is_estimate:
            settings["server_target_qps"] = "max"
            seconds_left = self.began + self.options.limit - time.monotonic()
            seconds_a_test = (seconds_left - self.seconds_of(Job(item, 0))) / 2
            longest = item.settings.get("min_duration", "auto")
            if longest == "auto":
                longest = MIN_DURATION_S
            seconds = min(longest, max(SHORTEST_FULL_TEST_S, seconds_a_test))
            if seconds < MIN_DURATION_S:
                settings["min_duration"] = round(seconds, 1)
        return replace(item, settings=settings)

    def left(self) -> list[str]:
        """The experiments that lack a round, or the word "finalists" if those are not chosen yet."""
        labels = []
        for job in self.jobs(Lane()):
            if job.item.name != BASELINE:
                labels.append(job.label(self.options.repeat))
        return labels or ["finalists"]

    def minutes_for_pairs(self) -> int | None:
        """Return the minutes that a comparison of servers needs for FEWEST_PAIRS tests of each, by those that ran.

        None for any other sweep, for a comparison that has as many, and if no test ended.
        """
        seconds = [record.seconds for record in self.kept.records if record.seconds]
        if not self.kept.sweep.is_of_servers or not seconds:
            return None
        complete = Counter(record.experiment for record in self.kept.records if record.status == "complete")
        if all(complete[item.name] >= FEWEST_PAIRS for item in self.chosen):
            return None
        return ceil(FEWEST_PAIRS * len(self.chosen) * mean(seconds) / 60)


def cap_fastest(results: Results) -> Experiment | None:
    """Return the fastest estimated experiment with a cap on running requests that keeps TPOT near its limit.

    None if the cap is not known, or if no more requests run anyway.
    """
    best = best_estimate(results)
    running = best.numbers.get(CAP_METRIC.name) if best else None
    if not best or not running or running >= best.experiment.settings.get(CAP_FLAG, inf):
        return None
    about = f"{best.name} with as many requests running as keep TPOT's p99 at 95 % of its limit, by its estimate"
    item, cap = best.experiment, round(running)
    settings = item.settings | {CAP_FLAG: cap}
    earlier = change_text(CAP_FLAG, item.settings.get(CAP_FLAG))
    changes = [change for change in item.changes if change != earlier]
    changes.append(change_text(CAP_FLAG, cap))
    return replace(item, name=CAPPED_KIND, about=about, kind="capped", settings=settings, changes=tuple(changes))
