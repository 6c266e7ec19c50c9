"""What speaks against an entry, judged from the logs it is built of: what the official checker refuses in any division,
and what keeps it out of a closed submission.

Sources: the checks and constants of the official submission checker (tools/submission in mlcommons/inference).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.common import reading
from harness.common.markdown import number
from harness.config import mlperf, models
from harness.evaluation import compliance
from harness.loadgen import agreement
from harness.loadgen.log import TestResult
from harness.submission import one_system, recomputed
from harness.submission.entries import BENCHMARK, SCENARIO, Entry

# The scenarios a closed submission must cover: each of these sets needs one of its own.
REQUIRED_SCENARIOS = {
    "datacenter": ({"offline"}, {"server", "interactive"}),
    "edge": ({"offline"}, {"singlestream"}),
}
# The checker goes by LoadGen's scenario, and LoadGen runs Interactive as Server: these limits hold for both.
CHECKED_LIMITS = mlperf.SERVER_LIMITS
ONE_QUERY = {"offline"}  # scenarios that issue all their samples as one query
TARGET_LATENCY_NS = 20e9  # at most, of the same scenarios


def checker_refusals(entries: Sequence[Entry]) -> list[str]:
    """What the official checker refuses in any division."""
    return [reason for entry in entries for reason in label_reasons(entry, entry_refusals(entry))]


def closed_division_refusals(entries: Sequence[Entry], description: Mapping[str, object] | None = None) -> list[str]:
    """Why these entries cannot go into a closed submission, with this system description; empty when they can."""
    reasons = one_system.differences(entries, description) + [
        reason
        for entry in entries
        for reason in label_reasons(
            entry, *(part(entry) for part in (entry_refusals, settings, accuracy, accuracy_log, performance, test06))
        )
    ]
    for category, sets in REQUIRED_SCENARIOS.items():
        run = {entry.config.scenario for entry in entries if entry.category == category}
        if run:
            reasons += [
                f"{BENCHMARK[category]}: {' or '.join(SCENARIO[name] for name in sorted(choice))} is missing"
                for choice in sets
                if not run & choice
            ]
    if reasons:
        return reasons
    return [
        reason for entry in entries for reason in label_reasons(entry, recomputed.differences(entry))
    ]  # takes minutes


def label_reasons(entry: Entry, *parts: Iterator[str]) -> list[str]:
    """Each reason once, with the result that it speaks against."""
    return [
        f"{entry.benchmark} {entry.scenario}: {reason}"
        for reason in dict.fromkeys(reason for part in parts for reason in part)
    ]


def entry_refusals(entry: Entry) -> Iterator[str]:
    """What the checker refuses in any division."""
    if entry.config.scenario_rules.unofficial:
        yield entry.config.scenario_rules.unofficial
    official = mlperf.OFFICIAL[entry.category].samples
    accuracy, performance = entry.accuracy.log("accuracy"), entry.performance.log("performance")
    if accuracy.errors:
        yield f"{len(accuracy.errors)} LoadGen errors in the accuracy test, the first: {accuracy.errors[0]}"
    if (answered := setting(accuracy, "accuracy_sample_count")) != official:
        yield f"{answered:,} samples in the accuracy test; the checker asks for {official:,}"
    if (set_size := setting(performance, "performance_sample_count")) < official:
        yield f"a set of {set_size:,} samples in the performance test; the checker asks for {official:,}"
    if (duration := setting(performance, "min_duration_ms") / 1000) < mlperf.MIN_DURATION_S:
        yield f"a minimum duration of {duration:g} s; the checker asks for {mlperf.MIN_DURATION_S:g} s"
    yield from foreign_seeds(entry, performance)
    if performance.early_stopping.get("early_stopping_met") is not True:
        yield "too few queries for its percentile (early stopping)"
    yield from (f"no {name} in the performance test's log, or 0" for name, v in results(performance).items() if not v)
    if not performance.token_latencies:
        yield "use_token_latencies is off in the performance test"
    if entry.config.scenario_rules.limits:
        yield from over(performance, CHECKED_LIMITS)
        if (target := setting(performance, "target_latency_ns")) > TARGET_LATENCY_NS:
            yield f"a target_latency of {target / 1e9:g} s; the checker allows {TARGET_LATENCY_NS / 1e9:g} s"
    conf = entry.performance.folder("performance") / "user.conf"
    if conf.exists() and not conf.stat().st_size:
        yield "an empty user.conf"


def results(result: TestResult) -> dict[str, float | None]:
    """What the checker takes a test's result from."""
    if estimate := compliance.ESTIMATES.get(result.scenario):
        slow = result.latency_ms.p90 if result.latency_ms else None
        return {estimate: result.early_stopping.get(estimate), "latency p90": slow}
    return {"samples/s": result.samples_per_sec, "tokens/s": result.tokens_per_sec}


def over(result: TestResult, limits: mlperf.Limits) -> Iterator[str]:
    """The 99th percentiles that are not below their limit."""
    for name, found, limit in (
        ("TTFT", result.ttft_ms, limits.ttft_ms),
        ("TPOT", result.tpot_ms, limits.tpot_ms),
    ):
        if found is None:
            yield f"no {name} in the performance test's log"
        elif found.p99 >= limit:
            yield f"{name} p99 of {number(found.p99)} ms is not below {limit:,g} ms"


def foreign_seeds(entry: Entry, result: TestResult) -> Iterator[str]:
    if result.seeds != vars(mlperf.SEEDS[entry.round]):
        yield f"seeds other than those of v{entry.round}"


def setting(result: TestResult, name: str) -> float:
    """One of the settings in effect; 0 where the log has none that is a number."""
    value = result.effective.get(name)
    return value if isinstance(value, int | float) else 0


def settings(entry: Entry) -> Iterator[str]:
    for run in entry.runs:
        yield from run.facts.deviations
        yield from run.facts.plan.deviations
        if Path(run.config.model).resolve() == Path(models.MODELS["demo"].path):
            yield "the demo model"


def accuracy(entry: Entry) -> Iterator[str]:
    scores = entry.accuracy.scores
    if scores.verdict != "PASS":
        yield f"the accuracy gate says {scores.verdict}"
    if scores.approximate:
        yield "ROUGE-Lsum and gen_len are approximate: NLTK's punkt_tab was missing (`make punkt`, then run again)"


def accuracy_log(entry: Entry) -> Iterator[str]:
    yield from foreign_seeds(entry, entry.accuracy.log("accuracy"))
    yield from agreement.of_summary(entry.accuracy.folder("accuracy"), entry.accuracy.log("accuracy"))


def performance(entry: Entry) -> Iterator[str]:
    """LoadGen's verdict, the limits of the scenario itself, and the size of an Offline query."""
    result = entry.performance.log("performance")
    official = mlperf.OFFICIAL[entry.category].samples
    if not result.valid:
        yield f"LoadGen calls the performance run INVALID: {'; '.join(result.invalid_reasons)}"
    yield from (f"LoadGen error: {error}" for error in result.errors)
    yield from agreement.of_summary(entry.performance.folder("performance"), result)
    if any(result.effective.get(f"performance_issue_{which}") is True for which in ("same", "unique")):
        yield "LoadGen issued one sample again and again (performance_issue_same or _unique)"
    if limits := entry.config.scenario_rules.limits:
        yield from over(result, limits)
    if entry.config.scenario in ONE_QUERY and (size := setting(result, "samples_per_query")) < official:
        yield f"a query of {size:,} samples; closed asks for {official:,}"


def test06(entry: Entry) -> Iterator[str]:
    """The official checker asks for TEST06 of the datacenter benchmark only."""
    if entry.category != "datacenter":
        return
    if entry.test06 is None:
        yield "no TEST06 (run it with --compliance test06)"
        return
    folder, (recorded, eos) = entry.test06.folder("test06"), entry.test06.test06
    outcome, text = compliance.judge_test06(folder, eos, entry.config)
    verdict = folder / "verify_accuracy.txt"
    if not (recorded.passed and outcome.passed):
        yield "TEST06 failed"
    elif not verdict.exists() or reading.read_text(verdict) != text:
        yield "TEST06: verify_accuracy.txt is not what its log comes to"
