"""The whole programme on the GPUs of one host, unattended: checkpoint, settings, then every scenario at full length.

    python -m benchmarks.h200 OUT [--minutes 480] [--only STEP ...] [--rehearse]

Steps, most valuable first: a checkpoint of random weights in static fp8; for each scenario a sweep of settings (side by
side if there are two GPUs or more) and then its best setting at full official length, on one GPU and on two, with
telemetry and profile. OUT/results (at most 16 MB) holds what is to be kept, OUT/work all else. A step that has ended is
not run again; on a new host OUT/results is enough to go on from. `--rehearse` tries all of it on a CPU with the demo.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Literal

from benchmarks.start import start
from harness.core import files
from harness.core.errors import BenchmarkError
from harness.core.processes import end_group
from harness.core.reading import ROOT
from harness.core.system import gpus
from harness.sweep import report
from harness.sweep.file import BASELINE, Experiment
from harness.sweep.loop import full
from harness.sweep.rows import ExperimentResult, experiment_rows

KEPT_BYTES = 16 * 10**6
KEPT = ("summary.json", "config.json", "Performance/machine.csv", "Profile/profile.json", "plots/timeline.png")
SCENARIOS = ("offline", "server", "interactive", "singlestream")  # by what they are worth
SWEEPS = {
    name: f"h200-{file}.yaml" for name, file in zip(SCENARIOS, ("static", *SCENARIOS[1:3], "single"), strict=True)
}
DEMO = {"model": "demo", "mode": "performance", "total_sample_count": 16, "min_duration": 6}
DEMO_RATES = {"server": {"server_target_qps": 3}, "interactive": {"server_target_qps": 1}}
SLACK_S = 600.0  # beyond a step's minutes, before it is ended


@dataclass(frozen=True)
class Step:
    """One piece of the programme; `minutes` is what it needs, or what a sweep may take."""

    name: str
    kind: Literal["checkpoint", "sweep", "full"]
    minutes: float
    scenario: str = ""
    gpus: int = 1


@dataclass(frozen=True)
class Ended:
    """What became of a step; `reason` where it failed."""

    step: str
    ok: bool
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Programme:
    out: Path
    rehearse: bool

    @property
    def results(self) -> Path:
        return self.out / "results"

    @property
    def work(self) -> Path:
        return self.out / "work"

    @property
    def model(self) -> Path:
        return self.work / "llama" / "model"

    def steps(self) -> Iterator[Step]:
        """The whole programme, in order."""
        yield Step("checkpoint", "checkpoint", 5)
        for name in SCENARIOS:
            yield Step(f"sweep-{name}", "sweep", 60, name)
            yield Step(f"{name}-1", "full", 30, name)
        yield from (Step(f"{name}-2", "full", 30, name, 2) for name in SCENARIOS[:3])

    def record(self, step: Step) -> Path:
        return self.results / f"{step.name}.json"

    def done(self, step: Step) -> bool:
        """Whether it ended well and what it made is there: weights may be lost with a host."""
        if step.kind == "checkpoint":
            return any(self.model.glob("model.safetensors*"))
        path = self.record(step)
        return path.exists() and bool(files.read_json(path)["ok"])

    # What each kind of step runs.

    def command(self, step: Step) -> tuple[list[str], dict[str, str]]:
        """The command of a step, and what it adds to the environment."""
        return {"checkpoint": self.checkpoint, "sweep": self.sweep, "full": self.full}[step.kind](step)

    def checkpoint(self, step: Step) -> tuple[list[str], dict[str, str]]:
        small = ["--shape", "small", "--samples", "64"] if self.rehearse else []
        return ["-m", "benchmarks.random_llama", str(self.work / "llama"), "--format", "fp8-static", *small], {}

    def sweep(self, step: Step) -> tuple[list[str], dict[str, str]]:
        """The shipped sweep with this checkpoint; the last of its kind goes on where a host was lost."""
        path, place = self.work / f"{step.name}.yaml", self.work / step.name
        files.write_json(path, self.rehearsal(step) if self.rehearse else self.real(step))  # JSON is YAML
        words = ["sweep.py", str(path), "--results-dir", str(place), "--time-limit", str(step.minutes)]
        words += ["--gpus", "side-by-side"] if len(gpus()) > 1 else []
        words += ["--combine"]
        return words + (["--resume"] if any(place.glob("sweeps/2*/sweep.json")) else []), {}

    def real(self, step: Step) -> dict[str, object]:
        given = {"model": str(self.model), "dataset_path": str(self.work / "llama" / "cnn_eval.json")}
        return {"extends": str(ROOT / "sweeps" / SWEEPS[step.scenario]), "baseline": {"set": given}}

    def rehearsal(self, step: Step) -> dict[str, object]:
        category = {"category": "edge"} if step.scenario == "singlestream" else {}
        given = DEMO | category | {"scenario": step.scenario} | DEMO_RATES.get(step.scenario, {})
        few = {"name": "seqs-4", "about": "four sequences", "set": {"max_num_seqs": 4}}
        return {"baseline": {"about": "the demo", "set": given}, "isolation": [few]}

    def full(self, step: Step) -> tuple[list[str], dict[str, str]]:
        """The best setting of its sweep, at full official length, with telemetry and profile."""
        item = full(best(self.results / f"sweep-{step.scenario}" / "sweep.json"))
        settings = item.settings | {"profile": True, "data_parallel_size": step.gpus, "tensor_parallel_size": 1}
        if not self.rehearse:
            settings |= {"model": str(self.model)}
        elif step.scenario in DEMO_RATES:
            settings |= {"total_sample_count": 16, "min_duration": 10}  # a pass of all samples takes minutes
        path = self.work / f"{step.name}.yaml"
        files.write_json(path, settings)
        cards = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(step.gpus)))} if gpus() else {}
        return ["run.py", "--config", str(path), "--results-dir", str(self.work / step.name)], item.env | cards

    def run(self, step: Step) -> Ended:
        """Runs a step in its own process; what is worth keeping goes to OUT/results at once."""
        begin = time.monotonic()
        try:
            words, env = self.command(step)
        except (OSError, ValueError, BenchmarkError) as error:
            return Ended(step.name, False, 0.0, f"{error}")
        with (self.work / f"{step.name}.txt").open("w") as screen:
            code = ended_within([sys.executable, *words], os.environ | env, screen, 60 * step.minutes + SLACK_S)
        self.keep(step)
        lines = (self.work / f"{step.name}.txt").read_text(errors="replace").strip().splitlines()
        reason = "" if code == 0 else f"exit code {code}: {lines[-1] if lines else ''}"
        return Ended(step.name, code == 0, round(time.monotonic() - begin, 1), reason)

    def keep(self, step: Step) -> None:
        """Copies a sweep's state and pages, or a run's summary, telemetry and profile."""
        place = self.work / step.name
        latest = max(place.glob("sweeps/2*" if step.kind == "sweep" else "2*"), default=None)
        if latest is None:
            return
        names = ("sweep.json", "report.md", "plots/speedups.png") if step.kind == "sweep" else KEPT
        for name in names:
            if (latest / name).exists():
                target = self.results / step.name / Path(name).name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(latest / name, target)


def ended_within(words: list[str], env: Mapping[str, str], screen: IO[str], seconds: float) -> int:
    """Runs a command, and ends it with all below it if it takes longer; its exit code, 124 then."""
    process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=screen, stderr=screen, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        end_group(process)


def best(path: Path) -> Experiment:
    """The fastest experiment of a sweep whose speed counts; the baseline where none is faster. Raises OSError."""
    state = report.read(path.parent)
    found: list[ExperimentResult] = [
        result for result in experiment_rows(state) if result.is_usable and result.gain and result.gain.mean > 1
    ]
    fastest = max(found, key=lambda result: result.gain.mean if result.gain else 0.0, default=None)
    name = fastest.name if fastest else BASELINE
    return next(item for item in state.experiments if item.name == name)


def within(folder: Path, most: int) -> list[str]:
    """Removes pictures, then telemetry, the largest first, until a folder holds at most so many bytes; their names."""
    removed: list[str] = []
    for pattern in ("*.png", "*.csv"):
        for path in sorted(folder.rglob(pattern), key=lambda path: -path.stat().st_size):
            if sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) <= most:
                return removed
            removed.append(str(path.relative_to(folder)))
            path.unlink()
    return removed


def why_not(step: Step, left_s: float, visible: int, rehearse: bool) -> str:
    """Why a step is not begun; empty if it is."""
    if step.gpus > max(visible, 2 if rehearse else 0):
        return f"it takes {step.gpus} GPUs, and {visible} are visible"
    if step.kind != "sweep" and 60 * step.minutes > left_s:
        return f"it takes some {step.minutes:g} minutes, and {max(left_s, 0) / 60:.0f} are left"
    return "no time is left" if left_s < 120 else ""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--minutes", type=float, default=480.0, help="the budget of all steps of this call")
    parser.add_argument("--only", nargs="*", default=[], metavar="STEP")
    parser.add_argument("--rehearse", action="store_true", help="the demo on a CPU, short")
    given = parser.parse_args()
    programme = Programme(given.out.resolve(), given.rehearse)
    for folder in (programme.work, programme.results):
        folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * given.minutes
    steps = [step for step in programme.steps() if not given.only or step.name in given.only]
    failed = [step.name for step in steps if not attempt(programme, step, until)]
    for name in within(programme.results, KEPT_BYTES):
        say(f"over {KEPT_BYTES / 10**6:g} MB: {name} is left in {programme.work}")
    raise SystemExit(1 if failed else 0)


def attempt(programme: Programme, step: Step, until: float) -> bool:
    """Runs a step unless it has ended before or there is no time; whether it is done."""
    if programme.done(step):
        say(f"{step.name}: done before")
        return True
    left = until - time.monotonic()
    if reason := why_not(step, left, len(gpus()), programme.rehearse):
        say(f"{step.name}: not begun, {reason}")
        return False
    step = replace(step, minutes=min(step.minutes, left / 60))
    say(f"{step.name}: begun")
    ended = programme.run(step)
    files.write_json(programme.record(step), as_json(ended))
    say(f"{step.name}: {'done' if ended.ok else ended.reason} after {ended.seconds:.0f} s")
    return ended.ok


def as_json(ended: Ended) -> dict[str, object]:
    return asdict(ended)


if __name__ == "__main__":
    start(main)
