"""What two runs must share for their numbers to be compared, decided in one way for all.

Each comparison says which aspects, or which names within them, it ignores; docs/evidence/regression.md has them as
one table.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Self

from harness.config import endpoint, mlperf
from harness.config.flags import Rules
from harness.config.workload import OFFICIAL
from harness.core.coerce import as_flag
from harness.core.schema import gpu_names
from harness.core.system import System

SAME_RATE = 0.01  # of a rate: latencies at other rates say nothing of each other
FLAWS = ("busyness", "validity")  # aspects that neither run may have anything in; of the others both have the same
INVALID, OVER_LIMIT = "INVALID by LoadGen", "a latency is over its limit"
GATE_FAILED, CONFIGURED = "the accuracy gate failed", "the speed follows from the configured rate"
NOT_COUNTED = (INVALID, OVER_LIMIT, GATE_FAILED)
Values = Mapping[str, object]  # by name; a flaw is named in words


@dataclass(frozen=True)
class Comparable:
    """A run by all that another may differ in, aspect by aspect."""

    work: Values = field(default_factory=dict)
    settings: Values = field(default_factory=dict)
    machine: Values = field(default_factory=dict)
    software: Values = field(default_factory=dict)
    busyness: Values = field(default_factory=dict)
    validity: Values = field(default_factory=dict)
    rate: Values = field(default_factory=dict)

    @classmethod
    def on(cls, system: System, engine: str | None = None, **aspects: Values) -> Self:
        """With what is recorded of a machine, and the name and version of the engine."""
        machine = {"gpus": gpu_names(system.gpus), "driver": system.driver, "cpu": system.cpu, "cores": system.cores}
        software = {"engine": engine, "python": system.python, **system.packages, "variables": system.variables}
        return cls(machine=machine, software=software, **aspects)

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> Self:
        """A run by its line of a history, as far as that tells."""
        work, setup = (found if isinstance(found := line.get(key), dict) else {} for key in ("work", "setup"))
        columns = {name: line.get(name) or None for name in ("category", "batch_size")}
        flaws = {} if line.get("valid") is True else {INVALID: True}
        busy = dict.fromkeys(line.get("others") or (), True)
        return cls(work, setup | columns, {"gpus": line.get("gpus")}, busyness=busy, validity=flaws)


@dataclass(frozen=True)
class Difference:
    """What two runs, A and B, do not share."""

    aspect: str
    name: str
    a: object
    b: object


def differences(a: Comparable, b: Comparable, ignore: Collection[str] = ()) -> list[Difference]:
    """What keeps the numbers of two runs from being compared, but for the aspects and names to ignore;
    empty where nothing does."""
    return [
        Difference(aspect, name, mine.get(name), theirs.get(name))
        for aspect in (each.name for each in fields(Comparable) if each.name not in ignore)
        for mine, theirs in [(getattr(a, aspect), getattr(b, aspect))]
        for name in dict.fromkeys([*mine, *theirs])
        if name not in ignore and (aspect in FLAWS or not is_same(mine.get(name), theirs.get(name), aspect))
    ]


def is_same(mine: object, theirs: object, aspect: str) -> bool:
    if aspect == "rate" and isinstance(mine, float) and isinstance(theirs, float):
        return max(mine, theirs) <= (1 + SAME_RATE) * min(mine, theirs)
    return mine == theirs


def reason(found: Sequence[Difference], names: Sequence[str] = ("A", "B")) -> str:
    """The first aspect in which two runs of these names differ, in words; empty where they do not."""
    first = [each for each in found if each.aspect == found[0].aspect]
    if first and first[0].aspect == "busyness":
        busy = [name for n, name in enumerate(names) if any((each.a, each.b)[n] for each in first)]
        return f"the machine was busy in {' and '.join(busy)}"
    if first and first[0].aspect in FLAWS:
        having = [[name for name, has in zip(names, (each.a, each.b), strict=True) if has] for each in first]
        return "; ".join(f"{' and '.join(those)}: {each.name}" for those, each in zip(having, first, strict=True))
    flags = sorted(as_flag(each.name) if each.aspect == "work" else each.name for each in first)
    return f"other {first[0].aspect} ({', '.join(flags)})" if first else ""


# What keeps a result from standing beside MLPerf's: the words, and when they are so of a plan.
OTHER_MODEL = "not Llama-3.1-8B"
CACHE_UNSEEN = "the server's caching is unknown"

DEVIATIONS: Rules = {
    "the server serves {run.engine_state.other_model}, not {run.config.model}": attrgetter("engine_state.other_model"),
    "{run.config.model_spec.deviation}": attrgetter("config.model_spec.deviation"),
    OTHER_MODEL: lambda run: not run.reference_model and not run.config.model_spec.deviation,
    "dummy weights, nearly zeros, which flatter the speed: a sixth on an H200 at its power limit": attrgetter(
        "config.has_dummy_weights"
    ),
    "random weights, N(0, 0.02), which take the time and energy of trained ones; answers mean nothing": lambda run: (
        run.random_weights and not run.config.has_dummy_weights
    ),
    "--engine-arg {run.unproven_args}: not known to leave the model as it is": attrgetter("unproven_args"),
    "{run.config.scenario_rules.unofficial}": attrgetter("config.scenario_rules.unofficial"),
    "prompts as chat messages: the server's template adds to MLPerf's": lambda run: run.config.endpoint_api == "chat",
    "{run.unofficial_engine}": attrgetter("unofficial_engine"),
    "--max-failed {run.config.max_failed}: requests that fail do not end the run": lambda run: endpoint.may_fail(
        run.config.max_failed, 10**9
    ),
    "custom data: not MLPerf's {run.official_samples:,} prompts": lambda run: not run.official_data,
    f"the workload {{run.request_set.name}} instead of MLPerf's {OFFICIAL}": attrgetter("request_set"),
    "{run.samples:,} of {run.official_samples:,} samples": lambda run: (
        not run.request_set and run.samples < run.official_samples
    ),
    f"minimum duration {{run.min_duration_s:g}} s instead of {mlperf.MIN_DURATION_S:g} s": lambda run: (
        run.min_duration_s < mlperf.MIN_DURATION_S and run.config.mode != "accuracy"
    ),
    f"{{run.config.max_new_tokens}} new tokens instead of {mlperf.MAX_NEW_TOKENS}": lambda run: (
        not run.request_set and run.config.max_new_tokens != mlperf.MAX_NEW_TOKENS
    ),
    "custom latency limits (TTFT {run.limits.ttft:g} ms, TPOT {run.limits.tpot:g} ms)": lambda run: (
        run.limits and run.limits != run.config.scenario_rules.limits
    ),
    "custom seeds": lambda run: run.config.seed is not None,
    "speculative decoding": attrgetter("engine_state.speculation"),
    "prefix caching: LoadGen repeats its samples, and would measure the cache": attrgetter(
        "engine_state.prefix_caching"
    ),
    CACHE_UNSEEN: lambda run: run.engine_state.prefix_caching is None and not run.engine_state.cache_counted,
    "KV connector {run.engine_state.kv_connector}: answers may reuse cache from outside the test": attrgetter(
        "engine_state.kv_connector"
    ),
}
