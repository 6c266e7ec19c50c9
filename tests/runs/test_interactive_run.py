"""A whole Interactive run with lengths of its own and a profile."""

import json

import pytest

from harness.config.pretrained import load_tokenizer
from harness.config.run import RunConfig
from harness.loadgen import log as loadgen_log
from harness.loadgen.requests import read_requests
from harness.results import benchmark_run
from harness.workloads import custom as workload_samples
from tests.conftest import Finished, run
from tests.runs.test_whole_runs import check

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def interactive(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    work = ("--input-len", "64~0.3", "--output-len", "16~0.3", "--total-sample-count", "32", "--profile")
    pace = ("--scenario", "interactive", "--mode", "performance", "--server-target-qps", "20")
    return run(tmp_path_factory.mktemp("results"), *pace, *work)


def test_interactive_performance_only(interactive: Finished) -> None:
    """And with lengths of the user's own: what the engine was asked is what it answered."""
    done = interactive
    check(done, "interactive", ("performance",))
    drawn = workload_samples.load(
        benchmark_run.facts_of(done.folder).plan.config, load_tokenizer(RunConfig(model="demo"))
    )
    pairs = {(len(prompt), most) for prompt, most in drawn.requests} if drawn else set()
    requests = read_requests(done.folder / "Performance")
    assert {(each.prompt_tokens, each.output_tokens) for each in requests} == pairs and len(pairs) > 20
    assert done.summary["meta"]["workload"] == "input 64~0.3, output 16~0.3"
    assert done.summary["run"]["performance"]["output_lengths"]["max"] == max(most for _, most in pairs)
    config = json.loads((done.folder / "config.json").read_text())
    assert config["loadgen"] == {"model": "llama3_1-8b-interactive", "scenario": "Server"}
    facts = loadgen_log.read(done.folder / "Performance")
    assert done.summary["run"]["performance"]["limits_ms"] == {"ttft": 500, "tpot": 30}
    assert facts.target_qps == 20


def test_the_profile_of_a_run_says_what_the_time_went_to(interactive: Finished) -> None:
    profile = interactive.summary["run"]["profile"]
    assert (profile["failure"], profile["device"], profile["idle_percent"]) == ("", "CPU", None)
    assert {"matrix products", "attention"} <= {kind["name"] for kind in profile["kinds"]}
    assert sum(kind["percent"] for kind in profile["kinds"]) == pytest.approx(100)
    assert 0 < profile["seconds"] < 60
    assert profile["tokens_per_step"] > 1 and profile["read_per_step"] > 64  # at least a prompt's
    assert all((interactive.folder / path).stat().st_size > 1000 for path in profile["traces"])
    assert interactive.summary["plots"]["profile"]
    stages = [name for name, *_ in interactive.summary["meta"]["stages"]]
    assert stages.index("profiling") > stages.index("performance test")
