"""The flags of a benchmark run beyond its engine's, each defined once; and the checks across flags."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import NonNegativeFloat, model_validator

from harness.config import engine, lengths, mlperf, server_addresses, workload
from harness.config.flags import ACCURACY_TOPIC, BENCHMARK_TOPIC, DATA_TOPIC, LOAD_TOPIC, RESULTS_TOPIC, flag
from harness.config.setting_types import (
    Auto,
    Concurrency,
    Count,
    Distinct,
    Milliseconds,
    Rate,
    Seconds,
    Seed,
    positive_bounds,
)
from harness.core.formatting import alternatives
from harness.core.given_values import flag_name
from harness.core.locations import ROOT
from harness.core.word_list import names_in

ScenarioName = Literal["offline", "server", "interactive", "singlestream", "multistream", "concurrency", "arrivals"]


# Flags that only some scenarios take. If no scenario is named, the first of them that is given chooses its scenario.
SCENARIO_BY_FLAG = {
    "concurrency": "concurrency",
    "arrivals": "arrivals",
    "samples_per_query": "multistream",
    "server_target_qps": "server",
    "quick": "server",
    "offline_expected_qps": "offline",
    "batch_size": "offline",
    "sort_by_length": "offline",
}
LONGEST_LABEL = 100  # characters
LIMIT_FLAGS = ("ttft_limit", "tpot_limit")


def unused_settings(scenario: str) -> set[str]:
    """Return the settings that this scenario does not use but others do."""
    return {*SCENARIO_BY_FLAG, *LIMIT_FLAGS} - {*mlperf.SCENARIOS[scenario].flags}


def scenario_flag(given: frozenset[str]) -> str:
    """Return the flag that implies the scenario, such as `concurrency`. `given` are the settings that the user named.

    Empty if the user named the scenario itself, or no flag that implies a scenario. If several flags imply one, the
    first in SCENARIO_BY_FLAG counts.
    """
    if "scenario" not in given:
        for name in SCENARIO_BY_FLAG:
            if name in given:
                return name
    return ""


def scenario_of(settings: Mapping[str, object]) -> str:
    """Return the scenario that the settings of a file name, or that one of them implies; else "offline"."""
    named = frozenset(name for name, value in settings.items() if value)
    return SCENARIO_BY_FLAG.get(scenario_flag(named), str(settings.get("scenario", "offline")))


TEST_FLAGS = names_in("server_target_qps compliance profile json mlflow")  # flags of a test or its report


class RunConfig(workload.WorkloadFlags, engine.EndpointFlags):
    """One run of the benchmark, as its flags say."""

    round: Literal["5.1", "6.0", "6.1"] = flag("6.1", BENCHMARK_TOPIC, "answers")
    """MLPerf Inference version (round), with its seeds and rules: change it to submit to another."""
    category: Literal["auto", "datacenter", "edge"] = flag("auto", BENCHMARK_TOPIC, "work")
    """MLPerf category: samples and scenarios. auto: datacenter, or edge for singlestream, which only edge has."""
    scenario: ScenarioName = flag("offline", BENCHMARK_TOPIC, "work", metavar="NAME[,NAME...]")
    """offline: all at once; server: random arrivals within latency limits; interactive: the same, tighter;
    singlestream: one at a time; multistream: N at once, then the next N; concurrency: always N in flight; arrivals: at
    times you choose. datacenter takes all but singlestream; edge takes all but server and interactive. offline,server:
    two runs on one engine."""
    following_scenarios: tuple[ScenarioName, ...] = ()
    mode: Literal["accuracy", "performance", "both"] = flag("both", BENCHMARK_TOPIC, "nothing")
    """Check the answers, measure the speed, or both in turn on one engine."""
    compliance: Literal["none", "test06"] = flag("none", BENCHMARK_TOPIC, "nothing")
    """Also run MLPerf's compliance test. test06: logged outputs match what was reported to LoadGen."""
    max_new_tokens: Count = flag(mlperf.MAX_NEW_TOKENS, BENCHMARK_TOPIC, "work")
    """Longest answer, in tokens: MLPerf's is 128, a lower one makes a trial shorter."""
    total_sample_count: Annotated[int, positive_bounds(2**40)] | Auto = flag("auto", BENCHMARK_TOPIC, "work")
    """Samples to use: fewer make a short run, not comparable with MLPerf. auto: all of them."""
    seed: Seed | None = flag(None, BENCHMARK_TOPIC, "answers")
    """Replace LoadGen's seeds, and set vLLM's. Unset: the round's official seeds."""

    dataset: Literal["cnndm"] = flag("cnndm", DATA_TOPIC, "work")  # no choice, so not shown; taken from older commands
    dataset_path: Path | None = flag(None, DATA_TOPIC, "work")
    """The MLCommons JSON (cnn_eval.json), or a folder saved by `datasets`. Unset: downloaded."""

    server_target_qps: Rate | Literal["auto", "max"] | Annotated[tuple[Rate, ...], Distinct] = flag(
        "auto", LOAD_TOPIC, "speed"
    )
    """Queries/s (server, interactive, arrivals); auto: 0.8 (interactive: 0.6) times the measured Offline rate; max: the
    highest rate that is VALID; a list such as 5,10,20: probe each rate, then run at the highest that is VALID."""
    quick: bool = flag(False, LOAD_TOPIC, "nothing")
    """Estimate, in at most two minutes, which rates meet the latency limits of server and interactive. No result: never
    VALID."""
    samples_per_query: Count | Annotated[tuple[Count, ...], Distinct] = flag(8, LOAD_TOPIC, "work")
    """MultiStream: samples per query, the next when all are answered. 1,2,4,8: test each, then run with the most."""
    concurrency: Concurrency | Literal["auto", "max"] | Annotated[tuple[Concurrency, ...], Distinct] | None = flag(
        None, LOAD_TOPIC, "speed"
    )
    """Requests kept in flight; a list such as 1,4,16: a test at each; auto: 1, 4, 16 and so on, up to what the engine
    computes at once; max: the most within --ttft-limit and --tpot-limit. The next is sent as soon as one is answered.
    Implies --scenario concurrency, in which auto is the default."""
    ttft_limit: Milliseconds | None = flag(None, LOAD_TOPIC, "speed")
    """Limit on TTFT p99 (time to first token), ms. For server, interactive, concurrency, arrivals. Unset: MLPerf's."""
    tpot_limit: Milliseconds | None = flag(None, LOAD_TOPIC, "speed")
    """Limit on TPOT p99 (time per output token), ms. As --ttft-limit. Unset: MLPerf's."""
    offline_expected_qps: Rate | Auto = flag("auto", LOAD_TOPIC, "speed")
    """Samples per second that LoadGen plans for. auto: measured on the loaded engine first."""
    minutes: Annotated[float, positive_bounds(10**5)] | None = flag(None, LOAD_TOPIC, "nothing")
    """Minutes that a search or a curve has after its engine's start, beside accuracy: it leaves out what does not fit.
    With --quick they are its ceiling, else 2.
    """
    min_duration: Seconds | Auto = flag("auto", LOAD_TOPIC, "speed")
    """Minimum seconds of a performance test. auto: MLPerf's 600, less for a short run."""
    batch_size: Annotated[int, positive_bounds(10**7)] | None = flag(None, LOAD_TOPIC, "speed")
    """Offline in fixed batches of N, one after the other. Unset: continuous batching."""
    sort_by_length: bool = flag(False, LOAD_TOPIC, "speed")
    """Offline: longest prompt first in each pass of the data."""

    high_accuracy: bool = flag(False, ACCURACY_TOPIC, "nothing")
    """Require 99.9 % of the reference scores instead of 99 %: for unquantized or lightly quantized weights."""
    no_exit_on_accuracy_fail: bool = flag(False, ACCURACY_TOPIC, "nothing")
    """Continue with performance, and exit with 0, if the gate fails."""
    exit_on_invalid: bool = flag(False, ACCURACY_TOPIC, "nothing")
    """Exit with 1 if LoadGen calls the performance test INVALID, or logs errors in it."""

    profile: bool = flag(False, RESULTS_TOPIC, "nothing")
    """After the tests, profile a short load with vLLM's profiler: where the engine's time goes."""
    price_per_hour: NonNegativeFloat | None = flag(None, RESULTS_TOPIC, "nothing")
    """The machine's price per hour, in any currency. The report gives the cost of tokens."""
    label: str = flag("", RESULTS_TOPIC, "nothing")
    """Name of this run in reports. report.py takes it instead of a path."""
    dry_run: bool = flag(False, RESULTS_TOPIC, "nothing")
    """Print what would be run, on what and for how long, and run nothing; exit code 2 if it could not begin."""
    json: bool = flag(False, RESULTS_TOPIC, "nothing")  # type: ignore[assignment]  # of pydantic's own older methods
    """Print summary.json alone on standard output; all else on standard error."""
    results_dir: Path = flag(Path("results"), RESULTS_TOPIC, "nothing")
    """Folder for the runs; use separate folders to keep experiments apart."""
    keep_all: bool = flag(True, RESULTS_TOPIC, "nothing")
    """0: at the end of this run, delete older run folders in --results-dir to save disk space."""
    extra_metrics: bool = flag(False, RESULTS_TOPIC, "nothing")
    """Record requests, KV cache, tokens, GPU, CPU and memory once a second, to see what limits the speed."""

    BASIC = """
        category scenario mode model workload max_new_tokens total_sample_count round server_target_qps concurrency
        ttft_limit tpot_limit quick min_duration backend precision quantization kv_cache_dtype endpoint
        tensor_parallel_size max_model_len gpu_memory_utilization max_num_seqs max_num_batched_tokens engine_arg
        dataset_path high_accuracy price_per_hour label dry_run extra_metrics results_dir keep_all
        """

    @model_validator(mode="before")
    @classmethod
    def split_scenarios(cls, settings: object) -> object:
        """Return the settings with the first of several scenarios, and with the others as `following_scenarios`.

        If one of the others has an unknown name, that name becomes the scenario, so that the check of --scenario
        reports it. Settings with one scenario are returned unchanged.
        """
        match settings:
            case {"scenario": str() as names, **others} if "," in names:
                first, *following = [name.strip() for name in names.split(",")]
                unknown = [name for name in following if name not in get_args(ScenarioName)]
                if unknown:
                    return others | {"scenario": unknown[0]}
                return others | {"scenario": first, "following_scenarios": tuple(following)}
        return settings

    @property
    def scenarios(self) -> tuple[str, ...]:
        return (self.scenario, *self.following_scenarios)

    @property
    def runs(self) -> list[Self]:
        """The runs of the command, one for each scenario. Raises UsageError if one of them cannot be used."""
        if not self.following_scenarios:
            return [self]
        return [self.run_of(scenario) for scenario in self.scenarios]

    def run_of(self, scenario: str) -> Self:
        """Return the settings for the run of one scenario, without those that only other scenarios of the command use.

        --minutes is kept only if the run is a search or a curve (`accepts_minutes`), since other runs refuse it.
        """
        settings = self.values(self.model_fields_set) | {"scenario": scenario}
        del settings["following_scenarios"]
        for name in unused_settings(scenario) & settings.keys():
            del settings[name]
        given_minutes = settings.pop("minutes", None)
        run = self.from_mapping(settings)  # Only complete settings tell whether the run takes --minutes.
        if run.accepts_minutes and given_minutes is not None:
            run = run.with_settings(minutes=given_minutes)
        return run

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each combination of flags that a run cannot use, beyond those of its engine."""
        yield from super().problems()
        yield from self.problems_of_several_scenarios()
        if not self.is_official_workload and self.mode != "performance":
            yield (
                f"{self.workload_flag} has no reference answers, so speed alone is measured: add --mode performance."
            )
        yield from self.scenario_problems()
        if self.endpoint and self.highest_level > self.most_in_flight:
            yield (
                f"--concurrency {self.highest_level:,}: endpoints take {self.most_in_flight:,} at once; raise "
                "--max-in-flight."
            )
        yield from self.speed_test_problems()
        if self.has_several_rates and self.arrivals:
            yield "--arrivals takes one rate: --server-target-qps X, or auto."
        if engine.allows_failures(self.max_failed) and self.compliance != "none":
            yield f"--compliance {self.compliance} allows no failed request: remove --max-failed."
        if self.dry_run and self.json:
            yield "--dry-run has no summary for --json to print: remove one of them."
        if self.profile and "profiler_config" in self.engine_args:
            yield "--engine-arg profiler_config: --profile sets it."
        has_too_short_answers = self.is_official_workload and self.max_new_tokens < mlperf.FEWEST_STREAMED_TOKENS
        if self.has_token_times and has_too_short_answers:
            yield (
                f"--max-new-tokens {self.max_new_tokens}: answers of less than {mlperf.FEWEST_STREAMED_TOKENS} tokens "
                f"have no time per output token, which is a result of --scenario {self.scenario}."
            )

    def speed_test_problems(self) -> Iterator[str]:
        """Yield a sentence for each setting that contradicts the kind of speed measurement that the flags ask for."""
        speed_flag = self.speed_flag
        if self.mode == "accuracy" and speed_flag:
            yield f"{speed_flag} measures speed: remove --mode accuracy."
        if self.minutes is not None and not self.accepts_minutes:
            yield (
                f"--minutes {self.minutes:g}: only of a search or a curve (--server-target-qps max or 5,10,20, "
                "--concurrency max or 1,4,16, --quick)."
            )
        for name in TEST_FLAGS:
            if self.quick and name in self.named_settings:
                yield f"--quick makes no test and no report: remove {flag_name(name)}."

    def scenario_problems(self) -> Iterator[str]:
        """Yield a sentence for each setting that no scenario of the command uses.

        Yield one also if MLPerf does not have the scenario in the category, and one if a compliance test is asked for
        in a scenario that is not MLPerf's.
        """
        # How the user chose the scenario: by --scenario, or by a flag that implies it.
        choice = f"--scenario {','.join(self.scenarios)}"
        choosing_flag = scenario_flag(self.named_settings)
        if choosing_flag:
            choice = flag_name(choosing_flag)
        used_by_none = set.intersection(*map(unused_settings, self.scenarios))
        for name in (*SCENARIO_BY_FLAG, *LIMIT_FLAGS):
            if name not in self.named_settings or name not in used_by_none:
                continue  # The flag was not given, or a scenario of the command uses it.
            using_scenarios = [rules.name for rules in mlperf.SCENARIOS.values() if name in rules.flags]
            implied_scenario = SCENARIO_BY_FLAG.get(name)
            is_used_by_implied_alone = using_scenarios == [implied_scenario]
            if is_used_by_implied_alone:
                yield f"{flag_name(name)} implies --scenario {implied_scenario}: remove {choice}."
            else:
                yield f"{flag_name(name)} has no effect with {choice}: use --scenario {alternatives(using_scenarios)}."
        allowed = mlperf.SCENARIOS_BY_CATEGORY[self.category]
        if self.scenario not in allowed:
            yield f"--category {self.category} takes --scenario {alternatives(allowed)}; not {self.scenario}."
        if self.scenario_rules.unofficial and self.compliance != "none":
            yield f"--compliance {self.compliance} needs an MLPerf scenario; {self.scenario_rules.unofficial}."

    def problems_of_several_scenarios(self) -> Iterator[str]:
        """Yield a sentence for each setting that cannot be used with several scenarios."""
        if not self.following_scenarios:
            return
        choice = f"--scenario {','.join(self.scenarios)}"
        if len(set(self.scenarios)) < len(self.scenarios):
            yield f"{choice}: a scenario is given twice."
        if self.quick:
            yield f"--quick estimates Server and Interactive at once: it takes one scenario, not {choice}."
        if self.profile:  # the engine's profiler writes to the folder of the run that starts it
            yield f"--profile is of one run: it takes one scenario, not {choice}."

    def implications(self, given: frozenset[str]) -> dict[str, object]:
        """Return the backend, addresses, scenario, mode, category and load that follow from other flags.

        Raises UsageError for addresses or lengths that cannot be used.
        """
        # Lengths and addresses are read here only so that a wrong one raises its error before anything is loaded.
        for name in {"input_len", "output_len"} & given:
            lengths.lengths(flag_name(name), getattr(self, name))
        for url in self.telemetry_url:
            server_addresses.parse_exporter_address(url)
        scenario = SCENARIO_BY_FLAG.get(scenario_flag(given), self.scenario)
        rules = mlperf.SCENARIOS[scenario]
        implied = super().implications(given) | {
            "metrics_url": server_addresses.check_addresses(self.metrics_url, "--metrics-url"),
            # The exporters at these URLs are read once a second, as are the other extra metrics.
            "extra_metrics": self.extra_metrics or bool(self.telemetry_url),
            "scenario": scenario,
        }
        if self.quick and self.mode == "both":  # An estimate has no accuracy test.
            implied["mode"] = "performance"
        if self.category == "auto":
            implied["category"] = rules.categories[0]  # the first category that has this scenario
        for name, default in rules.pattern.defaults.items():  # flags that this scenario needs, such as --concurrency
            implied[name] = getattr(self, name) or default
        return implied

    @property
    def speed_flag(self) -> str:
        """The first given flag that needs a performance test, in words for an error message. Empty if there is none."""
        if self.batches:
            return "--samples-per-query with several numbers"
        if self.concurrency == "max" or len(self.levels) > 1:
            return "--concurrency max, or with several numbers,"
        if self.has_several_rates:
            return "--server-target-qps max, or with several rates,"
        if self.profile:
            return "--profile"
        return "--quick" if self.quick else ""

    @property
    def has_token_times(self) -> bool:
        """Tell whether the time of each token is a result."""
        return self.scenario_rules.pattern.is_streamed and self.mode != "accuracy"

    @property
    def may_see_gpus(self) -> bool:
        """Tell whether the GPUs that the run records may be those that compute the answers.

        They may if all engines are on this machine, or if an exporter reports the GPUs of the servers.
        """
        return server_addresses.is_here(self.endpoint) or bool(self.telemetry_url)

    @property
    def highest_level(self) -> int:
        """The highest level of concurrency (requests in flight) that was given as a number. 0 if there is none."""
        return max(self.levels, default=0)

    @property
    def most_in_flight(self) -> int:
        """The number of requests that all endpoints together take at once."""
        return self.max_in_flight * len(self.endpoint)

    @property
    def levels(self) -> tuple[int, ...]:
        """The values of --concurrency that are numbers, in ascending order. Empty for auto or max, or without it."""
        match self.concurrency:
            case int() as level:
                return (level,)
            case tuple() as several:
                return tuple(sorted(several))
        return ()

    @property
    def headline(self) -> str:
        """The model, the work, the mode and the round in one line, for screens and reports.

        The workload is named unless it is MLPerf's own.
        """
        work = f"{self.category} {self.scenario}"
        if not self.is_official_workload:
            work += f", {self.workload_name}"
        tests = "accuracy and performance" if self.mode == "both" else self.mode
        return f"{self.model}, {work}, {tests}, MLPerf v{self.round}"

    @property
    def has_several_rates(self) -> bool:
        """Tell whether several rates are tested before the run itself: those that were given, or those of a search."""
        return self.server_target_qps == "max" or isinstance(self.server_target_qps, tuple)

    @property
    def accepts_minutes(self) -> bool:
        """Tell whether the run is a search, an estimate (--quick) or a curve, which --minutes can shorten."""
        has_levels = self.concurrency in ("auto", "max") or len(self.levels) > 1
        return self.quick or self.has_several_rates or has_levels

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of samples per query that are tested before the run itself.

        Empty if only one number was given.
        """
        if isinstance(self.samples_per_query, tuple):
            return self.samples_per_query
        return ()

    @property
    def scenario_rules(self) -> mlperf.Scenario:
        """The scenario, with everything that MLPerf fixes about it."""
        return mlperf.SCENARIOS[self.scenario]

    @property
    def work(self) -> dict[str, object]:
        """The work of the engine, as the settings that define it. Speeds at different work are not compared.

        The data set is the user's path, the model's own data, or "hub" for MLPerf's.
        """
        data: Path | str = "hub"
        if self.dataset_path:
            data = self.dataset_path
        elif self.model_spec.data:
            data = self.model_spec.data.relative_to(ROOT)  # the same on every machine
        return self.values(RunConfig.flags_by_effect("work")) | {"dataset_path": str(data)}

    @property
    def sample_limit(self) -> int | None:
        """The number of samples that the user asked for. None for all of them."""
        return None if self.total_sample_count == "auto" else self.total_sample_count

    @property
    def official_samples(self) -> int:
        """The number of samples in MLPerf's set."""
        return mlperf.OFFICIAL_TASKS[self.category].samples

    @property
    def task(self) -> mlperf.Task:
        """The samples of the run, and the reference scores for their answers."""
        return self.model_spec.task(self.category, self.scenario)


def label_problems(config: RunConfig) -> Iterator[str]:
    """Yield a sentence for a label that was given and names no run, or is too long for a table.

    Only a new run is asked. A record may have any label, since older versions took any.
    """
    is_given = "label" in config.model_fields_set
    if is_given and not config.label.strip():
        yield "--label is empty: give a name of the run, or remove the flag."
    if len(config.label) > LONGEST_LABEL:
        yield f"--label takes at most {LONGEST_LABEL} characters; got {len(config.label):,}."
