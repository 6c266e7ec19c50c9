"""Latency limits of the user's own: what LoadGen holds, and what is refused."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from harness.config import mlperf
from harness.config.plan import Plan
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.loadgen.loadgen_test import LoadGenSettings, user_conf


def plan(**flags: Any) -> Plan:
    return resolve(RunConfig(**{"scenario": "server"} | flags), [], 0)


def test_own_limits_take_the_place_of_mlperfs_and_are_said() -> None:
    own = plan(ttft_limit=800)
    assert own.limits == mlperf.LatencyLimits(800, 100)
    assert [str(line).partition("(")[2] for line in own.deviations] == ["TTFT 800 ms, TPOT 100 ms)"]
    assert "llama3_1-8b.Server.ttft_latency = 800\n" in user_conf(own)
    assert plan().limits == mlperf.SERVER_LIMITS
    assert plan(ttft_limit=2000).deviations == []
    assert "latency = " not in user_conf(plan())


def held(folder: Path, end: Any) -> None:
    own = plan(scenario="interactive", ttft_limit=800, tpot_limit=12, server_target_qps=5)
    settings = LoadGenSettings().prepare(own, folder)
    end.put((settings.ttft_latency, settings.tpot_latency))


def test_loadgen_holds_them(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    end = spawn.Queue()
    spawn.Process(target=held, args=(tmp_path, end)).start()
    assert end.get(timeout=60) == (800e6, 12e6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"ttft_limit": 0}, "--ttft-limit takes a whole number above 0"),
        ({"tpot_limit": 12.5}, "--tpot-limit takes .*; got 12.5"),
        ({"ttft_limit": 10**7}, "at most 1,000,000"),
        ({"scenario": "offline", "tpot_limit": 10}, "--tpot-limit .* server, interactive"),
        ({"price_per_hour": -1}, "--price-per-hour takes .*0 or more"),
        ({"price_per_hour": float("inf")}, "--price-per-hour takes .*0 or more"),
    ],
)
def test_wrong_limits_and_prices_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(**flags)
