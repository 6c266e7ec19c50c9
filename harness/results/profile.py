"""Traces of torch's profiler (Chrome's format) -> kernel time by kind, and how long the GPUs were idle.

On a GPU what counts is its kernels; on a CPU the operators' self time, which is without that of operators they call.
"""

import asyncio
import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from harness.config.plan import Plan
from harness.core import files, reading, schema
from harness.core.errors import BenchmarkError, EngineError, UsageError, first_line
from harness.engines.protocol import Engine
from harness.loadgen import folder as results
from harness.loadgen import log as loadgen_log
from harness.loadgen import patterns
from harness.loadgen.session import LoadGenSession
from harness.workloads.cnn_dailymail import Prompt

FOLDER, RESULT = "Profile", "profile.json"  # in the run folder, in that folder
PATTERN = "*.pt.trace.json*"  # as torch names them
LARGEST_KERNELS = 10  # rows of the table of single kernels
NAME_LENGTH = 100  # characters; names of templates run to thousands
OTHER = "other"
# The first row whose pattern is found in a kernel's or operator's name gives its kind. What Inductor fuses is named
# after what stands beside it, too (triton_red_fused_..., of a matrix product), and is never that. `flashinfer::` holds
# kernels of every kind. Attention stands before matrix products since FlashAttention is built on CUTLASS; normalization
# before quantization since fused kernels do both.
FUSED = r"^(?:triton_(?:red|per|poi)|cpp)_fused\w*"
NORMALIZES = r"(?:norm|rsqrt|silu|swiglu|gelu|sigmoid|act_and_mul|relu|tanh)"
KINDS = (
    ("normalization and activation", FUSED + NORMALIZES),
    ("quantization", FUSED + r"(?:clamp|quant|fp8|scaled_mm)"),
    ("communication", r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device|multimem|c10d::"),
    (
        "attention",
        r"flash(?!infer)|f?mha|attention|attn|reshape_and_cache|rotary|prefill|BatchDecode|PagedKV|merge_?state|mla_",
    ),
    (
        "matrix products",
        r"gemm|gemv|nvjet|cutlass|cublas|xmma|splitk|matmul|onednn|mkldnn|triton_tem|scaled_mm|"
        r"::(linear|addmm|bmm|baddbmm|mm|_?int_mm)\b|_(mm|linear)\b",
    ),
    ("sampling", r"argmax|arg_?max|sampl|softmax|top_?[kp]|multinomial|penalt|exponential|logits|::sort\b|radixsort"),
    ("normalization and activation", NORMALIZES),
    ("quantization", r"quant|_fp8|float8|e4m3"),
)
CATEGORIES = {"GPU": "kernel", "CPU": "cpu_op"}  # of the events that count
TRACKS: dict[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] = {  # which GPU, or which thread, an event was on
    "kernel": lambda event: (event.get("args", {}).get("device", 0),),
    "cpu_op": lambda event: (event.get("pid"), event.get("tid")),
}
Device = Literal["GPU", "CPU"]
COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in KINDS)
READ_ERRORS = (OSError, EOFError, zlib.error, ValueError, RecursionError, LookupError, TypeError, AttributeError)


class Event(NamedTuple):
    """One piece of work; `track` is the GPU, or the thread, that did it. Microseconds."""

    name: str
    track: tuple[str, ...]
    start: float
    duration: float

    @property
    def end(self) -> float:
        return self.start + self.duration


class Share(schema.Model):
    """Time of one kind of kernels or operators, or of all with one name; over all GPUs."""

    name: str
    kind: str
    ms: Annotated[float, Field(ge=0)]
    percent: Annotated[float, Field(ge=0, le=100.01)]
    """Of the time of all."""
    calls: int


class Profile(schema.File):
    """profile.json: what the engine's time went to in a window of load after the measured test."""

    failure: str = ""
    """Why there is none, in one line."""
    device: Device | None = None
    seconds: float | None = None
    """From the beginning of the first kernel or operator to the end of the last; the longest of the traces."""
    idle_percent: float | None = None
    """Of the window: no kernel ran. The mean over GPUs; null on a CPU."""
    active_s: float | None = None
    """In which some kernel ran; the mean over GPUs."""
    mean_kernel_ms: float | None = None
    gaps: int | None = None
    """Times in which no kernel ran, over all GPUs."""
    mean_gap_ms: float | None = None
    kinds: list[Share] = []
    """Largest first."""
    largest: list[Share] = []
    traces: list[str] = []
    """Relative to the run folder."""

    @property
    def shares(self) -> dict[str, float]:
        """Percent of the time by kind."""
        return {share.name: share.percent for share in self.kinds}

    @property
    def headline(self) -> str:
        if self.failure:
            return f"failed, the measured results stand: {self.failure}"
        largest = ", ".join(f"{name} {percent:.0f} %" for name, percent in [*self.shares.items()][:3])
        return largest + (f"; GPU idle {self.idle_percent:.0f} %" if self.idle_percent is not None else "")


def profile(folder: Path) -> Profile:
    """The profile of all traces in a folder, one a worker. Raises UsageError where one is cut, or none holds work."""
    paths = sorted(folder.glob(PATTERN))
    if not paths:
        raise UsageError(f"{folder}: the profiler left no trace there; engine.log may say why.")
    found = [read(path) for path in paths]
    device: Device = "GPU" if any("kernel" in kinds for kinds in found) else "CPU"
    work = [kinds.get(CATEGORIES[device], []) for kinds in found]
    if not any(work):
        raise UsageError(f"{folder}: no kernel and no operator in the traces.")
    return sum_traces(work, device, [f"{folder.name}/{path.name}" for path in paths])


def sum_traces(work: Sequence[Sequence[Event]], device: Device, traces: list[str]) -> Profile:
    """The profile of the work of each trace: all kernels, or the operators' self time."""
    busy = [events for events in work if events]
    own = [(each.name, each.duration) for events in busy for each in events]  # kernels call no others
    if device == "CPU":
        own = list(chain.from_iterable(map(self_times, busy)))
    spans = [max(e.end for e in events) - min(e.start for e in events) for events in busy]
    gpus = [activity for events in busy for activity in activities(events)] if device == "GPU" else []
    gaps = sum(gpu.gaps for gpu in gpus)
    return Profile(
        device=device,
        seconds=max(spans) / 1e6,
        idle_percent=100 * mean(gpu.idle_share for gpu in gpus) if gpus else None,
        active_s=mean(gpu.active for gpu in gpus) / 1e6 if gpus else None,
        mean_kernel_ms=mean(duration for _, duration in own) / 1000 if gpus else None,
        gaps=gaps if gpus else None,
        mean_gap_ms=sum(gpu.idle for gpu in gpus) / gaps / 1000 if gaps else None,
        kinds=shares([(kind_of(name), duration) for name, duration in own], kind=str),
        largest=shares(own, kind=kind_of)[:LARGEST_KERNELS],
        traces=traces,
    )


def read(path: Path) -> dict[str, list[Event]]:
    """The kernels and operators in a trace, gzipped or not. Raises UsageError for one that is cut, or is no trace."""
    try:
        raw = reading.read_bytes(path)
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode(errors="replace")
        found: dict[str, list[Event]] = defaultdict(list)
        for event in json.loads(text, strict=False)["traceEvents"]:
            if event.get("ph") == "X" and (category := event.get("cat")) in TRACKS:
                track = (str(path), *(str(part) for part in TRACKS[category](event)))
                found[category].append(Event(str(event["name"]), track, float(event["ts"]), float(event["dur"])))
        return dict(found)
    except READ_ERRORS as error:
        raise UsageError(f"{path}: not a whole trace: {first_line(error)}.") from None


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in COMPILED if pattern.search(name)), OTHER)


def self_times(events: Iterable[Event]) -> Iterator[tuple[str, float]]:
    """Each operator with the time that it spent in no other."""
    for track in group_by_track(events):
        ordered = sorted(track, key=lambda event: (event.start, -event.duration))
        own, inside = [event.duration for event in ordered], list[int]()  # places of those begun and not ended
        for place, event in enumerate(ordered):
            while inside and ordered[inside[-1]].end <= event.start:
                inside.pop()
            if inside:
                own[inside[-1]] -= event.duration
            inside.append(place)
        yield from ((event.name, max(0.0, time)) for event, time in zip(ordered, own, strict=True))


class Activity(NamedTuple):
    """What one GPU did from its first kernel to the end of its last: microseconds with a kernel and without, and the
    times without."""

    active: float
    idle: float
    gaps: int

    @property
    def idle_share(self) -> float:
        return self.idle / (self.active + self.idle) if self.idle else 0.0


def activities(events: Iterable[Event]) -> Iterator[Activity]:
    for track in group_by_track(events):
        ordered = sorted(track, key=lambda event: event.start)
        reached, idle, gaps = ordered[0].start, 0.0, 0
        for event in ordered:
            gaps += event.start > reached
            idle += max(0.0, event.start - reached)
            reached = max(reached, event.end)
        yield Activity(reached - ordered[0].start - idle, idle, gaps)


def group_by_track(events: Iterable[Event]) -> list[list[Event]]:
    tracks: dict[tuple[str, ...], list[Event]] = defaultdict(list)
    for event in events:
        tracks[event.track].append(event)
    return list(tracks.values())


def shares(times: Iterable[tuple[str, float]], kind: Callable[[str], str]) -> list[Share]:
    """Times in microseconds summed by name, largest first."""
    sums: dict[str, list[float]] = defaultdict(list)
    for name, duration in times:
        sums[name].append(duration)
    whole = sum(map(sum, sums.values())) or 1.0
    return [
        Share(
            name=name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 3] + "...",
            kind=kind(name),
            ms=sum(each) / 1000,
            percent=100 * sum(each) / whole,
            calls=len(each),
        )
        for name, each in sorted(sums.items(), key=lambda item: -sum(item[1]))
    ]


# After the measured tests: the same load once more for a short time, under the engine's own profiler.
#
# No test of LoadGen's: its speed is never measured, since the profiler slows the engine down.
SECONDS = 10.0  # of load under the profiler; it ends earlier after PROFILED_STEPS of `engines.vllm`
LONGEST_RAMP_S = 30.0  # of load before it
Load = Coroutine[Any, Any, object]


def run_profile(plan: Plan, session: LoadGenSession) -> Profile:
    """Profiles the engine and keeps what came of it, a failure too: the measured results stand in any case."""
    session.display.stage("profiling", "load")
    folder = session.folder.sub(FOLDER)
    measured = loadgen_log.read(session.folder.path / results.FOLDER["performance"])
    ramp = ramp_s(plan, measured, session.engine.concurrency)
    try:
        if plan.engine_state.prefix_caching:  # what the tests computed is not to serve the window
            session.measure(session.engine.reset_prefix_cache())
        session.measure(window(session.engine, load(plan, session), ramp))
        found = profile(folder)
    except BenchmarkError as error:
        found = Profile(failure=first_line(error))
    found = found.model_copy(update={"schema_version": schema.SCHEMA})
    files.write_json(folder / RESULT, found.model_dump(mode="json"))
    return found


def ramp_s(plan: Plan, measured: loadgen_log.TestResult, concurrency: int) -> float:
    """Seconds of load until the engine is as busy as in the middle of a test: about those that one answer takes.

    By Little's law, from the measured test: requests in flight over their rate.
    """
    in_flight = plan.config.batch_size or plan.pattern.kept_in_flight(plan, concurrency)
    if in_flight is None:
        return min(measured.latency_ms.mean / 1000, LONGEST_RAMP_S) if measured.latency_ms else 0.0
    return min(in_flight / measured.samples_per_sec, LONGEST_RAMP_S) if measured.samples_per_sec else 0.0


async def window(engine: Engine, work: Load, ramp: float) -> None:
    """Keeps the load up, turns the profiler on after the ramp and off after the window. Raises EngineError."""
    loading = asyncio.create_task(work)
    try:
        await still(loading, ramp)
        await engine.profile(True)
        await still(loading, SECONDS)
        await engine.profile(False)
    finally:
        loading.cancel()
        await asyncio.wait([loading])


async def still(loading: "asyncio.Task[object]", seconds: float) -> None:
    """Waits, unless the load fails. Raises EngineError."""
    done, _ = await asyncio.wait([loading], timeout=seconds)
    if done:
        error = loading.exception()
        first = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
        raise EngineError(f"the load ended: {first_line(first) if first else 'no samples'}")


def load(plan: Plan, session: LoadGenSession) -> Load:
    """The load of the scenario, without end, on the run's samples over and over."""
    engine, requests, pattern = session.engine, session.library.requests, plan.pattern
    if plan.config.sort_by_length:
        requests = sorted(requests, key=lambda request: len(request[0]), reverse=True)

    async def answer(prompt: Prompt) -> None:
        await patterns.ask(engine, prompt, pattern)

    return patterns.endless(plan, engine.concurrency).send(cycle(requests), answer)


# Profiles side by side.
ProfileValue = str | float | None
PROFILE_COLUMNS = (  # name, label, and the field of a profile
    ("profile_s", "profile: window, s", "seconds"),
    ("profile_active_s", "profile: a kernel ran, s", "active_s"),
    ("profile_idle_percent", "profile: idle, %", "idle_percent"),
    ("profile_kernel_ms", "profile: mean kernel, ms", "mean_kernel_ms"),
    ("profile_gaps", "profile: gaps", "gaps"),
    ("profile_gap_ms", "profile: mean gap, ms", "mean_gap_ms"),
)


def side_by_side(profiles: Sequence[Profile | None]) -> list[tuple[str, str, tuple[ProfileValue, ...]]]:
    """Name, label and each run's value, the kinds by what they take in the first profile; None where there is none."""
    found = [profile or Profile() for profile in profiles]
    kinds = dict.fromkeys(kind for profile in found for kind in profile.shares)
    return [
        ("profile_failure", "profile: failed", tuple(each.failure or None for each in found)),
        *((name, label, tuple(getattr(each, field) for each in found)) for name, label, field in PROFILE_COLUMNS),
        *(
            (
                f"profile_{kind.replace(' ', '_')}_percent",
                f"profile: {kind}, %",
                tuple(each.shares.get(kind, 0.0) if each.device else None for each in found),
            )
            for kind in kinds
        ),
    ]
