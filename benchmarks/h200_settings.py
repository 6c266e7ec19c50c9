"""Draws what was measured on one H200 so far: speed by setting beside the best published, and kernel time by kind.

    python -m benchmarks.h200_settings FOLDER

Offline, Llama-3.1-8B's shape with dummy weights, 3,000 prompts, vLLM 0.24.0, one run each (docs/performance.md).
"""

import sys
from pathlib import Path
from typing import Any

from harness import figures

# Output tokens per second, 2026-11-21 and 2026-11-22.
SPEEDS = {
    "bf16, batches of 16": 2072,
    "bf16": 5133,
    "fp8 on loading, FlashInfer": 6817,
    "fp8 on loading, fused norm and activation": 7351,
    "fp8 on loading": 7538,
    "fp8 on loading, steps of 8,192 tokens": 7596,
    "static fp8, FlashInfer": 7718,
    "static fp8": 8624,
}
PUBLISHED = {"MLPerf 5.1 closed, an eighth of 8 H200s": 8255}
# Share of kernel time in percent, fp8 on loading, under the profiler.
KERNELS = {"matrix products": 58, "attention": 24, "norm, activation\nand quantization": 13, "other": 5}


def draw() -> Any:
    from matplotlib import pyplot

    figures.style()
    figure, (speeds, kernels) = pyplot.subplots(1, 2, figsize=(12, 3.8), width_ratios=(3, 2))
    bars = speeds.barh(list(SPEEDS), list(SPEEDS.values()), color=figures.BLUE, height=0.65)
    speeds.bar_label(bars, labels=[f"{speed:,}" for speed in SPEEDS.values()], padding=-60, color="white", fontsize=9)
    for name, speed in PUBLISHED.items():
        speeds.axvline(speed, color=figures.ORANGE, linestyle="--", label=f"{name}: {speed:,}")
    speeds.legend(loc="lower right", fontsize=8, framealpha=0.9)
    speeds.set(xlabel="output tokens/s", xlim=(0, 10_000), title="Offline on one H200, dummy weights")
    bars = kernels.barh(list(KERNELS), list(KERNELS.values()), color=figures.BLUE, height=0.65)
    kernels.bar_label(bars, labels=[f"{share} %" for share in KERNELS.values()], padding=4, fontsize=9)
    kernels.invert_yaxis()
    kernels.set(xlabel="share of kernel time, %", xlim=(0, 70), title="fp8 on loading, dummy weights")
    for axes in (speeds, kernels):
        axes.grid(axis="y", visible=False)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    figures.save({"h200-settings": draw()}, Path(sys.argv[1]))
