"""Servers under the same requests, in rounds A B B A, until their difference is known well enough."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from harness.benchmark import doctor, steps, verdict
from harness.benchmark.rate import find_rate
from harness.benchmark.state import BenchmarkRun
from harness.benchmark.verdict import ServerComparison, SideTest
from harness.common import processes
from harness.common.errors import UsageError
from harness.common.markdown import number
from harness.common.schema import SCHEMA
from harness.config import checkpoint
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.engines.discovery import with_served_model
from harness.evaluation import accuracy
from harness.loadgen.session import LoadGenSession
from harness.loadgen.test_run import TestRun
from harness.reporting import answer, paired, report
from harness.reporting.compare_page import letters
from harness.reporting.paired import Pair
from harness.reporting.regression import Condition
from harness.results import metrics
from harness.results.summary import Summary
from harness.runs import folder as results
from harness.runs.folder import FOLDER, RunFolder
from harness.terminal.progress import Display

SHORTEST_S = 0.001  # of a test whose number of queries ends it


@dataclass(frozen=True)
class Side:
    """One of the servers: a run, whose tests are driven one by one."""

    letter: str
    run: BenchmarkRun
    session: LoadGenSession

    @classmethod
    def begin(cls, letter: str, config: RunConfig, folder: RunFolder, before: Sequence[Self], display: Display) -> Self:
        """A server with its requests, which are those of the sides `before`, and its answers."""
        tokenizer = checkpoint.load_tokenizer(config)
        run, library = steps.plan_run(config, tokenizer, RunFolder(folder.path, folder.sub(letter).name), display)
        session = steps.start_session(run, library)
        for side in before:  # the salt of each test, and LoadGen's settings
            session.run, session.settings = side.session.run, side.session.settings
        find_rate(run, session)
        run.adopt(of_the_same_length(run.plan, before[0].run.plan if before else run.plan))
        if config.mode == "both":
            accuracy.evaluate(session.test("accuracy", run.plan), run.plan, library, tokenizer)
        return cls(letter, run, session)

    def summary(self, test: TestRun | None = None) -> Summary:
        return report.summarize(self.run.folder.path, self.run.facts, test, None)

    def test(self, pair: int, first_metric: str) -> SideTest:
        """One test, shown as a line of a table. Raises UsageError where the first metric was not measured."""
        folder, plan, display = self.run.folder.sub(f"Rounds/{pair}"), self.run.plan, self.session.display
        display.stage(f"pair {pair}: {self.letter}", "load")
        self.session.drive("performance", plan, folder)
        test = TestRun.read(folder, plan)
        values, busy = metrics.values(self.summary(test), "compare"), "; ".join(test.machine.background_load)
        if not values.get(first_metric):
            raise UsageError(f"pair {pair}: {self.letter} has no {metrics.BY_NAME[first_metric].label}.")
        cells = [str(pair), self.letter, *(number(values.get(name)) for name in verdict.ROW), busy]
        head = ["pair", "server", *(metrics.BY_NAME[name].label for name in verdict.ROW), ""]
        display.leave_row(head, cells, good=not busy)
        return SideTest(letter=self.letter, pair=pair, values=values, busy=busy)

    def paired_answers(self, other: Self) -> Pair | None:
        """Its answers beside another's, where both were asked."""
        if self.run.config.mode != "both":
            return None
        mine, theirs = (side.run.folder.path / FOLDER["accuracy"] for side in (self, other))
        return paired.answers(mine, theirs, same_splitter=True)


def compare_servers(
    config: Any, conditions: Sequence[Condition], folder: RunFolder, display: Display
) -> ServerComparison:
    """The comparison that a CompareConfig asks for, kept in the folder after each round. Raises BenchmarkError."""
    sides: list[Side] = []
    flags = {item.name: getattr(config, item.name) for item in fields(RunConfig)}
    each = (RunConfig(**flags | {"endpoint": (one,), "results_dir": folder.path}) for one in config.endpoint)
    configs = [with_served_model(one) for one in each]
    for one in configs:  # what any of them lacks is found before the first test
        doctor.require(one)
    for letter, one in zip(letters(len(configs)), configs, strict=True):
        sides.append(Side.begin(letter, one, folder, sides, display))
    first, *challengers = sides
    pairs = {side.letter: side.paired_answers(first) for side in challengers}
    is_rated = config.scenario_rules.pattern.is_rated
    found = ServerComparison(
        schema_version=SCHEMA,
        command=processes.command_line(),
        started=results.now(),
        subject=answer.subject(*(side.summary() for side in sides)),
        servers={
            side.letter: f"{side.run.config.endpoint[0]}, {side.run.facts.engine_args['server']}" for side in sides
        },
        first_metric=verdict.OF_RATE if is_rated else verdict.SPEED,
        within_percent=config.within,
        same_answers={at: (pair.samples - len(pair.differing), pair.samples) for at, pair in pairs.items() if pair},
    )
    begin = time.monotonic()
    while not found.ended:
        for order in (sides, sides[::-1]):
            count = len(found.tests) // len(sides) + 1
            tests = [side.test(count, found.first_metric) for side in order]
            found = found.model_copy(update={"tests": [*found.tests, *tests]})
        ended = why_ended(found, config.rounds, config.minutes, time.monotonic() - begin)
        judged = [verdict.judge(found, at, one, pair) for at, pair in pairs.items() for one in conditions]
        found = found.model_copy(update={"ended": ended, "judged": judged})
        verdict.write(folder.path, found)
    for side in sides:
        side.session.engine.close()
    return found


def of_the_same_length(plan: Plan, first: Plan) -> Plan:
    """The plan with the queries of the first server's: in a closed loop a number of them, whole rounds of its slots,
    since a test that ends by time ends with some slots empty."""
    if first.target_qps is None:
        return plan
    if first.fewest_queries or not plan.concurrency:
        lasting = {"fewest_queries": first.fewest_queries, "min_duration_s": first.min_duration_s}
        return replace(plan, target_qps=first.target_qps, **lasting)  # type: ignore[arg-type]
    places = math.ceil(max(first.min_queries, first.target_qps * first.min_duration_s) / plan.concurrency)
    return replace(plan, fewest_queries=places * plan.concurrency, min_duration_s=SHORTEST_S)


def why_ended(found: ServerComparison, rounds: int, minutes: float, seconds: float) -> str:
    """Why no more pairs are run, in words; empty where more are."""
    count = len({test.pair for test in found.tests})
    if found.is_known:
        return f"known to less than {found.within_percent:g} % after {count}"
    if count >= 2 * rounds:
        return f"--rounds {rounds} are over"
    if seconds * (count + 2) / count > 60 * minutes:
        return f"--minutes {minutes:g} leave no time for another round"
    return ""
