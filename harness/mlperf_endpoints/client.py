"""The official client at one point: its configuration, its run, and what it left."""

import contextlib
import json
import math
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from harness.common import files, processes, reading
from harness.common.errors import EndpointError, UsageError
from harness.config import mlperf
from harness.mlperf_endpoints import server
from harness.mlperf_endpoints.campaign import Campaign, folder_of
from harness.mlperf_endpoints.official import Point
from harness.workloads.cnn_dailymail import Article

COMMIT = "ea332753"  # of mlcommons/endpoints: the one this was tried with
INSTALL = f"pip install 'git+https://github.com/mlcommons/endpoints@{COMMIT}' evaluate nltk rouge_score (Python 3.12)"
SUMMARY = Path("performance") / "result_summary.json"
EVENTS, INDEX, LOG, CONFIG = "events.jsonl", "sample_idx_map.json", "client.log", "config.yaml"
PRESET = "::llama3_8b"  # the client's own prompts of CNN/DailyMail
SCORED = "articles"  # the set that is scored
WAVES = 4  # of a trial: requests over the concurrency
MARGIN = 1.1  # more samples than the speed asks for: the seconds count without ramp and drain
ATTEMPTS, STARTS = 3, 2
MOST_CONNECTIONS = 256  # that are opened before a point is measured


class Measured(BaseModel):
    """result_summary.json, as far as it is judged here."""

    n_samples_completed: int
    n_samples_failed: int
    duration_ns: float | None
    output_sequence_lengths: dict[str, Any] = {}
    complete: bool

    @property
    def seconds(self) -> float:
        return (self.duration_ns or 0.0) / 1e9

    @property
    def tokens_per_sec(self) -> float:
        return float(self.output_sequence_lengths["total"]) / self.seconds

    @property
    def rate(self) -> float:
        """Requests/s."""
        return self.n_samples_completed / self.seconds if self.seconds else 0.0


def program(given: str) -> str:
    """The client's path. Raises UsageError with what installs it."""
    found = shutil.which(given)
    if found is None:
        raise UsageError(f"--client {given}: no such program; {INSTALL}.")
    return found


def measure_levels(root: Path, campaign: Campaign, seeds: Any, articles: Sequence[Article], port: int) -> None:
    """Measures each level of a campaign that is not measured yet, on the server that is started for it, if one is."""
    levels, prompts = campaign.levels, None
    if articles:  # MLPerf's prompts as text with their references, as the client reads them; else it has its own
        prompts = (root / "prompts.jsonl").resolve()
        records = [{"prompt": mlperf.PROMPT.format(input=a.article), "highlights": a.reference} for a in articles]
        files.write_text(prompts, "".join(json.dumps(record) + "\n" for record in records))
    before = {point: left_in(folder_of(root, point)) for point in levels}
    done = {point: found for point, found in before.items() if found and is_long_enough(campaign, point, found)}
    with contextlib.ExitStack() as stack:
        if campaign.server and len(done) < len(levels):
            print(f"starting vLLM's server at {campaign.endpoints[0]}: {root / server.LOG}", flush=True)
            stack.enter_context(server.serving(shlex.split(campaign.server), port, root))
        for place, point in enumerate(levels, 1):
            shown = f"{place} of {len(levels)}: concurrency {point.concurrency:,}"
            if point not in done:
                print(f"{shown}: at least {campaign.length(point):,.0f} s", flush=True)
                done[point] = measure(campaign, point, seeds, folder_of(root, point), prompts)
            left = done[point]
            failed = f", {left.n_samples_failed:,} FAILED" if left.n_samples_failed else ""
            print(f"{shown}: {left.n_samples_completed:,} requests in {left.seconds:,.1f} s{failed}", flush=True)


def config(campaign: Campaign, point: Point, seeds: Any, samples: int, folder: Path, prompts: Path | None) -> Any:
    """The client's configuration of a point, with so many samples to issue."""
    source: dict[str, Any] = {"path": str(prompts)} if prompts else {}
    data = "" if prompts else campaign.dataset_name + PRESET
    sets = [{"name": data or "performance_articles", "type": "performance", "parser": {"prompt": "prompt"}, **source}]
    if point.accuracy:
        gate = {"eval_method": "rouge", "ground_truth": "highlights", "extractor": "identity_extractor"}
        whole = {"name": data or SCORED, "type": "accuracy", "samples": campaign.samples, **source}
        sets.append({**whole, "parser": {"prompt": "prompt"}, "accuracy_config": {**gate, "num_repeats": 1}})
    warm_up = {"enabled": True, "n_requests": 2 * point.concurrency, "salt": True, "drain": True}
    return {
        "name": f"r{point.concurrency}",
        "version": "1.0",
        "type": "online",
        "model_params": {
            **{"name": campaign.model, "temperature": 0.0, "top_p": 1.0, "max_new_tokens": mlperf.MAX_NEW_TOKENS},
            **{"streaming": "on", "tokenizer_name": campaign.tokenizer},
        },
        "datasets": sets,
        "endpoint_config": {"endpoints": campaign.endpoints, "api_type": "openai"},
        "report_dir": str(folder.resolve()),
        "settings": {
            "runtime": {
                "min_duration_ms": round(1000 * campaign.length(point)),
                "max_duration_ms": 0,
                "n_samples_to_issue": samples,
                "scheduler_random_seed": seeds.scheduler_rng_seed,
                "dataloader_random_seed": seeds.sample_index_rng_seed,
            },
            "load_pattern": {"type": "concurrency", "target_concurrency": point.concurrency},
            "client": {
                "warmup_connections": min(point.concurrency, MOST_CONNECTIONS),
                "worker_initialization_timeout": 120.0,
                "stream_all_chunks": True,  # section 6.5
            },
            "warmup": {**warm_up, "warmup_random_seed": seeds.model_seed},
        },
    }


def run(client: str, settings: Any, folder: Path) -> Measured:
    """One run of the client into a fresh folder; a second one where the first measured nothing, as where its own
    processes do not find each other on a busy machine.

    A client that fails after its measurements, as where its scorer cannot be loaded, has measured; what is missing is
    then seen where it is needed. Raises EndpointError with its last words where there are none.
    """
    for _ in range(STARTS):
        begin(client, settings, folder)
        if measured := left_in(folder):
            return measured
        files.check_space(folder)
    words = [line for line in reading.read_text(folder / LOG, errors="replace").splitlines() if "ERROR" in line]
    raise EndpointError(f"the client left no result: {(words or ['no error in its log'])[-1]} ({folder / LOG}).")


def begin(client: str, settings: Any, folder: Path) -> None:
    """Runs the client in the folder until it ends, however it ends."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    given = folder.resolve() / "given.yaml"  # the client runs in the folder
    files.write_text(given, yaml.safe_dump(settings, sort_keys=False))
    with (folder / LOG).open("wb") as log:
        words = [client, "benchmark", "from-config", "-c", str(given)]
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=folder, start_new_session=True)
        try:
            process.wait()
        finally:
            processes.end_group(process)  # its workers, too, however this ends


def left_in(folder: Path) -> Measured | None:
    """What a whole run of the client measured; None where there is none."""
    with contextlib.suppress(OSError, UsageError):
        measured = files.read(folder / SUMMARY, Measured)
        return measured if measured.complete and measured.n_samples_completed else None
    return None


def is_long_enough(campaign: Campaign, point: Point, measured: Measured) -> bool:
    return measured.seconds >= campaign.length(point)


def measure(campaign: Campaign, point: Point, seeds: Any, folder: Path, prompts: Path | None) -> Measured:
    """A point measured for long enough: the client takes a number of samples, so a trial finds its speed."""
    short = Point(point.concurrency, point.region, point.seconds)
    trial = config(campaign, short, seeds, max(WAVES * point.concurrency, 16), folder, prompts)
    measured = run(campaign.client, trial, folder)
    for _ in range(ATTEMPTS):
        samples = math.ceil(MARGIN * measured.rate * campaign.length(point)) + point.concurrency
        if campaign.seconds is None:
            samples = max(samples, campaign.samples)
        measured = run(campaign.client, config(campaign, point, seeds, samples, folder, prompts), folder)
        if is_long_enough(campaign, point, measured):
            return measured
    raise EndpointError(f"{folder}: {measured.seconds:.0f} s after {ATTEMPTS} attempts: the server's speed changes.")
