"""LoadGen's tests of one run, on one engine, watched while they run."""

from dataclasses import dataclass, field
from pathlib import Path

import mlperf_loadgen as lg

from harness import loadgen, results, system
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
        conf = folder / "user.conf"
        conf.write_text(loadgen.user_conf(plan))
        if audit:
            (folder / "audit.config").write_text(audit)
        self.settings = self.settings or loadgen.settings_for(plan, conf)
        loadgen.set_rates(self.settings, plan)
        sut = self.sut(plan)
        total = loadgen.expected_queries(plan, mode)

        def watch() -> None:
            self.display.tick(sut.counters, total)
            if sut.failure is not None:
                raise sut.failure
            self.check(folder)

        self.display.stage(f"{mode} test" if mode in ("accuracy", "performance") else mode.upper())
        with system.recording(folder / "machine.csv", plan.config.extra_metrics):
            self.loaded = loadgen.run(mode, self.settings, sut, plan.samples, folder, watch)
        results.write_json(folder / "tokens.json", sut.new_tokens)
        return folder

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
