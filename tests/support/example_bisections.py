"""Bisections whose experiments are simulated: settings that slow an engine down, noise, and starts that fail."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from rich.console import Console

from harness.core.progress import Display
from harness.report.regression import parse_condition
from harness.sweep import bisect, loop, report
from harness.sweep.bisect import BisectState
from harness.sweep.bisect_findings import BisectFindings
from harness.sweep.crew import Crew
from harness.sweep.experiment import ExperimentRecord, Job, Watch
from harness.sweep.file import BASELINE
from harness.sweep.lanes import Lane
from harness.sweep.sweep_state import SweepOptions
from tests.support.example_sweeps import ran

GOOD_TEXT = "model: demo\nbackend: echo\ntotal_sample_count: 16\nmin_duration: 0.5\n"
# Six differences that the echo engine takes, by the words of a bisection.
SIX = {
    "max_model_len=512": "max_model_len: 512\n",
    "gpu_memory_utilization=0.5": "gpu_memory_utilization: 0.5\n",
    "max_num_seqs=8": "max_num_seqs: 8\n",
    "max_num_batched_tokens=512": "max_num_batched_tokens: 512\n",
    "kv_cache_dtype=fp8": "kv_cache_dtype: fp8\n",
    "token_s=0.002": "engine_arg: [token_s=0.002]\n",
}
SECONDS = 30.0  # of one simulated experiment


@dataclass
class Planted:
    """An engine as a bisection meets it: causes with the share of speed that each leaves, noise, and failing starts."""

    causes: Mapping[frozenset[str], float]
    noise: float = 0.0
    starts: Callable[[frozenset[str]], bool] = lambda _: True
    seed: int = 0
    drift: float = 0.0
    random: Random = field(init=False)
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)

    def __call__(self, job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        self.names.append(job.item.name)
        settings = frozenset(job.item.changes)
        if not self.starts(settings):
            return job.record(lane, "failed", "vLLM did not start: it needs another setting", seconds=5.0)
        speed = 100.0 * (1 - self.drift) ** len(self.names)
        for cause, share in self.causes.items():
            if cause <= settings:
                speed *= share
        speed *= 1 + self.random.gauss(0, self.noise)
        record = ran(job.item.name, speed, job.round, verdict=None, ttft_p99_ms=5000.0 / speed)
        return job.record(lane, "complete", seconds=SECONDS, outcome=record.outcome)


def sides(folder: Path, differences: Collection[str] = tuple(SIX)) -> tuple[str, str]:
    """Two config files that differ in these settings."""
    good, bad = folder / "good.yaml", folder / "bad.yaml"
    good.write_text(GOOD_TEXT)
    bad.write_text(GOOD_TEXT + "".join(SIX[name] for name in differences))
    return str(good), str(bad)


def begun(
    folder: Path,
    fail_if: str = "output_tokens_per_s<-3%",
    differences: Collection[str] = tuple(SIX),
    resume: bool = False,
    options: SweepOptions | None = None,
) -> BisectState:
    """A bisection of which nothing has run, or that goes on."""
    sweep, bisection = bisect.bisection_plan(sides(folder, differences), [], [parse_condition(fail_if)], 1, folder)
    chosen = list(sweep.experiments)
    options = options or SweepOptions(repeat=bisection.first_rounds, alternate=True)
    state = loop.begin_sweep(sweep, folder, chosen, options, {}, resume, 0.0, (fail_if,), bisection)
    assert isinstance(state, BisectState)
    return state


def searched(state: BisectState, runner: Callable[[Job, Lane, Watch], ExperimentRecord]) -> BisectFindings:
    """The findings of a bisection that was run to its end."""
    with Display(Console(quiet=True)) as display:
        loop.run_rounds(state, Crew(state, runner, display), [Lane()])
    return findings(state)


def findings(state: BisectState) -> BisectFindings:
    return BisectFindings(report.read_results(state.folder.path, state.kept), state.bisection)


def cause_of(found: BisectFindings) -> frozenset[str]:
    """The settings of the smallest set, by their words."""
    return frozenset(found.bisection.differences[place].words for place in found.search.smallest)


def is_beside_the_baseline(names: list[str]) -> bool:
    """Tell whether the baseline ran in each round."""
    return names.count(BASELINE) >= max(names.count(name) for name in names)
