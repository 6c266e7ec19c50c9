"""The flags of the engine's profiler."""

from collections.abc import Collection
from dataclasses import dataclass

from harness.common.errors import UsageError
from harness.config.flags import OUTPUT, flag


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
