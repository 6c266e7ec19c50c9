"""How vLLM's torch profiler is set up, and what does not go with it."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError
from harness.flags import OUTPUT, flag

STEPS = 200  # of the engine at most: enough to see each kind of work, and a trace below some hundred MB


@dataclass(frozen=True, kw_only=True)
class ProfileFlags:
    """The flag of `run.py` that asks for a profile."""

    profile: bool = flag(
        False, OUTPUT, "nothing", "After the tests, a short load under vLLM's profiler: where the engine's time goes."
    )

    def check_profile(self, mode: str, engine_args: Collection[str]) -> None:
        """Raises UsageError for what does not go with --profile."""
        if self.profile and mode == "accuracy":
            raise UsageError("--profile repeats the load of a performance test: it takes --mode performance or both.")
        if self.profile and "profiler_config" in engine_args:
            raise UsageError("--engine-arg profiler_config: --profile sets it.")


def args(traces: Path) -> dict[str, object]:
    """Arguments for vLLM's AsyncEngineArgs. The profiler costs nothing until `VLLM.profile` turns it on."""
    return {
        "profiler_config": {
            "profiler": "torch",
            "torch_profiler_dir": str(traces.resolve()),
            "torch_profiler_with_stack": False,  # most of a trace would be stacks
            "torch_profiler_dump_cuda_time_total": False,  # vLLM's own table: the engine would wait for it
            "ignore_frontend": True,  # the workers' traces hold the kernels
            "max_iterations": STEPS,
        }
    }
