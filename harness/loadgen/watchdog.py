"""Notices an engine that is alive but silent. Nothing else would, since LoadGen waits forever."""

import time
from pathlib import Path

from harness.core.errors import EngineError
from harness.core.files import check_space
from harness.engines.protocol import Engine

PATIENCE_FACTOR = 20  # the engine may be silent for so many times the longest silence so far, if that is longer
PAUSED_S = 5.0  # checks come many times a second: after a longer pause, this process itself did not run meanwhile
FIRST_ANSWER_FACTOR = 4  # the first answer may take so many times --stall-timeout, since nobody knows how long it takes
# A start may be silent for so many times --stall-timeout, and at least START_S, since the engine's disk may be slow.
START_FACTOR, START_S = 6, 300.0


class Silence:
    """Measures for how long a mark, which a living program changes, has been the same. Time in which this process
    itself was stopped does not count.
    """

    def __init__(self, mark: object, timeout_s: float) -> None:
        """Begin to measure now how long a program is silent: how long its `mark` stays the same.

        `mark` is its present value, `timeout_s` the value of --stall-timeout.
        """
        self.mark, self.timeout_s, self.longest_s = mark, timeout_s, 0.0
        self.restart_stall_timer()

    def restart_stall_timer(self) -> None:
        """Start to measure the silence anew."""
        self.unchanged_since = self.looked_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """The seconds for which the mark had been the same when it was looked at last."""
        return self.looked_at - self.unchanged_since

    def seconds_unchanged(self, mark: object) -> float:
        """Note the present mark, and return for how many seconds it has been the same.

        The mark is anything that a living program changes. Must be called many times a second: a long pause between two
        calls means that this process was stopped.
        """
        now = time.monotonic()
        if now - self.looked_at > PAUSED_S:  # The time for which this process was stopped does not count as silence.
            self.unchanged_since += now - self.looked_at
        self.looked_at = now
        if mark != self.mark:
            self.longest_s = max(self.longest_s, now - self.unchanged_since)
            self.mark, self.unchanged_since = mark, now
        return self.silent_s


class Watchdog(Silence):
    """Measures how long a busy engine has not answered anything. `check_run` must be called many times a second."""

    def __init__(self, engine: Engine, timeout_s: float) -> None:
        """Watch an engine by the time of its last answer. `timeout_s` is the value of --stall-timeout."""
        super().__init__(engine.last_response_at, timeout_s)
        self.engine = engine

    @property
    def limit_s(self) -> float:
        """The number of seconds for which the engine may be silent now, without being assumed to hang.

        Before the first answer, it is several times --stall-timeout. Later it is --stall-timeout, or more for an engine
        that was silent for long earlier in the run and then answered.
        """
        if not self.longest_s:  # no answer yet
            return FIRST_ANSWER_FACTOR * self.timeout_s
        return max(self.timeout_s, PATIENCE_FACTOR * self.longest_s)

    def check_progress(self) -> None:
        """Raise EngineError if the engine has been silent for too long."""
        silent_s = self.seconds_unchanged(self.engine.last_response_at)
        if silent_s > self.limit_s:
            raise EngineError(
                f"no response from {self.engine.name} for {silent_s:.0f} s: assuming it hangs. If it is only slow, "
                f"raise --stall-timeout (now {self.timeout_s:g})"
            )

    def check_run(self, folder: Path, busy: bool = True) -> None:
        """Raise an error if the engine failed or makes no progress while `busy`, or if the disk of `folder` is full.

        LoadGen itself would wait forever.
        """
        if self.engine.failure:
            raise EngineError(self.engine.failure_text)
        if busy:
            self.check_progress()
        else:
            self.restart_stall_timer()
        check_space(folder)


class StartWatch(Silence):
    """Notices an engine whose start has stopped: its log does not grow."""

    def __init__(self, log: Path, timeout_s: float) -> None:
        """Watch the start of an engine by the size of its log. `timeout_s` is the value of --stall-timeout.

        A start may be silent for several times that value, since the engine's disk may be slow.
        """
        super().__init__(mark=None, timeout_s=max(START_FACTOR * timeout_s, START_S))  # mark: no size was read yet
        self.log = log

    def check_progress(self) -> None:
        """Raise EngineError if the engine's log has not grown for too long. A log that does not exist has no bytes."""
        size = self.log.stat().st_size if self.log.exists() else 0
        if self.seconds_unchanged(size) > self.timeout_s:
            raise EngineError(
                f"the engine has printed nothing for {self.timeout_s:.0f} s while starting: assuming it hangs"
            )
