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
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu_sensor import Reading, Sensor, mean_power
from harness.core.formatting import Measured

Tiles = Mapping[str, Tensor]  # the tensors of the TILES file, by their names
SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
FORMATS = ("fp8", "bf16")
ROWS = (8192, 2048)
WEIGHTS = ("zero", "dummy", "random", "trained")
ACTIVATIONS = ("Gaussian", "recorded")
BASE = ("random", "Gaussian")  # the weights and activations with which all others are compared
FP8_MOST = 448.0  # the largest number of float8_e4m3fn
SETTLING_SHARE = 0.4  # of a case's time, which is not measured
BATCH_S = 0.05  # of products that are queued at once
WARM_UP_LAYERS = 2


class CaseData(NamedTuple):
    """What the products of a case are computed with: the format, the rows of the inputs, and kinds of data."""

    format: str
    rows: int
    weights: str
    activations: str


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

    @property
    def is_base(self) -> bool:
        return (self.weights, self.activations) == BASE


def weight(kind: str, name: str, tiles: Tiles, shape: tuple[int, int], device: str) -> Tensor:
    """Return the weights of a product in bf16, before any scale."""
    if kind == "zero":
        return torch.zeros(shape, dtype=torch.bfloat16, device=device)
    if kind == "dummy":
        return torch.empty(shape, dtype=torch.float16, device=device).uniform_(-1e-3, 1e-3).to(torch.bfloat16)
    if kind == "random":
        return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0.0, 0.02)
    return repeated(tiles[f"{name}.weights"].to(device), shape)


def activation(kind: str, name: str, tiles: Tiles, shape: tuple[int, int], device: str) -> Tensor:
    """Return the input of a product in bf16, before any scale."""
    if kind == "Gaussian":
        return torch.randn(shape, dtype=torch.bfloat16, device=device)
    return repeated(tiles[f"{name}.inputs"].to(device), shape)


def repeated(tile: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a matrix that is filled, row after row, with a tile's numbers, as often as needed."""
    elements = shape[0] * shape[1]
    copies = -(-elements // tile.numel())
    return tile.flatten().repeat(copies)[:elements].view(shape)


def in_fp8(tensor: Tensor, is_scaled: bool = True) -> Tensor:
    """Return a tensor in fp8, scaled so that its largest number becomes fp8's largest, or cast as it is."""
    most = tensor.abs().max().float()
    scale = most / FP8_MOST if is_scaled and most > 0 else torch.ones_like(most)
    return (tensor.float() / scale).to(torch.float8_e4m3fn)


LayerProducts = Mapping[str, Callable[[], Any]]  # functions that compute the products of a layer, by name


def layer_products(data: CaseData, tiles: Tiles, device: str) -> LayerProducts:
    products = {}
    for name, (height, width) in SHAPES.items():
        weights = weight(data.weights, name, tiles, (height, width), device)
        inputs = activation(data.activations, name, tiles, (data.rows, width), device)
        if data.format == "bf16":
            products[name] = bf16_product(inputs, weights)
        else:
            # vLLM casts its dummy weights without a scale.
            products[name] = fp8_product(in_fp8(inputs), in_fp8(weights, is_scaled=data.weights != "dummy"))
    return products


def bf16_product(inputs: Tensor, weights: Tensor) -> Callable[[], Any]:
    output = torch.empty((inputs.shape[0], weights.shape[0]), dtype=torch.bfloat16, device=inputs.device)
    return partial(torch.mm, inputs, weights.t(), out=output)


def fp8_product(inputs: Tensor, weights: Tensor) -> Callable[[], Any]:
    """Return a product with scales of 1: its speed and energy count, not its result."""
    scale = torch.ones(1, device=inputs.device)
    return partial(
        torch._scaled_mm,
        inputs,
        weights.t(),
        scale_a=scale,
        scale_b=scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


class Clock:
    """Times on the GPU's own stream, or on the processor if there is no GPU."""

    def __init__(self, device: str) -> None:
        self.is_gpu = device == "cuda"

    def stamp(self) -> Any:
        """Return the present time. On a GPU, it is the time at which what was queued before is done."""
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end) / 1e3 if self.is_gpu else end - start)

    def wait(self, stamp: Any) -> None:
        """Wait until the GPU is at a stamp."""
        if self.is_gpu:
            stamp.synchronize()


class TimedLayer:
    """A layer's products, and the seconds that each of them took in the layers that were counted."""

    def __init__(self, products: LayerProducts, clock: Clock) -> None:
        self.products = products
        self.clock = clock
        self.layers = 0
        self.spent_s = dict.fromkeys(products, 0.0)

    def queue(self, layers: int) -> list[list[Any]]:
        """Queue the products of so many layers.

        Returns the stamps of each layer: one before its first product, and one after each product.
        """
        laps = []
        for _layer in range(layers):
            lap = [self.clock.stamp()]
            for compute in self.products.values():
                compute()
                lap.append(self.clock.stamp())
            laps.append(lap)
        return laps

    def wait(self, laps: list[list[Any]]) -> None:
        """Wait until queued layers are computed."""
        self.clock.wait(laps[-1][-1])

    def count(self, laps: list[list[Any]]) -> None:
        """Add the times of computed layers."""
        self.layers += len(laps)
        for lap in laps:
            for name, start, end in zip(self.products, lap, lap[1:], strict=False):
                self.spent_s[name] += self.clock.seconds(start, end)

    def layers_per_batch(self) -> int:
        """Return how many layers take about BATCH_S, which some layers after a warm-up tell."""
        self.wait(self.queue(WARM_UP_LAYERS))
        begin = time.perf_counter()
        self.wait(self.queue(WARM_UP_LAYERS))
        layer_s = (time.perf_counter() - begin) / WARM_UP_LAYERS
        return max(1, round(BATCH_S / layer_s))


def run_for(layer: TimedLayer, device: str, seconds: float) -> list[Reading]:
    """Compute a layer again and again for some seconds, and count what follows the settling.

    Returns the readings of the GPU in the time that counts. At least one batch counts, however short the time is.
    """
    batch = layer.layers_per_batch()
    counted_from = 0.0  # 0 until clocks have settled
    with Sensor(device) as sensor:
        begin = time.perf_counter()
        pending = layer.queue(batch)
        while (now := time.perf_counter()) - begin < seconds or not layer.layers:
            # The next batch is queued before the one in front of it is waited for, so that the GPU never idles.
            following = layer.queue(batch)
            layer.wait(pending)
            if counted_from:
                layer.count(pending)
            elif now - begin >= SETTLING_SHARE * seconds:
                counted_from = time.perf_counter()
            pending = following
        readings = [reading for reading in sensor.readings if reading.at >= counted_from]
        layer.wait(pending)
    return readings


def measure(data: CaseData, tiles: Tiles, device: str, seconds: float) -> Case:
    """Return what the products of a layer reach with this data when they run for some seconds."""
    layer = TimedLayer(layer_products(data, tiles, device), Clock(device))
    readings = run_for(layer, device, seconds)
    work = {name: 2e-12 * data.rows * height * width for name, (height, width) in SHAPES.items()}  # TFLOP
    tflops = layer.layers * sum(work.values()) / sum(layer.spent_s.values())
    power = mean_power(readings)
    return Case(
        *data,
        tflops=tflops,
        tflops_by_product={name: layer.layers * work[name] / layer.spent_s[name] for name in SHAPES},
        sm_mhz=statistics.mean(reading.sm_mhz for reading in readings) if readings else None,
        watts=power,
        joules_per_tflop=power / tflops if power is not None else None,
        celsius=readings[-1].celsius if readings else None,
    )


def cases() -> Iterator[CaseData]:
    """Yield all cases. Of each format and number of rows, the base comes first and, to show the scatter, last again."""
    for number_format, rows in product(FORMATS, ROWS):
        base = CaseData(number_format, rows, *BASE)
        yield base
        for weights, activations in product(WEIGHTS, ACTIVATIONS):
            if (weights, activations) != BASE:
                yield CaseData(number_format, rows, weights, activations)
        yield base


def table(measured_cases: list[Case]) -> str:
    """Return a Markdown table, with each speed beside the base's mean speed for its format and rows."""
    heads = ("format", "rows", "weights", "activations", "TFLOP/s", "of random", "SM clock, MHz", "W", "J per TFLOP")
    lines = [table_line(*heads), "|" + "---|" * len(heads)]
    for case in measured_cases:
        change = 100 * (case.tflops / base_tflops(measured_cases, case) - 1)
        lines.append(
            table_line(
                case.format,
                f"{case.rows:,}",
                case.weights,
                case.activations,
                four_digits(case.tflops),
                f"{change:+.1f} %",
                four_digits(case.sm_mhz),
                four_digits(case.watts),
                four_digits(case.joules_per_tflop),
            )
        )
    return "\n".join(lines)


def table_line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def four_digits(value: Measured) -> str:
    return "–" if value is None else f"{value:.4g}"


def base_tflops(measured_cases: list[Case], case: Case) -> float:
    """Return the mean speed of the base with a case's format and rows."""
    speeds = []
    for other in measured_cases:
        if other.is_base and (other.format, other.rows) == (case.format, case.rows):
            speeds.append(other.tflops)
    return statistics.mean(speeds)


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
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    tiles = load_file(arguments.tiles)
    measured_cases = list[Case]()
    for data in cases():
        measured_cases.append(measure(data, tiles, device, arguments.seconds))
        # The file is written after each case, so that a run that is cut off leaves those it measured.
        content = {"gpu": gpu, "torch": torch.__version__, "cases": [asdict(case) for case in measured_cases]}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    print(table(measured_cases))


if __name__ == "__main__":
    main()
