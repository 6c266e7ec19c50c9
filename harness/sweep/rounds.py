"""Servers under the same requests, in rounds A B B A, until their difference is known well enough."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Self

from harness.benchmark import doctor, steps
from harness.config import checkpoint
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import files, processes
from harness.core.document import Document, Line, Section, Tone, to_markdown
from harness.core.errors import BAD_INPUT, DONE, UsageError
from harness.core.markdown import Table, number
from harness.core.schema import SCHEMA, File, Model
from harness.core.screen import Display
from harness.core.statistics import ratio_interval
from harness.engines.discovery import with_served_model
from harness.loadgen.session import LoadGenSession
from harness.loadgen.test_run import TestRun
from harness.rates.source import find_rate
from harness.report import answer, compare, regression, report
from harness.report.compare import Pair
from harness.report.compare_page import letters
from harness.report.page import page
from harness.report.regression import AnswerChange, Condition, Judgement
from harness.results import accuracy, metrics
from harness.results.summary import Summary
from harness.runs.folder import FOLDER, BenchmarkRun, RunFolder, now

# What came of servers under the same requests, typed: comparison.json; each against the first, in words and as a page.
#
# Tests come in pairs, one of each server, in the order A B, B A, and so on: what changes evenly over the session
# cancels out. A pair in which the machine was busy is left out.
FILE, REPORT = "comparison.json", "report.html"
FEWEST_PAIRS = 4
# Of an interval at each look: the session ends at the first that is narrow enough. By benchmarks.rounds the last one
# then covers 0.955 or more, where looks are taken after 4, 6, 8, ... pairs, whatever the scatter.
LOOK_SHARE = 0.98
SPEED, OF_RATE = "tokens_per_sec", "latency_p50_ms"  # the first metric; where a rate is sent, which the speed follows


class SideTest(Model):
    """One test of one server: its metrics by name, and what other programs took of the machine meanwhile."""

    letter: str
    pair: int
    values: dict[str, float | None]
    busy: str = ""


class ServerComparison(File):
    """comparison.json: the servers by letter, all tests, and what was asked for."""

    command: str
    started: str
    subject: str
    servers: dict[str, str]
    first_metric: str
    within_percent: float
    ended: str = ""
    """Why no more pairs were run."""
    tests: list[SideTest] = []
    same_answers: dict[str, tuple[int, int]] = {}
    """By letter: how many answers are those of A, of how many."""
    judged: list[Judgement] = []

    @property
    def challengers(self) -> list[str]:
        return list(self.servers)[1:]

    def pairs(self, letter: str) -> list[tuple[SideTest, SideTest]]:
        """The tests of A and of another server that belong together, but for those on a busy machine."""
        found = {(test.letter, test.pair): test for test in self.tests if not test.busy}
        return [(test, found[letter, n]) for (side, n), test in found.items() if side == "A" and (letter, n) in found]

    def change(self, letter: str, metric: str) -> AnswerChange | None:
        """Of a metric against A; None where too few pairs have it."""
        each = [(a.values.get(metric), b.values.get(metric)) for a, b in self.pairs(letter)]
        ratios = [theirs / mine for mine, theirs in each if mine and theirs]
        if len(ratios) < FEWEST_PAIRS:
            return None
        return AnswerChange(*(100 * (value - 1) for value in ratio_interval(ratios, LOOK_SHARE)))

    @property
    def is_told(self) -> bool:
        """Whether there are pairs enough of each server."""
        return all(len(self.pairs(letter)) >= FEWEST_PAIRS for letter in self.challengers)

    @property
    def is_known(self) -> bool:
        """Whether each interval of the first metric is narrower than was asked for."""
        changes = [self.change(letter, self.first_metric) for letter in self.challengers]
        return all(change is not None and change.high - change.low < self.within_percent for change in changes)

    @property
    def code(self) -> int:
        return BAD_INPUT if not self.is_told else regression.exit_code(self.judged) if self.judged else DONE


def change_in_words(metric: str, change: AnswerChange) -> str:
    """A change in words; a change that is not shown is given with its largest possible size."""
    label = metrics.BY_NAME[metric].label.partition(",")[0]
    if change.low <= 0 <= change.high:
        return f"{label} equal within {number(ceil(10 * max(-change.low, change.high)) / 10, 3)} %"
    low, high = sorted((abs(change.low), abs(change.high)))
    size = f"{number(abs(change.percent), 2)} % {{}} ({number(low, 2)} to {number(high, 2)})"
    if metric == SPEED:
        return size.format("faster" if change.percent > 0 else "slower")
    return f"{label} {size.format('higher' if change.percent > 0 else 'lower')}"


def finding(found: ServerComparison, letter: str) -> str:
    """A server against A in one sentence: the first metric, the tail that users see, the answers."""
    names = dict.fromkeys((found.first_metric, "ttft_p99_ms"))
    said = [change_in_words(name, change) for name in names if (change := found.change(letter, name))]
    if letter in found.same_answers:
        said.append("{:,} of {:,} answers the same".format(*found.same_answers[letter]))
    is_verb = found.first_metric == SPEED and said and " equal " not in said[0]
    return f"{letter}{' is ' if is_verb else ': '}{', '.join(said)}"


def document(found: ServerComparison) -> Document:
    busy = len({test.pair for test in found.tests if test.busy})
    count = {letter: len(found.pairs(letter)) for letter in found.challengers}
    title = "; ".join(finding(found, letter) for letter in found.challengers)
    if not found.is_told:
        title = f"NOT JUDGED: {min(count.values())} pairs of tests on an idle machine; {FEWEST_PAIRS} are needed"
    lines = [
        *(Line(letter, said) for letter, said in found.servers.items()),
        *(Line(one.verdict, f"{one.condition}: {one.text}", regression.TONES[one.verdict]) for one in found.judged),
        Line("pairs", f"{', '.join(str(n) for n in count.values())}; {found.ended}"),
        Line("left out", f"{busy} pair{'s' * (busy > 1)} on a busy machine" if busy else "", "careful"),
    ]
    tone: Tone = "" if found.is_told else "careful"
    section = Section("All tests", f"{len({test.pair for test in found.tests})} pairs", tables(found))
    return Document(title, found.subject, [line for line in lines if line.text], tone=tone, sections=[section])


def tables(found: ServerComparison) -> list[Table]:
    """Each metric of each server against A, and all tests."""
    shown = [
        metric for metric in metrics.metrics_of("servers") if any(test.values.get(metric.name) for test in found.tests)
    ]
    changes = [(at, m, change) for at in found.challengers for m in shown if (change := found.change(at, m.name))]
    head = ["pair", "server", *(metric.label for metric in shown), "left out"]
    tests = [[str(t.pair), t.letter, *(number(t.values.get(m.name)) for m in shown), t.busy] for t in found.tests]
    rows = [[at, metric.label, change_in_words(metric.name, one), one.words] for at, metric, one in changes]
    interval = f"change ({100 * LOOK_SHARE:g} % interval)"
    return [*([Table(["", "metric", "against A", interval], rows)] if rows else []), Table(head, tests)]


def judge(found: ServerComparison, letter: str, one: Condition, pair: Pair | None) -> Judgement:
    """What comes of a condition on a server, by the same rules as between finished runs."""
    one = one._replace(text=f"{letter}: {one.text}")
    if one.metric is None or one.is_of_answers:
        if pair is None:
            return Judgement(one.text, "NOT JUDGED", why="no answers were compared")
        return regression.judge_pair(one, pair)
    name = one.metric.name
    sides = [[pair[n].values.get(name) or 0.0 for pair in found.pairs(letter)] for n in (0, 1)]
    if (change := found.change(letter, name)) is None or not all(map(all, sides)):
        return Judgement(one.text, "NOT JUDGED", why=f"fewer than {FEWEST_PAIRS} pairs have {one.metric.label}")
    return regression.judge_values(one, sides, change)


def write(folder: Path, found: ServerComparison) -> None:
    """Writes comparison.json and the page made of it."""
    files.write_json(folder / FILE, found.model_dump(mode="json"))
    build(folder)


def build(folder: Path) -> ServerComparison:
    """Writes report.md and report.html of a comparison's folder. Raises UsageError for a damaged file."""
    found = files.read(folder / FILE, ServerComparison)
    files.write_text(folder / "report.md", to_markdown(document(found)))
    files.write_text(folder / REPORT, page(document(found)))
    return found


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
        facts = self.run.facts
        return report.summarize(self.run.folder.path, facts, (test, facts) if test else None, None)

    def test(self, pair: int, first_metric: str) -> SideTest:
        """One test, shown as a line of a table. Raises UsageError where the first metric was not measured."""
        folder, plan, display = self.run.folder.sub(f"Rounds/{pair}"), self.run.plan, self.session.display
        display.stage(f"pair {pair}: {self.letter}", "load")
        self.session.drive("performance", plan, folder)
        test = TestRun.read(folder, plan)
        values, busy = metrics.values(self.summary(test), "compare"), "; ".join(test.machine.background_load)
        if not values.get(first_metric):
            raise UsageError(f"pair {pair}: {self.letter} has no {metrics.BY_NAME[first_metric].label}.")
        row = metrics.metrics_of("server row")
        cells = [str(pair), self.letter, *(number(values.get(metric.name)) for metric in row), busy]
        head = ["pair", "server", *(metric.label for metric in row), ""]
        display.leave_row(head, cells, good=not busy)
        return SideTest(letter=self.letter, pair=pair, values=values, busy=busy)

    def paired_answers(self, other: Self) -> Pair | None:
        """Its answers beside another's, where both were asked."""
        if self.run.config.mode != "both":
            return None
        mine, theirs = (side.run.folder.path / FOLDER["accuracy"] for side in (self, other))
        return compare.answers(mine, theirs, same_splitter=True)


def compare_servers(
    config: Any, conditions: Sequence[Condition], folder: RunFolder, display: Display
) -> ServerComparison:
    """The comparison that a CompareConfig asks for, kept in the folder after each round. Raises BenchmarkError."""
    sides: list[Side] = []
    flags = RunConfig.differing(vars(config))
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
        started=now(),
        subject=answer.subject(*(side.summary() for side in sides)),
        servers={
            side.letter: f"{side.run.config.endpoint[0]}, {side.run.facts.engine_args['server']}" for side in sides
        },
        first_metric=OF_RATE if is_rated else SPEED,
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
        judged = [judge(found, at, one, pair) for at, pair in pairs.items() for one in conditions]
        found = found.model_copy(update={"ended": ended, "judged": judged})
        write(folder.path, found)
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
    places = ceil(max(first.min_queries, first.target_qps * first.min_duration_s) / plan.concurrency)
    return replace(plan, fewest_queries=places * plan.concurrency, min_duration_s=SHORTEST_S)


def why_ended(found: ServerComparison, rounds: int, minutes: float, seconds: float) -> str:
    """Why no more pairs are run, in words; empty where more are."""
    count = len({test.pair for test in found.tests})
    if found.is_known:
        return f"known to less than {found.within_percent:g} % after {count}"
    if count >= 2 * rounds:
        return f"stopped after --rounds {rounds}"
    if seconds * (count + 2) / count > 60 * minutes:
        return f"--minutes {minutes:g} leave no time for another round"
    return ""
