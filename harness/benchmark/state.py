"""A run under way: its folder, the screen, and what is known of it."""

from dataclasses import dataclass
from typing import Self

from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.runs import folder as results
from harness.runs.folder import RunFolder
from harness.runs.records import RunFacts
from harness.terminal.progress import Display


@dataclass(frozen=True)
class BenchmarkRun:
    """One run under way: its folder, the screen, and what is known of it, which config.json always holds."""

    folder: RunFolder
    display: Display
    facts: RunFacts

    @classmethod
    def begin(cls, plan: Plan, folder: RunFolder, display: Display) -> Self:
        """A run whose settings are known as far as they can be before its samples are read."""
        run = cls(folder, display, RunFacts(plan=plan, deviations=[], **results.first_facts()))
        run.adopt(plan)
        return run

    @property
    def plan(self) -> Plan:
        return self.facts.plan

    @property
    def config(self) -> RunConfig:
        return self.plan.config

    def adopt(self, plan: Plan) -> None:
        """Takes the plan as it is known now, and says what is new in it: a rate, or why nothing can be compared."""
        told = self.facts.deviations
        self.facts.adopt(plan)
        self.save()
        if new := [reason for reason in plan.deviations if reason not in told]:
            self.display.say(f"not comparable with MLPerf results: {'; '.join(new)}", style="yellow")

    def save(self) -> None:
        results.record_facts(self.folder, self.facts)

    def warn_short(self) -> None:
        if self.plan.too_short:
            self.display.say(self.plan.too_short, style="yellow")
