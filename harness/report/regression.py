"""Whether finished runs are worse than a baseline, by conditions such as `output_tokens_per_s<-3%`.

What must not be judged is not: where the settings, the work or the machine differ, where a machine was busy, or where
the runs differ among themselves too much to tell.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from harness.config import comparability, mlperf
from harness.core import given_values, statistics
from harness.core.document import Document, Line, Tone
from harness.core.errors import BAD_INPUT, DONE, NOT_ACCEPTED, UsageError
from harness.core.formatting import joined, number
from harness.core.processes import command_of
from harness.report import compare, compare_page, subject
from harness.report.answer_comparison import AnswerPair
from harness.report.compare import ComparedRun, Runs
from harness.results.change import FEWEST_PAIRS, METHOD_TEXT, ONE_RUN_EACH, Change
from harness.results.metrics import METRIC_BY_NAME, Metric

GateVerdict = Literal["PASS", "FAIL", "NOT JUDGED"]
GATE_CONDITION = "accuracy gate"  # a condition that nobody writes
ZERO = "a value of 0 has no change"
CODES = {"FAIL": NOT_ACCEPTED, "NOT JUDGED": BAD_INPUT, "PASS": DONE}  # the first that is among the verdicts counts
CONDITION = re.compile(r"(?a)\s*(\w+)\s*([<>])\s*([+-]?)(\d+(?:\.\d+)?)\s*(%?)\s*")
ANSWERS_CONDITION = re.compile(r"(?a)\s*answers\s+changed\s*(?:>\s*(\d+(?:\.\d+)?)\s*%)?\s*")
VERDICT_TONES: dict[GateVerdict, Tone] = {"FAIL": "bad", "NOT JUDGED": "careful", "PASS": "good"}
METRIC_ALIASES = {"output_tokens_per_sec": "tokens_per_sec"}  # other names of metrics
# What a judgement lets differ: versions are often what is tried, a failed gate has its own verdict, and what is over a
# limit was measured all the same. Latencies do not follow from the configured rate; answers have no speed.
IGNORED_BY_GATE = ("software", "driver", comparability.GATE_FAILED, comparability.OVER_LIMIT)
OF_LATENCIES = (*IGNORED_BY_GATE, comparability.CONFIGURED)
OF_ANSWERS = (*IGNORED_BY_GATE, "busyness", "validity", "rate")


CHANCE = f"with fewer than {FEWEST_PAIRS} runs of each side, chance may decide it"


class Condition(NamedTuple):
    """What makes a run a regression. `bound`: percent of change to the baseline, or the value itself; without a metric,
    percent of the answers that may change.
    """

    text: str
    metric: Metric | None
    above: bool
    bound: float
    change: bool

    @property
    def is_of_answers(self) -> bool:
        return self.metric is None or self.metric.name in mlperf.SCORES

    def holds(self, value: float) -> bool:
        return value > self.bound if self.above else value < self.bound


class Judgement(NamedTuple):
    condition: str
    verdict: GateVerdict
    baseline: str = ""
    run: str = ""
    change: str = ""
    why: str = ""

    @property
    def figures(self) -> str:
        return joined("; ", self.change, self.run, self.baseline and f"baseline {self.baseline}")

    @property
    def text(self) -> str:
        return joined(": ", self.figures, self.why)


def condition(text: str) -> Condition:
    """A condition as it is written. Raises UsageError for any other text."""
    if found := ANSWERS_CONDITION.fullmatch(text):
        return Condition(text, None, True, float(found[1] or 0), False)
    if not (found := CONDITION.fullmatch(text)):
        form = "as in 'output_tokens_per_s<-3%', 'ttft_p99_ms>+10%', 'ttft_p99_ms>2000' or 'answers changed'"
        raise UsageError(f"--fail-if {text!r}: expected a metric, < or >, and a bound, {form}.")
    name, sign, signed, digits, percent = found.groups()
    name = re.sub(r"_per_s$", "_per_sec", name)
    metric = METRIC_BY_NAME.get(METRIC_ALIASES.get(name, name))
    if metric is None:
        raise UsageError(
            f"--fail-if {text!r}: no metric {name}{given_values.did_you_mean(name, [*METRIC_BY_NAME, *METRIC_ALIASES])}"
        )
    if signed and not percent:
        raise UsageError(f"--fail-if {text!r}: a change is in percent of the baseline, as in {name}{sign}{signed}3%.")
    return Condition(text, metric, sign == ">", float(signed + digits), bool(percent))


class Sides(NamedTuple):
    """What is compared: finished runs of either side, and the settings that may differ."""

    baseline: Runs
    runs: Runs
    may_differ: Sequence[str] = ()

    @property
    def everyone(self) -> list[ComparedRun]:
        return [*self.baseline, *self.runs]

    def difference(self, ignore: Collection[str]) -> str:
        """What keeps the first of the runs from being compared with another, in words; empty where nothing does."""
        first, *rest = self.everyone
        derived = [name for name in first.flags if name.startswith("effective_")] if self.may_differ else []
        allowed = {*self.may_differ, *derived} - set(first.comparable.work)  # an engine derives some from others
        for run in rest:
            found = comparability.differences(first.comparable, run.comparable, {*ignore, *allowed})
            if why := comparability.reason(found, (first.folder.name, run.folder.name)):
                return f"{why}: --may-differ names those that are meant to" if found[0].aspect == "settings" else why
        return ""

    def refusal_of_speed(self, metric: Metric) -> str:
        """Why this measurement may not be judged; empty where it may."""
        if metric.name.startswith("cost_") and len({run.flags.get("price_per_hour") for run in self.everyone}) > 1:
            return "other prices (price_per_hour)"
        if lacking := [run.folder.name for run in self.everyone if metric.of(run.summary) is None]:
            return f"{lacking[0]} has no figure for {metric.label}, or of too few requests"
        return self.difference(IGNORED_BY_GATE if metric.is_of_rate else OF_LATENCIES)


def judge(sides: Sides, conditions: Sequence[Condition]) -> list[Judgement]:
    """What comes of each condition, and before them of the accuracy gate where a run failed it."""
    failed = gate([run.folder.name for run in sides.runs if run.summary.gate == "FAIL"])
    why = sides.difference(OF_ANSWERS)
    return [*failed, *(not_judged(one, why) if why else judgement_of(sides, one) for one in conditions)]


def gate(failed: Sequence[str]) -> list[Judgement]:
    """What nobody needs to ask for: that no run failed its accuracy gate."""
    return [Judgement(GATE_CONDITION, "FAIL", why=f"failed by {', '.join(failed)}")] if failed else []


def not_judged(one: Condition, why: str, *figures: str) -> Judgement:
    return Judgement(one.text, "NOT JUDGED", *figures)._replace(why=why)


def judgement_of(sides: Sides, one: Condition) -> Judgement:
    if one.metric is None or one.is_of_answers:
        return judge_answers(sides, one)
    if why := sides.refusal_of_speed(one.metric):
        return not_judged(one, why)
    values = [[one.metric.of(run.summary) or 0.0 for run in side] for side in (sides.baseline, sides.runs)]
    return judge_values(one, values, Change.between(*values) if min(map(min, values)) > 0 else None)


def judge_values(one: Condition, values: Sequence[Sequence[float]], change: Change | None) -> Judgement:
    """A metric of both sides, and its change; None where it has none."""
    before, after = (", ".join(one.metric.text(value) if one.metric else "" for value in side) for side in values)
    if not one.change:
        return judge_worst(one, values[1], before, after)
    return judge_change(one, change, before, after) if change else not_judged(one, ZERO, before, after)


def judge_worst(one: Condition, values: Iterable[float], *sides: str) -> Judgement:
    return Judgement(one.text, "FAIL" if any(map(one.holds, values)) else "PASS", *sides)


def judge_change(one: Condition, change: Change, before: str, after: str) -> Judgement:
    """FAIL where the whole interval is beyond the bound, PASS where it is wholly within; of one run of each, whose
    scatter is not known, by the change itself.
    """
    is_alone, beyond = change.basis == ONE_RUN_EACH, "above" if one.above else "below"
    side = (change._replace(low=change.mean, high=change.mean) if is_alone else change).verdict(one.bound)
    if side == "unclear":
        what = "samples" if change.basis == "samples" else "runs"
        why = f"the {what} scatter too much to say whether it is beyond {one.bound:+g} %: add {what}"
        return not_judged(one, why, before, after, change.signed)
    verdict: GateVerdict = "FAIL" if side == beyond else "PASS"
    doubt = CHANCE if change.may_be_chance else ""
    return Judgement(one.text, verdict, before, after, change.signed, doubt)


def judge_answers(sides: Sides, one: Condition) -> Judgement:
    """What comes of a condition on the answers: the worst of all runs against the first of the baseline."""
    found, first = [], sides.baseline[0]
    for run in sides.runs:
        if (pair := run.paired_answers(first)) is None:
            why = f"{run.folder.name} and {first.folder.name} have no answers to the same samples"
            if mute := [each.folder.name for each in (run, first) if each.summary.gate is None]:
                why = f"{mute[0]} has no accuracy test: run it with --mode both"
            return not_judged(one, why)
        found.append(judge_pair(one, pair))
    return gravest(found)


def judge_pair(one: Condition, pair: AnswerPair) -> Judgement:
    """What comes of a condition on the answers: on a score, or whether more than allowed have other tokens."""
    if one.metric:
        return judge_score(one, pair, one.metric.name)
    return judge_worst(one, [100 * len(pair.differing) / pair.samples])._replace(change=pair.words)


def judge_score(one: Condition, pair: AnswerPair, name: str) -> Judgement:
    """A score, its change in percent of the baseline's with the paired-bootstrap interval, or its value."""
    score = pair.scores.get(name)
    if score is None:
        return not_judged(one, "it is not a mean over samples, so its change has no interval")
    sides = number(score.before, 6), number(score.after, 6)
    if not one.change:
        return judge_worst(one, [score.after], *sides)
    if not score.before:
        return not_judged(one, ZERO, *sides)
    mean, low, high = (1 + value / score.before for value in (score.change, score.low, score.high))
    found = judge_change(one, Change(mean, low, high, "samples", pair.samples), *sides)
    if found.verdict == "FAIL" and score.few:
        why = f"too few samples, or fewer than {statistics.FEWEST_DIFFERING} of them with another score"
        return found._replace(verdict="NOT JUDGED", why=why)
    return found


def gravest(judgements: Sequence[Judgement]) -> Judgement:
    """The first that holds; else the first that could not be judged; else the first."""
    return min(judgements, key=lambda one: [*CODES].index(one.verdict))


def exit_code(judgements: Sequence[Judgement]) -> int:
    return CODES[gravest(judgements).verdict]


def document(sides: Sides, judgements: Sequence[Judgement]) -> Document:
    """The verdict with its figures, a line for each condition, and what differs."""
    everyone, first = sides.everyone, gravest(judgements)
    is_passed, why = first.verdict == "PASS", (first.verdict == "FAIL" and first.figures) or first.why
    title = f"{first.verdict}: {'no condition holds' if is_passed else f'{first.condition}: {why}'}"
    if any(one.why == CHANCE for one in judgements):
        title = f"{title} ({CHANCE})"
    lines = [
        *(Line(one.verdict, f"{one.condition}: {one.text}", VERDICT_TONES[one.verdict]) for one in judgements),
        Line("interval", METHOD_TEXT),
        Line("differs", compare_page.difference(everyone)),
        *(Line("careful", said, "careful") for run in everyone for said in compare.cautions(run, run.name)),
        Line("baseline", ", ".join(str(run.folder) for run in sides.baseline)),
        Line("run", ", ".join(str(run.folder) for run in sides.runs)),
        Line(  # which shows a change on a busy machine, too
            "next",
            "" if is_passed else f"{command_of('report')} --compare {sides.baseline[0].folder} {sides.runs[0].folder}",
            is_command=True,
        ),
    ]
    return Document(
        title, subject.subject_of(*(run.summary for run in everyone)), lines, tone=VERDICT_TONES[first.verdict]
    )
