"""MLPerf Inference v6.1 by the official client, without LoadGen's logs: a test for each scenario, and their submission.

The checker of mlcommons/inference reads the client's files where there is no log of LoadGen's (endpoints_parser.py) and
holds their seeds against Inference's. The points of an MLPerf Endpoints campaign have other seeds and no Offline or
Poisson load, so a scenario here is a test of its own.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from harness.common import files
from harness.common.errors import EndpointError, UsageError
from harness.common.files import write_json, write_text
from harness.config import mlperf
from harness.endpoints import client, scores
from harness.endpoints.campaign import Target
from harness.endpoints.client import CONFIG, Measured
from harness.submission.tree import put_code
from harness.workloads.cnn_dailymail import Article

ROUND, BENCHMARK = "6.1", "llama3.1-8b"
FILE = "scenario.json"
STREAMS = 256  # connections that are opened before a test


@dataclass(frozen=True)
class Load:
    """A scenario of MLPerf Inference as the client has it."""

    folder: str  # its official name
    kind: str  # the client's type of benchmark
    pattern: str


LOADS = {
    "offline": Load("Offline", "offline", "max_throughput"),
    "server": Load("Server", "online", "poisson"),
    "interactive": Load("Interactive", "online", "poisson"),
}


class ScenarioTest(Target):
    """scenario.json: what a scenario was measured with."""

    scenario: Literal["offline", "server", "interactive"]
    target_qps: float
    seconds: float

    @property
    def load(self) -> Load:
        return LOADS[self.scenario]


def config(test: ScenarioTest, rate: float, folder: Path, prompts: Path | None) -> Any:
    """The client's configuration of a scenario, with as many samples as a rate takes."""
    seeds = mlperf.SEEDS[ROUND]
    samples = max(test.samples, math.ceil(client.MARGIN * rate * test.seconds))
    return client.requests(test, test.scenario, prompts, True, folder) | {
        "type": test.load.kind,
        "settings": {
            "runtime": client.runtime(test.seconds, samples, seeds.schedule, seeds.sample_index),
            "load_pattern": {"type": test.load.pattern, "target_qps": test.target_qps},
            "client": client.connections(STREAMS),
        },
    }


def measure(test: ScenarioTest, root: Path, prompts: Path | None) -> Measured:
    """A scenario, measured for as long as it has to be. Raises EndpointError."""
    folder, rate = root / test.scenario, test.target_qps
    for _ in range(client.ATTEMPTS):
        measured = client.run(test.client, config(test, rate, folder, prompts), folder)
        write_json(folder / FILE, test.model_dump(mode="json"))
        if measured.seconds >= test.seconds:
            return measured
        rate = measured.rate
    raise EndpointError(f"{folder}: {measured.seconds:.0f} s after {client.ATTEMPTS} attempts: the speed changes.")


def measured_in(root: Path) -> list[ScenarioTest]:
    """The scenarios of a folder. Raises UsageError where there are none."""
    found = [root / name for name in LOADS if (root / name / FILE).exists() and client.left_in(root / name)]
    if not found:
        raise UsageError(f"{root}: no scenario was measured in it; `endpoints inference` does.")
    return [files.read(folder / FILE, ScenarioTest) for folder in found]


def build(
    root: Path,
    tests: Sequence[ScenarioTest],
    articles: Sequence[Article],
    about: dict[str, object],
    system: str,
    out: Path,
) -> Path:
    """Writes the submission's tree; returns division/submitter in it. Raises UsageError, EndpointError."""
    base = out / str(about["division"]) / str(about["submitter"])
    if base.exists():
        raise UsageError(f"--out {out}: {base} is already there: take another folder.")
    for test in tests:
        source, target = root / test.scenario, base / "results" / system / BENCHMARK / test.load.folder
        for name in ("performance", "accuracy"):
            (target / name).mkdir(parents=True)
        shutil.copyfile(source / client.SUMMARY, target / client.SUMMARY)
        shutil.copyfile(source / CONFIG, target / CONFIG)
        write_json(target / scores.OWN, counted(scores.results(source, articles, test.dataset_name)))
        write_json(target / "measurements.json", MEASUREMENTS | {"starting_weights_filename": test.model})
        settings = yaml.safe_load((source / CONFIG).read_text())
        write_text(target / "README.md", HOW.format(install=client.INSTALL, **test.model_dump(), of=settings["type"]))
    (base / "systems").mkdir()
    write_json(base / "systems" / f"{system}.json", about)
    put_code(base / "src" / BENCHMARK)
    return base


def counted(found: Any) -> Any:
    """Scores with their samples by the name under which the checker looks for them."""
    entries = found["accuracy_scores"]
    return found | {"accuracy_scores": [{"total_samples": entry.get("num_samples"), **entry} for entry in entries]}


MEASUREMENTS = {
    "input_data_types": "text",
    "retraining": "No",
    "weight_data_types": "as the server has them",
    "weight_transformations": "as the server has them",
}
HOW = """\
# {scenario}

1. The official client: `{install}`.
2. A server that serves `{model}` with streaming at /v1/chat/completions, its chat template one that adds nothing.
3. `llama31-mlperf endpoints inference DIR --scenario {scenario} --target-qps {target_qps} --model {model} ...` runs the
   client ({of}) with the config.yaml beside this file.
"""
