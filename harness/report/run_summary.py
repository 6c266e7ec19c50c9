"""summary.json of a run, made from its folder: config.json, LoadGen's logs and the scores."""

from collections.abc import Iterator
from pathlib import Path

from harness.config import comparability, mlperf_deviations
from harness.core.files import read_if_any
from harness.core.formatting import number
from harness.core.schema import SCHEMA
from harness.core.statements import Statement, StatementKind
from harness.results import accuracy, claims, kernel_profile, test06_verdict
from harness.results.outcome import Outcome
from harness.results.records import RunFacts
from harness.results.result_test import ResultTest
from harness.results.summary import Logs, Meta, Run, Summary
from harness.results.test_outcome import own_outcome_of
from harness.runs.run_folder import TEST_FOLDERS


def summary_of(folder: Path, facts: RunFacts, chosen: ResultTest | None, ended: str | None) -> Summary:
    """Return the summary of a run without its plots. `ended` is why the run ended early, or None.

    Raises LogError if a log cannot be trusted.
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
    had_counted_cache = facts.plan.engine_state.cache_counted
    found_deviations = result_deviations(run, facts.config.mode, had_counted_cache, ended)
    return Summary(
        schema_version=SCHEMA,
        meta=meta_of(folder, facts, [*facts.deviations, *found_deviations], ended),
        system=facts.system,
        run=run,
        logs=Logs.of(folder),
        plots={"tokens_per_sec": None, "latency_cdf": None},
        digests=claims.file_digests(folder),
    )


def meta_of(folder: Path, facts: RunFacts, deviations: list[Statement], ended: str | None) -> Meta:
    """Return the metadata of a run. Most fields have the same name in its settings, its plan or its engine's state."""
    plan, config, engine_state = facts.plan, facts.config, facts.plan.engine_state
    values = dict(facts) | vars(config) | vars(plan) | vars(engine_state)
    values |= {
        "run": folder.resolve().name,
        "mlperf_version": config.round,
        "workload": config.workload_name,
        "endpoints": list(config.endpoint),
        "precision": engine_state.precision or config.precision,
        "max_new_tokens": plan.max_new_tokens,
        "setup": plan.setup,
        "work": plan.work,
        "comparable": not deviations,
        "ended": ended,
        "deviations": deviations,
        "notes": [*plan.notes, *facts.unread],
    }
    return Meta(**{name: values[name] for name in Meta.model_fields})


def result_deviations(
    run: Run, mode: str, had_counted_cache: bool = False, ended: str | None = None
) -> Iterator[Statement]:
    """Yield why the result is not comparable with MLPerf's, apart from the settings.

    `had_counted_cache` tells that the server had reported its cache hits before the test.
    """
    texts = [*unfinished_texts(run, mode, ended), *accuracy_texts(run)]
    if run.performance:
        texts += performance_texts(run.performance, had_counted_cache)
    for name, audit in (run.compliance or {}).items():
        if not audit.passed:
            texts.append(f"{name.upper()} failed")
    for text in dict.fromkeys(texts):
        yield Statement(text, kind=StatementKind.DEVIATION)


def unfinished_texts(run: Run, mode: str, ended: str | None) -> Iterator[str]:
    """Yield which parts of a run are missing."""
    if ended:
        yield "the run did not finish"
    if run.performance and not run.accuracy:
        yield "accuracy was not checked"
    if mode != "accuracy" and not run.performance:
        yield "performance was not measured"


def accuracy_texts(run: Run) -> Iterator[str]:
    """Yield what is wrong with the scores, or uncertain."""
    if run.accuracy and run.accuracy.verdict == "FAIL":
        yield comparability.GATE_FAILED
    if run.accuracy and run.accuracy.approximate:
        yield f"approximate {' and '.join(run.accuracy.approximate)}"


def performance_texts(test: Outcome, had_counted_cache: bool) -> Iterator[str]:
    """Yield what is wrong with the performance test, or uncertain."""
    details = test.details
    if not test.valid:
        yield comparability.INVALID
    yield from test.disagreements
    if details.server and details.server.cached_percent is None and had_counted_cache:
        yield mlperf_deviations.CACHE_UNSEEN
    if details.failed_requests:
        yield f"{number(details.failed_requests)} requests failed, which LoadGen's verdict counts as answered"
    if details.errors:
        yield "LoadGen logged errors"
