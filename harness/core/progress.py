"""The progress that a person sees: a live line on a terminal, plain lines now and then elsewhere."""

import errno
import io
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from harness.core.formatting import number
from harness.core.message_text import printable_text
from harness.core.secrets import hide_text

LIVE_EVERY_S, PLAIN_EVERY_S = 0.25, 15.0  # between two refreshes of the live line, and between two plain lines
StageKind = Literal["other", "load", "accuracy", "performance"]
RECENT_S = 60.0  # the time that is left is estimated from the answers of the last minute
FIGURE_WIDTH = 8  # characters of a figure in a row, at least
CLOCK_WIDTH = len("10:15:00 ")  # characters of the time of day before a line


@dataclass
class Counters:
    """The counts that the display shows while a test runs. Results never come from here."""

    issued: int = 0
    started: int = 0  # answers whose first token came
    completed: int = 0
    tokens: int = 0
    first_token_s: float = 0.0  # the sum of the times to these first tokens


class Stage(NamedTuple):
    """A part of a run. `start_s` are the seconds from the run's start to its beginning. `kind` says whether the engine
    answers requests in it: of LoadGen's accuracy or performance test, of another load, or none.
    """

    name: str
    start_s: float
    kind: StageKind = "other"


class Display:
    """Shows the stage of a run. `tick` costs next to nothing and may be called at any rate."""

    def __init__(self, console: Console) -> None:
        """Prepare the display. It has a live line if the console is a terminal, and prints plain lines otherwise."""
        self.console = console
        self._stage = ""
        self._has_line = True  # whether a line about the current stage stays on the screen; true before the first stage
        self._head: Sequence[str] = ()  # the head of the last table of which a row was printed
        self._start = self._stage_start = self._last_refresh = time.monotonic()
        self._answer_counts = deque([(0.0, 0)])  # seconds since the stage began, with the answers until then
        self.stages: list[Stage] = []
        self._progress = ""  # what the last `tick` told of the stage
        self._live = None
        if console.is_terminal:
            # Rich must not show what libraries print (redirect_...): that belongs in the log. Its thread shows the line
            # once a second, so that the clock goes on in a stage without ticks, such as the scoring of answers.
            self._live = Live(
                console=console,
                get_renderable=self._live_line,
                refresh_per_second=1,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> "Display":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def stage(self, text: str, kind: StageKind = "other", why: str = "") -> None:
        """Begin a new stage with the name `text`, and print `why` it is run, if that is given.

        `kind` says whether the engine answers requests in the stage, and the requests of which test.
        """
        # The live line of the stage that ends disappears. If nothing was printed in that stage, print how long it took.
        if self._live and not self._has_line:
            duration = clock(time.monotonic() - self._stage_start)
            self.say(f"{time.strftime('%H:%M:%S')} {self._stage}, {duration}", style="dim")
        self._stage, self._progress, self._has_line = text, "", False
        self._stage_start = time.monotonic()
        # A live line shows the new stage at once (`tick`). Without one, a line is printed below.
        self._last_refresh = -math.inf if self._live else self._stage_start
        self._answer_counts = deque([(0.0, 0)])  # no answers after 0 seconds
        self.stages.append(Stage(text, round(self._stage_start - self._start, 1), kind))
        if not self._live:
            self.say(f"{time.strftime('%H:%M:%S')} {text}")
        if why:
            self.say(" " * CLOCK_WIDTH + why, style="dim")
        self.tick()

    def leave_line(self, text: str) -> None:
        """Print a line about the stage that just ended, instead of the one with its name and duration."""
        self._has_line = True
        self.say(f"{time.strftime('%H:%M:%S')} {text}", style="green")

    def leave_row(self, head: Sequence[str], cells: Sequence[str], good: bool, why: str = "") -> None:
        """Print a row of a table about the stage that just ended, with `why` below it.

        The head of the table is printed above its first row. A row that is not `good` is yellow instead of green.
        """
        self._has_line = True  # The row is the line about the stage that stays on the screen.
        widths = [max(len(name), FIGURE_WIDTH) for name in head]
        if head != self._head:  # the first row of this table
            self.say(" " * CLOCK_WIDTH + row_text(head, widths))
        self._head = head
        self.say(f"{time.strftime('%H:%M:%S')} {row_text(cells, widths)}", style="green" if good else "yellow")
        if why:
            self.say(" " * CLOCK_WIDTH + why, style="dim")

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the live line, without secrets or characters that a terminal would obey."""
        text = printable_text(hide_text(text))
        self.console.print(Text(text, style=style), soft_wrap=not self.console.is_terminal)  # words stay whole

    def tick(
        self, counters: Counters | None = None, total: int | None = None, note: str = "", least_s: float = 0.0
    ) -> None:
        """Refresh the live line; without a terminal, print a plain line now and then. May be called at any rate.

        `counters` are those of the test's progress. `total` is the number of queries, None if unknown. The test lasts
        at least `least_s` seconds.
        """
        now = time.monotonic()
        pause_s = LIVE_EVERY_S if self._live else PLAIN_EVERY_S
        if now - self._last_refresh < pause_s:
            return
        self._last_refresh = now
        elapsed = now - self._stage_start
        # A note may be from an engine's log, with characters that a terminal would obey.
        progress = f"  {printable_text(note)}" if note else ""
        if counters is not None:
            progress += progress_text(counters, total, elapsed, least_s, self.recent_rate(elapsed, counters.completed))
        self._progress = progress
        if self._live:
            self._live.refresh()
        else:
            self.say(f"{time.strftime('%H:%M:%S')} {self._line()}")

    def _line(self) -> str:
        """Return the line about the current stage: its name, how long it has taken, and what the last tick told."""
        elapsed = time.monotonic() - self._stage_start
        return f"{printable_text(self._stage)}  {clock(elapsed)}{self._progress}"

    def _live_line(self) -> Text:
        """Return the line for a terminal, which cuts it at its width. Empty before the first stage."""
        line = self._line() if self._stage else ""
        return Text(line, no_wrap=True, overflow="ellipsis")

    def recent_rate(self, elapsed: float, completed: int) -> float | None:
        """Note how many answers are `completed`, and return the answers per second over roughly the last minute.

        `elapsed` are the seconds since the stage began. None if there were no answers in the last minute.
        """
        if not completed:
            # The time before the first answer does not count, since it does not show how fast the next answers come.
            self._answer_counts = deque([(elapsed, 0)])
            return None
        self._answer_counts.append((elapsed, completed))
        # Drop the counts from before the last minute, except the newest of them, from which the minute is counted. Two
        # counts are kept in any case, since a rate needs two.
        minute_begin_s = elapsed - RECENT_S
        while len(self._answer_counts) > 2 and self._answer_counts[1][0] <= minute_begin_s:
            self._answer_counts.popleft()
        first_s, first_count = self._answer_counts[0]
        if completed <= first_count or elapsed <= first_s:
            return None
        return (completed - first_count) / (elapsed - first_s)


def row_text(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return cells as a line of columns that are at least `widths` characters wide.

    All cells are aligned to the right, except the last, which is a remark of any length.
    """
    *figures, remark = cells  # `widths` may also have a width for the remark, which is not used
    columns = [figure.rjust(width) for figure, width in zip(figures, widths, strict=False)]
    return "  ".join([*columns, remark]).rstrip()


def escape_rich(text: str) -> str:
    """Return text for a table on the terminal, without markup, secrets, or characters that a terminal would obey."""
    return escape(printable_text(hide_text(text)))


def seconds_to_last_answer(counters: Counters, total: int, elapsed: float, rate: float) -> float:
    """Estimate the seconds until the last of `total` queries is answered. `rate` is the number of answers a second."""
    issue_rate = max(rate, counters.issued / elapsed)  # A schedule's queries may be issued faster than answered.
    s_to_last_issue = (total - counters.issued) / issue_rate
    in_flight = counters.issued - counters.completed  # It is assumed to be as many after the last query.
    return s_to_last_issue + in_flight / rate


def share_done(counters: Counters, total: int, elapsed: float, least_s: float, rate: float | None) -> list[str]:
    """Return the share of a test that is done, the time that is left, and the samples, as texts.

    Before the first answer, only the samples are returned. The arguments are those of `progress_text`.
    """
    samples_text = f"{counters.completed:,}/{total:,} done"
    if not (counters.completed and elapsed):
        return [samples_text]
    left_s = seconds_to_last_answer(counters, total, elapsed, rate or counters.completed / elapsed)
    share = counters.completed / total
    if least_s:  # The queries may be done before the least time is over.
        left_s = max(left_s, least_s - elapsed)
        share = min(share, elapsed / least_s)
    return [f"{math.floor(100 * share)} %", f"{clock(left_s)} left", samples_text]


def progress_text(
    counters: Counters, total: int | None, elapsed: float, least_s: float = 0.0, rate: float | None = None
) -> str:
    """Return how far a test has come. The most important figures come first, since a terminal cuts the end of a line.

    `total` is the number of queries, None if not known. The test lasts at least `least_s` seconds. `rate` is the number
    of recent answers a second.
    """
    figures = []
    if total and counters.issued > total:  # LoadGen sends more than was expected, and does not say how much more.
        figures.append(f"{counters.completed:,} done, {total:,} were expected")
    elif total or counters.issued:
        figures += share_done(counters, total or counters.issued, elapsed, least_s, rate)
    else:
        figures.append("waiting")
    if counters.started:  # Only streamed answers have first tokens.
        mean_ttft_ms = 1000 * counters.first_token_s / counters.started
        figures.append(f"mean TTFT {number(mean_ttft_ms, 2)} ms")
    if counters.completed and elapsed:
        figures.append(f"{counters.tokens / elapsed:,.0f} tok/s so far")
    if counters.started:  # Without first tokens, as in Offline, all requests are in flight from the start.
        figures.append(f"{counters.issued - counters.completed:,} in flight")
    return "  " + "  ".join(figures)


def clock(seconds: float) -> str:
    """Return a duration as M:SS, or as H:MM:SS from an hour on."""
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole_seconds:02}" if hours else f"{minutes}:{whole_seconds:02}"


class Screen(io.TextIOWrapper):
    """A stream of text for a person. If the terminal or the reader of the pipe goes away, the run goes on unshown."""

    is_full = False  # the output went to a file whose disk is full

    def write(self, text: str) -> int:
        """Write text, and return its length, also if the output is gone and the text is lost."""
        with self.drop_failed_output():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered. Does not fail if the output is gone."""
        with self.drop_failed_output():
            super().flush()

    @contextmanager
    def drop_failed_output(self) -> Iterator[None]:
        """Lead all later output to nowhere if a write within fails, and note in `is_full` if the disk was full."""
        try:
            yield
        except OSError as error:
            self.is_full = self.is_full or error.errno == errno.ENOSPC
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.fileno())


def failsafe_console(descriptor: int) -> Console:
    """Return a console on a copy of a file descriptor. A write that fails does not end the run."""
    copy = os.fdopen(os.dup(descriptor), "wb")
    return Console(file=Screen(copy, errors="replace", line_buffering=True), highlight=False)


@contextmanager
def screen(log: Path) -> Iterator[tuple[Console, Console]]:
    """Yield consoles on the real standard output and error; all else that is printed in the block is appended to `log`.

    vLLM's processes and C++ libraries inherit the redirected descriptors, so their output is in the log, too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]  # copies of the descriptors of standard output and standard error
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield failsafe_console(saved[0]), failsafe_console(saved[1])
        finally:
            sys.stdout.flush()  # What Python has not written yet belongs in the log, too.
            sys.stderr.flush()
            for number, copy in enumerate(saved, start=1):
                os.dup2(copy, number)
                os.close(copy)
