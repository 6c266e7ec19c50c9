"""The subject of a run: scenario, workload, model, machine and engine, as a report names them."""

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from harness.config import mlperf_deviations
from harness.config.models import DEFAULT_MODEL, MODELS
from harness.config.workload import OFFICIAL_WORKLOAD
from harness.core.formatting import joined_text, plural
from harness.core.statements import names_of
from harness.results.summary import Summary

REFERENCE_NAME = "Llama-3.1-8B"  # The reference model has this name, whatever its repository is called.
COMPARABLE = "comparable with MLPerf"
NOT_COMPARABLE = "not comparable with MLPerf"
SEPARATOR = " \N{MIDDLE DOT} "


def subject_of(*summaries: Summary) -> str:
    """Return what a run measured, as text, such as scenario, model and machine; for several
    runs, what all of them share.
    """
    return ", ".join(common_parts(parts_of(summary) for summary in summaries))


def common_parts(lists: Iterable[Sequence[str]]) -> list[str]:
    """Return the items of the first list that all other lists have, too. There must be at least one list."""
    first, *other_lists = lists
    return [item for item in first if all(item in other_list for other_list in other_lists)]


def parts_of(summary: Summary) -> list[str]:
    """Return the parts of a run's subject: scenario, workload if it is not MLPerf's, model, machine, and engine.

    Behind an endpoint the engine is left out, as the machine's text names the server.
    """
    parts = [scenario_name(summary)]
    if summary.meta.workload != OFFICIAL_WORKLOAD:
        parts.append(summary.meta.workload)
    parts += [model_text(summary), machine_text(summary)]
    if summary.is_in_process:
        parts.append(engine_text(summary))
    return parts


def scenario_name(summary: Summary) -> str:
    """Return the scenario as MLPerf writes it, such as SingleStream.

    That is LoadGen's name, except for Interactive, which LoadGen runs as Server.
    """
    rules = summary.scenario
    if rules.loadgen.lower() == rules.name:
        return rules.loadgen
    return rules.name.capitalize()


def model_text(summary: Summary) -> str:
    """Return the model as people name it, with the number format of its weights, or that the weights are random.

    The number format is left out if it is not known, and for the demo model.
    """
    meta = summary.meta
    name = model_name(meta.model)
    if names_of(meta.deviations, (mlperf_deviations.RANDOM_WEIGHTS, mlperf_deviations.DUMMY_WEIGHTS)):
        return f"{name} with random weights"
    if not meta.weights or meta.model == "demo":
        return name
    number_format = meta.weights.partition(" ")[0]  # the first word, as in fp8 (static, compressed-tensors)
    return f"{name} in {number_format}"


def model_name(model: str) -> str:
    """Return the name by which people know a model. `model` is its name here, its repository or its folder."""
    if model in (DEFAULT_MODEL, MODELS[DEFAULT_MODEL].path):
        return REFERENCE_NAME
    if model == "demo":
        return "demo model"
    return PurePath(model).name or model


def is_reference(summary: Summary) -> bool:
    """Tell whether a model of the reference's shape answered MLPerf's samples, as published results require."""
    other_models = (mlperf_deviations.OTHER_MODEL, mlperf_deviations.OTHER_SHAPE)
    return summary.meta.workload == OFFICIAL_WORKLOAD and not names_of(summary.meta.deviations, other_models)


def machine_text(summary: Summary) -> str:
    """Return what a run was measured on, as text: GPUs, CPU cores, or the server behind an endpoint."""
    if not summary.is_in_process:  # The machine behind an endpoint is not known.
        return f"{plural(len(summary.meta.endpoints), 'endpoint')} of {server_name(summary)}"
    if summary.gpus:
        models = dict.fromkeys(summary.system.gpus)
        return f"{summary.gpus} x {', '.join(models)}"
    return plural(summary.system.cores, "CPU core")


def server_name(summary: Summary) -> str:
    return str(summary.meta.engine_args.get("server", "a server"))


def engine_text(summary: Summary) -> str:
    """Return the engine with its version, or the server behind an endpoint."""
    if not summary.is_in_process:
        return f"{server_name(summary)}, behind an endpoint"
    # Older summaries do not name the engine, which was then vLLM.
    return summary.meta.engine or f"vLLM {summary.system.vllm_version or 'unknown'}"


def footer(*summaries: Summary) -> str:
    """Return the text under a picture that is shown without its report.

    It has what all runs of the picture share of their labels, subjects, dates, and whether they are comparable with
    MLPerf.
    """
    texts = []
    for summary in summaries:
        meta = summary.meta
        comparability = NOT_COMPARABLE
        if meta.comparable:
            comparability = COMPARABLE
        texts.append((meta.label, subject_of(summary), meta.started[:10], comparability))
    return joined_text(SEPARATOR, *common_parts(texts))
