"""A sweep while it runs: what was asked for, what has ended, what is running, and what is next.

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
from harness.sweep.experiment import ENDED_STATUSES, ExperimentRecord, Job, RunKey, State
from harness.sweep.experiment_result import (
    CAP_METRIC,
    Results,
    are_all_narrow,
    best_estimate,
    experiment_rows,
    finalist_names,
)
from harness.sweep.file import BASELINE, CAPPED_KIND, Experiment, change_text
from harness.sweep.lanes import Lane

CAP_FLAG = "max_num_seqs"  # the setting that caps running requests
# The settings that shorten an experiment. A finalist runs without them: with all samples, for MLPerf's duration.
SHORTENING_FLAGS = ("total_sample_count", "min_duration", "quick")
SHORTEST_FULL_TEST_S = 60  # the shortest full test that confirms an estimate, under a time limit
FEWEST_ROUNDS = 4  # the rounds that a sweep has at least, even if its intervals are narrow enough before
# Aspects that may differ when a sweep is resumed. Settings and work are among them because the file is compared as a
# whole.
IGNORED_ON_RESUME = (*report.IGNORED_BETWEEN_MACHINES, "driver")


class SweepOptions(NamedTuple):
    """The options by which the experiments of a sweep are run."""

    repeat: int = 1  # rounds
    timeout: float = 7200.0  # seconds of each experiment
    limit: float = inf  # seconds of the whole sweep
    finalists: int = 0  # how many of the fastest experiments run again at full length
    again: Sequence[str] = ()  # the names of experiments that are tried again if they failed
    alternate: bool = False  # whether every second round is backwards, A B B A, so that a steady drift cancels out
    mlflow: bool = False
    json: bool = False  # whether the verdicts of --fail-if go to standard output and all else to standard error


@dataclass
class SweepState:
    """A running sweep: its stored state, the experiments to run, and what the lanes are doing."""

    folder: RunFolder
    kept: State  # the content of sweep.json
    chosen: list[Experiment]  # the experiments to run, the baseline first
    options: SweepOptions
    skipped: dict[str, str]  # why an experiment cannot run, by its name
    finalists: list[Experiment] = field(default_factory=list)  # those that run again at full length
    reserved: set[RunKey] = field(default_factory=set)  # jobs that a lane runs or has run
    began: float = field(default_factory=lambda: time.monotonic())
    out_of_time: bool = False  # whether there was no time for a job
    announcement: str = ""  # the latest plan, for the screen

    def keep(self, **changes: object) -> None:
        """Change fields of the stored state and write the state to sweep.json, so that the sweep can be resumed."""
        self.kept = replace(self.kept, **changes)  # type: ignore[arg-type]
        report.write_state(self.folder.path, self.kept)

    def put(self, record: ExperimentRecord) -> None:
        """Store a record in sweep.json. It replaces an earlier record of the same run."""
        records = [earlier for earlier in self.kept.records if earlier.key != record.key]
        self.keep(records=(*records, record))

    def is_late(self, seconds: float = 0.0) -> bool:
        """Tell whether the time limit is over now, or will be in `seconds`."""
        return time.monotonic() + seconds > self.began + self.options.limit

    def next(self, lane: Lane) -> Job | None:
        """Return the next job of a lane, which is then reserved for it.

        None if no job is left or there is no time for one.
        """
        for job in self.jobs(lane):
            if self.is_open(job, lane) and self.reserve(job, lane):
                return job
        return None

    def jobs(self, lane: Lane) -> Iterator[Job]:
        """Yield the jobs that a lane may run, in order, the finalists (the fastest, once more at full length) last.

        A lane is a GPU, or the whole machine. Each round has the baseline, so that a lane compares on its own GPU.
        """
        baseline, *others = self.chosen
        others.sort(key=attrgetter("priority"), reverse=True)
        for done_rounds in range(self.options.repeat):
            # With --alternate, every second round runs backwards, the first one forwards.
            runs_forwards = done_rounds % 2 == 0
            ends_when_narrow = self.kept.within > 0 and done_rounds >= FEWEST_ROUNDS
            # The sweep ends only after as many rounds backwards as forwards.
            if ends_when_narrow and runs_forwards and are_all_narrow(self.kept, done_rounds):
                break
            round_jobs = self.jobs_of_round([baseline, *others], done_rounds, lane)
            if self.options.alternate and not runs_forwards:
                round_jobs.reverse()
            yield from round_jobs
        if self.finalists:
            yield from self.jobs_of_round(self.finalists, 0, lane, final=True)

    def jobs_of_round(self, items: Sequence[Experiment], number: int, lane: Lane, final: bool = False) -> list[Job]:
        """Return the baseline's job of one round (`number`), and the open jobs of the others.

        The caller finds out whether the baseline's job is open. Nothing is returned for a round that is done. `items`
        begins with the baseline. `final` asks for jobs at full length.
        """
        base, *jobs = (Job(item, number, final) for item in items)
        open_jobs = [job for job in jobs if self.is_open(job, lane)]
        are_others_done = bool(jobs) and not open_jobs
        # In a round that runs backwards, the baseline is the last, so its job may be the only one that is left.
        may_run_backwards = self.options.alternate
        if are_others_done and not may_run_backwards:
            return []
        return [base, *open_jobs]

    def is_open(self, job: Job, lane: Lane) -> bool:
        """Tell whether a job can be started on a lane: it is not running and has not ended.

        A job that the user wants to try again counts as ended only if it is complete.
        """
        key, ended_statuses = job.key(lane), ENDED_STATUSES
        if job.item.name in self.options.again:
            ended_statuses = ("complete",)
        ended = {record.key for record in self.kept.records if record.status in ended_statuses}
        return key not in self.reserved and key not in ended

    def reserve(self, job: Job, lane: Lane) -> bool:
        """Reserve a job for this lane if there is time for it, and return whether it was reserved."""
        seconds = self.seconds_of(job)
        if job.item.is_estimate:  # Later, a search as long as the estimate and a full test must confirm the best one.
            seconds = 2 * seconds + SHORTEST_FULL_TEST_S
        is_too_long = self.is_late(seconds)
        if is_too_long:
            self.out_of_time = True
        # The time that is left is for the finalists.
        is_of_ended_rounds = self.out_of_time and not job.final
        if is_too_long or is_of_ended_rounds:
            return False
        self.reserved.add(job.key(lane))
        return True

    def seconds_of(self, job: Job) -> float:
        """Estimate the seconds of a job by the mean of earlier runs that are most alike; 0 if there are none."""
        done = [record for record in self.kept.records if record.seconds]
        if not done:
            return 0.0
        of_same_length = [record for record in done if record.final == job.final]
        of_same_item = [record for record in of_same_length if record.experiment == job.item.name]
        best_known = of_same_item or of_same_length or done
        return mean(record.seconds for record in best_known)

    def extend(self) -> bool:
        """Plan what follows from the results of the rounds, and return whether anything does.

        A sweep of estimates gets the best one with a cap on running requests, and then the best of all at full length.
        Any other sweep gets the finalists that were asked for.
        """
        results = experiment_rows(self.kept)
        has_estimates = self.chosen[0].is_estimate
        if has_estimates and self.add_capped(results):
            return True
        if self.finalists:  # They are planned already.
            return False
        names = []
        if has_estimates:
            best = best_estimate(results)
            names = [best.name] if best else []
        elif self.options.finalists:
            names = finalist_names(results, self.options.finalists)
        self.finalists = [self.at_full_length(item) for item in self.chosen if item.name in names]
        return bool(self.finalists)

    def add_capped(self, results: Results) -> bool:
        """Add the experiment with the best estimate once more, with a cap on running requests.

        Return False if there is none to add, or if it was added before.
        """
        # `kept` is the content of sweep.json, which has the capped experiment already if the sweep was resumed.
        capped = self.kept.capped or capped_copy_of_best(results)
        if capped is None or capped in self.chosen:
            return False
        self.keep(capped=capped)
        self.chosen = [*self.chosen, capped]
        return True

    def at_full_length(self, item: Experiment) -> Experiment:
        """Return an experiment at MLPerf's duration: without the settings that shorten it (SHORTENING_FLAGS).

        An estimate (--quick) becomes a search for the highest rate. Its full tests are shorter than MLPerf's if the
        sweep has no time left for two of full length.
        """
        settings = {key: value for key, value in item.settings.items() if key not in SHORTENING_FLAGS}
        if item.is_estimate:
            settings["server_target_qps"] = "max"
            test_s = self.confirming_s(item)
            if test_s < MIN_DURATION_S:
                settings["min_duration"] = round(test_s, 1)  # People read this setting in the report.
        return replace(item, settings=settings)

    def confirming_s(self, item: Experiment) -> float:
        """Return the length in seconds of a full test that confirms an estimate, by the time the sweep has left."""
        seconds_left = self.began + self.options.limit - time.monotonic()
        # The confirming run searches for the rate again, which takes about as long as the estimate took.
        search_s = self.seconds_of(Job(item, 0))
        fitting_s = (seconds_left - search_s) / 2  # for each of two full tests: the first may fail
        given = item.settings.get("min_duration", "auto")
        asked_s: float = MIN_DURATION_S if given == "auto" else given
        return min(asked_s, max(SHORTEST_FULL_TEST_S, fitting_s))

    def left(self) -> list[str]:
        """Return the names of the jobs that the time limit left out; ["finalists"] if only the finalists were left out.

        The baseline's jobs are not named, since they only serve the others.
        """
        labels = []
        # `jobs` yields those that have not run yet.
        whole_machine = Lane()  # Any lane would do: the jobs other than the baseline's do not depend on it.
        for job in self.jobs(whole_machine):
            if job.item.name != BASELINE:
                labels.append(job.label(self.options.repeat))
        return labels or ["finalists"]  # They are chosen after all other jobs, so there were no jobs for them yet.

    def minutes_for_pairs(self) -> int | None:
        """Return the minutes that a comparison of servers needs for FEWEST_PAIRS tests of each server.

        A test is expected to take as long as those that ran. None for any other sweep, for a comparison that has enough
        tests, and if no test ended.
        """
        seconds = [record.seconds for record in self.kept.records if record.seconds]
        if not self.kept.sweep.is_of_servers or not seconds:
            return None
        complete = Counter(record.experiment for record in self.kept.records if record.status == "complete")
        if all(complete[item.name] >= FEWEST_PAIRS for item in self.chosen):
            return None
        return ceil(FEWEST_PAIRS * len(self.chosen) * mean(seconds) / 60)


def capped_copy_of_best(results: Results) -> Experiment | None:
    """Return a copy of the experiment with the best estimate, with fewer running requests (CAP_FLAG).

    The estimate says how many: as many as keep the p99 of TPOT at 95 % of its limit. None if no estimate counts, if the
    best one gives no number, or if the experiment has a cap that is as low already.
    """
    best = best_estimate(results)
    if best is None:
        return None
    item, estimated_cap = best.experiment, best.numbers.get(CAP_METRIC.name)
    own_cap = item.settings.get(CAP_FLAG, inf)
    if not estimated_cap or estimated_cap >= own_cap:
        return None
    # `about` is shown in the report.
    about = f"{best.name} with as many requests running as keep TPOT's p99 at 95 % of its limit, by its estimate"
    cap = round(estimated_cap)  # The estimate is a mean over runs.
    settings = item.settings | {CAP_FLAG: cap}
    # The new cap replaces an old one in the experiment's list of changes.
    old_change = change_text(CAP_FLAG, item.settings.get(CAP_FLAG))
    changes = [change for change in item.changes if change != old_change]
    changes.append(change_text(CAP_FLAG, cap))
    return replace(item, name=CAPPED_KIND, about=about, kind="capped", settings=settings, changes=tuple(changes))
