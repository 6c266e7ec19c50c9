"""Faults planted into the real pipeline, one at a time, for the accuracy gate to see.

`python -m tests.support.fault_injection` runs each on the demo model and prints the table that stands in the docs;
`python -m tests.support.fault_injection edge` on the fewest samples that are a whole category.
"""

import os
import sys
import tempfile
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlperf_loadgen as lg
from datasets import Dataset
from rich.console import Console

from harness.config import checkpoint as model
from harness.config import pretrained
from harness.config.plan import Plan
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core import nvml
from harness.core.progress import Display, screen
from harness.engines.answer_delivery import Exchange
from harness.engines.protocol import Engine, Sampling
from harness.engines.vllm import VLLM
from harness.engines.vllm_arguments import engine_args_of
from harness.loadgen import loadgen_test, session
from harness.loadgen.requests import Request
from harness.loadgen.senders import Batches
from harness.loadgen.session import LoadGenSession
from harness.loadgen.sut import SUT
from harness.loadgen.watchdog import Watchdog
from harness.results.accuracy import Accuracy, evaluate_answers
from harness.runs import run_folder
from harness.workloads import cnn_dailymail as samples
from harness.workloads.sample_library import Library
from tests.support.fake_servers import whole


@dataclass
class Swapping(SUT):
    """Gives every two queries each other's answer."""

    waiting: list[tuple[Request, Sequence[int]]] = field(default_factory=list)

    def complete(self, request: Request, tokens: Sequence[int], exchange: Exchange) -> None:
        if not self.waiting:
            self.waiting.append((request, tokens))
            return
        other, theirs = self.waiting.pop()
        super().complete(request, theirs, exchange)
        super().complete(other, tokens, exchange)


@dataclass
class Altering(SUT):
    """Changes each answer on its way to LoadGen."""

    alter: Callable[[int, Sequence[int]], Sequence[int]] = lambda index, tokens: tokens

    def complete(self, request: Request, tokens: Sequence[int], exchange: Exchange) -> None:
        super().complete(request, self.alter(request.sample, tokens), exchange)


@dataclass
class Repeating(SUT):
    """Answers every query with the answer to the first one."""

    async def answer(self, request: Request) -> None:
        answer = await whole(self.engine.stream(self.library.prompts[0], is_whole=True))
        self.complete(request, answer, Exchange(0.0))


@dataclass
class Wide(SUT):
    """Sends int64 where LoadGen's log is read as int32."""

    def report(self, report: Any, id: int, tokens: Sequence[int], count: int = 0) -> None:
        data = array("q", tokens)
        address, length = data.buffer_info()
        report([lg.QuerySampleResponse(id, address, length * data.itemsize, length)])


def without_times(make: Callable[..., SUT], engine: Engine, library: Library, *_: object, **__: object) -> SUT:
    """The system under test of an accuracy test of Offline."""
    return make(engine, library, Batches(), streams=False, timed=False)


def shares(prompts: list[list[int]], share: float) -> list[list[int]]:
    return [prompt[: int(share * len(prompt))] for prompt in prompts]


def shuffled(prompts: list[list[int]]) -> list[list[int]]:
    order = Dataset.from_dict({"index": list(range(len(prompts)))}).shuffle(seed=42)["index"]
    return [prompts[index] for index in order]


class Remembering(VLLM):
    """Computes the greedy answer to a prompt once: most faults ask what the honest run asked."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args, Sampling(), streaming=False, patch_names=())
        self.model_spec: dict[tuple[Sampling, tuple[int, ...]], Sequence[int]] = {}

    async def stream(
        self,
        prompt: list[int],
        max_new_tokens: int | None = None,
        exchange: Exchange | None = None,
        is_whole: bool = False,
    ) -> AsyncIterator[Sequence[int]]:
        asked = (self.sampling.for_request(max_new_tokens), tuple(prompt))
        if asked not in self.model_spec or self.sampling.temperature:
            self.model_spec[asked] = await whole(super().stream(prompt, max_new_tokens, is_whole=True))
        yield self.model_spec[asked]


@dataclass(frozen=True)
class Fault:
    """One thing done wrong: other prompts, another SUT, or other sampling."""

    prompts: Callable[[list[list[int]]], list[list[int]]] = lambda prompts: prompts
    make: Callable[..., SUT] = SUT  # with the arguments of SUT
    sampling: Sampling = Sampling()


def altering(alter: Callable[[int, Sequence[int]], Sequence[int]]) -> Callable[..., SUT]:
    return partial(Altering, alter=alter)


FAULTS = {
    "responses swapped between queries": Fault(make=Swapping),
    "prompts cut to 60 %": Fault(prompts=lambda prompts: shares(prompts, 0.6)),
    "last 20 % of prompt tokens dropped": Fault(prompts=lambda prompts: shares(prompts, 0.8)),
    "first token lost": Fault(make=altering(lambda index, tokens: tokens[1:])),
    "int64 for int32": Fault(make=Wide),
    "one sample's answer given to all": Fault(make=Repeating),
    "sampling at temperature 1": Fault(sampling=Sampling(temperature=1.0)),
    "64 new tokens for 128": Fault(sampling=Sampling(max_new_tokens=64)),
    "a quarter of the answers empty": Fault(make=altering(lambda index, tokens: () if index % 4 == 3 else tokens)),
    "samples in another order than the references": Fault(prompts=shuffled),
}


class Laboratory:
    """The demo model on one engine, on which one fault after the other is tried."""

    def __init__(self, results_dir: Path, category: str = "datacenter") -> None:
        config = RunConfig(model="demo", mode="accuracy", category=category, results_dir=results_dir)
        self.plan: Plan = resolve(config, nvml.gpus(), model.weight_bytes(config))
        self.tokenizer = pretrained.load_tokenizer(config)
        self.library: Library = samples.load(config, self.tokenizer, self.plan.samples)
        self.engine = Remembering(engine_args_of(self.plan))
        self.engine.start()
        self.settings = loadgen_test.LoadGenSettings()

    def score(self, fault: Fault) -> Accuracy:
        """Runs LoadGen's accuracy test with the fault in place and judges what comes out."""
        run = run_folder.open_run(self.plan.config.results_dir, "fault")
        library = replace(self.library, prompts=fault.prompts(self.library.prompts))
        watchdog = Watchdog(self.engine, self.plan.config.stall_timeout)
        bench = LoadGenSession(run, self.engine, library, Display(Console(quiet=True)), watchdog)
        bench.settings = self.settings
        self.engine.sampling = fault.sampling
        with patch.object(session, "make_sut", partial(without_times, fault.make)):
            folder = bench.test("accuracy", self.plan)
        return evaluate_answers(folder, self.plan, self.library, self.tokenizer)


@contextmanager
def laboratory(category: str = "datacenter") -> Iterator[Laboratory]:
    with tempfile.TemporaryDirectory() as folder:
        lab = Laboratory(Path(folder), category)
        try:
            yield lab
        finally:
            lab.engine.close()


def main() -> None:
    with screen(Path(os.devnull)) as (console, _), laboratory(*sys.argv[1:]) as lab:
        console.print("| fault | ROUGE-1 | ROUGE-2 | ROUGE-L | ROUGE-Lsum | gen_len | verdict |")
        console.print("|---|---|---|---|---|---|---|")
        for name, fault in {"none": Fault(), **FAULTS}.items():
            found = lab.score(fault)
            scores = " | ".join(f"{check.score:,.2f}" for check in found.checks[:4])
            length = f"{found.checks[4].score:,.0f}"
            console.print(f"| {name} | {scores} | {length} | {found.verdict} |", soft_wrap=True)


if __name__ == "__main__":
    main()
