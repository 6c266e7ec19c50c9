"""LoadGen's target rates, and how they reach it."""

import asyncio
import multiprocessing
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config import mlperf
from harness.config.plan import Plan
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import LoadGenError, UsageError
from harness.loadgen import invalid_reasons, loadgen_test, log_entries
from harness.loadgen import log as loadgen_log
from harness.loadgen.loadgen_test import LoadGenSettings, user_conf
from harness.loadgen.log import TestResult
from harness.loadgen.sending import trial_size
from harness.rates import trials
from harness.rates.full_tests import SAFE_SHARE
from harness.rates.trials import TolerantEngine, Trial, run_trial
from harness.results.history_line import range_in_earlier_runs
from harness.runner.load_source import DoneTests, RateSource
from harness.runner.rate import rate_source
from harness.runner.search_rate import CurveRate, plan_from_curve
from harness.runner.trial_rate import HistoryRate, LatencyTrial, TrialRate, last_offline_rate, plan_at_share
from tests.conftest import tells
from tests.support import example_runs

MODES = ("accuracy", "performance", "both")
CATEGORY = {"offline": "datacenter", "server": "datacenter", "interactive": "datacenter", "singlestream": "edge"}


def asked(scenario: str, **flags: Any) -> RunConfig:
    return RunConfig(**{"scenario": scenario, "category": CATEGORY[scenario]} | flags)


def plan(scenario: str = "offline", **flags: Any) -> Plan:
    config = asked(scenario, **flags)
    return resolve(config, [], 0)


def from_trial(plan: Plan, found: Trial) -> Plan:
    """The plan with what a trial finds in its scenario."""
    source = rate_source(plan.config)
    assert isinstance(source, TrialRate)
    return source.plan_after(plan, found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("scenario", "wanted"),
    [
        ("offline", {"performance": TrialRate, "both": TrialRate}),
        ("server", dict.fromkeys(MODES, HistoryRate)),
        ("interactive", dict.fromkeys(MODES, HistoryRate)),
        ("singlestream", {"performance": LatencyTrial, "both": LatencyTrial}),
    ],
)
def test_which_rate_is_still_to_be_found(scenario: str, wanted: dict[str, type[RateSource]], mode: str):
    assert type(rate_source(asked(scenario, mode=mode))) is wanted.get(mode, RateSource)
    if flag := {"offline": "offline_expected_qps", "server": "server_target_qps"}.get(scenario):
        assert type(rate_source(asked(scenario, mode=mode, **{flag: 5}))) is RateSource


GPUS = ["NVIDIA H200"]


def offline(target: Plan, **changes: Any) -> dict[str, Any]:
    """A line of the history: an Offline run as `target` would have made it."""
    numbers = {"tokens_per_sec": 6400.0, "samples_per_sec": 777.0, "mean_new_tokens": 128.0}
    where = {"category": "datacenter", "scenario": "offline", "gpus": GPUS, "valid": True}
    setup = target.setup | {name: value for name, value in changes.items() if name in target.setup}
    ours = {
        "scenario": "offline",
        "total_sample_count": 13368,
        "samples_per_query": 1,
    }  # its own, whatever is asked now
    work = target.work | ours | changes.pop("work", {})
    return {"run": "earlier", **where, "setup": setup, "work": work, **numbers, **changes}


def expected(target: Plan, lines: list[dict[str, Any]]) -> Plan:
    known = last_offline_rate(target, GPUS, lines)
    assert known is not None
    return plan_at_share(target, *known)


def test_the_server_rate_is_a_share_of_offline_requests_not_tokens():
    server = plan("server")
    found = expected(server, [offline(server)])
    assert found.target_qps == pytest.approx(0.8 * 6400 / 128)
    assert "earlier" in found.notes[-1] and "6,400.0 tokens/s / 128.0 tokens per request" in found.notes[-1]


@settings(deadline=None)
@given(tokens_per_sec=st.floats(1, 1e6), mean=st.floats(1, 128))
def test_the_server_rate_for_any_offline_result(tokens_per_sec: float, mean: float):
    server = plan("server")
    found = expected(server, [offline(server, tokens_per_sec=tokens_per_sec, mean_new_tokens=mean)])
    assert found.target_qps == pytest.approx(0.8 * tokens_per_sec / mean)


@pytest.mark.parametrize(
    "other",
    [
        {"model": "demo"},
        {"precision": "fp16"},
        {"quantization": "fp8"},
        {"kv_cache_dtype": "fp8"},
        {"load_format": "dummy"},
        {"tensor_parallel_size": 2},
        {"data_parallel_size": 2},
        {"max_new_tokens": 64},
        {"max_num_seqs": 64},
        {"max_num_batched_tokens": 8192},
        {"engine_arg": ["async_scheduling=false"]},
        {"batch_size": 16},
        {"gpus": ["NVIDIA L4"]},
        {"category": "edge"},
        {"valid": False},
        {"scenario": "server"},
        {"scenario": "singlestream"},
        {"tokens_per_sec": None},
        {"mean_new_tokens": None},
        {"work": {"dataset_path": "other.json"}},
        {"work": {"workload": "chat"}},
    ],
    ids=str,
)
def test_another_run_gives_no_rate(other: dict[str, Any]):
    server = plan("interactive")
    assert last_offline_rate(server, GPUS, [offline(server, **other)]) is None


def test_the_last_fitting_run_counts():
    server = plan("server")
    lines = [
        offline(server, tokens_per_sec=100.0),
        offline(server, tokens_per_sec=200.0),
        offline(server, tokens_per_sec=900.0, precision="fp16"),
        {"run": "of another program"},
    ]
    assert expected(server, lines).target_qps == pytest.approx(0.8 * 200 / 128)
    assert last_offline_rate(server, GPUS, []) is None


def test_a_line_of_an_old_format_tells_no_work():
    server = plan("server")
    assert last_offline_rate(server, GPUS, [offline(server) | {"work": None}]) is not None


class Instant:
    """Answers at once with as many tokens as the prompt's first one says, on an event loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.prompts: list[list[int]] = []
        self.active = self.most = 0

    async def stream(self, prompt: list[int], *_: object) -> AsyncIterator[list[int]]:
        self.prompts.append(prompt)
        self.active += 1
        self.most = max(self.most, self.active)
        await asyncio.sleep(0.002)
        self.active -= 1
        yield [0] * prompt[0]

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def engine() -> Iterator[Instant]:
    engine = Instant()
    yield engine
    engine.close()


def tried(engine: Instant, prompts: list[list[int]], **flags: Any) -> Trial:
    """What a trial of these prompts finds, in Offline unless flags say otherwise."""
    tolerant = TolerantEngine(engine, "0", len(prompts))  # type: ignore[arg-type]
    work = run_trial(plan(**flags), tolerant, [(prompt, None) for prompt in prompts], 8)
    return asyncio.run_coroutine_threadsafe(work, engine.loop).result(timeout=10)


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_a_trial_counts_samples_after_a_warm_up(engine: Instant, batch: int | None):
    prompts = [[length] for length in range(1, 11)]
    found = tried(engine, prompts, batch_size=batch)
    assert found.samples == 10
    assert engine.prompts == prompts[:4] + prompts
    assert engine.most == (batch or 10)
    assert found.seconds >= 0.002 * -(-10 // (batch or 10))
    assert found.samples_per_sec == pytest.approx(10 / found.seconds)


def test_a_trial_ends_in_time_and_counts_what_came(engine: Instant, monkeypatch: pytest.MonkeyPatch):
    async def answer(prompt: list[int], *_: object) -> AsyncIterator[list[int]]:
        await asyncio.sleep(prompt[0])
        yield [0]

    monkeypatch.setattr(trials, "TRIAL_S", 0.2)
    monkeypatch.setattr(engine, "stream", answer)
    for prompts, counted in (([0, 0, 0, 0, 0, 0, 60, 60], 6), ([0, 0, 0, 0, 0.4, 60], 4)):
        found = tried(engine, [[seconds] for seconds in prompts])
        assert found.samples == counted and 0.2 <= found.seconds < 5
    monkeypatch.setattr(trials, "WARM_UP_PROMPTS", 0)
    assert 0.4 <= tried(engine, [[0.4], [60]]).seconds < 5  # it waits for the first


def test_a_trial_that_fails_says_so(engine: Instant, monkeypatch: pytest.MonkeyPatch):
    async def answer(prompt: list[int], *_: object) -> AsyncIterator[list[int]]:
        if prompt[0]:
            raise LoadGenError("broken")
        yield [0]

    monkeypatch.setattr(engine, "stream", answer)
    with pytest.raises(LoadGenError, match="broken"):
        tried(engine, [[number] for number in (0, 0, 0, 0, 1)])


TRIAL = Trial(samples=50, seconds=4.0)


def test_offline_plans_for_more_than_the_trial_reached():
    found = from_trial(plan(), TRIAL)
    assert found.target_qps == pytest.approx(1.1 * 12.5)
    assert tells(found.notes[-1], "12.5 samples/s", "50 samples in 4.0 s")


@pytest.mark.parametrize("scenario", ["server", "interactive"])
def test_server_asks_for_less_than_the_trial_reached(scenario: str):
    share = {"server": 0.8, "interactive": 0.6}[scenario]
    assert from_trial(plan(scenario), TRIAL).target_qps == pytest.approx(share * 12.5)


def test_singlestream_expects_more_than_the_mean_latency():
    found = from_trial(plan("singlestream"), TRIAL)
    assert (found.target_qps, found.expected_latency_ms) == (None, pytest.approx(1.5 * 80))


def ended(scenario: str, duration_met: bool = False, seconds: float = 4) -> TestResult:
    """A performance test of 100 samples at 25 samples/s."""
    rate = log_entries.ENTRIES_BY_SCENARIO[mlperf.SCENARIOS[scenario].loadgen].sample_rate
    values = {
        "loadgen_version": "6.0.17",
        "effective_scenario": mlperf.SCENARIOS[scenario].loadgen,
        "effective_test_mode": "PerformanceOnly",
        "effective_min_duration_ms": 10_000,
        "result_validity": "VALID" if duration_met else "INVALID",
        "result_min_duration_met": duration_met,
        "result_query_count": 100,
        "generated_samples_per_query": 100,
        "result_max_latency_ns": 1e9 * seconds,
        rate: 25.0,
    }
    return loadgen_log.result_of(log_entries.Entries(values), [], [])


def corrected(plan: Plan, result: TestResult) -> Plan | None:
    return rate_source(plan.config).correct(
        plan, result, DoneTests((), (example_runs.probe(plan.target_qps, False, 100, 20, seconds=result.duration_s),))
    )


def test_a_test_that_ran_short_is_tried_again_at_its_own_rate():
    again = corrected(from_trial(plan(), TRIAL), ended("offline"))
    assert again.target_qps == pytest.approx(1.1 * 25)
    assert tells(again.notes[-1], "after 4.0 s; ", "27.5 samples/s")
    again = corrected(from_trial(plan("singlestream"), TRIAL), ended("singlestream"))
    assert again.expected_latency_ms == pytest.approx(1.5 * 40)


def test_a_test_is_not_tried_again_without_need():
    assert corrected(from_trial(plan(), TRIAL), ended("offline", duration_met=True)) is None
    assert corrected(plan(offline_expected_qps=3), ended("offline")) is None


@pytest.mark.parametrize("check", ["latency", "early_stopping"])
def test_a_rate_that_a_search_found_is_lowered_where_it_does_not_hold(check: invalid_reasons.Check):
    facts = replace(ended("server"), failed=(check,), queries=30_000)
    again = corrected(replace(plan("server", server_target_qps="max"), target_qps=50.0), facts)
    assert again is not None and again.target_qps == pytest.approx(SAFE_SHARE * 45)
    assert corrected(replace(plan("server", server_target_qps=50), target_qps=50.0), facts) is None


def test_a_lower_rate_is_no_cure_for_too_few_queries():
    facts = replace(ended("server"), failed=("early_stopping",), queries=200)
    assert corrected(replace(plan("server", server_target_qps="max"), target_qps=10.0), facts) is None


def test_how_many_prompts_are_tried():
    def size(engine: int, **flags: Any) -> int:
        target = plan(**flags)
        return trial_size(target, engine)

    assert [size(8, scenario="singlestream"), size(8), size(1000, batch_size=4), size(8, batch_size=1000)] == [
        10,
        8,
        4,
        1000,
    ]


def settings_of(target: Plan) -> dict[str, str]:
    """user.conf as key -> value; every line must be of the plan's own model and scenario."""
    mark = f"{target.loadgen_model}.{target.config.scenario_rules.loadgen}."
    lines = [line.partition(" = ") for line in user_conf(target).splitlines()]
    assert all(key.startswith(mark) for key, _, _ in lines)
    return {key.removeprefix(mark): value for key, _, value in lines}


@pytest.mark.parametrize(
    ("scenario", "model"),
    [
        ("offline", "llama3_1-8b.Offline"),
        ("server", "llama3_1-8b.Server"),
        ("interactive", "llama3_1-8b-interactive.Server"),
        ("singlestream", "llama3_1-8b-edge.SingleStream"),
    ],
)
def test_a_full_run_overrides_no_counts(scenario: str, model: str):
    found = from_trial(plan(scenario), TRIAL)
    assert user_conf(found).startswith(f"{model}.")
    rate = {"target_latency": "120"} if scenario == "singlestream" else {"target_qps": f"{found.target_qps:g}"}
    assert settings_of(found) == {"min_duration": "600000", **rate}


def test_a_short_run_has_counts_of_its_own():
    short = plan(total_sample_count=64, min_duration=2.5, offline_expected_qps=10)
    assert settings_of(short) == {
        "min_duration": "2500",
        "target_qps": "10",
        "performance_sample_count_override": "64",
        "min_query_count": "64",
    }


def test_edge_offline_is_configured_under_its_own_model():
    assert plan("offline", category="edge").loadgen_model == "llama3_1-8b-edge"


RATES = ("server_target_qps", "offline_expected_qps", "single_stream_expected_latency_ns")
KEPT = ("min_duration_ms", "min_query_count", "performance_sample_count_override", "use_token_latencies")
KEPT += ("ttft_latency", "tpot_latency", "qsl_rng_seed", "sample_index_rng_seed", "schedule_rng_seed")
Held = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]


def heard(target: Plan, folder: Path, ends: Any) -> None:
    """What real LoadGen holds for a plan, for half its rate, for a short test of it, and for the plan once more."""
    settings = LoadGenSettings()
    slower = from_trial(target, TRIAL._replace(seconds=2 * TRIAL.seconds))
    short = replace(target, samples=100, min_duration_s=3.0)

    def values(one: Plan) -> dict[str, Any]:
        return {name: getattr(settings.prepare(one, folder), name) for name in KEPT + RATES}

    first, *others = [values(one) for one in (target, slower, short, target)]
    ends.put((settings.prepare(target, folder).scenario.name, first, *others))


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Held]:
    """LoadGen's settings for a short run of each scenario, each in its own process, as LoadGen demands."""
    spawn = multiprocessing.get_context("spawn")
    ends = {scenario: spawn.Queue() for scenario in CATEGORY}
    for scenario, end in ends.items():
        short = from_trial(plan(scenario, total_sample_count=500, min_duration=7, round="6.0"), TRIAL)
        spawn.Process(target=heard, args=(short, tmp_path_factory.mktemp(scenario), end)).start()
    return {scenario: end.get(timeout=60) for scenario, end in ends.items()}


@pytest.mark.parametrize("scenario", CATEGORY)
def test_loadgen_holds_its_settings(held: dict[str, Held], scenario: str):
    name, values, *_ = held[scenario]
    assert name == mlperf.SCENARIOS[scenario].loadgen
    assert (values["min_duration_ms"], values["min_query_count"]) == (7000, 500)
    assert values["performance_sample_count_override"] == 500
    assert values["use_token_latencies"]
    seeds = mlperf.SEEDS_BY_ROUND["6.0"]
    assert [values[f"{seed}_rng_seed"] for seed in vars(seeds)] == list(vars(seeds).values())
    if limits := mlperf.SCENARIOS[scenario].limits:
        assert (values["ttft_latency"], values["tpot_latency"]) == (limits.ttft * 1e6, limits.tpot * 1e6)


def test_what_loadgen_throws_ends_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loadgen_test.lg, "StartTestWithLogSettings", Mock(side_effect=MemoryError("std::bad_alloc")))
    sut = Mock(issue=lambda *_: None)
    with pytest.raises(LoadGenError, match="LoadGen failed: MemoryError: std::bad_alloc"):
        loadgen_test.run_test("performance", loadgen_test.lg.TestSettings(), sut, 4, tmp_path, lambda: None)


@pytest.mark.parametrize(
    ("scenario", "rate", "first", "second"),
    [
        ("offline", "offline_expected_qps", 13.75, 6.875),
        ("server", "server_target_qps", 10, 5),
        ("interactive", "server_target_qps", 7.5, 3.75),
        ("singlestream", "single_stream_expected_latency_ns", 120e6, 240e6),
    ],
)
def test_loadgen_takes_a_second_rate(held: dict[str, Held], scenario: str, rate: str, first: float, second: float):
    _, before, after, *_ = held[scenario]
    assert (before[rate], after[rate]) == (pytest.approx(first), pytest.approx(second))
    assert {name: before[name] for name in KEPT} == {name: after[name] for name in KEPT}


@pytest.mark.parametrize("scenario", CATEGORY)
def test_a_short_test_leaves_nothing_behind(held: dict[str, Held], scenario: str):
    _, before, _, short, again = held[scenario]
    assert (short["min_duration_ms"], short["performance_sample_count_override"]) == (3000, 100)
    assert before == again


def test_a_curve_ends_at_its_highest_valid_rate() -> None:
    curve = plan("server", server_target_qps=(5, 10, 20))
    assert type(rate_source(curve.config)) is CurveRate
    probes = [example_runs.probe(qps, qps <= 10, None, None) for qps in (5.0, 10.0, 20.0)]
    found = plan_from_curve(curve, probes)
    assert found.target_qps == 10.0 and tells(found.notes[-1], "server_target_qps = 10 queries/s", "3 rates)")
    assert plan_from_curve(curve, [example_runs.probe(qps, False, None, None) for qps in (5.0, 10.0)]).target_qps == 5.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"server_target_qps": "5,x"},
        {"server_target_qps": "5,0"},
        {"server_target_qps": "5,10", "scenario": "singlestream", "category": "edge"},
        {"server_target_qps": "5,10", "mode": "accuracy"},
        {"server_target_qps": (5, float("nan"))},
    ],
)
def test_wrong_rates_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--server-target-qps"):
        plan(**{"scenario": "server"} | wrong)


ODD: list[Any] = [None, "x", 3, -1.5, [], {}, [{}], {"a": [1]}, True]


@pytest.mark.parametrize(
    "key", ["tokens_per_sec", "mean_new_tokens", "flaws", "others", "work", "setup", "gpus", "valid"]
)
def test_a_line_that_was_edited_by_hand_ends_nothing(key: str):
    server = plan("server")
    line = offline(server)
    for value in ODD:
        found = last_offline_rate(server, GPUS, [line | {key: value}])
        assert found is None or found[0] > 0
        assert isinstance(range_in_earlier_runs(line, "tokens_per_sec", "tokens/s", [line | {key: value}]), str)
