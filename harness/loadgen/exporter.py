"""GPUs behind an endpoint, as an NVIDIA DCGM exporter publishes their readings."""

import asyncio
from collections.abc import Iterator, Sequence

from aiohttp import ClientSession

from harness.config.server_addresses import exporter
from harness.core.errors import BenchmarkError, UsageError
from harness.core.message_text import first_line
from harness.engines import discovery, server_metrics
from harness.loadgen.gpu_readings import GPUs

# GPUs behind an endpoint, as an NVIDIA DCGM exporter tells of them (its etc/default-counters.csv has the names).
LARGEST_READING = 1e6  # of any of its quantities
DCGM_COLUMNS = {  # of machine.csv, in its units but for the memory's, MiB
    "DCGM_FI_DEV_GPU_UTIL": "load_percent",
    "DCGM_FI_DEV_FB_USED": "memory_gib",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_SM_CLOCK": "clock_mhz",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "memory_load_percent",
    "DCGM_FI_DEV_MEM_CLOCK": "memory_clock_mhz",
    "DCGM_FI_DEV_MEMORY_TEMP": "memory_temperature_c",
}
INSTANCES = ("GPU_I_ID", "GPU_I_PROFILE")  # parts of one GPU (MIG), whose memory is theirs alone


def read(urls: Sequence[str]) -> tuple[GPUs, list[str]]:
    """What the pages tell of the GPUs that the addresses name, and the GPUs' models. Raises UsageError for a page that
    is none, or lacks one of them.
    """
    found: GPUs = {}
    models = {}
    for url in urls:
        address, gpus, host = exporter(url)
        seen = set[str]()
        for labels, column, value in samples(address):
            gpu, at = labels.get("gpu", ""), labels.get("Hostname", "")
            if gpu in (gpus or [gpu]) and at == (host or at):
                name = f"{address} {at} {gpu}"
                found.setdefault(name, {})[column] = value
                models[name] = labels.get("modelName", "unknown")
                seen.add(gpu)
        if not seen or set(gpus) - seen:
            wanted = f"GPU {', '.join(sorted(set(gpus) - seen))}" if gpus else f"GPU of host {host}"
            raise UsageError(f"--telemetry-url {address} reports no {wanted}: is it a DCGM exporter's page?")
    return found, [models[name] for name in sorted(found)]


def readings(urls: Sequence[str]) -> tuple[GPUs, list[str]]:
    """The same during a test: nothing where it fails, which is a gap."""
    try:
        return read(urls)
    except UsageError:
        return {}, []


async def page(address: str) -> str:
    """An exporter's page, asked for without what a server is sent. Raises EndpointError."""
    async with ClientSession() as session:
        return await discovery.read_page(address, session)


def samples(address: str) -> Iterator[tuple[dict[str, str], str, float]]:
    """Labels, column and value of each GPU's quantities, those that none can have left out. Raises UsageError where
    there is no such page in time.
    """
    try:
        text = asyncio.run(page(address))
        for name, labels, values in server_metrics.fold(server_metrics.parse(text, DCGM_COLUMNS), INSTANCES):
            column = DCGM_COLUMNS[name]
            value = sum(values) / 1024 if column == "memory_gib" else max(values)
            if 0 <= value < LARGEST_READING:
                yield labels, column, value
    except (BenchmarkError, OSError, ValueError) as error:
        raise UsageError(f"--telemetry-url {address}: not an exporter's page: {first_line(error)}.") from None
