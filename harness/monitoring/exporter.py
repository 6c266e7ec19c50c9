"""GPUs behind an endpoint, as an NVIDIA DCGM exporter tells of them (its etc/default-counters.csv has the names)."""

import urllib.request
from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.common.errors import UsageError
from harness.config.endpoint import exporter
from harness.engines import prometheus
from harness.monitoring.recorder import Recording

PAGE_S, MOST_BYTES = 1.0, 2**24
LONGEST_GAP_S = 5.0  # between two readings, over which no energy is summed
COLUMNS = {  # of machine.csv, and what of its unit a unit of the exporter's is
    "DCGM_FI_DEV_GPU_UTIL": ("load_percent", 1.0),
    "DCGM_FI_DEV_FB_USED": ("memory_gib", 1 / 1024),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_SM_CLOCK": ("clock_mhz", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("memory_load_percent", 1.0),
    "DCGM_FI_DEV_MEM_CLOCK": ("memory_clock_mhz", 1.0),
    "DCGM_FI_DEV_MEMORY_TEMP": ("memory_temperature_c", 1.0),
}
GPUs = dict[str, dict[str, float]]  # by page and GPU: its values, by column


def read(urls: Sequence[str]) -> tuple[GPUs, list[str]]:
    """What the pages tell of the GPUs that the addresses name, and the GPUs' models. Raises UsageError for a page that
    is none, or lacks one of them."""
    found: GPUs = {}
    models: dict[str, str] = {}
    for url in urls:
        address, gpus, host = exporter(url)
        seen = set()
        for labels, column, value in samples(address):
            gpu, at = labels.get("gpu", ""), labels.get("Hostname", "")
            if gpu in (gpus or [gpu]) and at == (host or at):
                name = f"{address} {at} {gpu}"
                found.setdefault(name, {})[column] = value
                models[name] = labels.get("modelName", "unknown")
                seen.add(gpu)
        if missing := (set(gpus) or {"any"}) - seen - ({"any"} if seen else set()):
            wanted = f"GPU {', '.join(sorted(missing))}" if gpus else f"GPU of host {host}"
            raise UsageError(f"--telemetry-url {address} reports no {wanted}: is it a DCGM exporter's page?")
    return found, [models[name] for name in sorted(found)]


def readings(urls: Sequence[str]) -> tuple[GPUs, list[str]]:
    """The same during a test: nothing where it fails, which is a gap."""
    try:
        return read(urls)
    except UsageError:
        return {}, []


def samples(address: str) -> Iterator[tuple[dict[str, str], str, float]]:
    """Labels, column and value of each sample. Raises UsageError where there is no such page."""
    try:
        with urllib.request.urlopen(address, timeout=PAGE_S) as page:
            text = page.read(MOST_BYTES).decode()
        for sample in prometheus.parse(text, COLUMNS):
            column, scale = COLUMNS[sample.name]
            yield sample.labels, column, scale * sample.value
    except (OSError, ValueError) as error:
        raise UsageError(f"--telemetry-url {address}: not an exporter's page: {error}.") from None


def joules(recording: Recording) -> float | None:
    """The energy of all GPUs by their power at each reading; None where one of them reported nothing for a while."""
    total = 0.0
    for gpu in recording.gpus:
        powers = zip(recording.seconds, recording.column(f"{gpu}_power_w"), strict=True)
        readings = [(second, power) for second, power in powers if power is not None]
        if not readings:
            return None
        readings = [(0.0, readings[0][1]), *readings, (recording.seconds[-1], readings[-1][1])]
        if any(now - then > LONGEST_GAP_S for (then, _), (now, _) in pairwise(readings)):
            return None
        total += sum((now - then) * (power + before) / 2 for (then, before), (now, power) in pairwise(readings))
    return total if recording.gpus else None
