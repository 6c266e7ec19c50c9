"""How much of a matrix product's speed and energy is its data: the products of a Llama-3.1-8B layer on one GPU.

    python -m benchmarks.weight_data TILES.safetensors OUT.json [--seconds 3]

TILES is what `python -m benchmarks.trained_tiles` wrote. Each case runs the four products of a layer in turn, with
one kind of weights and one of activations, and is judged by what follows the first 40 % of its time, so that clocks
have settled. Weights: `zero`; `dummy`, uniform within 0.001 as vLLM's `--load-format dummy` draws them; `random`,
N(0, 0.02) as `benchmarks.random_llama` draws them; `trained`, repeated tiles. Activations: `Gaussian` and `recorded`.
In fp8 trained and random weights and all activations have static scales, one a tensor; products accumulate fast.
Writes OUT.json and prints a table. Needs torch with CUDA; clock and energy need nvidia-ml-py. Two minutes.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch

SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
FORMATS = ("fp8", "bf16")
ROWS = (8192, 2048)
WEIGHTS = ("zero", "dummy", "random", "trained")
ACTIVATIONS = ("Gaussian", "recorded")
BASE = ("random", "Gaussian")
FP8_MOST = 448.0  # the largest number of float8_e4m3fn
SETTLING = 0.4  # of a case's time
BATCH_S = 0.05  # of products, between two looks at the time
SAMPLE_S = 0.02  # between two readings of the clock


@dataclass(frozen=True)
class Case:
    """One measurement. Without a GPU, or without its driver's library, clock and energy are None."""

    format: str
    rows: int
    weights: str
    activations: str
    tflops: float  # per second, of the four products together
    tflops_by_product: Mapping[str, float]
    sm_mhz: float | None
    watts: float | None
    joules_per_tflop: float | None
    celsius: float | None


def weight(kind: str, name: str, tiles: Mapping[str, Any], shape: tuple[int, int], device: str) -> Any:
    """A weight in bf16, before any scale."""
    if kind == "zero":
        return torch.zeros(shape, dtype=torch.bfloat16, device=device)
    if kind == "dummy":
        return torch.empty(shape, dtype=torch.float16, device=device).uniform_(-1e-3, 1e-3).to(torch.bfloat16)
    if kind == "random":
        return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0.0, 0.02)
    return repeated(tiles[f"{name}.weights"].to(device), shape)


def activation(kind: str, name: str, tiles: Mapping[str, Any], shape: tuple[int, int], device: str) -> Any:
    """An input of a product in bf16, before any scale."""
    if kind == "Gaussian":
        return torch.randn(shape, dtype=torch.bfloat16, device=device)
    return repeated(tiles[f"{name}.inputs"].to(device), shape)


def repeated(tile: Any, shape: tuple[int, int]) -> Any:
    """A tile's numbers, row after row, as often as they are needed to fill a matrix."""
    count = shape[0] * shape[1]
    return tile.flatten().repeat(-(-count // tile.numel()))[:count].view(shape)


def in_fp8(tensor: Any, is_scaled: bool = True) -> Any:
    """A tensor in fp8, scaled so that its largest number is fp8's; dummies are cast as they are."""
    most = tensor.abs().max().float()
    scale = most / FP8_MOST if is_scaled and most > 0 else torch.ones_like(most)
    return (tensor.float() / scale).to(torch.float8_e4m3fn)


def steps(case: tuple[str, int, str, str], tiles: Mapping[str, Any], device: str) -> dict[str, Callable[[], Any]]:
    """The products of a layer, by name, for a case's format, rows, weights and activations."""
    number_format, rows, weights, activations = case
    one = torch.ones(1, device=device)
    made: dict[str, Callable[[], Any]] = {}
    for name, (height, width) in SHAPES.items():
        w = weight(weights, name, tiles, (height, width), device)
        x = activation(activations, name, tiles, (rows, width), device)
        if number_format == "bf16":
            out = torch.empty((rows, height), dtype=torch.bfloat16, device=device)
            made[name] = lambda x=x, w=w, out=out: torch.mm(x, w.t(), out=out)  # type: ignore[misc]
            continue
        x, w = in_fp8(x), in_fp8(w, is_scaled=weights != "dummy")
        options = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
        made[name] = lambda x=x, w=w, options=options: torch._scaled_mm(x, w.t(), **options)  # type: ignore[misc]
    return made


class Clock:
    """Times on the GPU's own stream, or on the processor where there is no GPU."""

    def __init__(self, device: str) -> None:
        self.is_gpu = device == "cuda"

    def stamp(self) -> Any:
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end) / 1e3 if self.is_gpu else end - start)

    def wait(self, stamp: Any) -> None:
        if self.is_gpu:
            stamp.synchronize()


@dataclass(frozen=True)
class Reading:
    """What NVML said at one time, in seconds of `time.perf_counter`; the energy since the driver was loaded."""

    at: float
    sm_mhz: float
    joules: float
    celsius: float


class Sensor:
    """A GPU's clock, energy and temperature by NVML, read in a thread; nothing where there is no NVML."""

    def __init__(self, device: str) -> None:
        self.readings: list[Reading] = []
        self.handle: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if device == "cuda":
            try:
                import pynvml

                pynvml.nvmlInit()
                uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
                self.nvml, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
            except Exception as error:  # an image without it, or a driver that hides it
                print(f"no clock and no energy: {error}")

    def __enter__(self) -> "Sensor":
        if self.handle:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()

    def _sample(self) -> None:
        nvml, handle = self.nvml, self.handle
        while not self._stop.wait(SAMPLE_S):
            joules = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
            clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
            celsius = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            self.readings.append(Reading(time.perf_counter(), clock, joules, celsius))


def watts(readings: list[Reading]) -> float | None:
    """Mean power between the first and the last change of the counter of energy, which moves in steps of its own."""
    changes = [now for before, now in pairwise(readings) if now.joules != before.joules]
    if len(changes) < 2:
        return None
    return (changes[-1].joules - changes[0].joules) / (changes[-1].at - changes[0].at)


def measure(case: tuple[str, int, str, str], tiles: Mapping[str, Any], device: str, seconds: float) -> Case:
    """Hold a layer's products for some seconds, and measure what follows the settling."""
    products, clock = steps(case, tiles, device), Clock(device)
    spent: dict[str, float] = dict.fromkeys(products, 0.0)
    layers, measured_from = 0, 0.0

    def run(count: int) -> list[list[Any]]:
        laps = []
        for _ in range(count):
            laps.append([clock.stamp()])
            for step in products.values():
                step()
                laps[-1].append(clock.stamp())
        return laps

    clock.wait(run(2)[-1][-1])
    begin = time.perf_counter()
    clock.wait(run(2)[-1][-1])
    batch = max(1, round(2 * BATCH_S / (time.perf_counter() - begin)))
    with Sensor(device) as sensor:
        begin = time.perf_counter()
        pending = run(batch)
        while (now := time.perf_counter()) - begin < seconds or not layers:
            following = run(batch)  # queued before the batch in front of it is waited for, so that the GPU never idles
            clock.wait(pending[-1][-1])
            if measured_from:
                layers += batch
                for lap in pending:
                    for name, start, end in zip(products, lap, lap[1:], strict=False):
                        spent[name] += clock.seconds(start, end)
            elif now - begin >= SETTLING * seconds:
                measured_from = time.perf_counter()
            pending = following
        readings = [reading for reading in sensor.readings if reading.at >= measured_from]
        clock.wait(pending[-1][-1])
    work = {name: 2e-12 * case[1] * height * width for name, (height, width) in SHAPES.items()}
    tflops, power = layers * sum(work.values()) / sum(spent.values()), watts(readings)
    return Case(
        *case,
        tflops=tflops,
        tflops_by_product={name: layers * work[name] / spent[name] for name in products},
        sm_mhz=statistics.mean(reading.sm_mhz for reading in readings) if readings else None,
        watts=power,
        joules_per_tflop=power / tflops if power is not None else None,
        celsius=readings[-1].celsius if readings else None,
    )


def cases() -> Iterator[tuple[str, int, str, str]]:
    """All of them; of each format and number of rows the base is measured first and, for the scatter, last."""
    for number_format, rows in product(FORMATS, ROWS):
        yield (number_format, rows, *BASE)
        for weights, activations in product(WEIGHTS, ACTIVATIONS):
            if (weights, activations) != BASE:
                yield number_format, rows, weights, activations
        yield (number_format, rows, *BASE)


def table(found: list[Case]) -> str:
    """A Markdown table; each speed beside the base of its format and rows, which is the mean of its measurements."""
    names = ("format", "rows", "weights", "activations", "TFLOP/s", "of random", "SM clock, MHz", "W", "J per TFLOP")
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for case in found:
        bases = [
            each.tflops
            for each in found
            if (each.format, each.rows) == (case.format, case.rows) and (each.weights, each.activations) == BASE
        ]
        numbers = (case.sm_mhz, case.watts, case.joules_per_tflop)
        clock, power, energy = ("–" if number is None else f"{number:.4g}" for number in numbers)
        ratio = f"{100 * (case.tflops / statistics.mean(bases) - 1):+.1f} %"
        cells = (case.format, f"{case.rows:,}", case.weights, case.activations, f"{case.tflops:.4g}", ratio)
        lines.append("| " + " | ".join((*cells, clock, power, energy)) + " |")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("tiles", type=Path)
    flags.add_argument("out", type=Path)
    flags.add_argument("--seconds", type=float, default=3.0)
    return flags


def main() -> None:
    arguments = parser().parse_args()
    from safetensors.torch import load_file

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = {"gpu": torch.cuda.get_device_name() if device == "cuda" else None, "torch": torch.__version__}
    tiles, found = load_file(arguments.tiles), list[Case]()
    for case in cases():
        found.append(measure(case, tiles, device, arguments.seconds))
        content = {**about, "cases": [asdict(each) for each in found]}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
