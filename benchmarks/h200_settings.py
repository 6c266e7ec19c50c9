"""A picture of Offline on one H200 by settings, beside the best published result and a run with dummy weights.

    python -m benchmarks.h200_settings FOLDER

The runs are those of docs/runs, one for each setting, of 2026-11-23: Llama-3.1-8B's shape with random weights, static
fp8 (docs/evidence/performance.md).
"""

import argparse
from pathlib import Path
from typing import NamedTuple

from docs.generate.performance import published_results
from harness.config import mlperf
from harness.core import files
from harness.core.locations import ROOT
from harness.report import charts
from harness.report.charts import Bar, Bars, Panel, StackedPart
from harness.results.summary import Summary

RUNS = {  # folders of docs/runs/h200 by the text beside their bar, slowest first
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


class RunFigures(NamedTuple):
    """The figures of a run that the picture shows."""

    tokens_per_s: int  # output tokens
    joules_per_token: float  # energy of the GPU for each output token


def figures_of(run: str) -> RunFigures:
    """Return the figures of a run of docs/runs/h200, by the name of its folder."""
    test = files.read(ROOT / "docs" / "runs" / "h200" / run / "summary.json", Summary).run.performance
    assert test is not None
    return RunFigures(round(test.tokens_per_sec or 0.0), test.joules_per_output_token or 0.0)


def panels() -> list[Panel]:
    """Return two panels with a bar for each run: its speed, beside the best published, and its energy."""
    best = published_results("Offline", "NVIDIA H200")[0]
    best_tokens_per_s = best.rate("samples/s") * mlperf.MAX_NEW_TOKENS
    speed_label = (
        f"output tokens/s; line: {best.submitter}, MLPerf {best.round}, another engine: {best_tokens_per_s:,.0f}; "
        "hollow: dummy"
    )
    speed_bars, energy_bars = [], []
    for name, run in RUNS.items():
        figures = figures_of(run)
        speed_bars.append(run_bar(name, figures.tokens_per_s, f"{figures.tokens_per_s:,}"))
        energy_bars.append(run_bar(name, figures.joules_per_token, f"{figures.joules_per_token:.3f}"))
    return [
        Bars("Offline on one H200, random weights", speed_label, speed_bars, [best_tokens_per_s]),
        Bars("Energy", "J of the GPU per output token", energy_bars),
    ]


def run_bar(name: str, value: float, text: str) -> Bar:
    """Return the bar of a run, which is grey and hollow if its weights are dummies."""
    is_dummy = "dummy" in name
    color = "grey" if is_dummy else "blue"
    return Bar(name, text, [StackedPart(0.0, value, color, is_dummy)])


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("folder", type=Path, help="where the picture is written")
    return flags


if __name__ == "__main__":
    pictures = {"h200-settings": ("Offline by setting", panels())}
    charts.save_pictures(pictures, parser().parse_args().folder)
