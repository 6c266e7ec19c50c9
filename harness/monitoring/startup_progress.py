"""What vLLM is doing while it starts, from its log: the part of a run in which a person wonders most."""

import re
from pathlib import Path

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
