"""Values from the outside: names of flags, words that are wrong, files that the user named."""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError, why
from harness.core.reading import read_text
from harness.core.secrets import arguments, hide_word

# Control characters but the tab, which no value has, and bytes of the command line that are not UTF-8.
UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
ADDRESS = re.compile(r"(?!hf:)\w[\w+.-]+:/")  # as a path, with one slash, too
# Older names of settings, which are still taken.
RENAMED = {"version": "round", "total_limit": "total_sample_count", "data": "dataset_path"}
# Commands and flags that earlier versions had, with what serves now: each ends in one line that names it.
PROFILE = "is a key of a profile now: --workload FILE.yaml (docs/workloads.md)"
MOVED = {
    "completion": 'was removed; the shell\'s line is: eval "$(_LLAMA31_MLPERF_COMPLETE=source_bash llama31-mlperf)"',
    "crosscheck": "is `python -m benchmarks.crosscheck` now, in a checkout",
    "endpoints": "was removed; MLPerf Endpoints' official client measures it: https://github.com/mlcommons/endpoints",
    "inference": "was removed; `run --endpoint URL --scenario NAME` measures a scenario with LoadGen",
    "inference-build": "was removed; `submission build` makes a submission of LoadGen's runs",
    "quantize": "was removed; docs/quantization.md has the lines of llm-compressor that make an fp8 checkpoint",
    "plan": 'was removed; a curve\'s report.html has the field "peak requests/s", and report.md the formula',
    "--prefix-len": PROFILE,
    "--prefixes": PROFILE,
    "--turns": PROFILE,
    "--compare": "is a flag of `report` alone; mmlu's was removed: two samples.csv hold the answers to compare",
    "--client-processes": "was removed; a client takes half of the cores, at most 8: give it more cores",
    "--disable-accuracy-gate": "was removed; --no-exit-on-accuracy-fail goes on after a FAIL, with exit code 0",
    "--probe-queries": "was removed; several rates are tested with 600 queries each, or as long as the full test",
    "--stagger": "was removed; all requests in flight begin at once",
    "--verbose": "was removed; report.md has every number, summary.json and --json as JSON",
    "--html": "was removed; every report has its report.html beside it",
}


def read_given(
    flag: str,
    path: Path,
    kind: str,
    parse: Callable[[str], Any],
    wrong: type[Exception] = ValueError,
    most: int = 2**32,
) -> Any:
    """The content of a file, which the user may have named with `flag`. Raises UsageError when it cannot be read or
    parsed.

    Only regular files of at most `most` bytes are read: a device has no end.
    """
    where = f"{flag} {path}".lstrip()
    try:
        return parse(read_text(path, most))
    except OSError as error:
        raise UsageError(f"{where}: {why(error)}.") from None
    except (wrong, ValueError, RecursionError) as error:  # also deep nesting, or a date that is none
        raise UsageError(f"{where}: not {kind}: {' '.join(str(error).split()).removesuffix('.')}.") from None


def did_you_mean(word: str, names: Sequence[str]) -> str:
    """`; did you mean ...?` for a misspelt name, or a full stop."""
    close = get_close_matches(word, names, n=3, cutoff=0.6)
    return f"; did you mean {', '.join(close)}?" if close else "."


def unknown_setting(key: str, names: Sequence[str]) -> str:
    """What to say of a key of a file that is none of these settings."""
    flag = as_flag(key)
    if (own := key.removeprefix("no_")) in arguments():
        return f"unknown setting {key!r}: vLLM's own arguments are lines such as engine_arg: {own}=VALUE."
    return f"{key} {MOVED[flag]}." if flag in MOVED else f"unknown setting {key!r}{did_you_mean(key, names)}"


def no_such_file(flag: str, name: str, names: Sequence[str]) -> UsageError:
    """What to say of a value that is neither a file nor one of `names`."""
    return UsageError(f"{flag} {name}: not a file, and not one of {', '.join(names)}{did_you_mean(name, names)}")


def as_flag(name: str) -> str:
    """max_num_seqs -> --max-num-seqs"""
    return "--" + name.replace("_", "-")


def require(ok: bool, name: str, wanted: str, got: object = None) -> None:
    if not ok:
        shown = hide_word(got) if isinstance(got, str) else got
        raise UsageError(f"{name} takes {wanted}" + (f"; got {shown!r}." if got is not None else "."))


def check_printable(name: str, text: str) -> None:
    """Raises UsageError for a value, which may be a secret, with control characters or bytes that are not UTF-8."""
    if UNPRINTABLE.search(text):
        raise UsageError(f"{name}: control characters, or invalid UTF-8, in a value.")


def check_path(name: str, value: object) -> None:
    """Raises UsageError for an address where a path may stand: it is not shown, for it may hold a secret."""
    if ADDRESS.match(str(value)):
        raise UsageError(f"{name} takes no address, but a path: download the file first if it is to be read.")
