"""Traces of torch's profiler (Chrome's format) -> kernel time by kind, and how long the GPUs were idle.

On a GPU what counts is its kernels; on a CPU the operators' self time, which is without that of operators they call.
"""

import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, groupby, pairwise
from operator import attrgetter
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal, NamedTuple

from harness.core import reading, schema
from harness.core.errors import UsageError
from harness.core.formatting import Measured, number
from harness.core.message_text import first_line

PROFILE_FOLDER, PROFILE_FILE = "Profile", "profile.json"  # in the run folder, in that folder
PATTERN = "*.pt.trace.json*"  # torch's names of trace files
LARGEST_KERNELS = 10  # rows of the table of single kernels
NAME_LENGTH = 100  # characters; names of templates run to thousands
OTHER = "other"
SLOW_PERCENT, SLOW_MEMORY_PERCENT = 2, 100 / 3  # A slow kernel takes more GPU time and reaches less memory speed.
# The first row whose pattern is found in the name of a kernel or operator gives its kind. The name of a kernel that
# Inductor fused may also contain a neighbor's name, such as a matrix product, so fused kernels come first.
# `flashinfer::` has kernels of every kind. Attention stands before matrix products because FlashAttention is built on
# CUTLASS. Normalization stands before quantization because fused kernels do both.
FUSED = r"^(?:triton_(?:red|per|poi)|cpp)_fused\w*"
NORMALIZES = r"(?:norm|rsqrt|silu|swiglu|gelu|sigmoid|act_and_mul|relu|tanh)"
KERNEL_KINDS = (
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
EVENT_CATEGORIES = {"GPU": "kernel", "CPU": "cpu_op"}  # categories of the events that count
ANNOTATION = "user_annotation"  # the category of steps
# Patterns of the counts in vLLM's names of steps (`detailed_trace_annotation`), by the field for their mean. Steps with
# a count of 0 are left out of the mean.
STEP_COUNTS = {
    "tokens_per_step": r"execute_([1-9]\d*)_context",
    "read_per_step": r"generation_\d+\(sq\d+sk([1-9]\d*)",
}
STEP_NAME = "execute_"  # how vLLM's names of steps begin
LONG_GAP_US = 1000.0  # A launch takes less; in a longer gap the engine or the machine held the GPU up.
Device = Literal["GPU", "CPU"]


class Event(NamedTuple):
    """One piece of work; `track` is the GPU, or the thread, that did it. Microseconds."""

    name: str
    track: str
    start: float
    duration: float

    @property
    def end(self) -> float:
        return self.start + self.duration


class Share(schema.FrozenModel):
    """Time of one kind of kernels or operators, or of all with one name; over all GPUs."""

    name: str
    kind: str
    ms: float
    percent: float
    """Percent of the time of all kernels or operators."""
    calls: int
    operation: str = ""
    """The operation whose bytes follow from the model's shape. The fields below are null if bytes, tokens or the
    GPU's memory are not known."""
    bytes_per_token: int | None = None
    """Bytes read and written for each layer and computed token; attention of decode: for each token that it reads."""
    tb_per_s: Measured = None
    """Bytes moved a second by one GPU, in 10^12."""
    memory_percent: Measured = None
    """`tb_per_s` in percent of the memory's speed."""


class Profile(schema.File):
    """profile.json: what the engine's time went to in a window of load after the measured test."""

    failure: str = ""
    """Why there is no profile, in one line."""
    device: Device | None = None
    seconds: Measured = None
    """From the beginning of the first kernel or operator to the end of the last; the longest of the traces."""
    idle_percent: Measured = None
    """Percent of the window in which no kernel ran. The mean over GPUs; null on a CPU."""
    active_s: Measured = None
    """Seconds in which some kernel ran; the mean over GPUs."""
    mean_kernel_ms: Measured = None
    gaps: int | None = None
    """Times in which no kernel ran, over all GPUs."""
    mean_gap_ms: Measured = None
    longest_gap_ms: Measured = None
    """The longest gap of any GPU: a mean hides one gap that is a large part of the window."""
    long_gaps_ms: Measured = None
    """The gaps of more than 1 ms together; the mean over GPUs."""
    steps: int | None = None
    """Steps of the engine in the window, by the worker with the most; null if the trace does not tell."""
    step_spacing_ms: Measured = None
    """From the beginning of a step to that of the next: the median over the steps of all workers."""
    kinds: list[Share] = []
    """Largest first."""
    largest: list[Share] = []
    tokens_per_step: Measured = None
    """Tokens computed in a step, on average; null if the trace does not tell."""
    read_per_step: Measured = None
    """Tokens whose keys and values a step reads: all tokens so far of the requests that generate. The mean over steps
    that have such requests."""
    memory_tb_per_s: Measured = None
    """Memory speed of a GPU by its data sheet; null for a GPU without one."""
    traces: list[str] = []
    """Relative to the run folder."""

    @property
    def shares(self) -> dict[str, float]:
        """Percent of the time by kind of kernel."""
        return {share.name: share.percent for share in self.kinds}

    @property
    def slow(self) -> list[str]:
        """A text for each kernel that takes more than SLOW_PERCENT of the time and moves its bytes slowly.

        Slowly means with less than SLOW_MEMORY_PERCENT of the memory's speed.
        """
        texts = []
        for share in self.largest:
            if not share.memory_percent:  # The bytes that this kernel moves are not known.
                continue
            if share.percent > SLOW_PERCENT and share.memory_percent < SLOW_MEMORY_PERCENT:
                speed = f"{number(share.tb_per_s, 2)} of {number(self.memory_tb_per_s)} TB/s"
                texts.append(f"{share.operation}: {number(share.percent, 3)} % of GPU time at {speed}")
        return texts

    @property
    def headline(self) -> str:
        """The profile in a line: the three kinds of kernels with the most time, the idle time, and the slow kernels.

        If the profiler failed, the line says why.
        """
        if self.failure:
            return f"failed, the measured results stand: {self.failure}"
        largest = [f"{share.name} {share.percent:.0f} %" for share in self.kinds[:3]]
        texts = [", ".join(largest)]
        if self.idle_percent is not None:
            texts.append(f"GPU idle {self.idle_percent:.0f} %")
        return "; ".join([*texts, *self.slow])


def profile_of(folder: Path) -> Profile:
    """Return one profile of all traces in a folder. Each worker of the engine leaves a trace.

    Raises UsageError if there is no trace, a trace is cut, or none has a kernel or an operator.
    """
    paths = sorted(folder.glob(PATTERN))
    if not paths:
        raise UsageError(f"{folder}: the profiler left no trace there; engine.log may say why.")
    traces = [read_trace(path) for path in paths]
    device: Device = "GPU" if any("kernel" in trace for trace in traces) else "CPU"
    category = EVENT_CATEGORIES[device]  # of kernels or of operators
    events_of_workers = [trace[category] for trace in traces if category in trace]
    if not events_of_workers:
        raise UsageError(f"{folder}: no kernel and no operator in the traces.")
    events = [*chain(*events_of_workers)]
    if device == "GPU":
        times = [(event.name, event.duration) for event in events]
        activity = gpu_activity(events)
    else:
        times = [*self_times(events)]  # An operator may call others, whose time is not its own.
        activity = {}  # The fields on when the device was idle stay empty, since operators do not show that.
    steps, step_spacing_ms = step_figures([trace.get(ANNOTATION, []) for trace in traces])
    return Profile(
        device=device,
        seconds=max(map(span_of, events_of_workers)) / 1e6,
        kinds=shares_of_time(times, by="kind"),
        largest=shares_of_time(times, by="name")[:LARGEST_KERNELS],
        traces=[f"{folder.name}/{path.name}" for path in paths],
        **activity,
        **mean_counts(traces),
        steps=steps,
        step_spacing_ms=step_spacing_ms,
    )


def span_of(events: Sequence[Event]) -> float:
    """Return the microseconds from the beginning of the first event to the end of the last."""
    return max(event.end for event in events) - min(event.start for event in events)


def mean_counts(traces: Sequence[Mapping[str, Sequence[Event]]]) -> dict[str, Any]:
    """Return the profile's mean token counts of a step, which vLLM writes into the names of its steps.

    `traces` has the events of each worker, by category. A field without any count is left out.
    """
    names = []
    for trace in traces:
        names += [event.name for event in trace.get(ANNOTATION, ())]
    text = " ".join(names)
    means = {}
    for field, pattern in STEP_COUNTS.items():
        counts = re.findall(pattern, text)
        if counts:
            means[field] = mean(map(int, counts))
    return means


def gpu_activity(events: Sequence[Event]) -> dict[str, Any]:
    """Return the fields of Profile on how long the GPUs computed and how long they were idle.

    `events` are the kernels of all GPUs. Times are means over the GPUs; gaps are those of all GPUs together, and None
    if there are none.
    """
    all_gaps = list[float]()
    long_gaps_us, idle_shares, active_us = list[float](), list[float](), list[float]()  # a number for each GPU
    for span, gaps in spans_and_gaps(events):
        all_gaps += gaps
        # In a gap longer than LONG_GAP_US, the GPU waited for more than the launch of its next kernel.
        long_gaps_us.append(sum(gap for gap in gaps if gap > LONG_GAP_US))
        idle_shares.append(sum(gaps) / (span or 1))  # A span of 0 has no gaps.
        active_us.append(span - sum(gaps))
    return dict(
        idle_percent=100 * mean(idle_shares),
        active_s=mean(active_us) / 1e6,
        mean_kernel_ms=mean(event.duration for event in events) / 1000,
        gaps=len(all_gaps),
        mean_gap_ms=mean(all_gaps) / 1000 if all_gaps else None,
        longest_gap_ms=max(all_gaps) / 1000 if all_gaps else None,
        long_gaps_ms=mean(long_gaps_us) / 1000,
    )


def step_figures(annotations: Sequence[Sequence[Event]]) -> tuple[int | None, float | None]:
    """Return the most steps of any worker, and the median time between two steps of all workers in milliseconds.

    `annotations` has the annotated events of each worker. Either figure is None if no trace shows it.
    """
    counts = []
    spacings_us = []
    for events in annotations:
        starts_by_thread: dict[str, list[float]] = defaultdict(list)
        for event in events:
            if event.name.startswith(STEP_NAME):
                starts_by_thread[event.track].append(event.start)
        if not starts_by_thread:  # This worker recorded no step.
            continue
        # Several threads of a worker may record the same steps, so only the thread with the most steps counts.
        count, starts_of_thread = max((len(starts), starts) for starts in starts_by_thread.values())
        starts = sorted(starts_of_thread)
        counts.append(count)
        spacings_us += [after - before for before, after in pairwise(starts)]
    spacing_ms = None
    if spacings_us:
        spacing_ms = median(spacings_us) / 1000
    return max(counts, default=None), spacing_ms


def read_trace(path: Path) -> dict[str, list[Event]]:
    """Read the kernels, operators and annotations of a trace file, gzipped or not, by category.

    Other events are left out. Raises UsageError if the file is cut or is no trace.
    """
    try:
        content = reading.read_bytes(path)
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        data = json.loads(content.decode(errors="replace"), strict=False)  # Names may have control characters.
        events: dict[str, list[Event]] = defaultdict(list)
        for entry in data["traceEvents"]:
            category = entry.get("cat")
            is_complete = entry.get("ph") == "X"  # Chrome's format: an event with a start and a duration
            if is_complete and category in (*EVENT_CATEGORIES.values(), ANNOTATION):
                times = float(entry["ts"]), float(entry["dur"])
                events[category].append(Event(str(entry["name"]), f"{path} {track_of(entry)}", *times))
        return events
    except (OSError, zlib.error, *reading.DAMAGED) as error:
        raise UsageError(f"{path}: not a whole trace: {first_line(error)}.") from None


def track_of(entry: Mapping[str, Any]) -> object:
    """Return what did the work of a trace entry: the GPU of a kernel, or the process and thread of an operator.

    A kernel's thread in the trace is a stream. Streams of a GPU run at the same time, so they are one track.
    """
    if entry.get("cat") == "kernel":
        return entry.get("args", {}).get("device", 0)
    return entry.get("pid"), entry.get("tid")


@cache
def kind_of(name: str) -> str:
    """Return the kind of a kernel or operator by its name: that of the first matching row of KERNEL_KINDS, or OTHER."""
    for kind, pattern in KERNEL_KINDS:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return OTHER


def self_times(events: Iterable[Event]) -> Iterator[tuple[str, float]]:
    """Yield the name of each operator and its own time in microseconds, without the operators that it called."""
    for track in group_by_track(events):
        # The events are in the order of their begin, an operator before those that it called.
        times = [event.duration for event in track]
        open_places = list[int]()  # places of the operators that have begun and not ended, a caller before a called one
        for place, event in enumerate(track):
            while open_places and track[open_places[-1]].end <= event.start:
                open_places.pop()
            if open_places:
                caller = open_places[-1]
                times[caller] -= event.duration
            open_places.append(place)
        for event, time in zip(track, times, strict=True):
            # Rounded, the operators that it called can seem to take longer than the operator itself.
            yield event.name, max(0.0, time)


def spans_and_gaps(events: Iterable[Event]) -> Iterator[tuple[float, list[float]]]:
    """Yield for each GPU the time from its first kernel to the end of its last, and each gap without a kernel.

    All times are in microseconds. Kernels of one GPU may overlap.
    """
    for track in group_by_track(events):
        latest_end = track[0].start
        gaps = list[float]()
        for event in track:
            if event.start > latest_end:
                gaps.append(event.start - latest_end)
            latest_end = max(latest_end, event.end)
        yield latest_end - track[0].start, gaps


def group_by_track(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Yield the events of each GPU or thread in order of their start. An operator comes before those that it calls."""

    def place(event: Event) -> tuple[str, float, float]:
        # Of events that start together, the longer one is the caller.
        return event.track, event.start, -event.duration

    for _name, track in groupby(sorted(events, key=place), key=attrgetter("track")):
        yield list(track)


def shares_of_time(times: Iterable[tuple[str, float]], by: Literal["kind", "name"]) -> list[Share]:
    """Return the shares of the time that kernels or operators took, added up by their kind or name, the largest first.

    `times` are pairs of a kernel's or operator's name and microseconds.
    """
    durations_by_group: dict[str, list[float]] = defaultdict(list)
    for name, duration in times:
        group = kind_of(name) if by == "kind" else name
        durations_by_group[group].append(duration)
    sums = {group: sum(durations) for group, durations in durations_by_group.items()}
    total = sum(sums.values()) or 1.0  # With times of 0 alone, each share is 0.
    shares = []
    for group in sorted(sums, key=sums.__getitem__, reverse=True):
        share = Share(
            name=group[:NAME_LENGTH],
            kind=group if by == "kind" else kind_of(group),
            ms=sums[group] / 1000,
            percent=100 * sums[group] / total,
            calls=len(durations_by_group[group]),
        )
        shares.append(share)
    return shares
