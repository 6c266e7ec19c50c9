"""Offline through LoadGen on 1, 2, 4, ... GPUs of one host: replicas, and one copy split over as many.

    python -m benchmarks.h200_scaling OUT [--gpus 1 2 4 8] [--samples 3000] [--quantization fp8] [--repeat 1]

Llama-3.1-8B's shape with random weights; `--samples` for each GPU, so that every point lasts about as long. Leaves
OUT/scaling.json and OUT/scaling.png: tokens per second, and the share of so many times the mean on one GPU.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from benchmarks import random_llama
from benchmarks.h200_offline import FORMATS, harness


@dataclass(frozen=True)
class Point:
    """One way to use some GPUs, and the tokens per second of each repetition."""

    gpus: int
    way: str  # replicas or split
    tokens_per_sec: list[float]

    @property
    def mean(self) -> float:
        return mean(self.tokens_per_sec)


def measure(folder: Path, gpus: int, way: str, samples: int, quantization: str, repeat: int) -> Point:
    tensor, data = (gpus, 1) if way == "split" else (1, gpus)
    sizes = ["--tensor-parallel-size", str(tensor), "--data-parallel-size", str(data)]
    return Point(gpus, way, [harness(folder, samples * gpus, quantization, *sizes) for _ in range(repeat)])


def draw(points: Sequence[Point], folder: Path) -> None:
    """Does twice the GPUs give twice the tokens?"""
    from harness.reporting import style as figures

    figure, axes = figures.pyplot().subplots(figsize=(7, 4))
    sizes = sorted({point.gpus for point in points})
    one = next(point.mean for point in points if point.gpus == sizes[0]) / sizes[0]
    axes.plot(sizes, [one * size for size in sizes], color=figures.GREY, linestyle="--", label="linear")
    for way, color in (("replicas", figures.BLUE), ("split", figures.ORANGE)):
        some = [point for point in points if point.way == way]
        if some:
            low = [point.mean - min(point.tokens_per_sec) for point in some]
            high = [max(point.tokens_per_sec) - point.mean for point in some]
            places, heights = [point.gpus for point in some], [point.mean for point in some]
            axes.errorbar(places, heights, yerr=[low, high], marker="o", color=color, label=way, capsize=3)
    axes.set(xlabel="GPUs", ylabel="tokens/s", xticks=sizes, ylim=(0, None))
    axes.legend()
    figures.save({"scaling": figure}, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--quantization", choices=("none", "fp8"), default="fp8")
    parser.add_argument("--repeat", type=int, default=1)
    arguments = parser.parse_args()
    folder, settings = arguments.out, (arguments.samples, arguments.quantization, arguments.repeat)
    random_llama.make(folder, arguments.samples * max(arguments.gpus), FORMATS[arguments.quantization])
    ways = [(gpus, way) for gpus in arguments.gpus for way in ("replicas", "split") if gpus > 1 or way == "replicas"]
    points: list[Point] = []
    for gpus, way in ways:
        points.append(measure(folder, gpus, way, *settings))
        share = points[-1].mean / (gpus * points[0].mean / points[0].gpus)
        runs = ", ".join(f"{value:,.0f}" for value in points[-1].tokens_per_sec)
        print(f"{gpus} GPU(s), {way:8}  {runs} tokens/s  {share:.3f} of linear", flush=True)
        (folder / "scaling.json").write_text(json.dumps([asdict(point) for point in points], indent=2))
    draw(points, folder)


if __name__ == "__main__":
    main()
