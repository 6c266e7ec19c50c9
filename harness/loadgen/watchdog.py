"""Notices an engine that is alive and silent: nothing else would, since LoadGen waits for ever."""

import time
from pathlib import Path

from harness.core.errors import EngineError
from harness.core.files import check_space
from harness.engines.protocol import Engine

PATIENCE_FACTOR = 20  # patience is so many times the longest wait for an answer so far
PAUSED_S = 5.0  # between two checks, which come many times a second
FIRST_ANSWER_FACTOR = 4  # the first answer gets so many times the patience, since nobody knows how long it takes
# An engine that starts gets so many times the patience, and at least START_S, since its disk may be slow.
START_FACTOR, START_S = 6, 300.0


class Silence:
    """The time for which a mark has been the same that whoever is alive changes; time in which this process did not run
    itself, stopped and continued, does not count.
    """

    def __init__(self, mark: object, timeout_s: float) -> None:
        self.mark, self.timeout_s, self.longest_s = mark, timeout_s, 0.0
        self.restart_stall_timer()

    def restart_stall_timer(self) -> None:
        """Start to measure the silence anew."""
        self.since = self.looked_at = time.monotonic()

    def look(self, mark: object) -> float:
        """Return for how many seconds the mark has been the same. Must be called many times a second."""
        now = time.monotonic()
        if now - self.looked_at > PAUSED_S:
            self.since += now - self.looked_at
        self.looked_at = now
        if mark != self.mark:
            self.longest_s = max(self.longest_s, now - self.since)
            self.mark, self.since = mark, now
        return now - self.since


class Watchdog(Silence):
    """Measures how long a busy engine has not answered anything; `check` is called many times a second."""

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        super().__init__(engine.last_response_at, timeout_s)
        self.engine = engine

    @property
    def limit_s(self) -> float:
        """The number of seconds for which the engine may be silent now."""
        if not self.longest_s:  # no answer yet
            return FIRST_ANSWER_FACTOR * self.timeout_s
        return max(self.timeout_s, PATIENCE_FACTOR * self.longest_s)

    def check_progress(self) -> None:
        """Raise EngineError if the engine has been silent for too long."""
        silent_s = self.look(self.engine.last_response_at)
        if silent_s > self.limit_s:
            raise EngineError(
                f"no response from {self.engine.name} for {silent_s:.0f} s: assuming it hangs. If it is only slow, "
                f"raise --stall-timeout (now {self.timeout_s:g})"
            )

    def check_run(self, folder: Path, busy: bool = True) -> None:
        """Raise an error if the engine failed, stopped making progress, or the disk is full.

        LoadGen itself would wait forever. Progress is expected of an engine that is `busy` with requests.
        """
        if self.engine.failure:
            raise EngineError(self.engine.failure_text)
        if busy:
            self.check_progress()
        else:
            self.restart_stall_timer()
        check_space(folder)


class StartWatch(Silence):
    """Notices an engine whose start has stopped: neither its log nor its processes go on."""

    def __init__(self, log: Path, timeout_s: float) -> None:
        super().__init__(None, max(START_FACTOR * timeout_s, START_S))
        self.log = log

    def check_progress(self) -> None:
        """Raise EngineError if the log has not grown for too long."""
        size = self.log.stat().st_size if self.log.exists() else 0
        if self.look(size) > self.timeout_s:
            raise EngineError(
                f"the engine has printed nothing for {self.timeout_s:.0f} s while starting: assuming it hangs"
            )
