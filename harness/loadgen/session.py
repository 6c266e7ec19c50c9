"""LoadGen's tests of one run, on one engine, watched while they run; and its system under test.

Queries come in on LoadGen's threads, answers leave from the engine's loop.
"""

import itertools
import math
import secrets
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from harness.config.plan import Plan
from harness.core import files, nvml, progress
from harness.core.errors import EmptyAnswerError, EngineError, LoadGenError, OutOfTimeError
from harness.engines import server_metrics
from harness.engines.answer_delivery import ServerUse
from harness.engines.protocol import Engine, Result
from harness.loadgen import background_load, exporter, gpu_readings, machine_use, test_run
from harness.loadgen.loadgen_test import LoadGenSettings, run_test
from harness.loadgen.requests import take_times, write_requests
from harness.loadgen.server_neighbours import signs_of_others
from harness.loadgen.sut import SUT, make_sut
from harness.loadgen.watchdog import Watchdog
from harness.runs.run_folder import TEST_FOLDERS, RunFolder, Test
from harness.workloads.sample_library import Library

SILENT_S = 5.0  # without a token for any request, after which the screen says so
CLOCK_SET_S = 2.0  # a clock that moves more than this was set, not just corrected
END_SHOWS_S = 5.0  # the longest time from the death of an engine's first process until the engine reports its end


def clock_offset() -> float:
    """Return the seconds from a clock that nobody sets to the system's clock, which LoadGen uses."""
    return time.time() - time.monotonic()


@dataclass
class LoadGenSession:
    """An engine with samples to answer, and a folder for the logs; each call of `test` is one LoadGen test."""

    folder: RunFolder
    engine: Engine
    library: Library
    display: progress.Display
    watchdog: Watchdog
    busy_gpus: list[int] = field(default_factory=list)  # GPUs that other programs used before the engine started

    def __post_init__(self) -> None:
        self.settings, self.tests = LoadGenSettings(), itertools.count()
        self.run = secrets.token_hex(8)  # a name that no other run has, for its salts
        self.warned = False  # whether other programs were shown; each test records them anyway
        self.began = time.monotonic()
        self.until = math.inf  # the end of its tests and trials, by time.monotonic

    def test(self, mode: Test, plan: Plan, audit: str = "") -> Path:
        """Run one test to its end.

        Return the folder of its logs. Raises EngineError or BenchmarkError.

        `audit` is the text of the audit.config, which LoadGen reads over all other settings.
        """
        folder = self.folder.sub(TEST_FOLDERS[mode])
        if audit:
            (folder / "audit.config").write_text(audit)
        kind = "load" if mode == "test06" else mode
        length = plan.length if mode == "performance" else ""
        self.display.stage(mode.upper() if kind == "load" else f"{mode} test", kind, length)
        self.drive(mode, plan, folder)
        return folder

    def drive(self, mode: Test, plan: Plan, folder: Path, is_probe: bool = False) -> SUT:
        """Run one LoadGen test on the engine while watching it, and write the requests of the test to its folder.

        Only a performance test has times. They are LoadGen's, if LoadGen takes them. Raises LogError if LoadGen's trace
        is of another test.
        """
        settings = self.settings.of(plan, folder)
        total = {"accuracy": plan.samples, "test06": None}.get(mode, plan.queries)
        if plan.engine_state.prefix_caching:  # this test must not be answered from the cache of an earlier one
            self.engine.run(self.engine.reset_prefix_cache(), lambda: self.watchdog.check_run(folder))
        tested = make_sut(self.engine, self.samples(plan), plan, mode != "accuracy", total or 0, is_probe)
        shown_total, least_s = plan.pattern.progress(plan) if mode == "performance" else (total, 0.0)
        watch = partial(self.watch, tested, folder, shown_total, least_s, clock_offset())
        self.watchdog.reset()
        with self.measuring(folder, plan, tested):
            run_test(mode, settings, tested, plan.samples, folder, watch)
        requests = tested.requests
        if mode != "performance":
            for request in requests:
                request.issued_s = request.sent_ms = request.ttft_ms = request.latency_ms = None
        elif tested.by_client:
            begin = min((request.begin_s for request in requests), default=0.0)
            for request in requests:
                request.issued_s, request.clock = request.begin_s - begin, "client"
        else:
            take_times(requests, folder)
        write_requests(folder, requests)
        return tested

    def watch(self, tested: SUT, folder: Path, total: int | None, least_s: float, offset: float) -> None:
        """Show how far a test is. Raises the error that occurred in it, or the reason why the run cannot go on."""
        self.require_time()
        moved = clock_offset() - offset
        if tested.timed and not tested.by_client and abs(moved) > CLOCK_SET_S:
            raise LoadGenError(
                f"the system clock was set by {moved:+,.0f} s in a test that LoadGen times by it: run again."
            )
        busy = tested.counters.issued > tested.counters.completed
        silent_s = self.watchdog.looked_at - self.watchdog.since if busy else 0.0
        note = f"nothing received for {silent_s:.0f} s" if silent_s > SILENT_S else ""
        self.display.tick(tested.counters, total, note, least_s=least_s)
        if isinstance(tested.failure, EmptyAnswerError):  # perhaps the engine ended, which may show a moment later
            until = time.monotonic() + END_SHOWS_S
            while not self.engine.failure and time.monotonic() < until:
                time.sleep(0.1)
            if self.engine.failure:
                raise EngineError(self.engine.ended) from tested.failure
        if tested.failure is not None:
            raise tested.failure
        self.watchdog.check_run(folder, busy)

    def require_time(self) -> None:
        """Raise OutOfTimeError if the time for measuring is over."""
        if time.monotonic() > self.until:
            raise OutOfTimeError("the time for measuring is over.")

    @contextmanager
    def measuring(self, folder: Path, plan: Plan, tested: SUT) -> Iterator[None]:
        """Record what a test takes of the machine and of a server while the block runs."""
        config, gpus, engine = plan.config, plan.watched_gpus, self.engine
        urls, path = config.telemetry_url, folder / test_run.RECORDING
        wanted, exported = config.extra_metrics and tested.timed, exporter.readings(urls)
        recorded = gpu_readings.recording(
            path, wanted, engine.prometheus_metrics, gpus, lambda: exporter.readings(urls).gpus
        )
        before, exposed = gpu_readings.joules(gpus), engine.prometheus_metrics()
        busy_gpus = self.busy_gpus if config.is_in_process else []
        has_gpus = config.is_in_process and bool(nvml.gpus())
        with recorded as lines, background_load.watch_others(busy_gpus, has_gpus, config.endpoint) as load:
            yield
        after, metrics_after = gpu_readings.joules(gpus), engine.prometheus_metrics()
        used = None if before is None or after is None else after - before
        if urls and tested.timed:
            recording = test_run.Recording.read(path)
            used = recording.joules
            lines += exporter.gaps(exported, recording)
        warnings = load.warnings()
        if config.endpoint and tested.timed:
            warnings += self.neighbours(plan, tested, path, exposed, metrics_after)
        slower = "" if config.endpoint else ": the speed may be lower than this machine's"
        if not self.warned:
            lines += [f"{warning}{slower}" for warning in warnings]
        self.warned = self.warned or bool(warnings)
        use = machine_use.MachineUse(
            others_cpu_cores=load.cpu_cores,
            background_load=warnings,
            gpu_joules=None if used is None else round(used, 1),
            server_gpus=exported.models,
            waits_ms=server_metrics.mean_waits(exposed, metrics_after),
        )
        files.write_json(folder / test_run.MACHINE_FILE, use.model_dump())
        if config.endpoint:
            server = ServerUse.of(
                tested.deliveries,
                tested.sent_tokens,
                cache_hit_percent=server_metrics.cached_percent(exposed, metrics_after),
                has_template=config.endpoint_api == "chat",
                replicas=server_metrics.idle_replicas(exposed, metrics_after),
            )
            files.write_json(folder / test_run.SERVER_FILE, server.model_dump())
            lines += [*server.disagreements, *server.notes]
        for line in lines:
            self.display.say(line, style="yellow")

    def neighbours(self, plan: Plan, tested: SUT, path: Path, before: Sequence[str], after: Sequence[str]) -> list[str]:
        """Return the signs in a server's metrics that others used it during a test, in words."""
        in_flight = min(tested.most_in_flight, plan.config.most_in_flight)
        came = sum(max(delivery.tokens, delivery.client_tokens) for delivery in tested.deliveries)
        has_failures = any(request.failure for request in tested.requests)  # failed requests were generated in part
        recording = test_run.Recording.read(path)
        return [*signs_of_others(recording, in_flight, before, after, None if has_failures else came)]

    def samples(self, plan: Plan) -> Library:
        """Return the samples for the next test or trial, with a salt that no other test has.

        Behind an endpoint, random prompts are drawn anew, too, since the server's cache cannot be emptied from here.
        """
        return self.library.salted(f"{self.run} {next(self.tests)}", redraw=bool(plan.config.endpoint))

    def measure(self, work: Coroutine[object, object, Result]) -> Result:
        """Return the result of work on the engine outside LoadGen, watched as LoadGen's tests are."""
        self.watchdog.reset()

        def watch() -> None:
            self.require_time()
            self.display.tick()
            self.watchdog.check_run(self.folder.path)

        return self.engine.run(work, watch)
