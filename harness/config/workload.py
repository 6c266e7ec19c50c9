"""The requests to the engine: MLPerf's summarization, workloads of ours, files of the user's own, synthetic lengths.

Rows, flags and what does not go with them, and when requests come. `requests_file` reads the files, `custom` makes
samples of them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import exp, floor, inf, sqrt
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, PlainValidator

from harness.config.flags import BENCHMARK, RATE, Settings, flag
from harness.core.document import number
from harness.core.errors import UsageError
from harness.core.files import as_flag
from harness.core.reading import ROOT

MOST_REQUESTS = 10**7  # of one test
MOST_RATE = 10**6  # requests a second
MOST_CV, LEAST_CV = 20.0, 0.05

Numbers = tuple[float, ...]


class Shape(NamedTuple):
    """Random or regular arrivals. `gap` draws the time to the next in units of the mean; `has_ends`: its numbers are
    the rates at the beginning and at the end; else both are the rate that is asked for."""

    name: str
    form: str
    gap: Callable[[Random, Numbers], float]
    wanted: int = 0  # of the numbers after the colon, each from `least`, and above 0, to `most`
    least: float = 0.0
    most: float = MOST_RATE
    has_ends: bool = False

    def read(self, text: str) -> Numbers:
        """The numbers after the colon. Raises ValueError."""
        numbers = tuple(map(float, text.split("-", self.wanted - 1) if text else ()))
        if len(numbers) != self.wanted or not all(each > 0 and self.least <= each <= self.most for each in numbers):
            raise ValueError
        return numbers


def exponential(source: Random, numbers: Numbers) -> float:
    return source.expovariate(1.0)


def bursts(source: Random, numbers: Numbers) -> float:
    (cv,) = numbers
    return source.gammavariate(cv**-2, cv**2)  # mean 1, standard deviation cv


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("poisson", "poisson", exponential),
        Shape("constant", "constant", lambda source, numbers: 1.0),
        Shape("gamma", "gamma:CV", bursts, 1, LEAST_CV, MOST_CV),
        Shape("ramp", "ramp:A-B", exponential, 2, has_ends=True),
    )
}
COLUMNS, PREFIX = "seconds,input_tokens,output_tokens", ",prefix_id,prefix_tokens"  # of a recorded trace
FORMS = "|".join((*(shape.form for shape in SHAPES.values()), "FILE"))


def parse_arrivals(text: str) -> tuple[Shape, Numbers] | None:
    """The shape that a value of --arrivals means, and its numbers; None of what is a file. Raises UsageError."""
    name, _, rest = text.partition(":")
    if not (shape := SHAPES.get(name)):
        return None
    try:
        return shape, shape.read(rest)
    except ValueError:
        raise UsageError(
            f"--arrivals {text}: must be {shape.form}; CV is between {LEAST_CV:g} and {MOST_CV:g}, rates A and B above "
            f"0 and at most {MOST_RATE:,} requests/s."
        ) from None


@lru_cache(maxsize=4)
def times(text: str, rate: float, seconds: float, seed: int) -> tuple[float, ...]:
    """When each request of a shape arrives, in seconds: from 0 on, at this mean rate, up to the first that is not
    before `seconds`. Raises UsageError for more than `MOST_REQUESTS`."""
    found = parse_arrivals(text)
    assert found is not None  # a shape, and no file
    shape, numbers = found
    if rate * seconds > MOST_REQUESTS:
        raise UsageError(f"--arrivals {text}: {rate * seconds:,.0f} requests; {MOST_REQUESTS:,} at most.")
    first, last = numbers if shape.has_ends else (1.0, 1.0)
    scale = rate / ((first + last) / 2)
    source, due, work = Random(seed), [0.0], 0.0
    while due[-1] < seconds:
        work += shape.gap(source, numbers)
        due.append(when(work, scale * first, scale * last, seconds))
    return tuple(due)


def when(count: float, first: float, last: float, seconds: float) -> float:
    """After how many seconds so many requests have come, at a rate that goes linearly from `first` to `last` within
    `seconds` and stays."""
    whole = (first + last) / 2 * seconds
    if count > whole:
        return seconds + (count - whole) / last
    return 2 * count / (first + sqrt(first**2 + 2 * (last - first) * count / seconds)) if count else 0.0


def variation(due: Sequence[float]) -> float | None:
    """The coefficient of variation of the gaps: 0 is clockwork, 1 pure chance, more comes in bursts."""
    gaps = [after - before for before, after in pairwise(sorted(due))]
    return pstdev(gaps) / fmean(gaps) if any(gaps) else None


@dataclass(frozen=True)
class Replay:
    """The arrivals of a trace as a run has them: `seconds` to the last one."""

    requests: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"arrivals: {self.requests:,} requests in {number(self.seconds)} s, {number(self.rate)} a second on average"
        )

    @property
    def rate(self) -> float:
        """Requests a second, on average."""
        return (self.requests - 1) / self.seconds

    def least_s(self, given: float | None) -> float:
        """The minimum duration of its test: what was given, else up to the last arrival, in whole milliseconds."""
        return given if given is not None else max(1, floor(1000 * self.seconds)) / 1000


FOLDER = ROOT / "workloads"
OFFICIAL = "summarization"
MOST_TOKENS = 10**6
MOST_SIGMA = 3.0
SYNTHETIC_COUNT = 1000  # requests of --input-len without --total-sample-count


class Workload(NamedTuple):
    """What `--workload` names in short; `path` is None where the samples are MLPerf's."""

    path: Path | None
    imitates: str


IMITATED = {  # by each workload, whose requests or profile are in a file of its name
    OFFICIAL: "MLPerf's own: CNN/DailyMail articles, answers of at most 128 tokens",
    "chat": "users of an assistant: short questions, some in mid-conversation",
    "classification": "labelling of reviews and tickets: short answers",
    "code": "a programming assistant: complete, explain, repair, test",
    "long-chat": "conversations of four turns under one system prompt",
    "long-classification": "labelling of whole documents, 3,000 to 12,000 tokens under the same instructions",
}
WORKLOADS = {name: Workload(next(FOLDER.glob(f"{name}.*"), None), text) for name, text in IMITATED.items()}


class Lengths(NamedTuple):
    """Lengths in tokens: fixed; log-normal with this median and, as `sigma`, the standard deviation of the logarithm;
    or, for a `sigma` above `MOST_SIGMA`, normal with that standard deviation in tokens. What is drawn out of the
    bounds is drawn again."""

    median: int
    sigma: float = 0.0
    low: int = 1
    high: int | None = None

    def draw(self, source: Random) -> int:
        """One length, at least 1."""
        for _ in range(MOST_DRAWS):
            if self.sigma > MOST_SIGMA:
                found = round(source.gauss(self.median, self.sigma))
            else:
                found = max(1, round(self.median * exp(source.gauss(0.0, self.sigma))))
            if self.low <= found <= (self.high or inf):
                return found
        # Both bounds are so near the median that lengths between them are about equally likely.
        return source.randint(self.low, self.high or MOST_TOKENS)

    def __str__(self) -> str:
        return (
            f"{self.median}{f'~{self.sigma:g}' if self.sigma else ''}{f':{self.low}-{self.high}' if self.high else ''}"
        )


LENGTHS = r"(?a)(\d+)(?:~(\d*\.?\d+))?(?::(\d+)-(\d+))?"  # N~S:LOW-HIGH
SALT_TOKENS = 8
MOST_DRAWS = 1000  # of a length, before all between its bounds are taken as equally likely


class Shared(Settings):
    """What prompts share: one of `prefixes` beginnings of `prefix_len` tokens, and the turns before in a conversation
    of `turns`. Where `salt` is put in, prompts share nothing, or nothing but that."""

    prefix_len: Annotated[int, Field(ge=0, le=MOST_TOKENS)] = 0
    prefixes: Annotated[int, Field(ge=1, le=10**5)] = 1
    turns: Annotated[int, Field(ge=1, le=1000)] = 1
    salt: Literal["none", "start", "after-prefix"] = "none"

    RULES: ClassVar = {"prefixes needs prefix_len.": lambda shared: shared.prefixes > 1 and not shared.prefix_len}
    named = str

    @property
    def text(self) -> str:
        parts = {
            f"one of {self.prefixes:,} beginnings of {self.prefix_len:,} tokens": self.prefix_len,
            f"conversations of {self.turns:,} turns": self.turns > 1,
            f"{SALT_TOKENS} tokens of salt {'at the start' if self.salt == 'start' else 'after the prefix'}": (
                self.salt != "none"
            ),
        }
        return "".join(f"; {part}" for part, applies in parts.items() if applies)


def lengths(name: str, given: object) -> Lengths:
    """What --input-len or --output-len gives: N, N~S or N~S:LOW-HIGH. Raises UsageError."""
    if written := re.fullmatch(LENGTHS, str(given)):
        median, sigma, low, high = written.groups()
        found = Lengths(int(median), float(sigma or 0), int(low or 1), int(high) if high else None)
        if 1 <= found.low <= found.median <= (found.high or MOST_TOKENS) <= MOST_TOKENS >= found.sigma:
            return found
    raise UsageError(
        f"{name} takes N tokens from 1 to {MOST_TOKENS:,}, N~S, as in 512~0.5 (log-normal) or 6000~1500 (normal), "
        f"or N~S:LOW-HIGH with N in these bounds; got {given!r}."
    )


class WorkloadProfile(Shared):
    """Lengths to draw: tokens of prompts and answers, as `--input-len` and `--output-len` take them."""

    about: str = ""
    input_len: Annotated[Lengths, PlainValidator(partial(lengths, "input_len"))]
    output_len: Annotated[Lengths, PlainValidator(partial(lengths, "output_len"))]


@dataclass(frozen=True)
class RequestSet:
    """The requests of a run in place of MLPerf's samples. Lengths are in tokens.

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
    whole_rounds: bool = False  # each is asked as often as any other, since they belong together
    replay: Replay | None = None  # where they come at the times of a trace

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


class WorkloadFlags(Settings):
    arrivals: str | None = flag(None, RATE, "speed", metavar=FORMS)
    """Arrival process instead of LoadGen's: a shape, or a trace file. Implies --scenario
    arrivals. poisson, constant and gamma:CV (bursts with this coefficient of variation) take their rate from
    --server-target-qps; ramp:A-B goes from A to B requests/s; a trace, a CSV file with the columns
    seconds,input_tokens,output_tokens[,prefix_id,prefix_tokens], is replayed, with requests of its lengths.
    --server-target-qps scales ramps and traces to another mean rate."""
    workload: str = flag(OFFICIAL, BENCHMARK, "work")
    """summarization, chat, classification, code, long-chat, long-classification; or a file of requests, a profile
    (YAML) or hf:NAME of the hub. Files are JSON lines, each with prompt, messages or prompt_token_ids, and max_tokens,
    or ShareGPT's. All but summarization: --mode performance, never comparable with MLPerf."""
    prompt_column: str | None = flag(None, BENCHMARK, "work")
    """The key or column with the prompt's text. Unset: prompt."""
    input_len: str | None = flag(None, BENCHMARK, "work")
    """With --output-len: random prompts of N, N~S or N~S:LOW-HIGH tokens. N~S, as in 512~0.5: log-normal lengths with
    median N and S as the standard deviation of their logarithm; S above 3, as in 6000~1500: normal, in tokens."""
    output_len: str | None = flag(None, BENCHMARK, "work")
    """With --input-len: answers of exactly N tokens, or N~S, past any end of text."""
    salt: Literal["none", "start", "after-prefix"] | None = flag(None, BENCHMARK, "work")
    """Add unique tokens to each prompt, so that none, or only the prefix, is shared. Unset: none."""

    RULES: ClassVar = {
        "give both --input-len and --output-len.": lambda run: (
            run.is_synthetic and None in (run.input_len, run.output_len)
        ),
        "--workload has its own prompts: remove it, or --input-len and --output-len.": lambda run: (
            run.is_synthetic and "workload" in run.given
        ),
        "--arrivals {run.arrivals} has its own requests: remove --workload, or --input-len and --output-len.": (
            lambda run: run.is_replay and (run.is_synthetic or run.workload != OFFICIAL)
        ),
        "--max-new-tokens: {run.lengths_from} says how long answers are.": lambda run: (
            run.lengths_from and "max_new_tokens" in run.given
        ),
        "--salt needs --input-len, or a --workload that is a profile or a file.": lambda run: (
            run.salt is not None and (run.is_replay or run.is_official_workload)
        ),
        "--prompt-column needs a file of requests, or hf:NAME, as --workload.": lambda run: (
            run.prompt_column is not None and (run.lengths_from or run.is_official_workload)
        ),
        "{run.workload_flag} has no reference answers, so speed alone is measured: add --mode performance.": (
            lambda run: not run.is_official_workload and run.mode != "performance"
        ),
        "{run.official_flag} is for MLPerf's own samples; not with {run.workload_flag}.": lambda run: (
            not run.is_official_workload and run.official_flag
        ),
    }

    @property
    def is_replay(self) -> bool:
        """Whether requests come at the times of a trace."""
        return self.arrivals is not None and parse_arrivals(self.arrivals) is None

    @property
    def rate_ends(self) -> Numbers:
        """The rates at the beginning and at the end of the shape; none where the rate is given apart, or by a trace."""
        shape, numbers = parse_arrivals(self.arrivals or "") or (None, ())
        return numbers if shape and shape.has_ends else ()

    @property
    def has_own_rate(self) -> bool:
        """Whether the arrivals bring their own rate."""
        return self.is_replay or bool(self.rate_ends)

    @property
    def is_official_workload(self) -> bool:
        """Whether the requests are MLPerf's own samples."""
        return self.workload == OFFICIAL and self.input_len is None and not self.is_replay

    @property
    def workload_name(self) -> str:
        if self.is_replay:
            return f"trace {Path(self.arrivals or '').name}"
        return self.workload if self.input_len is None else f"input {self.input_len}, output {self.output_len}"

    @property
    def is_synthetic(self) -> bool:
        """Whether prompts are random ones of given lengths."""
        return self.input_len is not None or self.output_len is not None

    @property
    def official_flag(self) -> str:
        """A flag that was given and is for MLPerf's samples."""
        return next((as_flag(name) for name in ("compliance", "dataset_path") if name in self.given), "")

    @property
    def lengths_from(self) -> str:
        """What else than a file of requests says how long they are, in words; empty where nothing does."""
        if self.is_synthetic:
            return "--output-len"
        return "the trace" if self.is_replay else "the profile" if is_profile(self.workload) else ""

    @property
    def workload_flag(self) -> str:
        """The flag that asks for other requests than MLPerf's."""
        if self.is_replay:
            return f"--arrivals {self.arrivals}"
        return "--input-len" if self.is_synthetic else f"--workload {self.workload}"


def is_profile(workload: str) -> bool:
    """Whether a workload is a profile: lengths to draw, rather than requests."""
    path = WORKLOADS[workload].path if workload in WORKLOADS else Path(workload)
    return path is not None and path.suffix in (".yaml", ".yml")
