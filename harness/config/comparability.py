"""What two runs must share for their numbers to be compared, decided in one way for all.

Each comparison says which aspects, or which names within them, it ignores; docs/comparability.md has them as one
table.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator

from harness.config import engine, mlperf, models, workload
from harness.config.flags import When, is_so
from harness.core.document import Kind, Statement, gpu_names
from harness.core.files import as_flag
from harness.core.system import System

SAME_RATE = 0.01  # of a rate: latencies at other rates say nothing of each other
FLAWS = ("busyness", "validity")  # aspects that neither run may have anything in; of the others both have the same
INVALID, OVER_LIMIT = "INVALID by LoadGen", "a latency is over its limit"
GATE_FAILED, CONFIGURED = "the accuracy gate failed", "the speed follows from the configured rate"
NOT_COUNTED = (INVALID, OVER_LIMIT, GATE_FAILED)
Values = Mapping[str, object]  # by name; a flaw is named in words
NOTHING: Values = {}


class Comparable(NamedTuple):
    """A run by all that another may differ in, aspect by aspect."""

    work: Values = NOTHING
    settings: Values = NOTHING
    machine: Values = NOTHING
    software: Values = NOTHING
    busyness: Values = NOTHING
    validity: Values = NOTHING
    rate: Values = NOTHING

    @classmethod
    def on(cls, system: System, engine: str | None = None, **aspects: Values) -> Self:
        """With what is recorded of a machine, and the name and version of the engine."""
        machine = {"gpus": gpu_names(system.gpus), "driver": system.driver, "cpu": system.cpu, "cores": system.cores}
        machine |= system.gpu_settings
        software = {"engine": engine, "python": system.python, **system.packages, "variables": system.variables}
        return cls(machine=machine, software=software, **aspects)

    @classmethod
    def from_history(cls, line: Mapping[str, Any]) -> Self:
        """A run by its line of a history, as far as that tells."""
        work, setup = (found if isinstance(found := line.get(key), dict) else {} for key in ("work", "setup"))
        columns = {name: line.get(name) or None for name in ("category", "batch_size", "concurrency")}
        lists = (found if isinstance(found := line.get(key), list) else [] for key in ("flaws", "others"))
        flaws, busy = ({str(each): True for each in found} for found in lists)
        validity = flaws or ({} if line.get("valid") is True else {INVALID: True})
        return cls(work, setup | columns, {"gpus": line.get("gpus")}, busyness=busy, validity=validity)


class Difference(NamedTuple):
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
        for aspect in Comparable._fields
        if aspect not in ignore
        for mine, theirs in [(getattr(a, aspect), getattr(b, aspect))]
        for name in dict.fromkeys([*mine, *theirs])
        if name not in ignore and (aspect in FLAWS or not is_same(mine.get(name), theirs.get(name), aspect))
        if aspect != "machine" or (name in mine and name in theirs)  # else one was not recorded
    ]


def is_same(mine: object, theirs: object, aspect: str) -> bool:
    if aspect == "rate" and isinstance(mine, float) and isinstance(theirs, float):
        return max(mine, theirs) <= (1 + SAME_RATE) * min(mine, theirs)
    return mine == theirs


def reason(found: Sequence[Difference], names: Sequence[str]) -> str:
    """The first aspect in which two runs of these names differ, in words; empty where they do not."""
    if not found:
        return ""
    aspect = found[0].aspect
    first = [each for each in found if each.aspect == aspect]
    if aspect == "busyness":
        busy = [name for n, name in enumerate(names) if any((each.a, each.b)[n] for each in first)]
        return f"the machine was busy in {' and '.join(busy)}"
    if aspect in FLAWS:
        having = [[name for name, has in zip(names, (each.a, each.b), strict=True) if has] for each in first]
        return "; ".join(f"{' and '.join(those)}: {each.name}" for those, each in zip(having, first, strict=True))
    flags = sorted(as_flag(each.name) if aspect == "work" else each.name for each in first)
    return f"other {aspect} ({', '.join(flags)})"


# What keeps a result from standing beside MLPerf's: a name, the words, and when they are so of a plan.
OTHER_MODEL, OTHER_SHAPE = "another model", "another shape"
RANDOM_WEIGHTS, DUMMY_WEIGHTS = "random weights", "dummy weights"
CACHE_UNSEEN = "the server's caching is unknown"

DEVIATIONS: dict[str, tuple[str, When]] = {
    "served model": (
        "the server serves {run.engine_state.other_model}, not {run.config.model}",
        "engine_state.other_model",
    ),
    OTHER_SHAPE: ("{run.config.model_spec.deviation}", "config.model_spec.deviation"),
    OTHER_MODEL: ("not Llama-3.1-8B", lambda run: not run.reference_model and not run.config.model_spec.deviation),
    DUMMY_WEIGHTS: (
        "dummy weights, nearly zeros, overstate speed, by a sixth on an H200 at its power limit",
        "config.has_dummy_weights",
    ),
    RANDOM_WEIGHTS: (
        "random weights, N(0, 0.02): speed and energy are representative, answers are not",
        lambda run: run.random_weights and not run.config.has_dummy_weights,
    ),
    "engine arguments": ("--engine-arg {run.unproven_args}: may change the model's outputs", "unproven_args"),
    "scenario": ("{run.config.scenario_rules.unofficial}", "config.scenario_rules.unofficial"),
    "chat": (
        "prompts as chat messages: the server's template adds to MLPerf's",
        lambda run: run.config.endpoint_api == "chat",
    ),
    "engine": ("the echo engine computes nothing", lambda run: run.config.backend == "echo"),
    "failures": (
        "--max-failed {run.config.max_failed}: requests that fail do not end the run",
        lambda run: engine.may_fail(run.config.max_failed, 10**9),
    ),
    "data": ("custom data: not MLPerf's {run.config.official_samples:,} prompts", lambda run: not run.official_data),
    "workload": (f"the workload {{run.request_set.name}} instead of MLPerf's {workload.OFFICIAL}", "request_set"),
    "samples": (
        "{run.samples:,} of {run.config.official_samples:,} samples",
        lambda run: not run.request_set and run.samples < run.config.official_samples,
    ),
    "duration": (
        f"minimum duration {{run.min_duration_s:g}} s instead of {mlperf.MIN_DURATION_S:g} s",
        lambda run: (
            run.min_duration_s < mlperf.MIN_DURATION_S and run.config.mode != "accuracy" and not run.fewest_queries
        ),
    ),
    "queries": ("{run.fewest_queries:,} queries instead of a minimum duration", "fewest_queries"),
    "new tokens": (
        f"{{run.config.max_new_tokens}} new tokens instead of {mlperf.MAX_NEW_TOKENS}",
        lambda run: not run.request_set and run.config.max_new_tokens != mlperf.MAX_NEW_TOKENS,
    ),
    "limits": (
        "custom latency limits (TTFT {run.limits.ttft:g} ms, TPOT {run.limits.tpot:g} ms)",
        lambda run: run.limits and run.limits != run.config.scenario_rules.limits,
    ),
    "seeds": ("custom seeds", lambda run: run.config.seed is not None),
    "speculation": ("speculative decoding", "engine_state.speculation"),
    "prefix caching": (
        "prefix caching: LoadGen repeats its samples, and would measure the cache",
        "engine_state.prefix_caching",
    ),
    "caching": (
        CACHE_UNSEEN,
        lambda run: run.engine_state.prefix_caching is None and not run.engine_state.cache_counted,
    ),
    "KV connector": (
        "KV connector {run.engine_state.kv_connector}: answers may reuse cache from outside the test",
        "engine_state.kv_connector",
    ),
}


def from_text(said: object) -> object:
    """A deviation of a file of format 5 or older, which was its text, by the words that its kind begins with."""
    if not isinstance(said, str):
        return said
    heads = {name: re.split("[,:{]", text)[0] for name, (text, _) in DEVIATIONS.items()}
    specs = {spec.deviation: OTHER_SHAPE for spec in models.MODELS.values() if spec.deviation}
    name = specs.get(said) or next((name for name, head in heads.items() if head and said.startswith(head)), "")
    return Statement(said, name=name, kind=Kind.DEVIATION)


Deviation = Annotated[Statement, BeforeValidator(from_text)]


def deviations(plan: object) -> list[Statement]:
    """Why the results of such a run cannot stand beside MLPerf's."""
    return [
        Statement(text.format(run=plan), name=name, kind=Kind.DEVIATION)
        for name, (text, when) in DEVIATIONS.items()
        if is_so(when, plan)
    ]
