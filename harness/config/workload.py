"""The requests to the engine: MLPerf's summarization, workloads of ours, files of the user's own, synthetic lengths.

Rows, flags and what does not go with them, and when requests come. `requests_file` reads the files, `custom` makes
samples of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import PlainValidator

from harness.config.arrival_patterns import ARRIVAL_FORMS, Numbers, Replay, parse_arrivals
from harness.config.flags import BENCHMARK_TOPIC, LOAD_TOPIC, Settings, flag
from harness.config.lengths import Lengths, PromptParts, lengths
from harness.core.errors import UsageError
from harness.core.given_values import flag_name, unknown_file_error
from harness.core.locations import ROOT

HUB_PREFIX = "hf:"  # before the name of a data set of the Hugging Face hub
WORKLOADS_FOLDER = ROOT / "workloads"
OFFICIAL_WORKLOAD = "summarization"
SYNTHETIC_COUNT = 1000  # requests of --input-len without --total-sample-count


class Workload(NamedTuple):
    """A workload that `--workload` names in short; `path` is None where the samples are MLPerf's.

    `input_tokens` and `output_tokens` are mean lengths of prompts and of the longest answers, counted with the demo's
    tokenizer; None of a user's own file.
    """

    path: Path | None
    imitates: str
    input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def summary(self) -> str:
        """The workload in one line: its mean lengths, and what it imitates."""
        return f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out; {self.imitates}"


def shipped_workload(name: str, input_tokens: int, output_tokens: int, imitates: str) -> tuple[str, Workload]:
    """Return the name and the row of a workload that comes with the program.

    Its requests or its profile are in the file of that name in `workloads/`. MLPerf's samples have no file there.
    """
    path = next(WORKLOADS_FOLDER.glob(f"{name}.*"), None)
    return name, Workload(path, imitates, input_tokens, output_tokens)


WORKLOADS = dict(
    [
        shipped_workload(
            OFFICIAL_WORKLOAD, 778, 128, "MLPerf's own: CNN/DailyMail articles, answers of at most 128 tokens"
        ),
        shipped_workload("chat", 82, 154, "users of an assistant: short questions, some in mid-conversation"),
        shipped_workload("short-chat", 166, 275, "an assistant without a history: short questions, long answers"),
        shipped_workload("long-chat", 997, 258, "conversations of four turns under one system prompt"),
        shipped_workload("classification", 99, 5, "labeling of reviews and tickets: short answers"),
        shipped_workload(
            "long-classification",
            6743,
            8,
            "labeling of whole documents, 3,000 to 12,000 tokens under the same instructions",
        ),
        shipped_workload(
            "repeated-classification", 10_000, 51, "repeated questions about 20 documents of 9,800 tokens each"
        ),
        shipped_workload("code", 100, 140, "a programming assistant: complete, explain, repair, test"),
        shipped_workload(
            "code-context", 4476, 52, "a programming assistant with the files around the cursor in its prompt"
        ),
    ]
)


class WorkloadProfile(PromptParts):
    """Lengths to draw: tokens of prompts and answers, as `--input-len` and `--output-len` take them."""

    about: str = ""
    input_len: Annotated[Lengths, PlainValidator(partial(lengths, "input_len"))]
    output_len: Annotated[Lengths, PlainValidator(partial(lengths, "output_len"))]


@dataclass(frozen=True)
class RequestSet:
    """The requests of a run in place of MLPerf's samples. Lengths are in tokens.

    `longest` is the longest prompt plus its answer, and `longest_at` the place where it comes from. If `exact`, answers
    have their full length even if the model would end them earlier. `digest` differs for files of the same name.
    """

    name: str
    about: str
    samples: int  # how many there are; a run may take fewer
    longest: int
    longest_at: str
    max_new_tokens: int
    exact: bool
    digest: str
    notes: tuple[str, ...] = ()
    whole_rounds: bool = False  # each request is sent as often as any other, since they belong together
    replay: Replay | None = None  # the trace at whose times the requests are sent

    @property
    def key(self) -> str:
        """The name and the digest. Two runs must share them for their speeds to be compared."""
        return f"{self.name} {self.digest}"

    def check_context(self, most: int, limit_text: str) -> None:
        """Raise UsageError if a prompt and its answer take more than `most` tokens.

        `limit_text` is the part of the message that says what sets this limit.
        """
        if self.longest <= most:
            return
        remedy = "shorten the prompt, or lower its max_tokens"
        gives_lengths = self.exact  # The user gave lengths of prompts and answers, not the prompts themselves.
        if gives_lengths:
            remedy = "shorten the lengths, or use a smaller sigma"
        raise UsageError(f"{self.longest_at}: prompt and answer take {self.longest:,} tokens; {limit_text}: {remedy}.")


class WorkloadFlags(Settings):
    arrivals: str | None = flag(None, LOAD_TOPIC, "speed", metavar=ARRIVAL_FORMS)
    """Arrival process instead of LoadGen's: a shape, or a trace file. Implies --scenario
    arrivals. poisson, constant and gamma:CV (bursts with this coefficient of variation) take their rate from
    --server-target-qps; ramp:A-B goes from A to B requests/s; a trace, a CSV file with the columns
    seconds,input_tokens,output_tokens[,prefix_id,prefix_tokens], is replayed, with requests of its lengths.
    --server-target-qps scales ramps and traces to another mean rate."""
    workload: str = flag(OFFICIAL_WORKLOAD, BENCHMARK_TOPIC, "work")
    """A named workload, such as chat (run.py -h lists all at its end); a file of requests (JSON, CSV or text); a
    profile (YAML); or hf:NAME from the Hugging Face Hub. Requests in JSON lines have prompt, messages or
    prompt_token_ids, and max_tokens; a JSON list, ShareGPT's JSON, a table with the column prompt and a text with one
    prompt a line are read as well. All but summarization: --mode performance, never comparable with MLPerf."""
    prompt_column: str | None = flag(None, BENCHMARK_TOPIC, "work")
    """The key or column with the prompt's text. Unset: prompt."""
    input_len: str | None = flag(None, BENCHMARK_TOPIC, "work")
    """With --output-len: random prompts of N, N~S or N~S:LOW-HIGH tokens. N~S, as in 512~0.5: log-normal lengths with
    median N and S as the standard deviation of their logarithm; S above 3, as in 6000~1500: normal, in tokens."""
    output_len: str | None = flag(None, BENCHMARK_TOPIC, "work")
    """With --input-len: answers of exactly N tokens, or N~S, past any end of text."""
    salt: Literal["none", "start", "after-prefix"] | None = flag(None, BENCHMARK_TOPIC, "work")
    """Add unique tokens to each prompt, so that none, or only the prefix, is shared. Unset: none."""

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each flag that does not fit the source of the requests, and for each flag that is
        missing.

        The requests are MLPerf's samples, random prompts of given lengths, those of a trace, or those of a workload.
        """
        yield from super().problems()
        if self.is_synthetic and None in (self.input_len, self.output_len):
            yield "give both --input-len and --output-len."
        if self.is_synthetic and "workload" in self.named_settings:
            yield "--workload has its own prompts: remove it, or --input-len and --output-len."
        if self.is_replay and (self.is_synthetic or self.workload != OFFICIAL_WORKLOAD):
            yield (
                f"--arrivals {self.arrivals} has its own requests: remove --workload, or --input-len and --output-len."
            )
        if self.lengths_from and "max_new_tokens" in self.named_settings:
            yield f"--max-new-tokens: {self.lengths_from} says how long answers are."
        if self.salt is not None and (self.is_replay or self.is_official_workload):
            yield "--salt needs --input-len, or a --workload that is a profile or a file."
        if self.prompt_column is not None and (self.lengths_from or self.is_official_workload):
            yield "--prompt-column needs a file of requests, or hf:NAME, as --workload."
        if not self.is_official_workload and self.official_flag:
            yield f"{self.official_flag} is for MLPerf's own samples; not with {self.workload_flag}."

    @property
    def is_replay(self) -> bool:
        """Tell whether requests come at the times of a trace."""
        return self.arrivals is not None and parse_arrivals(self.arrivals) is None

    @property
    def rate_ends(self) -> Numbers:
        """The rates at the beginning and the end of a ramp. Empty if the arrivals are no ramp."""
        parsed = parse_arrivals(self.arrivals or "")
        if parsed is None:
            return ()
        shape, numbers = parsed
        return numbers if shape.is_ramp else ()

    @property
    def has_own_rate(self) -> bool:
        """Tell whether the arrivals themselves give the rate, as traces and ramps do."""
        return self.is_replay or bool(self.rate_ends)

    @property
    def is_official_workload(self) -> bool:
        """Tell whether the requests are MLPerf's own samples."""
        return self.workload == OFFICIAL_WORKLOAD and self.input_len is None and not self.is_replay

    @property
    def workload_name(self) -> str:
        """The name of the requests in reports: the trace's, the lengths', or that given to --workload."""
        if self.is_replay:
            return f"trace {Path(self.arrivals or '').name}"
        if self.input_len is not None:
            return f"input {self.input_len}, output {self.output_len}"
        return self.workload

    @property
    def is_synthetic(self) -> bool:
        """Tell whether prompts are random text of given lengths, by --input-len or --output-len."""
        return self.input_len is not None or self.output_len is not None

    @property
    def official_flag(self) -> str:
        """The given flag that is only for MLPerf's samples. Empty if there is none."""
        for name in ("compliance", "dataset_path"):
            if name in self.named_settings:
                return flag_name(name)
        return ""

    @property
    def lengths_from(self) -> str:
        """The flag, trace or profile that gives the lengths of answers, in words.

        Empty for MLPerf's samples and for files of requests.
        """
        if self.is_synthetic:
            return "--output-len"
        if self.is_replay:
            return "the trace"
        return "the profile" if is_profile(self.workload) else ""

    @property
    def workload_flag(self) -> str:
        """The flag that names the requests, in the words of a message. For a run without MLPerf's own samples."""
        if self.is_replay:
            return f"--arrivals {self.arrivals}"
        if self.is_synthetic:
            return "--input-len"
        return f"--workload {self.workload}"


def check_workload(workload: str) -> None:
    """Raise UsageError if --workload names no workload, no file, and no data set of the Hugging Face hub."""
    is_known = workload in WORKLOADS or workload.startswith(HUB_PREFIX) or Path(workload).exists()
    if not is_known:
        raise unknown_file_error("--workload", workload, [*WORKLOADS, f"{HUB_PREFIX}NAME"])


def is_profile(workload: str) -> bool:
    """Return whether a workload, by its name or its file, is a profile, which gives lengths to draw for requests."""
    path: Path | None = Path(workload)
    if workload in WORKLOADS:
        path = WORKLOADS[workload].path
    return path is not None and path.suffix in (".yaml", ".yml")
