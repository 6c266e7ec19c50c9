"""An engine as it starts: what it is doing is shown, and a start that hangs is ended."""

import re
from pathlib import Path

from harness.common.files import as_json
from harness.common.secrets import hide
from harness.engines import protocol
from harness.monitoring.watchdog import StartWatch
from harness.runs.folder import RunFolder
from harness.runs.records import Facts
from harness.terminal.progress import Display

TAIL_BYTES = 8000
# The last line of the log that one of these is found in says what goes on; a group is how far it is, or, without a
# name, all that is shown.
STAGES = (
    (r"(waiting for [^\r\n]*)", ""),
    (r"Initializing a V1 LLM engine", "starting its processes"),
    (r"(?:Downloading|Fetching)[^\r\n]*?(\d+%)", "downloading"),
    (r"(?:Downloading|Fetching) ", "downloading"),
    (r"Loading \S+ checkpoint shards:\s*(\d+%)", "loading weights"),
    (r"Starting to load model|Loading weights|Loading model weights", "loading weights"),
    (r"Dynamo bytecode transform|[Cc]ompil(?:ing|ed) (?:a )?graph|torch\.compile took|[Aa]utotun", "compiling"),
    (
        r"Memory profiling|Available KV cache memory|KV cache size|[Ww]arming up",
        "measuring memory",
    ),
    (r"flashinfer\.jit: Building JIT module", "compiling FlashInfer's kernels"),
    (r"Capturing CUDA graphs?[^\r\n]*?(\d+%)", "capturing CUDA graphs"),
    (r"Capturing CUDA graph|Graph capturing", "capturing CUDA graphs"),
    (r"init engine \(profile", "almost ready"),
)
BAR = 12  # characters


def start(engine: protocol.Engine, facts: Facts, folder: RunFolder, stall_timeout: float, display: Display) -> None:
    """Starts an engine, shows what it is doing meanwhile, and notes what it is."""
    log = folder.path / "engine.log"
    watch = StartWatch(log, stall_timeout)

    said = ""

    def tick() -> None:
        nonlocal said
        note = stage(log)
        if note.startswith("waiting") and not said:
            display.say(said := note)
        display.tick(note=note)
        watch.check()

    display.stage(engine.starting or f"starting {engine.name}")
    engine.start(tick)
    display.done(engine.ready or f"{f'{engine.name} {engine.version}'.rstrip()} is up after {engine.start_s:.0f} s")
    for caution in engine.cautions:
        display.say(caution, style="yellow")
    facts.engine = f"{engine.name} {engine.version}".strip()
    facts.engine_start_s, facts.engine_args = round(engine.start_s, 1), as_json(hide(engine.args, foreign=True))
    facts.kernels = engine.kernels


def stage(log: Path) -> str:
    """What goes on, with a bar if the log says how far it is; empty before the first sign."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    for line in reversed(re.split(r"[\r\n]+", text)):
        for pattern, name in STAGES:
            if found := re.search(pattern, line):
                return name + (f" {bar(found[1])}" if found.groups() else "") if name else found[1]
    return ""


def bar(percent: str) -> str:
    """`[####--------] 33%`"""
    full = BAR * min(100, int(percent.rstrip("%"))) // 100
    return f"[{'#' * full}{'-' * (BAR - full)}] {percent}"
