"""Who runs the jobs of a sweep: this thread or, side by side, a thread for each GPU."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from harness.common import files, processes
from harness.sweep import experiment, report
from harness.sweep.experiment import ExperimentRecord, Job, Watch
from harness.sweep.lanes import Lane
from harness.sweep.state import SweepState
from harness.terminal.progress import Display

Runner = Callable[[Job, Lane, Watch], ExperimentRecord]


@dataclass
class Crew:
    """Runs the jobs of a sweep by its `runner`, one lane after its own jobs, all lanes at once."""

    state: SweepState
    runner: Runner
    display: Display
    lock: threading.RLock = field(default_factory=threading.RLock)  # of state and display
    stop: threading.Event = field(default_factory=threading.Event)
    doing: dict[str, str] = field(default_factory=dict)

    def work(self, places: Sequence[Lane]) -> bool:
        """Works until no job is left; whether it was interrupted. One lane works in this thread."""
        if len(places) == 1:
            return self.alone(places[0])
        with ThreadPoolExecutor(len(places)) as pool:
            futures = [pool.submit(self.alone, lane) for lane in places]
            try:
                while wait(futures, 0.5, FIRST_EXCEPTION).not_done:
                    if any(future.done() and future.exception() for future in futures):
                        self.stop.set()
            except KeyboardInterrupt:
                processes.ignore_signals()
                self.stop.set()
        return any([future.result() for future in futures]) or self.stop.is_set()

    def alone(self, lane: Lane) -> bool:
        """The jobs of one lane, one after the other; whether they were interrupted."""
        lane.pin()
        while not self.stop.is_set():
            with self.lock:
                job = self.state.next(lane)
                if job is None:
                    self.doing.pop(lane.gpu, None)
                    return False
                self.doing[lane.gpu] = label = job.label(self.state.options.repeat)
                doing = (f"GPU {gpu}: {what}" if gpu else what for gpu, what in self.doing.items())
                self.display.stage(", ".join(doing))
            record = self.once(job, lane)
            with self.lock:
                name = f"{label}{f' on GPU {lane.gpu}' if lane.gpu else ''}"
                self.display.leave_row(report.HEAD, report.cells(name, record), record.status == "complete")
            if record.status == "interrupted":
                return not self.state.is_late
        return True

    def watch(self, said: str) -> bool:
        """Shows the last line of a run; whether it shall be ended."""
        with self.lock:
            self.display.tick(note=said)
            late = self.state.is_late
            self.state.out_of_time |= late
        return late or self.stop.is_set()

    def once(self, job: Job, lane: Lane) -> ExperimentRecord:
        """One experiment once; it has ended when its GPUs' memory is free again."""
        if why := self.state.skipped.get(job.item.name):
            record = ExperimentRecord(job.item.name, job.round, "skipped", why)
        else:
            files.check_space(self.state.folder.path)
            taken = lane.memory_used()
            record = self.runner(job, lane, self.watch)
            if record.status == "interrupted" and self.state.out_of_time:
                record = replace(record, reason="ended by the time limit")
            self.put(record)  # an interruption while memory is waited for must not cost it
            record = experiment.wait_for_gpu_memory(record, taken, lane)
        self.put(record)
        return record

    def put(self, record: ExperimentRecord) -> None:
        with self.lock:
            self.state.put(record)
