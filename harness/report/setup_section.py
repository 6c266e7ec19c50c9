"""The section of a report that says what was measured, on which machine, and by which program."""

from collections.abc import Iterator

from harness.core.document import Block, Code, Section
from harness.core.formatting import cell, name_value_text, number, plural
from harness.core.markdown import MarkdownText, code_text
from harness.report import subject
from harness.report.run_report import RunReport, facts_table


def measured_with(report: RunReport) -> Iterator[Section]:
    """Yield the section on the run's setup: model, engine or server, machine, command and environment variables."""
    meta, rows = report.summary.meta, rows_of_run(report)
    if report.summary.is_in_process:
        rows |= rows_of_engine(report)
    else:
        rows |= rows_of_server(report)
    rows |= rows_of_machine(report)
    blocks: list[Block] = [*report.picture("overview"), facts_table(rows), Code(meta.command)]
    variables = [f"`{name}={code_text(value)}`" for name, value in report.summary.system.variables.items()]
    if variables:
        # A table of its own, which report.html leaves out by its name.
        environment = {"environment": cell(MarkdownText(" ".join(variables)))}
        blocks.append(facts_table(environment, name="environment"))
    blocks.append(MarkdownText("[All settings](config.json)."))
    shown_when_closed = meta.weights or meta.precision
    yield Section("Measured with", shown_when_closed, blocks)


def rows_of_run(report: RunReport) -> dict[str, str]:
    """Return what the table says about a run, by the name of the row, such as its model, engine, rules and data.

    A value that the run does not have is empty. A server does not tell its number format.
    """
    summary, meta, request_set = report.summary, report.summary.meta, report.facts.plan.request_set
    precision, decoding = "unknown", "temperature 0"  # behind an endpoint
    if summary.is_in_process:
        precision = meta.weights or f"{meta.precision}, quantization {meta.quantization}"
        decoding = "greedy"
    machine_label = "GPU" if summary.gpus else "machine"
    rules = f"MLPerf v{meta.mlperf_version}"
    if report.facts.config.seed is None:  # without --seed, the seeds are MLPerf's
        rules += " and its seeds"
    workload = request_set.name if request_set else ""
    data = ""
    if meta.data:
        data = f"{meta.data}, prompts of {plural(meta.mean_prompt_tokens, 'token')} on average"
    return {
        "label": meta.label,
        "model": f"{subject.model_text(summary)}, {subject.scenario_name(summary)} ({meta.category})",
        machine_label: subject.machine_text(summary),
        "precision": precision,
        "engine": subject.engine_text(summary),
        "rules": rules,
        "workload": workload,
        "data": data,
        "date": f"{meta.started[:10]}, run {meta.run}",
        "answers": f"at most {plural(meta.max_new_tokens, 'new token')}, {decoding}",
        "checkpoint": meta.checkpoint or "",
    }


def rows_of_engine(report: RunReport) -> dict[str, str]:
    """Return how the engine in this process ran: its cache, kernels, parallelism and
    context, by the name of the row.
    """
    meta = report.summary.meta
    caching = "on" if meta.prefix_caching else "off"
    return {
        "KV cache type": meta.kv_cache_dtype,
        "kernels": name_value_text(meta.kernels),
        "parallel": f"tensor {meta.tensor_parallel_size}, data {meta.data_parallel_size}",
        "context": f"{meta.max_model_len} tokens, prefix caching {caching}",
    }


def rows_of_server(report: RunReport) -> dict[str, str]:
    """Return what a server reports of itself and how it was asked, by the name of the row.

    The limit of requests in flight is a dash if the server's report has no such number.
    """
    meta = report.summary.meta
    reported = meta.engine_args
    most_in_flight = reported.get("max_in_flight")
    if not isinstance(most_in_flight, int | float):
        most_in_flight = None
    return {
        "model it serves": str(reported.get("serves", "")),
        "endpoints": ", ".join(meta.endpoints),
        "exchange": str(reported.get("exchange", "")),
        "requests in flight": f"at most {number(most_in_flight)} at each endpoint",
        "client processes": str(reported.get("client_processes", "")),
    }


def rows_of_machine(report: RunReport) -> dict[str, str]:
    """Return the machine and its software, by the name of the row.

    With an endpoint, they are those of the client, as the names then say, and the server's GPUs are unknown.
    """
    system = report.summary.system
    gpus = ", ".join(system.gpus) or "none (CPU)"
    if system.gpu_memory_gib:
        gpus += f", {system.gpu_memory_gib} GiB each"
    driver = ""
    if system.driver:
        driver = f"{system.driver}, {system.cuda}"
    os = system.os
    if system.container:
        os += ", in a container"
    rows = {
        "GPUs": gpus,
        "driver, CUDA": driver,
        "CPU": f"{system.cpu}, {plural(system.cores, 'core')}",
        "memory": f"{system.memory_gib} GiB",
        "OS": os,
        "software": f"Python {system.python}, {name_value_text(system.packages)}",
    }
    if not report.summary.is_in_process:
        rows = {"server's GPUs": "unknown"} | {f"client's {name}": text for name, text in rows.items()}
    return rows | {"commit of this program": system.git_revision or "not a git checkout"}
