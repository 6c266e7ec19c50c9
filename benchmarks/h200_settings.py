"""Draws what was measured on one H200: Offline by setting, beside the best published and what dummy weights make of it.

    python -m benchmarks.h200_settings FOLDER

Llama-3.1-8B's shape with random weights, static fp8 (docs/performance.md), 2026-11-23, one run each.
"""

import sys
from pathlib import Path
from typing import Any

from harness.reporting import style as figures

# Output tokens per second, joules of the GPU per output token.
RUNS = {
    "0.24: attention by Triton": (6144, 0.108),
    "0.32: as a checkpoint comes": (6956, 0.099),
    "0.24: as a checkpoint comes": (7066, 0.096),
    "0.32: cuBLASLt": (7103, 0.097),
    "0.24: steps of 8,192 tokens": (7149, 0.096),
    "0.24: KV cache in 16 bits": (7235, 0.095),
    "0.24: as a checkpoint comes, again": (7298, 0.094),
    "0.24: cuBLASLt": (7439, 0.092),
    "0.24: 2,048 sequences, steps of 32,768": (7451, 0.093),
    "0.32: cuBLASLt, XQA": (7602, 0.089),
    "0.32: cuBLASLt, XQA, 2,048, 32,768; full length": (8085, 0.085),
}
DUMMY = {"0.24: dummy weights (flattering)": (8537, 0.077)}
PUBLISHED = {"MLPerf v5.1, an eighth of 8 H200s, another engine": 8255}


def draw() -> Any:
    figure, (speeds, energy) = figures.pyplot().subplots(1, 2, figsize=(12, 4.6), width_ratios=(3, 2), sharey=True)
    rows = RUNS | DUMMY
    looks = [{"color": figures.BLUE}] * len(RUNS) + [{"color": "none", "edgecolor": figures.GREY, "hatch": "///"}]
    for place, ((tokens, joules), look) in enumerate(zip(rows.values(), looks, strict=True)):
        speeds.barh(place, tokens, height=0.65, **look)
        energy.barh(place, joules, height=0.65, **look)
        for axes, value, text in ((speeds, tokens, f"{tokens:,}"), (energy, joules, f"{joules:.3f}")):
            inside = {"ha": "right", "va": "center", "fontsize": 9, "color": "black" if "hatch" in look else "white"}
            axes.annotate(text, (value, place), (-6, 0), textcoords="offset points", **inside)
    speeds.set_yticks(range(len(rows)), list(rows))
    for name, speed in PUBLISHED.items():
        speeds.axvline(speed, color=figures.ORANGE, linestyle="--", label=f"{name}: {speed:,}")
    speeds.legend(loc="upper right", bbox_to_anchor=(1, -0.12), fontsize=8, frameon=False)
    speeds.set(xlabel="output tokens/s", xlim=(0, 10_000), title="Offline on one H200, random weights")
    speeds.xaxis.set_major_formatter("{x:,.0f}")
    energy.set(xlabel="J of the GPU per output token", xlim=(0, 0.13), title="Energy")
    for axes in (speeds, energy):
        axes.grid(axis="y", visible=False)
    figure.tight_layout()
    return figure


if __name__ == "__main__":
    figures.save({"h200-settings": draw()}, Path(sys.argv[1]))
