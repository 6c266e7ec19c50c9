"""The highest rate that keeps the limits: of those that were given, or by a search."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf

from harness.config.patterns import SURE_QUERIES
from harness.config.plan import Plan, minutes
from harness.core.errors import NotAcceptedError
from harness.core.markdown import number
from harness.loadgen.log import TestResult
from harness.rates import search, source
from harness.rates.outlook import Part
from harness.rates.search import Candidate, Capacity, Evidence, Goal, best_rate, highest_held
from harness.rates.source import Bench
from harness.runs.outcome import Outcome

LOWER = 0.97  # of a rate that did not hold a whole test, at most
TYPICAL_PROBES = 4  # of a search: benchmarks.search


class SearchedRate(source.RateSource):
    """The highest rate that a full test should keep, and a lower one where it did not."""

    corrections = 2

    def outlook(self, plan: Plan) -> Part | None:
        return source.probes("search for the highest rate", TYPICAL_PROBES)

    def find(self, bench: Bench) -> Plan:
        plan = bench.plan

        def probe(chosen: Candidate) -> Outcome:
            return bench.probe(at_rate(plan, chosen.rate, chosen.seconds), chosen.reason)

        return from_search(plan, search.search(start_rate(bench), probe, Goal.of(plan)))

    def correct(self, plan: Plan, result: TestResult, tests: Sequence[Outcome]) -> Plan | None:
        before = plan.target_qps
        unsure = "early_stopping" in result.failed and (result.queries or 0) >= SURE_QUERIES  # else it was too short
        if not before or not (unsure or "latency" in result.failed) or not (rate := self.lower(plan, before, tests)):
            return None
        why = f" ({tests[-1].why})" if tests and tests[-1].why else ""
        note = f"{number(before)} queries/s was INVALID over {result.duration_s:.1f} s{why}; retrying at {number(rate)}"
        return plan.with_note(note, target_qps=rate)

    def lower(self, plan: Plan, before: float, tests: Sequence[Outcome]) -> float | None:
        """A rate below one that did not hold, by what its test measured."""
        return min(LOWER * before, Evidence(Goal.of(plan), tests).candidate.rate if tests else inf)


class CurveRate(SearchedRate):
    """The best of the rates that were given, each a short test."""

    def outlook(self, plan: Plan) -> Part | None:
        lengths = {rate: Goal.of(plan).probe_s(rate) for rate in given(plan)}
        queries, seconds = round(min(rate * each for rate, each in lengths.items())), sum(lengths.values())
        text = f"of {queries:,} queries or more, about {minutes(seconds)}"
        return Part(f"{len(lengths)} rates", text, seconds)

    def find(self, bench: Bench) -> Plan:
        plan = bench.plan
        for qps in given(plan):
            bench.probe(at_rate(plan, qps))
        if more := search.rate_beyond(Evidence(Goal.of(plan), bench.run.facts.probes)):
            bench.probe(at_rate(plan, more))
        return from_curve(plan, bench.run.facts.probes)

    def lower(self, plan: Plan, before: float, tests: Sequence[Outcome]) -> float | None:
        """The next lower one that was given."""
        return best_given(plan, tests, below=before)


def given(plan: Plan) -> list[float]:
    """The rates that the user gave, in order."""
    rates = plan.config.server_target_qps
    return sorted(rates) if isinstance(rates, tuple) else []


def start_rate(bench: Bench) -> float:
    """Where a search begins: at a share of the Offline rate, known or from a short trial."""
    plan, rules = bench.plan, bench.run.config.scenario_rules
    offline = source.last_offline(plan)
    if offline is None:
        return (rules.offline_share or 1.0) * bench.trial(plan).samples_per_sec
    return (rules.search_share or 1.0) * offline.requests_per_sec


def at_rate(plan: Plan, qps: float, seconds: float | None = None) -> Plan:
    """The plan of a short test at a rate, on as many samples as it takes: LoadGen takes whole passes of them."""
    length = seconds or Goal.of(plan).probe_s(qps)
    queries = ceil(qps * length)
    samples = ceil(queries / ceil(queries / plan.samples))
    return replace(plan, target_qps=qps, min_duration_s=length, samples=samples)


def from_search(plan: Plan, tried: list[Outcome]) -> Plan:
    """The plan with the highest rate that a full test is expected to keep. Raises NotAcceptedError where none held."""
    loads = [probe.load for probe in tried]
    ends = " to ".join(dict.fromkeys((number(min(loads)), number(max(loads)))))
    range_ = f"{len(tried)} probe{'s' if len(tried) > 1 else ''} at {ends} queries/s"
    evidence = Evidence(Goal.of(plan), tried)
    rate, best = best_rate(evidence), evidence.low
    if rate is None or best is None:
        raise NotAcceptedError(f"no tested rate was VALID ({range_}; logs in Probes/): give a rate to run anyway.")
    most = f"; the engine completes {number(evidence.capacity.qps)} a second at most" if evidence.capacity else ""
    found = f"the highest that a full test should keep, by {range_}: {number(best.load)} held{most}"
    return plan.with_note(f"server_target_qps = {number(rate)} queries/s ({found})", target_qps=rate)


def from_curve(plan: Plan, tried: list[Outcome]) -> Plan:
    """The plan with the highest of the given rates that is VALID and leaves a full test steady; the lowest where none
    is."""
    rate = best_given(plan, tried)
    lowest = min(probe.load for probe in tried)
    capacity, top = Capacity.of(tried), highest_held(tried)
    found = "the highest that is VALID" if rate else "the lowest, since none is VALID,"
    most = ""
    if capacity and rate and top and top.load > rate:
        most = f"; {number(top.load)} would not last: the engine completes {number(capacity.qps)} a second at most"
    note = f"server_target_qps = {number(rate or lowest)} queries/s ({found} of {len(tried)} rates{most})"
    return plan.with_note(note, target_qps=rate or lowest)


def best_given(plan: Plan, tried: Sequence[Outcome], below: float = inf) -> float | None:
    """The highest of the rates that the user gave, under `below`, that held and that the engine's capacity allows."""
    capacity = Capacity.of(tried)
    most = capacity.rate(Goal.of(plan)) if capacity else inf
    held = {probe.load for probe in tried if probe.has_held}
    return max((rate for rate in given(plan) if rate in held and rate < below and rate <= most), default=None)
