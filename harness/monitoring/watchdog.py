"""Notices an engine that is alive and silent: nothing else would, since LoadGen waits for ever."""

import time
from pathlib import Path

from harness.common.errors import EngineError
from harness.engines.protocol import Engine

PATIENCE_FACTOR = 20  # of the longest wait for an answer so far
PAUSED_S = 5.0  # between two checks, which come many times a second
FIRST_ANSWER_FACTOR = 4  # as much patience for the first answer of all, whose length nobody knows
START_FACTOR, START_S = 6, 300.0  # for an engine that starts, maybe from a slow disk: as much, but no less than


class Watchdog:
    """Measures how long a busy engine has not answered anything; `check` is called many times a second."""

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        self.engine = engine
        self.timeout_s = timeout_s
        self.longest_s = 0.0
        self._since = self._checked = time.monotonic()
        self._last_response_at = engine.last_response_at

    @property
    def limit_s(self) -> float:
        """How long the engine may be silent now."""
        first = self.longest_s == 0
        return max(self.timeout_s * (FIRST_ANSWER_FACTOR if first else 1), PATIENCE_FACTOR * self.longest_s)

    @property
    def silent_s(self) -> float:
        """How long a busy engine has answered nothing, as far as the last `check` knows."""
        return time.monotonic() - self._since

    def reset(self) -> None:
        """Begins anew: the engine has no request now."""
        self._since = self._checked = time.monotonic()

    def check(self) -> None:
        """Raises EngineError where the engine has been silent for too long; time in which this process did not run
        itself, stopped and continued, is no silence."""
        now, last_response_at = time.monotonic(), self.engine.last_response_at
        if now - self._checked > PAUSED_S:
            self._since += now - self._checked
        self._checked = now
        if last_response_at != self._last_response_at:
            self.longest_s = max(self.longest_s, last_response_at - self._since)
            self._last_response_at = last_response_at
            self._since = max(self._since, last_response_at)
        if (silent_s := self.silent_s) > self.limit_s:
            raise EngineError(
                f"no response from {self.engine.name} for {silent_s:.0f} s: assuming it hangs. If it is only slow, "
                f"raise --stall-timeout (now {self.timeout_s:g})"
            )


class StartWatch:
    """Notices an engine whose start has stopped: neither its log nor its processes go on."""

    def __init__(self, log: Path, timeout_s: float) -> None:
        self.log = log
        self.timeout_s = max(START_FACTOR * timeout_s, START_S)
        self._size = -1
        self._since = self._checked = time.monotonic()

    def check(self) -> None:
        """Raises EngineError where the log has not grown for too long, this process's own pauses left out."""
        now = time.monotonic()
        if now - self._checked > PAUSED_S:
            self._since += now - self._checked
        self._checked = now
        size = self.log.stat().st_size if self.log.exists() else 0
        if size != self._size:
            self._size, self._since = size, time.monotonic()
        elif time.monotonic() - self._since > self.timeout_s:
            raise EngineError(
                f"the engine has printed nothing for {self.timeout_s:.0f} s while starting: assuming it hangs"
            )
