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

Runner = Callable[[Job, Lane, Watch], ExperimentRecord]  # runs a job and returns its record


@dataclass
class Crew:
    """The lanes of a sweep, which work at the same time. Each lane runs its own jobs one after the other."""

    state: SweepState
    runner: Runner
    display: Display
    lock: RLock = field(default_factory=RLock)  # guards state and display
    stop: Event = field(default_factory=Event)  # set to end all lanes
    labels_by_gpu: dict[str, str] = field(default_factory=dict)  # the label of the job that runs on each GPU

    def work(self, lanes: Sequence[Lane]) -> bool:
        """Run jobs on all lanes until none is left, and return whether the work was interrupted.

        If a lane raises an error, the others end after their jobs, and the error is raised here.
        """
        if len(lanes) == 1:
            return self.work_lane(lanes[0])
        with ThreadPoolExecutor(len(lanes)) as pool:
            futures = [pool.submit(self.work_lane, lane) for lane in lanes]
            try:
                unfinished = wait(futures, return_when=FIRST_EXCEPTION).not_done
                if unfinished:  # `wait` returned early, so a lane has failed.
                    self.stop.set()
            except KeyboardInterrupt:
                processes.ignore_signals()  # A second Ctrl-C must not prevent the lanes from recording how they ended.
                self.stop.set()
        interruptions = [future.result() for future in futures]  # raises the error of a lane that failed
        return any(interruptions) or self.stop.is_set()

    def work_lane(self, lane: Lane) -> bool:
        """Run the jobs of one lane, one after the other, and return whether they were interrupted.

        Lanes work side by side, so the lock guards the state of the sweep and the display.
        """
        lane.pin()  # The runs of this lane stay on its own cores, so that they do not slow down those of other lanes.
        while not self.stop.is_set():
            with self.lock:
                job = self.state.next(lane)
                if not job:  # All jobs of the lane are done.
                    self.labels_by_gpu.pop(lane.gpu, None)
                    return False
                label = job.label(self.state.options.repeat)
                self.labels_by_gpu[lane.gpu] = label
                self.display.stage(self.stage_text())
            record = self.run_once(job, lane)
            with self.lock:
                self.show_record(label, record)
            if record.status == "interrupted":  # If the time limit ended the job, that is no interruption of the sweep.
                return not self.state.is_late()
        return True  # All lanes were told to stop, after Ctrl-C or because another lane failed.

    def stage_text(self) -> str:
        """Return the job that each lane runs now, in words, with the lane's GPU if lanes have one each."""
        texts = []
        for gpu, label in self.labels_by_gpu.items():
            lane = f"GPU {gpu}" if gpu else ""
            texts.append(joined_text(": ", lane, label))
        return ", ".join(texts)

    def show_record(self, label: str, record: ExperimentRecord) -> None:
        """Print the row of a finished job.

        In the first round, also print what other programs take of the machine, so that the user can end them before
        more is measured.
        """
        row = report.record_cells(label + record.where, record)
        self.display.leave_row(report.ROW_HEAD, row, record.status == "complete")
        background_load = record.outcome.background_load
        is_first_round = record.round == 0
        if background_load and is_first_round:
            self.display.say(
                f"{'; '.join(background_load)}: end them, since speeds that are measured beside them do not count",
                style="yellow",
            )

    def watch(self, last_stage: str) -> bool:
        """Show the stage that a run printed last, and return whether to end the run.

        The run is to be ended if the time limit of the sweep is over, which is noted, or if all lanes are told to stop.
        """
        with self.lock:
            self.display.tick(note=last_stage)
            is_late = self.state.is_late()
            if is_late:
                self.state.out_of_time = True
        return is_late or self.stop.is_set()

    def run_once(self, job: Job, lane: Lane) -> ExperimentRecord:
        """Run one experiment once, store its record, and return it. Returns when the run's GPU memory is free again.

        An experiment that cannot run is recorded as skipped. Raises BenchmarkError if the disk is too full for a run.
        """
        reason = self.state.skipped.get(job.item.name)
        if reason:
            record = job.record(lane, "skipped", reason)
        else:
            files.check_space(self.state.folder.path)
            memory_before = nvml.gpu_memory_used(lane.number)  # in bytes; the run must leave about as much in use
            record = self.runner(job, lane, self.watch)
            if record.status == "interrupted" and self.state.out_of_time:
                record = replace(record, reason="ended by the time limit")
            # Stored now, too, so that an interruption of the wait for memory does not lose the record.
            with self.lock:
                self.state.put(record)
            record = experiment.wait_for_gpu_memory(record, memory_before, lane)
        with self.lock:
            self.state.put(record)
        return record
