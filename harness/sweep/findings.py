"""The findings of a sweep: first the answer, that is which change helped, which hurt and which must not be used; then
the numbers, the change and the verdict of each experiment over all its rounds.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean

from harness.config.comparability import CONFIGURED_RATE
from harness.config.mlperf import SCORES
from harness.config.run import RunConfig
from harness.core.document import Document, Line, Section, Tone, caution_line
from harness.core.formatting import first_of, joined_text, number, plural
from harness.core.given_values import flag_name
from harness.core.progress import clock
from harness.report import answer_comparison, regression, subject
from harness.report.regression import Condition, Judgement
from harness.results.change import ASSUMPTION_TEXT, FEWEST_PAIRS, Change
from harness.results.metrics import METRIC_BY_NAME, Metric
from harness.results.round_changes import changes_by_rounds
from harness.sweep.experiment import State
from harness.sweep.experiment_result import (
    BRIEF_TEST_S,
    SCORE_METRIC,
    Effect,
    ExperimentResult,
    Results,
    result_named,
    speedup,
    work_differences,
)
from harness.sweep.file import BASELINE
from harness.sweep.lanes import SHARING_NOTE

TAIL_METRIC = METRIC_BY_NAME["ttft_p99_ms"]  # the latency that a comparison of servers shows beside the speed
LOST_SCORE = regression.parse_condition(
    f"{SCORE_METRIC}<-1%"
)  # the share of the baseline's score that MLPerf's gate allows of the reference's
SCORE_WORDS = {"PASS": "holds", "FAIL": "lost", "NOT JUDGED": "not clear"}
DECIDING_VERDICTS: tuple[regression.GateVerdict, ...] = ("FAIL", "NOT JUDGED")  # the gravest first
MOST_TOKENS_RATIO = 1.5  # between compared tests; a second pass over the samples doubles the tokens
MOST_NAMES = 6  # the most experiments that a line names; the table has all
EFFECT_REMARKS: dict[Effect, tuple[str, Tone]] = {  # the words of a line after the names, and its tone
    "helped": ("", "good"),
    "no difference": ("", ""),
    "hurt": ("", "bad"),
    "unclear": (": run more rounds", "unknown"),  # the flag for it depends on the command
    "busy machine": (" while the machine was busy: do not publish", "careful"),
    "too short": (f" in tests under {BRIEF_TEST_S:g} s: measure for longer", "unknown"),
}


@dataclass(frozen=True)
class SweepReport:
    """The results of a sweep so far, from which its findings follow."""

    state: State
    rows: Results  # experiments that were begun or skipped
    finalists: Results = ()  # experiments that ran again at full length
    compared_answers: dict[str, answer_comparison.AnswerPair] = field(
        default_factory=dict
    )  # answers beside the baseline's, sample by sample

    @cached_property
    def baseline(self) -> ExperimentResult | None:
        """The result of the baseline; None if it was not begun."""
        return result_named(self.rows, BASELINE)

    @property
    def is_timed(self) -> bool:
        """Tell whether any experiment measured or was to estimate a speed; else the sweep is on accuracy alone."""
        return any(result.speed or result.experiment.is_estimate for result in self.rows)

    @property
    def judged(self) -> list[ExperimentResult]:
        """The results whose speed counts and was compared with the baseline's, fastest first."""
        results = [result for result in self.rows if result.effect != "unknown" and result.is_usable]
        return sorted(results, key=speedup, reverse=True)

    @cached_property
    def same_answers(self) -> list[str]:
        """The names of the experiments whose answers were compared and are all equal to the baseline's."""
        return [name for name, answers in self.compared_answers.items() if not answers.differing]

    @cached_property
    def score_judgements(self) -> dict[str, Judgement]:
        """The judgement on each experiment whose answers were compared: whether it keeps the baseline's score, by name.

        Empty for a comparison of servers, whose answers are not judged.
        """
        if self.state.sweep.is_of_servers:
            return {}
        return {
            name: regression.judge_answer_pair(LOST_SCORE, answers) for name, answers in self.compared_answers.items()
        }

    @cached_property
    def judgements(self) -> list[Judgement]:
        """The judgements of --fail-if, of each condition on each experiment; empty without conditions.

        If experiments failed their accuracy gate, a FAIL of that gate comes first.
        """
        conditions = [*map(regression.parse_condition, self.state.fail_if)]
        if not conditions:
            return []
        changed_results = [result for result in self.rows if result.name != BASELINE]
        unsafe_names = [result.name for result in changed_results if result.accuracy == "UNSAFE"]
        judgements = list[Judgement]()
        if unsafe_names:
            judgements.append(regression.accuracy_gate_failure(unsafe_names))
        for result in changed_results:
            judgements += [self.judge(result, condition) for condition in conditions]
        if not self.state.bisection:  # A bisection measures only the experiments that it needs.
            judgements += self.judgements_of_missing(conditions)
        return judgements

    def judgements_of_missing(self, conditions: Sequence[Condition]) -> Iterator[Judgement]:
        """Yield NOT JUDGED for each condition on each experiment that was not begun."""
        begun = {result.name for result in self.rows}
        for item in self.state.sweep.experiments:
            if item.name not in {BASELINE, *begun}:
                for condition in conditions:
                    condition_with_name = condition._replace(text=f"{item.name}: {condition.text}")
                    yield regression.not_judged(condition_with_name, "it was not measured")

    def judge(self, result: ExperimentResult, condition: Condition) -> Judgement:
        """Judge an experiment by a condition, by the same rules as finished runs.

        NOT JUDGED if there are no answers to compare, or if the metric may not be judged.
        """
        condition = condition._replace(text=f"{result.name}: {condition.text}")
        metric, answers = condition.metric, self.compared_answers.get(result.name)
        if metric is None or condition.is_of_answers:
            if answers is None:
                return regression.not_judged(condition, "no answers to compare")
            return regression.judge_answer_pair(condition, answers)
        reason = self.reason_not_to_judge(result, metric)
        if reason:
            return regression.not_judged(condition, reason)
        values = result.values(metric)
        before = [base_value for base_value, _value in values]
        after = [value for _base_value, value in values]
        return regression.judge_values(condition, before, after, self.change_to_judge(result, metric))

    def change_to_judge(self, result: ExperimentResult, metric: Metric) -> Change | None:
        """Return the change of a metric by which an experiment is judged, with a wider interval on a busy machine.

        None if a run of the experiment or of the baseline has a value that is not above 0.
        """
        pairs_have_ratios = len(result.ratios(metric)) == len(result.values(metric))
        if not pairs_have_ratios:  # A pair of values has no ratio if one of them is not above 0.
            return None
        if metric is not result.metric:
            return self.changes(metric).get(result.name)
        # The result itself has the change of the metric by which experiments are ranked.
        if result.change and result.background_load:
            return result.on_busy_machine(result.change, metric)
        return result.change

    def changes(self, metric: Metric) -> dict[str, Change]:
        """Return the change of a metric in each experiment that may be judged by it, by name.

        All are judged together, so that chance misleads in a fixed share of sweeps only. On a busy machine, the
        intervals are wider.
        """
        ratios = {}
        for row in self.rows:
            if row.name == BASELINE or self.reason_not_to_judge(row, metric):
                continue
            ratios_of_rounds = row.ratios(metric)
            if ratios_of_rounds:
                ratios[row.name] = ratios_of_rounds
        changes = changes_by_rounds(ratios, self.state.error_rate)
        for row in self.rows:
            if row.background_load and row.name in changes:
                changes[row.name] = row.on_busy_machine(changes[row.name], metric)
        return changes

    def reason_not_to_judge(self, result: ExperimentResult, metric: Metric) -> str:
        """Return why an experiment's metric may not be judged, in words; empty if it may.

        On a busy machine, a metric may be judged only if it is known how much of the engine's time other programs took.
        """
        if not result.base:
            return "the baseline's speed does not count"
        if work_differences(result.experiment, result.base.experiment):
            return "it does different work from the baseline"
        if result.experiment.has_fixed_rate and metric.is_decided_by_rate:
            return CONFIGURED_RATE
        is_busy = bool(result.background_load)
        if is_busy and not result.has_known_load:
            return "; ".join(result.background_load)
        # On a busy machine, the doubt is the load, for which the interval allows. Else the tests were too short.
        if result.doubt and not is_busy:
            remark, _tone = EFFECT_REMARKS[result.doubt]
            return remark.strip()
        if not result.is_usable:
            return "its own speed does not count"
        if not result.values(metric):
            return f"no pair of tests has a figure for {metric.label}"
        return ""


def change_of(result: ExperimentResult, metric: Metric, state: State) -> Change:
    """Return the change of a metric in one experiment, judged by itself. The metric must have a ratio there."""
    changes = changes_by_rounds({result.name: result.ratios(metric)}, state.error_rate)
    return changes[result.name]


def document(report: SweepReport, sections: Sequence[Section] = (), further_lines: Sequence[Line] = ()) -> Document:
    """Return the finding of a sweep as a document. `further_lines` come after the sweep's own lines."""
    own_lines = list(finding_lines(report))
    tone = tone_of(report)
    return Document(
        finding_title(report), sweep_subject(report), [*own_lines, *further_lines], tone=tone, sections=sections
    )


def tone_of(report: SweepReport) -> Tone:
    """Return the tone of a sweep's title: that of a condition that fails or is not judged, else
    that of a change that helped.

    Empty if there is none of these.
    """
    verdicts = {judgement.verdict for judgement in report.judgements}
    for verdict in DECIDING_VERDICTS:
        if verdict in verdicts:
            return regression.VERDICT_TONES[verdict]
    if any(result.effect == "helped" for result in report.judged):
        _remark, tone = EFFECT_REMARKS["helped"]
        return tone
    return ""


def finding_title(report: SweepReport) -> str:
    """Return what was found. With conditions, the title begins with the gravest verdict on them."""
    if not report.judgements:
        return finding_text(report)
    gravest = regression.gravest(report.judgements)
    if gravest.verdict == "PASS":
        return f"PASS; {finding_text(report)}"
    return f"{gravest.verdict}: {gravest.condition}; {finding_text(report)}"


def finding_text(report: SweepReport) -> str:
    """Return the best change in words or, if no change can be given, why.

    In a sweep without speeds, return the finding on accuracy.
    """
    base = report.baseline
    if not base or not base.complete:
        return "the baseline did not complete, so no speedup can be given"
    if base.experiment.is_estimate and not base.is_usable:
        return "the baseline's rate cannot be estimated, so no change can be judged"
    if report.is_timed and not base.is_usable:
        return "the baseline has no valid throughput, so no speedup can be given"
    if not report.is_timed:
        return accuracy_finding(report)
    if report.judged:
        return best_change(report.judged)
    # No speed could be judged: the rest says why.
    if base.experiment.has_fixed_rate:
        return "every experiment was sent the same rate: compare TTFT and TPOT, not speeds"
    other_work = list(other_work_lines(report, base))
    if other_work:
        return (
            f"nothing could be compared: {plural(len(other_work), 'experiment')} did different work from the baseline"
        )
    return "no change was measured"


def accuracy_finding(report: SweepReport) -> str:
    """Return what was found in a sweep that measured no speed: which experiments lost accuracy, if any."""
    unsafe_names = [result.name for result in report.rows if result.accuracy == "UNSAFE"]
    if not unsafe_names:
        return "accuracy is all that was measured"
    return f"{' and '.join(unsafe_names)} lost accuracy"


def best_change(judged: Results) -> str:
    """Return a sentence on the fastest change that helped or, if none did, on the fastest change.

    `judged` has the fastest first.
    """
    fastest = judged[0]
    are_all_doubtful = all(result.doubt for result in judged)
    if len(judged) == 1 or are_all_doubtful:  # Nothing can be said to have helped more than another.
        return change_sentence(fastest, "is")
    for result in judged:
        if result.effect == "helped":
            return change_sentence(result, "helped:")
    return f"no change helped; the fastest: {change_sentence(fastest, 'is')}"


def change_sentence(result: ExperimentResult, verb: str) -> str:
    """Return a sentence on the change of an experiment from the baseline: "<name> <verb> <change>", then both means.

    If the change has no interval, the verb is always "is"; if it is doubtful, it is "was". Both texts lack the means.
    """
    assert result.change and result.base
    metric = result.metric
    change = result.change.describe(metric, "the baseline")
    if not result.change.has_interval:
        return f"{result.name} is {change}"
    if result.doubt:
        remark, _tone = EFFECT_REMARKS[result.doubt]
        return f"{result.name} was {change}{remark}"
    pairs = result.values(metric)  # each with the baseline's value and the experiment's
    befores, afters = zip(*pairs, strict=True)
    return f"{result.name} {verb} {change}: {metric.against(mean(afters), mean(befores))}"


def sweep_subject(report: SweepReport) -> str:
    """Return the sweep's name, how many of its experiments ran in what time, and what all of its runs have in common.

    Runs may share their scenario, model and machine. A comparison of servers names no server here.
    """
    state = report.state
    subjects = []
    for result in report.rows:
        subjects += [run.about for run in result.complete if run.about]
    if state.sweep.is_of_servers:
        subjects = [about[:-1] for about in subjects]  # The last part is the server, which has its own line.
    parts = [f'Sweep "{state.sweep.name}"', run_count(report)]
    if subjects:
        parts += subject.common_parts(subjects)
    return ", ".join(parts)


def run_count(report: SweepReport) -> str:
    """Return how many runs the sweep made in what time, how many experiments were skipped, and how many not begun."""
    state = report.state
    begun_records = [record for record in state.records if record.seconds or record.status == "complete"]
    ran = {record.experiment for record in begun_records}
    time_text = clock(sum(record.seconds for record in state.records))
    if state.bisection:  # Its experiments follow from each other, so no number of them was planned.
        return f"{plural(len(ran), 'experiment')} in {time_text}"
    items = [*state.sweep.experiments]
    if state.capped:
        items.append(state.capped)
    skipped = {record.experiment for record in state.records if record.status == "skipped"} - ran
    noun, verb = ("test", "tested") if state.sweep.is_of_servers else ("run", "run")
    runs_text = f"{plural(len(begun_records), noun)} in {time_text}"
    texts = [f"{experiments_text(len(items), state.sweep.is_of_servers)}: {runs_text}"]
    if skipped:
        texts.append(f"{len(skipped)} skipped")
    not_begun = len(items) - len(ran) - len(skipped)
    if not_begun:
        texts.append(f"{not_begun} not {verb}")
    return ", ".join(texts)


def experiments_text(count: int, is_of_servers: bool) -> str:
    """Return in words how many experiments there are, the baseline among them."""
    if is_of_servers:
        return plural(count, "server")
    return f"baseline and {plural(count - 1, 'change')}"


def finding_lines(report: SweepReport) -> Iterator[Line]:
    """Yield the lines under the title of a sweep's report, as far as they apply.

    The label of a line and its text make a sentence.
    """
    state, base = report.state, report.baseline
    for judgement in report.judgements:
        tone = regression.VERDICT_TONES[judgement.verdict]
        yield Line(judgement.verdict, f"{judgement.condition}: {judgement.text}", tone)
    yield from effect_lines(report)
    yield from accuracy_lines(report)
    if state.sweep.is_of_servers:
        yield from server_lines(report)
    if base:
        yield from other_work_lines(report, base)
    yield from uneven_work_lines(report)
    yield from uncounted_lines(report)
    if base and base.experiment.is_estimate:
        yield Line("estimates", "of the rate within the limits, by --quick: an estimate is never VALID", "careful")
    yield from full_length_lines(report)
    has_lane_for_each_gpu = base and any(record.gpu for record in base.records)
    if has_lane_for_each_gpu:  # Experiments ran side by side, so they shared the CPU and the memory of the machine.
        yield caution_line(SHARING_NOTE)
    yield from unfinished_lines(report)
    changes = [result.change for result in report.rows if result.change]
    if changes:
        interval = f"{100 * (1 - state.error_rate):g} % for all verdicts together{look_text(state)}"
        if any(change.has_too_few_runs for change in changes):
            interval += f"; with fewer than {FEWEST_PAIRS} pairs of runs, {ASSUMPTION_TEXT}"
        yield Line("interval", interval)
    if state.note:
        yield caution_line(state.note)


def look_text(state: State) -> str:
    """Return in words after a figure that it is for each time a sweep judges its results; empty if it does so once."""
    return ", each time the results are judged" if state.within else ""


def effect_lines(report: SweepReport) -> Iterator[Line]:
    """Yield a line for each effect that an experiment has, and a line on how many changes were compared, if several."""
    is_of_servers = report.state.sweep.is_of_servers
    flags = "--rounds or --repeat" if is_of_servers else "--repeat"  # `compare` has the first, sweep.py the other
    for effect, (effect_remark, tone) in EFFECT_REMARKS.items():
        changes = []
        for result in report.judged:
            if result.effect == effect and result.gain:
                changes.append(f"{result.name} {result.gain.signed}")
        remark = f"{effect_remark} ({flags})" if effect == "unclear" else effect_remark
        if changes:
            yield Line(effect, f"{first_of(changes, MOST_NAMES)}{remark}", tone)
    count = sum(bool(result.change) for result in report.rows)
    if count > 1:
        compared = plural(count, "server" if is_of_servers else "change")
        chance = f"at most {100 * report.state.error_rate:g} %{look_text(report.state)}"
        certainty = f"the chance that any of them looks better or worse by luck alone is {chance} (Holm)"
        yield Line("compared", f"{compared} with the baseline; {certainty}")


def other_work_lines(report: SweepReport, base: ExperimentResult) -> Iterator[Line]:
    """Yield a line for each experiment that has a figure but did other work than the baseline,
    with the settings that differ.
    """
    for result in report.rows:
        flags = [flag_name(reason.name) for reason in work_differences(result.experiment, base.experiment)]
        if result.figure and flags:
            text = f"{result.name}: it does different work from the baseline ({', '.join(flags)})"
            yield Line("not compared", text, "careful")


def uneven_work_lines(report: SweepReport) -> Iterator[Line]:
    """Yield a line that names the experiments whose runs made clearly different numbers of tokens; none without any."""
    names = []
    for result in report.rows:
        if result.base and work_differences(result.experiment, result.base.experiment):
            continue  # It is not compared: different work may well have other tokens.
        # These are the runs of the experiment and those of the baseline that it is compared with.
        runs = result.compared_runs or result.runs
        tokens = [run.output_tokens for run in runs if run.output_tokens]
        # Each Offline test has whole passes over the samples. With few samples, some tests have one pass and others
        # two.
        if tokens and max(tokens) > MOST_TOKENS_RATIO * min(tokens):
            names.append(result.name)
    if names:
        text = (
            f"the compared tests of {first_of(names, MOST_NAMES)} produced different numbers of output tokens, and a "
            "longer test can show more tokens/s just because it is longer: set offline_expected_qps, or use more "
            "samples"
        )
        yield caution_line(text)


def uncounted_lines(report: SweepReport) -> Iterator[Line]:
    """Yield a line that names the INVALID experiments, and a line for each experiment whose figures have flaws.

    The speed of neither counts. Both include experiments at full length.
    """
    results = (*report.rows, *report.finalists)
    invalid = []
    for result in results:
        if result.is_valid is False:  # None: nothing was measured.
            name = result.name
            if result in report.finalists:
                name += " at full length"
            invalid.append(name)
    if invalid:
        yield Line("INVALID", f"{first_of(invalid, MOST_NAMES)}, by LoadGen: no valid speed", "bad")
    for result in results:
        if result.flaws:
            yield Line("not counted", f"{result.name}: {'; '.join(result.flaws)}", "bad")


def full_length_lines(report: SweepReport) -> Iterator[Line]:
    """Yield a line on the fastest of the experiments that ran at full length.

    Nothing if none of them has a speed that counts.
    """
    results = [result for result in report.finalists if result.is_usable and result.speed]
    if not results:
        return
    best = max(results, key=speed_or_zero)
    text = f"{best.name}: {number(best.speed)} output tokens/s"
    rate = best.complete[0].values.get("target_qps")
    if rate:
        text += f" at {number(rate)} queries/s"
    if len(results) > 1:
        text += f", the highest of {len(results)}"
    is_busy = bool(best.background_load)
    yield Line("full length", text, "careful" if is_busy else "good")


def speed_or_zero(result: ExperimentResult) -> float:
    return result.speed or 0


def unfinished_lines(report: SweepReport) -> Iterator[Line]:
    """Yield a line for each experiment with a run that did not finish, and for each with runs that are in no figure."""
    for result in (*report.rows, *report.finalists):
        failure = result.failure
        if failure:
            tone: Tone = "bad" if failure.status == "failed" else "unknown"
            # The label of the line is the status, which a reason such as "interrupted" only repeats.
            reason = "" if failure.reason == failure.status else failure.reason
            yield Line(failure.status, joined_text(": ", result.name, reason), tone)
    for result in report.rows:
        if result.left_out:
            yield Line("left out", result.left_out, "careful")


def server_lines(report: SweepReport) -> Iterator[Line]:
    """Yield the lines on the servers of a comparison, and then how their answers differ from the baseline's.

    A server has a line with its address and, unless it is the baseline, a line on the change of its TTFT p99
    (TAIL_METRIC).
    """
    for result in report.rows:
        config = RunConfig(**result.experiment.settings)
        yield Line(result.name, ", ".join(config.endpoint))
        if result.name != BASELINE and result.ratios(TAIL_METRIC):
            change = change_of(result, TAIL_METRIC, report.state)
            if result.background_load:
                # Beside other programs, few pairs of tests do not show the scatter: the change gets no interval.
                change = change.on_busy_machine()
            yield Line(TAIL_METRIC.label, f"{result.name} is {change.describe(TAIL_METRIC, 'the baseline')}")
    for name, answers in report.compared_answers.items():
        yield Line("answers", f"{name}: {answers.words}", answers.tone)


def accuracy_lines(report: SweepReport) -> Iterator[Line]:
    """Yield lines on accuracy: which experiments are safe, which are not, and what is known of the others' scores.

    The safe ones are named only if no speed was measured, since the table has them.
    """
    if not report.is_timed:
        safe = [result.name for result in report.rows if result.accuracy == "SAFE"]
        yield Line("safe", ", ".join(safe), "good")
    unsafe = [result for result in report.rows if result.accuracy == "UNSAFE"]
    if unsafe:
        losses = [f"{result.name} ({score_loss(result, report.baseline)})" for result in unsafe]
        text = ", ".join(losses)
        if report.is_timed:
            text += ": its speed does not count" if len(unsafe) == 1 else ": their speeds do not count"
        yield Line("unsafe", text, "bad")
    if report.same_answers and not report.state.sweep.is_of_servers:  # Servers have lines on their answers already.
        yield Line("accuracy", f"the same answers as the baseline's: {', '.join(report.same_answers)}", "good")
    judged_scores = {
        name: judgement for name, judgement in report.score_judgements.items() if judgement.verdict != "NOT JUDGED"
    }
    for name, judgement in judged_scores.items():
        if name not in report.same_answers:
            text = f"{name} {SCORE_WORDS[judgement.verdict]}: {SCORES[SCORE_METRIC]} {judgement.text}"
            yield Line("accuracy", text, regression.VERDICT_TONES[judgement.verdict])
    unsure = names_without_proof(report, {*report.same_answers, *judged_scores})  # Equal answers have equal scores.
    if unsure:
        yield Line("accuracy", f"not shown to hold: {', '.join(unsure)}", "unknown")


def names_without_proof(report: SweepReport, names_with_known_score: Collection[str]) -> list[str]:
    """Return the experiments whose accuracy gate ran and did not pass, and whose score is not known otherwise."""
    names = []
    for result in report.judged:
        needs_proof = result.accuracy not in ("SAFE", "not run")
        if needs_proof and result.name not in names_with_known_score:
            names.append(result.name)
    return names


def score_loss(result: ExperimentResult, base: ExperimentResult | None) -> str:
    """Return an experiment's score and how far it is from the baseline's, in words.

    For the baseline itself, and if one of the scores is not known, the text says only that the gate fails.
    """
    if base is None or result is base or result.score is None or base.score is None:
        return "the gate fails"
    change = result.score - base.score
    return f"{SCORES[SCORE_METRIC]} {number(result.score)}, {change:+.2f} against the baseline"
