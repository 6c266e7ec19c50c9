"""What an engine makes of its arguments and the checkpoint."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineState:
    """What the engine makes of its arguments and the checkpoint; only the engine itself knows."""

    precision: str | None = None  # None: as configured
    quantization: str = "none"
    quantized_checkpoint: bool = False  # with scales from whoever made it
    kv_cache_dtype: str = "auto"
    prefix_caching: bool | None = False  # None: behind an endpoint
    cache_counted: bool = False  # whether a server tells how many prompt tokens came from its cache
    speculation: str | None = None  # the method
    effective_max_num_seqs: int | None = None  # what `auto` came to; None: not known
    effective_max_num_batched_tokens: int | None = None
    block_size: int | None = None
    kv_connector: str | None = None  # what else may hold attention caches, or make them up
