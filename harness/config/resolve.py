"""Resolve every `auto` setting of a run that needs no engine."""

from collections.abc import Sequence
from dataclasses import replace

from harness.config import mlperf
from harness.config.arrival_patterns import Replay
from harness.config.parallelism import parallelism
from harness.config.patterns import Batched
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.config.setting_types import LONGEST_SETTING_S
from harness.config.workload import RequestSet
from harness.core.errors import UsageError
from harness.core.formatting import plural
from harness.core.nvml import GPU


def resolve(
    config: RunConfig,
    gpus: Sequence[GPU],
    weight_bytes: int,
    reference_model: bool = True,
    request_set: RequestSet | None = None,
    random_weights: bool = False,
) -> Plan:
    """Return the plan with every `auto` resolved except the rates, which only a loaded engine can tell.

    `request_set` replaces MLPerf's samples. Raises UsageError for too few samples, too long a request or test, or too
    few GPUs.
    """
    notes: list[str] = []  # for the report: how each `auto` was resolved. Some of the helpers add to it.
    task, replay = config.task, None  # `replay` is the description of a recorded trace's arrivals.
    if request_set:
        task, replay = replace(task, samples=request_set.samples), request_set.replay
    count = sample_count(config, task, replay, notes)
    gpus_per_copy = copies = 1  # Behind an endpoint, the server decides how to use its GPUs.
    if config.is_in_process:
        gpus_per_copy, copies = parallelism(config, gpus, weight_bytes)
    seconds = least_duration_s(config, task, count, request_set, notes)
    if gpus and config.is_in_process and "auto" in (config.tensor_parallel_size, config.data_parallel_size):
        notes.append(
            f"parallelism: {len(gpus)} visible GPU(s), weights of {weight_bytes / 2**30:.1f} GiB: "
            f"tensor parallel {gpus_per_copy}, data parallel {copies}"
        )
    return Plan(
        config=config,
        task=task,
        samples=count,
        min_duration_s=seconds,
        max_model_len=context_length(config, request_set),
        tensor_parallel_size=gpus_per_copy,
        data_parallel_size=copies,
        seeds=run_seeds(config),
        reference_model=reference_model,
        random_weights=random_weights,
        notes=tuple(notes),
        target_qps=known_rate(config, count, replay),
        samples_per_query=query_samples(config, count),
        concurrency=config.highest_level or None,  # 0: the user gave no number of requests in flight
        request_set=request_set,
    )


def run_seeds(config: RunConfig) -> mlperf.Seeds:
    """Return the seeds of LoadGen's three generators of random numbers: --seed for each, or else those of the round."""
    if config.seed is None:
        return mlperf.SEEDS_BY_ROUND[config.round]
    return mlperf.Seeds(config.seed, config.seed, config.seed)


def sample_count(config: RunConfig, task: mlperf.Task, replay: Replay | None, notes: list[str]) -> int:
    """Return how many samples the run uses: as many as the user asked for, else all of the task.

    Raises UsageError if a data set has fewer. A trace may have fewer, with a note in `notes`.
    """
    count = config.sample_limit or task.samples
    if count <= task.samples:
        return count
    if not replay:
        raise UsageError(f"--total-sample-count {count}: this data set has {task.samples:,} samples.")
    notes.append(f"samples: {task.samples:,} of {count:,}: the trace has no more that can be sent in this time")
    return task.samples


def least_duration_s(
    config: RunConfig, task: mlperf.Task, count: int, request_set: RequestSet | None, notes: list[str]
) -> float:
    """Return the minimum duration in seconds: the user's, or else that of the trace or of the task.

    The task's duration is reduced in proportion if only `count` samples are used, with a note in `notes`.
    """
    given_s = None if config.min_duration == "auto" else config.min_duration
    if request_set and request_set.replay:  # A trace may end before the user's or the task's duration.
        return request_set.replay.least_s(given_s)
    if given_s is not None:
        return given_s
    full_s = task.min_duration_s
    # These tests repeat their samples until the time is over, so the number of samples does not matter.
    if request_set or config.scenario_rules.pattern.is_timed_by_client:
        return full_s
    share = count / task.samples
    reduced_s = max(1.0, round(full_s * share, 1))
    if reduced_s != full_s:
        notes.append(f"minimum duration: {reduced_s:g} s = {full_s:g} s x {count:,} / {task.samples:,}")
    return reduced_s


def query_samples(config: RunConfig, count: int) -> int:
    """Return the number of samples in a query: 1, except in MultiStream, where the user gives the number.

    If the user gives several, the run itself uses the largest. Raises UsageError if the run has fewer samples (`count`)
    than that.
    """
    if not isinstance(config.scenario_rules.pattern, Batched):
        return 1
    most = config.samples_per_query
    if isinstance(most, tuple):
        most = max(most)
    if most > count:
        raise UsageError(f"--samples-per-query {most}: this run has {plural(count, 'sample')}.")
    return most


def known_rate(config: RunConfig, count: int, replay: Replay | None) -> float | None:
    """Return the queries a second, or None if they are not one number that is known before the engine is loaded.

    Raises UsageError if a test of `count` queries would take too long.
    """
    rate = given_rate(config, replay)
    lowest = min(rate) if isinstance(rate, tuple) else rate  # At the lowest rate, a test takes longest.
    if config.scenario_rules.pattern.is_rated and isinstance(lowest, float):
        check_duration(config, count, lowest)
    return rate if isinstance(rate, float) else None


def given_rate(config: RunConfig, replay: Replay | None) -> float | str | tuple[float, ...] | None:
    """Return the rate as it is given: a number, several numbers, or a word such as "auto".

    None if the load is given by a number of samples or of requests in flight.
    """
    if replay:
        return replay.rate
    rate_flag = config.scenario_rules.pattern.rate_flag
    if not rate_flag.endswith("_qps"):
        return None
    rate: float | str | tuple[float, ...] | None = getattr(config, rate_flag)
    if rate == "auto" and config.rate_ends:
        return sum(config.rate_ends) / 2  # the mean of a ramp's two ends
    return rate


def check_duration(config: RunConfig, count: int, rate: float) -> None:
    """Raise UsageError if `count` queries at this rate would take longer than LONGEST_SETTING_S.

    The message names the flag that the rate comes from.
    """
    seconds = count / rate
    if seconds <= LONGEST_SETTING_S:
        return
    flag = f"--server-target-qps {rate:g}"
    if config.has_own_rate:
        flag = f"--arrivals {config.arrivals}"
    raise UsageError(f"{flag}: {count:,} queries would take {seconds / 86400:,.0f} days.")


def context_length(config: RunConfig, request_set: RequestSet | None) -> int:
    """Return the context: how many tokens a prompt and its answer may have together.

    Raises UsageError if the user's context is longer than the model supports, or if a request is longer than either.
    """
    supported, given_context = config.model_spec.positions, config.max_model_len
    if given_context != "auto" and supported and given_context > supported:
        raise UsageError(
            f"--max-model-len {given_context}: the {config.model} model knows contexts of {supported} tokens at most."
        )
    if request_set and given_context != "auto":
        request_set.check_context(given_context, f"--max-model-len is {given_context:,}")
    if request_set and supported:
        request_set.check_context(supported, f"the {config.model} model knows {supported:,} at most")
    if given_context != "auto":
        return given_context
    longest_request = request_set.longest if request_set else 0
    return max(config.model_spec.context, longest_request)
