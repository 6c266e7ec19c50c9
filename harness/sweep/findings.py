"""The findings of a sweep: of each experiment the numbers, the change and the verdict over all its rounds; and the
answer first: which change helped, which hurt, which must not be used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean

from harness.config.comparability import CONFIGURED
from harness.config.mlperf import SCORES
from harness.config.run import RunConfig
from harness.core.document import Document, Line, Section, Tone
from harness.core.formatting import number, plural
from harness.core.given_values import as_flag
from harness.core.progress import clock
from harness.report import answer_comparison, regression, subject
from harness.report.regression import Condition, Judgement
from harness.results.change import ASSUMED_SCATTER, FEWEST_PAIRS, Change
from harness.results.metrics import METRIC_BY_NAME, Metric
from harness.results.round_changes import paired
from harness.sweep.experiment import State
from harness.sweep.experiment_result import (
    BRIEF_S,
    SCORE_METRIC,
    Effect,
    ExperimentResult,
    Results,
    incomparable_reason,
    speedup,
)
from harness.sweep.file import BASELINE
from harness.sweep.lanes import SHARING_NOTE

# The findings of a sweep, in words.
TAIL = METRIC_BY_NAME["ttft_p99_ms"]  # users see it
HOLDS = regression.parse_condition(
    f"{SCORE_METRIC}<-1%"
)  # the share of the baseline's score that MLPerf's gate allows of the reference's
ACCURACY_WORDS = {"PASS": "holds", "FAIL": "lost", "NOT JUDGED": "not clear"}
EFFECTS: dict[Effect, tuple[str, Tone]] = {  # the words of a line after the names, and its tone
    "helped": ("", "good"),
    "no difference": ("", ""),
    "hurt": ("", "bad"),
    "unclear": (": more rounds would tell", "unknown"),
    "busy machine": (" while the machine was busy: do not publish", "careful"),
    "too short": (f" in tests under {BRIEF_S:g} s: measure for longer", "unknown"),
}


@dataclass(frozen=True)
class SweepReport:
    state: State
    rows: Results  # experiments that were begun or skipped
    finals: Results = ()  # experiments that ran again at full length
    pairs: dict[str, answer_comparison.AnswerPair] = field(
        default_factory=dict
    )  # answers beside the baseline's, sample by sample

    @cached_property
    def baseline(self) -> ExperimentResult | None:
        return next((result for result in self.rows if result.name == BASELINE), None)

    @property
    def is_timed(self) -> bool:
        """Tell whether any experiment measured a speed."""
        return any(result.speed or result.experiment.is_estimate for result in self.rows)

    @property
    def judged(self) -> list[ExperimentResult]:
        """The changes whose speed was compared with the baseline's, the fastest first."""
        return sorted((r for r in self.rows if r.effect != "unknown" and r.is_usable), key=speedup, reverse=True)

    @cached_property
    def scores(self) -> dict[str, Judgement]:
        """Tell whether an experiment whose gate is inconclusive holds the baseline's score."""
        pairs = {} if self.state.sweep.is_of_servers else self.pairs
        return {name: regression.judge_pair(HOLDS, pair) for name, pair in pairs.items()}

    @cached_property
    def judgements(self) -> list[Judgement]:
        """Return what comes of each condition on each experiment."""
        conditions = [*map(regression.parse_condition, self.state.fail_if)]
        rows = [each for each in self.rows if each.name != BASELINE]
        gate = regression.judge_gate([each.name for each in rows if each.accuracy == "UNSAFE"]) if conditions else []
        return [*gate, *(self.judge(each, one) for each in rows for one in conditions)]

    def judge(self, result: ExperimentResult, condition: Condition) -> Judgement:
        """Judge an experiment by the same rules as finished runs."""
        condition = condition._replace(text=f"{result.name}: {condition.text}")
        metric, pair = condition.metric, self.pairs.get(result.name)
        if metric is None or condition.is_of_answers:
            if pair is None:
                return regression.not_judged(condition, "no answers to compare")
            return regression.judge_pair(condition, pair)
        refusal = self.refusal_of_speed(result, metric)
        if refusal:
            return regression.not_judged(condition, refusal)
        values, ratios = result.values(metric), result.ratios(metric)
        change = None
        if len(ratios) == len(values):
            change = result.change if metric is result.metric else self.changes(metric).get(result.name)
        before, after = [value for value, _ in values], [value for _, value in values]
        return regression.judge_values(condition, before, after, change)

    def changes(self, metric: Metric) -> dict[str, Change]:
        """The changes of a metric in all experiments that are judged by it, together."""
        rows = [row for row in self.rows if row.name != BASELINE and not self.refusal_of_speed(row, metric)]
        return paired({row.name: row.ratios(metric) for row in rows if row.ratios(metric)}, self.state.error)

    def refusal_of_speed(self, result: ExperimentResult, metric: Metric) -> str:
        """Return why an experiment's measurement may not be judged; empty where it may."""
        if not result.base:
            return "the baseline's speed does not count"
        if incomparable_reason(result.experiment, result.base.experiment):
            return "its work is not the baseline's"
        if result.experiment.has_fixed_rate and metric.is_of_rate:
            return CONFIGURED
        if result.background_load:
            return "; ".join(result.background_load)
        if result.doubt:
            return EFFECTS["too short"][0].strip()
        if not result.is_usable:
            return "its own speed does not count"
        return "" if result.values(metric) else f"no pair of tests has a figure for {metric.label}"


def change_of(result: ExperimentResult, metric: Metric, state: State) -> Change:
    """Return the change of one of its metrics, judged by itself."""
    return paired({"": result.ratios(metric)}, state.error)[""]


def document(report: SweepReport, sections: Sequence[Section] = (), more: Sequence[Line] = ()) -> Document:
    """The finding of a sweep, and what must be known of it."""
    found = list(lines(report))
    tones = {line.label: line.tone for line in found}
    tone: Tone = next((tones[label] for label in ("FAIL", "NOT JUDGED", "helped") if label in tones), "")
    return Document(title(report), sweep_subject(report), [*found, *more], tone=tone, sections=sections)


def title(report: SweepReport) -> str:
    """Return what was found, behind the gravest verdict on the conditions, if there are any."""
    if not report.judgements:
        return finding(report)
    first = regression.gravest(report.judgements)
    condition = f": {first.condition}" * (first.verdict != "PASS")
    return f"{first.verdict}{condition}; {finding(report)}"


def finding(report: SweepReport) -> str:
    base, judged = report.baseline, report.judged
    if not base or not base.complete:
        return "the baseline did not complete, so no speedup can be given"
    if base.experiment.is_estimate and not base.is_usable:
        return "the baseline's rate cannot be estimated, so no change can be judged"
    if report.is_timed and not base.is_usable:
        return "the baseline has no valid throughput, so no speedup can be given"
    if not report.is_timed:
        lost = [result.name for result in report.rows if result.accuracy == "UNSAFE"]
        return f"{' and '.join(lost)} lost accuracy" if lost else "accuracy is all that was measured"
    is_any = len(judged) == 1 or all(result.doubt for result in judged)
    if best := next((result for result in judged if is_any or result.effect == "helped"), None):
        return sentence(best, "helped:" if len(judged) > 1 else "is")
    if base.experiment.has_fixed_rate and not judged:
        return "every experiment was sent the same rate: compare TTFT and TPOT, not speeds"
    return f"no change helped; the fastest: {sentence(judged[0])}" if judged else "no change was measured"


def sentence(result: ExperimentResult, verb: str = "is") -> str:
    """The change of an experiment against the baseline."""
    assert result.change and result.base
    said = result.change.describe(metric := result.metric)
    if result.doubt:
        return f"{result.name} was {said}{EFFECTS[result.doubt][0]}"
    theirs, mine = (mean(side) for side in zip(*result.values(metric), strict=True))
    return f"{result.name} {verb} {said}: {metric.with_unit(mine)}; baseline {number(theirs)}"


def sweep_subject(report: SweepReport) -> str:
    """The sweep, and what all of its runs share."""
    state = report.state
    last = -1 if state.sweep.is_of_servers else None  # the place of each stands below
    about = [run.about[:last] for result in report.rows for run in result.complete if run.about]
    ran = plural(len({record.experiment for record in state.records if record.seconds}), "experiment")
    size = f"{ran} in {clock(sum(record.seconds for record in state.records))}"
    return ", ".join([f'Sweep "{state.sweep.name}"', size, *(subject.common_parts(about) if about else ())])


def lines(report: SweepReport) -> Iterator[Line]:  # noqa: C901, PLR0912
    """Yield what helped, what hurt, what is unsafe: sentences that follow from the numbers."""
    state, base = report.state, report.baseline
    for one in report.judgements:
        yield Line(one.verdict, f"{one.condition}: {one.text}", regression.VERDICT_TONES[one.verdict])
    for effect, (said, tone) in EFFECTS.items():
        if some := [f"{each.name} {each.gain.signed}" for each in report.judged if each.effect == effect and each.gain]:
            yield Line(effect, f"{', '.join(some)}{said}", tone)
    if (count := sum(bool(result.change) for result in report.rows)) > 1:
        said = f"chance alone helps or hurts any in {100 * state.error:g} % of such sweeps at most (Holm)"
        yield Line("compared", f"{count} with the baseline; {said}")
    yield from accuracy(report)
    if state.sweep.is_of_servers:
        yield from servers(report)
    for result in report.rows:
        other = [as_flag(e.name) for e in incomparable_reason(result.experiment, base.experiment)] if base else []
        if result.figure and other:
            yield Line("not compared", f"{result.name}: its work is not the baseline's ({', '.join(other)})", "careful")
    every = (*report.rows, *report.finals)
    last = " at full length"
    if invalid := [f"{r.name}{last * (r in report.finals)}" for r in every if r.is_valid is False]:
        yield Line("INVALID", f"{', '.join(invalid)}, by LoadGen: no valid speed", "bad")
    yield from (Line("not counted", f"{r.name}: {'; '.join(r.flaws)}", "bad") for r in every if r.flaws)
    if base and base.experiment.is_estimate:
        yield Line("estimates", "of the rate within the limits, by --quick: nothing of them is VALID", "careful")
    if full := [result for result in report.finals if result.is_usable and result.speed]:
        best = max(full, key=lambda result: result.speed or 0)
        of = f", the most of {len(full)}" * (len(full) > 1)
        rate = best.complete[0].values.get("target_qps")
        at = f" at {number(rate)} queries/s" if rate else ""
        busy = bool(best.background_load)
        yield Line(
            "full length", f"{best.name}: {number(best.speed)} output tokens/s{at}{of}", "careful" if busy else "good"
        )
    if base and any(record.gpu for record in base.records):
        yield Line("careful", SHARING_NOTE, "careful")
    for result in every:
        if found := result.failure:
            yield Line(found.status, f"{result.name}: {found.reason}", "bad" if found.status == "failed" else "unknown")
    yield from (Line("left out", said, "careful") for result in report.rows if (said := result.left_out))
    if count:
        share, least = (
            100 * (1 - state.error),
            f"fewer than {FEWEST_PAIRS} pairs are taken to scatter by {100 * ASSUMED_SCATTER:g} %",
        )
        yield Line("interval", f"of {share:g} % for all verdicts together; {least}")
    if state.note:
        yield Line("careful", state.note, "careful")


def servers(report: SweepReport) -> Iterator[Line]:
    """Yield where each is; of each challenger its tail and its answers."""
    for result in report.rows:
        yield Line(result.name, ", ".join(RunConfig(**result.experiment.settings).endpoint))
        if result.name != BASELINE and result.ratios(TAIL):
            yield Line(TAIL.label, f"{result.name} {change_of(result, TAIL, report.state).describe(TAIL)}")
    for name, pair in report.pairs.items():
        yield Line("answers", f"{name}: {pair.words}", pair.tone)


def accuracy(report: SweepReport) -> Iterator[Line]:
    if not report.is_timed:
        yield Line("safe", ", ".join(result.name for result in report.rows if result.accuracy == "SAFE"), "good")
    if unsafe := [f"{r.name} ({loss(r, report.baseline)})" for r in report.rows if r.accuracy == "UNSAFE"]:
        yield Line("unsafe", ", ".join(unsafe) + ", whatever the speed" * report.is_timed, "bad")
    clear = {name: one for name, one in report.scores.items() if one.verdict != "NOT JUDGED"}
    same = [name for name, pair in report.pairs.items() if not pair.differing]
    for name, one in clear.items():
        yield Line(
            "accuracy",
            f"{name} {ACCURACY_WORDS[one.verdict]}: {SCORES[SCORE_METRIC]} {one.text}",
            regression.VERDICT_TONES[one.verdict],
        )
    if unsure := [
        r.name for r in report.judged if r.accuracy not in ("SAFE", "not run") and r.name not in (*clear, *same)
    ]:
        yield Line("accuracy", f"not shown to hold: {', '.join(unsure)}", "unknown")


def loss(result: ExperimentResult, base: ExperimentResult | None) -> str:
    """Return how far a score lies below the baseline's."""
    lost, start = result.score, base.score if base else None
    if lost is None or start is None or result is base:
        return "the gate fails"
    return f"{SCORES[SCORE_METRIC]} {number(lost)}, {lost - start:+.2f} against the baseline"
