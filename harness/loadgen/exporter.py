"""GPUs behind an endpoint, as an NVIDIA DCGM exporter publishes their readings."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from aiohttp import ClientSession

from harness.config.server_addresses import ExporterAddress, parse_exporter_address
from harness.core.errors import BenchmarkError, UsageError
from harness.core.formatting import plural
from harness.core.message_text import first_line
from harness.engines import discovery, server_metrics
from harness.loadgen.gpu_readings import GPUs
from harness.loadgen.test_run import Recording

# The names of an NVIDIA DCGM exporter's fields are in its etc/default-counters.csv.
LARGEST_READING = 1e6  # no quantity has a larger value
DCGM_COLUMNS = {  # columns of machine.csv by field, in the same units except for the memory, which DCGM gives in MiB
    "DCGM_FI_DEV_GPU_UTIL": "load_percent",
    "DCGM_FI_DEV_FB_USED": "memory_gib",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_SM_CLOCK": "clock_mhz",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "memory_load_percent",
    "DCGM_FI_DEV_MEM_CLOCK": "memory_clock_mhz",
    "DCGM_FI_DEV_MEMORY_TEMP": "memory_temperature_c",
}
# The share of the time in which a part of a split GPU computed. DCGM's GPU_UTIL is always 0 for such a part.
ENGINE_ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
INSTANCES = ("GPU_I_ID", "GPU_I_PROFILE")  # labels of the parts of a split GPU (MIG), whose memory is theirs alone
# A split GPU does not report these values, or reports those of the whole card, on which others may compute.
WHOLE_CARD_COLUMNS = ("load_percent", "memory_load_percent", "power_w")


class ExporterReading(NamedTuple):
    """A reading of the exporters of a server's GPUs: their values, models, and which of them are split into parts
    (MIG).
    """

    gpus: GPUs
    models: list[str]
    split: list[str]


class GpuSample(NamedTuple):
    """One value of a GPU on an exporter's page."""

    gpu: str
    host: str
    model: str
    column: str
    value: float
    is_split: bool  # the GPU is split into parts (MIG)


def exporter_reading(urls: Sequence[str]) -> ExporterReading:
    """Return what the DCGM exporters at `urls`, the addresses of --telemetry-url, report about the GPUs of the server.

    Raises UsageError as `samples_of_server` does.
    """
    values: GPUs = {}
    models, split = {}, set[str]()
    for url in urls:
        address = parse_exporter_address(url)
        for sample in samples_of_server(address):
            name = f"{address.page} {sample.host} {sample.gpu}"  # GPUs of two hosts may have the same number.
            values.setdefault(name, {})[sample.column] = sample.value
            models[name] = sample.model
            if sample.is_split:
                split.add(name)
    names = sorted(values)
    return ExporterReading(values, [models[name] for name in names], sorted(split))


def samples_of_server(address: ExporterAddress) -> list[GpuSample]:
    """Return the values on an exporter's page that are of the server's GPUs: those that the address names, by number or
    by host.

    Raises UsageError if the page is no exporter's page, lacks a named GPU, or has no GPU of the named host.
    """
    samples = list[GpuSample]()
    for sample in gpu_samples(address.page):
        is_other_gpu = address.gpus and sample.gpu not in address.gpus
        is_on_other_host = address.host and sample.host != address.host
        if not is_other_gpu and not is_on_other_host:
            samples.append(sample)
    missing = sorted(set(address.gpus) - {sample.gpu for sample in samples})
    if missing:
        raise UsageError(f"--telemetry-url {address.page} reports no GPU {', '.join(missing)}.")
    if not samples:  # No GPU is named, so the host was the condition that left all out.
        raise UsageError(f"--telemetry-url {address.page} reports no GPU of host {address.host}.")
    return samples


def reading_or_empty(urls: Sequence[str]) -> ExporterReading:
    """Return a reading of the exporters during a test, empty if it fails.

    The addresses were checked before the test, so that a failure is only a gap in the recording.
    """
    try:
        return exporter_reading(urls)
    except UsageError:
        return ExporterReading({}, [], [])


def remote_gpus(urls: Sequence[str]) -> GPUs:
    """Return the values of the exporters' GPUs, by GPU and column of machine.csv. Empty if they cannot be read now."""
    return reading_or_empty(urls).gpus


def gap_notes(exported: ExporterReading, recording: Recording) -> Iterator[str]:
    """Yield at most one note on what the exporters did not report during a test.

    `exported` is the reading before the test, `recording` has the readings during the test.
    """
    if exported.split:
        count = f"{len(exported.split):,} of {len(exported.gpus):,} GPUs"
        yield (f"--telemetry-url: {count} are split (MIG): their power is the whole card's, so energy is not recorded")
    elif recording.missing:
        count = f"{recording.missing:,} of {plural(len(recording.seconds), 'reading')}"
        yield f"--telemetry-url: no values in {count}"


async def exporter_page(address: str) -> str:
    """Return the text of an exporter's page. Raises EndpointError.

    The session is new, so that the key and the headers of the endpoint's session are not sent to the exporter.
    """
    async with ClientSession() as session:
        return await discovery.read_page(address, session)


def gpu_samples(address: str) -> Iterator[GpuSample]:
    """Yield each value of each GPU on an exporter's page, for the columns of machine.csv.

    Values that no GPU can have are left out. Raises UsageError if the page does not come, or has no field of DCGM's.
    """
    try:
        text = asyncio.run(exporter_page(address))
    except (BenchmarkError, OSError, ValueError) as error:
        raise UsageError(f"--telemetry-url {address}: not an exporter's page: {first_line(error)}.") from None
    rows = server_metrics.parse_rows(text, {*DCGM_COLUMNS, ENGINE_ACTIVE})
    if not rows:
        raise UsageError(f"--telemetry-url {address}: not an exporter's page: no field of DCGM's is on it.")
    split = {card_of(row.labels) for row in rows if is_of_part(row.labels)}  # the GPUs that are split into parts
    for name, labels, values in server_metrics.row_groups(rows, INSTANCES):  # The parts of a split GPU become one row.
        gpu, host = card_of(labels)
        is_split = (gpu, host) in split
        column, value = column_of(name, values, is_split)
        if column and 0 <= value < LARGEST_READING:
            yield GpuSample(gpu, host, labels.get("modelName", "unknown"), column, value, is_split)


def is_of_part(labels: Mapping[str, str]) -> bool:
    """Return whether a row belongs to a part of a split GPU (MIG)."""
    return any(labels.get(label) for label in INSTANCES)


def card_of(labels: Mapping[str, str]) -> tuple[str, str]:
    """Return the number and the host name of the GPU that a row belongs to, each empty if the row has no such label."""
    return labels.get("gpu", ""), labels.get("Hostname", "")


def column_of(name: str, values: Sequence[float], is_split: bool) -> tuple[str, float]:
    """Return the column of machine.csv for a DCGM field (`name`), and a GPU's value for it.

    `values` has one value for a whole GPU, and one for each part of a split GPU (MIG). The column's name is "" if the
    field is not to be recorded.
    """
    if name == ENGINE_ACTIVE:  # The load of a split GPU, from 0 to 1. A whole GPU reports its load in another field.
        column = "load_percent" if is_split else ""
        return column, 100 * max(values)
    column = DCGM_COLUMNS[name]
    if is_split and column in WHOLE_CARD_COLUMNS:  # The value is the whole card's, on which others may compute.
        return "", 0.0
    if column == "memory_gib":
        memory_mib = sum(values)  # The parts of a split GPU each have memory of their own.
        return column, memory_mib / 1024
    return column, max(values)  # The parts share such a value, or the busiest part stands for the GPU.
