"""LoadGen's tests of one run, on one engine, watched while they run."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlperf_loadgen as lg

import util_logs
from harness import loadgen, results, search, system
from harness.config import Plan
from harness.engine import ENDED, Engine
from harness.errors import EngineError
from harness.progress import Display
from harness.samples import Library
from harness.sut import SUT, BatchSUT, StreamingSUT


@dataclass
class Bench:
    """An engine with samples to answer; `test` may be called once for each LoadGen test of the run."""

    run: results.RunFolder
    engine: Engine
    library: Library
    display: Display
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

    def probe(self, plan: Plan, qps: float) -> search.Probe:
        """A short performance test at a rate, on as many samples as it takes."""
        folder = self.run.sub("Probes") / f"{qps:.4g}"
        folder.mkdir(exist_ok=True)
        length = search.seconds(qps)
        short = replace(plan, target_qps=qps, min_duration_s=length, samples=min(plan.samples, math.ceil(qps * length)))
        settings = self.settings_in(folder, plan)  # the run's: shortened for this test alone
        (folder / "user.conf").write_text(loadgen.user_conf(short))
        self.display.stage(f"probe at {qps:.4g} queries/s")
        with loadgen.shortened(settings, short):
            self.drive("performance", settings, short, folder)
        facts = util_logs.read(folder)
        first, each = facts.ttft_ms, facts.tpot_ms
        return search.Probe(qps, bool(facts.valid), first.p99 if first else None, each.p99 if each else None)

    def settings_in(self, folder: Path, plan: Plan) -> lg.TestSettings:
        """Writes the plan's user.conf into the folder; LoadGen reads the first one of a run."""
        conf = folder / "user.conf"
        conf.write_text(loadgen.user_conf(plan))
        self.settings = self.settings or loadgen.settings_for(plan, conf)
        return self.settings

    def drive(self, mode: results.Test, settings: lg.TestSettings, plan: Plan, folder: Path) -> None:
        """One LoadGen test on the engine, watched."""
        sut = self.sut(plan)
        if plan.running.prefix_caching:  # what one test computed is not to serve the next
            self.engine.wait(self.engine.spawn(self.engine.forget()), lambda: self.check(folder))
        total = loadgen.expected_queries(plan, mode)

        def watch() -> None:
            self.display.tick(sut.counters, total)
            if sut.failure is not None:
                raise sut.failure
            self.check(folder)

        with system.recording(folder / "machine.csv", plan.config.extra_metrics):
            self.loaded = loadgen.run(mode, settings, sut, plan.samples, folder, watch)
        results.write_json(folder / "tokens.json", sut.new_tokens)
        results.write_json(folder / "prompt_tokens.json", [len(self.library.prompts[index]) for index in sut.indices])

    def sut(self, plan: Plan) -> SUT:
        config = plan.config
        if config.streaming:
            return StreamingSUT(self.engine, self.library.prompts)
        return BatchSUT(
            self.engine, self.library.prompts, batch_size=config.batch_size, sort_by_length=config.sort_by_length
        )

    def check(self, folder: Path) -> None:
        """Raises when the run cannot go on: LoadGen itself would wait for ever."""
        if self.engine.dead:
            raise EngineError(ENDED)
        results.check_space(folder)
