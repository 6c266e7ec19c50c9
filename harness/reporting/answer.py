"""The first screen of a report: the number as its title, and what must be known of a number before it is passed on."""

from pathlib import PurePath

from harness.common.markdown import number
from harness.config import models
from harness.config.workload import OFFICIAL
from harness.results.performance import Performance
from harness.results.summary import Summary

POINTS = {"latency_p90_ms": ("latency", "p90")}  # of a headline that is a latency
NAME = "Llama-3.1-8B"  # of the reference model, whatever its repository is called
NOT_COMPARABLE = "Not comparable with MLPerf results"


def title(summary: Summary) -> str:
    """The result in a line: the number, before it INVALID or DISPUTED where it is; or how far the run came."""
    test, score = summary.run.performance, summary.run.accuracy
    if test is not None and test.tokens_per_sec is not None:
        busy = " (machine busy: not judged)" if test.background_load else ""
        disputed = "DISPUTED: " if test.disagreements else ""
        return f"{'' if test.valid else 'INVALID: '}{disputed}{result(summary, test)}{busy}"
    if score is not None:
        return f"Accuracy {score.verdict}: {subject(summary)}"
    return f"No result: {subject(summary)}"


def result(summary: Summary, test: Performance) -> str:
    """The number that the scenario is judged by, with what was measured."""
    if summary.scenario.pattern.is_rated and test.achieved_qps:
        return f"{number(test.achieved_qps, 3)} queries/s: {tails(test)}"
    if (point := POINTS.get(summary.scenario.headline)) and test.latency_ms:
        return f"{number(getattr(test.latency_ms, point[1]))} ms {' '.join(point)}: {subject(summary)}"
    load = f" with {number(test.concurrency)} in flight" if test.concurrency else ""
    return f"{number(test.tokens_per_sec)} output tokens/s{load}: {subject(summary)}"


def tails(test: Performance) -> str:
    """TTFT and TPOT at p99, beside their limits where there are any."""
    latencies = [(name, getattr(test, f"{name}_ms"), getattr(test.limits_ms, name, None)) for name in ("ttft", "tpot")]
    late = " of the buffering" if test.buffered else ""
    return ", ".join(
        f"{name.upper()} p99{late} {number(found.p99, 3)}{f' of {number(limit)}' if limit else ''} ms"
        for name, found, limit in latencies
        if found
    )


def subject(summary: Summary) -> str:
    """Model, scenario, what else than MLPerf's articles was asked, and the machine."""
    work = [] if summary.meta.workload == OFFICIAL else [summary.meta.workload]
    return ", ".join([model(summary), scenario(summary), *work, machine(summary)])


def model(summary: Summary) -> str:
    """The model as people name it: a repository or a folder by its last name."""
    name = summary.meta.model
    reference = name in (models.DEFAULT_MODEL, models.MODELS[models.DEFAULT_MODEL].path)
    return NAME if reference else PurePath(name).name or name


def scenario(summary: Summary) -> str:
    """As MLPerf writes it; Interactive is LoadGen's Server."""
    rules = summary.scenario
    return rules.loadgen if rules.loadgen.lower() == rules.name else rules.name.capitalize()


def machine(summary: Summary) -> str:
    """The GPUs that the engine used, or the CPU; of an endpoint, what serves it."""
    if summary.meta.endpoints:
        count = len(summary.meta.endpoints)
        return f"{count} endpoint{'s' if count > 1 else ''} of {summary.meta.engine_args.get('server', 'a server')}"
    if summary.gpus:
        return f"{summary.gpus} x {', '.join(dict.fromkeys(summary.system.gpus))}"
    return f"{summary.system.cores} CPU cores"


def engine(summary: Summary) -> str:
    """The engine with its version, and LoadGen's."""
    if summary.meta.endpoints:
        return f"{summary.meta.engine_args.get('server', 'a server')}, behind an endpoint"
    loadgen = summary.system.packages.get("mlcommons-loadgen")
    name = summary.meta.engine or f"vLLM {summary.system.vllm_version or 'unknown'}"
    return f"{name}{f', LoadGen {loadgen}' if loadgen else ''}"


def facts(summary: Summary) -> list[tuple[str, str]]:
    """What stands under the title, a line each: label and text."""
    return [(label, text) for label, text in (*verdicts(summary), *setting(summary)) if text]


def verdicts(summary: Summary) -> list[tuple[str, str]]:
    """What the number is worth: LoadGen's verdict, the gate, MLPerf's terms, and who else used the machine."""
    meta, test, score = summary.meta, summary.run.performance, summary.run.accuracy
    valid = f"**{'VALID' if test.valid else 'INVALID'}** by LoadGen" if test else "not measured"
    gate = f"**{score.verdict}** on {number(score.samples)} samples" if score else "not checked"
    comparable = f"**{NOT_COMPARABLE}:** {'; '.join(meta.deviations)}" if meta.deviations else "yes"
    busy = "none that counts" if test and test.others_cpu_cores is not None else "not measured"
    if test and test.background_load:
        busy = f"**machine busy, not judged**: {'; '.join(test.background_load)}"
    return [
        *(("**disputed**", f"**{said}**") for said in (test.disagreements if test else [])),
        ("ended early", meta.ended or ""),
        ("performance", valid),
        ("accuracy gate", gate),
        ("comparable", comparable),
        ("other programs", busy if test else ""),
    ]


def setting(summary: Summary) -> list[tuple[str, str]]:
    """What it was measured with."""
    meta, test = summary.meta, summary.run.performance
    cost = test.cost if test else None
    money = f"{number(cost.per_million_output_tokens)} per million output tokens" if cost else ""
    return [
        ("label", meta.label),
        ("model", f"{model(summary)}, {scenario(summary)} ({meta.category})"),
        ("GPU" if summary.gpus else "machine", machine(summary)),
        ("precision", meta.weights or f"{meta.precision}, quantization {meta.quantization}"),
        ("KV cache", "" if meta.endpoints else meta.kv_cache_dtype),
        ("engine", engine(summary)),
        ("kernels", ", ".join(f"{name} {kernel}" for name, kernel in meta.kernels.items())),
        ("date", meta.started[:10]),
        ("cost", f"{money} at {number(cost.price_per_hour)} an hour" if cost and money else ""),
    ]


def footer(summary: Summary) -> str:
    """What a picture says of the run it is of, where it is shown without its report."""
    meta = summary.meta
    comparable = "not comparable with MLPerf" if meta.deviations else "comparable with MLPerf"
    label = [meta.label] if meta.label else []
    return " \N{MIDDLE DOT} ".join([*label, subject(summary), engine(summary), meta.started[:10], comparable])


def called(summary: Summary) -> str:
    """A run as a name in tables and pictures: its label, else its folder's."""
    return summary.meta.label or summary.meta.run
