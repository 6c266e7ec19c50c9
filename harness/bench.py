"""LoadGen's tests of one run, on one engine, watched while they run."""

from collections.abc import Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import mlperf_loadgen as lg

from harness import loadgen, others, recorder, results, search, sut, system, token_times
from harness.engines import Engine
from harness.errors import EngineError
from harness.facts import ServerUse
from harness.others import Others
from harness.plan import Plan
from harness.progress import Display
from harness.samples import Library
from harness.watchdog import Watchdog

Result = TypeVar("Result")


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
        self.drive(mode, settings, plan, folder)
        return folder

    def probe(self, plan: Plan, short: Plan) -> search.Probe:
        """A short performance test: `short` is the run's plan with a load of its own, and less of everything else."""
        several = plan.config.row.several
        load = f"{short.samples_per_query} samples per query" if several else f"{short.target_qps:.4g} queries/s"
        folder = self.run.sub("Probes") / load.partition(" ")[0]
        folder.mkdir(exist_ok=True)
        settings = self.settings_in(folder, plan)  # the run's: shortened for this test alone
        (folder / "user.conf").write_text(loadgen.user_conf(short))
        self.display.stage(f"probe at {load}")
        with loadgen.shortened(settings, short):
            self.drive("performance", settings, short, folder)
        result = token_times.read(folder, plan.limits, plan.asked is not None)
        self.display.done(f"{load}: {'VALID' if result.valid else 'INVALID'}")
        first, each, whole = result.ttft_ms, result.tpot_ms, result.latency_ms
        return search.Probe(
            qps=None if several else short.target_qps,
            samples_per_query=short.samples_per_query,
            valid=bool(result.valid),
            latency_p50=whole.p50 if whole else None,
            latency_p90=whole.p90 if whole else None,
            ttft_p99=first.p99 if first else None,
            tpot_p99=each.p99 if each else None,
            ttft_p50=first.p50 if first else None,
            tpot_p50=each.p50 if each else None,
            tokens_per_sec=result.tokens_per_sec,
            samples_per_sec=result.samples_per_sec,
        )

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
        if plan.running.prefix_caching:  # what one test computed is not to serve the next
            self.engine.wait(self.engine.spawn(self.engine.reset_prefix_cache()), lambda: self.check(folder))
        total = loadgen.expected_queries(plan, mode)
        least_s = total / plan.target_qps if total and plan.target_qps and plan.config.row.fixed_rate else 0.0
        self.watchdog.rest()

        def watch() -> None:
            self.display.tick(tested.counters, total, least_s=least_s)
            if tested.failure is not None:
                raise tested.failure
            self.check(folder, busy=tested.counters.issued > tested.counters.completed)

        gpus = plan.watched_gpus
        measured = recorder.recording(folder / "machine.csv", plan.config.extra_metrics, self.engine.expose, gpus)
        before, told = recorder.joules(gpus), self.engine.told()
        with measured, self.others(plan) as load:
            self.loaded = loadgen.run(mode, settings, tested, plan.samples, folder, watch)
        for said in load.said:
            self.display.say(said if plan.config.endpoint else f"{said}: {others.SLOWER}", style="yellow")
        after = recorder.joules(gpus)
        used = None if before is None or after is None else round(after - before, 1)
        facts = {"others_cpu_cores": load.cpu_cores, "others": load.said, "gpu_joules": used}
        results.write_json(folder / "machine.json", facts)
        if counted := self.engine.told() - told:
            by_server = ServerUse.of(counted, tested.counters.completed)
            results.write_json(folder / "server.json", by_server.model_dump())
        results.write_json(folder / token_times.TOKENS, tested.new_tokens)
        lengths = [len(self.library.prompts[index]) for index in tested.indices]
        results.write_json(folder / "prompt_tokens.json", lengths)

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

    def check(self, folder: Path, busy: bool = True) -> None:
        """Raises when the run cannot go on: LoadGen itself would wait for ever."""
        if self.engine.failure:
            raise EngineError(self.engine.failure)
        if busy:
            self.watchdog.check()
        else:
            self.watchdog.rest()
        results.check_space(folder)
