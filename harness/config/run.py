"""The flags of a benchmark run beyond its engine's, each defined once; and the checks across flags."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from harness.common.coerce import as_flag, require
from harness.common.errors import UsageError
from harness.common.system import cores
from harness.config import endpoint as endpoints
from harness.config import mlperf, profile, workload
from harness.config.engine import EngineConfig, affecting
from harness.config.flags import ACCURACY, BENCHMARK, DATA, MAXIMA, MODEL, OUTPUT, RATE, Auto, check_range, flag

ScenarioName = Literal["offline", "server", "interactive", "singlestream", "multistream", "concurrency", "arrivals"]
MOST_MS = 10**6  # of a latency limit, which LoadGen holds in whole milliseconds


@dataclass(frozen=True)
class Need:
    """A flag that only some scenarios take, and the one that it chooses where none is named."""

    flag: str
    is_met: Callable[[mlperf.Scenario], bool]
    implies: str = ""


NEEDS = (  # the first of them that is given chooses
    Need("concurrency", lambda rules: rules.capped, "concurrency"),
    Need("arrivals", lambda rules: rules.scheduled, "arrivals"),
    Need("samples_per_query", lambda rules: rules.multi_sample_queries, "multistream"),
    Need("server_target_qps", lambda rules: rules.sends("poisson"), "server"),
    Need("offline_expected_qps", lambda rules: rules.sends("burst"), "offline"),
    Need("batch_size", lambda rules: rules.sends("burst"), "offline"),
    Need("sort_by_length", lambda rules: rules.sends("burst"), "offline"),
    Need("ttft_limit", lambda rules: rules.limits is not None),
    Need("tpot_limit", lambda rules: rules.limits is not None),
)


@dataclass(frozen=True, kw_only=True)
class RunConfig(workload.WorkloadFlags, profile.ProfileFlags, endpoints.EndpointFlags, EngineConfig):
    """One run of the benchmark, as its flags say."""

    backend: Literal["auto", "vllm", "openai", "echo"] = flag(  # type: ignore[assignment]
        "auto",
        MODEL,
        "answers",
        "vllm: in this process; openai: a running server with an OpenAI API; echo: computes nothing and answers at "
        "once, to try the harness. auto: openai with --endpoint, else vllm.",
    )

    round: Literal["5.1", "6.0", "6.1"] = flag(
        "5.1", BENCHMARK, "answers", "MLPerf Inference round: its seeds and rules."
    )
    category: Literal["auto", "datacenter", "edge"] = flag(
        "auto",
        BENCHMARK,
        "work",
        "Which sample set and scenarios. auto: datacenter, or edge for singlestream, which it alone has.",
    )
    scenario: ScenarioName = flag(
        "offline",
        BENCHMARK,
        "work",
        "offline: all at once; server: random arrivals within latency limits; interactive: the same, tighter; "
        "singlestream: one at a time; multistream, concurrency: N at a time; arrivals: at times of your own. "
        "datacenter takes all but singlestream; edge takes all but server and interactive.",
    )
    mode: Literal["accuracy", "performance", "both"] = flag(
        "both", BENCHMARK, "nothing", "Check the answers, measure the speed, or one after the other on one engine."
    )
    compliance: Literal["none", "test04", "test06"] = flag(
        "none",
        BENCHMARK,
        "nothing",
        "One of MLPerf's compliance tests after the others. test06: logged outputs match what was reported to LoadGen; "
        "test04: a repeated sample is not answered from a cache.",
    )
    max_new_tokens: int = flag(mlperf.MAX_NEW_TOKENS, BENCHMARK, "work", "Longest answer, in tokens. MLPerf: 128.")
    total_sample_count: int | Auto = flag(
        "auto",
        BENCHMARK,
        "work",
        "Samples to use. auto: all of them. Fewer make a short run, not comparable with MLPerf.",
    )
    seed: int | None = flag(
        None, BENCHMARK, "answers", "Replaces LoadGen's seeds and sets vLLM's. Unset: the round's official seeds."
    )

    dataset: Literal["cnndm"] = flag("cnndm", DATA, "work", "")  # no choice, so not shown; taken from older commands
    dataset_path: Path | None = flag(
        None, DATA, "work", "The MLCommons JSON (cnn_eval.json), or a folder saved by `datasets`. Unset: downloaded."
    )

    server_target_qps: float | Literal["auto", "max"] | tuple[float, ...] = flag(
        "auto",
        RATE,
        "speed",
        "Queries/s (server, interactive, arrivals). auto: 0.8 (server) or 0.6 (interactive) of the Offline "
        "rate; max: search for the highest rate that is VALID, then run at it; 5,10,20: test each rate, then run at "
        "the highest that is VALID.",
    )
    samples_per_query: int | tuple[int, ...] = flag(
        8,
        RATE,
        "work",
        "MultiStream: samples sent at once, the next when all are answered. 1,2,4,8: test each, then run "
        "with the most.",
        metavar="N[,N...]",
    )
    concurrency: int | Literal["auto", "max"] | tuple[int, ...] | None = flag(
        None,
        RATE,
        "speed",
        "Requests in flight; the next is sent as soon as one is answered. Implies --scenario concurrency. 1,4,16: a "
        "test at each; auto: powers of 4 up to what the engine computes at once; max: the highest that keeps both "
        "limits.",
    )
    ttft_limit: int | None = flag(
        None,
        RATE,
        "speed",
        "Limit on TTFT p99 (time to first token), ms. Of server, interactive, concurrency, arrivals. Unset: MLPerf's.",
    )
    tpot_limit: int | None = flag(
        None,
        RATE,
        "speed",
        "Limit on TPOT p99 (time per output token), ms. As --ttft-limit. Unset: MLPerf's.",
    )
    offline_expected_qps: float | Auto = flag(
        "auto", RATE, "speed", "Samples per second that LoadGen plans for. auto: measured on the loaded engine first."
    )
    min_duration: float | Auto = flag(
        "auto", RATE, "speed", "Minimum seconds of a performance run. auto: MLPerf's 600, less for a short run."
    )
    batch_size: int | None = flag(
        None, RATE, "speed", "Offline in fixed batches of N, one after the other. Unset: continuous batching."
    )
    sort_by_length: bool = flag(False, RATE, "speed", "Offline: longest prompt first in each pass of the data.")

    high_accuracy: bool = flag(False, ACCURACY, "nothing", "Gate at 99.9 % of the reference, not 99 %.")
    disable_accuracy_gate: bool = flag(False, ACCURACY, "nothing", "Report the scores without a verdict.")
    no_exit_on_accuracy_fail: bool = flag(
        False, ACCURACY, "nothing", "Continue with performance, and exit with 0, if the gate fails."
    )
    exit_on_invalid: bool = flag(
        False, ACCURACY, "nothing", "Exit with 1 if LoadGen calls the performance run INVALID, or logs errors in it."
    )

    price_per_hour: float | None = flag(
        None,
        OUTPUT,
        "nothing",
        "The machine's price per hour, in any currency. The report gives the cost of tokens.",
    )
    label: str = flag("", OUTPUT, "nothing", "A name for this run, in reports. report.py takes it instead of a path.")
    dry_run: bool = flag(
        False,
        OUTPUT,
        "nothing",
        "Print what would be run, on what and for how long, and run nothing; exit code 2 if it could not begin.",
    )
    json: bool = flag(
        False,
        OUTPUT,
        "nothing",
        "Print summary.json alone on standard output; all else on standard error.",
    )
    results_dir: Path = flag(Path("results"), OUTPUT, "nothing", "Where run folders go.")
    keep_all: Literal[0, 1] = flag(1, OUTPUT, "nothing", "0: delete older run folders at the end.")
    extra_metrics: bool = flag(
        False,
        OUTPUT,
        "nothing",
        "Record engine and machine telemetry once a second: requests, KV cache, tokens; GPU, CPU, memory.",
    )

    def __post_init__(self, given: frozenset[str]) -> None:
        super().__post_init__(given)
        given |= {item.name for item in fields(self) if getattr(self, item.name) != item.default}
        object.__setattr__(self, "backend", endpoints.backend(self.backend, self.endpoint, given))
        object.__setattr__(self, "endpoint", endpoints.checked(self.endpoint))
        object.__setattr__(self, "metrics_url", endpoints.checked(self.metrics_url, "--metrics-url"))
        self.check_workload(self.mode, given)
        self.take_scenario(given)
        if self.category == "auto":
            object.__setattr__(self, "category", self.scenario_rules.categories[0])
        allowed = mlperf.SCENARIOS[self.category]
        if self.scenario not in allowed:
            raise UsageError(f"--category {self.category} takes --scenario {', '.join(allowed)}; not {self.scenario}.")
        require(self.seed is None or 0 <= self.seed < 2**32, "--seed", "a whole number from 0 to 4294967295")
        for name in MAXIMA.keys() & given:
            check_range(name, getattr(self, name))
        for name in ("ttft_limit", "tpot_limit"):
            value = getattr(self, name)
            require(
                value is None or 0 < value <= MOST_MS, as_flag(name), f"whole milliseconds above 0, at most {MOST_MS:,}"
            )
        if self.scenario_rules.unofficial and self.compliance != "none":
            why = self.scenario_rules.unofficial
            raise UsageError(f"--compliance {self.compliance} is for MLPerf's scenarios; {why}.")
        price = self.price_per_hour
        require(price is None or 0 <= price < math.inf, "--price-per-hour", "a number of 0 or more")
        for name, loads in (("samples_per_query", self.batches), ("concurrency", self.levels[1:])):
            if loads and self.mode == "accuracy":
                raise UsageError(f"{as_flag(name)} with several numbers tests speeds: not with --mode accuracy.")
        if self.tries_rates and self.scenario_rules.scheduled:
            raise UsageError("--arrivals takes one rate: --server-target-qps X, or auto.")
        if self.tries_rates and (self.mode == "accuracy" or not self.scenario_rules.fixed_rate):
            raise UsageError(
                "--server-target-qps max, or several rates, tests speeds: it takes --scenario server or interactive, "
                "and --mode performance or both."
            )
        if endpoints.may_fail(self.max_failed, 10**9) and self.compliance != "none":
            raise UsageError(f"--compliance {self.compliance} takes every answer: leave out --max-failed.")
        if self.dry_run and self.json:
            raise UsageError("--json prints the summary of a run, and --dry-run makes none: give one.")
        for name in ("server_target_qps", "samples_per_query", "concurrency"):
            if isinstance(loads := getattr(self, name), tuple) and len(set(loads)) < len(loads):
                raise UsageError(f"{as_flag(name)}: a number is given twice.")
        self.check_profile(self.mode, self.engine_args)
        timed = self.scenario_rules.streaming and self.mode != "accuracy" and self.official_workload
        if timed and self.max_new_tokens < mlperf.STREAMED_LEAST:
            raise UsageError(
                f"--max-new-tokens {self.max_new_tokens}: answers of less than {mlperf.STREAMED_LEAST} tokens have no "
                f"time per output token, which is a result of --scenario {self.scenario}."
            )
        if self.compliance == "test04" and (self.mode == "accuracy" or self.scenario_rules.fixed_rate):
            raise UsageError(
                "--compliance test04 compares speeds: it takes --mode performance or both, and --scenario offline or "
                "singlestream, where LoadGen does not set the pace."
            )

    def take_scenario(self, given: frozenset[str]) -> None:
        """Takes the scenario that a flag needs where none is named. Raises UsageError where flags need others."""
        needs = [need for need in NEEDS if need.flag in given]
        source = f"--scenario {self.scenario}"
        if "scenario" not in given and (implying := next((need for need in needs if need.implies), None)):
            object.__setattr__(self, "scenario", implying.implies)
            source = as_flag(implying.flag)
        for need in needs:
            if not need.is_met(self.scenario_rules):
                takes = [rules.name for rules in mlperf.SCENARIO.values() if need.is_met(rules)]
                raise UsageError(
                    f"{as_flag(need.flag)} does not go with {source}: it is for --scenario {', '.join(takes)}."
                )
        if self.scenario_rules.capped and self.concurrency is None:
            object.__setattr__(self, "concurrency", "auto")
        if self.scenario_rules.scheduled and self.arrivals is None:
            object.__setattr__(self, "arrivals", "poisson")
        most = self.max_in_flight * len(self.endpoint)
        if self.endpoint and max(self.levels, default=0) > most:
            raise UsageError(
                f"--concurrency {max(self.levels):,}: {len(self.endpoint)} endpoint(s) take {most:,} at once; raise "
                "--max-in-flight."
            )

    @property
    def arrival_rate(self) -> float | str:
        """Requests a second on average, where this program sends them: what was asked for, else a ramp's own."""
        shape, rate = self.parsed_arrivals, self.server_target_qps
        if rate == "auto" and shape and shape.ends:
            return sum(shape.ends) / 2
        return rate if isinstance(rate, float) else "auto"

    @property
    def levels(self) -> tuple[int, ...]:
        """The concurrencies that were given as numbers, in order."""
        flag = self.concurrency
        numbers = flag if isinstance(flag, tuple) else (flag,) if isinstance(flag, int) else ()
        return tuple(sorted(set(numbers)))

    @property
    def headline(self) -> str:
        work = "" if self.official_workload else f", {self.workload_name}"
        return f"{self.model}, {self.category} {self.scenario}{work}, {self.mode}, MLPerf v{self.round}"

    @property
    def tries_rates(self) -> bool:
        """Whether several rates are tested before the run itself."""
        return self.server_target_qps == "max" or isinstance(self.server_target_qps, tuple)

    @property
    def is_searched(self) -> bool:
        """Whether the highest load within the limits is searched for."""
        return "max" in (self.server_target_qps, self.concurrency)

    @property
    def batches(self) -> tuple[int, ...]:
        """The samples per query that are tested before the run itself; none where there is one number."""
        return self.samples_per_query if isinstance(self.samples_per_query, tuple) else ()

    @property
    def computes(self) -> bool:
        """Whether this process and those it starts compute the answers, on this machine's GPUs if it has any."""
        return self.backend == "vllm"

    @property
    def clients(self) -> int:
        """Processes that send requests to an endpoint."""
        flag = self.client_processes
        return endpoints.client_processes(len(cores())) if flag == "auto" else flag

    @property
    def scenario_rules(self) -> mlperf.Scenario:
        """The scenario with all that MLPerf fixes of it."""
        return mlperf.SCENARIO[self.scenario]

    @property
    def work(self) -> dict[str, object]:
        """The work of the engine, by flag: speeds at other work are not compared."""
        data = str(self.dataset_path or self.model_spec.data or "hub")
        return {name: getattr(self, name) for name in affecting(RunConfig, "work")} | {"dataset_path": data}

    @property
    def task(self) -> mlperf.Task:
        """The samples, and the reference scores for their answers."""
        return self.model_spec.task(self.category, self.scenario)
