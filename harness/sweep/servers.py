"""Servers under the same requests: a session with each in this process, kept for all rounds of a sweep."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.core import processes
from harness.core.errors import BenchmarkError
from harness.core.progress import Display
from harness.report import report as rendering
from harness.runner import steps
from harness.runs.run_folder import RunFolder, open_run
from harness.sweep.experiment import ExperimentRecord, Job, Watch, from_summary
from harness.sweep.file import Experiment
from harness.sweep.lanes import Lane
from harness.sweep.loop import config_of, match_length, measure

# Servers under the same requests: a session with each in this process, kept for all rounds of a sweep.
NO_TIME_S = 0.001  # of a test whose number of queries ends it


@dataclass
class Servers:
    """Runs the jobs of a sweep of servers in `place`, in place of run.py. Their answers are held against each other's:
    the gate, which holds them against the reference's, gives no verdict."""

    place: Path
    display: Display
    sides: dict[tuple[str, bool], steps.Begun] = field(default_factory=dict)

    def __call__(self, job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        """One job, as run.py does it. Raises BenchmarkError where it fails: LoadGen, which waits for every answer,
        cannot be stopped, so that no other can follow in this process."""
        begin, key = time.monotonic(), (job.item.name, job.final)
        folder = open_run(self.place / job.item.name, str(job.round + 1))
        try:
            side = self.sides[key] = self.sides.get(key) or self.begin(job.item, folder)
            found = from_summary(rendering.build(measure(side, folder)))
            outcome = replace(found, verdict=found.verdict and "NOT JUDGED")
        except KeyboardInterrupt:
            processes.ignore_signals()
            folder.fail("interrupted")
            return job.record(lane, "interrupted", "interrupted")
        except BenchmarkError as error:
            folder.fail("failed", str(error))
            raise BenchmarkError(f"{job.item.name}: {error}") from error
        folder.set_status("complete")
        seconds = round(time.monotonic() - begin, 1)
        return job.record(lane, "complete", seconds=seconds, run=f"{job.item.name}/{folder.name}", outcome=outcome)

    def begin(self, item: Experiment, folder: RunFolder) -> steps.Begun:
        """A session with a server, whose requests are those of the others."""
        first = next(iter(self.sides.values()), None)
        side = steps.begin(config_of(item, self.place), folder, self.display, first and first.session)
        side.run.adopt(match_length(side.run.plan, (first or side).run.plan))
        return side
