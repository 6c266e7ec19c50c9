"""The rate of a run by a short trial, or by the last Offline run of the same set-up."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil

from harness.config.comparability import Comparable, differences
from harness.config.mlperf import SCENARIOS
from harness.config.patterns import Burst
from harness.config.plan import Plan, TestPart, duration_text
from harness.core import nvml
from harness.core.formatting import number, plural
from harness.loadgen.log import TestResult
from harness.rates.bench import OFFLINE_MARGIN, Bench, as_probe, probes_part
from harness.rates.trials import TRIAL_S, Trial
from harness.runner.load_source import DoneTests, RateSource
from harness.runs.history import read_history

# LoadGen generates 2 x duration / latency queries for SingleStream and issues them all.
LATENCY_MARGIN = 1.5
# An Offline run may differ in these aspects from a run of another scenario, and its rate can still be used.
IGNORED_IN_OFFLINE_RUN = ("scenario", "total_sample_count", "samples_per_query", "software", "busyness", "rate")


class TrialRate(RateSource):
    """The rate that a short trial on the loaded engine shows. In Offline, LoadGen plans the test by this rate.

    If the test then ran short, it is repeated with the rate that the test itself shows.
    """

    corrections = 1
    before = TestPart("calibration", f"at most {duration_text(TRIAL_S)}", TRIAL_S, "at most ")

    def find(self, bench: Bench) -> Plan:
        """Run a short trial, and return the plan with the rate that it shows."""
        return self.plan_after(bench.plan, bench.trial(bench.plan))

    def plan_after(self, plan: Plan, trial: Trial) -> Plan:
        """Return the plan with the rate that LoadGen has to expect after a trial, and a note on where it comes from.

        A margin is added, since LoadGen plans the number of samples by this rate: too few would make the test INVALID.
        """
        rate = OFFLINE_MARGIN * trial.samples_per_sec
        note = f"offline_expected_qps = {number(rate)} samples/s ({OFFLINE_MARGIN} x {trial})"
        return plan.with_note(note, target_qps=rate)

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        """Return the plan with the rate that the test itself showed, if the test ended before the minimum duration.

        None if the test was long enough, or if LoadGen gives no rate.
        """
        if not result.ran_short:
            return None
        if not result.samples or not result.samples_per_sec:
            return None
        test_s = result.samples / result.samples_per_sec
        test_as_trial = Trial(result.samples, test_s)
        retry = self.plan_after(plan, test_as_trial)
        note = f"the test ended after {result.duration_s:.1f} s; retrying with {retry.notes[-1]}"
        return replace(retry, notes=(*plan.notes, note))


class LatencyTrial(TrialRate):
    """The latency of a query that LoadGen has to expect. If the user gave several batch sizes, the largest is the run's
    own, and each smaller size is a short test before.
    """

    def part_before(self, plan: Plan) -> TestPart | None:
        """Return what the run does before its performance test, for the user.

        That is a short test of each batch size but the largest or, with a single size, a trial.
        """
        count = len(plan.config.batches) - 1
        if count <= 0:  # There is a single size.
            return super().part_before(plan)
        noun = "batch" if count == 1 else "batches"
        return probes_part(f"{count} smaller {noun}", count)

    def find(self, bench: Bench) -> Plan:
        """Test each smaller batch size for a short time, and return the plan of the largest size.

        A trial of each size shows the latency that LoadGen has to expect. With a single size, only its trial is run.
        """
        plan = bench.plan
        sizes = sorted(plan.config.batches) or [plan.samples_per_query]  # the plan's size if the user listed none
        *smaller_sizes, largest_size = sizes
        for size in smaller_sizes:
            probe_plan = as_probe(replace(plan, samples_per_query=size))
            trial = bench.trial(probe_plan)
            bench.test(self.plan_after(probe_plan, trial))
        full_plan = replace(plan, samples_per_query=largest_size)
        return self.plan_after(full_plan, bench.trial(full_plan))

    def plan_after(self, plan: Plan, trial: Trial) -> Plan:
        """Return the plan with the latency that LoadGen has to expect for a query after a trial, and a note on it.

        A margin is added, since LoadGen plans the number of queries by this latency.
        """
        mean_ms = 1000 * plan.samples_per_query / trial.samples_per_sec  # of a query: one is sent after the other
        expected_ms = LATENCY_MARGIN * mean_ms
        queries = ceil(trial.samples / plan.samples_per_query)
        trial_text = plural(queries, "sample")
        if plan.samples_per_query > 1:
            trial_text = f"{plural(queries, 'query')} of {plan.samples_per_query} samples"
        source = f"{LATENCY_MARGIN} x {number(mean_ms)} ms, the mean of {trial_text}"
        note = f"expected latency = {number(expected_ms)} ms ({source})"
        return plan.with_note(note, expected_latency_ms=expected_ms)


class HistoryRate(TrialRate):
    """A share of the rate that the last Offline run of this set-up reached, or else a trial."""

    corrections = 0

    def find(self, bench: Bench) -> Plan:
        """Return the plan with a share of the last Offline run's rate; without such a run, of the rate of a trial."""
        config = bench.plan.config
        gpus = None  # With an endpoint, the GPUs that compute are not known.
        if not config.endpoint:
            gpus = [gpu.name for gpu in nvml.gpus()]
        offline = last_offline_rate(bench.plan, gpus, read_history(config.results_dir))
        if not offline:
            return super().find(bench)
        rate, origin = offline
        return plan_at_share(bench.plan, rate, origin)

    def plan_after(self, plan: Plan, trial: Trial) -> Plan:
        """Return the plan with a share of the rate that a trial shows."""
        return plan_at_share(plan, trial.samples_per_sec, f"{trial}; the history has no Offline run of this set-up")


def last_offline_rate(
    plan: Plan, gpus: list[str] | None, history_lines: Iterable[Mapping[str, object]]
) -> tuple[float, str] | None:
    """Return the requests/s of the last VALID Offline run of this set-up on `gpus`, and where this rate comes from.

    None if the history has no such run. `gpus` is None for an endpoint, whose GPUs are not known.
    """
    offline_scenario = next(rules.name for rules in SCENARIOS.values() if isinstance(rules.pattern, Burst))
    # `Comparable.from_history` adds these two columns to the settings, so they are added here as well. The batch size
    # is None: a run with fixed batches has another rate and must not fit.
    settings = plan.setup | {"category": plan.config.category, "batch_size": None}
    planned_run = Comparable(plan.work, settings, {"gpus": gpus})
    last_rate = None
    for line in history_lines:  # Later runs have later lines, so the rate of the last run that fits stays.
        if line.get("scenario") != offline_scenario:
            continue
        earlier_run = Comparable.from_history(line)
        # A line of an old version does not say which work the engine had, such as the workload. Its work is taken to
        # fit.
        if not earlier_run.work:
            earlier_run = earlier_run._replace(work=plan.work)
        has_same_setup = not differences(planned_run, earlier_run, IGNORED_IN_OFFLINE_RUN)
        if has_same_setup:
            last_rate = rate_of_line(line) or last_rate
    return last_rate


def rate_of_line(line: Mapping[str, object]) -> tuple[float, str] | None:
    """Return the requests/s of an Offline run by its line of the history, and in words where this rate comes from.

    None if the line lacks the speed or the mean length of an answer.
    """
    match line:
        case {"tokens_per_sec": int() | float() as speed, "mean_new_tokens": int() | float() as length}:
            if speed > 0 and length > 0:
                origin = f"{speed:,.1f} tokens/s / {length:.1f} tokens per request, from Offline run {line['run']}"
                return speed / length, origin  # Tokens/s, divided by tokens per request, are requests/s.
    return None


def plan_at_share(plan: Plan, full_rate: float, origin: str) -> Plan:
    """Return the plan with the scenario's share of `full_rate`, and with a note on where that rate comes from
    (`origin`).

    The full rate is that of an engine that always has requests waiting, as in Offline. A server that must keep limits
    on latencies cannot keep that rate, so the scenario says which share of it is expected.
    """
    share = plan.config.scenario_rules.offline_share or 1.0  # A scenario without a share gets the full rate.
    rate = share * full_rate
    return plan.with_note(f"server_target_qps = {number(rate)} queries/s ({share} x {origin})", target_qps=rate)
