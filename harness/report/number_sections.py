"""The sections of a report with a run's numbers: what limits the speed, its tests, its metrics and its latencies."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from harness.config.patterns import ClosedLoop
from harness.core.document import Block, Section
from harness.core.formatting import joined_text, number, plural
from harness.core.markdown import code_text
from harness.report import answer, load_view, subject, test_tables
from harness.report.load_view import LoadPicture
from harness.report.run_report import RunReport, facts_table
from harness.results import advice, metrics
from harness.results.outcome import Outcome
from harness.results.summary import Summary
from harness.results.test_details import TestDetails

LEVELS_NOTE = (
    "This program measured these times: LoadGen issues one Offline query and cannot know when each request of it is "
    "sent. Each row excludes both ramps of its test. Trend is the second half's speed divided by the first half's."
)
SPEED_PER_USER_NOTE = "Speed per user is 1,000 / TPOT p90."
INTERVALS_NOTE = "95 % confidence intervals, ms, from the requests of this test (different runs vary more)"
TPOT_NOT_JUDGED = " The others are too few to be sure of TPOT p99: VALID or INVALID, the verdict does not cover TPOT."


def bounds(report: RunReport) -> Iterator[Section]:
    """Yield the section on what limits the speed and what to try; none without a performance test."""
    test = report.summary.result
    if test:
        findings = advice.findings(report.summary)
        yield Section("What limits the speed", answer.bottleneck(test) or "not recorded", [findings])


def loads(report: RunReport) -> Iterator[Section]:
    """Yield the section on the tests of a search or a curve; none for a run without them.

    If no picture was drawn, the section has only the counts of the tests' outcomes.
    """
    summary, tests, picture = report.summary, report.summary.tests, report.loads
    if not tests:
        return
    blocks = list[Block]()
    if "search" in report.pictures:
        blocks += [*report.picture("search"), test_tables.table_of_loads(summary)]
        has_levels = tests[0].unit == ClosedLoop.unit  # The loads are numbers of requests in flight.
        if has_levels:
            has_users = any(level.tokens_per_sec_per_user for level in summary.tests)
            blocks.append(joined_text(" ", LEVELS_NOTE, SPEED_PER_USER_NOTE if has_users else ""))
        if picture and picture.best and picture.rate:
            blocks.append(replicas_text(picture, picture.rate))
        folders = "`Probes/`"
        if summary.run.attempts:
            folders += " and `Attempts/`"
        blocks.append(f"Each load has a LoadGen test of its own; the logs are in {folders}.")
    yield Section("Tests at each load", outcomes_text(summary), blocks)


def outcomes_text(summary: Summary) -> str:
    """Return how many tests of a search or a curve had each outcome, in words: first of probes, then of full tests.

    The run's own test is among the full tests, also if the table of the tests at each load is without it.
    """
    probes, full_tests = list[Outcome](), list[Outcome]()
    for test in summary.tests:
        if load_view.is_full_test(test, summary):
            full_tests.append(test)
        else:
            probes.append(test)
    own_test = load_view.separate_result(summary)
    if own_test:
        full_tests.append(own_test)
    if not probes:
        return counts_text(full_tests)
    text = f"probes: {counts_text(probes)}"
    if full_tests:
        text += f"; full tests: {counts_text(full_tests)}"
    return text


def counts_text(tests: Sequence[Outcome]) -> str:
    """Return how many tests had each outcome, the most frequent one first, such as "2 VALID, 1 INVALID"."""
    counts = Counter(map(outcome_word, tests))
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def outcome_word(test: Outcome) -> str:
    """Return the outcome of a test in a word: its verdict, or "queue grew" for a VALID test that the
    server did not keep up with.
    """
    if test.valid and test.has_grown:
        return "queue grew"
    return test.verdict.word


def replicas_text(picture: LoadPicture, rate: float) -> str:
    """Return what a replica answers at its best load, at `rate` requests/s, and how many replicas a peak takes.

    In a peak, a replica gets only a share of `rate`, so that queues stay short. The picture must have a best load.
    """
    best = picture.best
    assert best
    answered = f"{number(rate)} requests/s"
    if best.doubt:  # The verdict is "not judged", which only a busy machine leads to.
        answered += " on a busy machine"
    elif any(picture.limits.values()):
        answered += " within the limits"
    own_test = picture.summary.result
    if own_test and own_test.details.failed_requests:
        answered += f", besides {plural(own_test.details.failed_requests, 'request')} that failed"
    name = best.name
    if not best.is_full:  # The test was shorter than a full one.
        name += ", by a probe alone"
    share = load_view.REPLICA_LOAD_SHARE
    in_peak = number(share * rate)
    return (
        f"A replica answers {answered} ({name}); with a reserve of {100 * (1 - share):.0f} %, plan "
        f"{in_peak} for each. A peak of P requests/s needs ceil(P / {in_peak}) replicas."
    )


def numbers(report: RunReport) -> Iterator[Section]:
    """Yield the sections on a run's metrics, its latencies, and remarks on its answers.

    Nothing without a performance test.
    """
    summary, test = report.summary, report.summary.result
    if not test:
        return
    details = test.details
    blocks = report.picture("tokens_per_sec")
    if test.repeats:
        blocks.append(
            f"Speeds and costs are of all {len(test.repeats)} tests at this level together; counts, durations and the "
            "latencies below are of the last test."
        )
    elif not details.is_whole:  # The metrics are of the steady part.
        blocks.append(f"The whole test, ramps included: {number(details.whole.tokens_per_sec)} output tokens/s.")
    rows = {metric.label: value for metric, value in metrics.report_rows(summary)}
    rows["batching"] = batching_text(summary)
    blocks.append(facts_table(rows))
    yield Section("Numbers", f"{number(test.tokens_per_sec)} output tokens/s, {number(details.duration_s)} s", blocks)
    yield from latencies(report, test)
    texts = [*remarks(summary, test)]
    if texts:
        yield Section("Remarks", plural(len(texts), "remark"), [texts])


def batching_text(summary: Summary) -> str:
    """Return how the engine in this process batches requests, in words.

    Empty for a server, and for an engine other than vLLM that has no fixed batches.
    """
    if not summary.is_in_process:
        return ""
    if summary.meta.batch_size:
        return f"fixed batches of {summary.meta.batch_size}, one after the other"
    if subject.engine_text(summary).startswith("vLLM"):
        return "continuous batching"
    return ""


def latencies(report: RunReport, test: Outcome) -> Iterator[Section]:
    """Yield the section on latencies.

    Nothing for a test in which the time of the first tokens was not measured, as in Offline.
    """
    details = test.details
    if not details.whole.ttft_ms:
        return
    counted = details.counted
    kinds = {"TTFT": counted.ttft_ms, "TPOT": counted.tpot_ms, "latency": counted.latency_ms}
    outcome = ", ".join(f"{name} p50 {number(latency.p50)} ms" for name, latency in kinds.items() if latency)
    blocks: list[Block] = [*report.picture("latency_cdf"), test_tables.table_of_latencies(report.summary)]
    intervals = test_tables.interval_texts(test)
    # The intervals are of one whole test, so a steady part has none, nor has a level of several tests.
    if intervals and details.is_whole and not test.repeats:
        blocks.append(f"{INTERVALS_NOTE}: {'; '.join(intervals)}.{open_ends_note(test)}")
    if details.arrivals:
        blocks.append(arrivals_text(details, details.arrivals))
    # The run's own test has these latencies, also where its level was tested several times.
    folder = report.summary.run.performance.folder if report.summary.run.performance else test.folder
    source = "LoadGen"
    if details.concurrency or details.arrivals:  # LoadGen then does not know when a request is sent.
        source = "This program"
    blocks.append(f"{source} measured these times; those of each request are in `{folder}/requests.csv`.")
    yield Section("Latency", outcome, blocks)


def open_ends_note(test: Outcome) -> str:
    """Return a sentence on the intervals of a test that have no upper end; empty if all of them have one."""
    intervals = chain.from_iterable(kind.values() for kind in test.details.intervals.values())
    if any(interval is not None and interval[1] is None for interval in intervals):
        return ' "Or more": too few independent requests for an upper end.'
    return ""


def arrivals_text(details: TestDetails, arrivals: str) -> str:
    """Return a sentence on the arrivals of requests that did not follow LoadGen's pattern."""
    return (
        f"Arrivals followed `--arrivals {code_text(arrivals)}`: a mean of {number(details.target_qps)} a second, the "
        f"times between them with a coefficient of variation of {number(details.arrivals_cv, 3)} (0 is clockwork, "
        "1 pure chance, more is bursts). Each latency counts from the time at which its request was due."
    )


def remarks(summary: Summary, test: Outcome) -> Iterator[str]:
    """Yield remarks on the answers: those of one token, the server's own counts, and those that are too long.

    LoadGen's warnings come last. A remark that does not apply is left out.
    """
    details = test.details
    samples = number(details.samples)
    if details.single_token:
        not_judged = "" if details.tpot_judged else TPOT_NOT_JUDGED
        if details.single_token == details.samples:
            not_judged = " No answer has a TPOT, so the verdict does not cover it."
        yield (
            f"**Answers of one token: {number(details.single_token)} of {samples}**: TTFT and latency count them, "
            f"TPOT does not.{not_judged}"
        )
    if details.server and details.server.prompt_tokens is not None:  # The server counted the tokens itself.
        cached = details.server.cached_percent
        share = "it does not report how many came from its cache"
        if cached is not None:
            share = f"{number(cached, 3)} % of them from its cache"
        yield (
            f"By the server's own count (`usage`): {plural(details.server.prompt_tokens, 'prompt token')}, {share}; "
            f"{plural(details.server.output_tokens, 'output token')}."
        )
    if details.longer:
        yield (
            f"**Answers longer than {plural(summary.meta.max_new_tokens, 'token')}, the most that was allowed: "
            f"{number(details.longer)} of {samples}**: the server ignores `max_tokens`, or its text has more tokens "
            "here than it counted."
        )
    for warning in details.warnings:
        yield f"LoadGen warning: {warning}"
