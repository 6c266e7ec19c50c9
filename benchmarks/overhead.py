"""What the harness itself costs: LoadGen -> SUT -> LoadGen with an engine that answers at once.

    python -m benchmarks.overhead

Each scenario runs in its own process, on one core where the system can pin it. CPU time is that of the whole
process, LoadGen's threads included, from the first query to the last; queries per second are LoadGen's own.
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
from typing import Any

from benchmarks.start import start
from harness.engines.answer_delivery import Exchange
from harness.engines.protocol import Engine
from harness.loadgen import loadgen_test

ANSWER = list(range(128))
SAMPLES = 13368
OFFLINE_QPS, SERVER_QPS, SECONDS = 20_000, 10_000, 10


class InstantEngine(Engine):
    """An engine whose answers are always there already."""

    async def stream(
        self,
        prompt: list[int],
        max_new_tokens: int | None = None,
        exchange: Exchange | None = None,
        is_whole: bool = False,
    ) -> AsyncIterator[Sequence[int]]:
        for part in [ANSWER] if is_whole else [ANSWER[:1], ANSWER[1:]]:
            yield part


def measure(scenario: str) -> dict[str, float]:
    """Runs one performance test of `scenario` against the instant engine."""
    from harness.config.resolve import resolve
    from harness.config.run import RunConfig
    from harness.loadgen import log as loadgen_log
    from harness.loadgen.sut import make_sut
    from harness.workloads.sample_library import Library

    rates = {"offline": {"offline_expected_qps": OFFLINE_QPS}, "server": {"server_target_qps": SERVER_QPS}}
    given: dict[str, Any] = {"scenario": scenario, "min_duration": SECONDS, **rates[scenario]}
    config = RunConfig(**given)
    plan = resolve(config, gpus=[], weight_bytes=0)
    library = Library([[1] * 778] * SAMPLES, "one prompt")
    engine = InstantEngine()
    engine.start()
    tested = make_sut(engine, library, plan, timed=True, expected=0)
    with tempfile.TemporaryDirectory() as folder:
        settings = loadgen_test.LoadGenSettings().prepare(plan, Path(folder))
        before = time.process_time()
        loadgen_test.run_test("performance", settings, tested, SAMPLES, Path(folder), lambda: None)
        used = time.process_time() - before
        facts = loadgen_log.read(Path(folder))
    assert facts.samples and facts.samples_per_sec and facts.latency_ms
    return {
        "queries": facts.samples,
        "queries_per_sec": facts.samples_per_sec,
        "cpu_us_per_query": 1e6 * used / facts.samples,
        "p99_ms": facts.latency_ms.p99,
        "target": facts.target_qps or 0,
    }


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument(
        "scenario", choices=("offline", "server"), nargs="?", help="alone, in this process; else both, each in its own"
    )
    return flags


def main() -> None:
    given = parser().parse_args()
    if given.scenario:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print(json.dumps(measure(given.scenario)))
        return
    print(f"{'scenario':10} {'queries':>9} {'queries/s':>10} {'CPU us/query':>13} {'p99 latency ms':>15}")
    for scenario in ("offline", "server"):
        output = subprocess.run(
            [sys.executable, "-m", "benchmarks.overhead", scenario], capture_output=True, text=True, check=True
        ).stdout
        cost = json.loads(output.splitlines()[-1])
        print(
            f"{scenario:10} {cost['queries']:9,.0f} {cost['queries_per_sec']:10,.0f} {cost['cpu_us_per_query']:13.1f} "
            f"{cost['p99_ms']:15.3f}"
        )


if __name__ == "__main__":
    start(main)
