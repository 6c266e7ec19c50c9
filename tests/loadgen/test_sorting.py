"""--sort-by-length within the passes of an Offline query, as real LoadGen issues them."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import mlperf_loadgen as lg
import pytest

from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.engines.echo import Echo
from harness.engines.protocol import Sampling
from harness.loadgen import loadgen_test, sending
from harness.loadgen.sut import SUT
from harness.workloads.sample_library import Library

SAMPLES, PASSES = 64, 5


class Listening(Echo):
    """Notes the samples that it is asked for: a prompt begins with its sample's number."""

    def __init__(self) -> None:
        super().__init__(Sampling(max_new_tokens=1), first_token_s=0, token_s=0)
        self.asked: list[int] = []

    async def stream(self, prompt: list[int], *_: object) -> AsyncIterator[Sequence[int]]:
        self.asked.append(prompt[0])
        yield prompt[:1]


def issued(folder: Path, sort: bool, batch_size: int | None = None) -> tuple[list[int], list[int]]:
    """The samples of a query of five passes as LoadGen issues them, and as the engine is asked for them."""
    settings = lg.TestSettings()
    settings.scenario = lg.TestScenario.Offline
    settings.min_query_count, settings.min_duration_ms = PASSES * SAMPLES, 0
    settings.sample_concatenate_permutation = True
    engine = Listening()
    engine.start()
    library = Library([[index] * (1 + index % 9) for index in range(SAMPLES)], "")
    plan = resolve(RunConfig(model="demo", batch_size=batch_size, sort_by_length=sort), [], 0)
    sender = sending.loadgen_sender(plan, library, timed=True)
    system = SUT(engine, library, sender, streams=False)
    loadgen_test.run_test("performance", settings, system, SAMPLES, folder, lambda: None)
    engine.close()
    return [request.sample for request in system.requests], engine.asked


def beside_a_copy(asked: Sequence[int]) -> int:
    return sum(index in asked[max(0, n - 1) : n] + asked[n + 1 : n + 2] for n, index in enumerate(asked))


@pytest.mark.parametrize("batch_size", [None, 10])
def test_a_sample_is_sorted_within_its_pass(tmp_path: Path, batch_size: int | None) -> None:
    order, asked = issued(tmp_path, sort=True, batch_size=batch_size)
    assert len(asked) == PASSES * SAMPLES
    for start in range(0, len(asked), SAMPLES):
        one = asked[start : start + SAMPLES]
        assert sorted(one) == list(range(SAMPLES)) == sorted(order[start : start + SAMPLES])
        assert [index % 9 for index in one] == sorted((index % 9 for index in one), reverse=True)
    assert beside_a_copy(asked) <= PASSES  # where one pass ends with what the next begins with


def test_without_sorting_the_engine_is_asked_in_the_order_of_issue(tmp_path: Path) -> None:
    order, asked = issued(tmp_path, sort=False)
    assert order == asked
