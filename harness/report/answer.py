"""A run's results, the answer first: the lines of the last screen, and of the first one of its report."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import PurePath

from harness.config import mlperf, mlperf_deviations
from harness.config.models import DEFAULT_MODEL, MODELS
from harness.config.patterns import ClosedLoop, Poisson
from harness.config.workload import OFFICIAL_WORKLOAD
from harness.core.document import Cells, Document, Line, Tone
from harness.core.formatting import joined, number, plural
from harness.core.processes import with_flag
from harness.core.statements import names_of
from harness.core.tables import Table
from harness.loadgen.log import LATENCY_KINDS, Latency
from harness.rates.state_left import state_left
from harness.results import accuracy, advice, metrics, test_table
from harness.results.outcome import AT_MOST_SIGN, Doubt, Outcome
from harness.results.summary import Summary
from harness.runs.run_folder import TEST_FOLDERS


def tested(summary: Summary) -> Table:
    """The tests of a search or a curve; with a price per hour what a million tokens cost at each level."""
    unit, price = summary.tests[0].unit, summary.price
    columns = test_table.columns(metrics.TABLES[unit], summary.tests, unit, "load")
    if price and unit == ClosedLoop.unit:
        columns["per million tokens"] = lambda outcome: number(outcome.cost(price), 3)
    if any(test.speed_range for test in summary.tests):
        columns["tests, tokens/s"] = repeated
    columns["why"] = lambda test: test.why or test.verdict.word * (test.verdict.tone == "careful")
    return Table.of(summary.tests, columns, "loads")


def repeated(outcome: Outcome) -> str:
    """Return how many tests of a load its figures are of, and the range of their speeds."""
    if not outcome.repeats or not outcome.speed_range:
        return "1"
    return f"{len(outcome.repeats)}, {' to '.join(map(number, outcome.speed_range))}"


LATENCY_POINTS = (*(field.name for field in fields(Latency) if field.name != "max"), "max")


def latencies(summary: Summary) -> Table:
    """Each kind of latency with its percentiles, of the steady part at fixed concurrency."""
    test = summary.result
    assert test
    rows, bound = [], f"{AT_MOST_SIGN} " if test.is_few else ""
    for kind in LATENCY_KINDS:
        if found := getattr(test.details.counted, f"{kind}_ms"):
            name = kind if kind == "latency" else f"{kind.upper()}{' of the buffering' if test.is_buffered else ''}"
            marked = (f"{bound * point.startswith('p99')}{number(getattr(found, point))}" for point in LATENCY_POINTS)
            rows.append([name, *marked, getattr(test.details.limits_ms, kind, None)])
    heads = (point.replace("_", ".") for point in LATENCY_POINTS)
    return Table(["ms" if test.details.is_whole else "ms of the steady part", *heads, "limit at p99"], rows)


def intervals(test: Outcome) -> list[str]:
    """The 95 % intervals of a test's percentiles, a kind of latency in a line."""
    found = []
    for kind, points in test.details.intervals.items():
        if points and (latency := getattr(test, f"{kind}_ms")):
            each = [f"{point} {number(getattr(latency, point))} ({ends(between)})" for point, between in points.items()]
            found.append(f"{kind if kind == 'latency' else kind.upper()} {', '.join(each)}")
    return found


def ends(interval: tuple[float, float | None] | None) -> str:
    if interval is None:
        return "not known: too few requests"
    low, high = interval
    return f"at least {number(low)}" if high is None else f"{number(low)} to {number(high)}"


REFERENCE_NAME = "Llama-3.1-8B"  # of the reference model, whatever its repository is called
NOT_COMPARABLE = "not comparable with MLPerf"
MOST_REASONS = 3  # of them on the screen
GATE_TONES: dict[str, Tone] = {"PASS": "good", "FAIL": "bad"}


def document(summary: Summary, whole: bool = False, scatter: str = "") -> Document:
    """The answer of a run, and what must be known of it before it is passed on; the `whole` of it in a report;
    `scatter` of earlier runs.
    """
    said = [*lines(summary, whole), Line("scatter", scatter)]
    return Document(
        title(summary), joined(": ", summary.meta.label, subject(summary)), said, levels(summary), tone(summary)
    )


def title(summary: Summary) -> str:
    """The result with its meaning, or the verdict that takes its place."""
    test = summary.result
    if test is None or test.tokens_per_sec is None:
        return title_without_speed(summary)
    disputed = "DISPUTED: " * (Doubt.DISPUTED in test.doubts)
    if not test.valid and not test.has_own_limits:
        return f"INVALID: {disputed}{broken(test)}"
    return f"{disputed}{speed(summary, test)}{', accuracy PASS' * (summary.gate == 'PASS')}"


def title_without_speed(summary: Summary) -> str:
    meta = summary.meta
    if summary.gate is None:
        kept = [each.text for each in summary.curve if each.has_kept and each.verdict.tone == "good"]
        held = f"; {kept[-1]} kept its limits until then" if kept else ""
        return f"No result{f': {meta.ended}' if meta.ended else ''}{held}"
    if summary.gate == "FAIL":
        return (
            f"accuracy FAIL: the answers differ from the reference{'; no speed was measured' * (meta.mode == 'both')}"
        )
    return f"accuracy {summary.gate}"


def broken(test: Outcome) -> str:
    """Why LoadGen calls a test INVALID: the limits that it broke, else its first reason."""
    details = test.details
    rate = f" at {number(details.target_qps)} queries/s" if details.limits_ms and details.target_qps else ""
    over = held(test, only_over=True)
    why = "; ".join(each.what for each in details.invalid_reasons) or "LoadGen gives no reason"
    return f"{over}{rate}" if over else f"{why}{rate and f'; sent{rate}'}"


def speed(summary: Summary, test: Outcome) -> str:
    """The speed of the test that is the result, and what it was held to."""
    details = test.details
    tokens = f"{number(test.tokens_per_sec)} output tokens/s"
    if (curve := summary.curve) and all(each.has_own_limits and each.reasons for each in curve):
        return f"no level is within the limits: the lowest, {curve[0].text}, is over"
    if test.has_own_limits:
        requests = f"{number(test.samples_per_sec)} requests/s ({tokens})"
        return f"{f'{tokens} with {test.text}' if details.concurrency else requests}, {standing(test)}"
    if metrics.METRIC_BY_NAME["target_qps"].of(summary) is not None:
        kept = " within both limits" if details.limits_ms and Doubt.BUFFERED not in test.doubts else ""
        return f"{number(details.achieved_qps)} samples/s{kept} ({tokens})"
    if summary.scenario.headline == "latency_p90_ms":
        latency = metrics.METRIC_BY_NAME["latency_p90_ms"].shown(summary)
        if details.samples_per_query > 1:
            return f"{tokens} with {details.samples_per_query} samples at once; a query then takes {latency} ms (p90)"
        return f"{latency} ms for an answer (p90: 9 of 10 are as fast), one request at a time"
    return f"{tokens} ({number(test.samples_per_sec)} samples/s)"


def standing(found: Outcome) -> str:
    """The verdict on one's own limits, and how much it rests on."""
    if found.reasons:
        return joined(": ", "over the limits", " and ".join(found.over))
    if Doubt.BUSY in found.doubts:  # nobody can tell
        return "not judged: the machine was busy"
    over = f", {found.over_in} tests" if found.over_in else ""
    return f"{f'all of {number(found.queries)} requests ' if Doubt.FEW in found.doubts else ''}within the limits{over}"


def levels(summary: Summary) -> list[Cells]:
    """The levels of a curve as rows, the head first; none of a search, whose answer is a rate."""
    found = summary.curve
    is_known = len(found) < 2 or found[0].unit == Poisson.unit  # by the test that followed
    if not found or (is_known and summary.result):
        return []
    return [test_table.head(found[0]), *map(test_table.cells, found)]


def subject(summary: Summary, *more: Summary) -> str:
    """Scenario, model and weights, machine, engine: of several runs what all of them share."""
    return ", ".join(shared(map(parts, (summary, *more))))


def shared(lists: Iterable[Sequence[str]]) -> list[str]:
    """What of the first list is in all others, too."""
    first, *others = lists
    return [each for each in first if all(each in other for other in others)]


def parts(summary: Summary) -> list[str]:
    work = [] if summary.meta.workload == OFFICIAL_WORKLOAD else [summary.meta.workload]
    found = [scenario(summary), *work, model(summary), machine(summary)]
    return [*found, engine(summary)] if summary.is_in_process else found


def model(summary: Summary) -> str:
    """The model as people name it, with what is known of its weights."""
    meta, name = summary.meta, model_name(summary.meta.model)
    if names_of(meta.deviations, (mlperf_deviations.RANDOM_WEIGHTS, mlperf_deviations.DUMMY_WEIGHTS)):
        return f"{name} with random weights"
    return f"{name} in {meta.weights.partition(' ')[0]}" if meta.weights and meta.model != "demo" else name


def is_reference(summary: Summary) -> bool:
    """Whether a model of the reference's shape answered MLPerf's samples."""
    return summary.meta.workload == OFFICIAL_WORKLOAD and not names_of(
        summary.meta.deviations, (mlperf_deviations.OTHER_MODEL, mlperf_deviations.OTHER_SHAPE)
    )


def model_name(model: str) -> str:
    if model in (DEFAULT_MODEL, MODELS[DEFAULT_MODEL].path):
        return REFERENCE_NAME
    return "demo model" if model == "demo" else PurePath(model).name or model


def scenario(summary: Summary) -> str:
    """As MLPerf writes it; Interactive is LoadGen's Server."""
    rules = summary.scenario
    return rules.loadgen if rules.loadgen.lower() == rules.name else rules.name.capitalize()


def machine(summary: Summary) -> str:
    """The GPUs that the engine used, or the CPU; of an endpoint, what serves it."""
    if not summary.is_in_process:
        return f"{plural(len(summary.meta.endpoints), 'endpoint')} of {server(summary)}"
    if summary.gpus:
        return f"{summary.gpus} x {', '.join(dict.fromkeys(summary.system.gpus))}"
    return f"{summary.system.cores} CPU cores"


def server(summary: Summary) -> str:
    return str(summary.meta.engine_args.get("server", "a server"))


def engine(summary: Summary) -> str:
    if not summary.is_in_process:
        return f"{server(summary)}, behind an endpoint"
    return summary.meta.engine or f"vLLM {summary.system.vllm_version or 'unknown'}"


def tone(summary: Summary) -> Tone:
    found = summary.result
    if found is None:
        return GATE_TONES.get(summary.gate, "") if summary.gate else "bad"
    return "careful" if Doubt.DISPUTED in found.doubts else found.verdict.tone


def lines(summary: Summary, whole: bool) -> Iterator[Line]:
    """What stands under the title, each with its label; empty ones are left out."""
    meta, test = summary.meta, summary.result
    yield from (Line("disputed", said, "careful") for said in (test.disagreements if test else ()))
    if meta.ended and (test or summary.accuracy):
        yield Line("ended early", meta.ended, "bad")
    if not test and summary.gate == "FAIL" and meta.mode == "both":
        yield Line("speed", "not measured: the gate failed first; --no-exit-on-accuracy-fail goes on", "bad")
    yield from verdicts(summary)
    if test:
        yield Line("limits", curve_limits(summary, test) if test.details.concurrency else held(test))
        yield Line("bounded by", bound_by(test))
        yield Line("cost, energy", "; ".join(expenses(summary)))
        yield from (Line("careful", said, "careful") for said in cautions(summary, test))
    if meta.deviations:
        shown = meta.deviations if whole else meta.deviations[:MOST_REASONS]
        left = len(meta.deviations) - len(shown)
        more = f"; {left} more in the report" if left else ""
        yield Line(NOT_COMPARABLE, f"{'; '.join(map(str, shown))}{more}", "careful")
    yield Line("next", next_command(summary), is_command=True)


def bound_by(test: Outcome) -> str:
    """What set the speed, first; or that nothing did, or that it is not known."""
    details = test.details
    if details.ran_out:
        return str(details.ran_out[0])
    unknown = "not known: the machine was busy" if test.background_load else "no resource was used up"
    return unknown if details.usage else "not recorded: add --extra-metrics"


def curve_limits(summary: Summary, test: Outcome) -> str:
    """What levels are held to, and that the highest of them is within it: a higher one may be, too."""
    found, limits = summary.curve, test.details.limits_ms
    top = f"; highest level tested: {found[-1].text}" if found and not found[-1].reasons else ""
    return f"TTFT p99 {number(limits.ttft)} ms, TPOT p99 {number(limits.tpot)} ms{top}" if limits else ""


def verdicts(summary: Summary) -> Iterator[Line]:
    """LoadGen's verdict with what it rests on, the gate's with its score."""
    test, score = summary.result, summary.accuracy
    if test and not test.has_own_limits:
        count = (
            f"{number(test.queries, 9)} {summary.scenario.pattern.queries_are} in {number(test.details.duration_s)} s"
        )
        first = ", at the first attempt" if test.valid and summary.run.search and not summary.run.attempts else ""
        remedies = dict.fromkeys(each.remedy for each in test.details.invalid_reasons if each.remedy)
        yield Line(test.verdict.word, "; ".join([f"{count}{first}", *remedies]), test.verdict.tone)
    if score:
        said = scores(score) + f"; the worst answers are in {TEST_FOLDERS['accuracy']}/worst.md" * (
            score.verdict == "FAIL"
        )
        yield Line(f"accuracy {score.verdict}", said, GATE_TONES.get(score.verdict, "careful"))
    elif test:
        yield Line("accuracy", "not checked", "unknown")
    for name, audit in (summary.run.compliance or {}).items():
        yield Line(name.upper(), audit.verdict, GATE_TONES[audit.verdict])


def scores(score: accuracy.Accuracy) -> str:
    """The first score with its threshold, those below theirs, and the number of samples."""
    low = [check for check in score.checks if check.verdict == "FAIL"] or score.checks[:1]
    said = ", ".join(f"{check.name} {number(check.score)} of {number(check.low)}" for check in low)
    note = f" ({score.note})" if score.note else ""
    approximate = f" ({' and '.join(score.approximate)} approximate)" if score.approximate else ""
    return f"{said}{approximate}; {'all ' if score.full_set else ''}{number(score.samples, 9)} samples{note}"


def tails(test: Outcome) -> dict[str, mlperf.Tail]:
    """TTFT and TPOT at p99 with their limits by what they are called, the nearer to its limit first."""
    return {test.name_of_p99(tail.kind): tail for tail in sorted(test.tails, key=lambda tail: tail.share, reverse=True)}


def held(test: Outcome, only_over: bool = False) -> str:
    """The same in words, or what of it is over its limit."""
    found = {name: tail for name, tail in tails(test).items() if tail.is_over or not only_over}
    return ", ".join(f"{name} {number(tail.p99)} of {number(tail.limit)} ms" for name, tail in found.items())


def expenses(summary: Summary) -> Iterator[str]:
    """Money and energy, where they are known."""
    cost, joules = (metrics.METRIC_BY_NAME[name].of(summary) for name in (metrics.COST, "joules_per_output_token"))
    if cost:
        yield f"{number(cost)} per million output tokens at {number(summary.price)} an hour"
    if joules:
        yield f"{number(joules)} J per output token"


def cautions(summary: Summary, test: Outcome) -> Iterator[str]:
    details = test.details
    if summary.meta.model == "demo":
        yield "the demo model shows that the set-up works, not how fast a model of 8B is"
    yield from (f"{said}; --fail-if does not judge this run" for said in test.background_load)
    busy = [each.text for each in summary.levels if Doubt.BUSY in each.doubts]
    if busy and not test.background_load:
        judges = "; one of them may be the best, so --fail-if does not judge this run" * bool(summary.background_load)
        yield f"other programs ran during the tests with {', '.join(busy)}, so those tests do not count{judges}"
    if not test.background_load and details.machine.others_cpu_cores is None:
        yield "whether other programs ran was not measured"
    if details.failed_requests:
        failed = details.failed_requests
        yield f"{number(failed)} of {number((details.samples or 0) + failed)} requests failed and are left out"
        yield from (f"failed: {failure}" for failure in details.failures[:MOST_REASONS])
    yield from (f"LoadGen error: {error}" for error in details.errors[:1])
    if summary.scenario.pattern.unit == Poisson.unit:
        yield state_left([*(summary.run.search or []), *(summary.run.attempts or [])])
    yield advice.client(test)
    yield from advice.unsteady(test)


def next_command(summary: Summary) -> str:  # noqa: PLR0911
    """The command that goes on from a result that is none; empty where there is one."""
    test, command, curve = summary.result, summary.meta.command, summary.curve
    good = [each.load for each in curve if each.has_kept]
    if test is None and summary.meta.ended:
        if not curve or curve[0].unit != Poisson.unit:
            return command
        good = good or [each.load for each in curve if each.is_short] or [curve[0].load / 2]
        return with_flag(command, "--server-target-qps", f"{round(summary.meta.target_qps or max(good), 3):g}")
    if test is None or (test.valid and not test.has_own_limits):
        return ""
    if test.details.concurrency and test.reasons:
        lowest = curve[0].load if curve else test.details.concurrency
        lower = max(good, default=max(1, lowest // 4))
        return with_flag(command, "--concurrency", f"{lower:.0f}") if lower < lowest or good else ""
    if test.details.concurrency and test.details.limits_ms and curve and not curve[-1].reasons:
        return with_flag(command, "--concurrency", "max")
    if test.valid or not test.details.limits_ms:
        return ""
    good = [load for load in good if load < (test.details.target_qps or 0.0)]
    if held(test, only_over=True):
        return with_flag(command, "--server-target-qps", f"{max(good):.2f}" if good else "max")
    return with_flag(command, "--min-duration", "auto")


def footer(*summaries: Summary) -> str:
    """What a picture says of the runs it is of, where it is shown without their report: what all of them share."""
    each = [
        (one.meta.label, subject(one), one.meta.started[:10], NOT_COMPARABLE.removeprefix("not " * one.meta.comparable))
        for one in summaries
    ]
    return joined(" \N{MIDDLE DOT} ", *shared(each))
