"""Draws what was measured on one H200: Offline by setting, beside the best published and what dummy weights make of it.

    python -m benchmarks.h200_settings FOLDER

Llama-3.1-8B's shape with random weights, static fp8 (docs/evidence/performance.md), 2026-11-23, one run each, from
docs/runs.
"""

import argparse
from pathlib import Path

from docs.generate.performance import published_results
from harness.config import mlperf
from harness.core import files
from harness.core.locations import ROOT
from harness.report import charts
from harness.report.charts import Bar, Bars, Panel, StackedPart
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


def panels() -> list[Panel]:
    """A bar for each run: speed beside the best published, and energy."""
    rows = {name: measured_of(run) for name, run in RUNS.items()}
    best = published_results("Offline", "NVIDIA H200")[0]
    elsewhere = best.rate("samples/s") * mlperf.MAX_NEW_TOKENS
    label = (
        f"output tokens/s; line: {best.submitter}, MLPerf {best.round}, another engine: {elsewhere:,.0f}; hollow: dummy"
    )

    def bar(name: str, value: float, text: str) -> Bar:
        is_dummy = "dummy" in name
        return Bar(name, text, [StackedPart(0.0, value, "grey" if is_dummy else "blue", is_dummy)])

    speeds = [bar(name, tokens, f"{tokens:,}") for name, (tokens, _) in rows.items()]
    energy = [bar(name, joules, f"{joules:.3f}") for name, (_, joules) in rows.items()]
    return [
        Bars("Offline on one H200, random weights", label, speeds, [elsewhere]),
        Bars("Energy", "J of the GPU per output token", energy),
    ]


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("folder", type=Path, help="where the picture is written")
    return flags


if __name__ == "__main__":
    charts.save_pictures({"h200-settings": ("Offline by setting", panels())}, parser().parse_args().folder)
