"""What an engine makes of its arguments and the checkpoint."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class EngineState:
    """What the engine makes of its arguments and the checkpoint; only the engine itself knows."""

    precision: str | None = None  # None: as configured
    quantization: str = "none"
    quantized_checkpoint: bool = False  # with scales from whoever made it
    kv_cache_dtype: str = "auto"
    prefix_caching: bool | None = False  # None: cannot be seen
    speculation: str | None = None  # the method
    kv_connector: str | None = None  # what else may hold attention caches, or make them up
