"""Runs probes and attempts in a session of LoadGen tests; each is a probe for the search, the report and the curves."""

import itertools
from dataclasses import replace
from pathlib import Path

from harness.config.plan import Plan
from harness.loadgen.session import LoadGenSession
from harness.loadgen.test_run import TestRun
from harness.rates.points import probe_of
from harness.runs.probe import Probe


def run_attempt(session: LoadGenSession, plan: Plan) -> tuple[TestRun, Probe]:
    """The performance test of the run: what it left, and as a point of a curve."""
    test = TestRun.read(session.test("performance", plan), plan)
    return test, probe_of(test, plan, session.folder.path)


def set_aside(session: LoadGenSession, attempt: Probe, number: int) -> Probe:
    """Moves the logs of a performance test that another one follows."""
    folder = session.folder.sub("Attempts") / str(number)
    (session.folder.path / attempt.folder).rename(folder)
    return replace(attempt, folder=str(folder.relative_to(session.folder.path)))


def run_probe(session: LoadGenSession, short: Plan, reason: str = "") -> Probe:
    """A short performance test: `short` is the run's plan with its own load, and less of everything else; the
    reason for it is shown."""
    load = short.config.scenario_rules.pattern.text(short.load)
    folder = make_folder(session.folder.sub("Probes"), load.partition(" ")[0])
    session.display.stage(f"probe at {load}, {short.length}", "load", reason)
    session.drive("performance", short, folder)
    probe = probe_of(TestRun.read(folder, short), short, session.folder.path)
    session.display.leave_row(probe.head, probe.cells, good=not probe.why, why="" if probe.concurrency else probe.why)
    return probe


def make_folder(probes: Path, load: str) -> Path:
    """A new folder for the logs of a probe, named by its load; by a number, too, where the same was probed before."""
    names = (load if n == 1 else f"{load}-{n}" for n in itertools.count(1))
    folder = next(probes / name for name in names if not (probes / name).exists())
    folder.mkdir()
    return folder
