"""Start an engine: show what it is doing, and end a start that hangs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core import formatting, secrets
from harness.core.files import json_value
from harness.core.progress import Display
from harness.engines.protocol import Engine
from harness.loadgen.watchdog import StartWatch
from harness.results.records import Facts
from harness.runs.run_folder import RunFolder

TAIL_BYTES = 8000
# The stages of an engine's start. The last line of its log that matches one of these patterns names the stage. The
# pattern's group is shown after the name: how far the engine is, or the whole text if there is no name.
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


def recorded_arguments(arguments: Mapping[str, object]) -> Any:
    """Return another program's arguments as JSON values. Each text that may be a secret is masked."""
    return json_value(secrets.hide(arguments, foreign=True))


def start_engine(engine: Engine, facts: Facts, folder: RunFolder, stall_timeout: float, display: Display) -> None:
    """Start an engine, show meanwhile what it is doing, and record its version, arguments and kernels in `facts`.

    Raises EngineError if nothing happens in the engine's log for `stall_timeout` seconds, or if the start fails.
    """
    log = folder.path / "engine.log"
    watch = StartWatch(log, stall_timeout)

    def tick() -> None:
        """Show what the engine does by its log. Raises EngineError if the log has not grown for too long."""
        display.tick(note=stage(log))
        watch.check_progress()

    display.stage(engine.starting or f"starting {engine.name}")
    engine.start(tick)
    title = f"{engine.name} {engine.version}"
    display.leave_line(engine.ready or f"{title.rstrip()} is up after {engine.start_s:.0f} s")
    for caution in engine.cautions:
        display.say(caution, style="yellow")
    facts.engine = title.strip()
    facts.engine_start_s = round(engine.start_s, 1)
    facts.engine_args = recorded_arguments(engine.args)
    facts.kernels = engine.kernels


def stage(log: Path) -> str:
    """Return what a starting engine does now, and how far it is if its log says so.

    That is the last line of the log that one of STAGES describes. Empty if there is no log or no such line yet.
    """
    try:
        text = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    for line in reversed(re.split(r"[\r\n]+", text)):
        for pattern, name in STAGES:
            match = re.search(pattern, line)
            if match:
                return formatting.joined_text(" ", name, *match.groups())
    return ""
