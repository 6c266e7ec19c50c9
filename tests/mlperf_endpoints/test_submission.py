"""MLPerf Endpoints: points, the official client's configuration, the submission, what the official checker says."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness import __main__
from harness.common import files
from harness.common.errors import EndpointError, UsageError
from harness.mlperf_endpoints import client as official_client
from harness.mlperf_endpoints import disclosure, official, rehearsal, tree
from harness.mlperf_endpoints.campaign import Campaign
from harness.mlperf_endpoints.official import BANDS
from harness.mlperf_endpoints.steady_state import SteadyState
from harness.runs.probe import Probe
from tests.conftest import ROOT, called, tells

# What the official client leaves of a run, as it was seen at the pinned commit; 50 requests/s for each in flight.
CLIENT = """#!{python}
import json, pathlib, sys, yaml
given = yaml.safe_load(open(sys.argv[-1]))
folder = pathlib.Path(given["report_dir"])
settings = given["settings"]
level, samples = settings["load_pattern"].get("target_concurrency", 1), settings["runtime"]["n_samples_to_issue"]
with (folder / "calls").open("a") as calls:
    calls.write(f"{{samples}}\\n")
with (folder.parent / "calls").open("a") as calls:
    calls.write(f"r{{level}} {{samples}}\\n")
events, index = [], {{"performance": {{}}}}
def event(kind, at, uuid="", data=None):
    events.append({{"event_type": kind, "timestamp_ns": at, "sample_uuid": uuid, "data": data}})
event("session.started", 10**9)
event("sample.issued", 10**9, "w")
event("sample.complete", 3 * 10**9, "w")
event("session.start_performance_tracking", 4 * 10**9)
for dataset in given["datasets"]:
    if dataset["type"] == "accuracy":
        rows = [json.loads(line) for line in open(dataset["path"])]
        index[dataset["name"]] = {{f"u{{n}}": n for n in range(len(rows))}}
        for n, row in enumerate(rows):
            text = row["highlights"]
            event("sample.complete", 5 * 10**9, f"u{{n}}", ["TextModelOutput", [text[:3], text[3:]]])
(folder / "events.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in events))
(folder / "sample_idx_map.json").write_text(json.dumps(index))
(folder / "config.yaml").write_text(yaml.safe_dump(given))
(folder / "performance").mkdir()
spread = {{"total": 8e6 * samples, "percentiles": {{"50.0": 7e6, "90.0": 8e6}}}}
(folder / "performance" / "result_summary.json").write_text(json.dumps({{
    "n_samples_issued": samples, "n_samples_completed": samples, "n_samples_failed": 0, "complete": True,
    "duration_ns": int(samples / (50 * level) * 1e9), "ttft": spread, "tpot": spread, "latency": spread,
    "output_sequence_lengths": {{"total": 100 * samples, "percentiles": {{}}}},
}}))
sys.exit(1)  # its scorer wants the hub
"""
ARTICLES = [{"input": f"Article {n}.", "output": f"Summary number {n} of an article."} for n in range(5)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("client") / "inference-endpoint"
    path.write_text(CLIENT.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(scope="module")
def campaign(client: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole campaign of the demo's length, measured by the stand-in."""
    root = tmp_path_factory.mktemp("campaign")
    (root / "articles.json").write_text(json.dumps(ARTICLES))
    ended = run(root, client)
    assert ended.returncode == 0, ended.stderr
    return root


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)


def here(*words: str) -> "subprocess.CompletedProcess[str]":
    """As `command`, in this process: for what starts nothing."""
    return called(__main__.main, "llama31-mlperf", *words[2:])


def run(root: Path, client: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    return command(
        *("-m", "harness", "endpoints", "run", str(root / "camp"), "--endpoint", "http://127.0.0.1:1/v1"),
        *("--model", "demo/model", "--dataset-path", str(root / "articles.json"), "--c-max", "48", "--seconds", "2"),
        *("--client", str(client), *more),
    )


def described(**changes: object) -> dict[str, object]:
    """A completed description."""
    data = yaml.safe_load(
        disclosure.draft(disclosure.System(cpu="AMD EPYC", cores=2, memory_gib=24), "vLLM", "2026-11-C1")
    )
    filled = {name: "none" for name in disclosure.About.model_fields if not data["submission"][name]}
    data["submission"] |= filled | {"organisation": "acme", "submission_id": "acme-1"} | changes
    data["system"] |= {"system_name": "a CPU"}
    for node in data["system"]["node_types"]:
        node |= {name: "none" for name, value in node.items() if value == ""}
    return data


@given(lowest=st.integers(1, 32), highest=st.integers(33, 20_000), count=st.integers(7, 32))
def test_points_cover_every_region_and_end_at_both_ends(lowest: int, highest: int, count: int) -> None:
    if highest - lowest < 64:
        return
    points = official.points(lowest, highest, count)
    levels = [point.concurrency for point in points]
    assert len(points) == count and levels == sorted(set(levels))
    assert (levels[0], levels[-1]) == (lowest, highest)
    assert {point.region for point in points} == set(BANDS)
    assert {point.region for point in points if point.accuracy} == set(BANDS)
    assert all(point.seconds == (600 if point.concurrency <= 32 else 1200) for point in points)


def test_levels_lie_at_about_equal_ratios() -> None:
    levels = [point.concurrency for point in official.points(1, 1024, 12)]
    assert max(after / before for before, after in pairwise(levels)) <= 4


@pytest.mark.parametrize(("lowest", "highest", "count"), [(0, 64, 8), (33, 64, 8), (1, 32, 8)])
def test_a_curve_against_the_rules_is_refused(lowest: int, highest: int, count: int) -> None:
    with pytest.raises(UsageError):
        official.points(lowest, highest, count)


def test_a_campaign_is_measured_once_and_long_enough(campaign: Path, client: Path) -> None:
    calls = (campaign / "camp" / "points" / "calls").read_text().splitlines()
    levels = [point.concurrency for point in official.points(1, 48, 8)]
    assert [int(line.split()[0][1:]) for line in calls] == [level for level in levels for _ in range(2)]
    for level, line in zip(levels, calls[1::2], strict=True):
        assert int(line.split()[1]) >= 2 * 50 * level  # samples of two seconds
    again = run(campaign, client)
    assert again.returncode == 0 and (campaign / "camp" / "points" / "calls").read_text().splitlines() == calls
    other = run(campaign, client, "--points", "9")
    assert other.returncode == 2 and "points" in other.stderr


def test_seeds_of_the_client_are_the_published_ones(campaign: Path) -> None:
    runtime = yaml.safe_load((campaign / "camp/points/r1/config.yaml").read_text())["settings"]["runtime"]
    seeds = official.seeds()
    assert runtime["scheduler_random_seed"] == seeds.scheduler_rng_seed
    assert runtime["dataloader_random_seed"] == seeds.sample_index_rng_seed


def built(campaign: Path, out: Path, **changes: object) -> Path:
    system = out / "system.yaml"
    system.write_text(yaml.safe_dump(described(**changes)))
    ended = here(
        *("-m", "harness", "endpoints", "build", str(campaign / "camp"), "--system", str(system), "--out", str(out)),
    )
    assert ended.returncode == 0, ended.stderr
    return out / "acme" / "acme-1"


def test_the_official_checker_names_the_accuracy_alone(campaign: Path, tmp_path: Path) -> None:
    """Five made-up articles keep no gate over 13,368; all else of the submission is accepted."""
    base = built(campaign, tmp_path)
    found = official.check(base)
    errors = {each.rule for each in found if each.severity == "error"}
    assert errors == {"accuracy-gate", "accuracy-sample-count"}
    passed = {each.rule for each in found if each.severity == "info"}
    assert {"seed-runtime-match", "metric-consistency-accounting", "accuracy-coverage", "tps-utilization"} <= passed
    checked = here("-m", "harness", "endpoints", "check", str(base))
    assert checked.returncode == 1 and "accuracy-gate" in checked.stdout


def test_a_wrong_file_is_found_by_the_checker(campaign: Path, tmp_path: Path) -> None:
    base = built(campaign, tmp_path)
    point = next(base.rglob("r48/point.yaml"))
    told = yaml.safe_load(point.read_text())
    told["runtime_settings"]["runtime"]["scheduler_rng_seed"] = 42
    point.write_text(yaml.safe_dump(told))
    assert "seed-runtime-match" in {each.rule for each in official.check(base) if each.severity == "error"}


def test_scores_are_of_the_clients_answers(campaign: Path, tmp_path: Path) -> None:
    base = built(campaign, tmp_path)
    (entry,) = json.loads(next(base.rglob("r1/accuracy_results.json")).read_text())["accuracy_scores"]
    assert entry["num_samples"] == len(ARTICLES) and "llama31-mlperf" in entry["scored_by"]
    assert entry["score"]["rouge1"] == 100 and entry["score"]["gen_len"] == sum(len(a["output"]) for a in ARTICLES)


def test_what_is_empty_in_a_description_is_named(campaign: Path, tmp_path: Path) -> None:
    path = tmp_path / "system.yaml"
    assert here("-m", "harness", "endpoints", "describe", "--out", str(path)).returncode == 0
    ended = here(
        *("-m", "harness", "endpoints", "build", str(campaign / "camp"), "--system", str(path), "--out", str(tmp_path))
    )
    assert ended.returncode == 2
    assert "submission.organisation" in ended.stderr and "system.node_types.filesystem" in ended.stderr


UNNAMEABLE = ["../up", "/tmp/abs", "..", "", "a/b", "a\nb", "\x1b[31mred", "\0", "x" * 300, " "]


@pytest.mark.parametrize("name", UNNAMEABLE, ids=repr)
@pytest.mark.parametrize("field", ["organisation", "submission_id", "shortened_system_name"])
def test_no_text_of_a_file_leads_out_of_the_folder(campaign: Path, tmp_path: Path, field: str, name: str) -> None:
    data: Any = described()
    (data["system"] if field == "shortened_system_name" else data["submission"])[field] = name
    (tmp_path / "system.yaml").write_text(yaml.safe_dump(data))
    flags = ("--system", str(tmp_path / "system.yaml"), "--out", str(tmp_path / "a" / "b"))
    ended = here("-m", "harness", "endpoints", "build", str(campaign / "camp"), *flags)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ("NUL" if name == "\0" else field) in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["system.yaml"]


def test_a_campaign_is_measured_by_one_command_at_a_time(campaign: Path, client: Path) -> None:
    with files.lock_folder(campaign / "camp", "this test"):
        second = run(campaign, client)
    assert second.returncode == 2 and "this campaign is still running" in second.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_campaign_leaves_no_client_behind(tmp_path: Path, number: int, code: int) -> None:
    """Neither the client nor what it started; a second start goes on."""
    (tmp_path / "articles.json").write_text(json.dumps(ARTICLES))
    slow = tmp_path / "slow-client"
    slow.write_text(f"#!/bin/sh\n{sys.executable} -c 'import time; time.sleep(300)' slow-{tmp_path.name} &\nwait\n")
    slow.chmod(0o755)
    words = ("-m", "harness", "endpoints", "run", "camp", "--endpoint", "http://127.0.0.1:1", "--model", "m")
    more = ("--dataset-path", "articles.json", "--client", str(slow), "--c-max", "48", "--seconds", "1")
    given = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, *words, *more], cwd=tmp_path, env=given, stderr=subprocess.PIPE)

    def alive() -> bool:
        return any(f"slow-{tmp_path.name}" in (each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"]))

    until = time.monotonic() + 60
    while not alive() and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(30) == code
    until = time.monotonic() + 10
    while alive() and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive()


def test_a_client_that_never_came_to_measure_is_started_once_more(client: Path, tmp_path: Path) -> None:
    failing = tmp_path / "failing"
    failing.write_text(
        f'#!/bin/sh\n[ -e {tmp_path}/once ] && exec {client} "$@"\ntouch {tmp_path}/once\necho ERROR lost\n'
    )
    failing.chmod(0o755)
    settings = yaml.safe_load("settings: {load_pattern: {}, runtime: {n_samples_to_issue: 50}}")
    settings |= {"report_dir": str(tmp_path / "r1"), "datasets": []}
    assert official_client.run(str(failing), settings, tmp_path / "r1").n_samples_completed == 50
    failing.write_text("#!/bin/sh\necho ERROR lost\n")
    with pytest.raises(EndpointError, match="ERROR lost"):
        official_client.run(str(failing), settings, tmp_path / "r1")


def test_no_client_is_one_line_with_what_installs_it(tmp_path: Path) -> None:
    (tmp_path / "articles.json").write_text(json.dumps(ARTICLES))
    ended = run(tmp_path, tmp_path / "none")
    assert ended.returncode == 2 and "pip install" in ended.stderr and "Traceback" not in ended.stderr


def test_points_that_are_missing_are_named(tmp_path: Path) -> None:
    shared = {"endpoints": ["http://h"], "model": "m", "tokenizer": "t", "client": "c", "seed_set": "A"}
    with pytest.raises(UsageError, match="1, 2, 3"):
        tree.measured_points(tmp_path, Campaign(**shared, c_min=1, c_max=48))  # type: ignore[arg-type]


def test_what_a_short_curve_would_break() -> None:
    levels = [Probe(None, True, 1, 1, concurrency=n, tpot_p90=1) for n in (1, 64)]
    unknown = SteadyState(status="partial_dataset", verdict="not found", super_passes=0)
    steady = SteadyState("windowable", "steady state", super_passes=6, window=(1, 6), seconds=1250.0)
    tests = [(10.0, 90, unknown), (1300.0, 20_000, steady)]
    points = rehearsal.points_of([1, 64])
    made = [rehearsal.Level(*each, *test) for *each, test in zip(levels, points, tests, strict=True)]

    class Run:
        accuracy = None

    class Summary:
        run = Run()

    said = list(rehearsal.breaches(Summary(), made))  # type: ignore[arg-type]
    assert any("7" in line for line in said) and any("low_concurrency" in line for line in said)
    short, few, whole_run = (line for line in said if "concurrency" in line and "region" not in line)
    assert tells(short, "concurrency 1: 10 s ", " 600 s") and tells(few, "concurrency 1: 90 requests", " 13,368")
    assert tells(whole_run, "concurrency 1: ", "steady state (not found, partial dataset)")
    drifting = replace(steady, verdict="drifting up", drifts={"tpot_p50": 0.12})
    assert tells(drifting.words, "super-passes 2 to 6 of 6, 1,250 s", "tpot p50 +12 %")


@pytest.mark.slow
def test_a_rehearsal_runs_the_curve_and_judges_it(tmp_path: Path) -> None:
    more = ("--backend", "echo", "--model", "demo", "--mode", "performance", "--engine-arg", "token_s=0.001")
    ended = command(
        *("-m", "harness", "endpoints", "rehearse", "--c-max", "34", "--points", "7", "--seconds", "1"),
        *("--total-sample-count", "32"),
        *("--results-dir", str(tmp_path), *more),
    )
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^next +python -m harness run --concurrency max ", ended.stdout, re.M)
    assert re.search(r"concurrency 1: [1-9] s .* 600 s$", ended.stdout, re.M)
    assert re.search(r"concurrency 34: \d+ s .* 1,200 s$", ended.stdout, re.M)
    assert "no accuracy test" in ended.stdout and len(re.findall(r"^  r\d+: .*tps_per_user", ended.stdout, re.M)) == 7
