"""A server that refuses requests because it is full: what a search makes of it, and what is no such server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.search import ALL, Bench, find_rate
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import EndpointError, ServerFullError
from harness.loadgen.admission import Admission
from harness.rates import first_requests, search, trials
from harness.rates.measurements import Candidate, Measurements
from harness.rates.server_model import LoneRequest
from harness.rates.trials import TolerantEngine
from tests.conftest import run, tells
from tests.engines.test_openai import PROMPT, client
from tests.loadgen.test_failures import asked
from tests.support.fake_servers import Fake, serving

BY_NAME = {case.name: case for case in ALL}
FULL = ("429", "503", "overloaded", "Retry-After", "closed")
PLAN = resolve(RunConfig(model="demo", scenario="server", server_target_qps="max"), [], 0)


@pytest.mark.parametrize("full", FULL)
def test_a_burst_tells_how_many_a_server_answers_at_once(full: str) -> None:
    with client(Fake(room=5, full=full, delay_s=0.3), scenario="server") as engine:
        tolerant = TolerantEngine(engine, "0", 16, is_probe=True)
        burst = engine.run(first_requests.run_burst(tolerant, [(PROMPT, None)] * 16, PLAN), lambda: None)
    assert (burst.answered, burst.refused) == (5, 11)
    assert burst.has_limit(LoneRequest(0.3, 0.0, 0.3))


def test_a_failure_of_another_kind_ends_a_burst() -> None:
    with client(Fake(fault="500"), scenario="server") as engine, pytest.raises(EndpointError, match="500: too much"):
        tolerant = TolerantEngine(engine, "0", 4, is_probe=True)
        engine.run(first_requests.run_burst(tolerant, [(PROMPT, None)] * 4, PLAN), lambda: None)


@pytest.mark.parametrize("full", FULL)
def test_a_server_that_refuses_all_is_not_full(full: str) -> None:
    with client(Fake(gone_after=1, full=full), scenario="server") as engine:
        tolerant = TolerantEngine(engine, "0", 8, is_probe=True)
        engine.run(first_requests.run_burst(tolerant, [(PROMPT, None)], PLAN), lambda: None)
        with pytest.raises(EndpointError, match="it is not full") as found:
            engine.run(first_requests.run_burst(tolerant, [(PROMPT, None)] * 8, PLAN), lambda: None)
    assert found.value.exit_code == 3 and not isinstance(found.value, ServerFullError)


def test_a_probe_counts_refusals_and_another_test_fails_with_the_flag_that_helps() -> None:
    with client(Fake(room=3, delay_s=0.2), scenario="server") as engine:
        system, heard = at_once(engine, 9, is_probe=True)
        assert len(system.admission.refusal_times) == 6 and system.admission.full_at == 3
        assert len([tokens for _, _, tokens in heard if tokens == [0, 0]]) == 6  # LoadGen hears of each
        with pytest.raises(
            EndpointError, match=r"429: too much to do, with \d+ others in flight: --max-in-flight \d+ "
        ):
            at_once(engine, 9)


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ({"scenario": "server", "server_target_qps": 9.0}, r"--max-in-flight \d "),
        ({"concurrency": "8"}, r"--concurrency \d "),
    ],
)
def test_a_trial_names_the_flag_that_the_run_takes(flags: dict[str, Any], remedy: str) -> None:
    """A fixed concurrency takes no lower --max-in-flight."""
    flag = RunConfig(model="demo", **flags).scenario_rules.pattern.most_in_flight_flag
    with client(Fake(room=3, delay_s=0.2)) as engine:
        tolerant = TolerantEngine(engine, "0", 8, most_in_flight_flag=flag)
        with pytest.raises(EndpointError, match=rf"with \d others in flight: {remedy}"):
            engine.run(first_requests.run_burst(tolerant, [(PROMPT, None)] * 8, PLAN), lambda: None)


def test_a_refusal_without_others_in_flight_has_no_advice() -> None:
    with (
        client(Fake(fault="429"), scenario="server") as engine,
        pytest.raises(EndpointError, match=r"429: too much to do$"),
    ):
        asked(engine, 2)


def at_once(engine: Any, count: int, **how: Any) -> Any:
    """As `asked`, all requests at once."""
    system, heard = asked(engine, 0, **how)
    system.counters.issued = count
    from harness.loadgen.requests import Request

    system.requests = [Request(0, len(PROMPT), order=order) for order in range(count)]
    import time

    for order, request in enumerate(system.requests):
        request.id, request.issued_s = order, time.perf_counter()

    async def all_of_them() -> None:
        await asyncio.gather(*map(system.attempt, system.requests))

    engine.run(all_of_them(), lambda: None)
    return system, heard


def test_how_many_a_server_answers_is_told_by_the_median_refusal() -> None:
    admission = Admission()
    error = ServerFullError("full")
    for at_s in range(6):
        admission.note_sent(float(at_s))
    for number, at_s in ((4, 3.5), (5, 4.5), (6, 5.5)):
        admission.note_refused(number, at_s, error)
    for number in (1, 2, 3):
        admission.note_answered(number, 10.0)
    assert admission.full_at == 3
    assert Admission().full_at is None


def test_a_client_keeps_no_more_in_flight_than_it_was_told() -> None:
    fakes = Fake(delay_s=0.1), Fake(delay_s=0.1)
    with client(*fakes, scenario="server") as engine:
        assert engine.limit_in_flight(5) == 2 and engine.concurrency == 4
        tolerant = TolerantEngine(engine, "0", 16)
        engine.run(first_requests.run_burst(tolerant, [(PROMPT, None)] * 16, PLAN), lambda: None)
    assert max(fake.most_busy for fake in fakes) == 2


def test_a_trial_tells_that_a_level_is_too_many() -> None:
    with client(Fake(room=2, delay_s=0.05), scenario="server") as engine:
        target = resolve(RunConfig(model="demo", concurrency=6), [], 0)
        tolerant = TolerantEngine(engine, "0", 24, is_probe=True)
        found = engine.run(trials.run_trial(target, tolerant, [(PROMPT, None)] * 24, 6), lambda: None)
    assert found.full_at == 2 and found.samples


@pytest.mark.parametrize("name", ["refuses beyond 8", "refuses beyond 64, half of them waiting"])
def test_a_search_goes_on_with_as_many_in_flight_as_the_server_takes(name: str) -> None:
    """Without that limit the full test would end the run."""
    bench = Bench(BY_NAME[name], 3)
    found = find_rate(bench)
    assert bench.in_flight == BY_NAME[name].full_at
    assert found.rate and found.attempts <= 3


def test_refusals_of_a_probe_lower_what_is_in_flight_until_there_are_none() -> None:
    class Refusing(Bench):
        """Takes ever fewer, but three for certain."""

        def probe(self, chosen: Candidate) -> Any:
            found = super().probe(chosen)
            full_at = max(3, self.in_flight // 4)
            return found.model_copy(update={"refused": 9, "full_at": full_at}) if self.in_flight > 3 else found

    bench = Refusing(BY_NAME["capacity, 60/s"], 1, in_flight=512)
    found = search.probe(bench, Candidate(20.0, "", 5.0))
    assert 1 <= bench.in_flight <= 3 and not found.refused
    measured = Measurements(bench.goal, bench.lone_request())
    assert search.burst_qps(bench, measured) > 0 and measured.burst and measured.burst.answered <= 3


FLAGS = ("--scenario", "server", "--server-target-qps", "max", "--mode", "performance", "--total-sample-count", "16")
FLAGS += ("--min-duration", "3", "--ttft-limit", "3000", "--tpot-limit", "900")


@pytest.mark.slow
@pytest.mark.parametrize("full", ["429", "closed"])
def test_a_run_on_a_server_that_is_full_ends_with_a_result(full: str, tmp_path: Path) -> None:
    with serving(Fake(room=8, full=full, delay_s=0.05)) as fake:
        done = run(tmp_path, "--endpoint", fake.address, *FLAGS)
    assert done.code == 0, done.output
    config = json.loads((done.folder / "config.json").read_text())
    assert config["plan"]["config"]["max_in_flight"] <= 8
    assert tells(done.output, "full at 8 in flight")
    assert done.summary["run"]["performance"]["samples"] > 0


@pytest.mark.slow
def test_a_server_that_stops_answering_ends_a_search(tmp_path: Path) -> None:
    with serving(Fake(gone_after=60, full="503", delay_s=0.05)) as fake:
        done = run(tmp_path, "--endpoint", fake.address, *FLAGS)
    assert done.code == 3 and tells(done.output, "503", "it is not full")
