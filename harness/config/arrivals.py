"""How requests arrive where LoadGen does not set the pace: shapes with a rate, or the times of a recorded trace.

LoadGen's Server knows Poisson arrivals alone. Here the system under test sends each request at its time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import floor, sqrt
from pathlib import Path
from random import Random

from harness.config.flags import RATE, Settings, flag
from harness.core.errors import UsageError
from harness.core.markdown import number

MOST_REQUESTS = 10**7  # of one test
MOST_RATE = 10**6  # requests a second
MOST_CV, LEAST_CV = 20.0, 0.05

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class Shape:
    """Random or regular arrivals. `gap` draws the time to the next in units of the mean; `has_ends`: its numbers are
    the rates at the beginning and at the end; else both are the rate that is asked for."""

    name: str
    form: str
    gap: Callable[[Random, Numbers], float]
    read: Callable[[str], Numbers]  # of what stands after the colon; raises ValueError
    has_ends: bool = False


def nothing(text: str) -> Numbers:
    if text:
        raise ValueError
    return ()


def one(text: str) -> Numbers:
    cv = float(text)
    if not LEAST_CV <= cv <= MOST_CV:
        raise ValueError
    return (cv,)


def two(text: str) -> Numbers:
    first, last = map(float, text.split("-"))
    if not (0 < first <= MOST_RATE and 0 < last <= MOST_RATE):
        raise ValueError
    return first, last


def exponential(source: Random, numbers: Numbers) -> float:
    return source.expovariate(1.0)


def bursts(source: Random, numbers: Numbers) -> float:
    (cv,) = numbers
    return source.gammavariate(cv**-2, cv**2)  # mean 1, standard deviation cv


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("poisson", "poisson", exponential, nothing),
        Shape("constant", "constant", lambda source, numbers: 1.0, nothing),
        Shape("gamma", "gamma:CV", bursts, one),
        Shape("ramp", "ramp:A-B", exponential, two, has_ends=True),
    )
}
COLUMNS, PREFIX = "seconds,input_tokens,output_tokens", ",prefix_id,prefix_tokens"  # of a recorded trace
FORMS = "|".join((*(shape.form for shape in SHAPES.values()), "FILE"))


@dataclass(frozen=True)
class ParsedArrivals:
    """What --arrivals says: a shape with its numbers, or the file of a trace."""

    shape: Shape | None
    numbers: Numbers = ()
    path: Path | None = None

    @property
    def ends(self) -> Numbers | None:
        """Its rates at beginning and end; None where the rate is given apart, or by a trace."""
        return self.numbers if self.shape and self.shape.has_ends else None


def parse_arrivals(text: str) -> ParsedArrivals:
    """What a value of --arrivals means; what is not a shape is a file. Raises UsageError."""
    name, _, rest = text.partition(":")
    if name not in SHAPES:
        return ParsedArrivals(None, path=Path(text))
    shape = SHAPES[name]
    try:
        return ParsedArrivals(shape, shape.read(rest))
    except ValueError:
        raise UsageError(
            f"--arrivals {text}: must be {shape.form}; CV is between {LEAST_CV:g} and {MOST_CV:g}, rates A and B above "
            f"0 and at most {MOST_RATE:,} requests/s."
        ) from None


@lru_cache(maxsize=4)
def times(text: str, rate: float, seconds: float, seed: int, together: int = 1) -> tuple[float, ...]:
    """When each request of a shape arrives, in seconds: from 0 on, at this mean rate, up to the first that is not
    before `seconds`, in whole rounds of `together`. Raises UsageError for more than `MOST_REQUESTS`."""
    found = parse_arrivals(text)
    if found.shape is None:
        raise ValueError(f"{text} is not an arrival shape")
    if rate * seconds > MOST_REQUESTS:
        raise UsageError(f"--arrivals {text}: {rate * seconds:,.0f} requests; {MOST_REQUESTS:,} at most.")
    first, last = found.ends or (1.0, 1.0)
    scale = rate / ((first + last) / 2)
    source, due, work = Random(seed), [0.0], 0.0
    while due[-1] < seconds or len(due) % together:
        work += found.shape.gap(source, found.numbers)
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
    if not gaps or not (mean := sum(gaps) / len(gaps)):
        return None
    return sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean


@dataclass(frozen=True)
class Replay:
    """The arrivals of a trace as a run has them: `seconds` to the last one. `each_its_own`: the requests are of the
    trace's lengths, so that each comes at its own time."""

    requests: int
    seconds: float
    each_its_own: bool

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


class ArrivalFlags(Settings):
    arrivals: str | None = flag(None, RATE, "speed", metavar=FORMS)
    """Arrival process instead of LoadGen's: a shape, or a trace file. Implies --scenario
    arrivals. poisson, constant and gamma:CV (bursts with this coefficient of variation) take their rate from
    --server-target-qps; ramp:A-B goes from A to B requests/s; a trace, a CSV file with the columns
    seconds,input_tokens,output_tokens[,prefix_id,prefix_tokens], is replayed, with requests of its lengths unless
    --workload gives others. --server-target-qps scales ramps and traces to another mean rate."""

    @property
    def parsed_arrivals(self) -> ParsedArrivals | None:
        return None if self.arrivals is None else parse_arrivals(self.arrivals)

    @property
    def trace(self) -> Path:
        found = self.parsed_arrivals
        assert found is not None and found.path is not None
        return found.path

    @property
    def is_replay(self) -> bool:
        """Whether requests come at the times of a trace."""
        return self.parsed_arrivals is not None and self.parsed_arrivals.path is not None

    @property
    def has_own_rate(self) -> bool:
        """Whether the arrivals bring their own rate."""
        return self.is_replay or bool(self.parsed_arrivals and self.parsed_arrivals.ends)


SCENARIO = "arrivals"  # its row is in `mlperf`
