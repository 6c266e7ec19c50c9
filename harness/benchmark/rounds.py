"""Servers under the same requests, in rounds A B B A, until their difference is known well enough."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.benchmark import doctor, steps, verdict
from harness.benchmark.rate import find_rate
from harness.benchmark.state import BenchmarkRun
from harness.benchmark.verdict import ServerComparison, SideTest
from harness.common import processes
from harness.common.errors import UsageError
from harness.common.markdown import number
from harness.common.schema import SCHEMA
from harness.config import checkpoint
from harness.config.run import RunConfig
from harness.engines.discovery import with_served_model
from harness.evaluation import accuracy
from harness.loadgen.session import LoadGenSession
from harness.loadgen.test_run import TestRun
from harness.reporting import answer, paired, report
from harness.reporting.compare_page import letters
from harness.reporting.paired import Pair
from harness.results import metrics
from harness.results.summary import Summary
from harness.runs import folder as results
from harness.runs.folder import FOLDER, RunFolder
from harness.terminal.progress import Display


@dataclass(frozen=True)
class Stopping:
    """When enough is known: percent between the ends of the first metric's interval, or so many rounds or minutes."""

    within: float
    rounds: int
    minutes: float


@dataclass(frozen=True)
class Side:
    """One of the servers: a run of its own, whose tests are driven one by one."""

    letter: str
    run: BenchmarkRun
    session: LoadGenSession

    @classmethod
    def begin(
        cls, config: RunConfig, folder: RunFolder, letter: str, first: LoadGenSession | None, display: Display
    ) -> "Side":
        """A server with its requests, which are those of the `first`."""
        config = with_served_model(config)
        doctor.require(config)
        tokenizer = checkpoint.load_tokenizer(config)
        run, library = steps.plan_run(config, tokenizer, RunFolder(folder.path, folder.sub(letter).name), display)
        session = steps.start_session(run, library)
        if first:
            session.run, session.settings = first.run, first.settings  # the salt of each test, and LoadGen's settings
        find_rate(run, session)
        if config.mode == "both":
            tested = session.test("accuracy", run.plan)
            accuracy.evaluate(tested.folder, run.plan, library, tokenizer)
        return cls(letter, run, session)

    def summary(self, test: TestRun | None = None) -> Summary:
        return report.summarize(self.run.folder.path, self.run.facts, test, None)

    def test(self, pair: int) -> Summary:
        """One test of the server, the logs in its folder."""
        plan = self.run.plan
        folder = self.run.folder.sub(f"Rounds/{pair}")
        self.session.display.stage(f"pair {pair}: {self.letter}", "load")
        self.session.drive("performance", plan, folder)
        return self.summary(TestRun.read(folder, plan))

    def paired_answers(self, other: "Side") -> Pair | None:
        """Its answers beside another's, where both were asked."""
        if self.run.config.mode != "both":
            return None
        mine, theirs = (side.run.folder.path / FOLDER["accuracy"] for side in (self, other))
        return paired.answers(mine, theirs, same_splitter=True)


def compare_servers(
    config: RunConfig, addresses: Sequence[str], stopping: Stopping, folder: RunFolder, display: Display
) -> tuple[ServerComparison, dict[str, Pair | None]]:
    """The comparison of servers, kept in the folder after each pair; the answers of each beside A's.

    Raises BenchmarkError where a server fails.
    """
    sides: list[Side] = []
    for letter, address in zip(letters(len(addresses)), addresses, strict=True):
        one = replace(config, endpoint=(address,), results_dir=folder.path)
        sides.append(Side.begin(one, folder, letter, sides[0].session if sides else None, display))
    first = sides[0]
    is_rated = first.run.config.scenario_rules.pattern.is_rated
    found = ServerComparison(
        schema_version=SCHEMA,
        command=processes.command_line(),
        started=results.now(),
        subject=answer.subject(*(side.summary() for side in sides)),
        servers={
            side.letter: f"{side.run.config.endpoint[0]}, {side.run.facts.engine_args['server']}" for side in sides
        },
        first_metric=verdict.OF_RATE if is_rated else verdict.SPEED,
        within_percent=stopping.within,
    )
    pairs = {side.letter: side.paired_answers(first) for side in sides[1:]}
    same = {letter: (pair.samples - len(pair.differing), pair.samples) for letter, pair in pairs.items() if pair}
    found = found.model_copy(update={"same_answers": same})
    begin, ended = time.monotonic(), ""
    while not ended:
        for order in (sides, sides[::-1]):
            count = len(found.tests) // len(sides) + 1
            tests = [side_test(side, count, found.first_metric) for side in order]
            found = found.model_copy(update={"tests": [*found.tests, *tests]})
        ended = why_ended(found, stopping, time.monotonic() - begin)
        found = found.model_copy(update={"ended": ended})
        verdict.write(folder.path, found)
    for side in sides:
        side.session.engine.close()
    return found, pairs


def side_test(side: Side, pair: int, first_metric: str) -> SideTest:
    """One test, shown as a line of a table. Raises UsageError where the first metric was not measured."""
    summary = side.test(pair)
    test, values = summary.run.performance, metrics.values(summary, "compare")
    if not values.get(first_metric):
        raise UsageError(f"pair {pair}: {side.letter} has no {metrics.BY_NAME[first_metric].label}.")
    busy = "; ".join(test.background_load) if test else ""
    cells = [str(pair), side.letter, *(number(values.get(name)) for name in verdict.ROW), busy]
    head = ["pair", "server", *(metrics.BY_NAME[name].label for name in verdict.ROW), ""]
    side.session.display.leave_row(head, cells, good=not busy)
    return SideTest(letter=side.letter, pair=pair, values=values, busy=busy)


def why_ended(found: ServerComparison, stopping: Stopping, seconds: float) -> str:
    """Why no more pairs are run, in words; empty where more are."""
    count = len({test.pair for test in found.tests})
    if found.is_known:
        return f"known to less than {found.within_percent:g} % after {count}"
    if count >= 2 * stopping.rounds:
        return f"--rounds {stopping.rounds} are over"
    if seconds * (count + 2) / count > 60 * stopping.minutes:
        return f"--minutes {stopping.minutes:g} leave no time for another round"
    return ""
