"""summary.json of a run, made from its folder: config.json, LoadGen's logs and the scores."""

from collections.abc import Iterator
from pathlib import Path

from harness.config import comparability, mlperf_deviations
from harness.core.files import read_if_any
from harness.core.formatting import plural
from harness.core.schema import SCHEMA
from harness.core.statements import Statement, StatementKind
from harness.results import accuracy, claims, kernel_profile, test06_verdict
from harness.results.outcome import Outcome
from harness.results.records import RunFacts
from harness.results.result_test import ResultTest
from harness.results.summary import Logs, Meta, Run, Summary
from harness.results.test_outcome import own_outcome_of
from harness.runs.run_folder import TEST_FOLDERS


def summary_of(folder: Path, facts: RunFacts, chosen: ResultTest | None, ended_reason: str | None) -> Summary:
    """Return the summary of a run without its plots. `chosen` is the test whose figures are the run's result.

    `ended_reason` is None if the run is complete. Raises LogError if a log cannot be trusted, and UsageError if a file
    is damaged.
    """
    test06 = read_if_any(folder / TEST_FOLDERS["test06"] / test06_verdict.TEST06_FILE, test06_verdict.Compliance)
    profile = folder / kernel_profile.PROFILE_FOLDER / kernel_profile.PROFILE_FILE
    run = Run(
        accuracy=read_if_any(folder / TEST_FOLDERS["accuracy"] / accuracy.SCORES_FILE, accuracy.ScoresFile),
        performance=own_outcome_of(chosen.test, chosen.facts, folder) if chosen else None,
        search=facts.probes or None,
        attempts=facts.attempts or None,
        compliance={"test06": test06} if test06 else None,
        profile=read_if_any(profile, kernel_profile.Profile),
    )
    result_problems = result_deviations(
        run, facts.config.mode, reports_cache_hits=facts.plan.engine_state.cache_counted, ended_reason=ended_reason
    )
    return Summary(
        schema_version=SCHEMA,
        meta=meta_of(folder, facts, [*facts.deviations, *result_problems], ended_reason),
        system=facts.system,
        run=run,
        logs=Logs.of(folder),
        plots={"tokens_per_sec": None, "latency_cdf": None},  # Every summary has these two, even without pictures.
        digests=claims.file_digests(folder),
    )


def meta_of(folder: Path, facts: RunFacts, deviations: list[Statement], ended_reason: str | None) -> Meta:
    """Return the metadata of a run.

    A field of Meta has the value of the same name in the facts, the configuration, the plan or the engine's state. Only
    the fields that are named here have others. `deviations` say why the run is not comparable with MLPerf's results.
    `ended_reason` is None if the run is complete.
    """
    plan, config, engine_state = facts.plan, facts.config, facts.plan.engine_state
    values = vars(facts) | vars(config) | vars(plan) | vars(engine_state)  # Where two have a name, the later counts.
    values |= {
        "run": folder.resolve().name,
        "mlperf_version": config.round,
        "workload": config.workload_name,
        "endpoints": list(config.endpoint),
        "precision": engine_state.precision or config.precision,  # The engine's is None if it is as configured.
        # These three are properties of the plan, so vars() does not have them.
        "max_new_tokens": plan.max_new_tokens,
        "setup": plan.setup,
        "work": plan.work,
        "comparable": not deviations,
        "ended": ended_reason,
        "deviations": deviations,
        "notes": [*plan.notes, *facts.unread],
    }
    return Meta(**{name: values[name] for name in Meta.model_fields})


def result_deviations(
    run: Run, mode: str, reports_cache_hits: bool = False, ended_reason: str | None = None
) -> Iterator[Statement]:
    """Yield why the result is not comparable with MLPerf's, apart from the settings. Each reason is given once.

    `reports_cache_hits` says that the server reported before the tests how many tokens came from its cache.
    """
    texts = [*unfinished_texts(run, mode, ended_reason), *accuracy_texts(run)]
    if run.performance:
        texts += performance_texts(run.performance, reports_cache_hits)
    for name, audit in (run.compliance or {}).items():
        if not audit.passed:
            texts.append(f"{name.upper()} failed")
    for text in dict.fromkeys(texts):
        yield Statement(text, kind=StatementKind.DEVIATION)


def unfinished_texts(run: Run, mode: str, ended_reason: str | None) -> Iterator[str]:
    """Yield which parts of a run are missing that a comparison with MLPerf's results needs.

    A measured speed needs an accuracy test, also if `mode` asked for none. A performance test is missing only if `mode`
    asked for one.
    """
    if ended_reason:
        yield "the run did not finish"
    if run.performance and not run.accuracy:
        yield "accuracy was not checked"
    if mode != "accuracy" and not run.performance:
        yield "performance was not measured"


def accuracy_texts(run: Run) -> Iterator[str]:
    """Yield what is wrong or uncertain with the scores: a failed gate, scores that are only approximate."""
    if run.accuracy and run.accuracy.verdict == "FAIL":
        yield comparability.GATE_FAILED
    if run.accuracy and run.accuracy.approximate:
        yield f"approximate {' and '.join(run.accuracy.approximate)}"


def performance_texts(test: Outcome, reports_cache_hits: bool) -> Iterator[str]:
    """Yield what is wrong or uncertain with the performance test, so that it cannot be compared with MLPerf's results.

    `reports_cache_hits` tells whether the server reported before the tests how many tokens came from its cache.
    """
    details = test.details
    if not test.valid:
        yield comparability.INVALID
    yield from test.disagreements
    # A server that reported cache hits before the test did not report them in it. If it never reported any, the plan
    # has this deviation already.
    if details.server and details.server.cached_percent is None and reports_cache_hits:
        yield mlperf_deviations.CACHE_UNSEEN
    if details.failed_requests:
        failed = plural(details.failed_requests, "failed request")
        yield f"{failed}, which LoadGen's verdict counts as answered"
    if details.errors:
        yield "LoadGen logged errors"
