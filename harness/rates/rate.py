"""How a run finds its target rate: from the history, a short trial, or short tests."""

from harness.config.patterns import Burst, ClosedLoop, Poisson, Schedule, Sequential
from harness.config.run import RunConfig
from harness.loadgen.session import LoadGenSession
from harness.rates import outlook
from harness.rates.levels import LevelCurve, LevelSearch
from harness.rates.several import CurveRate, SearchedRate
from harness.rates.source import Bench, HistoryRate, LatencyTrial, OfflineTrial, RateSource
from harness.runs.folder import BenchmarkRun


def rate_source(config: RunConfig) -> RateSource:
    """Where the load of a run comes from: by its pattern, and by what was given for it."""
    pattern = config.scenario_rules.pattern
    if config.mode == "accuracy" and not (pattern.is_rated and pattern.is_paced):  # LoadGen paces it by its rate
        return RateSource()
    match pattern, getattr(config, pattern.rate_flag):
        case Burst(), "auto":
            return OfflineTrial()
        case Sequential(), _:
            return LatencyTrial()
        case Poisson(), tuple():
            return CurveRate()
        case Poisson(), "max":
            return SearchedRate()
        case Poisson() | Schedule(), "auto" if not config.has_own_rate:
            return HistoryRate()
        case ClosedLoop(), "max":
            return LevelSearch()
        case ClosedLoop(), _:
            return LevelCurve()
    return RateSource()


def find_rate(run: BenchmarkRun, session: LoadGenSession) -> None:
    """Completes the plan with its target rate, where it was not given."""
    found = rate_source(run.config).find(Bench(run, session))
    if found is run.plan:
        return
    run.display.done(found.notes[-1])
    run.adopt(found)
    run.display.say(outlook.total(found))
    run.warn_short()
