"""LoadGen's tests of one run, on one engine, watched while they run; and its system under test.

Queries come in on LoadGen's threads, answers leave from the engine's loop.
"""

import itertools
import math
import secrets
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, Self

from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import files, nvml, progress
from harness.core.errors import EmptyAnswerError, EngineError, LoadGenError, OutOfTimeError
from harness.core.formatting import Measured
from harness.engines import server_metrics
from harness.engines.answer_delivery import ServerUse
from harness.engines.protocol import Engine, Result
from harness.loadgen import background_load, exporter, gpu_readings, machine_use, test_run
from harness.loadgen.loadgen_test import LoadGenSettings, run_test
from harness.loadgen.requests import Request, take_times, write_requests
from harness.loadgen.server_neighbours import signs_of_others
from harness.loadgen.sut import SUT, make_sut
from harness.loadgen.watchdog import Watchdog
from harness.runs.run_folder import TEST_FOLDERS, RunFolder, Test
from harness.workloads.sample_library import Library

SILENT_S = 5.0  # if no request gets a token for longer, the screen says so
CLOCK_SET_S = 2.0  # a clock that jumps by more was set, not just corrected
END_REPORT_S = 5.0  # the longest time from the death of one of an engine's processes until the engine reports its end


def clock_offset() -> float:
    """Return by how many seconds the system's clock, which LoadGen uses, is ahead of a clock that is never set.

    If the value changes during a test, someone set the system's clock.
    """
    return time.time() - time.monotonic()


def check_clock(offset: float) -> None:
    """Raise LoadGenError if the system's clock was set since its `clock_offset` was `offset`.

    LoadGen takes its times by that clock, so they would be wrong.
    """
    moved_s = clock_offset() - offset
    if abs(moved_s) > CLOCK_SET_S:
        raise LoadGenError(
            f"the system clock was set by {moved_s:+,.0f} s in a test that LoadGen times by it: run again."
        )


def query_count(mode: Test, plan: Plan) -> int | None:
    """Return the number of queries that LoadGen issues in a test. None if it is not known."""
    match mode:
        case "accuracy":  # This test sends each sample once.
            return plan.samples
        case "test06":  # MLPerf's audit settings decide how many queries there are.
            return None
    return plan.planned_samples


def server_use(sut: SUT, config: RunConfig, pages_before: Sequence[str], pages_after: Sequence[str]) -> ServerUse:
    """Return the content of a test's server.json.

    `pages_before` and `pages_after` are the server's pages of metrics around the test.
    """
    return ServerUse.from_deliveries(
        sut.deliveries,
        sut.sent_tokens,
        cache_hit_percent=server_metrics.cached_percent(pages_before, pages_after),
        has_template=config.endpoint_api == "chat",
        replicas=server_metrics.idle_replicas(pages_before, pages_after),
    )


def drop_times(requests: Iterable[Request]) -> None:
    """Remove the times of the requests of an accuracy or TEST06 test, which is not about speed."""
    for request in requests:
        request.issued_s = request.sent_ms = request.ttft_ms = request.latency_ms = None


def count_from_first(requests: Sequence[Request]) -> None:
    """Make `issued_s` of all requests count from the first request, and note that the client took their times."""
    begin_s = min((request.begin_s for request in requests), default=0.0)
    for request in requests:
        request.issued_s, request.clock = request.begin_s - begin_s, "client"


class CounterReading(NamedTuple):
    """What the counters of GPUs and engine say at one time. What a test used is the difference of two readings."""

    joules: Measured  # the energy of the GPUs; None if it is not known
    pages: list[str]  # the engine's metrics: a page of each server

    @classmethod
    def take(cls, engine: Engine, gpus: int | None) -> Self:
        """Return a reading of now. `gpus` is how many of the visible GPUs are read, all if None."""
        return cls(gpu_readings.joules(gpus), engine.prometheus_metrics())

    def joules_since(self, earlier: "CounterReading") -> Measured:
        """Return the energy that the GPUs used since an earlier reading. None if one of the readings lacks it."""
        if self.joules is None or earlier.joules is None:
            return None
        return self.joules - earlier.joules


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
        """Set what the session keeps from test to test, such as LoadGen's settings and a counter of tests."""
        self.settings, self.tests = LoadGenSettings(), itertools.count()
        self.run_id = secrets.token_hex(8)  # a name that no other run has, for the salts of this run's tests
        self.warned = False  # whether the screen has shown other programs' load; each test records it anyway
        self.began = time.monotonic()
        self.until = math.inf  # the time at which tests and trials must end, by time.monotonic

    def test(self, mode: Test, plan: Plan, audit: str = "") -> Path:
        """Run one test to its end, and return the folder of its logs. Raises EngineError or BenchmarkError.

        `audit` is the text of an audit.config, whose settings LoadGen uses in place of all others. Empty for none.
        """
        folder = self.folder.subfolder(TEST_FOLDERS[mode])
        if audit:
            (folder / "audit.config").write_text(audit)
        if mode == "test06":
            self.display.stage("TEST06", "load")
        else:
            length = plan.expected_length if mode == "performance" else ""
            self.display.stage(f"{mode} test", mode, length)
        self.drive(mode, plan, folder)
        return folder

    def drive(self, mode: Test, plan: Plan, folder: Path, is_probe: bool = False) -> SUT:
        """Run one LoadGen test on the engine while watching it, and write the requests of the test to its folder.

        Return the system under test, which has the requests and the refusals. In a probe, refusals by a full server are
        measurements, not failures. Raises LogError if LoadGen's trace is of another test.
        """
        settings = self.settings.prepare(plan, folder)
        if plan.engine_state.prefix_caching:  # this test must not be answered from the cache of an earlier one
            self.engine.run(self.engine.reset_prefix_cache(), partial(self.watchdog.check_run, folder))
        is_timed = mode != "accuracy"  # An accuracy test sends all queries without regard to time.
        queries = query_count(mode, plan)
        # `expected` is for --max-failed N%. It is 0 if the number of queries is not known.
        sut = make_sut(self.engine, self.samples(plan), plan, is_timed, expected=queries or 0, is_probe=is_probe)
        shown_queries, shown_s = queries, 0.0  # what the screen counts up to
        if mode == "performance":  # The pattern decides when this test ends.
            shown_queries, shown_s = plan.pattern.work_to_count(plan)
        watch = partial(self.watch, sut, folder, shown_queries, shown_s, clock_offset())
        self.watchdog.restart_stall_timer()  # Between two tests, the engine had nothing to answer.
        with self.record_test(folder, plan, sut):
            run_test(mode, settings, sut, plan.samples, folder, watch)
        if mode != "performance":  # Speed is measured only in a performance test.
            drop_times(sut.requests)
        elif sut.is_timed_by_client:
            count_from_first(sut.requests)
        else:  # LoadGen has written the times to its trace in the folder.
            take_times(sut.requests, folder)
        write_requests(folder, sut.requests)
        return sut

    def watch(self, sut: SUT, folder: Path, total: int | None, least_s: float, offset: float) -> None:
        """Show the progress of a test now, and raise an error if the test failed or the run cannot go on.

        Called again and again while the test runs. `total` is the number of queries, and `least_s` the least length in
        seconds. `offset` is the `clock_offset` at the beginning, by which a clock that was set shows.
        """
        self.require_time()
        is_timed_by_loadgen = sut.timed and not sut.is_timed_by_client
        if is_timed_by_loadgen:
            check_clock(offset)
        busy = sut.counters.issued > sut.counters.completed
        silent_s = self.watchdog.silent_s
        note = ""
        if busy and silent_s > SILENT_S:
            note = f"nothing received for {silent_s:.0f} s"
        self.display.tick(sut.counters, total, note, least_s=least_s)
        if sut.failure is not None:
            self.raise_failure(sut.failure)
        self.watchdog.check_run(folder, busy)

    def raise_failure(self, failure: BaseException) -> NoReturn:
        """Raise the failure of a request or, if an answer was empty because the engine ended, EngineError.

        The engine may report its end only some seconds after an empty answer, so its report is waited for.
        """
        if isinstance(failure, EmptyAnswerError):
            until = time.monotonic() + END_REPORT_S
            while not self.engine.failure and time.monotonic() < until:
                time.sleep(0.1)
            if self.engine.failure:
                raise EngineError(self.engine.failure_text) from failure
        raise failure

    def require_time(self) -> None:
        """Raise OutOfTimeError if the time for measuring is over."""
        if time.monotonic() > self.until:
            raise OutOfTimeError("the time for measuring is over.")

    @contextmanager
    def record_test(self, folder: Path, plan: Plan, sut: SUT) -> Iterator[None]:
        """Record how a test uses the machine and a server while the block runs.

        Afterwards machine.json and, with an endpoint, server.json are written to the folder, and what a user should
        know is shown.
        """
        config, gpus, engine = plan.config, plan.watched_gpus, self.engine
        urls, path = config.telemetry_url, folder / test_run.RECORDING
        server_gpus = exporter.reading_or_empty(urls)  # empty without --telemetry-url
        is_recorded = config.extra_metrics and sut.timed
        recording = gpu_readings.record_machine(
            path, is_recorded, engine.prometheus_metrics, gpus, partial(exporter.remote_gpus, urls), config.endpoint
        )
        # Only an engine in this process computes on the GPUs of this machine.
        busy_gpus = self.busy_gpus if config.is_in_process else []
        has_gpus = config.is_in_process and bool(nvml.gpus())
        before = CounterReading.take(engine, gpus)
        # `notes` are the recording's messages about what went wrong. More are added to them below.
        with recording as notes, background_load.watch_others(busy_gpus, has_gpus, config.endpoint) as load:
            yield
        after = CounterReading.take(engine, gpus)
        used_joules = after.joules_since(before)
        if urls and sut.timed:  # The server's GPUs have no counters here, so the energy follows from recorded power.
            server_recording = test_run.Recording.read(path)
            used_joules = server_recording.joules
            notes += exporter.gap_notes(server_gpus, server_recording)
        warnings = load.warnings()
        if config.endpoint and sut.timed:
            warnings += self.signs_of_other_clients(plan, sut, path, before.pages, after.pages)
        if not self.warned:  # The screen shows such a warning only once in a run.
            notes += background_load.warning_lines(warnings, bool(config.endpoint))
            self.warned = bool(warnings)
        use = machine_use.MachineUse(
            others_cpu_cores=load.cpu_cores,
            background_load=warnings,
            gpu_joules=None if used_joules is None else round(used_joules, 1),
            server_gpus=server_gpus.models,
            waits_ms=server_metrics.mean_waits(before.pages, after.pages),
        )
        files.write_json(folder / test_run.MACHINE_FILE, use.model_dump())
        if config.endpoint:
            server = server_use(sut, config, before.pages, after.pages)
            files.write_json(folder / test_run.SERVER_FILE, server.model_dump())
            notes += [*server.disagreements, *server.notes]
        for note in notes:
            self.display.say(note, style="yellow")

    def signs_of_other_clients(
        self, plan: Plan, sut: SUT, path: Path, before: Sequence[str], after: Sequence[str]
    ) -> list[str]:
        """Return the signs in a server's metrics that others used it during a test, in words.

        `path` is the test's machine.csv. `before` and `after` are the pages of metrics around the test.
        """
        # Requests above the limit of --max-in-flight wait in this client, and are not at the server yet.
        in_flight = min(sut.most_in_flight, plan.config.most_in_flight)
        # Of the server's and the client's count of an answer, the larger counts: no token of this run may be taken for
        # another program's.
        tokens: int | None = sum(max(delivery.tokens, delivery.client_tokens) for delivery in sut.deliveries)
        if any(request.failure for request in sut.requests):
            tokens = None  # the server may have generated a part of their answers, which did not come
        recording = test_run.Recording.read(path)
        return list(signs_of_others(recording, in_flight, before, after, tokens))

    def samples(self, plan: Plan) -> Library:
        """Return the samples for the next test or trial, with a salt that no other test has.

        So a server cannot answer from its cache of an earlier test. Behind an endpoint, random prompts are drawn anew,
        too, since the server's cache cannot be emptied from here.
        """
        return self.library.with_test_salt(f"{self.run_id} {next(self.tests)}", redraw=bool(plan.config.endpoint))

    def run_watched(self, work: Coroutine[object, object, Result]) -> Result:
        """Return the result of work on the engine outside LoadGen, such as a trial, watched as LoadGen's tests are.

        Raises the error of the work, or the reason why the run cannot go on.
        """
        self.watchdog.restart_stall_timer()  # Before this work, the engine had nothing to answer.

        def watch() -> None:
            """Raise an error if the time is over, or if the engine failed or is silent for too long."""
            self.require_time()
            self.display.tick()
            self.watchdog.check_run(self.folder.path)

        return self.engine.run(work, watch)
