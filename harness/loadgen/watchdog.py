"""Notices an engine that is alive and silent: nothing else would, since LoadGen waits for ever."""

import re
import time
from pathlib import Path

from harness.core import formatting, secrets
from harness.core.errors import EngineError
from harness.core.files import as_json, check_space
from harness.core.progress import Display
from harness.engines.protocol import Engine
from harness.loadgen.folder import RunFolder
from harness.loadgen.outcome import Facts

PATIENCE_FACTOR = 20  # of the longest wait for an answer so far
PAUSED_S = 5.0  # between two checks, which come many times a second
FIRST_ANSWER_FACTOR = 4  # as much patience for the first answer of all, whose length nobody knows
START_FACTOR, START_S = 6, 300.0  # for an engine that starts, maybe from a slow disk: as much, but no less than


class Silence:
    """How long a mark has been the same that whoever is alive changes; time in which this process did not run itself,
    stopped and continued, does not count."""

    def __init__(self, mark: object, timeout_s: float) -> None:
        self.mark, self.timeout_s, self.longest_s = mark, timeout_s, 0.0
        self.reset()

    def reset(self) -> None:
        """Begins, or begins anew."""
        self.since = self.looked_at = time.monotonic()

    def look(self, mark: object) -> float:
        """The seconds until now; to be called many times a second."""
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
        """How long the engine may be silent now."""
        return max(self.timeout_s * (1 if self.longest_s else FIRST_ANSWER_FACTOR), PATIENCE_FACTOR * self.longest_s)

    def check(self) -> None:
        """Raises EngineError where the engine has been silent for too long."""
        if (silent_s := self.look(self.engine.last_response_at)) > self.limit_s:
            raise EngineError(
                f"no response from {self.engine.name} for {silent_s:.0f} s: assuming it hangs. If it is only slow, "
                f"raise --stall-timeout (now {self.timeout_s:g})"
            )

    def check_run(self, folder: Path, busy: bool = True) -> None:
        """Raises when the run in a folder cannot go on: LoadGen itself would wait for ever."""
        if self.engine.failure:
            raise EngineError(self.engine.ended)
        if busy:
            self.check()
        else:
            self.reset()
        check_space(folder)


class StartWatch(Silence):
    """Notices an engine whose start has stopped: neither its log nor its processes go on."""

    def __init__(self, log: Path, timeout_s: float) -> None:
        super().__init__(None, max(START_FACTOR * timeout_s, START_S))
        self.log = log

    def check(self) -> None:
        """Raises EngineError where the log has not grown for too long."""
        if self.look(self.log.stat().st_size if self.log.exists() else 0) > self.timeout_s:
            raise EngineError(
                f"the engine has printed nothing for {self.timeout_s:.0f} s while starting: assuming it hangs"
            )


# An engine as it starts: what it is doing is shown, and a start that hangs is ended.
TAIL_BYTES = 8000
# The last line of the log that one of these is found in says what goes on; a group is how far it is, or all that is
# shown.
STAGES = (
    (r"(waiting for [^\r\n]*)", ""),
    (r"Initializing a V1 LLM engine", "starting its processes"),
    (r"(?:Downloading|Fetching) (?:[^\r\n]*?(\d+%))?", "downloading"),
    (r"Loading \S+ checkpoint shards:\s*(\d+%)|Starting to load model|Loading (?:model )?weights", "loading weights"),
    (r"Dynamo bytecode transform|[Cc]ompil(?:ing|ed) (?:a )?graph|torch\.compile took|[Aa]utotun", "compiling"),
    (r"Memory profiling|Available KV cache memory|KV cache size|[Ww]arming up", "measuring memory"),
    (r"flashinfer\.jit: Building JIT module", "compiling FlashInfer's kernels"),
    (r"Capturing CUDA graph(?:[^\r\n]*?(\d+%))?|Graph capturing", "capturing CUDA graphs"),
    (r"init engine \(profile", "almost ready"),
)


def start(engine: Engine, facts: Facts, folder: RunFolder, stall_timeout: float, display: Display) -> None:
    """Starts an engine, shows what it is doing meanwhile, and notes what it is."""
    log = folder.path / "engine.log"
    watch = StartWatch(log, stall_timeout)

    def tick() -> None:
        display.tick(note=stage(log))
        watch.check()

    display.stage(engine.starting or f"starting {engine.name}")
    engine.start(tick)
    display.done(engine.ready or f"{f'{engine.name} {engine.version}'.rstrip()} is up after {engine.start_s:.0f} s")
    for caution in engine.cautions:
        display.say(caution, style="yellow")
    facts.engine = f"{engine.name} {engine.version}".strip()
    facts.engine_start_s, facts.engine_args = round(engine.start_s, 1), as_json(secrets.hide(engine.args, foreign=True))
    facts.kernels = engine.kernels


def stage(log: Path) -> str:
    """What goes on, and how far it is if the log says so; empty before the first sign."""
    try:
        text = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    for line in reversed(re.split(r"[\r\n]+", text)):
        for pattern, name in STAGES:
            if found := re.search(pattern, line):
                return formatting.joined(" ", name, *found.groups())
    return ""
