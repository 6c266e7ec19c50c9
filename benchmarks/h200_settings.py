"""Draws what was measured on one H200: Offline by setting, beside the best published and what dummy weights make of it.

    python -m benchmarks.h200_settings FOLDER

Llama-3.1-8B's shape with random weights, static fp8 (docs/evidence/performance.md), 2026-11-23, one run each, from
docs/runs.
"""

import sys
from pathlib import Path
from typing import Any

from harness.config import mlperf
from harness.core import files
from harness.core.reading import ROOT
from harness.report import style as figures
from harness.results import published
from harness.results.summary import Summary

RUNS = {  # by the name of a bar, slowest first
    "0.24: attention by Triton": "off-triton-vllm024",
    "0.32: as a checkpoint comes": "off-static-vllm032",
    "0.24: as a checkpoint comes": "off-static-vllm024",
    "0.32: cuBLASLt": "off-torchmm-vllm032",
    "0.24: steps of 8,192 tokens": "off-tok8192-vllm024",
    "0.24: KV cache in 16 bits": "off-kv16-vllm024",
    "0.24: as a checkpoint comes, again": "off-again-vllm024",
    "0.24: cuBLASLt": "off-torchmm-vllm024",
    "0.24: 2,048 sequences, steps of 32,768": "off-2048x32k-vllm024",
    "0.32: cuBLASLt, XQA": "off-xqa-torch-vllm032",
    "0.32: cuBLASLt, XQA, 2,048, 32,768; full length": "full-offline-vllm032",
    "0.24: dummy weights (flattering)": "off-dummy-vllm024",
}


def measured_of(run: str) -> tuple[int, float]:
    """Output tokens/s and J of the GPU per output token of a kept run."""
    test = files.read(ROOT / "docs" / "runs" / "h200" / run / "summary.json", Summary).run.performance
    assert test is not None
    return round(test.tokens_per_sec or 0.0), test.joules_per_output_token or 0.0


def draw() -> Any:
    figure, (speeds, energy) = figures.pyplot().subplots(1, 2, figsize=(12, 4.6), width_ratios=(3, 2), sharey=True)
    rows = {name: measured_of(run) for name, run in RUNS.items()}
    looks = [{"color": figures.BLUE}] * (len(RUNS) - 1)
    looks.append({"color": "none", "edgecolor": figures.GREY, "hatch": "///"})
    best = published.fastest("Offline", "NVIDIA H200")
    elsewhere = {f"{best.submitter}, MLPerf {best.round}, another engine": best.samples_per_sec * mlperf.MAX_NEW_TOKENS}
    for place, ((tokens, joules), look) in enumerate(zip(rows.values(), looks, strict=True)):
        speeds.barh(place, tokens, height=0.65, **look)
        energy.barh(place, joules, height=0.65, **look)
        for axes, value, text in ((speeds, tokens, f"{tokens:,}"), (energy, joules, f"{joules:.3f}")):
            inside = {"ha": "right", "va": "center", "fontsize": 9, "color": "black" if "hatch" in look else "white"}
            axes.annotate(text, (value, place), (-6, 0), textcoords="offset points", **inside)
    speeds.set_yticks(range(len(rows)), list(rows))
    for name, speed in elsewhere.items():
        speeds.axvline(speed, color=figures.ORANGE, linestyle="--", label=f"{name}: {speed:,.0f}")
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
