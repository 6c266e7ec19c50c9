"""What the harness itself costs: LoadGen -> SUT -> LoadGen with an engine that answers at once.

    python -m benchmarks.overhead

Each scenario runs in its own process, on one core. CPU time is that of the whole process, LoadGen's threads included,
from the first query to the last; queries per second are those that LoadGen reports.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.start import start
from harness.engines.answer_delivery import Exchange
from harness.engines.protocol import Engine
from harness.loadgen import loadgen_test

SCENARIOS = ("offline", "server")
RATES = {"offline": {"offline_expected_qps": 20_000}, "server": {"server_target_qps": 10_000}}  # in queries/s
SECONDS = 10  # the length of a test
ANSWER = list(range(128))  # token ids
PROMPT_TOKENS = 778
SAMPLES = 13368


class InstantEngine(Engine):
    """An engine that answers at once."""

    async def stream(
        self,
        prompt: list[int],
        max_new_tokens: int | None = None,
        exchange: Exchange | None = None,
        is_whole: bool = False,
    ) -> AsyncIterator[Sequence[int]]:
        """Yield the answer whole, or its first token and then the rest."""
        if is_whole:
            yield ANSWER
        else:
            yield ANSWER[:1]
            yield ANSWER[1:]


class Cost(NamedTuple):
    """What a scenario costs. A process that measures one scenario prints it as JSON."""

    queries: int
    queries_per_sec: float
    cpu_us_per_query: float
    p99_ms: float  # the p99 of the latency
    target: float  # the rate in queries/s that LoadGen aims at


def measure(scenario: str) -> Cost:
    """Run one performance test of a scenario with the instant engine. Needs a process of its own."""
    from harness.config.resolve import resolve
    from harness.config.run import RunConfig
    from harness.loadgen import log as loadgen_log
    from harness.loadgen.sut import make_sut
    from harness.workloads.sample_library import Library

    settings: dict[str, Any] = {"scenario": scenario, "min_duration": SECONDS, **RATES[scenario]}
    plan = resolve(RunConfig(**settings), gpus=[], weight_bytes=0)
    library = Library([[1] * PROMPT_TOKENS] * SAMPLES, "one prompt")
    engine = InstantEngine()
    engine.start()
    sut = make_sut(engine, library, plan, timed=True, expected=0)
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        loadgen_settings = loadgen_test.LoadGenSettings().prepare(plan, folder)
        before_s = time.process_time()
        loadgen_test.run_test("performance", loadgen_settings, sut, SAMPLES, folder, lambda: None)
        cpu_s = time.process_time() - before_s
        result = loadgen_log.read(folder)
    assert result.samples and result.samples_per_sec and result.latency_ms
    return Cost(
        queries=result.samples,
        queries_per_sec=result.samples_per_sec,
        cpu_us_per_query=1e6 * cpu_s / result.samples,
        p99_ms=result.latency_ms.p99,
        target=result.target_qps or 0,
    )


def measure_in_process(scenario: str) -> Cost:
    """Measure a scenario in a new process."""
    command = [sys.executable, "-m", "benchmarks.overhead", scenario]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    last_line = process.stdout.splitlines()[-1]
    return Cost(**json.loads(last_line))


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument(
        "scenario",
        choices=SCENARIOS,
        nargs="?",
        help="measure only this scenario, in this process; without, both, each in its own process",
    )
    return flags


def main() -> None:
    scenario = parser().parse_args().scenario
    if scenario:
        last_core = max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {last_core})
        print(json.dumps(measure(scenario)._asdict()))
        return
    print(f"{'scenario':10} {'queries':>9} {'queries/s':>10} {'CPU us/query':>13} {'p99 latency ms':>15}")
    for scenario in SCENARIOS:
        cost = measure_in_process(scenario)
        print(
            f"{scenario:10} {cost.queries:9,.0f} {cost.queries_per_sec:10,.0f} {cost.cpu_us_per_query:13.1f} "
            f"{cost.p99_ms:15.3f}"
        )


if __name__ == "__main__":
    start(main)
