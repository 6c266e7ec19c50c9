"""Which levels of fixed concurrency are tested, the highest that keeps its limits, and several tests of one level."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.commands import report
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import NotAcceptedError
from harness.loadgen.requests import Request
from harness.loadgen.test_run import TestRun
from harness.rates.goal import Goal
from harness.results import metrics
from harness.results.level import heaviest_loads, level_of
from harness.results.outcome import Outcome, Times
from harness.runner import levels
from harness.runner.levels import LevelSearch, LevelSearchState, fitting_levels, levels_of
from tests.conftest import run, tells
from tests.support import example_runs

LIMITS = Goal(600, 1, 1000, 100)


def test_levels_of_auto_end_with_what_the_engine_computes_at_once() -> None:
    assert levels_of((), 256) == [1, 4, 16, 64, 256]
    assert levels_of((), 100) == [1, 4, 16, 64, 100]
    assert levels_of((), 1) == [1]
    assert levels_of((3, 5), 100) == [3, 5]


class Level:
    """Tests of levels where `truth` is the highest that holds: each is off by chance, all of a level are pooled."""

    def __init__(self, truth: float, noise: float, seed: int = 0) -> None:
        self.truth, self.noise, self.chance = truth, noise, random.Random(seed)
        self.shares: dict[int, list[float]] = {}

    def __call__(self, level: int) -> Outcome:
        share = level / (self.truth + 0.5) if self.truth else 9.0
        shares = self.shares.setdefault(level, [])
        shares.append(share * self.chance.gauss(1, self.noise))
        pooled = sum(shares) / len(shares)
        return example_runs.probe(None, True, 1000 * pooled, 50.0, concurrency=level)

    @property
    def tests(self) -> int:
        return sum(map(len, self.shares.values()))


def searched(truth: float, noise: float, seed: int = 0, most: int = 4096) -> tuple[int | None, Level]:
    tests = Level(truth, noise, seed)
    return LevelSearchState(LIMITS, tests).highest(64, most), tests


@given(truth=st.integers(1, 4096))
def test_the_search_finds_the_highest_level(truth: int) -> None:
    found, tests = searched(truth, 0.0)
    assert found is not None and truth / levels.FINAL_RATIO - 1 <= found <= truth
    assert tests.tests <= levels.MOST_LEVEL_TESTS


@settings(max_examples=50)
@given(seed=st.integers(0, 999))
def test_chance_near_the_limit_does_not_fool_the_search(seed: int) -> None:
    """p99 off by a tenth: the level is within a fifth of the truth, and never a next lower power of two."""
    found, _ = searched(300, 0.1, seed)
    assert found is not None and 300 / 1.35 <= found <= 300 * 1.25


def test_a_single_request_that_is_too_slow_ends_the_search() -> None:
    found, tests = searched(0, 0.0)
    assert found is None and set(tests.shares) == {64, 8, 2, 1}
    assert tests.tests == 4  # each is far over its limit, and none is tested again


class Falling:
    """Holds at first at 64, and not after all; the truth is 40."""

    def __init__(self) -> None:
        self.tested: list[int] = []

    def __call__(self, level: int) -> Outcome:
        self.tested.append(level)
        again = self.tested.count(64) > 1
        share = 0.98 if level == 64 and not again else 0.999 * level / 40
        return example_runs.probe(None, True, 1000 * share, 50.0, concurrency=level)


def test_below_a_level_that_fell_the_search_goes_on_halving() -> None:
    """It ended at the next lower level tested, half of the truth or none at all: "a single request exceeds the
    limits".
    """
    tests = Falling()
    found = LevelSearchState(LIMITS, tests).highest(64, 4096)
    assert found is not None and 40 / levels.FINAL_RATIO - 1 <= found <= 40
    assert tests.tested[:2] == [64, 128]


@pytest.mark.parametrize("doubt", [{"is_buffered": True}, {"busy": "other programs took 40 % of the CPU"}])
def test_a_level_over_its_limits_is_tested_again_if_the_latencies_may_not_be_the_engines(doubt: dict[str, Any]) -> None:
    """The first test of each level is 9 times too slow, since the client held answers back."""
    tested: list[int] = []

    def disturbed(level: int) -> Outcome:
        tested.append(level)
        if tested.count(level) == 1:
            return example_runs.probe(None, True, 9000.0 * level / 40, 50.0, concurrency=level, **doubt)
        return example_runs.probe(None, True, 999.0 * level / 40, 50.0, concurrency=level)

    highest = LevelSearchState(LIMITS, disturbed).highest(64, 4096)
    assert highest is not None and 40 / levels.FINAL_RATIO - 1 <= highest <= 40


def test_a_level_that_stays_doubtful_and_over_its_limits_is_not_tested_for_ever() -> None:
    tested: list[int] = []

    def disturbed(level: int) -> Outcome:
        tested.append(level)
        return example_runs.probe(None, True, 9000.0, 50.0, concurrency=level, is_buffered=True)

    assert LevelSearchState(LIMITS, disturbed).highest(64, 4096) is None
    assert {tested.count(level) for level in tested} == {2}


def test_a_level_that_the_server_refuses_is_too_many() -> None:
    def refusing(level: int) -> Outcome | None:
        return example_runs.probe(None, True, 100.0, 10.0, concurrency=level) if level <= 24 else None

    found = LevelSearchState(LIMITS, refusing).highest(64, 4096)
    assert found in (22, 23, 24)


def test_a_search_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(levels, "monotonic", lambda: now[0])
    tests = Level(300, 0.0)

    def timed(level: int) -> Outcome:
        now[0] += 50
        return tests(level)

    state = LevelSearchState(LIMITS, timed, until=170.0)
    assert state.highest(64, 4096) == 256 and state.is_out_of_time and tests.tests == 4


class NoBench:
    """Levels that all exceed their limits."""

    def __init__(self) -> None:
        self.plan = resolve(RunConfig(model="demo", concurrency="max", mode="performance"), [], 0)
        self.goal, self.at_once, self.until = LIMITS, 256, float("inf")

    def say(self, text: str) -> None: ...


def test_a_search_without_time_says_so() -> None:
    """No level was tested, so nothing is known of a single request."""
    bench = NoBench()
    bench.plan = resolve(RunConfig(model="demo", concurrency="max", mode="performance", minutes=0.7), [], 0)
    bench.until = 0.0
    with pytest.raises(NotAcceptedError, match=r"no level was tested: --minutes 0\.7 leaves no time"):
        LevelSearch().find(bench)  # type: ignore[arg-type]


def test_what_is_said_where_no_level_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "run_level", lambda bench, level: Level(0, 0.0)(level))
    with pytest.raises(NotAcceptedError, match="a single request in flight exceeds the limits"):
        LevelSearch().find(NoBench())  # type: ignore[arg-type]
    monkeypatch.setattr(levels, "MOST_LEVEL_TESTS", 2)
    with pytest.raises(NotAcceptedError, match=r"8 requests in flight.*--concurrency 2"):
        LevelSearch().find(NoBench())  # type: ignore[arg-type]


def test_levels_that_minutes_have_no_time_for_are_left_out_evenly() -> None:
    def fitting(minutes: float | None) -> list[int]:
        config = RunConfig(
            model="demo", concurrency="1,4,16,64,256", mode="performance", min_duration=60, minutes=minutes
        )
        return fitting_levels((1, 4, 16, 64, 256), resolve(config, [], 0))

    assert fitting(None) == fitting(60) == [1, 4, 16, 64, 256]
    assert fitting(6.5) == [1, 16, 256]
    assert fitting(3) == [256]


# Several tests of one level.
def level_tests(folder: Path, *tpots: float) -> tuple[list[TestRun], Any]:
    """Tests of two requests in flight, one for each TPOT in ms, of 100 requests of 11 tokens each."""
    place = example_runs.run(folder, concurrency=2, ttft_limit=1000, tpot_limit=20)
    plan = resolve(RunConfig(model="demo", mode="performance", concurrency=2, ttft_limit=1000, tpot_limit=20), [], 0)
    tests = []
    for number, tpot in enumerate(tpots):
        logs = place / "Probes" / str(number)
        logs.mkdir(parents=True)
        (logs / "mlperf_log_detail.txt").write_text((place / "Performance" / "mlperf_log_detail.txt").read_text())
        requests, now = [], [0.0, 0.0]
        for order in range(100):
            latency_ms = 100 + 10 * tpot
            requests.append(Request(0, 500, 11, 1, now[order % 2], 0.0, 100.0, latency_ms, "client", order=order))
            now[order % 2] += latency_ms / 1000
        example_runs.requests(logs, *requests)
        tests.append(TestRun.from_logs(logs, plan.limits, 2, "", True))
    return tests, plan


def test_several_tests_of_a_level_are_one_level(tmp_path: Path) -> None:
    """Speeds are the mean by time, latencies those of all requests, and these decide."""
    tests, plan = level_tests(tmp_path / "run", 10.0, 10.0, 21.0)
    single = [level_of([test], plan, tmp_path / "run") for test in tests]
    found = level_of(tests, plan, tmp_path / "run")
    speeds = [one.tokens_per_sec or 0.0 for one in single]
    assert found.speed_range == (min(speeds), max(speeds)) and min(speeds) < (found.tokens_per_sec or 0) < max(speeds)
    assert found.tpot_ms.p99 == pytest.approx(21.0) and found.tpot_ms.p50 == pytest.approx(10.0)
    assert found.reasons and not single[0].reasons and single[2].reasons
    assert (len(found.repeats or []), found.repeats_over) == (3, 1)
    assert found.folder == "Probes/2"  # of the longest


def test_a_level_is_kept_where_all_its_tests_together_are_within_the_limits(tmp_path: Path) -> None:
    tests, plan = level_tests(tmp_path / "run", 10.0, 10.0, 10.0)
    slow = tests[2].requests[50]
    for order in range(40, 42):
        late = tests[2].requests[order]
        late.latency_ms = (slow.latency_ms or 0.0) + 300
    found = level_of(tests, plan, tmp_path / "run")
    assert found.repeats_over == 1 and found.has_kept
    assert found.verdict.word == "within; over in 1 of 3" and found.verdict.tone == "good"


def test_tests_whose_answers_a_buffer_held_back_do_not_count_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests, plan = level_tests(tmp_path / "run", 10.0, 50.0, 10.0)
    monkeypatch.setattr(TestRun, "is_buffered", property(lambda test: test is tests[1]))
    level = level_of(tests, plan, tmp_path / "run")
    assert level.tpot_ms.p99 == pytest.approx(10.0) and not level.is_buffered and not level.reasons
    monkeypatch.setattr(TestRun, "is_buffered", property(lambda test: True))
    level = level_of(tests, plan, tmp_path / "run")
    assert level.tpot_ms.p99 == pytest.approx(50.0) and level.is_buffered and level.reasons


def test_the_title_cost_and_replicas_are_those_of_the_level(tmp_path: Path) -> None:
    """A level that was tested twice, and is the run's own: the title has the mean, not the last or the best."""
    from harness.report import answer, load_view, test_tables
    from harness.report import report as rendering

    folder = example_runs.run(
        tmp_path / "20260131-000000-x", concurrency=2, price_per_hour=3.6, ttft_limit=1000, tpot_limit=100
    )
    mean = example_runs.probe(
        None,
        True,
        100.0,
        10.0,
        tokens_per_sec=500.0,
        samples_per_sec=4.0,
        concurrency=2,
        queries=400,
        folder="Performance",
    )
    mean = mean.model_copy(
        update={"repeats": ["Probes/1", "Performance"], "repeats_over": 1, "speed_range": (400.0, 600.0)}
    )
    example_runs.note(rendering_folder(folder), probes=[mean])
    summary = rendering.build_report(folder)
    assert summary.result and summary.result.repeats
    assert metrics.METRIC_BY_NAME["tokens_per_sec"].of(summary) == 500.0
    assert metrics.METRIC_BY_NAME[metrics.COST].of(summary) == pytest.approx(3.6 / 0.0036 / 500.0)
    assert tells(answer.title(summary), "500 output tokens/s", "within the limits, over in 1 of 2 tests")
    assert len(test_tables.rows_of_levels(summary)) in (0, 2) and len(test_tables.table_of_loads(summary).rows) == 1
    assert any("2, 400 to 600" in str(cell) for cell in test_tables.table_of_loads(summary).rows[0])
    drawn = load_view.LoadPicture.of(summary, None)
    assert drawn is not None and drawn.rate == 4.0 and tells(drawn.loads[0].speed, "mean of 2 tests, 400 to 600")


def rendering_folder(folder: Path) -> Any:
    from harness.runs.run_folder import RunFolder

    return RunFolder(folder.parent, folder.name)


def test_a_p99_over_all_tests_is_of_their_requests() -> None:
    assert Outcome(valid=True, ttft_ms=Times(p99=5.0)).over_in == ""


def test_a_load_of_other_programs_is_named_once_by_its_most() -> None:
    cores = "other programs used {} of 2 CPU cores during the test"
    gpus = "other programs used memory of GPU 0", "other programs used memory of GPU 1"
    texts = [cores.format("1.3"), gpus[0], cores.format("1.9"), cores.format("1.4"), gpus[1]]
    assert heaviest_loads(texts) == (cores.format("1.9"), *gpus)


@pytest.mark.slow
def test_a_search_for_the_highest_level_with_real_loadgen(tmp_path: Path) -> None:
    """The echo engine answers after a fixed time, so that every level holds up to what LoadGen itself can do."""
    flags = ("--backend", "echo", "--mode", "performance", "--concurrency", "max", "--min-duration", "1")
    flags += ("--engine-arg", "first_token_s=0.05", "--minutes", "2", "--total-sample-count", "64")
    done = run(tmp_path, *flags)
    assert done.code in (0, 1), done.output
    probes = json.loads((done.folder / "config.json").read_text())["probes"]
    loads = [probe["load"] for probe in probes]
    assert len(loads) == len(set(loads)) > 1  # one row a level
    assert any(len(probe.get("repeats") or []) > 1 for probe in probes)
    assert tells(done.output, "at most")
    assert report.check_run(done.folder) == 0
