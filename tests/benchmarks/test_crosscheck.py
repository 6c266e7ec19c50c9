"""The same server by several tools: what each is told, what is read of it, the page."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks import crosscheck
from benchmarks.crosscheck import ToolRun
from benchmarks.load_tools import TOOLS, CrosscheckLoad, Percentiles, Tool, ToolFigures, ToolMeanings
from harness.config.run import RunConfig
from harness.core.errors import EndpointError
from harness.core.files import write_text

FIGURES = ToolFigures(32, 4.0, 400.0, Percentiles(5.0, 6.0), Percentiles(2.0, 3.0))
MEANINGS = ToolMeanings("a", "b", "c")


@pytest.fixture
def load(tmp_path: Path) -> CrosscheckLoad:
    config = RunConfig(model="demo", endpoint=("http://127.0.0.1:9/v1",))
    return CrosscheckLoad(config, 4, 32, 100, tmp_path / "prompts.jsonl", tmp_path, "served-name")


def test_every_prompt_stands_under_the_keys_of_all_tools(load: CrosscheckLoad) -> None:
    crosscheck.write_prompts(load)
    prompts = [json.loads(line) for line in load.prompts.read_text().splitlines()]
    assert len(prompts) == 32
    assert all(prompt["text"] == prompt["prompt"] != "" for prompt in prompts)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_tool_is_told_the_same(load: CrosscheckLoad, tool: Tool) -> None:
    words = " ".join(tool.command(load))
    configuration = load.folder / "inference-endpoint" / "configuration.yaml"
    if configuration.exists():
        point = yaml.safe_load(configuration.read_text())["settings"]
        assert point["load_pattern"]["target_concurrency"] == 4
        words += configuration.read_text()
    assert "127.0.0.1:9" in words
    assert "32" in words
    assert "100" in words
    reads_file = tool.name != "llama31-mlperf"  # This runner reads the same set itself.
    assert (str(load.prompts) in words) == reads_file


def result_of_vllm_bench() -> dict[str, object]:
    return {
        "completed": 32,
        "request_throughput": 4.0,
        "output_throughput": 400.0,
        "median_ttft_ms": 5.0,
        "p99_ttft_ms": 6.0,
        "median_tpot_ms": 2.0,
        "p99_tpot_ms": 3.0,
    }


def result_of_guidellm() -> dict[str, object]:
    metrics = {
        "time_to_first_token_ms": {"successful": {"percentiles": {"p50": 5.0, "p99": 6.0}}},
        "time_per_output_token_ms": {"successful": {"percentiles": {"p50": 2.0, "p99": 3.0}}},
        "requests_per_second": {"successful": {"mean": 4.0}},
        "output_tokens_per_second": {"successful": {"mean": 400.0}},
        "request_totals": {"successful": 32},
    }
    return {"benchmarks": [{"metrics": metrics}]}


def result_of_aiperf() -> dict[str, object]:
    return {
        "request_count": {"avg": 32.0},
        "request_throughput": {"avg": 4.0},
        "output_token_throughput": {"avg": 400.0},
        "time_to_first_token": {"p50": 5.0, "p99": 6.0},
        "inter_token_latency": {"p50": 2.0, "p99": 3.0},
    }


def result_of_inference_endpoint() -> dict[str, object]:
    return {
        "n_samples_completed": 33,
        "n_samples_failed": 1,
        "qps": 4.0,
        "tps": 400.0,
        "ttft": {"percentiles": {"50.0": 5e6, "99.0": 6e6}},
        "tpot": {"percentiles": {"50.0": 2e6, "99.0": 3e6}},
    }


RESULTS = {
    "vllm bench serve": ("vllm-bench-serve.json", result_of_vllm_bench()),
    "guidellm": ("guidellm.json", result_of_guidellm()),
    "aiperf": ("aiperf/profile_export_aiperf.json", result_of_aiperf()),
    "inference-endpoint": ("inference-endpoint/performance/result_summary.json", result_of_inference_endpoint()),
}


@pytest.mark.parametrize("tool", TOOLS[1:], ids=lambda tool: tool.name)
def test_what_the_tools_report_is_read(load: CrosscheckLoad, tool: Tool) -> None:
    path, result = RESULTS[tool.name]
    (load.folder / path).parent.mkdir(parents=True, exist_ok=True)
    write_text(load.folder / path, json.dumps(result))
    assert tool.read_figures(load) == FIGURES


def test_the_endpoints_client_without_an_answer_names_the_template(load: CrosscheckLoad) -> None:
    path, result = RESULTS["inference-endpoint"]
    (load.folder / path).parent.mkdir(parents=True)
    write_text(load.folder / path, json.dumps(result | {"n_samples_failed": 33}))
    with pytest.raises(EndpointError, match="--chat-template"):
        TOOLS[-1].read_figures(load)


def tool_with(script: str, figures: ToolFigures | None = None) -> Tool:
    """Return a tool that runs a shell script and has these figures; None if its result lacks one."""

    def read(load: CrosscheckLoad) -> ToolFigures:
        if figures is None:
            raise KeyError("qps")
        return figures

    return Tool("a tool", lambda: True, lambda load: ["sh", "-c", script], read, MEANINGS)


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        (tool_with("echo out of luck; exit 3"), "ended with 3: out of luck"),
        (tool_with("exit 3"), "ended with 3: it printed nothing"),
        (tool_with("true"), "its result cannot be read"),
        (tool_with("true", FIGURES._replace(requests=0)), "no request was answered"),
    ],
)
def test_a_tool_that_fails_is_named(load: CrosscheckLoad, failing: Tool, said: str) -> None:
    with pytest.raises(EndpointError, match=f"a tool:? ?{said}"):
        crosscheck.run_tool(failing, load)


def test_a_tool_s_command_and_lines_are_kept(load: CrosscheckLoad) -> None:
    run = crosscheck.run_tool(tool_with("sleep 0.2; echo one; echo two >&2", FIGURES), load)
    assert (run.figures, run.line_count) == (FIGURES, 2)
    assert run.seconds >= 0.2
    assert (load.folder / "a-tool.txt").read_text() == "one\ntwo\n"
    assert (load.folder / "a-tool.command").read_text().startswith("sh -c ")


def test_the_tables_have_each_tool_and_its_words() -> None:
    runs = [ToolRun(tool, FIGURES, 12.0, 34) for tool in TOOLS]
    figures = str(crosscheck.figure_table(runs)).splitlines()
    assert figures[0].count("|") == len(TOOLS) + 2
    assert len(figures) == 2 + len(crosscheck.FIGURE_ROWS)
    meanings = str(crosscheck.meaning_table(TOOLS))
    assert all(tool.meanings.tpot in meanings for tool in TOOLS)
