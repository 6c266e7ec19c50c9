"""What the engine is asked: MLPerf's summarization, workloads of ours, files of the user's own, synthetic lengths.

Rows, flags and what does not go with them. `requests_file` reads the files, `workload_samples` makes samples of them.
"""

import math
import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from harness.common.coerce import as_flag
from harness.common.errors import UsageError
from harness.common.paths import ROOT
from harness.config.flags import BENCHMARK, flag

FOLDER = ROOT / "workloads"
OFFICIAL = "summarization"
MOST_TOKENS = 10**6
MOST_SIGMA = 3.0
SYNTHETIC_COUNT = 1000  # requests of --input-len without --total-sample-count


@dataclass(frozen=True)
class Workload:
    """What `--workload` names in short; `path` is None where the samples are MLPerf's."""

    name: str
    path: Path | None
    imitates: str


WORKLOADS = {
    row.name: row
    for row in (
        Workload(OFFICIAL, None, "MLPerf's own: CNN/DailyMail articles, answers of at most 128 tokens"),
        Workload("chat", FOLDER / "chat.jsonl", "users of an assistant: short questions, some in mid-conversation"),
        Workload("classification", FOLDER / "classification.jsonl", "labelling of reviews and tickets: short answers"),
        Workload("code", FOLDER / "code.jsonl", "a programming assistant: complete, explain, repair, test"),
    )
}


@dataclass(frozen=True)
class Lengths:
    """Lengths in tokens: fixed, or log-normal with this median and the standard deviation `sigma` of the logarithm."""

    median: int
    sigma: float = 0.0

    def draw(self, source: random.Random) -> int:
        """One length, at least 1."""
        return max(1, round(self.median * math.exp(source.gauss(0.0, self.sigma))))


@dataclass(frozen=True)
class RequestSet:
    """What a run asks instead of MLPerf's samples. Lengths are in tokens.

    `longest` is that of a prompt and its answer at most, `longest_at` where it comes from. `exact`: answers end at
    their length, whatever the model says. `digest` tells a file from another of its name.
    """

    name: str
    about: str
    samples: int  # there are; a run may take fewer
    longest: int
    longest_at: str
    max_new_tokens: int
    exact: bool
    digest: str
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What another run must share for its speed to tell of this one's."""
        return f"{self.name} {self.digest}"

    def check_context(self, most: int, said: str) -> None:
        """Raises UsageError where a prompt and its answer do not fit `most` tokens; `said` is who allows no more."""
        if self.longest > most:
            raise UsageError(
                f"{self.longest_at}: prompt and answer take {self.longest:,} tokens; {said}: shorten "
                f"{'the lengths, or use a smaller sigma' if self.exact else 'the prompt, or lower its max_tokens'}."
            )


@dataclass(frozen=True, kw_only=True)
class WorkloadFlags:
    """The flags of `run.py` that say what is asked."""

    workload: str = flag(
        OFFICIAL,
        BENCHMARK,
        "work",
        f"{', '.join(WORKLOADS)}; or the path of a file of JSON lines or of ShareGPT's. A line has prompt, messages or "
        "prompt_token_ids, and max_tokens. All but summarization: --mode performance, never comparable with MLPerf.",
    )
    input_len: str | None = flag(
        None,
        BENCHMARK,
        "work",
        "With --output-len: random prompts of N tokens, or of N~S. N~S, as in 512~0.5: log-normal lengths with median "
        "N and S as the standard deviation of their logarithm.",
    )
    output_len: str | None = flag(
        None, BENCHMARK, "work", "With --input-len: answers of exactly N tokens, or N~S, past any end of text."
    )

    @property
    def official_workload(self) -> bool:
        """Whether MLPerf's own samples are asked."""
        return self.workload == OFFICIAL and self.input_len is None

    @property
    def workload_name(self) -> str:
        """What is asked, in a word or two."""
        return self.workload if self.input_len is None else f"input {self.input_len}, output {self.output_len}"

    def check_workload(self, mode: str, given: Collection[str]) -> None:
        """`given` names the settings that are not at their default. Raises UsageError for what does not go together."""
        synthetic = {"input_len", "output_len"} & set(given)
        for name in sorted(synthetic):
            lengths(as_flag(name), getattr(self, name))
        if len(synthetic) == 1:
            raise UsageError("--input-len and --output-len go together.")
        if synthetic and "workload" in given:
            raise UsageError("--workload is a set of prompts; --input-len and --output-len make others: give one.")
        if synthetic and "max_new_tokens" in given:
            raise UsageError("--max-new-tokens: --output-len says how long answers are.")
        if self.official_workload:
            return
        asked = f"--workload {self.workload}" if not synthetic else "--input-len"
        if mode != "performance":
            raise UsageError(f"{asked} has no reference answers, so speed alone is measured: add --mode performance.")
        for name in ("compliance", "dataset_path"):
            if name in given:
                raise UsageError(f"{as_flag(name)} is for MLPerf's own samples; not with {asked}.")


def lengths(name: str, text: str) -> Lengths:
    """What --input-len or --output-len gives: N or N~S. Raises UsageError."""
    median, tilde, sigma = text.partition("~")
    try:
        found = Lengths(int(median), float(sigma) if tilde else 0.0)
    except ValueError:
        found = Lengths(0)
    if not 0 < found.median <= MOST_TOKENS or not 0 <= found.sigma <= MOST_SIGMA:
        raise UsageError(
            f"{name} takes N tokens from 1 to {MOST_TOKENS:,}, or N~S with S from 0 to {MOST_SIGMA:g}, as in 512 or "
            f"512~0.5; got {text!r}."
        )
    return found
