"""An event loop on a thread of its own: what every engine here runs on."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

Result = TypeVar("Result")
EVERY_S = 0.1


class LoopThread:
    """Runs coroutines on its loop; `open_loop` before, `stop_loop` after."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.cautions: list[str] = []
        self.kernels: dict[str, str] = {}
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def open_loop(self) -> None:
        self._thread.start()

    def stop_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def spawn(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Runs a coroutine on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, future: "Future[Result]", watch: Callable[[], None]) -> Result:
        """The future's result, or what the work raised, a TimeoutError included; calls `watch` while it waits."""
        while not wait([future], timeout=EVERY_S).done:
            watch()
        return future.result()
