"""What MLPerf fixes for Llama-3.1-8B: sample counts, reference scores, gates, latency limits, seeds.

Sources: the constants of the official submission checker (tools/submission in mlcommons/inference), the
`mlperf.conf` built into the LoadGen wheel, and the benchmark's README (language/llama3.1-8b).
"""

from dataclasses import dataclass, fields

SCENARIOS = {"datacenter": ("offline", "server", "interactive"), "edge": ("offline", "singlestream")}

# LoadGen has no Interactive scenario: it is Server under another model name, with tighter limits.
LOADGEN_SCENARIO = {
    "offline": "Offline",
    "server": "Server",
    "interactive": "Server",
    "singlestream": "SingleStream",
}

PROMPT = (
    "Summarize the following news article in 128 tokens. Please output the summary only, "
    "without any other text.\n\nArticle:\n{input}\n\nSummary:"
)
MAX_NEW_TOKENS = 128
MIN_NEW_TOKENS = 1
EDGE_SHUFFLE_SEED = 42
SHAPE = {  # Llama-3.1-8B, from its config.json
    **{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072},
}
LONGEST_PROMPT = 2540  # tokens, of the 13,368 official samples
FEW = 30  # samples of a part below which a bootstrap says too little: of one sample, the interval is a point
MIN_DURATION_S = 600.0


@dataclass(frozen=True)
class Seeds:
    """LoadGen's random seeds, drawn anew for each MLPerf round."""

    qsl: int
    sample_index: int
    schedule: int


SEEDS = {
    "5.1": Seeds(1780908523862526354, 14771362308971278857, 18209322760996052031),
    "6.0": Seeds(2465351861681999779, 14276810075590677512, 3936089224930324775),
    "6.1": Seeds(2085463073848966840, 2747215439041700203, 16159082839903944936),
}


@dataclass(frozen=True)
class Scores:
    """ROUGE F1 x100 (mean over samples) and gen_len (characters, summed over samples)."""

    rouge1: float
    rouge2: float
    rougeL: float
    rougeLsum: float
    gen_len: float


ROUGE = tuple(field.name for field in fields(Scores) if field.name.startswith("rouge"))
SCORES = {name: name.replace("rouge", "ROUGE-") for name in (*ROUGE, "gen_len")}  # as people write them
SAMPLE_SCORES = ROUGE  # the means over samples
SHORT_SCORES = ("rouge1", "rougeL")  # where there is no room for all; the first where there is room for one


@dataclass(frozen=True)
class Task:
    """One category of the benchmark: how many samples, and what the reference model scores on them."""

    samples: int
    reference: Scores
    min_duration_s: float = MIN_DURATION_S


OFFICIAL = {
    "datacenter": Task(13368, Scores(38.7792, 15.9075, 24.4957, 35.7930, 8167644)),
    "edge": Task(5000, Scores(39.0600, 16.1147, 24.6375, 36.1240, 3051113)),
}


@dataclass(frozen=True)
class Limits:
    """99th-percentile limits that make a run VALID, in milliseconds."""

    ttft_ms: float
    tpot_ms: float


LIMITS = {"server": Limits(2000, 100), "interactive": Limits(500, 30)}


@dataclass(frozen=True)
class Scenario:
    """How LoadGen sends the samples, and what a result of it is judged by."""

    streaming: bool = True  # whether LoadGen is told of each first token
    limits: Limits | None = None  # only at a fixed rate of queries
    planned_by_rate: bool = True  # whether LoadGen is told a rate, rather than a latency
    headline: str = "tokens_per_sec"  # the metric that MLPerf publishes

    @property
    def fixed_rate(self) -> bool:
        """Whether LoadGen sends queries at a given rate, so that the speed follows from the rate."""
        return self.limits is not None


SCENARIO = {
    "offline": Scenario(streaming=False),
    "server": Scenario(limits=LIMITS["server"]),
    "interactive": Scenario(limits=LIMITS["interactive"]),
    "singlestream": Scenario(planned_by_rate=False, headline="latency_p90_ms"),
}


def loadgen_model(category: str, scenario: str) -> str:
    """The model name under which `mlperf.conf` keeps this benchmark's settings."""
    if category == "edge":
        return "llama3_1-8b-edge"
    return "llama3_1-8b-interactive" if scenario == "interactive" else "llama3_1-8b"


@dataclass(frozen=True)
class Bounds:
    """What a score must keep to: floors for ROUGE, a corridor for gen_len."""

    floor: dict[str, float]
    gen_len: tuple[float, float]


GATE = {False: 0.99, True: 0.999}  # share of the reference that each ROUGE score must reach, by high accuracy or not


def bounds(reference: Scores, high_accuracy: bool = False) -> Bounds:
    """ROUGE at least 0.99 of the reference (0.999 for high accuracy), gen_len within 10 % of it."""
    floor = {name: GATE[high_accuracy] * getattr(reference, name) for name in ROUGE}
    return Bounds(floor, (0.9 * reference.gen_len, 1.1 * reference.gen_len))
