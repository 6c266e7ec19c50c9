"""MLPerf's rules for Llama-3.1-8B, as rows: scenarios, tasks, limits, seeds, the gate.

Sources: the constants of the official submission checker (tools/submission in mlcommons/inference), the
`mlperf.conf` built into the LoadGen wheel, and the benchmark's README (language/llama3.1-8b).
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

from harness.config.patterns import Batched, Burst, ClosedLoop, LoadPattern, Poisson, Schedule, Sequential
from harness.core.formatting import number

PROMPT = (
    "Summarize the following news article in 128 tokens. Please output the summary only, "
    "without any other text.\n\nArticle:\n{input}\n\nSummary:"
)
MAX_NEW_TOKENS = 128
MIN_NEW_TOKENS = 1
FEWEST_STREAMED_TOKENS = 2  # tokens of an answer; a shorter one has no time per output token
EDGE_SHUFFLE_SEED = 42
LONGEST_PROMPT = 2540  # tokens, of the 13,368 official samples
MEAN_PROMPT = 778  # tokens, roughly, of the official samples of either category
MIN_DURATION_S = 600.0


class Tail(NamedTuple):
    """TTFT or TPOT at p99 against its limit, both in milliseconds."""

    kind: str
    p99: float
    limit: float

    @property
    def is_over(self) -> bool:
        return self.p99 > self.limit

    @property
    def share(self) -> float:
        """The percentile as a share of the limit."""
        return self.p99 / self.limit

    def text(self, name: str) -> str:
        """Return the percentile with its limit in words. `name` names the percentile, as in "TTFT p99"."""
        percentile, limit = f"{name} {number(self.p99)} ms", f"{number(self.limit)} ms"
        if self.is_over:
            return f"{percentile}, over the limit of {limit}"
        return f"{percentile} (limit {limit})"


@dataclass(frozen=True)
class LatencyLimits:
    """99th-percentile limits that make a run VALID, in milliseconds."""

    ttft: float
    tpot: float

    def tails(self, ttft_p99_ms: float | None, tpot_p99_ms: float | None) -> list[Tail]:
        """Return the p99 of TTFT and the p99 of TPOT, beside their limits. A p99 that is None is left out."""
        known = []
        if ttft_p99_ms is not None:
            known.append(Tail("TTFT", ttft_p99_ms, self.ttft))
        if tpot_p99_ms is not None:
            known.append(Tail("TPOT", tpot_p99_ms, self.tpot))
        return known


class Scenario(NamedTuple):
    """One scenario of the benchmark. `unofficial` says why the benchmark has no such scenario."""

    name: str
    loadgen: str  # LoadGen's scenario: Interactive is LoadGen's Server under another model name, with tighter limits
    categories: tuple[str, ...]
    pattern: LoadPattern
    headline: str = "tokens_per_sec"  # the metric that is the scenario's result
    limits: LatencyLimits | None = None
    offline_share: float | None = None  # with a rate of `auto`, queries are sent at this share of the Offline rate
    loadgen_model: str = "llama3_1-8b"  # LoadGen's model name in the datacenter category
    unofficial: str = ""
    min_duration_s: float = MIN_DURATION_S

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that this scenario takes beside those of every scenario.

        They are those of its load pattern and, if it has latency limits, the flags that change the limits.
        """
        if self.limits is None:
            return self.pattern.flags
        return (*self.pattern.flags, "ttft_limit", "tpot_limit")


SERVER_LIMITS = LatencyLimits(2000, 100)
CATEGORIES = ("datacenter", "edge")
# Random arrivals come in bursts, for which Server's share of the Offline rate leaves room. Interactive's share is
# lower, since its TPOT limit is tighter.
SCENARIOS = {
    rules.name: rules
    for rules in (
        Scenario("offline", "Offline", CATEGORIES, Burst()),
        Scenario("server", "Server", ("datacenter",), Poisson(), limits=SERVER_LIMITS, offline_share=0.8),
        Scenario(
            "interactive",
            "Server",
            ("datacenter",),
            Poisson(),
            limits=LatencyLimits(500, 30),
            offline_share=0.6,
            loadgen_model="llama3_1-8b-interactive",
        ),
        Scenario("singlestream", "SingleStream", ("edge",), Sequential(), "latency_p90_ms"),
        Scenario(
            "multistream",
            "MultiStream",
            CATEGORIES,
            Batched(),
            "latency_p90_ms",
            unofficial="MultiStream is not a scenario of this benchmark",
        ),
        Scenario(
            "concurrency",
            "Offline",
            CATEGORIES,
            ClosedLoop(),
            limits=SERVER_LIMITS,
            unofficial="a fixed concurrency is not a scenario of this benchmark",
            min_duration_s=120.0,
        ),
        Scenario(
            "arrivals",
            "Offline",
            CATEGORIES,
            Schedule(),
            limits=SERVER_LIMITS,
            offline_share=0.8,
            unofficial="custom arrivals are not a scenario of this benchmark",
            min_duration_s=120.0,
        ),
    )
}
SCENARIOS_BY_CATEGORY = {
    category: tuple(rules.name for rules in SCENARIOS.values() if category in rules.categories)
    for category in CATEGORIES
}


@dataclass(frozen=True)
class Seeds:
    """LoadGen's random seeds, drawn anew for each MLPerf round."""

    qsl: int
    sample_index: int
    schedule: int


SEEDS_BY_ROUND = {
    "5.1": Seeds(1780908523862526354, 14771362308971278857, 18209322760996052031),
    "6.0": Seeds(2465351861681999779, 14276810075590677512, 3936089224930324775),
    "6.1": Seeds(2085463073848966840, 2747215439041700203, 16159082839903944936),
}


@dataclass(frozen=True)
class ReferenceScores:
    """ROUGE F1 x100 (mean over samples) and gen_len (characters, summed over samples)."""

    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815 (the metric's own name)
    rougeLsum: float  # noqa: N815 (the metric's own name)
    gen_len: float


ROUGE = tuple(field.name for field in fields(ReferenceScores) if field.name.startswith("rouge"))
SCORES = {name: name.replace("rouge", "ROUGE-") for name in (*ROUGE, "gen_len")}  # as people write them
SHORT_SCORES = ("rouge1", "rougeL")  # the scores shown if there is no room for all; the first if there is room for one


@dataclass(frozen=True)
class Task:
    """One category of the benchmark: how many samples, and what the reference model scores on them."""

    samples: int
    reference: ReferenceScores
    min_duration_s: float = MIN_DURATION_S


OFFICIAL_TASKS = {
    "datacenter": Task(13368, ReferenceScores(38.7792, 15.9075, 24.4957, 35.7930, 8167644)),
    "edge": Task(5000, ReferenceScores(39.0600, 16.1147, 24.6375, 36.1240, 3051113)),
}


# The share of the reference that each ROUGE score must reach, by whether high accuracy is asked for.
GATE_SHARE = {False: 0.99, True: 0.999}


def bounds(reference: ReferenceScores, high_accuracy: bool) -> dict[str, tuple[float, float | None]]:
    """Return the lowest and the highest value that each score may have. None for no limit.

    ROUGE must reach 0.99 of the reference, or 0.999 for high accuracy. gen_len must be within 10 % of the reference.
    """
    score_bounds: dict[str, tuple[float, float | None]] = {}
    for name in ROUGE:
        score_bounds[name] = (GATE_SHARE[high_accuracy] * getattr(reference, name), None)
    score_bounds["gen_len"] = (0.9 * reference.gen_len, 1.1 * reference.gen_len)
    return score_bounds
