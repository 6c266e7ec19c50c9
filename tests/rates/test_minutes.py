"""--minutes: what it is taken for, what is refused, and what is left out."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.search import Bench, Case
from benchmarks.simulated_servers import sharing_engine
from harness.commands.compare import CompareConfig, sweep_of
from harness.config.plan import Plan
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.rates import search
from harness.rates.first_requests import BurstResult
from harness.rates.goal import Goal
from harness.rates.measurements import Measurements
from harness.rates.server_model import LoneRequest
from harness.runner.rate import require_time
from harness.runner.search_rate import CurveRate, SearchedRate, fitting_rates, plan_from_search


def plan(**flags: Any) -> Plan:
    return resolve(RunConfig(**{"mode": "performance", **flags}), [], 0)


@pytest.mark.parametrize(
    "vain",
    [
        {},
        {"scenario": "singlestream"},
        {"scenario": "server", "server_target_qps": 50},
        {"scenario": "server"},
        {"concurrency": 16},
        {"arrivals": "poisson", "server_target_qps": 5},
    ],
)
def test_where_it_has_no_meaning_it_is_refused(vain: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--minutes 30") as found:
        RunConfig(minutes=30, **vain)
    assert found.value.exit_code == 2


@pytest.mark.parametrize(
    "useful",
    [
        {"scenario": "server", "server_target_qps": "max"},
        {"scenario": "server", "server_target_qps": "5,10"},
        {"concurrency": "max"},
        {"concurrency": "auto"},
        {"concurrency": "1,4"},
        {"quick": True},
    ],
)
def test_where_it_has_one_it_is_taken(useful: dict[str, Any]) -> None:
    assert RunConfig(minutes=30, **useful).minutes == 30


@pytest.mark.parametrize(
    ("flags", "short", "long", "needed"),
    [
        ({"scenario": "server", "server_target_qps": "max"}, 12, 13.5, "13.0"),
        ({"scenario": "server", "server_target_qps": (50, 55)}, 12, 18, "13.8"),
        ({"concurrency": "max"}, 3, 3.6, "3.5"),
        ({"concurrency": "1,4,16"}, 1, 2.1, "2.0"),
    ],
    ids=str,
)
def test_too_short_for_one_full_test_is_refused_with_the_minutes_that_are_needed(
    flags: dict[str, Any], short: float, long: float, needed: str
) -> None:
    with pytest.raises(UsageError, match=rf"--minutes {short}: at least {needed} minutes") as found:
        require_time(plan(minutes=short, **flags))
    assert found.value.exit_code == 2
    require_time(plan(minutes=long, **flags))
    require_time(plan(**flags))
    require_time(plan(quick=True, minutes=0.5))


def test_an_estimate_is_named_where_there_is_one() -> None:
    with pytest.raises(UsageError, match="--quick gives an estimate"):
        require_time(plan(scenario="server", server_target_qps="max", minutes=3))


def test_a_curve_leaves_out_its_lowest_rates() -> None:
    curve = plan(scenario="server", server_target_qps=(1, 20, 50), minutes=30)
    assert fitting_rates(replace(curve, config=curve.config.with_settings(minutes=None))) == [1, 20, 50]
    assert fitting_rates(curve) == [20, 50]  # a full test at 1/s takes almost four hours
    assert fitting_rates(replace(curve, config=curve.config.with_settings(minutes=13.0))) == [50]
    assert CurveRate().least_s(curve) == pytest.approx(Goal.of(curve).reserved_s(50) + 30 + 30)


def bench_left(measurements: Measurements, minutes: float, left_s: float) -> Plan:
    return plan_from_search(plan(scenario="server", server_target_qps="max", minutes=minutes), measurements, left_s)


def test_a_search_with_no_time_for_a_full_test_names_the_minutes_that_it_takes() -> None:
    """LoadGen sends whole passes of 13,368 queries: at 5 queries/s, a full test takes some 50 minutes."""
    measurements = search.search(Bench(Case("5/s", sharing_engine(5)), 1))
    with pytest.raises(
        UsageError, match=r"--minutes 13: a full test at about 4\.\d+ queries/s takes [45]\d\.\d min"
    ) as error:
        bench_left(measurements, 13, 650.0)
    assert error.value.exit_code == 2
    assert "or --quick for an estimate" in str(error.value)


def test_a_search_without_time_for_a_single_probe_is_an_error_of_one_line() -> None:
    lone, burst = LoneRequest(0.05, 0.02, 2.5), BurstResult(32, 0, 20.0)
    measurements = Measurements(Goal.of(plan(scenario="server", server_target_qps="max")), lone, burst=burst)
    with pytest.raises(UsageError, match="give --minutes"):
        bench_left(measurements, 13, 500.0)


def test_a_slightly_lower_rate_saves_a_pass() -> None:
    goal = Goal.of(plan(scenario="interactive", server_target_qps="max"))
    lower = goal.rate_in_time(44.6, 650.0)
    assert goal.full_s(44.6) > 890 and lower is not None
    assert 43.5 < lower < 44.6 and goal.full_s(lower) < 610
    assert goal.rate_in_time(44.6, 1000.0) == 44.6
    assert goal.rate_in_time(44.6, 500.0) is None


@given(st.floats(0.5, 300), st.floats(1, 5000))
def test_a_rate_in_time_is_in_time_and_no_higher(rate: float, left_s: float) -> None:
    goal = Goal.of(plan(scenario="server", server_target_qps="max"))
    lower = goal.rate_in_time(rate, left_s)
    if lower is None:
        assert goal.reserved_s(rate) > left_s
    else:
        assert lower <= rate and goal.reserved_s(lower) <= left_s


def test_no_test_is_shorter_for_it() -> None:
    """A VALID is of a test of full length, or there is none."""
    searched = plan(scenario="server", server_target_qps="max", minutes=15)
    assert searched.min_duration_s == 600
    assert (SearchedRate().least_s(searched) or 0) > 600


def test_those_of_a_comparison_are_not_its_runs() -> None:
    config = CompareConfig(endpoint=("http://a/v1", "http://b/v1"), model="demo", minutes=12)
    assert config.minutes == 12 and config.accepts_minutes
    assert all("minutes" not in experiment.settings for experiment in sweep_of(config).experiments)
