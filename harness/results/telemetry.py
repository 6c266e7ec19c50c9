"""machine.csv -> what the engine and the machine did during a test: means, maxima, and what ran out first."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from harness.core.data_tables import table_beside
from harness.core.formatting import Measured, joined_text, number
from harness.core.statements import Statement, StatementKind
from harness.loadgen.machine_use import Usage
from harness.loadgen.test_run import Recording
from harness.results.gpu_time import GpuTime

FULL_PERCENT = 98.0  # percent; blocks of tokens and one reading a second never show a full cache as 100 %
BUSY_PERCENT = 95.0
NOTICED_PERCENT = 1.0  # percent of the CPU that other programs take before a sentence mentions them
LOST_PERCENT = 3.0  # percent of the GPUs' time from which on a loss is named
WAITING_REQUESTS = 1.0  # requests that wait on average


class Quantity(NamedTuple):
    """A quantity of machine.csv, one number per second.

    A name that begins with gpu_ stands for the columns of all GPUs, which begin with gpu0_, gpu1_ and so on.
    """

    name: str
    label: str
    unit: str = ""
    total: bool = False  # whether it is the sum over the GPUs, else their mean
    digits: int = 3
    panel: str = ""  # the panel of the picture, with its unit
    places: Mapping[str, Sequence[str]] = {}  # the places, beside MLflow, that show its "mean" and its "max"

    @property
    def text(self) -> str:
        """The label with its unit."""
        return joined_text(", ", self.label, self.unit)

    def of(self, columns: Mapping[str, Sequence[Measured]]) -> list[Measured]:
        """Return the values of the quantity, one for each second, over all GPUs. A value is None if none was reported.

        `columns` are those of machine.csv, by name.
        """
        columns_of_quantity = [values for name, values in columns.items() if self.has_column(name)]
        return [self.value_of(readings) for readings in zip(*columns_of_quantity, strict=True)]

    def value_of(self, readings: Sequence[Measured]) -> Measured:
        """Return the value of one second from the readings of all GPUs: their sum for a total, else their mean.

        None if no GPU reported one.
        """
        known_readings = [value for value in readings if value is not None]
        if not known_readings:
            return None
        if self.total:
            return sum(known_readings)
        return sum(known_readings) / len(known_readings)

    def has_column(self, name: str) -> bool:
        """Tell whether a column of machine.csv belongs to this quantity, as gpu0_power_w does to gpu_power_w."""
        return re.sub(r"^gpu\d+_", "gpu_", name) == self.name


QUANTITIES = tuple(
    Quantity(
        row["name"],
        row["label"],
        row["unit"],
        bool(row["total"]),
        int(row["digits"] or 3),
        row["panel"],
        {how: row[how].split(";") if row[how] else () for how in ("mean", "max")},
    )
    for row in table_beside(__file__, "quantities.csv")
)
QUANTITY_BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}


Used = Mapping[str, Usage]  # usage by the name of a quantity


def usage_of(recording: Recording) -> dict[str, Usage]:
    """Return the mean and the maximum of each quantity in a machine.csv, by name. Means are weighted by time.

    A quantity without a reading is left out.
    """
    usage = {}
    for quantity in QUANTITIES:
        values, seconds, products = list[float](), list[float](), list[float]()
        # There are no values at all if machine.csv has no column of the quantity.
        for value, duration_s in zip(quantity.of(recording.columns), recording.durations, strict=False):
            if value is not None:
                values.append(value)
                seconds.append(duration_s)
                products.append(value * duration_s)
        if sum(seconds):
            usage[quantity.name] = Usage(mean=sum(products) / sum(seconds), max=max(values))
    return usage


def mean(used: Used, name: str) -> float:
    """Return the mean of a quantity in a test; 0 if it was not recorded."""
    if name not in used:
        return 0.0
    return used[name].mean


def highest(used: Used, name: str) -> float:
    """Return the maximum of a quantity in a test; 0 if it was not recorded."""
    if name not in used:
        return 0.0
    return used[name].max


def bound_statement(name: str, what: str, remedy: str) -> Statement:
    """Return a statement of what limited the speed and what would raise it."""
    return Statement(what, remedy, name, StatementKind.BOUND)


def full_room_statements(used: Used, concurrency: int | None) -> Iterator[Statement]:
    """Yield statements on what had no room left while requests waited: the KV cache, and the request slots.

    `concurrency` is the number of slots: the most requests that the engine computes at once; None if not known.
    """
    waited = mean(used, "requests_waiting")
    cache_percent = highest(used, "kv_cache_percent")
    has_waited = waited >= WAITING_REQUESTS
    has_preempted = highest(used, "preemptions") > 0
    if cache_percent >= FULL_PERCENT and (has_waited or has_preempted):
        what = f"the KV cache was full while {waited:,.0f} requests waited on average"
        if has_preempted:
            what += ", and requests were preempted"
        yield bound_statement("kv_cache", what, "--kv-cache-dtype fp8, a smaller model or more GPU memory makes room")
    if not concurrency or not has_waited:
        return
    if highest(used, "requests_running") >= concurrency:
        yield bound_statement(
            "slots",
            f"at times all {concurrency:,} request slots were in use; {waited:,.0f} requests waited on average, and at "
            f"least {100 - cache_percent:.0f} % of the KV cache was free",
            "a higher --max-num-seqs computes more at once",
        )


def share_of_rest(percent: float, others_percent: float) -> float:
    """Return how much of the CPU time left by other programs was in use, in percent; 0 if they left nothing.

    `percent` is the use by all programs, this one included. `others_percent` is the use by other programs, 0 if not
    known.
    """
    left_percent = 100 - others_percent
    if left_percent <= 0:
        return 0.0
    return 100 * max(0.0, percent - others_percent) / left_percent


def launch_remedy(args: Mapping[str, object]) -> str:
    """Return how to keep a GPU busier. `args` are the engine's arguments."""
    settings = dict(args)
    compilation = args.get("compilation_config")
    if isinstance(compilation, dict):
        settings = compilation | settings  # A setting that is an argument of its own counts more.
    # A step that is larger than the largest CUDA graph is launched kernel by kernel.
    match settings.get("max_cudagraph_capture_size"), settings.get("max_num_batched_tokens"):
        case int(largest_graph), int(largest_step) if largest_step > largest_graph:
            return (
                f"steps of up to {largest_step:,} tokens are larger than the largest CUDA graph ({largest_graph:,}): "
                f"--engine-arg max_cudagraph_capture_size={largest_step}"
            )
    return (
        "the CPU does not launch its work fast enough (--profile shows the gaps; larger CUDA graphs, fewer and larger "
        "steps)"
    )


# Shares of the GPUs' time that are losses: a loss in words, and its remedy. Without a remedy it is that of
# `launch_remedy`.
LOSSES = {
    "idle": ("the GPU was idle {} % of its time, and nothing waited", ""),
    "idle_while_waiting": ("the GPU was idle {} % of its time while requests waited", ""),
    "held_by_power": (
        "clock lowered by power, {} % of the GPU's time",
        "what is left is work that costs less energy: fewer bits, other kernels, or a higher limit",
    ),
    "held_by_heat": ("clock lowered by heat, {} % of the GPU's time", "see to its cooling"),
}


def ran_out(
    used: Used,
    concurrency: int | None,
    times: Sequence[GpuTime],
    args: Mapping[str, object],
    client: bool,
    others_percent: float,
) -> Iterator[Statement]:
    """Yield statements on what limited the speed, and then on what else was used up.

    `concurrency` is the number of request slots. `times` has the shares of GPU time of each probe, each attempt and,
    last, this test. `args` are the engine's arguments. `client` tells that the engine is behind an endpoint. Other
    programs used `others_percent` of the CPU.
    """
    loss_statements, busy_statements = losses(times, args), list(busy_parts(used, client, others_percent))
    is_clock_lowered = any(statement.name in ("held_by_power", "held_by_heat") for statement in loss_statements)
    full_statements = list(full_room_statements(used, concurrency))  # no slot or cache is free for more requests
    # Their remedy is room for more requests. It does not help a GPU or CPU that is busy, or a GPU whose clock is low.
    if full_statements and (busy_statements or is_clock_lowered):
        full_statements = [joined_without_remedy(full_statements)]
    if loss_statements:  # Time that a GPU lost was the limit, even if the GPU or the CPU was busy as well.
        ordered = [*loss_statements, *full_statements, *busy_statements]
    else:
        ordered = [*busy_statements, *full_statements]
    yield from with_each_remedy_once(ordered)


def with_each_remedy_once(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield the statements, each remedy only with the first statement that has it."""
    given_remedies = set[str]()
    for statement in statements:
        if statement.remedy in given_remedies:
            yield replace(statement, remedy="")
        else:
            yield statement
        given_remedies.add(statement.remedy)


def joined_without_remedy(full: Sequence[Statement]) -> Statement:
    """Join the statements of `full_room_statements` into one without a remedy. It says that more room would not help.

    `full` has one statement, or two: on the KV cache, then on the slots.
    """
    first, *further = full
    if further:
        what = (
            f"{first.what}; at times all request slots were in use as well; more of either would not help, as the "
            "bottleneck is another"
        )
    else:
        more = "more slots" if first.name == "slots" else "a larger cache"
        what = f"{first.what}; {more} would not help, as the bottleneck is another"
    return replace(first, what=what, remedy="")


def losses(times: Sequence[GpuTime], args: Mapping[str, object]) -> list[Statement]:
    """Return what the GPUs lost during the test, largest share first; empty if it was not recorded.

    `times` are shares of GPU time, the test's own last. Shares below LOST_PERCENT are left out. `args` are the engine's
    arguments.
    """
    if not times:
        return []
    shares = {name: getattr(times[-1], name) or 0.0 for name in LOSSES}
    statements = []
    for name, share in sorted(shares.items(), key=share_and_name, reverse=True):
        if share >= LOST_PERCENT:
            text, own_remedy = LOSSES[name]
            remedy = own_remedy or launch_remedy(args)
            statements.append(bound_statement(name, text.format(number(share, 3)), remedy))
    return statements


def share_and_name(item: tuple[str, float]) -> tuple[float, str]:
    """Return the sort key of a loss: its share, then its name, so that equal shares have a fixed order."""
    name, share = item
    return share, name


def busy_parts(used: Used, client: bool, others_percent: float) -> Iterator[Statement]:
    """Yield a statement for the GPU and one for the CPU, each if it was busy nearly all of the time.

    `client` tells that the engine is behind an endpoint, so that the CPU is the client's. Other programs used
    `others_percent` of the CPU.
    """
    gpu_percent = mean(used, "gpu_load_percent")
    if gpu_percent >= BUSY_PERCENT:
        yield bound_statement("busy", f"the GPU was busy {number(gpu_percent, 3)} % of the time", remedy="")
    cpu_percent = share_of_rest(mean(used, "cpu_percent"), others_percent)
    if cpu_percent >= BUSY_PERCENT:
        name = "CPU"
        warning = ""
        if client:
            name = "CPU of this machine, the client's,"
            warning = "times may be the client's own"
        time = "the time"
        if others_percent >= NOTICED_PERCENT:
            time = "the time that other programs left free"
        # A statement shows its remedy after a colon. There is none here, so the warning takes that place.
        yield bound_statement("busy", f"the {name} was busy {number(cpu_percent, 3)} % of {time}", remedy=warning)


def without_more_load(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield the statements, but a statement on full slots without its advice to use more slots.

    For a test with latencies over their limits: more slots would make these latencies even longer.
    """
    for statement in statements:
        if statement.name == "slots":
            yield replace(statement, remedy="")
        else:
            yield statement
