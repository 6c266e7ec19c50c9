"""Run the jobs of a sweep: in this thread or, side by side, in a thread for each GPU."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from threading import Event, RLock

from harness.core import files, nvml, processes
from harness.core.formatting import joined_text
from harness.core.progress import Display
from harness.sweep import experiment, report
from harness.sweep.experiment import ExperimentRecord, Job, Watch
from harness.sweep.lanes import Lane
from harness.sweep.sweep_state import SweepState

# Who runs the jobs of a sweep: this thread or, side by side, a thread for each GPU.
Runner = Callable[[Job, Lane, Watch], ExperimentRecord]


@dataclass
class Crew:
    """The lanes of a sweep: each does its own jobs one after the other, by the `runner`, and all lanes at once."""

    state: SweepState
    runner: Runner
    display: Display
    lock: RLock = field(default_factory=RLock)  # guards state and display
    stop: Event = field(default_factory=Event)
    doing: dict[str, str] = field(default_factory=dict)

    def work(self, places: Sequence[Lane]) -> bool:
        """Run jobs until none is left and return whether the work was interrupted.

        A single lane works in this thread.
        """
        if len(places) == 1:
            return self.work_lane(places[0])
        with ThreadPoolExecutor(len(places)) as pool:
            futures = [pool.submit(self.work_lane, lane) for lane in places]
            try:
                if wait(futures, return_when=FIRST_EXCEPTION).not_done:  # one has failed
                    self.stop.set()
            except KeyboardInterrupt:
                processes.ignore_signals()
                self.stop.set()
        interruptions = [future.result() for future in futures]  # each raises what its lane raised
        return any(interruptions) or self.stop.is_set()

    def work_lane(self, lane: Lane) -> bool:
        """Run the jobs of one lane, one after the other, and return whether they were interrupted."""
        lane.pin()
        while not self.stop.is_set():
            with self.lock:
                job = self.state.next(lane)
                if not job:
                    self.doing.pop(lane.gpu, None)
                    return False
                label = job.label(self.state.options.repeat)
                self.doing[lane.gpu] = label
                self.display.stage(self.stage_text())
            record = self.run_once(job, lane)
            with self.lock:
                self.show_record(label, record)
            if record.status == "interrupted":
                return not self.state.is_late()
        return True

    def stage_text(self) -> str:
        """Return what each lane does now."""
        texts = []
        for gpu, label in self.doing.items():
            lane = f"GPU {gpu}" if gpu else ""
            texts.append(joined_text(": ", lane, label))
        return ", ".join(texts)

    def show_record(self, label: str, record: ExperimentRecord) -> None:
        """Print the row of a finished job.

        In the first round, while it can still be changed, also print the background load.
        """
        row = report.record_cells(label + record.where, record)
        self.display.leave_row(report.ROW_HEAD, row, record.status == "complete")
        background_load = record.outcome.background_load
        if background_load and not record.round:
            self.display.say(f"{'; '.join(background_load)}: no run is to be published while they do", style="yellow")

    def watch(self, last_line: str) -> bool:
        """Show the last line of a run and return whether to end the run."""
        with self.lock:
            self.display.tick(note=last_line)
            late = self.state.is_late()
            self.state.out_of_time |= late
        return late or self.stop.is_set()

    def run_once(self, job: Job, lane: Lane) -> ExperimentRecord:
        """Run one experiment once. Returns only when the memory of its GPUs is free again."""
        reason = self.state.skipped.get(job.item.name)
        if reason:
            record = job.record(lane, "skipped", reason)
        else:
            files.check_space(self.state.folder.path)
            memory_before = nvml.gpu_memory_used(lane.number)
            record = self.runner(job, lane, self.watch)
            if record.status == "interrupted" and self.state.out_of_time:
                record = replace(record, reason="ended by the time limit")
            with self.lock:  # an interruption while memory is waited for must not cost it
                self.state.put(record)
            record = experiment.wait_for_gpu_memory(record, memory_before, lane)
        with self.lock:
            self.state.put(record)
        return record
