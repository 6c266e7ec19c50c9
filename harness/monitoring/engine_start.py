"""An engine as it starts: what it is doing is shown, and a start that hangs is ended."""

from harness.engines import protocol
from harness.monitoring import startup_progress
from harness.monitoring.watchdog import StartWatch
from harness.runs.folder import RunFolder
from harness.terminal.progress import Display


def start(engine: protocol.Engine, folder: RunFolder, stall_timeout: float, display: Display) -> None:
    """Starts an engine, and shows what it is doing meanwhile."""
    log = folder.path / "engine.log"
    watch = StartWatch(log, stall_timeout)

    said = ""

    def tick() -> None:
        nonlocal said
        note = startup_progress.stage(log)
        if note.startswith("waiting") and not said:
            display.say(said := note)
        display.tick(note=note)
        watch.check()

    display.stage(f"starting {engine.name}")
    engine.start(tick)
    display.done(f"{f'{engine.name} {engine.version}'.rstrip()} is up after {engine.start_s:.0f} s")
    for caution in engine.cautions:
        display.say(caution, style="yellow")
