"""LoadGen's tests of one run, on one engine, watched while they run."""

import itertools
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from harness.config.plan import Plan
from harness.core import files, system
from harness.core.errors import EmptyAnswerError, EngineError, LoadGenError
from harness.core.screen import Display, Kind
from harness.engines import prometheus
from harness.engines.protocol import Engine
from harness.loadgen import recorder, sut
from harness.loadgen.requests import take_times, write_requests
from harness.loadgen.sut import SUT, make_sut
from harness.loadgen.test_run import MACHINE, SERVER
from harness.loadgen.watchdog import Watchdog
from harness.runs.folder import FOLDER, RunFolder, Test
from harness.runs.records import MachineUse
from harness.workloads.cnn_dailymail import Library

Result = TypeVar("Result")
SILENT_S = 5.0  # without a token for any request, after which the screen says so
CLOCK_SET_S = 2.0  # more than a clock that is only corrected moves in a test
END_SHOWS_S = 5.0  # at most, after an engine's processes began to die


def clock_offset() -> float:
    """Seconds from a clock that nobody sets to the system's, by which LoadGen times."""
    return time.time() - time.monotonic()


@dataclass
class LoadGenSession:
    """An engine with samples to answer, and a folder for the logs; each call of `test` is one LoadGen test."""

    folder: RunFolder
    engine: Engine
    library: Library
    display: Display
    watchdog: Watchdog
    make_sut: Callable[[Engine, Library, Plan, bool, int], SUT] = make_sut
    busy_gpus: list[int] = field(default_factory=list)  # by other programs, before the engine started

    def __post_init__(self) -> None:
        self.settings, self.tests = sut.LoadGenSettings(), itertools.count()
        self.run = secrets.token_hex(8)  # as no other is called
        self.warned = False  # of other programs, which every test's record has

    def test(self, mode: Test, plan: Plan, audit: str = "") -> Path:
        """Runs one test to its end; the folder of its logs. Raises EngineError, BenchmarkError.

        `audit` is the text of the audit.config that LoadGen reads over all other settings.
        """
        folder = self.folder.sub(FOLDER[mode])
        if audit:
            (folder / "audit.config").write_text(audit)
        kind: Kind = mode if mode in ("accuracy", "performance") else "load"
        self.display.stage(mode.upper() if kind == "load" else f"{mode} test", kind)
        if mode == "performance" and plan.length:
            self.display.say(f"         {plan.length}")
        self.drive(mode, plan, folder)
        return folder

    def drive(self, mode: Test, plan: Plan, folder: Path) -> None:
        """One LoadGen test on the engine, watched; what is known of each request stays in its folder."""
        settings, timed = self.settings.of(plan, folder), mode != "accuracy"
        total = {"accuracy": plan.samples, "test06": None}.get(mode, plan.queries)
        if plan.engine_state.prefix_caching:  # what one test computed is not to serve the next
            self.engine.run(self.engine.reset_prefix_cache(), lambda: self.watchdog.check_run(folder))
        tested = self.make_sut(self.engine, self.samples(plan), plan, timed, total or 0)
        pattern = plan.pattern
        shown = pattern.shown_queries(plan.load) if mode == "performance" else total
        least_s = pattern.least_seconds(plan.load, total) if timed else 0.0
        watch = partial(self.watch, tested, folder, shown, least_s, clock_offset())
        self.watchdog.reset()
        with self.measuring(folder, plan, tested):
            sut.run_test(mode, settings, tested, plan.samples, folder, watch)
        keep_requests(tested, folder, measured=mode == "performance")

    def watch(self, tested: SUT, folder: Path, total: int | None, least_s: float, offset: float) -> None:
        """Shows how far a test is. Raises what failed in it, or why the run cannot go on."""
        moved = clock_offset() - offset
        if tested.timed and tested.clock == "loadgen" and abs(moved) > CLOCK_SET_S:
            raise LoadGenError(
                f"the system clock was set by {moved:+,.0f} s in a test that LoadGen times by it: run again."
            )
        busy = tested.counters.issued > tested.counters.completed
        silent_s = self.watchdog.silent_s if busy else 0.0
        note = f"nothing received for {silent_s:.0f} s" if silent_s > SILENT_S else ""
        self.display.tick(tested.counters, total, note, least_s=least_s)
        if tested.failure is not None:
            self.raise_cause(tested.failure)
        self.watchdog.check_run(folder, busy)

    @contextmanager
    def measuring(self, folder: Path, plan: Plan, tested: SUT) -> Iterator[None]:
        """Records what a test takes of the machine, and of a server, while the block runs."""
        config, gpus, engine = plan.config, plan.watched_gpus, self.engine
        urls, path = config.telemetry_url, folder / recorder.FILE
        wanted, models = config.extra_metrics, recorder.readings(urls)[1]
        recorded = recorder.recording(path, wanted, engine.prometheus_metrics, gpus, lambda: recorder.readings(urls)[0])
        before, exposed = recorder.joules(gpus), engine.prometheus_metrics()
        taken, here = (self.busy_gpus, bool(system.gpus())) if config.is_in_process else ([], False)
        with recorded, recorder.watch_others(taken, here, config.endpoint) as load:
            yield
        slower = "" if config.endpoint else f": {recorder.SLOWER_WARNING}"
        for warning in [] if self.warned else load.warnings():
            self.display.say(f"{warning}{slower}", style="yellow")
            self.warned = True
        after = recorder.joules(gpus)
        used = None if before is None or after is None else after - before
        if urls:
            exported = recorder.Recording.read(path)
            used = recorder.joules_by_power(exported)
            if missing := recorder.missing_readings(exported):
                of_all = f"{missing:,} of {len(exported.seconds):,} readings"
                self.display.say(f"--telemetry-url: no values in {of_all}", style="yellow")
        told = engine.prometheus_metrics()
        use = MachineUse(
            others_cpu_cores=load.cpu_cores,
            background_load=load.warnings(),
            gpu_joules=None if used is None else round(used, 1),
            server_gpus=models,
            waits_ms=prometheus.mean_waits(exposed, told),
        )
        files.write_json(folder / MACHINE, use.model_dump())
        if config.endpoint:
            server = tested.server_use(
                cache_hit_percent=prometheus.cached_percent(exposed, told),
                has_template=config.endpoint_api == "chat",
                replicas=prometheus.idle_replicas(exposed, told),
            )
            files.write_json(folder / SERVER, server.model_dump())
            for line in (*server.disagreements, *server.notes):
                self.display.say(line, style="yellow")

    def samples(self, plan: Plan) -> Library:
        """The samples for the next test or trial, salted as for no other; behind an endpoint, whose cache cannot be
        emptied from here, random prompts are new ones, too."""
        return self.library.of_test(f"{self.run} {next(self.tests)}", redraw=bool(plan.config.endpoint))

    def measure(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work on the engine outside LoadGen, watched as its tests are."""
        self.watchdog.reset()

        def watch() -> None:
            self.display.tick()
            self.watchdog.check_run(self.folder.path)

        return self.engine.run(work, watch)

    def raise_cause(self, failure: BaseException) -> NoReturn:
        """Raises what failed in a test: the engine's own end where an answer came empty because of it, which may show
        a moment later."""
        until = time.monotonic() + (END_SHOWS_S if isinstance(failure, EmptyAnswerError) else 0.0)
        while not self.engine.failure and time.monotonic() < until:
            time.sleep(0.1)
        if isinstance(failure, EmptyAnswerError) and self.engine.failure:
            raise EngineError(self.engine.ended) from failure
        raise failure


def keep_requests(tested: SUT, folder: Path, measured: bool) -> None:
    """Writes requests.csv of a test that finished; times only of one that is `measured`: LoadGen's, where it
    takes them. Raises LogError where its trace is of other requests, OSError."""
    requests = tested.requests
    if not measured:
        requests = [replace(each, issued_s=None, sent_ms=None, ttft_ms=None, latency_ms=None) for each in requests]
    elif tested.clock == "client":
        begin = min((request.issued_s or 0.0 for request in requests), default=0.0)
        for request in requests:
            request.issued_s, request.clock = (request.issued_s or 0.0) - begin, "client"
    else:
        take_times(requests, folder)
    write_requests(folder, requests)
