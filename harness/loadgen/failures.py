"""Requests of a trial that fail and, with --max-failed, do not end the run."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.common.errors import EndpointError
from harness.config.endpoint import may_fail
from harness.engines.protocol import Engine


@dataclass
class Sparing:
    """An engine of whose requests in a trial some may fail, as of a test; but no fewer than one."""

    engine: Engine
    most: int = 0

    @classmethod
    def of(cls, engine: Engine, max_failed: str, requests: int) -> "Sparing":
        return cls(engine, max(1, may_fail(max_failed, requests)) if may_fail(max_failed, 10**9) else 0)

    def spare(self, error: EndpointError) -> None:
        self.most -= 1
        if self.most < 0:
            raise error

    async def generate(self, *request: Any) -> Sequence[int]:
        try:
            return await self.engine.generate(*request)
        except EndpointError as error:
            self.spare(error)
            return []

    async def stream(self, *request: Any) -> AsyncIterator[Sequence[int]]:
        try:
            async for tokens in self.engine.stream(*request):
                yield tokens
        except EndpointError as error:
            self.spare(error)
