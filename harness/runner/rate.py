"""The choice of the source that a run's load comes from."""

from math import inf
from time import monotonic

from harness.config.patterns import Burst, ClosedLoop, Poisson, Schedule, Sequential
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.loadgen.session import LoadGenSession
from harness.rates.bench import Bench
from harness.results.benchmark_run import BenchmarkRun
from harness.runner.levels import LevelCurve, LevelSearch
from harness.runner.load_source import RateSource
from harness.runner.search_rate import CurveRate, QuickEstimate, SearchedRate
from harness.runner.trial_rate import HistoryRate, LatencyTrial, TrialRate


def rate_source(config: RunConfig) -> RateSource:
    """Return the source of a run's load, chosen by its load pattern and by the load that the user gave."""
    pattern = config.scenario_rules.pattern
    # LoadGen sends the queries of Server (Poisson arrivals) at a rate, even in an accuracy test. No other accuracy test
    # needs a load.
    needs_rate_for_accuracy = pattern.is_rated and pattern.is_paced
    if config.mode == "accuracy" and not needs_rate_for_accuracy:
        return RateSource()
    given_load = getattr(config, pattern.rate_flag)  # such as the value of --server-target-qps or --concurrency
    match pattern, given_load:
        case Poisson(), _ if config.quick:
            return QuickEstimate()
        case Burst(), "auto":  # Burst: all samples at once, as in Offline
            return TrialRate()
        case Sequential(), _:  # the next query after the answer to the one before: LoadGen plans by a latency
            return LatencyTrial()
        case Poisson(), tuple():  # a list of rates
            return CurveRate()
        case Poisson(), "max":
            return SearchedRate()
        case Poisson() | Schedule(), "auto" if not config.has_own_rate:  # Some arrivals, as a trace's, have a rate.
            return HistoryRate()
        case ClosedLoop(), "max":  # ClosedLoop: always the same number of requests in flight
            return LevelSearch()
        case ClosedLoop(), _:  # one number of requests in flight, or several
            return LevelCurve()
    return RateSource()  # The user gave the load itself, so nothing is to be found.


def require_time(plan: Plan) -> None:
    """Raise UsageError if --minutes is too short for a run, since a shortened test would not be VALID.

    Nothing is checked without --minutes, or if the source of the load has no least time.
    """
    source = rate_source(plan.config)
    given_minutes = plan.config.minutes
    least_s = source.least_s(plan)
    if given_minutes is None or least_s is None:
        return
    if 60 * given_minutes >= least_s:
        return
    hint = "; --quick gives an estimate" if isinstance(source, SearchedRate) else ""
    raise UsageError(f"--minutes {given_minutes:g}: at least {least_s / 60:.1f} minutes are needed{hint}.")


def left_s(run: BenchmarkRun, session: LoadGenSession) -> float:
    """Return the seconds that are left of --minutes; infinite without --minutes."""
    if not run.config.minutes:
        return inf
    end = session.began + 60 * run.config.minutes  # The minutes count from the engine's start, `session.began`.
    return end - monotonic()


def find_rate(run: BenchmarkRun, session: LoadGenSession) -> None:
    """Complete the run's plan with its target rate or other load, if the user did not give it.

    Then say how long the performance test takes, and warn if that test will be too short to be VALID.
    """
    bench = Bench(run, session, until=monotonic() + left_s(run, session))
    plan_with_rate = rate_source(run.config).find(bench)
    if plan_with_rate is run.plan:  # The user gave the load.
        return
    run.adopt(plan_with_rate)
    if run.config.quick:  # No test follows a quick estimate.
        return
    run.display.say(plan_with_rate.duration_line())
    run.warn_short()
