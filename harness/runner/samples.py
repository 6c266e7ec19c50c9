"""The plan and the samples of a run, before its engine starts."""

from harness.config import checkpoint, pretrained
from harness.config.plan import Plan
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.config.workload import HUB_PREFIX
from harness.core import nvml
from harness.core.tokenizer import Tokenizer
from harness.runner.rate import require_time
from harness.workloads import cnn_dailymail, custom
from harness.workloads.sample_library import Library


def prepare_plan(config: RunConfig, tokenizer: Tokenizer) -> tuple[Plan, Library | None]:
    """Return the plan as far as it needs no engine, and the samples of the user's workload.

    The samples are None if the run uses MLPerf's. Raises UsageError if the settings do not fit each other or the
    workload, or if --minutes is too short.
    """
    workload = custom.load(config, tokenizer)
    request_set = workload.request_set if workload else None
    has_random_weights = checkpoint.has_random_weights(config)
    plan = resolve(
        config,
        nvml.gpus(),
        checkpoint.weight_bytes(config),
        checkpoint.is_reference(config),
        request_set,
        has_random_weights,
    )
    require_time(plan)
    return plan, workload


def official_samples(plan: Plan, tokenizer: Tokenizer) -> Library:
    """Return MLPerf's samples for a plan. Raises UsageError if one of them does not fit the model's context."""
    library = cnn_dailymail.load(plan.config, tokenizer, plan.samples)
    cnn_dailymail.check_lengths(library, plan.max_model_len, plan.max_new_tokens)
    return library


def read_samples(config: RunConfig) -> tuple[Plan, Library]:
    """Return the plan, and the samples as the run will send them: MLPerf's or those of the user's workload.

    Raises UsageError if they cannot be read.
    """
    tokenizer = pretrained.load_tokenizer(config)
    plan, library = prepare_plan(config, tokenizer)
    if library is None:
        library = official_samples(plan, tokenizer)
    return plan, library


def are_local(config: RunConfig) -> bool:
    """Tell whether the samples need no download: they are in a file, come with this program, or are drawn at random."""
    if config.is_official_workload:
        return bool(config.dataset_path or config.model_spec.data)  # a file of the user's, or the demo's own data
    return not config.workload.startswith(HUB_PREFIX)
