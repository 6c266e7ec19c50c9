"""What the programme of `benchmarks.h200` measured, from its folder alone: tables in Markdown, and a picture.

    python -m benchmarks.h200_pages OUT/results FOLDER

Prints the tables, writes them to FOLDER/h200.md, and draws FOLDER/h200-programme.png.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.common import files
from harness.common.markdown import number
from harness.results.performance import Performance
from harness.results.summary import Summary
from harness.sweep import report
from harness.sweep.file import BASELINE
from harness.sweep.findings import spread
from harness.sweep.rows import ExperimentResult, rows

COLUMNS = (
    *("step", "GPUs", "LoadGen", "output tokens/s", "of linear", "TTFT p99, ms", "TPOT p99, ms", "J per token"),
    *("clock, MHz", "duration, s", "bound by"),
)
LINEAR = 0.98  # what two GPUs shall at least have of twice one


@dataclass(frozen=True)
class Full:
    """A run at full length."""

    name: str
    summary: Summary
    test: Performance

    @property
    def gpus(self) -> int:
        return self.summary.meta.data_parallel_size * self.summary.meta.tensor_parallel_size

    @property
    def scenario(self) -> str:
        return self.summary.meta.scenario


def runs(folder: Path) -> list[Full]:
    """The runs at full length that a folder holds, in the order of their names."""
    found = []
    for path in sorted(folder.glob("*/summary.json")):
        summary = files.read(path, Summary)
        if summary.run.performance:
            found.append(Full(path.parent.name, summary, summary.run.performance))
    return found


def share(run: Full, all_runs: list[Full]) -> float | None:
    """Its tokens per second over so many times those of one GPU; None for one, or where a result is INVALID."""
    one = next((other for other in all_runs if other.scenario == run.scenario and other.gpus == 1), None)
    if run.gpus == 1 or one is None or not (run.test.valid and one.test.valid):
        return None
    speeds = run.test.tokens_per_sec, one.test.tokens_per_sec
    return speeds[0] / (run.gpus * speeds[1]) if speeds[0] and speeds[1] else None


def cells(run: Full, all_runs: list[Full]) -> list[str]:
    test, linear = run.test, share(run, all_runs)
    clock = test.usage.get("gpu_clock_mhz")
    tails = [number(kind.p99) if kind else "–" for kind in (test.ttft_ms, test.tpot_ms)]
    return [
        run.name,
        str(run.gpus),
        "VALID" if test.valid else "INVALID",
        number(test.tokens_per_sec) if test.tokens_per_sec else "–",
        "–" if linear is None else f"{linear:.3f}" + ("" if linear >= LINEAR else f", under {LINEAR}"),
        *tails,
        number(test.joules_per_output_token) if test.joules_per_output_token else "–",
        number(clock.mean) if clock else "–",
        number(test.duration_s) if test.duration_s else "–",
        test.ran_out[0].partition(":")[0] if test.ran_out else "–",
    ]


def table(head: tuple[str, ...], body: list[list[str]]) -> list[str]:
    lines = [list(head), ["---"] * len(head), *body]
    return ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines]


def sweeps(folder: Path) -> Iterator[tuple[str, list[ExperimentResult]]]:
    for path in sorted(folder.glob("*/sweep.json")):
        yield path.parent.name, rows(report.read(path.parent))


def settings(found: list[ExperimentResult]) -> list[list[str]]:
    """A sweep's experiments, the fastest first."""
    order = sorted(found, key=lambda result: -(result.ratio.mean if result.ratio else 0.0))
    return [
        [
            result.name,
            result.experiment.about,
            "–" if result.trouble and not result.complete else number(result.speed or 0.0),
            "–" if result.name == BASELINE else spread(result),
            number(joules) if (joules := result.numbers.get("joules_per_output_token")) else "–",
            number(clock) if (clock := result.numbers.get("gpu_clock_mhz_mean")) else "–",
            (result.trouble if not result.complete else result.bound) or "–",
        ]
        for result in order
    ]


def pages(folder: Path) -> str:
    """All tables of a folder of results."""
    found = runs(folder)
    lines = ["## At full length", "", *table(COLUMNS, [cells(run, found) for run in found]), ""]
    head = ("setting", "description", "output tokens/s", "change", "J per token", "clock, MHz", "bound by")
    for name, some in sweeps(folder):
        lines += [f"## {name}", "", *table(head, settings(some)), ""]
    troubles = [files.read_json(path) for path in sorted(folder.glob("*.json"))]
    lines += [f"- {ended['step']} failed: {ended['reason']}" for ended in troubles if not ended["ok"]]
    return "\n".join(lines)


def draw(folder: Path) -> Any:
    """Output tokens/s of each run at full length, and its energy where it was measured."""
    from harness.reporting import style as figures

    found = runs(folder)
    energy = [run for run in found if run.test.joules_per_output_token]
    figure, panels = figures.pyplot().subplots(
        1, 1 + bool(energy), figsize=(7 + 4 * bool(energy), 0.45 * len(found) + 1.4), squeeze=False
    )
    axes = panels[0, 0]
    for place, run in enumerate(found):
        speed = run.test.tokens_per_sec or 0.0
        axes.barh(place, speed, color=figures.BLUE if run.test.valid else "none", edgecolor=figures.BLUE, height=0.65)
        axes.annotate(f"{speed:,.0f}", (speed, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
        if energy:
            joules = run.test.joules_per_output_token or 0.0
            panels[0, 1].barh(place, joules, color=figures.ORANGE, height=0.65)
            inside = {"textcoords": "offset points", "va": "center", "fontsize": 9}
            panels[0, 1].annotate(f"{joules:.3g}" if joules else "–", (joules, place), (4, 0), **inside)
    hollow = "" if all(run.test.valid for run in found) else "; hollow: INVALID"
    axes.set(xlabel=f"output tokens/s{hollow}", title="Each scenario at full length")
    axes.set_yticks(range(len(found)), [f"{run.name}" for run in found])
    axes.margins(x=0.12)
    for some in panels[0]:
        some.set_ylim(len(found) - 0.4, -0.6)
        some.grid(axis="y", visible=False)
    if energy:
        panels[0, 1].margins(x=0.12)
        panels[0, 1].set(xlabel="J of the GPUs per output token", title="Energy", yticks=[])
    figure.tight_layout()
    return figure


def main() -> None:
    from harness.reporting import style as figures

    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    text = pages(folder)
    (out / "h200.md").write_text(text + "\n")
    print(text)
    if runs(folder):
        figures.save({"h200-programme": draw(folder)}, out)


if __name__ == "__main__":
    main()
