"""The rates LoadGen must be told before a test, found on the loaded engine or in earlier runs."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Literal

from harness.config import Plan, RunConfig
from harness.errors import NotAcceptedError
from harness.search import MARGIN, SURE_QUERIES, Probe, highest
from harness.sut import Engine, batched
from util_logs import LATE, UNSURE, Facts

SERVER_SHARE = 0.8  # of the Offline rate: leaves room for the bursts of random arrivals
# LoadGen plans for 1.1 x duration x rate. A trial sees the ramps at both ends more than a long run does, so the
# engine may prove faster than the trial; too few samples would make the run INVALID, too many only longer.
OFFLINE_MARGIN = 1.1
# LoadGen generates 2 x duration / latency queries for SingleStream and issues them all.
LATENCY_MARGIN = 1.5
SINGLE_STREAM_TRIAL = 10


@dataclass(frozen=True)
class Trial:
    """What a short trial on the loaded engine found; the runner's own clock, so never a result."""

    samples: int
    seconds: float

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds


def needed(config: RunConfig) -> Literal["nothing", "offline", "server", "max", "singlestream"]:
    """Which rate is `auto` and will be wanted. LoadGen paces even a Server accuracy test."""
    if config.scenario == "offline":
        fixed = config.mode == "accuracy" or config.offline_expected_qps != "auto"
        return "nothing" if fixed else "offline"
    if config.scenario == "singlestream":
        return "nothing" if config.mode == "accuracy" else "singlestream"
    if config.server_target_qps == "max":
        return "max"
    return "nothing" if config.server_target_qps != "auto" else "server"


def from_history(plan: Plan, gpus: list[str], history: Iterable[dict[str, Any]]) -> Plan | None:
    """The Server rate from the last VALID Offline run of the same model, number formats and parallelism, on `gpus`."""
    mine = identity(plan) | {"gpus": gpus, "category": plan.config.category, "scenario": "offline", "valid": True}
    last = None
    for line in history:
        same = all(line.get(key) == value for key, value in mine.items()) and not line.get("batch_size")
        if same and line.get("tokens_per_sec") and line.get("mean_new_tokens"):
            last = line
    if last is None:
        return None
    requests = last["tokens_per_sec"] / last["mean_new_tokens"]
    qps = SERVER_SHARE * requests
    return plan.noted(
        f"server target: {qps:.4g} queries/s = {SERVER_SHARE} x {last['tokens_per_sec']:,.1f} tokens/s / "
        f"{last['mean_new_tokens']:.1f} tokens a request, from Offline run {last['run']}",
        target_qps=qps,
    )


def tries(config: RunConfig) -> int:
    """How often a performance test is run at most when its rate turns out to be wrong: a measured rate is told once,
    one that a search found may be lowered twice."""
    return 3 if needed(config) == "max" else 2


def identity(plan: Plan) -> dict[str, Any]:
    """What must be the same for one run's rate to serve another."""
    config = plan.config
    return {
        "model": config.model,
        "load_format": config.load_format,
        "precision": config.precision,
        "quantization": plan.running.quantization,
        "kv_cache_dtype": plan.running.kv_cache_dtype,
        "max_new_tokens": config.max_new_tokens,
        "tensor_parallel_size": plan.tensor_parallel_size,
        "data_parallel_size": plan.data_parallel_size,
    }


def trial_prompts(plan: Plan, prompts: list[list[int]], concurrency: int) -> list[list[int]]:
    """Which samples to try: one full load of the engine, or a few one by one for SingleStream."""
    if plan.config.scenario == "singlestream":
        return prompts[:SINGLE_STREAM_TRIAL]
    if plan.config.batch_size:
        return prompts[: plan.config.batch_size]
    return list(islice(cycle(prompts), concurrency))


def trial_batch(plan: Plan) -> int | None:
    return 1 if plan.config.scenario == "singlestream" else plan.config.batch_size


async def trial(engine: Engine, prompts: Sequence[list[int]], batch_size: int | None) -> Trial:
    """Warms up on a few prompts, then answers all of them: together, or in batches as the run itself will."""
    await asyncio.gather(*map(engine.generate, prompts[: batch_size or 4]))
    begin = time.perf_counter()
    for batch in batched(prompts, batch_size or len(prompts)):
        await asyncio.gather(*map(engine.generate, batch))
    return Trial(len(prompts), time.perf_counter() - begin)


def from_trial(plan: Plan, trial: Trial) -> Plan:
    """The plan with its rate, and a note that says where the rate comes from."""
    found = f"{trial.samples_per_s:.4g} samples/s in a trial of {trial.samples:,} samples ({trial.seconds:.1f} s)"
    if plan.config.scenario == "singlestream":
        mean = 1000 * trial.seconds / trial.samples
        expected = LATENCY_MARGIN * mean
        return plan.noted(
            f"expected latency: LoadGen is told {expected:.4g} ms = {LATENCY_MARGIN} x {mean:.4g} ms, the mean of "
            f"{trial.samples} samples",
            expected_latency_ms=expected,
        )
    if plan.config.scenario == "offline":
        rate = OFFLINE_MARGIN * trial.samples_per_s
        return plan.noted(
            f"offline rate: LoadGen is told {rate:.4g} samples/s = {OFFLINE_MARGIN} x {found}", target_qps=rate
        )
    rate = SERVER_SHARE * trial.samples_per_s
    return plan.noted(
        f"server target: {rate:.4g} queries/s = {SERVER_SHARE} x {found}; no finished Offline run to go by",
        target_qps=rate,
    )


def from_search(plan: Plan, probes: list[Probe]) -> Plan:
    """The plan with the highest rate that held, a little lower. Raises NotAcceptedError where none did."""
    tried = f"{len(probes)} probes from {min(p.qps for p in probes):.4g} to {max(p.qps for p in probes):.4g} queries/s"
    best = highest(probes)
    if best is None:
        raise NotAcceptedError(f"no rate is VALID: {tried}, in Probes/. Give one to run all the same.")
    rate = MARGIN * best.qps
    found = f"{MARGIN} x {best.qps:.4g}, the highest VALID of {tried}"
    return plan.noted(f"server target: {rate:.4g} queries/s = {found}", target_qps=rate)


def corrected(plan: Plan, facts: Facts) -> Plan | None:
    """The plan for another try: the trial was off so far that LoadGen had too few queries for its duration, or the
    rate that a search found did not hold for a whole run."""
    unsure = UNSURE in facts.invalid_reasons and (facts.queries or 0) >= SURE_QUERIES  # else it was too short
    if needed(plan.config) == "max" and (unsure or LATE in facts.invalid_reasons) and plan.target_qps:
        rate = MARGIN * plan.target_qps
        return plan.noted(
            f"server target: {plan.target_qps:.4g} queries/s was INVALID over {facts.duration_s:.1f} s; "
            f"the next try is {rate:.4g}",
            target_qps=rate,
        )
    if not (facts.ran_short and facts.samples_per_s) or needed(plan.config) not in ("offline", "singlestream"):
        return None
    found = (
        f"the first test, told too little, ended after {facts.duration_s:.1f} s at {facts.samples_per_s:.4g} samples/s"
    )
    if plan.config.scenario == "singlestream":
        expected = LATENCY_MARGIN * 1000 / facts.samples_per_s
        return plan.noted(
            f"expected latency: {found}; the second is told {expected:.4g} ms", expected_latency_ms=expected
        )
    rate = OFFLINE_MARGIN * facts.samples_per_s
    return plan.noted(f"offline rate: {found}; the second is told {rate:.4g} samples/s", target_qps=rate)
