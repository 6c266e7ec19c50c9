"""Judge an entry from the logs it is built of: what the official checker refuses in any division,
and what keeps it out of a closed submission. That rests on nothing a run once wrote of itself, so its logs are scored
again, and is of one system, as MLPerf's inference_rules.adoc asks of all results that are reported together.

Sources: the checks and constants of the official submission checker (tools/submission in mlcommons/inference).
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from harness.config import comparability, mlperf, models, server_addresses
from harness.core import errors, formatting, reading, statements
from harness.core.remedies import splitter_command
from harness.loadgen import requests, test_run
from harness.loadgen.log import TestResult, p99_of
from harness.loadgen.requests import ANSWERS_FILE
from harness.results import accuracy, claims, scoring, test06_verdict
from harness.submission.entries import BENCHMARK_NAMES, SCENARIO_FOLDERS, Entry, SubmittedRun
from harness.submission.system_description import DECLARED, Description, engine_of

# The scenarios a closed submission must cover: each of these sets needs its own.
REQUIRED_SCENARIOS = {"datacenter": ({"offline"}, {"server", "interactive"}), "edge": ({"offline"}, {"singlestream"})}
ESTIMATES = {"SingleStream": "early_stopping_latency_ss", "MultiStream": "early_stopping_latency_ms"}  # nanoseconds
TARGET_LATENCY_NS = 20e9  # the most that the checker allows in scenarios with limits
PERCENTILE = 0.99  # LoadGen's percentile of a latency; it is 0.9 in scenarios with ESTIMATES (mlperf.conf)
# Entries of one system may differ in these: scenarios are other work with their own settings; Python and the
# environment are the harness's.
IGNORED_BETWEEN_SYSTEMS = ("work", "settings", "python", "variables", "busyness", "validity", "rate")
Refusals = Iterator[str]  # in words
SCORE_TOLERANCE = 1e-3  # the largest difference of scores, which are rounded to four digits


def checker_refusals(entries: Sequence[Entry]) -> list[str]:
    """Return what the official checker refuses in any division."""
    reasons = list[str]()
    for entry in entries:
        reasons += label_reasons(entry, entry_refusals(entry))
    return reasons


def closed_division_refusals(entries: Sequence[Entry], description: Description | None = None) -> list[str]:
    """Return why these entries cannot go into a closed submission with this system description; empty if they can."""
    reasons = system_differences(entries, description)
    for entry in entries:
        parts = (entry_refusals, settings, accuracy_reasons, performance, test06)
        reasons += label_reasons(entry, *(part(entry) for part in parts))
    for category, sets in REQUIRED_SCENARIOS.items():
        run = {entry.config.scenario for entry in entries if entry.config.category == category}
        for choice in sets:
            if run and not run & choice:
                names = " or ".join(SCENARIO_FOLDERS[name] for name in sorted(choice))
                reasons.append(f"{BENCHMARK_NAMES[category]}: {names} is missing")
    if not reasons:
        for entry in entries:
            reasons += label_reasons(entry, score_differences(entry))  # takes minutes
    return reasons


def label_reasons(entry: Entry, *parts: Refusals) -> list[str]:
    """Return each reason once, with the benchmark and scenario of its entry."""
    reasons = dict.fromkeys(chain.from_iterable(parts))
    return [f"{entry.benchmark} {entry.scenario}: {reason}" for reason in reasons]


def entry_refusals(entry: Entry) -> Refusals:  # noqa: C901
    """Yield what the checker refuses in any division."""
    if entry.config.scenario_rules.unofficial:
        yield entry.config.scenario_rules.unofficial
    official = entry.config.official_samples
    accuracy, performance = entry.accuracy.log("accuracy"), entry.performance.log("performance")
    if accuracy.errors:
        yield f"{len(accuracy.errors)} LoadGen errors in the accuracy test, the first: {accuracy.errors[0]}"
    if (answered := logged_setting(accuracy, "accuracy_sample_count")) != official:
        yield f"{answered:,} samples in the accuracy test; the checker asks for {official:,}"
    if (set_size := logged_setting(performance, "performance_sample_count")) < official:
        yield f"a set of {set_size:,} samples in the performance test; the checker asks for {official:,}"
    if (duration := logged_setting(performance, "min_duration_ms") / 1000) < mlperf.MIN_DURATION_S:
        yield f"a minimum duration of {duration:g} s; the checker asks for {mlperf.MIN_DURATION_S:g} s"
    yield from foreign_seeds(entry, performance)
    if performance.early_stopping.get("early_stopping_met") is not True:
        yield "too few queries for its percentile (early stopping)"
    yield from (f"no {name} in the performance test's log, or 0" for name, v in results(performance).items() if not v)
    if not performance.token_latencies:
        yield "use_token_latencies is off in the performance test"
    if entry.config.scenario_rules.limits:
        # The checker goes by LoadGen's scenario, and LoadGen runs Interactive as Server: these limits hold for both.
        yield from exceeded_tails(performance, mlperf.SERVER_LIMITS)
        if (target := logged_setting(performance, "target_latency_ns")) > TARGET_LATENCY_NS:
            yield f"a target_latency of {target / 1e9:g} s; the checker allows {TARGET_LATENCY_NS / 1e9:g} s"
    conf = entry.performance.folder("performance") / "user.conf"
    if conf.exists() and not conf.stat().st_size:
        yield "an empty user.conf"


def results(result: TestResult) -> dict[str, float | None]:
    """Return the figures from which the checker takes a test's result."""
    if estimate := ESTIMATES.get(result.scenario):
        slow = result.latency_ms.p90 if result.latency_ms else None
        return {estimate: result.early_stopping.number(estimate), "latency p90": slow}
    return {"samples/s": result.samples_per_sec, "tokens/s": result.tokens_per_sec}


def exceeded_tails(result: TestResult, limits: mlperf.LatencyLimits) -> Refusals:
    """Yield the p99 latencies that are missing or not below their limit."""
    tails = {tail.kind: tail for tail in limits.tails(p99_of(result.ttft_ms), p99_of(result.tpot_ms))}
    for kind in ("TTFT", "TPOT"):
        if kind not in tails:
            yield f"no {kind} in the performance test's log"
        elif tails[kind].share >= 1:
            yield f"{kind} p99 of {formatting.number(tails[kind].p99)} ms is not below {tails[kind].limit:,g} ms"


def foreign_seeds(entry: Entry, result: TestResult) -> Refusals:
    if result.seeds != vars(mlperf.SEEDS_BY_ROUND[entry.config.round]):
        yield f"seeds other than those of v{entry.config.round}"


def logged_setting(result: TestResult, name: str) -> float:
    """Return a setting in effect; 0 if the log has no number for it."""
    value = result.effective.get(name)
    return value if isinstance(value, int | float) else 0


def settings(entry: Entry) -> Refusals:
    for run in entry.runs:
        yield from map(str, (*run.facts.deviations, *run.facts.plan.deviations))
        if Path(run.config.model).resolve() == Path(models.MODELS["demo"].path):
            yield "the demo model"


def accuracy_reasons(entry: Entry) -> Refusals:
    scores = entry.accuracy.scores
    if scores.verdict != "PASS":
        yield f"the accuracy gate says {scores.verdict}"
    if scores.approximate:
        yield (
            "ROUGE-Lsum and gen_len are approximate, since NLTK's punkt_tab was missing: "
            f"`{splitter_command()}`, then run again"
        )
    if not scores.full_set:
        yield "rouge.json says that a part of the set was scored (full_set)"
    yield from foreign_seeds(entry, entry.accuracy.log("accuracy"))
    yield from map(str, claims.differing(claims.summary_claims(entry.accuracy.folder("accuracy"))))


def performance(entry: Entry) -> Refusals:
    """Yield what is wrong with the performance test: LoadGen's verdict, the scenario's limits, and the size of an
    Offline query.
    """
    result = entry.performance.log("performance")
    official = entry.config.official_samples
    if not result.valid:
        yield f"LoadGen calls the performance test INVALID: {statements.merge_by_remedy(result.invalid_reasons)}"
    yield from (f"LoadGen error: {error}" for error in result.errors)
    folder = entry.performance.folder("performance")
    yield from map(str, claims.differing(claims.summary_claims(folder)))
    if fault := test_run.count_difference(folder, result, requests.read_requests(folder)):
        yield fault
    percentile = 0.9 if result.scenario in ESTIMATES else PERCENTILE
    if (logged := logged_setting(result, "target_latency_percentile")) != percentile:
        yield f"a target_latency_percentile of {logged:g}; MLPerf's is {percentile:g}"
    if any(result.effective.get(f"performance_issue_{which}") is True for which in ("same", "unique")):
        yield "LoadGen issued one sample again and again (performance_issue_same or _unique)"
    if limits := entry.config.scenario_rules.limits:
        yield from exceeded_tails(result, limits)
    if entry.config.scenario == "offline" and (size := logged_setting(result, "samples_per_query")) < official:
        yield f"a query of {size:,} samples; closed asks for {official:,}"


def test06(entry: Entry) -> Refusals:
    """Yield what is wrong with TEST06. The official checker asks for it only in the datacenter category."""
    if entry.config.category != "datacenter":
        return
    if not entry.test06:
        yield "no TEST06 (run it with --compliance test06)"
        return
    folder, (recorded, eos) = entry.test06.folder("test06"), entry.test06.test06
    outcome, text = test06_verdict.judge_test06(folder, eos, entry.config)
    verdict = folder / "verify_accuracy.txt"
    if not (recorded.passed and outcome.passed):
        yield "TEST06 failed"
    elif not verdict.exists() or reading.read_text(verdict) != text:
        yield "TEST06: verify_accuracy.txt does not match its log"


def system_differences(entries: Sequence[Entry], description: Description | None) -> list[str]:
    """Return how the entries differ in their system, from each other or from the description."""
    problems = []
    runs = {f"{entry.benchmark} {entry.scenario}": entry.performance for entry in entries}
    (first, theirs), *further = runs.items()
    for name, mine in further:
        unlike = comparability.differences(mine.facts.comparable, theirs.facts.comparable, IGNORED_BETWEEN_SYSTEMS)
        problems += [
            f"{name}: {difference.name} {difference.a}, but {difference.b} in {first}" for difference in unlike
        ]
    if not description:
        return problems
    for name, run in runs.items():
        problems += [f"{name}: {contradiction}" for contradiction in contradictions(run, description)]
    return problems


def contradictions(run: SubmittedRun, description: Description) -> Refusals:
    """Yield where the description contradicts what a run recorded, or lacks what must be declared of a server.

    Nothing is recorded of a machine elsewhere, which is a reason of its own.
    """
    machine = run.facts.system
    if run.config.endpoint and not server_addresses.is_here(run.config.endpoint):
        yield f"the machine behind {', '.join(run.config.endpoint)} was not recorded"
        return
    if run.config.endpoint and (open_ := [name for name in DECLARED if not description.get(name)]):
        yield f"{', '.join(open_)} of its server are not declared: `submission system --run {run.path}` asks for them"
    if str(count := description["accelerators_per_node"]) != str(len(machine.gpus)):
        yield f"ran with {len(machine.gpus)} accelerators; accelerators_per_node is {count}"
    recorded = [("accelerator_model_name", gpu) for gpu in dict.fromkeys(machine.gpus)]
    for field, what in [*recorded, ("host_processor_model_name", machine.cpu), ("framework", engine_of(run.facts))]:
        if not is_named(what, str(description[field])):
            yield f"ran with {what}; {field} is {description[field]}"


def is_named(recorded: str, described: str) -> bool:
    """Tell whether a description names what was recorded.

    The first recorded word with a digit decides, as it is a processor's model (H200, 9575F) or a version. If there is
    none, all words must be there.
    """
    words, described_words = (re.findall(r"\w[\w.]*", text.casefold()) for text in (recorded, described))
    model = next((word for word in words if re.search(r"\d", word)), None)
    return model in described_words if model else " ".join(words) in " ".join(described_words)


def score_differences(entry: Entry) -> Refusals:
    """Yield where scores, verdict or TEST06's end-of-text token differ from what model, data and logs give."""
    run = entry.accuracy
    try:
        library, tokenizer = accuracy.load_again(run.facts.plan, run.scores)
        answers = scoring.read_log(run.folder("accuracy") / ANSWERS_FILE, run.scores.samples)
    except errors.BenchmarkError as error:
        yield f"its scores cannot be computed again: {str(error).rstrip('.')}"
        return
    checks = accuracy.judge_scores(
        scoring.score_answers(scoring.to_text(answers, tokenizer), library.references),
        run.config.task,
        run.config.high_accuracy,
    )
    for check in checks:
        recorded = run.scores.scores.get(check.name)
        if recorded is None or abs(check.score - recorded) > SCORE_TOLERANCE:
            yield f"rouge.json says {check.name} {recorded}, its log gives {check.score:g}"
    if (verdict := accuracy.worst_verdict(checks)) != "PASS":
        yield f"the accuracy gate on its log says {verdict}"
    if entry.test06 and entry.test06.test06[1] != tokenizer.eos_token_id:
        yield f"TEST06 was judged with the end-of-text token {entry.test06.test06[1]}, not {tokenizer.eos_token_id}"
