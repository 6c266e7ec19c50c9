"""Every rule across flags, and every reason for which a result is not MLPerf's, is one that can be broken."""

import ast
import inspect
import re
import textwrap
from dataclasses import replace
from typing import Any

import pytest

from harness.config import mlperf_deviations
from harness.config.engine import EngineConfig, EngineState, ServerFlags
from harness.config.plan import Plan
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.config.workload import RequestSet, WorkloadFlags
from harness.core.errors import UsageError
from harness.core.statements import Statement

URL = ("http://h/v1",)
REFUSED: tuple[dict[str, Any], ...] = (
    {"engine_arg": ("dtype=float16",)},
    {"engine_patch": ("a",), "backend": "echo"},
    {"engine_patch": ("a",), "engine_arg": ("worker_extension_cls=a.B",)},
    {"engine_patch": ("a",), "engine_arg": ("nnodes=2",)},
    {"engine_patch": ("a",), "endpoint": URL},
    {"backend": "openai"},
    {"scenario": "offline,offline"},
    {"scenario": "offline,server", "quick": True},
    {"scenario": "offline,server", "profile": True},
    {"backend": "echo", "endpoint": URL},
    {"endpoint": URL, "precision": "fp16"},
    {"max_in_flight": 8},
    {"input_len": "8", "mode": "performance"},
    {"input_len": "8", "output_len": "8", "workload": "chat", "mode": "performance"},
    {"input_len": "8", "output_len": "8", "max_new_tokens": 8, "mode": "performance"},
    {"workload": "long-chat", "max_new_tokens": 8, "mode": "performance"},
    {"arrivals": "trace.csv", "workload": "chat", "mode": "performance"},
    {"salt": "start"},
    {"prompt_column": "text"},
    {"workload": "chat"},
    {"workload": "chat", "mode": "performance", "compliance": "test06"},
    {"scenario": "server", "batch_size": 4},
    {"scenario": "offline", "ttft_limit": 100},
    {"concurrency": 2000, "endpoint": URL},
    {"category": "edge", "scenario": "server"},
    {"concurrency": 4, "compliance": "test06"},
    {"profile": True, "mode": "accuracy"},
    {"arrivals": "poisson", "server_target_qps": "max"},
    {"endpoint": URL, "max_failed": "1%", "compliance": "test06"},
    {"dry_run": True, "json": True},
    {"profile": True, "engine_arg": ("profiler_config={}",)},
    {"scenario": "server", "max_new_tokens": 1},
    {"quick": True, "compliance": "test06"},
    {"minutes": 30},
)


def patterns_of(kind: type) -> list[str]:
    """Return a pattern for each message that a class yields: what stands in braces can be anything."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    problems = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and "problems" in node.name]
    messages = [node.value for method in problems for node in ast.walk(method) if isinstance(node, ast.Yield)]
    return [pattern_of(message) for message in messages if message is not None]


def pattern_of(message: ast.expr) -> str:
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    return "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)


PATTERNS = [pattern for kind in (EngineConfig, ServerFlags, WorkloadFlags, RunConfig) for pattern in patterns_of(kind)]


def broken_by(flags: dict[str, Any]) -> list[str]:
    """Return the patterns that the message of a refusal matches."""
    with pytest.raises(UsageError) as error:
        RunConfig(**flags)
    return [pattern for pattern in PATTERNS if re.fullmatch(f"(?s){pattern}", str(error.value))]


def test_each_problem_has_flags_that_cause_it_and_says_its_message() -> None:
    assert len(PATTERNS) > 25
    assert {pattern for flags in REFUSED for pattern in broken_by(flags)} == set(PATTERNS)
    assert all(len(broken_by(flags)) == 1 for flags in REFUSED)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ({"samples_per_query": (1, 2)}, "--samples-per-query with several numbers"),
        ({"concurrency": (1, 2)}, "--concurrency max, or with several numbers,"),
        ({"concurrency": "max"}, "--concurrency max, or with several numbers,"),
        ({"server_target_qps": "max"}, "--server-target-qps max, or with several rates,"),
        ({"server_target_qps": (1.0, 2.0)}, "--server-target-qps max, or with several rates,"),
        ({"profile": True}, "--profile"),
    ],
)
def test_what_tests_speeds_is_refused_without_a_performance_test(flags: dict[str, Any], shown: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(shown)} .*--mode accuracy"):
        RunConfig(mode="accuracy", **flags)
    assert RunConfig(mode="performance", **flags)


REQUESTS = RequestSet("chat", "", 13368, 1, "", 64, False, "d")
PLAN = resolve(RunConfig(), [], 0)


def of(**flags: Any) -> Plan:
    return resolve(RunConfig(**flags), [], 0)


UNLIKE: tuple[tuple[Plan, str], ...] = (
    (of(model="demo", total_sample_count=4), "the demo model"),
    (replace(PLAN, reference_model=False), "not Llama-3.1-8B"),
    (of(load_format="dummy"), "dummy weights, "),
    (replace(PLAN, random_weights=True), "random weights, "),
    (of(engine_arg=("revision=b", "hf_overrides={}")), "--engine-arg hf_overrides, revision: "),
    (of(scenario="multistream"), "MultiStream "),
    (of(endpoint=URL, endpoint_api="chat"), "prompts as chat messages: "),
    (of(backend="echo"), "the echo engine "),
    (of(endpoint=URL, max_failed="1%"), "--max-failed 1%: "),
    (replace(PLAN, official_data=False), "custom data: not MLPerf's 13,368 prompts"),
    (replace(PLAN, request_set=REQUESTS), "the workload chat "),
    (of(total_sample_count=100), "100 of 13,368 samples"),
    (replace(PLAN, fewest_queries=64), "64 queries instead of a minimum duration"),
    (of(min_duration=599.5), "minimum duration 599.5 s instead of 600 s"),
    (of(max_new_tokens=64), "64 new tokens instead of 128"),
    (of(scenario="server", ttft_limit=900), "custom latency limits (TTFT 900 ms, TPOT 100 ms)"),
    (of(seed=0), "custom seeds"),
    (replace(PLAN, engine_state=EngineState(speculation="ngram")), "speculative decoding"),
    (replace(PLAN, engine_state=EngineState(prefix_caching=True)), "prefix caching: "),
    (replace(PLAN, engine_state=EngineState(prefix_caching=None)), "the server's caching "),
    (replace(PLAN, engine_state=EngineState(kv_connector="Offloading")), "KV connector Offloading: "),
    (replace(PLAN, engine_state=EngineState(other_model="Qwen/Qwen2.5-7B-Instruct")), "the server serves Qwen/"),
)


@pytest.mark.parametrize(("plan", "shown"), UNLIKE, ids=[shown for _, shown in UNLIKE])
def test_each_deviation_is_named_once(plan: Plan, shown: str) -> None:
    assert [str(line).startswith(shown) for line in plan.deviations].count(True) == 1


def test_every_deviation_is_among_them() -> None:
    names = {line.name for plan, _ in UNLIKE for line in plan.deviations}
    source = inspect.getsource(mlperf_deviations)
    yields = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Yield)]
    assert len(names) == len(yields)
    assert PLAN.deviations == []


def test_texts_of_older_files_have_their_names() -> None:
    for plan, _ in UNLIKE:
        for line in plan.deviations:
            stored = mlperf_deviations.stored_deviation(str(line))
            assert isinstance(stored, Statement) and stored.name in ("", line.name)
    assert mlperf_deviations.stored_deviation("custom seeds").name == "seeds"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"round": "9.9", "concurrency": "4,4"}, r"^--round takes 5\.1, 6\.0 or 6\.1; got '9\.9'\.$"),
        ({"concurrency": "4,4"}, "^--concurrency: a number is given twice"),
        ({"concurrency": []}, "^--concurrency: a list without a number"),
        (
            {"extra_metrics": True, "telemetry_url": ("http://a:9400/metrics?gpu=0", "http://b:9400/metrics")},
            "^--telemetry-url http://b:9400/metrics: ",
        ),
    ],
)
def test_a_mistake_is_said_of_the_setting_that_has_it(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RunConfig(**settings)
