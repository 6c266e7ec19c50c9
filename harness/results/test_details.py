"""The details of a run's own test beside the figures that count: conditions, machine, servers, money and energy."""

from pydantic import AliasChoices, Field, JsonValue, NonNegativeInt

from harness.config.mlperf import LatencyLimits
from harness.core.formatting import Measured
from harness.core.schema import FrozenModel, StoredStatement
from harness.core.statistics import Spread
from harness.engines.answer_delivery import ServerUse
from harness.loadgen.log import Latency
from harness.loadgen.machine_use import MachineUse, Usage
from harness.results.cost import Capacity, Cost
from harness.results.figures import Figures
from harness.results.gpu_time import GpuTime
from harness.results.load_effect import LoadEffect

Intervals = dict[str, dict[str, tuple[float, Measured] | None]]  # intervals by kind of latency and percentile


class TestDetails(FrozenModel):
    """The details of a run's own test beside the figures that count. Latencies are in milliseconds."""

    __test__ = False  # no test of pytest's

    whole: Figures = Figures()
    """Figures of the whole test, ramps included, as LoadGen measured."""
    steady: Figures | None = None
    """Figures of the part of the test in which the engine had all its work; null if it is not known how many requests
    the engine takes at once."""
    machine: MachineUse = MachineUse()

    scenario: str = ""
    """Empty where no details are known."""
    invalid_reasons: list[StoredStatement] = []
    duration_s: Measured = None
    """Duration of the performance test, as LoadGen measured."""
    samples: int | None = None
    samples_per_query: int = 1
    """More than one only in MultiStream, where latencies are those of whole queries."""
    concurrency: int | None = None
    """Requests in flight, if their number was fixed. This program then measures latencies, from the time each request
    was sent."""
    arrivals: str | None = None
    """`--arrivals` as it was given; null if LoadGen scheduled the requests."""
    arrivals_cv: Measured = None
    """The coefficient of variation of the times between these arrivals: 0 is clockwork, 1 pure chance, more is
    bursts."""
    target_qps: Measured = None
    """Offline: samples/s expected; Server, Interactive: queries/s sent; else null."""
    achieved_qps: Measured = None
    """Queries answered a second; in Offline, which is one query, samples; with `--arrivals`, queries sent a second,
    without the drain."""
    failed_requests: NonNegativeInt | None = None
    """Requests that failed, left out of everything but `slo_attainment` and `valid`; null without --max-failed."""
    failures: list[str] = []
    """The error messages of the failed requests."""
    early_stopping: dict[str, JsonValue] = {}
    seeds: dict[str, int] = {}
    loadgen_version: str = ""
    errors: list[str] = []
    warnings: list[str] = []

    total_new_tokens: int | None = None
    """Output tokens: the ids that came; where a server sends text, its own count (`usage`) if each answer has one, else
    the text encoded with the model's tokenizer. `disagreements` has a difference of more than 2 %."""
    total_input_tokens: int | None = None
    """Prompt tokens; null in runs that did not record them."""
    input_lengths: Spread | None = None
    output_lengths: Spread | None = None
    longer: int = 0
    """Answers that are longer than the run allowed."""

    intervals: Intervals = {}
    """95 % intervals of p50, p90 and p99 of latency, TTFT and TPOT, from this test's requests by order statistics and
    blocks of time; null for fewer than 40 requests. The upper end is null if there are too few requests for it."""
    client_delay_ms: Latency | None = None
    """Server, Interactive, arrivals: from a query's scheduled time until this client sent it, which each latency and
    TTFT includes. Fixed concurrency: from an answer's end until the next request was sent in its place, which no
    latency includes."""
    single_token: NonNegativeInt = 0
    """Answers of one token, which have no time per output token; `tpot_ms` is that of the other answers."""
    tpot_judged: bool = True
    """Whether the other answers are enough to be sure that the p99 of TPOT keeps its limit."""
    limits_ms: LatencyLimits | None = None
    requests_in_flight: Measured = None
    """Requests in flight on average, by Little's law: rate x mean latency of a sample. Null in Offline, where all are
    issued at once."""

    peak_memory_gib: Measured = None
    """The most memory in use at once, summed over all GPUs; null without GPUs, or without --extra-metrics."""
    usage: dict[str, Usage] = {}
    """What engine and machine did, by quantity, recorded once a second; empty without --extra-metrics."""
    gpu_time: list[GpuTime] = []
    """Where the GPUs' time went in each probe, each attempt and, last, this test; empty without --extra-metrics."""
    ran_out: list[StoredStatement] = []
    """What was lost or used up during the test. What limited the speed comes first."""
    load_effect: LoadEffect | None = None
    """What other programs cost the steady part, by how the speed followed their load second by second; null without
    --extra-metrics, in a short test, and under a load that hardly varied."""
    server: ServerUse | None = None
    """What the servers behind an endpoint counted themselves; null if they did not, or there are none."""
    disagreements: list[str] = []
    """Where the wire shows what this program's own figures do not (tokens, the server's cache, delivery), in words."""

    cost: Cost | None = None
    capacity: Capacity | None = None
    mfu_percent: Measured = Field(default=None, validation_alias=AliasChoices("mfu_percent", "arithmetic_percent"))
    """Model FLOPs utilization: percent of the GPUs' peak arithmetic that an Offline test reached; null if the model or
    the GPU is not known."""
    mbu_percent: Measured = Field(default=None, validation_alias=AliasChoices("mbu_percent", "bandwidth_percent"))
    """Model bandwidth utilization: at least this percentage of the GPUs' memory bandwidth; null as for MFU."""

    @property
    def counted(self) -> Figures:
        """The figures that count: of the steady part if its latencies are known, else of the whole test."""
        if self.steady and self.steady.ttft_ms:
            return self.steady
        return self.whole

    @property
    def is_whole(self) -> bool:
        """Tell whether the figures that count are of the whole test."""
        return self.counted is self.whole
