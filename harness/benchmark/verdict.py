"""What came of servers under the same requests, typed: comparison.json; each against the first, in words and as a page.

Tests come in pairs, one of each server, in the order A B, B A, and so on: what changes evenly over the session cancels
out. A pair in which the machine was busy is left out.
"""

import math
from dataclasses import replace
from pathlib import Path

from harness.common import files
from harness.common.errors import BAD_INPUT, DONE
from harness.common.markdown import Table, number, render
from harness.common.schema import File, Model
from harness.common.statistics import ratio_interval
from harness.pages.page import of_screen
from harness.reporting import regression
from harness.reporting.paired import Pair
from harness.reporting.regression import AnswerChange, Condition, Judgement
from harness.results import metrics
from harness.terminal.last_screen import LastScreen, Line, Tone

FILE, REPORT = "comparison.json", "report.html"
FEWEST_PAIRS = 4
# Of an interval at each look: the session ends at the first that is narrow enough. By benchmarks.rounds the last one
# then covers 0.955 or more, where looks are taken after 4, 6, 8, ... pairs, whatever the scatter.
LOOK_SHARE = 0.98
SPEED, OF_RATE = "tokens_per_sec", "latency_p50_ms"  # the first metric; where a rate is sent, which the speed follows
ROW = (SPEED, "ttft_p50_ms", "tpot_p50_ms", "latency_p50_ms")
SHOWN = (SPEED, "latency_p50_ms", "latency_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms")


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
        return f"{label} equal within {number(math.ceil(10 * max(-change.low, change.high)) / 10, 3)} %"
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


def last_screen(found: ServerComparison) -> LastScreen:
    busy = len({test.pair for test in found.tests if test.busy})
    count = {letter: len(found.pairs(letter)) for letter in found.challengers}
    title = "; ".join(finding(found, letter) for letter in found.challengers)
    if not found.is_told:
        title = f"NOT JUDGED: {min(count.values())} pairs of tests on an idle machine; {FEWEST_PAIRS} are needed"
    lines = [
        *(Line(letter, said) for letter, said in found.servers.items()),
        *(Line(one.verdict, f"{one.condition}: {one.text}", regression.TONES[one.verdict]) for one in found.judged),
        Line("pairs", f"{', '.join(str(n) for n in count.values())}; {found.ended}"),
        Line("left out", f"{busy} pairs on a busy machine" if busy else "", "careful"),
    ]
    tone: Tone = "" if found.is_told else "careful"
    return LastScreen(title, found.subject, [line for line in lines if line.text], tone=tone)


def tables(found: ServerComparison) -> list[Table]:
    """Each metric of each server against A, and all tests."""
    names = [name for name in SHOWN if any(test.values.get(name) for test in found.tests)]
    changes = [(at, name, change) for at in found.challengers for name in names if (change := found.change(at, name))]
    head = ["pair", "server", *(metrics.BY_NAME[name].label for name in names), "left out"]
    tests = [[str(t.pair), t.letter, *(number(t.values.get(name)) for name in names), t.busy] for t in found.tests]
    rows = [[at, metrics.BY_NAME[name].label, change_in_words(name, one), one.words] for at, name, one in changes]
    interval = f"change ({100 * LOOK_SHARE:g} % interval)"
    return [*([Table(["", "metric", "against A", interval], rows)] if rows else []), Table(head, tests)]


def judge(found: ServerComparison, letter: str, one: Condition, pair: Pair | None) -> Judgement:
    """What comes of a condition on a server, by the same rules as between finished runs."""
    return replace(judgement(found, letter, one, pair), condition=f"{letter}: {one.text}")


def judgement(found: ServerComparison, letter: str, one: Condition, pair: Pair | None) -> Judgement:
    if one.metric is None or one.is_of_answers:
        if pair is None:
            return Judgement(one.text, "NOT JUDGED", why="no answers were compared")
        return (regression.judge_answers if one.metric is None else regression.judge_score)(one, pair)
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
    screen, text = last_screen(found), "\n\n".join(map(str, tables(found)))
    files.write_text(folder / "report.md", f"{render('screen.md.j2', screen=screen)}\n\n{text}\n")
    pairs = len({test.pair for test in found.tests})
    files.write_text(folder / REPORT, of_screen(screen, folder, f"## All tests :: {pairs} pairs\n\n{text}\n", {}))
    return found
