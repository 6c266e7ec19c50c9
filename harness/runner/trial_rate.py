"""The rate of a run by a short trial, or by the last Offline run of the same set-up."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil

from harness.config.comparability import Comparable, differences
from harness.config.mlperf import SCENARIOS
from harness.config.patterns import Burst
from harness.config.plan import Plan, TestPart, minutes
from harness.core import nvml
from harness.core.formatting import number
from harness.loadgen.log import TestResult
from harness.rates.bench import OFFLINE_MARGIN, Bench, as_probe, probes_part
from harness.rates.trials import TRIAL_S, Trial
from harness.runner.load_source import DoneTests, RateSource
from harness.runs.history import read_history

# LoadGen generates 2 x duration / latency queries for SingleStream and issues them all.
LATENCY_MARGIN = 1.5
# An Offline run may differ in these from a run of another scenario, and its rate can still be used.
IGNORED = ("scenario", "total_sample_count", "samples_per_query", "software", "busyness", "rate")


class TrialRate(RateSource):
    """The rate that a short trial on the loaded engine shows, in Offline the one for which LoadGen has to plan.

    Where the test ran short by it, the rate is the one that the test itself shows.
    """

    corrections = 1
    before = TestPart("calibration", f"at most {minutes(TRIAL_S)}", TRIAL_S, "at most ")

    def find(self, bench: Bench) -> Plan:
        return self.planned(bench.plan, bench.trial(bench.plan))

    def planned(self, plan: Plan, trial: Trial) -> Plan:
        """Return the plan with the rate that LoadGen has to expect after a trial, and a note on its source."""
        rate = OFFLINE_MARGIN * trial.samples_per_sec
        note = f"offline_expected_qps = {number(rate)} samples/s ({OFFLINE_MARGIN} x {trial})"
        return plan.with_note(note, target_qps=rate)

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        """Return the plan with the rate that the test itself showed, if the test ran short. None otherwise."""
        if not (result.ran_short and result.samples and result.samples_per_sec):
            return None
        again = self.planned(plan, Trial(result.samples, result.samples / result.samples_per_sec))
        note = f"the test ended after {result.duration_s:.1f} s; retrying with {again.notes[-1]}"
        return replace(again, notes=(*plan.notes, note))


class LatencyTrial(TrialRate):
    """The latency of a query that LoadGen has to expect; with the most samples per query, where several numbers of them
    were given: the others are short tests before.
    """

    def outlook(self, plan: Plan) -> TestPart | None:
        count = len(plan.config.batches) - 1
        if count <= 0:
            return super().outlook(plan)
        return probes_part(f"{count} smaller {'batch' if count == 1 else 'batches'}", count)

    def find(self, bench: Bench) -> Plan:
        plan = bench.plan
        *before, last = sorted(plan.config.batches) or [plan.samples_per_query]
        for size in before:
            short = as_probe(replace(plan, samples_per_query=size))
            bench.test(self.planned(short, bench.trial(short)))
        whole = replace(plan, samples_per_query=last)
        return self.planned(whole, bench.trial(whole))

    def planned(self, plan: Plan, trial: Trial) -> Plan:
        """Return the plan with the latency that LoadGen has to expect for a query, and a note on its source."""
        mean_ms = 1000 * plan.samples_per_query / trial.samples_per_sec
        expected_ms = LATENCY_MARGIN * mean_ms
        queries = ceil(trial.samples / plan.samples_per_query)
        kind = f"queries of {plan.samples_per_query} samples" if plan.samples_per_query > 1 else "samples"
        note = (
            f"expected latency = {number(expected_ms)} ms ({LATENCY_MARGIN} x {number(mean_ms)} ms, the mean of "
            f"{queries} {kind})"
        )
        return plan.with_note(note, expected_latency_ms=expected_ms)


class HistoryRate(TrialRate):
    """A share of the rate that the last Offline run of this set-up reached, or else a trial."""

    corrections = 0

    def find(self, bench: Bench) -> Plan:
        config = bench.plan.config
        gpus = None
        if not config.endpoint:
            gpus = [gpu.name for gpu in nvml.gpus()]
        offline = known_offline(bench.plan, gpus, read_history(config.results_dir))
        return share_of(bench.plan, *offline) if offline else super().find(bench)

    def planned(self, plan: Plan, trial: Trial) -> Plan:
        return share_of(plan, trial.samples_per_sec, f"{trial}; the history has no Offline run of this set-up")


def known_offline(
    plan: Plan, gpus: list[str] | None, read_history: Iterable[Mapping[str, object]]
) -> tuple[float, str] | None:
    """Return the requests/s of the last VALID Offline run of this set-up on `gpus`, and where this rate comes from.

    None if the history has no such run.
    """
    offline = next(rules.name for rules in SCENARIOS.values() if isinstance(rules.pattern, Burst))
    mine = Comparable(plan.work, plan.setup | {"category": plan.config.category, "batch_size": None}, {"gpus": gpus})
    last = None
    for line in read_history:
        theirs = Comparable.from_history(line)
        theirs = theirs._replace(work=theirs.work or plan.work)
        if line.get("scenario") != offline or differences(mine, theirs, IGNORED):
            continue
        match line:
            case {"tokens_per_sec": int() | float() as speed, "mean_new_tokens": int() | float() as each}:
                if speed > 0 and each > 0:
                    origin = f"{speed:,.1f} tokens/s / {each:.1f} tokens per request, from Offline run {line['run']}"
                    last = speed / each, origin
    return last


def share_of(plan: Plan, full: float, origin: str) -> Plan:
    """Return the plan with a share of the rate at which the engine completes a full load."""
    share = plan.config.scenario_rules.offline_share or 1.0
    rate = share * full
    return plan.with_note(f"server_target_qps = {number(rate)} queries/s ({share} x {origin})", target_qps=rate)
