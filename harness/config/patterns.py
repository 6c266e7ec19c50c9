"""Load patterns, the ways in which a test loads the engine, each with its queries, its length and LoadGen's settings.

LoadGen sends all queries in one burst, at random times at a mean rate (Poisson), or each when the one before is
answered (sequential). In a closed loop, and with a schedule of the user's own, it issues all of them at once, and the
system under test sends each when a slot is free, or at its time. How each is sent: `harness.loadgen.sending`.
"""

from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, ClassVar, Protocol

from harness.config import loadgen_schedule
from harness.core.statistics import fewest_queries

if TYPE_CHECKING:
    from harness.config.workload import RequestSet

LIMIT_PERCENTILE = 0.99  # latency limits hold for this percentile
MULTISTREAM_PERCENTILE = 0.9  # the same as in SingleStream, in place of LoadGen's 0.99
SURE_QUERIES = fewest_queries(LIMIT_PERCENTILE)  # with fewer, LoadGen does not believe that the limit is kept
SURE_P90_QUERIES = fewest_queries(MULTISTREAM_PERCENTILE, over=1)  # LoadGen's estimate leaves the slowest query out
WAVES = 8  # a test at fixed concurrency has at least so many waves of requests: the first and the last are its ramps
OFFLINE_RESERVE = 1.1  # if LoadGen issues all queries at once, it issues enough for so many times the minimum duration
CLOSED_LOOP_RESERVE = 3.0  # LoadGen's target rate at fixed concurrency, in expected rates: the trial may have been slow
Length = tuple[int, float]  # queries, seconds
LoadGenSettingValues = dict[str, int | float]  # values by LoadGen's keys in a user.conf


class TokenLimits(Protocol):
    """The limits of TTFT and TPOT, in milliseconds."""

    @property
    def ttft(self) -> float: ...

    @property
    def tpot(self) -> float: ...


class LimitedScenario(Protocol):
    """A scenario with its latency limits, if it has any."""

    @property
    def limits(self) -> TokenLimits | None: ...


class LoadConfig(Protocol):
    """The settings of a run that its load depends on."""

    @property
    def min_duration(self) -> float | str:
        """The minimum duration in seconds, or "auto"."""
        ...

    @property
    def quick(self) -> bool: ...

    @property
    def official_samples(self) -> int: ...

    @property
    def scenario_rules(self) -> LimitedScenario: ...


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load that a test is to send, as far as its plan knows it."""

    config: LoadConfig
    request_set: "RequestSet | None" = None  # the user's own requests in place of MLPerf's samples
    samples: int  # size of the set
    min_duration_s: float
    target_qps: float | None = None  # Offline: samples/s expected; Server, Interactive: queries/s sent
    expected_latency_ms: float | None = None  # expected time of a query: SingleStream, MultiStream
    samples_per_query: int = 1
    concurrency: int | None = None  # requests in flight at most; None: no such limit, or not known yet
    fewest_queries: int = 0  # a closed loop does not end before this many queries

    @property
    def limits(self) -> TokenLimits | None:
        """The latency limits of the run: the user's own, or else MLPerf's. None if the scenario has none."""
        raise NotImplementedError

    @property
    def schedule_length(self) -> int:
        """The number of requests in the user's own schedule of arrivals."""
        raise NotImplementedError

    @property
    def schedule_seed(self) -> int:
        """The seed of LoadGen's schedule, from which the times of its queries follow."""
        raise NotImplementedError

    @property
    def whole_rounds(self) -> bool:
        """Tell whether each sample must be asked as often as any other, since the samples belong together."""
        return bool(self.request_set and self.request_set.whole_rounds)


class LoadPattern:
    """A way of sending queries."""

    unit, query_noun = "queries/s", "query"  # words for the load, and for what LoadGen issues
    load = "target_qps"  # the plan's field for the load, which is in `unit`
    rate_flag: str  # the flag that says how much is sent
    most_in_flight_flag = "--max-in-flight"  # the flag that limits how many requests are in flight
    flags: tuple[str, ...] = ()  # flags that it takes beside those of every pattern
    defaults: ClassVar[dict[str, str]] = {}  # the values of these flags if they are not given
    demo_s = 20.0  # the minimum duration of a test of the demo
    is_streamed = True  # the time of each first token is measured
    is_rated = False  # queries are sent at a rate, so the measured speed follows from it
    named_rate = "logged"  # the rate that the result names: "logged" by LoadGen, "planned", or "none"
    is_paced = False  # the duration that LoadGen reports ends before the last query is answered
    is_full = False  # between ramp and drain, as many requests are in flight as the client or the engine takes
    is_timed_by_client = False  # the client sends and times the requests, all of which are one query for LoadGen

    def planned_load(self, plan: Load) -> float | None:
        """Return the load, in `unit`. None if it is not known yet."""
        return plan.target_qps

    def min_queries(self, plan: Load) -> int:
        """Return the fewest queries of a performance test: each sample once, unless the pattern says otherwise."""
        return plan.samples

    def planned_samples(self, plan: Load) -> int | None:
        """Return roughly how many samples LoadGen will issue one after the other, or None if that is not known yet.

        Here it is None, for a pattern that issues all samples at once. Any other pattern overrides this.
        """
        return None

    def length(self, plan: Load) -> Length | None:
        """Return the number of queries of a performance test, and roughly how many seconds it takes at its rate.

        None if the queries or the rate are not known yet.
        """
        queries = self.planned_samples(plan)  # A query of these patterns is one sample.
        if not queries or not plan.target_qps:
            return None
        return queries, queries / plan.target_qps

    def work_to_count(self, plan: Load) -> tuple[int | None, float]:
        """Return the samples that the live line counts up to, and the shortest duration of the test in seconds.

        The number of samples is None if all are issued at once. The duration is 0 if the settings do not give it.
        """
        queries, duration_s = self.planned_samples(plan), 0.0
        if self.is_rated and queries and plan.target_qps:  # Only at a rate the last query is sent at a known time.
            duration_s = queries / plan.target_qps
        return queries, duration_s

    def steady_concurrency(self, plan: Load, engine: int | None) -> int | None:
        """Return how many requests are in flight between the ramp at the beginning of a test and the drain at its end.

        None if unknown, or if the number varies. `engine` is how many the engine computes at once.
        """
        varies_with_arrivals = not self.is_full
        if varies_with_arrivals:
            return None
        return plan.concurrency or engine

    def settings(self, plan: Load) -> LoadGenSettingValues:
        """Return the LoadGen settings of one test, with times in milliseconds.

        LoadGen takes MLPerf's values for all settings that are not among them.
        """
        values: LoadGenSettingValues = {"min_duration": round(1000 * plan.min_duration_s)}
        if plan.target_qps is not None:
            values["target_qps"] = plan.target_qps
        if plan.expected_latency_ms is not None:
            values["target_latency"] = plan.expected_latency_ms
        # MLPerf's counts of samples and queries fit only a test in which LoadGen itself sends each official sample.
        sends_official_samples = plan.samples == plan.config.official_samples and not self.is_timed_by_client
        min_queries = self.min_queries(plan)
        if not sends_official_samples:
            values["performance_sample_count_override"] = plan.samples
        # MLPerf's minimum is one query for each official sample, so any other minimum is set as well.
        if not sends_official_samples or min_queries != plan.samples:
            values["min_query_count"] = min_queries
        return values

    def sends_whole_passes(self, plan: Load) -> bool:
        """Tell whether LoadGen sends whole passes over the samples, each as often as any other, as MLPerf wants it."""
        if plan.whole_rounds:  # The samples belong together, as the turns of a conversation do.
            return True
        has_official_samples = not plan.request_set
        return has_official_samples and not self.is_timed_by_client

    def pass_queries(self, plan: Load) -> int:
        """Return the number of queries in one pass over the samples: LoadGen sends a multiple of it.

        1 if LoadGen may stop within a pass.
        """
        return plan.samples if self.sends_whole_passes(plan) else 1

    def fixed_settings(self, plan: Load) -> LoadGenSettingValues:
        """Return the LoadGen settings that are the same in all tests of a run.

        A test that need not send whole passes turns off LoadGen's setting that joins whole passes.
        """
        if self.sends_whole_passes(plan):
            return {}
        return {"sample_concatenate_permutation": 0}


class Burst(LoadPattern):
    """Offline: all samples at once."""

    unit = "samples/s"
    query_noun = "sample"
    demo_s = 10.0
    rate_flag = "offline_expected_qps"
    flags = (rate_flag, "batch_size", "sort_by_length")
    is_streamed = False
    is_full = True

    def length(self, plan: Load) -> Length | None:
        """Return the number of samples that LoadGen issues, which are whole passes, and the seconds that they take.

        None if the rate is not known yet.
        """
        if not plan.target_qps:
            return None
        # LoadGen issues all samples at once. So that they last for the minimum duration, it issues more than expected.
        samples_with_reserve = OFFLINE_RESERVE * plan.min_duration_s * plan.target_qps
        passes = ceil(max(samples_with_reserve, plan.samples) / plan.samples)
        samples = passes * plan.samples
        return samples, samples / plan.target_qps


class Poisson(LoadPattern):
    """Server, Interactive: queries at random times, at a mean rate, whole passes of the samples."""

    rate_flag = "server_target_qps"
    flags = (rate_flag, "quick")
    is_rated = is_paced = True

    def min_queries(self, plan: Load) -> int:
        """Return the fewest queries of a performance test: each sample once, and enough to judge the p99.

        The test may be too short to judge the p99 if the user set its minimum duration, or in a quick estimate, which
        has no verdict.
        """
        may_be_short = plan.config.min_duration != "auto" or plan.config.quick
        if not may_be_short:
            return max(plan.samples, SURE_QUERIES)
        if plan.request_set:  # Such a test may stop before it has sent all of the user's own requests.
            return 1
        return plan.samples

    def planned_samples(self, plan: Load) -> int | None:
        """Return how many queries, of one sample each, a test has at its rate. None if the rate is not known yet."""
        return None if plan.target_qps is None else self.planned_queries(plan)

    def planned_queries(self, plan: Load) -> int:
        """Return how many queries a test has at its rate. If the rate is not known yet, return the fewest it may have.

        Both are multiples of the queries in a pass, since LoadGen sends MLPerf's samples in whole passes.
        """
        fewest, pass_queries = self.min_queries(plan), self.pass_queries(plan)
        if not plan.target_qps:
            return ceil(fewest / pass_queries) * pass_queries
        return loadgen_schedule.queries_of_test(
            plan.schedule_seed, plan.target_qps, plan.min_duration_s, fewest, pass_queries
        )

    def fixed_settings(self, plan: Load) -> LoadGenSettingValues:
        """Return the LoadGen settings for all tests, with the user's latency limits in place of MLPerf's."""
        limits, overrides = plan.limits, LoadGenSettingValues()
        if limits and limits != plan.config.scenario_rules.limits:
            overrides = {"ttft_latency": limits.ttft, "tpot_latency": limits.tpot}
        return super().fixed_settings(plan) | overrides


class Sequential(LoadPattern):
    """SingleStream: the next query when the one before is answered."""

    rate_flag = load = "samples_per_query"
    unit = "samples per query"
    named_rate = "none"
    is_paced = True

    def planned_load(self, plan: Load) -> float | None:
        """Return the number of samples in each query, which is the load here: queries come one after the other."""
        return plan.samples_per_query

    def planned_samples(self, plan: Load) -> int | None:
        """Return roughly how many samples LoadGen issues: whole passes of the samples, at least two.

        They last for the minimum duration even if a query takes only half the expected time.
        """
        shortest_ms = (plan.expected_latency_ms or inf) / 2
        queries_in_time = int(1000 * plan.min_duration_s / shortest_ms)  # 0 without an expected time
        least = max(plan.samples, queries_in_time)
        passes = least // plan.samples + 1
        return passes * plan.samples

    def length(self, plan: Load) -> Length | None:
        """Return the number of queries, and the seconds that they take if each takes the expected time.

        None if the expected time is not known yet.
        """
        samples = self.planned_samples(plan)
        if not samples or not plan.expected_latency_ms:
            return None
        queries = samples // plan.samples_per_query
        return queries, queries * plan.expected_latency_ms / 1000


class Batched(Sequential):
    """MultiStream: a query may hold several samples."""

    flags = (Sequential.rate_flag,)

    def min_queries(self, plan: Load) -> int:
        """Return the fewest queries that LoadGen needs to judge the p90."""
        return SURE_P90_QUERIES

    def planned_samples(self, plan: Load) -> int | None:
        """Return enough samples for the minimum duration if a query takes the expected time, and to judge the p90."""
        queries_in_time = ceil(1000 * plan.min_duration_s / (plan.expected_latency_ms or inf))
        return plan.samples_per_query * max(SURE_P90_QUERIES, queries_in_time)

    def settings(self, plan: Load) -> LoadGenSettingValues:
        return super().settings(plan) | {"samples_per_query": plan.samples_per_query}

    def fixed_settings(self, plan: Load) -> LoadGenSettingValues:
        """Return the LoadGen settings for all tests, with the p90, by which MultiStream is judged here."""
        return {"target_latency_percentile": 100 * MULTISTREAM_PERCENTILE} | super().fixed_settings(plan)


class ClosedLoop(LoadPattern):
    """Fixed concurrency: always the same number of requests in flight, the next as soon as one is answered."""

    unit = "in flight"
    rate_flag = load = "concurrency"
    most_in_flight_flag = "--concurrency"
    flags = (rate_flag,)
    defaults: ClassVar = {"concurrency": "auto"}
    is_full = is_timed_by_client = True

    def planned_load(self, plan: Load) -> float | None:
        """Return the number of requests in flight. None if it is not known yet."""
        return plan.concurrency

    def min_queries(self, plan: Load) -> int:
        """Return the fewest queries: enough waves of requests, enough to judge the p90, and the plan's own minimum."""
        return max(WAVES * (plan.concurrency or 1), SURE_P90_QUERIES, plan.fewest_queries)

    def planned_samples(self, plan: Load) -> int | None:
        """Return how many samples LoadGen should issue, with a reserve, so that the client does not run out of them.

        None if the rate is not known yet.
        """
        if plan.target_qps is None:
            return None
        return max(self.min_queries(plan), ceil(OFFLINE_RESERVE * plan.min_duration_s * plan.target_qps))

    def length(self, plan: Load) -> Length | None:
        """Return the number of queries of a test, and roughly its seconds. None if the rate is not known yet.

        The client ends the test after the minimum duration, once the fewest queries are answered.
        """
        if not plan.target_qps:
            return None
        queries = max(self.min_queries(plan), ceil(plan.min_duration_s * plan.target_qps))
        return queries, queries / plan.target_qps

    def work_to_count(self, plan: Load) -> tuple[int | None, float]:
        """Return the fewest queries and the minimum duration: the test ends once it has had both."""
        return self.min_queries(plan), plan.min_duration_s

    def settings(self, plan: Load) -> LoadGenSettingValues:
        """Return the LoadGen settings of one test, with a much higher rate than expected.

        LoadGen issues as many queries as the rate makes in the minimum duration. The client must not run out of
        queries.
        """
        values = super().settings(plan)
        if plan.target_qps:
            values["target_qps"] = CLOSED_LOOP_RESERVE * plan.target_qps
        return values


class Schedule(LoadPattern):
    """Arrivals of the user's own: each request at its time."""

    rate_flag = "server_target_qps"
    defaults: ClassVar = {"arrivals": "poisson"}
    flags = (rate_flag, "arrivals")
    named_rate = "planned"
    is_rated = is_timed_by_client = True

    def min_queries(self, plan: Load) -> int:
        return plan.schedule_length

    def planned_samples(self, plan: Load) -> int | None:
        """Return the number of requests in the schedule. None if the rate, and so the schedule, is not known yet."""
        return plan.schedule_length if plan.target_qps is not None else None

    def settings(self, plan: Load) -> LoadGenSettingValues:
        """Return the LoadGen settings of one test, such that LoadGen issues the schedule's queries and no more.

        The number of these queries is LoadGen's minimum (`min_queries`). LoadGen issues more than the minimum if its
        target rate x the minimum duration x OFFLINE_RESERVE is more.
        """
        # This low rate gives only nine tenths of the schedule's queries, so LoadGen issues the minimum.
        rate = 0.9 * plan.schedule_length / (OFFLINE_RESERVE * plan.min_duration_s)
        return super().settings(plan) | {"target_qps": rate}
