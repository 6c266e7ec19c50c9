"""A run's results, the answer first: the lines of the last screen, and of the first one of its report."""

from collections.abc import Iterator
from operator import attrgetter

from harness.config.mlperf import Tail
from harness.config.patterns import Poisson
from harness.core.document import Document, Line, Tone, caution_line
from harness.core.formatting import joined_text, number, plural
from harness.core.statistics import FEWEST_P99
from harness.rates.state_left import caution_on_changed_server
from harness.report.headroom import headroom_lines
from harness.report.next_command import next_command
from harness.report.subject import NOT_COMPARABLE, subject_of
from harness.report.test_tables import rows_of_levels
from harness.results import advice, metrics
from harness.results.accuracy import Accuracy
from harness.results.outcome import AT_MOST_SIGN, Doubt, Outcome, kept_below_failures
from harness.results.summary import Summary
from harness.runs.run_folder import TEST_FOLDERS

MOST_REASONS = 3  # the most deviations, and the most error messages of failed requests, that are shown
GATE_TONES: dict[str, Tone] = {"PASS": "good", "FAIL": "bad"}
WORST_ANSWERS = f"the worst answers are in {TEST_FOLDERS['accuracy']}/worst.md"
NOT_TO_PASS_ON = "do not pass this number on"


def document(summary: Summary, whole: bool = False, earlier_runs: str = "") -> Document:
    """Return the answer of a run as a document, with the cautions that a reader needs before passing it on.

    `whole` is for a report, which shows all deviations from MLPerf's rules. `earlier_runs` says how far the
    speed ranged in earlier runs; without it, its line is not shown.
    """
    about = joined_text(": ", summary.meta.label, subject_of(summary))
    shown_lines = [*lines_below_title(summary, whole), Line("earlier runs", earlier_runs)]
    return Document(title(summary), about, shown_lines, rows_of_levels(summary), tone(summary))


def title(summary: Summary) -> str:
    """Return the title: the speed with its limits and a passed accuracy gate, or why there is no speed.

    DISPUTED means that the server's own counts or LoadGen's log contradict the figures.
    """
    test = summary.result
    if test is None or test.tokens_per_sec is None:
        return title_without_speed(summary)
    disputed = ""
    if Doubt.DISPUTED in test.doubts:
        disputed = "DISPUTED: "
    # If the user's own limits decide, LoadGen's INVALID means only a short test. It does not make the speed void.
    is_void = not test.valid and not test.has_own_limits
    if is_void:
        return f"INVALID{sent_rate_text(test)}: {disputed}{invalid_text(test)}"
    text = f"{disputed}{speed_text(summary, test)}"
    if summary.gate == "PASS":
        text += ", accuracy PASS"
    return text


def title_without_speed(summary: Summary) -> str:
    """Return the title of a run without a speed: the gate's verdict, or why there is no result.

    A run that was interrupted may have tested levels; the title names the highest that kept its limits.
    """
    if summary.gate == "FAIL":
        text = "accuracy FAIL: the answers differ from the reference"
        if summary.meta.mode == "both":  # A speed was asked for, but the failed gate ended the run before.
            text += "; no speed was measured"
        return text
    if summary.gate:  # PASS or INCONCLUSIVE
        return f"accuracy {summary.gate}"
    text = joined_text("; ", "No result", summary.meta.ended)
    # A level that was not judged, because the machine was busy, has another tone.
    kept_levels = [level for level in kept_below_failures(summary.curve) if level.verdict.tone == "good"]
    if kept_levels:
        text += f"; {kept_levels[-1].text} kept its limits until then"
    return text


def invalid_text(test: Outcome) -> str:
    """Return why LoadGen calls a test INVALID: the limits that the test broke, else LoadGen's reasons."""
    broken_limits = tail_texts(test, only_over=True)
    if broken_limits:
        return broken_limits
    return "; ".join(reason.what for reason in test.details.invalid_reasons) or "LoadGen gives no reason"


def sent_rate_text(test: Outcome) -> str:
    """Return at which rate the queries were sent, as in " at 8.5 queries/s"; empty if they were not sent at a rate."""
    details = test.details
    # Without limits, as in Offline, target_qps is only an estimate, at which nothing was sent.
    if not (details.limits_ms and details.target_qps):
        return ""
    return f" at {number(details.target_qps)} queries/s"


def speed_text(summary: Summary, test: Outcome) -> str:
    """Return the speed of the result's test and the limits that it was held to.

    If all tested loads are over the user's own limits, the text says that instead.
    """
    tests_by_load = summary.curve
    # `reasons` say why a test does not count. For a test with own limits, these are the limits that it broke.
    are_all_over_own_limits = all(tested.has_own_limits and tested.reasons for tested in tests_by_load)
    if tests_by_load and are_all_over_own_limits:
        return f"no level is within the limits: the lowest, {tests_by_load[0].text}, is over"
    details = test.details
    tokens = f"{number(test.tokens_per_sec)} output tokens/s"
    if details.concurrency:
        return f"{tokens} with {test.text}, {limits_text(test)}"
    if test.has_own_limits:  # Own limits are for a fixed concurrency (above) or for the user's own arrivals.
        return f"{number(test.samples_per_sec)} requests/s ({tokens}), {limits_text(test)}"
    target_qps = metrics.METRIC_BY_NAME["target_qps"].of(summary)
    if target_qps is not None:  # The queries were sent at a rate: no other load has this metric.
        return f"{rate_text(test)} ({tokens})"
    # The scenarios that send one query after the other are judged by a latency, all others by a speed.
    is_one_by_one = summary.scenario.headline == "latency_p90_ms"
    if is_one_by_one:
        return latency_text(summary, details.samples_per_query, tokens)
    return f"{tokens} ({number(test.samples_per_sec)} samples/s)"


def rate_text(test: Outcome) -> str:
    """Return the rate of a VALID test whose queries were sent at a rate, and that it kept the limits, if it had any."""
    rate = f"{number(test.details.achieved_qps)} samples/s"
    if test.details.limits_ms and Doubt.BUFFERED not in test.doubts:  # A buffer's times are not the engine's.
        return f"{rate} within both limits"
    return rate


def latency_text(summary: Summary, samples_per_query: int, tokens: str) -> str:
    """Return the latency that is the result of SingleStream and MultiStream. `tokens` is the speed in words."""
    latency = metrics.METRIC_BY_NAME["latency_p90_ms"].shown(summary)
    if samples_per_query > 1:
        return f"{tokens} with {samples_per_query} samples at once; a query then takes {latency} ms (p90)"
    return f"{latency} ms for an answer (p90: 9 of 10 are as fast), one request at a time"


def limits_text(test: Outcome) -> str:
    """Return in words whether a test kept the user's own limits, or which it broke."""
    if test.reasons:  # With own limits, these are the limits that it broke.
        return joined_text(": ", "over the limits", " and ".join(test.over))
    if Doubt.BUSY in test.doubts:
        return "not judged: the machine was busy"
    text = "within the limits"
    failed = test.details.failed_requests
    if test.is_few:  # With few requests, not the p99 but the slowest of them is within the limits, and so all are.
        answered = plural(test.queries, "answered request" if failed else "request")
        text = f"all of {answered} {text}"
    if test.tpot_ms.p99 is None:  # No answer had a second token.
        text += ", TPOT not measured"
    if failed:
        text += f", {plural(failed, 'request')} failed"
    if test.over_in:  # such as "over in 1 of 4": single tests of the load were over, but not all of them together
        text += f", {test.over_in} tests"
    return text


def tone(summary: Summary) -> Tone:
    """Return the tone that gives the title its color: that of the result's verdict or, without a result, of the gate's.

    A run with neither has the tone of a failure. A gate without a clear verdict has no tone.
    """
    test = summary.result
    if test and Doubt.DISPUTED in test.doubts:
        return "careful"
    if test:
        return test.verdict.tone
    if summary.gate is None:
        return "bad"
    return GATE_TONES.get(summary.gate, "")


def lines_below_title(summary: Summary, whole: bool) -> Iterator[Line]:
    """Yield the lines under the title, each with its label. Lines without text are left out when they are shown.

    `whole` asks for all deviations from MLPerf's rules, not only the first ones.
    """
    meta, test = summary.meta, summary.result
    if test:
        for disagreement in test.disagreements:
            yield Line("disputed", disagreement, "careful")
    # Without a result and scores, the title itself says why the run ended.
    if meta.ended and (test or summary.accuracy):
        yield Line("ended early", meta.ended, "bad")
    if not test and summary.gate == "FAIL" and meta.mode == "both":  # A failed gate ends the run before the speed test.
        yield Line("speed", "not measured: the gate failed first; --no-exit-on-accuracy-fail goes on", "bad")
    yield from verdict_lines(summary)
    if test:
        yield from limit_lines(summary, test)
        yield Line("bottleneck", bottleneck(test))
        yield from expense_lines(summary)
        for caution in cautions(summary, test):
            yield caution_line(caution)
    yield deviations_line(summary, whole)
    yield Line("next", next_command(summary), is_command=True)
    yield from headroom_lines(summary)


def limit_lines(summary: Summary, test: Outcome) -> Iterator[Line]:
    """Yield a line with the limits, and one that explains the sign before a p99 in the table of levels.

    At fixed concurrency that table has each level's p99, so the line has the limits alone. Else it has the p99 beside
    each limit.
    """
    if not test.details.concurrency:
        yield Line("limits", tail_texts(test))
        return
    yield Line("limits", curve_limits(summary, test))
    has_table = bool(rows_of_levels(summary))
    has_marked_p99 = any(level.is_few for level in summary.curve)
    if has_table and has_marked_p99:
        yield Line(AT_MOST_SIGN, f"before a p99: of fewer than {FEWEST_P99} requests, the slowest of them")


def deviations_line(summary: Summary, whole: bool) -> Line:
    """Return the line that says why a run is not comparable with MLPerf's results; its text is empty if it is.

    Unless `whole`, only the first MOST_REASONS reasons are named, and how many more there are.
    """
    reasons = [str(deviation) for deviation in summary.meta.deviations]
    left_out = len(reasons) - MOST_REASONS
    if left_out > 0 and not whole:
        reasons[MOST_REASONS:] = [f"{plural(left_out, 'more reason')} in the report"]
    return Line(NOT_COMPARABLE, "; ".join(reasons), "careful")


def bottleneck(test: Outcome) -> str:
    """Return what limited the speed most, or that nothing did; empty if the use of the machine was not recorded."""
    details = test.details
    if details.ran_out:
        return str(details.ran_out[0])
    if not details.usage:
        return ""
    # Without other programs, a resource that is not used up is free. With them, it may only seem so.
    if test.background_load:
        return "not known: the machine was busy"
    return "no resource was used up"


def curve_limits(summary: Summary, test: Outcome) -> str:
    """Return the limits of the levels (numbers of requests in flight) in words; empty if there are none.

    If the highest tested level is within the limits, the text names it, because a higher level may be within them, too,
    or says that the server took no more requests.
    """
    limits, levels = test.details.limits_ms, summary.curve
    if not limits:
        return ""
    text = f"TTFT p99 {number(limits.ttft)} ms, TPOT p99 {number(limits.tpot)} ms"
    if summary.meta.full_at:
        text += f"; the server was full at {plural(summary.meta.full_at, 'request')} in flight"
    elif levels and not levels[-1].reasons:  # The levels are in order, and a reason is a limit that a level broke.
        text += f"; highest level tested: {levels[-1].text}"
    return text


def verdict_lines(summary: Summary) -> Iterator[Line]:
    """Yield LoadGen's verdict with its basis, the gate's verdict with its scores, and the verdicts of compliance tests.

    LoadGen's verdict is left out if the user's own limits decide. Without an accuracy test, a line says that accuracy
    was not checked.
    """
    test, score = summary.result, summary.accuracy
    if test and not test.has_own_limits:
        yield loadgen_line(summary, test)
    if score:
        text = scores_text(score)
        if score.verdict == "FAIL":
            text += f"; {WORST_ANSWERS}"
        yield Line(f"accuracy {score.verdict}", text, GATE_TONES.get(score.verdict, "careful"))
    elif test:
        yield Line("accuracy", "not checked", "unknown")
    for name, audit in (summary.run.compliance or {}).items():
        yield Line(name.upper(), audit.verdict, GATE_TONES[audit.verdict])


def loadgen_line(summary: Summary, test: Outcome) -> Line:
    """Return the line with LoadGen's verdict, the number of queries, the seconds, and what would make the test VALID.

    The line also says that a VALID test was the first full test of its search.
    """
    details = test.details
    basis = f"{plural(test.queries, summary.scenario.pattern.query_noun)} in {number(details.duration_s)} s"
    basis += sent_rate_text(test)
    is_first_attempt = summary.run.search and not summary.run.attempts  # `attempts` has the earlier full tests.
    if test.valid and is_first_attempt:
        basis += ", at the first attempt"
    remedies = dict.fromkeys(reason.remedy for reason in details.invalid_reasons)
    return Line(test.verdict.word, joined_text("; ", basis, *remedies), test.verdict.tone)


def scores_text(score: Accuracy) -> str:
    """Return the failed scores with their thresholds, then the number of samples. If none failed, the first score.

    The text also names scores that are only approximate, and adds the note of the accuracy test if it has one.
    """
    checks = [check for check in score.checks if check.verdict == "FAIL"] or score.checks[:1]
    # `low` is the threshold: the lowest score that passes.
    text = ", ".join(f"{check.name} {number(check.score)} (minimum {number(check.low)})" for check in checks)
    if score.approximate:
        text += f"; {' and '.join(score.approximate)} are approximate"
    samples = f"{plural(score.samples, 'sample')} checked"
    if score.full_set:
        samples = f"all {samples}"
    if score.note:
        samples += f" ({score.note})"
    return f"{text}; {samples}"


def tails(test: Outcome) -> dict[str, Tail]:
    """Return the p99 of TTFT and TPOT with their limits, by label.

    The one nearest to its limit, or most over it, is first.
    """
    nearest_first = sorted(test.tails, key=attrgetter("share"), reverse=True)
    return {test.name_of_p99(tail.kind): tail for tail in nearest_first}


def tail_texts(test: Outcome, only_over: bool = False) -> str:
    """Return the p99 of TTFT and TPOT beside their limits. With `only_over`, only those over their limits."""
    texts = []
    for name, tail in tails(test).items():
        if tail.is_over or not only_over:
            texts.append(tail.text(name))
    return "; ".join(texts)


def expense_lines(summary: Summary) -> Iterator[Line]:
    """Yield a line with the cost and one with the energy, as far as they are known."""
    cost = metrics.METRIC_BY_NAME[metrics.COST].of(summary)
    joules = metrics.METRIC_BY_NAME["joules_per_output_token"].of(summary)
    if cost:
        yield Line(
            "cost", f"{number(cost)} per million output tokens, if the machine costs {number(summary.price)} per hour"
        )
    if joules:
        yield Line("energy", f"{number(joules)} J per output token")


def cautions(summary: Summary, test: Outcome) -> Iterator[str]:
    """Yield what a reader must know before passing the result on. Empty texts among these are not shown."""
    details = test.details
    if summary.meta.model == "demo":
        yield "the demo model shows that the set-up works, not how fast an 8B model is"
    yield from load_cautions(summary, test)
    yield burst_caution(summary, test)
    if details.failed_requests:
        request_count = (details.samples or 0) + details.failed_requests
        yield f"left out: {number(details.failed_requests)} of {plural(request_count, 'request')}, which failed"
        for failure in details.failures[:MOST_REASONS]:
            yield f"failed: {failure}"
    if details.errors:
        yield f"LoadGen error: {details.errors[0]}"
    is_sent_at_rate = summary.scenario.pattern.unit == Poisson.unit
    if is_sent_at_rate:  # Only tests at different rates can show that the search itself changed the server.
        yield caution_on_changed_server([*(summary.run.search or []), *(summary.run.attempts or [])])
    yield advice.client_warning(test)
    yield from advice.drift_warnings(test)


def burst_caution(summary: Summary, result: Outcome) -> str:
    """Return at which loads, other than the result's, answers came in bursts; empty if at none.

    A buffer between the server and this client holds such answers back. Another caution is about the result's load.
    """
    other_levels = [level for level in summary.levels if level.load != result.load]
    names = [level.text for level in other_levels if Doubt.BUFFERED in level.doubts]
    if not names:
        return ""
    return f"most answers came in bursts with {', '.join(names)}, so TTFT and TPOT there do not describe the engine"


def load_cautions(summary: Summary, test: Outcome) -> Iterator[str]:
    """Yield what other programs took of the machine during the result's test, and what that cost if it is known.

    If none ran then, yield at which other levels (loads of a curve) some ran, and whether that was not measured.
    """
    if test.background_load:
        effect = test.details.load_effect
        cost, warning = "", NOT_TO_PASS_ON
        if effect and effect.is_negligible:
            cost, warning = str(effect), ""
        elif effect and effect.is_clear:
            cost = str(effect)
        for programs_text in test.background_load:
            yield joined_text("; ", programs_text, cost, warning)
        return
    busy_levels = [level.text for level in summary.levels if Doubt.BUSY in level.doubts]
    if busy_levels:
        text = f"other programs ran during the tests with {', '.join(busy_levels)}, so those tests do not count"
        # `summary.background_load` is of the result's test, which had none, and of faster levels within the limits.
        was_faster_level_busy = bool(summary.background_load)
        if was_faster_level_busy:
            text += f"; one of them may be the best, so {NOT_TO_PASS_ON}"
        yield text
    if test.details.machine.others_cpu_cores is None:
        yield "whether other programs ran was not measured"
