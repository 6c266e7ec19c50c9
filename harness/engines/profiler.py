"""How vLLM's torch profiler is set up, and what does not go with it."""

from pathlib import Path

STEPS = 200  # of the engine at most: enough to see each kind of work, and a trace below some hundred MB


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
