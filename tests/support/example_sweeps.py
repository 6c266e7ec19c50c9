"""Sweep files and records, made by hand."""

from pathlib import Path
from typing import Any

from harness.core.system import System
from harness.sweep import file as sweep_file
from harness.sweep import loop
from harness.sweep import report as sweep_report
from harness.sweep.experiment import ExperimentOutcome, ExperimentRecord
from harness.sweep.file import BASELINE, Experiment, Sweep
from harness.sweep.report import STATE_ADAPTER
from harness.sweep.sweep_state import SweepOptions, SweepState

SHORT = "baseline:\n  set: {model: demo, total_sample_count: 16, mode: performance, min_duration: 0.5}\n"


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def state(*records: ExperimentRecord) -> sweep_report.State:
    names = dict.fromkeys(record.experiment for record in records)
    kinds = {BASELINE: "baseline"}
    items = tuple(Experiment(name, "", kinds.get(name, "stacked"), {}, {}, {}) for name in names)  # type: ignore[arg-type]
    system = System(cpu="a CPU", cores=2, packages={"vllm": "0"})
    return sweep_report.State("python sweep.py", "2026-01-31T10:00:00+0000", system, Sweep("s", "", items), records)


def ran(name: str, speed: float, turn: int = 0, **more: object) -> ExperimentRecord:
    known = {"tokens_per_sec": speed, "valid": True, "verdict": "PASS", "rouge1": 40.0, "duration_s": 10.0, **more}
    verdicts = {key: known.pop(key) for key in ("valid", "verdict", "flaws") if key in known}
    return ExperimentRecord(name, turn, "complete", outcome=ExperimentOutcome(known, **verdicts))


def loaded(folder: Path, experiments: str) -> Sweep:
    return sweep_file.load_sweep(written(folder, SHORT + "isolation:\n" + experiments))


def kept(given: sweep_report.State) -> dict[str, Any]:
    """What sweep.json holds of a state."""
    return STATE_ADAPTER.dump_python(given, mode="json", by_alias=True)  # type: ignore[no-any-return]


def opened(sweep: Sweep, folder: Path, options: SweepOptions | None = None, resume: bool = False) -> SweepState:
    """A sweep of all its experiments, of which none has run, or some had."""
    return loop.begin_sweep(sweep, folder, list(sweep.experiments), options or SweepOptions(), {}, resume, 0.0)
