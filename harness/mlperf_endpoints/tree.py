"""A campaign's points as a submission: the tree of §8.1 of the rules."""

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.common import files, reading
from harness.common.errors import EndpointError, UsageError
from harness.common.markdown import render
from harness.evaluation import accuracy
from harness.mlperf_endpoints import client, official, server
from harness.mlperf_endpoints.campaign import Campaign, folder_of
from harness.mlperf_endpoints.client import CONFIG, EVENTS, INDEX, SCORED, Measured
from harness.mlperf_endpoints.disclosure import Disclosure
from harness.mlperf_endpoints.official import Point
from harness.workloads.cnn_dailymail import Article

IMPLEMENTATION = "llama31-mlperf"
OWN = Path("accuracy") / "accuracy_results.json"
SCORER = "llama31-mlperf: rouge-score on the client's answers, since the client's own scorer left no result"


@dataclass(frozen=True)
class Done:
    point: Point
    folder: Path
    measured: Measured


def measured_points(root: Path, campaign: Campaign) -> list[Done]:
    """The measured points of a campaign. Raises UsageError with those that are missing."""
    found = [(point, folder_of(root, point)) for point in campaign.levels]
    measured = [(point, folder, client.left_in(folder)) for point, folder in found]
    if missing := [str(point.concurrency) for point, _, left in measured if left is None]:
        raise UsageError(f"{root}: not measured yet: concurrency {', '.join(missing)}; `endpoints run` continues.")
    return [Done(point, folder, left) for point, folder, left in measured if left is not None]


def build(
    root: Path, campaign: Campaign, about: Disclosure, seeds: Any, articles: Sequence[Article], out: Path
) -> Path:
    """Writes the submission below `out`; its folder. Raises UsageError where that is there already."""
    name = str(about.system.get("shortened_system_name", "")).strip().replace(" ", "_")
    files.check_folder_name("organisation:", about.submission.organisation)
    files.check_folder_name("submission_id:", about.submission.submission_id)
    files.check_folder_name("shortened_system_name:", name)
    base = out / about.submission.organisation / about.submission.submission_id
    if base.exists():
        raise UsageError(f"--out {out}: {base} already exists: choose another folder or submission_id.")
    points = measured_points(root, campaign)
    most = max(each.measured.tokens_per_sec for each in points)
    system = base / "results" / name
    described = {name: value for name, value in about.system.items() if value != ""}
    declared = {"max_supported_concurrency": campaign.c_max, "division": about.submission.division}
    for each in points:
        target = system / official.MODEL / f"r{each.point.concurrency}"
        target.mkdir(parents=True)
        shutil.copyfile(each.folder / client.SUMMARY, target / "result_summary.json")
        shutil.copyfile(each.folder / CONFIG, target / CONFIG)
        files.write_text(
            target / "point.yaml", yaml.safe_dump(point_yaml(campaign, about, seeds, each), sort_keys=False)
        )
        share = {"tps_utilization": each.measured.tokens_per_sec / most}  # of the highest of the curve
        files.write_json(target / "system_desc.json", described | declared | share)
        if each.point.accuracy:
            scored = accuracy_results(each.folder, articles, campaign.dataset_name)
            files.write_json(target / "accuracy_results.json", scored)
    if about.power:
        files.write_json(system / "system_power.json", about.power)
    write_notes(base, campaign)
    return base


def point_yaml(campaign: Campaign, about: Disclosure, seeds: Any, each: Done) -> dict[str, Any]:
    point, told = each.point, about.submission
    return {
        "concurrency": point.concurrency,
        "region": point.region,
        "dataset": campaign.dataset_name,
        "offline": "elected" if point.concurrency == campaign.c_max else "none",
        "division": told.division,
        "max_supported_concurrency": campaign.c_max,
        "model_name": official.MODEL,
        **{name: getattr(told, name) for name in ("model_precision", "link_to_model", "model_notes")},
        "link_to_model_transformation": told.link_to_model_transformation,
        "dataset_name": campaign.dataset_name,
        "dataset_type": "Accuracy + Performance" if point.accuracy else "Performance",
        "dataset_link": told.dataset_link,
        "shared_src": f"src/{IMPLEMENTATION}",
        "shared_docs": "docs",
        "seed_set": seeds.id,
        "target_cohort": told.target_cohort,
        "warmup": warm_up(each.folder, point.concurrency),
        "runtime_settings": {
            "load_pattern": "concurrency",
            "min_duration_ms": round(1000 * campaign.length(point)),
            "stream_all_chunks": True,
            "runtime": seeds.seeds,
            "warmup": {"salt": True},
        },
    }


def accuracy_results(folder: Path, articles: Sequence[Article], dataset: str) -> Any:
    """The content of accuracy_results.json. Raises EndpointError where an answer is missing."""
    if (folder / OWN).exists():
        return json.loads(reading.read_text(folder / OWN))
    answers = texts(folder, len(articles))
    rows = accuracy.score(answers, [article.reference for article in articles])
    named = {name.lower(): value for name, value in asdict(accuracy.totals(rows)).items()}
    entry = {"dataset_name": dataset, "score": named, "num_samples": len(answers), "n_repeats": 1, "scored_by": SCORER}
    return {"accuracy_scores": [entry]}


def texts(folder: Path, samples: int) -> list[str]:
    index: dict[str, int] = json.loads(reading.read_text(folder / INDEX))[SCORED]
    found: dict[int, str] = {}
    with reading.open_regular(folder / EVENTS) as lines:
        for line in lines:
            event = json.loads(line)
            if event["event_type"] == "sample.complete" and event["sample_uuid"] in index:
                pieces = event["data"][1] if len(event["data"]) > 1 else ""  # after its kind: the text, or parts of it
                found[index[event["sample_uuid"]]] = "".join(pieces).strip()
    if missing := [sample for sample in range(samples) if sample not in found]:
        raise EndpointError(
            f"{folder / EVENTS}: no answer to {len(missing)} of {samples} samples, the first {missing[0]}."
        )
    return [found[sample] for sample in range(samples)]


def warm_up(folder: Path, concurrency: int) -> dict[str, Any]:
    """What the client's log says of the time before its measurements."""
    begin = end = issued = completed = 0
    with reading.open_regular(folder / EVENTS) as lines:
        for line in lines:
            event = json.loads(line)
            kind = event["event_type"]
            begin = begin or event["timestamp_ns"]
            end = event["timestamp_ns"]
            if kind == "session.start_performance_tracking":
                break
            issued += kind == "sample.issued"
            completed += kind == "sample.complete"
    return {
        "duration_s": round((end - begin) / 1e9, 3),
        "requests_issued": issued,
        "requests_completed": completed,
        "data_source": "the performance data set, each prompt with a salt",
        "concurrency": concurrency,
        "logs_retained": True,
    }


def write_notes(base: Path, campaign: Campaign) -> None:
    """src/ and docs/: how a point is reproduced, and what the client at this commit does not do."""
    source, docs = base / "src" / IMPLEMENTATION, base / "docs"
    source.mkdir(parents=True)
    docs.mkdir()
    values = {"serve": campaign.server and server.public_command(shlex.split(campaign.server)), "commit": client.COMMIT}
    values |= {"install": client.INSTALL, "chat_template": server.TEMPLATE, "plain": server.PLAIN}
    for folder, name in ((source, "endpoints_source"), (docs, "endpoints_docs")):
        files.write_text(folder / "README.md", f"{render(f'{name}.md.j2', campaign=campaign, **values)}\n")
