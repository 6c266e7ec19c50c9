"""Judge entries from their logs: what the official checker refuses in any division, and what keeps an entry out of a
closed submission. Nothing that a run wrote about itself is trusted, so its logs are scored again. All entries must be
of one system, as MLPerf's inference_rules.adoc asks of results that are reported together.

Sources: the checks and constants of the official submission checker (tools/submission in mlcommons/inference).
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from harness.config import comparability, mlperf, models, server_addresses
from harness.core import errors, formatting, reading, statements
from harness.core.formatting import alternatives, plural
from harness.core.remedies import splitter_command
from harness.loadgen import requests, test_run
from harness.loadgen.log import TestResult, p99_of
from harness.loadgen.requests import ANSWERS_FILE
from harness.results import accuracy, claims, scoring, test06_verdict
from harness.submission.entries import BENCHMARK_NAMES, SCENARIO_FOLDERS, Entry, SubmittedRun
from harness.submission.system_description import SERVER_FIELDS, Description, engine_of

# A closed submission must have a scenario of each of these sets.
REQUIRED_SCENARIOS = {"datacenter": ({"offline"}, {"server", "interactive"}), "edge": ({"offline"}, {"singlestream"})}
# The log's entry with LoadGen's estimate of the p90 latency in nanoseconds, by the scenarios whose result it is.
ESTIMATES = {"SingleStream": "early_stopping_latency_ss", "MultiStream": "early_stopping_latency_ms"}
LARGEST_TARGET_LATENCY_NS = 20e9  # the most that the checker allows in scenarios with limits
# LoadGen's percentile of a latency, in most scenarios and in scenarios with ESTIMATES (mlperf.conf).
PERCENTILE, ESTIMATE_PERCENTILE = 0.99, 0.9
# Entries of one system may differ in these: each scenario has its own work, settings and rate, Python and the
# environment are the harness's, and other refusals judge the speed.
IGNORED_BETWEEN_ENTRIES = ("work", "settings", "python", "variables", "busyness", "validity", "rate")
Refusals = Iterator[str]  # reasons, as a user reads them
SCORE_TOLERANCE = 1e-3  # the largest difference of scores, which are rounded to four digits


def checker_refusals(entries: Sequence[Entry]) -> list[str]:
    """Return what the official checker refuses in any division."""
    reasons = list[str]()
    for entry in entries:
        reasons += label_reasons(entry, entry_refusals(entry))
    return reasons


def closed_division_refusals(entries: Sequence[Entry], description: Description | None = None) -> list[str]:
    """Return why these entries cannot go into a closed submission with this system description; empty if they can.

    The answers are scored again only if nothing else is wrong, since that takes minutes. Without a description, the
    entries are compared only with each other.
    """
    reasons = system_differences(entries, description)
    for entry in entries:
        reasons += label_reasons(
            entry,
            entry_refusals(entry),
            settings_refusals(entry),
            accuracy_refusals(entry),
            performance_refusals(entry),
            test06_refusals(entry),
        )
    reasons += missing_scenarios(entries)
    if reasons:
        return reasons
    for entry in entries:
        reasons += label_reasons(entry, score_differences(entry))
    return reasons


def missing_scenarios(entries: Sequence[Entry]) -> Refusals:
    """Yield a reason for each scenario that a closed submission must have but these entries lack.

    A category without entries needs no scenario. REQUIRED_SCENARIOS has sets of scenarios for each category; of a set,
    such as Server or Interactive, one scenario is enough.
    """
    for category, required_sets in REQUIRED_SCENARIOS.items():
        scenarios = {entry.config.scenario for entry in entries if entry.config.category == category}
        if not scenarios:
            continue
        for required in required_sets:
            if scenarios.isdisjoint(required):
                names = alternatives([SCENARIO_FOLDERS[name] for name in sorted(required)])
                yield f"{BENCHMARK_NAMES[category]}: {names} is missing"


def label_reasons(entry: Entry, *reason_lists: Refusals) -> list[str]:
    """Return all reasons against an entry, without repetitions, each preceded by the entry's benchmark and scenario."""
    reasons = dict[str, None]()  # a dictionary in place of a set, since it keeps the order
    for reason_list in reason_lists:
        reasons |= dict.fromkeys(reason_list)
    return [f"{entry.label}: {reason}" for reason in reasons]


def entry_refusals(entry: Entry) -> Refusals:
    """Yield what the official checker refuses in any division, judged from the logs of both tests."""
    reason_against_scenario = entry.config.scenario_rules.unofficial
    if reason_against_scenario:
        yield reason_against_scenario
    accuracy, performance = entry.accuracy.log("accuracy"), entry.performance.log("performance")
    if accuracy.errors:
        yield f"{len(accuracy.errors)} LoadGen errors in the accuracy test, the first: {accuracy.errors[0]}"
    yield from size_refusals(entry, accuracy, performance)
    yield from seed_refusals(entry, performance)
    if performance.early_stopping.get("early_stopping_met") is not True:
        yield "too few queries for its percentile (early stopping)"
    for name, figure in result_figures(performance).items():
        if not figure:
            yield f"no {name} in the performance test's log, or 0"
    if not performance.token_latencies:
        yield "use_token_latencies is off in the performance test"
    is_server_for_loadgen = entry.config.scenario_rules.limits is not None  # LoadGen runs Interactive as Server.
    if is_server_for_loadgen:  # The checker goes by LoadGen's scenario, so it takes Server's limits for both.
        yield from latency_refusals(performance, mlperf.SERVER_LIMITS)
        target = logged_setting(performance, "target_latency_ns")
        if target > LARGEST_TARGET_LATENCY_NS:
            yield f"a target_latency of {target / 1e9:g} s; the checker allows {LARGEST_TARGET_LATENCY_NS / 1e9:g} s"
    conf = entry.performance.folder("performance") / "user.conf"
    if conf.exists() and not conf.stat().st_size:
        yield "an empty user.conf"


def size_refusals(entry: Entry, accuracy: TestResult, performance: TestResult) -> Refusals:
    """Yield a reason for a wrong number of samples in either test, and for a performance test that is too short.

    The accuracy test must have exactly MLPerf's samples, the performance test a set of at least as many.
    """
    official = entry.config.official_samples
    answered = logged_setting(accuracy, "accuracy_sample_count")
    if answered != official:
        yield f"{plural(answered, 'sample')} in the accuracy test; the checker asks for {official:,}"
    set_size = logged_setting(performance, "performance_sample_count")
    if set_size < official:
        yield f"a set of {plural(set_size, 'sample')} in the performance test; the checker asks for {official:,}"
    duration_s = logged_setting(performance, "min_duration_ms") / 1000
    if duration_s < mlperf.MIN_DURATION_S:
        yield f"a minimum duration of {duration_s:g} s; the checker asks for {mlperf.MIN_DURATION_S:g} s"


def result_figures(result: TestResult) -> dict[str, float | None]:
    """Return the figures, by name, from which the checker takes a test's result; None for one that the log lacks."""
    estimate_name = ESTIMATES.get(result.scenario)  # of the latency that early stopping gives
    if not estimate_name:  # neither SingleStream nor MultiStream
        return {"samples/s": result.samples_per_sec, "tokens/s": result.tokens_per_sec}
    p90 = result.latency_ms.p90 if result.latency_ms else None
    return {estimate_name: result.early_stopping.number(estimate_name), "latency p90": p90}


def latency_refusals(result: TestResult, limits: mlperf.LatencyLimits) -> Refusals:
    """Yield a reason for each p99 of TTFT and TPOT that is missing, or not below its limit."""
    # A tail has a p99 and its limit. If the log lacks a p99, `tails` lacks the tail.
    tails = {tail.kind: tail for tail in limits.tails(p99_of(result.ttft_ms), p99_of(result.tpot_ms))}
    for kind in ("TTFT", "TPOT"):
        tail = tails.get(kind)
        if not tail:
            yield f"no {kind} in the performance test's log"
        elif tail.p99 >= tail.limit:
            yield f"{kind} p99 of {formatting.number(tail.p99)} ms is not below {tail.limit:,g} ms"


def seed_refusals(entry: Entry, result: TestResult) -> Refusals:
    """Yield a reason if a test's seeds are not those of its round."""
    if result.seeds != vars(mlperf.SEEDS_BY_ROUND[entry.config.round]):
        yield f"seeds other than those of v{entry.config.round}"


def logged_setting(result: TestResult, name: str) -> float:
    """Return a setting in effect by a test's log, as a number; 0 if the log has no number for it."""
    value = result.effective.get(name)
    return value if isinstance(value, int | float) else 0


def settings_refusals(entry: Entry) -> Refusals:
    """Yield the deviations of the entry's runs from MLPerf's rules, and a reason if the model is the demo's.

    A run's record may have been edited, so the deviations are also derived again from the plan.
    """
    for run in entry.runs:
        yield from map(str, (*run.facts.deviations, *run.facts.plan.deviations))
        if Path(run.config.model).resolve() == Path(models.MODELS["demo"].path):
            yield "the demo model"


def claim_refusals(folder: Path) -> Refusals:
    """Yield the claims of LoadGen's summary in a test's folder that do not follow from the detail log there."""
    yield from map(str, claims.differing(claims.summary_claims(folder)))


def accuracy_refusals(entry: Entry) -> Refusals:
    """Yield what is wrong with the accuracy test: the gate's verdict, how it was scored, its seeds and its logs."""
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
    yield from seed_refusals(entry, entry.accuracy.log("accuracy"))
    yield from claim_refusals(entry.accuracy.folder("accuracy"))


def performance_refusals(entry: Entry) -> Refusals:
    """Yield what is wrong with the performance test."""
    result = entry.performance.log("performance")
    if not result.valid:
        yield f"LoadGen calls the performance test INVALID: {statements.merge_by_remedy(result.invalid_reasons)}"
    for error in result.errors:
        yield f"LoadGen error: {error}"
    folder = entry.performance.folder("performance")
    yield from claim_refusals(folder)
    mismatch_text = test_run.count_difference(folder, result, requests.read_requests(folder))  # of the requests
    if mismatch_text:
        yield mismatch_text
    percentile = logged_setting(result, "target_latency_percentile")
    # LoadGen judges the p99 of a latency, but in SingleStream and MultiStream it estimates the p90.
    official_percentile = ESTIMATE_PERCENTILE if result.scenario in ESTIMATES else PERCENTILE
    if percentile != official_percentile:
        yield f"a target_latency_percentile of {percentile:g}; MLPerf's is {official_percentile:g}"
    effective = result.effective
    if effective.get("performance_issue_same") is True or effective.get("performance_issue_unique") is True:
        yield "LoadGen issued one sample again and again (performance_issue_same or _unique)"
    limits = entry.config.scenario_rules.limits
    if limits:
        yield from latency_refusals(result, limits)
    if entry.config.scenario == "offline":  # LoadGen sends all samples as one query, which must have MLPerf's set.
        official = entry.config.official_samples
        query_size = logged_setting(result, "samples_per_query")
        if query_size < official:
            yield f"a query of {plural(query_size, 'sample')}; closed asks for {official:,}"


def test06_refusals(entry: Entry) -> Refusals:
    """Yield what is wrong with TEST06, which is judged again from its log."""
    if entry.config.category != "datacenter":  # The official checker asks for no other TEST06.
        return
    if not entry.test06:
        yield "no TEST06 (run it with --compliance test06)"
        return
    folder = entry.test06.folder("test06")
    recorded, eos = entry.test06.recorded_test06  # `eos` is the id of the end-of-text token.
    outcome, text = test06_verdict.judge_test06(folder, eos, entry.config)
    text_file = folder / "verify_accuracy.txt"
    if not (recorded.passed and outcome.passed):
        yield "TEST06 failed"
    elif not text_file.exists() or reading.read_text(text_file) != text:
        yield "TEST06: verify_accuracy.txt does not match its log"


def system_differences(entries: Sequence[Entry], description: Description | None) -> list[str]:
    """Return how the entries differ in their system: from the first entry, and from the description if there is one."""
    problems = list[str]()
    runs = {entry.label: entry.performance for entry in entries}
    first_label, *other_labels = runs
    first_comparable = runs[first_label].facts.comparable
    for label in other_labels:
        comparable = runs[label].facts.comparable
        for difference in comparability.differences(comparable, first_comparable, IGNORED_BETWEEN_ENTRIES):
            values = f"{difference.a}, but {difference.b} in {first_label}"
            problems.append(f"{label}: {difference.name} {values}")
    if not description:  # The entries have been compared with each other, and there is nothing else.
        return problems
    for label, run in runs.items():
        for contradiction in contradictions(run, description):
            problems.append(f"{label}: {contradiction}")
    return problems


def contradictions(run: SubmittedRun, description: Description) -> Refusals:
    """Yield where the description contradicts the record of a run, or lacks a field about the run's server.

    Compared are the number and the names of the GPUs, the processor and the engine.
    """
    machine, endpoint = run.facts.system, run.config.endpoint
    # The run recorded this machine, not the server's. So nothing can be compared, and this is the only reason.
    if endpoint and not server_addresses.is_here(endpoint):
        yield f"the machine behind {', '.join(endpoint)} was not recorded"
        return
    if endpoint:
        empty = ", ".join(name for name in SERVER_FIELDS if not description.get(name))
        if empty:
            command = f"submission system --run {quote(str(run.path))}"
            yield f"{empty} of its server are not declared: `{command}` asks for them"
    count = description["accelerators_per_node"]
    if str(count) != str(len(machine.gpus)):  # A person may have written the number as text.
        yield f"ran with {plural(len(machine.gpus), 'accelerator')}; accelerators_per_node is {count}"
    for gpu in dict.fromkeys(machine.gpus):
        yield from name_contradictions("accelerator_model_name", gpu, description)
    yield from name_contradictions("host_processor_model_name", machine.cpu, description)
    yield from name_contradictions("framework", engine_of(run.facts), description)


def name_contradictions(field: str, recorded: str, description: Description) -> Refusals:
    """Yield a reason if a field of the description does not name the recorded processor, GPU or engine."""
    if not is_named(recorded, str(description[field])):
        yield f"ran with {recorded}; {field} is {description[field]}"


def is_named(recorded: str, description: str) -> bool:
    """Tell whether a description, which a person wrote, names a recorded processor, GPU or engine."""
    recorded_words, description_words = lower_words(recorded), lower_words(description)
    for word in recorded_words:
        if re.search(r"\d", word):  # A model (H200, 9575F) or a version decides alone.
            return word in description_words
    return " ".join(recorded_words) in " ".join(description_words)


def lower_words(text: str) -> list[str]:
    return re.findall(r"\w[\w.]*", text.casefold())


def score_differences(entry: Entry) -> Refusals:
    """Score the answers in the accuracy log again, which takes minutes, and yield the reasons to refuse the entry.

    These are a score that differs from the recorded one, a verdict that is not PASS, and an end-of-text token of TEST06
    that is not the tokenizer's. If the answers cannot be scored, the result is this reason alone.
    """
    run = entry.accuracy
    try:
        library, tokenizer = accuracy.load_again(run.facts.plan, run.scores)
        answers = scoring.read_log(run.folder("accuracy") / ANSWERS_FILE, run.scores.samples)
    except errors.BenchmarkError as error:
        yield f"its scores cannot be computed again: {str(error).rstrip('.')}"
        return
    texts = scoring.to_text(answers, tokenizer)
    scores = scoring.score_answers(texts, library.references)
    checks = accuracy.judge_scores(scores, run.config.task, run.config.high_accuracy)
    for check in checks:
        recorded = run.scores.scores.get(check.name)
        if recorded is None or abs(check.score - recorded) > SCORE_TOLERANCE:
            yield f"rouge.json says {check.name} {recorded}, its log gives {check.score:g}"
    verdict = accuracy.worst_verdict(checks)
    if verdict != "PASS":
        yield f"the accuracy gate on its log says {verdict}"
    if entry.test06:
        _verdict, eos = entry.test06.recorded_test06  # `eos` is the id of the end-of-text token.
        if eos != tokenizer.eos_token_id:
            yield f"TEST06 was judged with the end-of-text token {eos}, not {tokenizer.eos_token_id}"
