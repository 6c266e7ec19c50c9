"""A sweep from its first experiment to its report, and where an earlier one is gone on with."""

import contextlib
import glob
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, inf
from pathlib import Path
from statistics import mean
from threading import Event, RLock
from typing import NamedTuple, NoReturn

from harness.config.comparability import Comparable, differences
from harness.config.mlperf import MIN_DURATION_S
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import files, last_screen, nvml, processes, progress, system
from harness.core.errors import DONE, INTERRUPTED, BenchmarkError, UsageError, ends_in_one_line
from harness.core.formatting import plural
from harness.core.message_text import why
from harness.core.progress import Display
from harness.engines.discovery import with_served_model
from harness.report import regression
from harness.report import report as rendering
from harness.results import accuracy
from harness.runner import doctor, steps, tracking
from harness.runs import ending
from harness.runs.history import point_latest
from harness.runs.run_folder import FOLDER, RunFolder, now, open_run
from harness.sweep import experiment, report
from harness.sweep.experiment import (
    ENDED,
    ExperimentRecord,
    Job,
    Lane,
    RunKey,
    State,
    Watch,
    from_summary,
    run_experiment,
)
from harness.sweep.file import BASELINE, CAPPED, Experiment, Sweep
from harness.sweep.findings import (
    CAP,
    Results,
    best_estimate,
    document,
    experiment_rows,
    finalists,
    is_known,
)

# A sweep while it runs: what is asked for, what has ended, what is being done, and what is next.
#
# What has ended is kept in sweep.json at once, so that a sweep can be resumed. Not for two threads at the same time.
# What a finalist runs without: all samples, MLPerf's duration, no estimate.
SHORTENED_FLAGS = ("total_sample_count", "min_duration", "quick")
SHORTEST_S = 60  # of the full test of an estimate, under a time limit
FEWEST_ROUNDS = 4  # before a sweep ends because enough is known
IGNORED = (*report.IGNORED, "driver")  # of the machine, for a sweep to be resumed; its file is compared whole


class SweepOptions(NamedTuple):
    """How the experiments of a sweep are run."""

    repeat: int = 1
    timeout: float = 7200.0  # seconds, of each
    limit: float = inf  # seconds, of all
    finalists: int = 0  # so many of the fastest run again at full length
    again: Sequence[str] = ()  # those that are tried again where they failed
    alternate: bool = False  # every second round backwards, A B B A, so that what changes evenly cancels out
    mlflow: bool = False


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

    def keep(self, **changes: object) -> None:
        """Changes what is kept of the sweep."""
        self.kept = replace(self.kept, **changes)  # type: ignore[arg-type]
        report.write(self.folder.path, self.kept)

    def put(self, record: ExperimentRecord) -> None:
        """Keeps a record in place of an earlier one of the same run."""
        self.keep(records=(*(earlier for earlier in self.kept.records if earlier.key != record.key), record))

    def is_late(self, seconds: float = 0.0) -> bool:
        """Whether the time limit is over, or is by then."""
        return time.monotonic() + seconds > self.began + self.options.limit

    def next(self, lane: Lane) -> Job | None:
        """The next job of a lane; None where there is none left, or no time for it. Time that was too short for a job
        goes to the finalists."""
        return next((job for job in self.jobs(lane) if self.is_open(job, lane) and self.take(job, lane)), None)

    def jobs(self, lane: Lane) -> Iterator[Job]:
        """What a lane may run, in order. In each round it begins with the baseline, so that whatever follows is
        compared with its own GPU, or, where rounds alternate, ends every second one with it."""
        options = self.options
        changes = sorted(self.chosen[1:], key=lambda item: -item.priority)
        for number in range(options.repeat):
            if self.kept.within and number >= FEWEST_ROUNDS and not number % 2 and is_known(self.kept, number):
                break
            turn = self.turn([self.chosen[0], *changes], number, lane)
            yield from reversed(turn) if options.alternate and number % 2 else turn
        if self.finals:
            yield from self.turn(self.finals, 0, lane, final=True)

    def turn(self, items: Sequence[Experiment], number: int, lane: Lane, final: bool = False) -> list[Job]:
        """The baseline and what is not begun yet of a round; nothing where all others are."""
        base, *jobs = (Job(item, number, final) for item in items)
        left = [job for job in jobs if self.is_open(job, lane)]
        return [base, *left] if left or not jobs or self.options.alternate else []

    def is_open(self, job: Job, lane: Lane) -> bool:
        """Whether it is neither running nor has ended."""
        key = job.key(lane)
        ended = ("complete",) if job.item.name in self.options.again else ENDED
        return key not in self.taken and not any(
            record.key == key and record.status in ended for record in self.kept.records
        )

    def take(self, job: Job, lane: Lane) -> bool:
        """Whether there is time for it; then no other lane gets it. After one was too long, finalists alone are."""
        seconds = self.seconds_of(job)
        is_late = self.is_late(seconds + (seconds + SHORTEST_S if job.item.is_estimate else 0.0))  # it is confirmed
        self.out_of_time |= is_late
        if is_taken := not (is_late if job.final else self.out_of_time):
            self.taken.add(job.key(lane))
        return is_taken

    def seconds_of(self, job: Job) -> float:
        """Seconds it will take, by its own earlier runs or else the mean of all; 0 where none is known.

        The first at full length is expected to take as long as a short one: longer is not known.
        """
        done = [record for record in self.kept.records if record.seconds]
        same = [record for record in done if record.final == job.final]
        own = [record for record in same if record.experiment == job.item.name]
        return mean(record.seconds for record in own or same or done) if done else 0.0

    def extend(self) -> bool:
        """Whether more is to be run once all is done: the best estimate capped, and then the finalists."""
        found, is_ranked = experiment_rows(self.kept), self.chosen[0].is_estimate
        if is_ranked and (made := self.kept.capped or cap_fastest(found)) and made not in self.chosen:
            self.keep(capped=made)
            self.chosen = [*self.chosen, made]
            return True
        if self.finals:
            return False
        names = finalists(found, self.options.finalists) if self.options.finalists else []
        if is_ranked:
            names = [best.name] if (best := best_estimate(found)) else []
        self.finals = [self.full(item) for item in self.chosen if item.name in names]
        return bool(self.finals)

    def full(self, item: Experiment) -> Experiment:
        """An experiment at full official length; one that was estimated as a search for its rate, no longer than the
        time that is left allows for two full tests."""
        settings = {key: value for key, value in item.settings.items() if key not in SHORTENED_FLAGS}
        if item.is_estimate:
            settings["server_target_qps"] = "max"
            left = (self.began + self.options.limit - time.monotonic() - self.seconds_of(Job(item, 0))) / 2
            given = item.settings.get("min_duration", "auto")
            seconds = min(MIN_DURATION_S if given == "auto" else given, max(SHORTEST_S, left))
            if seconds < MIN_DURATION_S:
                settings["min_duration"] = round(seconds, 1)
        return replace(item, settings=settings)

    def left(self) -> list[str]:
        """The experiments that some round lacks, or the finalists, by name where they are chosen."""
        jobs = (job for job in self.jobs(Lane()) if job.item.name != BASELINE)
        return [job.label(self.options.repeat) for job in jobs] or ["finalists"]


def cap_fastest(found: Results) -> Experiment | None:
    """The fastest of the estimated experiments with no more requests running than keep TPOT near its limit; None where
    that is not known, or no more run anyway."""
    best = best_estimate(found)
    running = best.numbers.get(CAP.name) if best else None
    if not best or not running or running >= best.experiment.settings.get("max_num_seqs", inf):
        return None
    about = f"{best.name} with as many requests running as keep TPOT's p99 at 95 % of its limit, by its estimate"
    item, cap = best.experiment, round(running)
    settings = item.settings | {"max_num_seqs": cap}
    changes = (*(change for change in item.changes if "max_num_seqs" not in change), f"max_num_seqs={cap}")
    return replace(item, name=CAPPED, about=about, kind="capped", settings=settings, changes=changes)


# Who runs the jobs of a sweep: this thread or, side by side, a thread for each GPU.
Runner = Callable[[Job, Lane, Watch], ExperimentRecord]


@dataclass
class Crew:
    """Runs the jobs of a sweep by its `runner`, one lane after its own jobs, all lanes at once."""

    state: SweepState
    runner: Runner
    display: Display
    lock: RLock = field(default_factory=RLock)  # of state and display
    stop: Event = field(default_factory=Event)
    doing: dict[str, str] = field(default_factory=dict)

    def work(self, places: Sequence[Lane]) -> bool:
        """Works until no job is left; whether it was interrupted. One lane works in this thread."""
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
        return any([future.result() for future in futures]) or self.stop.is_set()

    def work_lane(self, lane: Lane) -> bool:
        """The jobs of one lane, one after the other; whether they were interrupted."""
        lane.pin()
        while not self.stop.is_set():
            with self.lock:
                job = self.state.next(lane)
                if not job:
                    self.doing.pop(lane.gpu, None)
                    return False
                self.doing[lane.gpu] = label = job.label(self.state.options.repeat)
                self.display.stage(", ".join(f"GPU {gpu}: {what}" if gpu else what for gpu, what in self.doing.items()))
            record = self.run_once(job, lane)
            with self.lock:
                self.display.leave_row(
                    report.HEAD, report.cells(label + record.where, record), record.status == "complete"
                )
                if (load := record.outcome.background_load) and not record.round:  # as long as it can be mended
                    self.display.say(f"{'; '.join(load)}: no run is to be published while they do", style="yellow")
            if record.status == "interrupted":
                return not self.state.is_late()
        return True

    def watch(self, said: str) -> bool:
        """Shows the last line of a run; whether it shall be ended."""
        with self.lock:
            self.display.tick(note=said)
            late = self.state.is_late()
            self.state.out_of_time |= late
        return late or self.stop.is_set()

    def run_once(self, job: Job, lane: Lane) -> ExperimentRecord:
        """One experiment once; it has ended when its GPUs' memory is free again."""
        if why := self.state.skipped.get(job.item.name):
            record = job.record(lane, "skipped", why)
        else:
            files.check_space(self.state.folder.path)
            taken = nvml.gpu_memory_used(lane.number)
            record = self.runner(job, lane, self.watch)
            if record.status == "interrupted" and self.state.out_of_time:
                record = replace(record, reason="ended by the time limit")
            with self.lock:  # an interruption while memory is waited for must not cost it
                self.state.put(record)
            record = experiment.wait_for_gpu_memory(record, taken, lane)
        with self.lock:
            self.state.put(record)
        return record


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


def config_of(item: Experiment, place: Path) -> RunConfig:
    """The settings of an experiment, with the model that its server has."""
    return with_served_model(RunConfig(**item.settings | {"results_dir": place / item.name}))


def measure(side: steps.Begun, folder: RunFolder) -> Path:
    """A run's tests on the session of its side; the answers are asked for in the first of the runs alone."""
    session, plan = side.session, side.run.plan
    session.folder = folder
    if plan.config.mode == "both" and folder != side.run.folder:
        plan = replace(plan, config=plan.config.changed(mode="performance"))
    facts = side.run.facts.model_copy(update={"plan": plan, "started": now()})
    side.run._replace(folder=folder, facts=facts).save()
    if plan.config.mode != "performance":
        accuracy.evaluate(session.test("accuracy", plan), plan, session.library, side.tokenizer)
    if plan.config.mode != "accuracy":
        session.drive("performance", plan, folder.sub(FOLDER["performance"]))
    return folder.path


def match_length(plan: Plan, first: Plan) -> Plan:
    """The plan with the queries of the first server's: in a closed loop a number of them, whole rounds of its slots,
    since a test that ends by time ends with some slots empty."""
    if first.target_qps is None:
        return plan
    if plan.concurrency and not first.fewest_queries:
        places = ceil(max(first.min_queries, first.target_qps * first.min_duration_s) / plan.concurrency)
        first = replace(first, fewest_queries=places * plan.concurrency, min_duration_s=NO_TIME_S)
    return replace(
        plan, target_qps=first.target_qps, fewest_queries=first.fewest_queries, min_duration_s=first.min_duration_s
    )


def run(state: SweepState, places: Sequence[Lane], display: Display, runner: Runner | None = None) -> int:
    """Runs what is chosen and not finished yet; the report is written however it ends. Raises BenchmarkError.

    `runner`: in place of one that starts run.py.
    """
    folder, options = state.folder, state.options
    display.say(
        f"{state.kept.sweep.name}: {len(state.chosen)} configurations, {plural(options.repeat, 'round')}"
        f"{', every second one backwards' * options.alternate} -> {folder.path}"
    )
    with files.lock_folder(folder.path, "this sweep, or a run it left behind,") as lock:
        try:
            runner = runner or runner_of(state, places, display, lock)
            return finish(state, rounds(state, Crew(state, runner, display), places), display)
        except KeyboardInterrupt:
            folder.fail("interrupted")
            display.say("interrupted")
            return INTERRUPTED
        except (BenchmarkError, OSError) as error:
            known = error if isinstance(error, BenchmarkError) else BenchmarkError(f"{folder.path}: {why(error)}.")
            is_any = bool(state.kept.records)
            with contextlib.suppress(BenchmarkError, OSError):
                folder.fail("failed", str(known))
                if is_any:
                    report.build(folder.path, state.kept)
            raise type(known)(f"{str(known).removesuffix('.')}.{' --resume continues from here.' * is_any}") from None


def command(state: SweepState, places: Sequence[Lane]) -> NoReturn:
    """A sweep, to the end of this process; what libraries print meanwhile goes to engine.log."""
    log = state.folder.path / "engine.log"
    try:
        with ends_in_one_line(), progress.screen(log) as (console, _), Display(console) as display:
            code = run(state, places, display)
            results_dir = state.folder.results_dir.parent
            tracking.send_to_mlflow(state.folder.path, state.options.mlflow, results_dir, display.done)
    except SystemExit as end:
        code = int(end.code or DONE)
    ending.exit(code, log)


def runner_of(state: SweepState, places: Sequence[Lane], display: Display, lock: int) -> Runner:
    """What runs the jobs: run.py, or for servers at one load sessions that are kept."""
    configs = [config_of(item, state.folder.path) for item in state.chosen if state.kept.sweep.is_of_servers]
    if (
        configs
        and len(places) == 1
        and all(len(each.levels) == 1 or type(each.server_target_qps) is float for each in configs)
    ):
        for config in configs:  # what any of them lacks is found first
            doctor.require(config)
        return Servers(state.folder.path, display)
    return partial(run_experiment, place=state.folder.path, timeout=state.options.timeout, lock=lock)


def rounds(state: SweepState, crew: Crew, places: Sequence[Lane]) -> bool:
    """Round after round of the experiments, then what follows from them; whether they were interrupted."""
    state.folder.set_status("running")
    state.keep(note="")
    while not (interrupted := crew.work(places)) and state.extend():
        pass
    if state.out_of_time:
        state.keep(
            note=f"the time limit of {state.options.limit / 60:g} min left no time for {', '.join(state.left())}: "
            "--resume continues"
        )
    return interrupted


def finish(state: SweepState, interrupted: bool, display: Display) -> int:
    processes.ignore_signals()  # all has run: what ends a command is not to cost the sweep
    display.stage("writing the report")
    folder = state.folder
    if interrupted:
        folder.set_status("interrupted")
        state.keep(note=state.kept.note or "interrupted: --resume continues")
    made = report.build(folder.path, state.kept)
    if not interrupted:
        folder.set_status("complete")
        point_latest(folder)
    last_screen.show(display.console, document(made), folder.path / "report.html")
    if interrupted:
        return INTERRUPTED
    base = made.baseline
    if base and base.complete:
        return regression.exit_code(made.judgements) if made.judgements else DONE
    raise BenchmarkError(f"the baseline did not complete: {base.records[0].reason if base else 'it was not run'}.")


def begin(
    sweep: Sweep,
    results_dir: Path,
    chosen: list[Experiment],
    options: SweepOptions,
    skipped: dict[str, str],
    again: bool,
    within: float,
    fail_if: tuple[str, ...] = (),
) -> SweepState:
    """A sweep to run, or the last of its name to go on with. Raises UsageError."""
    if again:
        folder, kept = resume(sweep, results_dir)
    else:
        folder = open_run(results_dir / "sweeps", sweep.name)
        kept = State(processes.command_line(), now(), system.detect(), sweep, ())
    return SweepState(folder, replace(kept, within=within, fail_if=fail_if), chosen, options, skipped)


def resume(sweep: Sweep, results_dir: Path) -> tuple[RunFolder, State]:
    """The last sweep of this file with what it has finished. Raises UsageError where there is none like it."""
    paths = sorted((results_dir / "sweeps").glob(f"2*-{glob.escape(sweep.name)}*/sweep.json"))
    mine = [(path.parent, kept) for path in paths if (kept := report.read(path.parent)).sweep.name == sweep.name]
    if not mine:
        raise UsageError(f"nothing to resume: no sweep {sweep.name!r} in {results_dir / 'sweeps'}.")
    path, before = mine[-1]
    if before.sweep != sweep:
        raise UsageError(f"{path} was made from a different version of the file; run without --resume.")
    unlike = differences(Comparable.on(before.system), Comparable.on(system.detect()), IGNORED)
    if changed := " and ".join(each.name for each in unlike):
        raise UsageError(f"{path} was made with different {changed}; run without --resume.")
    if sweep.is_of_servers:  # a round is of one session
        ended = Counter(record.round for record in before.records if record.status == "complete")
        whole = tuple(record for record in before.records if ended[record.round] == len(sweep.experiments))
        before = replace(before, records=whole)
    return RunFolder(results_dir / "sweeps", path.name), before
