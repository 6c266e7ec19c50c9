"""The regression gate: finished runs against a baseline, by conditions such as `output_tokens_per_s<-3%`.

It does not judge if the settings, the work or the machine differ, or if the runs of a side differ too much among
themselves. On a busy machine it judges only changes of a speed or a time that the load cannot explain.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

from harness.config import comparability, mlperf
from harness.core import statistics
from harness.core.document import Document, Line, Tone, caution_line
from harness.core.errors import BAD_INPUT, DONE, NOT_ACCEPTED, UsageError
from harness.core.formatting import joined_text, number
from harness.core.processes import command_to_type
from harness.report import compare, compare_page, subject
from harness.report.answer_comparison import AnswerPair
from harness.report.compare import ComparedRun, Runs
from harness.results.change import FEWEST_PAIRS, METHOD_TEXT, ONE_RUN_EACH, Change
from harness.results.metrics import METRIC_NAMES, Metric, metric_named, unknown_metric

GateVerdict = Literal["PASS", "FAIL", "NOT JUDGED"]
GATE_CONDITION = "accuracy gate"  # the name of the condition that always applies, without --fail-if
NO_CHANGE_OF_ZERO = "a value of 0 has no change"
# The verdict that decides is the first of these that any condition has.
EXIT_CODES: dict[GateVerdict, int] = {"FAIL": NOT_ACCEPTED, "NOT JUDGED": BAD_INPUT, "PASS": DONE}
CONDITION_PATTERN = re.compile(r"(?a)\s*(\w+)\s*([<>])\s*([+-]?)(\d+(?:\.\d+)?)\s*(%?)\s*")
ANSWERS_PATTERN = re.compile(r"(?a)\s*answers\s+changed\s*(?:>\s*(\d+(?:\.\d+)?)\s*%)?\s*")
CONDITION_EXAMPLES = "as in 'output_tokens_per_s<-3%', 'ttft_p99_ms>+10%', 'ttft_p99_ms>2000' or 'answers changed'"
VERDICT_TONES: dict[GateVerdict, Tone] = {"FAIL": "bad", "NOT JUDGED": "careful", "PASS": "good"}
# A judgement lets these differ: versions are often what is tested, a failed gate has its own verdict, and a latency
# over its limit is a measurement all the same.
IGNORED_FOR_SPEEDS = ("software", "driver", comparability.GATE_FAILED, comparability.OVER_LIMIT)
IGNORED_FOR_LATENCIES = (*IGNORED_FOR_SPEEDS, comparability.CONFIGURED_RATE)  # Latencies do not follow from the rate.
IGNORED_FOR_ANSWERS = (*IGNORED_FOR_SPEEDS, "busyness", "validity", "rate")  # The last three concern only speeds.
LARGEST_LOSS_PERCENT = -100
PERCENT_DIGITS = 3  # decimal places of a percentage in JSON
CHANCE_NOTE = f"with fewer than {FEWEST_PAIRS} runs of each side, chance may decide it"


class Condition(NamedTuple):
    """A condition that makes a run a regression."""

    text: str
    metric: Metric | None
    """None for a condition on how many answers changed."""
    is_upper_bound: bool
    """Whether a value above the bound is a regression; else one below it."""
    bound: float
    """Percent of change to the baseline, or the value itself; without a metric, percent of the answers."""
    is_of_change: bool
    """Whether the bound is one of the change to the baseline."""

    @property
    def is_of_answers(self) -> bool:
        """Tell whether the condition is on a score or on how many answers changed, not on a speed."""
        return self.metric is None or self.metric.name in mlperf.SCORES

    def holds(self, value: float) -> bool:
        """Tell whether a value is beyond the bound. A condition of --fail-if that holds is a regression."""
        if self.is_upper_bound:
            return value > self.bound
        return value < self.bound


class Judgement(NamedTuple):
    """The verdict on one condition, with the figures of both sides."""

    condition: str
    verdict: GateVerdict
    baseline: str = ""
    run: str = ""
    baseline_values: Sequence[float] = ()
    run_values: Sequence[float] = ()
    change: Change | None = None
    """From the baseline to the runs; None for a bound on a value or on the answers, and where nothing was judged."""
    answers: AnswerPair | None = None
    """The answers of both sides, for a condition on how many changed."""
    why: str = ""
    """Why nothing was judged, or what makes the verdict uncertain."""

    @property
    def change_text(self) -> str:
        """The change in percent with its interval, or how many answers changed; empty if neither was judged."""
        if self.answers:
            return self.answers.words
        return self.change.signed if self.change else ""

    @property
    def figures(self) -> str:
        """The change and the values of both sides, in words, as far as the judgement has them."""
        figures = [self.change_text, self.run]  # `run` and `baseline` are the values of the two sides, as text.
        if self.baseline:
            figures.append(f"baseline {self.baseline}")
        return joined_text("; ", *figures)

    @property
    def text(self) -> str:
        return joined_text(": ", self.figures, self.why)


def parse_condition(text: str) -> Condition:
    """Return the condition for a text such as "ttft_p99_ms>+10%" or "answers changed > 5 %".

    A bound in percent of the baseline has a sign, a bound on the value has none. Raises UsageError for any other text.
    """
    answers_parts = ANSWERS_PATTERN.fullmatch(text)
    if answers_parts:
        most_percent = float(answers_parts[1] or 0)  # Without a bound, no answer may change.
        return Condition(text, metric=None, is_upper_bound=True, bound=most_percent, is_of_change=False)
    parts = CONDITION_PATTERN.fullmatch(text)
    if not parts:
        raise UsageError(f"--fail-if {text!r}: expected a metric, < or >, and a bound, {CONDITION_EXAMPLES}.")
    name, comparison, sign, digits, percent = parts.groups()
    metric = metric_named(name)
    if metric is None:
        raise UsageError(f"--fail-if {text!r}: {unknown_metric(name, METRIC_NAMES)}")
    is_of_change = bool(percent)
    if is_of_change and not sign:
        likely_sign = "-" if comparison == "<" else "+"
        raise UsageError(f"--fail-if {text!r}: a change has a sign, as in {name}{comparison}{likely_sign}{digits}%.")
    if sign and not is_of_change:
        raise UsageError(
            f"--fail-if {text!r}: a change is in percent of the baseline, as in {name}{comparison}{sign}3%."
        )
    bound = float(sign + digits)
    if is_of_change and bound <= LARGEST_LOSS_PERCENT:
        raise UsageError(f"--fail-if {text!r}: nothing can lose {digits} % or more.")
    return Condition(text, metric, is_upper_bound=comparison == ">", bound=bound, is_of_change=is_of_change)


def is_derived_setting(name: str) -> bool:
    """Tell whether the engine derives a setting from others, instead of the user choosing it."""
    return name.startswith("effective_")


class Sides(NamedTuple):
    """Two sets of finished runs that are compared, and the settings that may differ between them."""

    baseline: Runs
    runs: Runs
    may_differ: Sequence[str] = ()

    @property
    def all_runs(self) -> list[ComparedRun]:
        return [*self.baseline, *self.runs]

    def difference(self, ignore: Collection[str]) -> str:
        """Return what keeps the first run from being compared with another, in words; empty if nothing does.

        Aspects and names in `ignore` may differ, and so may the settings in `may_differ`. If only settings differ, the
        text says how to allow that.
        """
        first, *other_runs = self.all_runs
        for run in other_runs:
            differences = comparability.differences(
                first.comparable, run.comparable, {*ignore, *self.settings_that_may_differ}
            )
            if not differences:
                continue
            why = comparability.reason(differences, (first.folder.name, run.folder.name))
            # Differences in the work come before those in the settings. So if a setting is the first difference, the
            # work is the same, and the user may allow the settings.
            if differences[0].aspect == "settings":
                return f"{why}: `{flags_to_allow(differences)}` if that is intended"
            return why
        return ""

    @property
    def settings_that_may_differ(self) -> set[str]:
        """The settings that the user allows to differ, and with them those that the engine derives from others.

        Other work, such as other samples, is never allowed: figures of other work cannot be compared.
        """
        first = self.all_runs[0]
        allowed = set(self.may_differ)
        if self.may_differ:
            allowed.update(filter(is_derived_setting, first.setting_texts))
        return allowed - set(first.comparable.work)

    @property
    def is_busy(self) -> bool:
        """Tell whether other programs ran during the test of any run."""
        return bool(compare.busy_runs(self.all_runs))

    @property
    def has_enough_runs(self) -> bool:
        """Tell whether each side has so many runs that they show how it scatters.

        Only then can runs of a busy machine be judged.
        """
        return min(len(self.baseline), len(self.runs)) >= FEWEST_PAIRS

    def on_busy_machine(self, change: Change, metric: Metric) -> Change:
        """Return a change with an interval that allows for what other programs took during the runs of each side."""
        before, after = (max(run.others_cpu_share for run in runs) for runs in (self.baseline, self.runs))
        return change.of_metric_on_busy_machine(metric, before, after)

    def reason_not_to_judge(self, condition: Condition, metric: Metric) -> str:
        """Return why a condition on a metric may not be judged, in words; empty if it may."""
        prices = {run.setting_texts.get("price_per_hour") for run in self.all_runs}
        if metric.name.startswith("cost_") and len(prices) > 1:
            return "different prices (price_per_hour)"
        for run in self.all_runs:
            if metric.of(run.summary) is None:  # also for a p99 of so few requests that it does not count
                return f"{run.folder.name} has no figure for {metric.label}, or of too few requests"
        # A rate that the user gave forbids a judgement of the speed, which then follows from it, but not of a latency.
        ignored = IGNORED_FOR_SPEEDS if metric.is_decided_by_rate else IGNORED_FOR_LATENCIES
        if not self.is_busy or not self.can_allow_for_load(condition, metric):
            return self.difference(ignored)  # A busy machine is one of the differences, too.
        reason_beside_load = self.difference((*ignored, "busyness"))
        if reason_beside_load:
            return reason_beside_load
        # Only the load of other programs is in the way. With enough runs, their scatter shows what it explains.
        if self.has_enough_runs:
            return ""
        busyness = self.difference(ignored)
        return f"{busyness}: {FEWEST_PAIRS} runs of each side would show what the load explains"

    def can_allow_for_load(self, condition: Condition, metric: Metric) -> bool:
        """Tell whether the interval of a change can be made wide enough for the load of other programs.

        That takes a condition on the change of a speed or a time, and a known load.
        """
        is_speed_or_time = metric.is_decided_by_rate or metric.is_time
        return condition.is_of_change and is_speed_or_time and compare.is_load_known(self.all_runs)


def flags_to_allow(differences: Sequence[comparability.Difference]) -> str:
    """Return the flags by which a user allows the settings among these differences.

    A setting that the engine derives gets a flag only if no other setting differs: it may differ as soon as the user
    allows one of the others.
    """
    names = [difference.name for difference in differences if difference.aspect == "settings"]
    chosen_names = [name for name in names if not is_derived_setting(name)]
    return " ".join(f"--may-differ {name}" for name in chosen_names or names)


def judge(sides: Sides, conditions: Sequence[Condition]) -> list[Judgement]:
    """Return a judgement for each condition. If runs failed their accuracy gate, a FAIL of that gate comes first.

    The gate of the baseline does not count.
    """
    judgements = list[Judgement]()
    failed_runs = [run.folder.name for run in sides.runs if run.summary.gate == "FAIL"]
    if failed_runs:
        judgements.append(accuracy_gate_failure(failed_runs))
    difference = sides.difference(IGNORED_FOR_ANSWERS)
    # Of all conditions, those on answers allow the most differences. What not even they allow forbids every judgement.
    if difference:
        judgements += [not_judged(condition, difference) for condition in conditions]
    else:
        judgements += [judge_condition(sides, condition) for condition in conditions]
    return judgements


def accuracy_gate_failure(names: Sequence[str]) -> Judgement:
    """Return the judgement FAIL of the accuracy gate. `names` are those of the runs that failed it."""
    return Judgement(GATE_CONDITION, "FAIL", why=f"failed by {', '.join(names)}")


def not_judged(
    condition: Condition, why: str, before: str = "", after: str = "", change: Change | None = None
) -> Judgement:
    """Return NOT JUDGED with the reason `why`. `before` and `after` are the values of both sides as text, if known."""
    return Judgement(condition.text, "NOT JUDGED", before, after, change=change, why=why)


def judge_condition(sides: Sides, condition: Condition) -> Judgement:
    """Return the judgement of one condition: on the answers, or on the values of a metric.

    NOT JUDGED if the metric of the two sides may not be compared.
    """
    metric = condition.metric
    if metric is None or condition.is_of_answers:
        return judge_answers(sides, condition)
    why = sides.reason_not_to_judge(condition, metric)
    if why:
        return not_judged(condition, why)
    before = [metric.of(run.summary) or 0.0 for run in sides.baseline]
    after = [metric.of(run.summary) or 0.0 for run in sides.runs]
    change = None
    if min(*before, *after) > 0:  # With a 0 on either side there is no ratio, and so no change.
        change = Change.between(before, after)
        if sides.is_busy:
            change = sides.on_busy_machine(change, metric)
    return judge_values(condition, before, after, change)


def judge_values(
    condition: Condition, before: Sequence[float], after: Sequence[float], change: Change | None
) -> Judgement:
    """Return the judgement of a metric: by its change, or by the worst value of the runs if the bound is on the value.

    `before` has the values of the baseline, `after` those of the runs.
    """
    shown_before = shown_after = ""
    if condition.metric:
        shown_before = ", ".join(map(condition.metric.text, before))
        shown_after = ", ".join(map(condition.metric.text, after))
    if not condition.is_of_change:
        judgement = judge_worst(condition, after, shown_before, shown_after)
    elif change is None:
        judgement = not_judged(condition, NO_CHANGE_OF_ZERO, shown_before, shown_after)
    else:
        judgement = judge_change(condition, change, shown_before, shown_after)
    return judgement._replace(baseline_values=before, run_values=after)


def judge_worst(condition: Condition, values: Iterable[float], before: str = "", after: str = "") -> Judgement:
    """Return FAIL if the condition (of --fail-if) holds for any of the values, else PASS.

    `before` and `after` are the values as text.
    """
    verdict: GateVerdict = "PASS"
    if any(map(condition.holds, values)):
        verdict = "FAIL"
    return Judgement(condition.text, verdict, before, after)


def judge_change(condition: Condition, change: Change, before: str, after: str) -> Judgement:
    """Return the judgement of a change: NOT JUDGED if the bound lies within its interval, FAIL if the whole interval is
    beyond the bound, else PASS.

    `before` and `after` are the values of both sides as text.
    """
    judged_change = change
    if change.basis == ONE_RUN_EACH:
        judged_change = change._replace(low=change.mean, high=change.mean)  # The scatter of one run is not known.
    side_of_bound = judged_change.verdict(condition.bound)
    if side_of_bound == "unclear":
        # The remedy depends on what the interval is of: runs, or the samples of a score.
        why = f"the runs vary too much to tell whether it is beyond {condition.bound:+g} %: add runs"
        if change.basis == "samples":
            why = f"too few samples to tell whether it is beyond {condition.bound:+g} %"
        return not_judged(condition, why, before, after, change)
    regression_side = "above" if condition.is_upper_bound else "below"
    verdict: GateVerdict = "PASS"
    if side_of_bound == regression_side:
        verdict = "FAIL"
    doubt = CHANCE_NOTE if change.has_too_few_runs else ""
    return Judgement(condition.text, verdict, before, after, change=change, why=doubt)


def judge_answers(sides: Sides, condition: Condition) -> Judgement:
    """Return the judgement of a condition on the answers: the gravest of the judgements of all runs.

    Each run is compared with the first run of the baseline. NOT JUDGED if the answers of a run cannot be compared.
    """
    first = sides.baseline[0]
    judgements = []
    for run in sides.runs:
        answers = run.paired_answers(first)
        if answers is None:
            return not_judged(condition, why_answers_not_compared(run, first))
        judgements.append(judge_answers_of_run(condition, answers))
    return gravest(judgements)


def judge_answers_of_run(condition: Condition, answers: AnswerPair) -> Judgement:
    """Return the judgement of a condition on the answers of one run, with the condition's score before and after."""
    judgement = judge_answer_pair(condition, answers)
    score = answers.scores.get(condition.metric.name) if condition.metric else None
    if score is None:
        return judgement
    is_unchanged = not answers.differing and not score.change
    if condition.is_of_change and is_unchanged:
        # No token differs, so chance has no part in the change, however few the samples are. A mean of 1.0 is the ratio
        # of equal scores.
        unchanged = Change(mean=1.0, low=1.0, high=1.0, basis="samples", runs=answers.samples)
        judgement = judge_change(condition, unchanged, number(score.before, 6), number(score.after, 6))
    return judgement._replace(baseline_values=[score.before], run_values=[score.after])


def why_answers_not_compared(run: ComparedRun, first: ComparedRun) -> str:
    """Return why the answers of two runs cannot be compared: one has no accuracy test, or the samples differ."""
    for either_run in (run, first):
        if either_run.summary.gate is None:
            return f"{either_run.folder.name} has no accuracy test: run it with --mode both"
    return f"{run.folder.name} and {first.folder.name} have no answers to the same samples"


def judge_answer_pair(condition: Condition, answers: AnswerPair) -> Judgement:
    """Return the judgement of a condition on a score or, without a metric, on how many answers have other tokens."""
    if condition.metric:
        return judge_score(condition, answers, condition.metric.name)
    return judge_worst(condition, [answers.changed_percent])._replace(answers=answers)


def judge_score(condition: Condition, answers: AnswerPair, name: str) -> Judgement:
    """Return the judgement of the score `name`: by its value, or by its change with a bootstrap interval."""
    score = answers.scores.get(name)
    if score is None:
        return not_judged(condition, "it is not a mean over samples, so its change has no interval")  # such as gen_len
    before, after = number(score.before, 6), number(score.after, 6)
    if not condition.is_of_change:
        return judge_worst(condition, [score.after], before, after)
    if not score.before:
        return not_judged(condition, NO_CHANGE_OF_ZERO, before, after)
    change = Change(
        mean=1 + score.change / score.before,
        low=1 + score.low / score.before,
        high=1 + score.high / score.before,
        basis="samples",
        runs=answers.samples,
    )
    judgement = judge_change(condition, change, before, after)
    # The interval of few samples can show that a bound is kept, but not that it is broken.
    if judgement.verdict == "FAIL" and score.few:
        why = f"too few samples, or fewer than {statistics.FEWEST_DIFFERING} of them with another score"
        return judgement._replace(verdict="NOT JUDGED", why=why)
    return judgement


def gravest(judgements: Sequence[Judgement]) -> Judgement:
    """Return the judgement that decides: the first that is FAIL, else the first that is NOT JUDGED, else the first."""
    verdicts = [judgement.verdict for judgement in judgements]
    gravest_verdict = min(verdicts, key=list(EXIT_CODES).index)  # EXIT_CODES begins with the gravest.
    return judgements[verdicts.index(gravest_verdict)]


def exit_code(judgements: Sequence[Judgement]) -> int:
    return EXIT_CODES[gravest(judgements).verdict]


def to_json(judgements: Sequence[Judgement]) -> str:
    """Return the deciding verdict and every condition's verdict, change, interval and reason, as JSON for scripts."""
    content = {
        "verdict": gravest(judgements).verdict,
        "exit_code": exit_code(judgements),
        "conditions": [condition_entry(judgement) for judgement in judgements],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def condition_entry(judgement: Judgement) -> dict[str, object]:
    """Return a condition's entry for JSON: verdict, change in percent, interval, the values of each run, and reason.

    The change is that of the metric or, for answers, the percentage of answers that changed. Fields without a value are
    null.
    """
    change = judgement.change
    percent = interval = None
    if change:
        percent = percent_of(change.mean)
        if change.has_interval:
            interval = [percent_of(change.low), percent_of(change.high)]
    elif judgement.answers:
        percent = round(judgement.answers.changed_percent, PERCENT_DIGITS)
    return {
        "condition": judgement.condition,
        "verdict": judgement.verdict,
        "change_percent": percent,
        "interval_percent": interval,
        "interval_basis": change.basis if change else None,
        "baseline": [*judgement.baseline_values],
        "run": [*judgement.run_values],
        "reason": judgement.why or None,
    }


def percent_of(ratio: float) -> float:
    """Return a ratio to the baseline as a change in percent: 1.05 is 5."""
    return round(100 * (ratio - 1), PERCENT_DIGITS)


def document(sides: Sides, judgements: Sequence[Judgement]) -> Document:
    """Return the verdict as a document: a line for each condition, what differs, the cautions, and the runs."""
    runs = sides.all_runs
    verdict = gravest(judgements).verdict
    lines = [judgement_line(judgement) for judgement in judgements]
    lines.append(Line("interval", METHOD_TEXT))
    lines.append(Line("differs", compare_page.difference(runs)))
    for run in runs:
        lines += [caution_line(text) for text in compare.cautions(run, run.name)]
    lines.append(Line("baseline", folders_text(sides.baseline)))
    lines.append(Line("run", folders_text(sides.runs)))
    if verdict != "PASS":
        # A comparison shows a change even if it is NOT JUDGED here, for example on a busy machine.
        comparison = command_to_type("report", "--compare", sides.baseline[0].folder, sides.runs[0].folder)
        lines.append(Line("next", comparison, is_command=True))
    shared_subject = subject.subject_of(*(run.summary for run in runs))
    return Document(title_of(judgements), shared_subject, lines, tone=VERDICT_TONES[verdict])


def folders_text(runs: Sequence[ComparedRun]) -> str:
    return ", ".join(str(run.folder) for run in runs)


def judgement_line(judgement: Judgement) -> Line:
    return Line(judgement.verdict, f"{judgement.condition}: {judgement.text}", VERDICT_TONES[judgement.verdict])


def title_of(judgements: Sequence[Judgement]) -> str:
    """Return the gravest verdict, with its condition and the figures or reason for it.

    A note says if chance may have decided.
    """
    deciding = gravest(judgements)
    text = "no condition is met"  # PASS: a condition of --fail-if that is met is a failure.
    if deciding.verdict == "FAIL":
        text = f"{deciding.condition}: {deciding.figures or deciding.why}"
    elif deciding.verdict == "NOT JUDGED":
        text = f"{deciding.condition}: {deciding.why}"
    # PASS rests on all conditions, so chance in any of them matters.
    has_chance = any(judgement.why == CHANCE_NOTE for judgement in judgements)
    passed_by_chance = deciding.verdict == "PASS" and has_chance
    if deciding.why == CHANCE_NOTE or passed_by_chance:
        text += f" ({CHANCE_NOTE})"
    return f"{deciding.verdict}: {text}"
