"""LoadGen's tests of one run, on one engine, watched while they run."""

import itertools
import secrets
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from harness.common import files, system
from harness.common.errors import EmptyAnswerError, EngineError
from harness.config.plan import Plan
from harness.engines import prometheus
from harness.engines.protocol import Engine
from harness.loadgen import client_delay, driver, failures, request_times, sut, token_times
from harness.monitoring import background_load, recorder
from harness.monitoring.watchdog import Watchdog
from harness.runs import folder as results
from harness.runs.delivery import ServerUse
from harness.terminal.progress import Display, Kind
from harness.workloads.cnn_dailymail import Library

Result = TypeVar("Result")
SILENT_S = 5.0  # without a token for any request, after which the screen says so
END_SHOWS_S = 5.0  # at most, after an engine's processes began to die


@dataclass(frozen=True)
class Tested:
    """A LoadGen test that came to its end: the folder of its logs, the samples in the order in which LoadGen loaded
    them, the tokens of each answer, when queries were issued and completed in seconds, and what the GPUs took, if they
    count it."""

    folder: Path
    loaded: list[int]
    new_tokens: list[int]
    issued_at: list[float]
    completed_at: list[float]
    joules: float | None
    busy: str = ""  # what other programs took of the machine
    buffered: bool = False  # TTFT and TPOT


@dataclass
class LoadGenSession:
    """An engine with samples to answer, and a folder for the logs; each call of `test` is one LoadGen test."""

    folder: results.RunFolder
    engine: Engine
    library: Library
    display: Display
    watchdog: Watchdog
    make_sut: sut.SUTFactory = sut.create
    busy_gpus: list[int] = field(default_factory=list)  # by other programs, before the engine started
    settings: driver.LoadGenSettings = field(default_factory=driver.LoadGenSettings, init=False)
    run: str = field(default_factory=lambda: secrets.token_hex(8), init=False)  # as no other is called
    tests: Iterator[int] = field(default_factory=itertools.count, init=False)

    def test(self, mode: results.Test, plan: Plan, audit: str = "") -> Tested:
        """Runs one test to its end. Raises EngineError, BenchmarkError.

        `audit` is the text of the audit.config that LoadGen reads over all other settings.
        """
        folder = self.folder.sub(results.FOLDER[mode])
        if audit:
            (folder / "audit.config").write_text(audit)
        kind: Kind = mode if mode in ("accuracy", "performance") else "load"
        self.display.stage(mode.upper() if kind == "load" else f"{mode} test", kind)
        if mode == "performance" and plan.length:
            self.display.say(f"         {plan.length}")
        return self.drive(mode, plan, folder)

    def drive(self, mode: results.Test, plan: Plan, folder: Path) -> Tested:
        """One LoadGen test on the engine, watched."""
        settings = self.settings.of(plan, folder)
        library = self.samples(plan)
        tested = self.make_sut(self.engine, library.prompts, plan)
        tested.most_new_tokens = library.new_tokens
        tested.conversations, tested.salt = library.conversations, library.salt
        if isinstance(tested, sut.ScheduledSUT) and library.arrivals:
            tested.schedule, tested.parents = library.arrivals, library.parents
        tested.timed, tested.max_failed = mode != "accuracy", plan.config.max_failed
        if plan.engine_state.prefix_caching:  # what one test computed is not to serve the next
            self.engine.wait(self.engine.spawn(self.engine.reset_prefix_cache()), lambda: self.check(folder))
        total = driver.expected_queries(plan, mode)
        tested.expected = total or 0
        rated = plan.config.scenario_rules.fixed_rate
        least_s = total / plan.target_qps if total and plan.target_qps and rated else 0.0
        least_s = plan.min_duration_s if plan.config.scenario_rules.capped else least_s
        self.watchdog.reset()

        def watch() -> None:
            busy = tested.counters.issued > tested.counters.completed
            silent_s = self.watchdog.silent_s if busy else 0.0
            note = f"nothing received for {silent_s:.0f} s" if silent_s > SILENT_S else ""
            self.display.tick(tested.counters, total, note, least_s=least_s)
            if tested.failure is not None:
                self.raise_cause(tested.failure)
            self.check(folder, busy)

        gpus = plan.watched_gpus
        recorded = recorder.recording(
            folder / "machine.csv", plan.config.extra_metrics, self.engine.prometheus_metrics, gpus
        )
        before, exposed = recorder.joules(gpus), self.engine.prometheus_metrics()
        taken, here = (self.busy_gpus, bool(system.gpus())) if plan.config.computes else ([], False)
        with recorded, background_load.watched(taken, here, plan.config.endpoint) as load:
            loaded = driver.run_test(mode, settings, tested, plan.samples, folder, watch)
        for warning in load.warnings:
            self.display.say(
                warning if plan.config.endpoint else f"{warning}: {background_load.SLOWER_WARNING}", style="yellow"
            )
        after = recorder.joules(gpus)
        used = None if before is None or after is None else round(after - before, 1)
        facts = {"others_cpu_cores": load.cpu_cores, "others": load.warnings, "gpu_joules": used}
        files.write_json(folder / "machine.json", facts)
        lengths = [len(self.library.prompts[index]) for index in tested.indices]
        server = None
        if plan.config.endpoint:
            cached = prometheus.cached_percent(exposed, self.engine.prometheus_metrics())
            sent = sum(lengths[place] for place in tested.delivered)
            server = ServerUse.of(tested.delivered.values(), sent, cached)
            files.write_json(folder / "server.json", server.model_dump())
            for said in server.disagreements:
                self.display.say(said, style="yellow")
        if tested.failed:
            failures.write(folder, tested.failed)
        files.write_json(folder / token_times.TOKENS, tested.new_tokens)
        files.write_json(folder / "prompt_tokens.json", lengths)
        files.write_json(folder / request_times.ISSUED, tested.indices)
        if isinstance(tested, sut.TimedSUT):
            times = (tested.issued_at, tested.first_token_at, tested.completed_at)
            rows = list(zip(tested.indices, lengths, tested.new_tokens, *times, strict=True))
            first = {place: delivery.first_tokens for place, delivery in tested.delivered.items()}
            request_times.write(folder, rows, tested.due_at, first)
        if rated:
            due = tested.due_at if isinstance(tested, sut.TimedSUT) else ()
            client_delay.write(folder, tested.issued_at, tested.sent_at, due)
        span = tested.issued_at, tested.completed_at
        buffered = bool(server and server.buffered)
        return Tested(folder, loaded, tested.new_tokens, *span, used, "; ".join(load.warnings), buffered)

    def samples(self, plan: Plan) -> Library:
        """The samples for the next test or trial, salted as for no other; behind an endpoint, whose cache cannot be
        emptied from here, random prompts are new ones, too."""
        return self.library.of_test(f"{self.run} {next(self.tests)}", redraw=bool(plan.config.endpoint))

    def measure(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work on the engine outside LoadGen, watched as its tests are."""
        self.watchdog.reset()

        def watch() -> None:
            self.display.tick()
            self.check(self.folder.path)

        return self.engine.wait(self.engine.spawn(work), watch)

    @property
    def ended(self) -> str:
        """Why the engine will answer no more, and which one it is: a client's name holds its addresses."""
        failure, name = self.engine.failure or "", self.engine.name
        return failure if failure.startswith(name) else f"{name}: {failure}"

    def raise_cause(self, failure: BaseException) -> NoReturn:
        """Raises what failed in a test: the engine's own end where an answer came empty because of it, which may show
        a moment later."""
        until = time.monotonic() + (END_SHOWS_S if isinstance(failure, EmptyAnswerError) else 0.0)
        while not self.engine.failure and time.monotonic() < until:
            time.sleep(0.1)
        if isinstance(failure, EmptyAnswerError) and self.engine.failure:
            raise EngineError(self.ended) from failure
        raise failure

    def check(self, folder: Path, busy: bool = True) -> None:
        """Raises when the run cannot go on: LoadGen itself would wait for ever."""
        if self.engine.failure:
            raise EngineError(self.ended)
        if busy:
            self.watchdog.check()
        else:
            self.watchdog.reset()
        files.check_space(folder)
