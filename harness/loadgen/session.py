"""LoadGen's tests of one run, on one engine, watched while they run."""

import itertools
import time
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import mlperf_loadgen as lg

from harness.common import disk, files, system
from harness.common.errors import EmptyAnswerError, EngineError
from harness.common.progress import Display
from harness.config.plan import Plan
from harness.engines.protocol import Engine
from harness.loadgen import driver as loadgen
from harness.loadgen import queueing, sut, token_times
from harness.loadgen.log import TestResult
from harness.loadgen.probes import measured
from harness.monitoring import background_load as others
from harness.monitoring import recorder
from harness.monitoring.background_load import Others
from harness.monitoring.watchdog import Watchdog
from harness.runs import folder as results
from harness.runs import probe
from harness.runs.probe import Probe
from harness.runs.records import ServerUse
from harness.workloads.cnn_dailymail import Library

Result = TypeVar("Result")
END_SHOWS_S = 5.0  # at most, after an engine's processes began to die


@dataclass
class Bench:
    """An engine with samples to answer; `test` may be called once for each LoadGen test of the run."""

    run: results.RunFolder
    engine: Engine
    library: Library
    display: Display
    watchdog: Watchdog
    make_sut: sut.Make = sut.create
    taken_gpus: list[int] = field(default_factory=list)  # by other programs, before the engine started
    settings: lg.TestSettings | None = field(default=None, init=False)
    loaded: list[int] = field(default_factory=list, init=False)  # samples in the order of the last test's library
    probes: list[Probe] = field(default_factory=list, init=False)  # that came before the run's own test
    queue: probe.Queue | None = field(default=None, init=False)  # of the last test, if LoadGen set its pace

    def test(self, mode: results.Test, plan: Plan, audit: str = "") -> Path:
        """Runs one test to its end and returns the folder with its logs. Raises EngineError, BenchmarkError.

        `audit` is the text of the audit.config that LoadGen reads over all other settings.
        """
        folder = self.run.sub(results.FOLDER[mode])
        if audit:
            (folder / "audit.config").write_text(audit)
        settings = self.settings_in(folder, plan)
        loadgen.set_rates(settings, plan)
        self.display.stage(f"{mode} test" if mode in ("accuracy", "performance") else mode.upper())
        if mode == "performance" and plan.length:
            self.display.say(f"         {plan.length}")
        self.drive(mode, settings, plan, folder)
        return folder

    def attempt(self, plan: Plan) -> tuple[TestResult, Probe]:
        """The performance test of the run, and what it came to."""
        folder = self.test("performance", plan)
        result = token_times.read(folder, plan.limits, plan.asked is not None)
        return result, measured(result, plan, self.queue, folder.name)

    def set_aside(self, attempt: Probe, number: int) -> Probe:
        """Moves the logs of a performance test that another one follows."""
        folder = self.run.sub("Attempts") / str(number)
        (self.run.path / attempt.folder).rename(folder)
        return replace(attempt, folder=str(folder.relative_to(self.run.path)))

    def probe(self, plan: Plan, short: Plan) -> Probe:
        """A short performance test: `short` is the run's plan with a load of its own, and less of everything else."""
        several = plan.config.row.several
        load = f"{short.samples_per_query} samples per query" if several else f"{short.target_qps:.4g} queries/s"
        folder = probe_folder(self.run.sub("Probes"), load.partition(" ")[0])
        settings = self.settings_in(folder, plan)  # the run's: shortened for this test alone
        (folder / "user.conf").write_text(loadgen.user_conf(short))
        self.display.stage(f"probe at {load}, {short.length}")
        with loadgen.shortened(settings, short):
            self.drive("performance", settings, short, folder)
        result = token_times.read(folder, plan.limits, plan.asked is not None)
        found = measured(result, short, self.queue, str(folder.relative_to(self.run.path)))
        self.display.done(f"{load}: {'VALID' if found.valid else 'INVALID'}{found.why and f' ({found.why})'}")
        return found

    def settings_in(self, folder: Path, plan: Plan) -> lg.TestSettings:
        """Writes the plan's user.conf into the folder; LoadGen reads the first one of a run."""
        conf = folder / "user.conf"
        conf.write_text(loadgen.user_conf(plan))
        self.settings = self.settings or loadgen.settings_for(plan, conf)
        return self.settings

    def drive(self, mode: results.Test, settings: lg.TestSettings, plan: Plan, folder: Path) -> None:
        """One LoadGen test on the engine, watched."""
        tested = self.make_sut(self.engine, self.library.prompts, plan.config)
        tested.most_new_tokens = self.library.new_tokens
        tested.timed = mode != "accuracy"
        if plan.running.prefix_caching:  # what one test computed is not to serve the next
            self.engine.wait(self.engine.spawn(self.engine.reset_prefix_cache()), lambda: self.check(folder))
        total = loadgen.expected_queries(plan, mode)
        least_s = total / plan.target_qps if total and plan.target_qps and plan.config.row.fixed_rate else 0.0
        self.watchdog.rest()

        def watch() -> None:
            self.display.tick(tested.counters, total, least_s=least_s)
            if tested.failure is not None:
                self.raise_cause(tested.failure)
            self.check(folder, busy=tested.counters.issued > tested.counters.completed)

        gpus = plan.watched_gpus
        recorded = recorder.recording(folder / "machine.csv", plan.config.extra_metrics, self.engine.expose, gpus)
        before, told = recorder.joules(gpus), self.engine.told()
        with recorded, self.others(plan) as load:
            self.loaded = loadgen.run(mode, settings, tested, plan.samples, folder, watch)
        rated = plan.config.row.fixed_rate
        self.queue = queueing.observed(tested.issued_at, tested.completed_at) if rated else None
        for said in load.said:
            self.display.say(said if plan.config.endpoint else f"{said}: {others.SLOWER}", style="yellow")
        after = recorder.joules(gpus)
        used = None if before is None or after is None else round(after - before, 1)
        facts = {"others_cpu_cores": load.cpu_cores, "others": load.said, "gpu_joules": used}
        files.write_json(folder / "machine.json", facts)
        if counted := self.engine.told() - told:
            by_server = ServerUse.of(counted, tested.counters.completed)
            files.write_json(folder / "server.json", by_server.model_dump())
        files.write_json(folder / token_times.TOKENS, tested.new_tokens)
        lengths = [len(self.library.prompts[index]) for index in tested.indices]
        files.write_json(folder / "prompt_tokens.json", lengths)

    def others(self, plan: Plan) -> AbstractContextManager[Others]:
        """Watches what other programs use; behind an endpoint, whether the client itself is what is slow."""
        if plan.config.endpoint:
            return others.client_watched()
        return others.watched(self.taken_gpus, bool(system.gpus()))

    def measure(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work on the engine outside LoadGen, watched as its tests are."""
        self.watchdog.rest()

        def watch() -> None:
            self.display.tick()
            self.check(self.run.path)

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
            self.watchdog.rest()
        disk.check_space(folder)


def probe_folder(probes: Path, load: str) -> Path:
    """A new folder for the logs of a probe, named by its load; by a number, too, where the same was probed before."""
    names = (load if n == 1 else f"{load}-{n}" for n in itertools.count(1))
    folder = next(probes / name for name in names if not (probes / name).exists())
    folder.mkdir()
    return folder
