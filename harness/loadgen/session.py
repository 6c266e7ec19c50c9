"""LoadGen's tests of one run, on one engine, watched while they run; and its system under test.

Queries come in on LoadGen's threads, answers leave from the engine's loop.
"""

import asyncio
import itertools
import math
import secrets
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import mlperf_loadgen as lg

from harness.config.engine import may_fail
from harness.config.plan import Plan
from harness.core import files, screen, system
from harness.core.errors import (
    EmptyAnswerError,
    EndpointError,
    EngineError,
    LoadGenError,
    OutOfTimeError,
    ServerFullError,
    first_line,
)
from harness.engines import discovery
from harness.engines.protocol import Delivery, Engine, Exchange, Result, ServerUse
from harness.loadgen import outcome, patterns, recorder, test_run
from harness.loadgen.admission import Admission, advice
from harness.loadgen.folder import FOLDER, RunFolder, Test
from harness.loadgen.requests import ANSWERS, TRACE, Request, take_times, write_requests
from harness.loadgen.watchdog import Watchdog
from harness.workloads.cnn_dailymail import Library


@dataclass
class SUT:
    """Answers every query with the engine, and notes what it knows of each in `requests`, in the order of issue: times
    by time.perf_counter.

    `sender` sends what LoadGen issues at once; None where LoadGen sets the pace, and each is sent as it comes.
    `failure` is the first exception: from then on LoadGen waits for answers that never come.
    """

    engine: Engine
    library: Library
    sender: patterns.Sender | None = None
    streams: bool = True  # whether the time of each first token is taken
    by_client: bool = False  # by its own clock; else LoadGen takes it, and hears of it
    timed: bool = True  # whether LoadGen measures; in an accuracy test an empty answer is a bad answer
    max_failed: str = "0"  # as the flag has it
    expected: int = 0  # queries, about, where LoadGen does not issue all at once
    is_probe: bool = False  # whether a refusal by a full server is a measurement, and no failure
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.counters, self.requests = screen.Counters(), list[Request]()
        self.deliveries, self.sent_tokens = list[Delivery](), 0  # of the answered ones
        self.admission = Admission()
        self._tasks = set[asyncio.Task[None]]()  # the loop itself keeps only weak references
        self._issues = Counter[int]()  # of each sample so far
        self._failed = 0

    def issue(self, ids: Sequence[int], indices: Sequence[int]) -> None:
        """LoadGen's IssueQuery: one thread-safe call hands the whole query over to the engine's loop."""
        now, new = None if self.by_client else time.perf_counter(), list[Request]()
        for order, (id, index) in enumerate(zip(ids, indices, strict=True), start=len(self.requests)):
            new.append(Request(index, issued_s=now, order=order, round=self._issues[index], id=id))
            self._issues[index] += 1
        self.requests += new
        if not self.by_client:  # else each is counted when it is sent
            self.counters.issued += len(ids)
        self.engine.loop.call_soon_threadsafe(self.start, new)

    def start(self, requests: list[Request]) -> None:
        """Sends the queries that LoadGen issued together; runs on the engine's loop."""
        if self.sender is None:
            for request in requests:
                self.run(self.attempt(request))
        else:
            self.run(self.send(self.sender, requests))

    async def send(self, sender: patterns.Sender, requests: list[Request]) -> None:
        """Sends queries in the sender's way; those that it leaves out are answered without having been sent."""
        left = await sender.send(requests, self.attempt)
        unsent = {request.order for request in left}
        self.requests = [request for request in self.requests if request.order not in unsent]
        for request in left:
            self.report(lg.QuerySamplesComplete, request.id, [0] * test_run.PLACEHOLDER)

    def run(self, work: Any) -> None:
        task = self.engine.loop.create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Any) -> None:
        try:
            await work
        except Exception as error:
            self.failure = self.failure or error

    async def attempt(self, request: Request) -> None:
        """Answers a request, or counts it as refused or as failed. Raises EndpointError for one that failed beyond
        --max-failed, and for a refusal that does not mean that the server is full."""
        number = self.admission.send(time.perf_counter())
        try:
            await self.answer(request)
            sent_s = request.begin_s + request.sent_ms / 1e3 if request.sent_ms else None
            self.admission.answer(number, time.perf_counter(), sent_s)
        except ServerFullError as error:
            if self.is_probe:
                self.admission.refuse(number, time.perf_counter(), error)
                self.end_without_answer(request, error)
            else:
                self.admission.drop(number)
                self.count_failure(request, error, advice(len(self.admission.in_progress)))
        except EndpointError as error:
            self.admission.drop(number)
            self.count_failure(request, error)

    def count_failure(self, request: Request, error: EndpointError, remedy: str = "") -> None:
        """Counts a failed request. Raises EndpointError, with a remedy, beyond --max-failed."""
        self._failed += 1
        total = max(self.expected, self.counters.issued)
        most = may_fail(self.max_failed, total)
        if self._failed > most:
            count = (
                f" (request {most + 1:,} of about {total:,} to fail; --max-failed {self.max_failed})" if most else ""
            )
            raise EndpointError(f"{error}{count}{remedy}") from error
        self.end_without_answer(request, error)

    def end_without_answer(self, request: Request, error: EndpointError) -> None:
        """LoadGen waits for every answer: it gets one of PLACEHOLDER tokens, or an empty one where it is scored."""
        request.failure = str(error)
        if self.timed and self.streams and not self.by_client and request.ttft_ms is None:
            self.report(lg.FirstTokenComplete, request.id, [0])
        self.end(request, [0] * test_run.PLACEHOLDER * self.timed)

    async def answer(self, request: Request) -> None:
        """Sends one request and reports its answer. Raises EndpointError, EngineError, EmptyAnswerError."""
        exchange, tokens = Exchange(), list[int]()
        begin = exchange.sent_at
        prompt, most = self.library.request(request.sample, request.order, request.round)
        request.prompt_tokens = len(prompt)
        if self.by_client:
            self.counters.issued += 1
            if request.issued_s is None:
                request.issued_s = begin
        try:
            async for new in self.engine.stream(prompt, most, exchange, not self.streams):
                if self.streams and new and not tokens:
                    now = time.perf_counter()
                    request.ttft_ms = self.ms_since_issue(request, now)
                    if not self.by_client:
                        self.report(lg.FirstTokenComplete, request.id, new[:1])
                    self.counters.started += 1
                    self.counters.first_token_s += now - begin
                tokens.extend(new)
        finally:
            if self.streams:
                request.sent_ms = self.ms_since_issue(request, exchange.sent_at)
        self.complete(request, tokens, exchange)

    def complete(self, request: Request, tokens: Sequence[int], exchange: Exchange) -> None:
        """Reports a whole answer. Raises EmptyAnswerError for one without tokens where it is timed: it cannot be."""
        delivery = exchange.delivery
        if not tokens and self.timed:
            raise EmptyAnswerError(
                f"{self.engine.name} answered sample {request.sample} without a single token, which cannot be timed: "
                "remove it, or make the server honor min_tokens."
            )
        request.output_tokens = delivery.tokens if delivery else len(tokens)
        if delivery:
            request.first_tokens = max(1, delivery.first_tokens)
            self.deliveries.append(delivery)
            self.sent_tokens += request.prompt_tokens
        self.counters.tokens += request.output_tokens
        self.end(request, tokens)

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        """Tells LoadGen of the end of an answer."""
        request.latency_ms = self.ms_since_issue(request, time.perf_counter())
        self.counters.completed += 1
        self.report(lg.QuerySamplesComplete, request.id, tokens, request.output_tokens)

    def ms_since_issue(self, request: Request, at: float) -> float:
        """Milliseconds since the time from which a request's latencies count."""
        return 1e3 * (at - request.begin_s)

    def report(self, report: Any, id: int, tokens: Sequence[int], count: int = 0) -> None:
        """Reports token ids to LoadGen as int32, which takes a copy of the buffer; `count` tokens (0: as many)."""
        data = array("i", tokens)
        address, length = data.buffer_info()
        report([lg.QuerySampleResponse(id, address, length * data.itemsize, count or length)])


def make_sut(engine: Engine, library: Library, plan: Plan, timed: bool, expected: int, is_probe: bool = False) -> SUT:
    """The system under test of a plan's scenario, of about so many queries; 0: LoadGen issues all at once."""
    pattern = plan.pattern
    return SUT(
        engine,
        library,
        patterns.issued(plan, library, timed),
        streams=pattern.is_streamed,
        by_client=pattern.is_own_clock,
        timed=timed,
        max_failed=plan.config.max_failed,
        expected=expected,
        is_probe=is_probe,
    )


# One LoadGen test from settings to logs.

# What a plan changes from test to test, by LoadGen's attributes: the key in a user.conf, which has ms for ns.
CHANGING_SETTINGS = {
    "min_duration_ms": "min_duration",
    "min_query_count": "min_query_count",
    "performance_sample_count_override": "performance_sample_count_override",
    "multi_stream_samples_per_query": "samples_per_query",
    "offline_expected_qps": "target_qps",
    "server_target_qps": "target_qps",
    "single_stream_expected_latency_ns": "target_latency",
    "multi_stream_expected_latency_ns": "target_latency",
}

SAMPLE_LOGS = (TRACE, ANSWERS)  # which LoadGen begins in every test, and leaves empty in most


def user_conf(plan: Plan) -> str:
    """LoadGen's settings beyond its built-in `mlperf.conf`: rates, and the counts of a short run."""
    rules = plan.config.scenario_rules
    settings = rules.pattern.settings(plan) | rules.pattern.fixed_settings(plan)
    return "".join(
        f"{plan.loadgen_model}.{rules.loadgen}.{key} = {f'{value:.6g}' if isinstance(value, float) else value}\n"
        for key, value in settings.items()
    )


class LoadGenSettings:
    """LoadGen's settings of a run, for the plan of the test that comes.

    LoadGen reads a user.conf once in a process and calls a second one an error: the tests of a run share what was read
    for the first, and each sets what changes from test to test.
    """

    def __init__(self) -> None:
        self._read = None
        self._official: dict[str, int | float] = {}  # values of mlperf.conf

    def of(self, plan: Plan, folder: Path) -> lg.TestSettings:
        """Those of a plan, whose user.conf is left in the folder. Raises LoadGenError."""
        conf = folder / "user.conf"
        conf.write_text(user_conf(plan))
        settings = self._read = self._read or self.read(plan, conf)
        given = plan.pattern.settings(plan)
        for name, key in CHANGING_SETTINGS.items():
            official, unit = self._official[name], 10**6 if name.endswith("_ns") else 1
            value = unit * given[key] if key in given else official
            setattr(settings, name, round(value) if isinstance(official, int) else float(value))
        return settings

    def read(self, plan: Plan, conf: Path) -> lg.TestSettings:
        """LoadGen's settings from `mlperf.conf` and the user.conf at `conf`. Raises LoadGenError."""
        scenario = plan.config.scenario_rules.loadgen
        settings = lg.TestSettings()
        settings.scenario = getattr(lg.TestScenario, scenario)
        settings.FromConfig("", plan.loadgen_model, scenario, 0)  # mlperf.conf, which LoadGen itself reads only once
        self._official = {name: getattr(settings, name) for name in CHANGING_SETTINGS}
        if settings.FromConfig(str(conf), plan.loadgen_model, scenario) != 0:
            raise LoadGenError(f"LoadGen refuses {conf}; its reasons are in mlperf_log_detail.txt.")
        settings.qsl_rng_seed = plan.seeds.qsl
        settings.sample_index_rng_seed = plan.seeds.sample_index
        settings.schedule_rng_seed = plan.seeds.schedule
        return settings


def run_test(
    mode: Test, settings: lg.TestSettings, sut: SUT, samples: int, folder: Path, watch: Callable[[], None]
) -> None:
    """Runs one test to its end.

    `watch` is called ten times a second on this thread and may raise to give up. An audit.config in `folder` rules.
    LoadGen itself cannot be stopped: it waits in C++ for every answer. Whoever gives up must end the process. Raises
    LoadGenError.
    """
    settings.mode = lg.TestMode.AccuracyOnly if mode == "accuracy" else lg.TestMode.PerformanceOnly
    output = lg.LogOutputSettings()
    output.outdir = str(folder)
    output.copy_summary_to_stdout = False
    logging = lg.LogSettings()
    logging.log_output = output
    logging.enable_trace = mode == "performance" and not sut.by_client  # the times of each sample
    system = lg.ConstructFastSUT(sut.issue, lambda: None)
    library = lg.ConstructQSL(samples, samples, lambda _: None, lambda _: None)
    # An audit.config in the working folder would change the test behind the user's back: name one that is ours.
    audit = str(folder / "audit.config")
    failed = []

    def drive() -> None:
        try:
            lg.StartTestWithLogSettings(system, library, settings, logging, audit)
        except Exception as error:
            failed.append(error)

    test = threading.Thread(target=drive, name="loadgen", daemon=True)
    test.start()
    while test.is_alive():
        test.join(timeout=0.1)
        watch()
    if failed:
        raise LoadGenError(f"LoadGen failed: {type(failed[0]).__name__}: {first_line(failed[0])}") from failed[0]
    lg.DestroyQSL(library)
    lg.DestroyFastSUT(system)
    for path in map(folder.joinpath, SAMPLE_LOGS):
        if path.is_file() and path.stat().st_size <= len("[\n]\n"):
            path.unlink()


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
    display: screen.Display
    watchdog: Watchdog
    busy_gpus: list[int] = field(default_factory=list)  # by other programs, before the engine started

    def __post_init__(self) -> None:
        self.settings, self.tests = LoadGenSettings(), itertools.count()
        self.run = secrets.token_hex(8)  # as no other is called
        self.warned = False  # of other programs, which every test's record has
        self.began = time.monotonic()
        self.until = math.inf  # by time.monotonic: when its tests and trials are over

    def test(self, mode: Test, plan: Plan, audit: str = "") -> Path:
        """Runs one test to its end; the folder of its logs. Raises EngineError, BenchmarkError.

        `audit` is the text of the audit.config that LoadGen reads over all other settings.
        """
        folder = self.folder.sub(FOLDER[mode])
        if audit:
            (folder / "audit.config").write_text(audit)
        kind = "load" if mode == "test06" else mode
        length = plan.length if mode == "performance" else ""
        self.display.stage(mode.upper() if kind == "load" else f"{mode} test", kind, length)
        self.drive(mode, plan, folder)
        return folder

    def drive(self, mode: Test, plan: Plan, folder: Path, is_probe: bool = False) -> SUT:
        """One LoadGen test on the engine, watched; what is known of each request stays in its folder, with times only
        of a test that measures: LoadGen's, where it takes them. Raises LogError where its trace is of others."""
        settings = self.settings.of(plan, folder)
        total = {"accuracy": plan.samples, "test06": None}.get(mode, plan.queries)
        if plan.engine_state.prefix_caching:  # what one test computed is not to serve the next
            self.engine.run(self.engine.reset_prefix_cache(), lambda: self.watchdog.check_run(folder))
        tested = make_sut(self.engine, self.samples(plan), plan, mode != "accuracy", total or 0, is_probe)
        shown, least_s = plan.pattern.progress(plan) if mode == "performance" else (total, 0.0)
        watch = partial(self.watch, tested, folder, shown, least_s, clock_offset())
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
        """Shows how far a test is. Raises what failed in it, or why the run cannot go on."""
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
        if isinstance(tested.failure, EmptyAnswerError):  # because of the engine's end, which may show a moment later
            until = time.monotonic() + END_SHOWS_S
            while not self.engine.failure and time.monotonic() < until:
                time.sleep(0.1)
            if self.engine.failure:
                raise EngineError(self.engine.ended) from tested.failure
        if tested.failure is not None:
            raise tested.failure
        self.watchdog.check_run(folder, busy)

    def require_time(self) -> None:
        """Raises OutOfTimeError once its time is over."""
        if time.monotonic() > self.until:
            raise OutOfTimeError("the time for measuring is over.")

    @contextmanager
    def measuring(self, folder: Path, plan: Plan, tested: SUT) -> Iterator[None]:
        """Records what a test takes of the machine, and of a server, while the block runs."""
        config, gpus, engine = plan.config, plan.watched_gpus, self.engine
        urls, path = config.telemetry_url, folder / test_run.RECORDING
        wanted, models = config.extra_metrics and tested.timed, recorder.readings(urls)[1]
        recorded = recorder.recording(path, wanted, engine.prometheus_metrics, gpus, lambda: recorder.readings(urls)[0])
        before, exposed = recorder.joules(gpus), engine.prometheus_metrics()
        taken, here = (self.busy_gpus, bool(system.gpus())) if config.is_in_process else ([], False)
        with recorded as lines, recorder.watch_others(taken, here, config.endpoint) as load:
            yield
        slower, others = "" if config.endpoint else ": the speed may be lower than this machine's", load.warnings()
        lines += [f"{warning}{slower}" for warning in others if not self.warned]
        self.warned |= bool(others)
        after = recorder.joules(gpus)
        used = None if before is None or after is None else after - before
        if urls and tested.timed:
            exported = test_run.Recording.read(path)
            used = exported.joules
            if exported.missing:
                lines.append(
                    f"--telemetry-url: no values in {exported.missing:,} of {len(exported.seconds):,} readings"
                )
        told = engine.prometheus_metrics()
        use = outcome.MachineUse(
            others_cpu_cores=load.cpu_cores,
            background_load=others,
            gpu_joules=None if used is None else round(used, 1),
            server_gpus=models,
            waits_ms=discovery.mean_waits(exposed, told),
        )
        files.write_json(folder / test_run.MACHINE, use.model_dump())
        if config.endpoint:
            server = ServerUse.of(
                tested.deliveries,
                tested.sent_tokens,
                cache_hit_percent=discovery.cached_percent(exposed, told),
                has_template=config.endpoint_api == "chat",
                replicas=discovery.idle_replicas(exposed, told),
            )
            files.write_json(folder / test_run.SERVER, server.model_dump())
            lines += [*server.disagreements, *server.notes]
        for line in lines:
            self.display.say(line, style="yellow")

    def samples(self, plan: Plan) -> Library:
        """The samples for the next test or trial, salted as for no other; behind an endpoint, whose cache cannot be
        emptied from here, random prompts are new ones, too."""
        return self.library.salted(f"{self.run} {next(self.tests)}", redraw=bool(plan.config.endpoint))

    def measure(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work on the engine outside LoadGen, watched as its tests are."""
        self.watchdog.reset()

        def watch() -> None:
            self.require_time()
            self.display.tick()
            self.watchdog.check_run(self.folder.path)

        return self.engine.run(work, watch)
