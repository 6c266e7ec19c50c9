"""The same server by several tools: what each is told, what is read of it, the page."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks import crosscheck
from benchmarks.crosscheck import TOOLS, CrosscheckLoad, Figures, Tool
from harness.config.run import RunConfig
from harness.core.errors import EndpointError


@pytest.fixture
def load(tmp_path: Path) -> CrosscheckLoad:
    config = RunConfig(model="demo", endpoint=("http://127.0.0.1:9/v1",))
    return CrosscheckLoad(config, 4, 32, 100, tmp_path / "prompts.jsonl", tmp_path, "served-name")


def test_every_tool_is_told_the_same(load: CrosscheckLoad) -> None:
    crosscheck.write_prompts(load)
    assert len(load.prompts.read_text().splitlines()) == 32
    for tool in TOOLS:
        words = " ".join(tool.command(load))
        given = load.folder / "reference" / "given.yaml"
        words += given.read_text() if tool.name == "inference-endpoint" else ""
        assert "127.0.0.1:9" in words and "32" in words and "100" in words
        assert str(load.prompts) in words or tool.name == "llama31-mlperf"  # which reads the same set itself
    point = yaml.safe_load(given.read_text())["settings"]
    assert point["load_pattern"]["target_concurrency"] == 4 and point["runtime"]["n_samples_to_issue"] == 32


def test_what_the_tools_report_is_read(load: CrosscheckLoad) -> None:
    times = {f"{kind}_{name}_ms": value for name, value in (("ttft", 5.0), ("tpot", 2.0)) for kind in ("median", "p99")}
    bench = {"completed": 32, "request_throughput": 4.0, "output_throughput": 400.0, **times}
    (load.folder / "bench.json").write_text(json.dumps(bench))

    def metric(value: float) -> dict[str, object]:
        return {"successful": {"mean": value, "percentiles": {"p50": value, "p99": value}}}

    guide = {"time_to_first_token_ms": metric(5.0), "time_per_output_token_ms": metric(2.0)}
    guide |= {"requests_per_second": metric(4.0), "output_tokens_per_second": metric(400.0)}
    both = {"benchmarks": [{"metrics": guide | {"request_totals": {"successful": 32}}}]}
    (load.folder / "guide.json").write_text(json.dumps(both))
    (load.folder / "reference" / "performance").mkdir(parents=True)
    spread = {name: {"percentiles": {"50.0": ms * 1e6, "99.0": ms * 1e6}} for name, ms in (("ttft", 5), ("tpot", 2))}
    client = {"n_samples_completed": 32, "qps": 4.0, "tps": 400.0, **spread}
    (load.folder / "reference" / "performance" / "result_summary.json").write_text(json.dumps(client))
    for tool in TOOLS[1:]:
        assert tool.read(load) == Figures(32, 4.0, 400.0, (5.0, 5.0), (2.0, 2.0)), tool.name


def tool(code: str, figures: Figures | None = None) -> Tool:
    def read(load: CrosscheckLoad) -> Figures:
        if figures is None:
            raise KeyError("qps")
        return figures

    return Tool("a tool", lambda: True, lambda load: ["sh", "-c", code], read, "a", "b", "c")


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        (tool("echo out of luck; exit 3"), "ended with 3: out of luck"),
        (tool("true"), "its result cannot be read"),
        (tool("true", Figures(0, 0, 0, (0, 0), (0, 0))), "no request was answered"),
    ],
)
def test_a_tool_that_fails_is_named(load: CrosscheckLoad, failing: Tool, said: str) -> None:
    with pytest.raises(EndpointError, match=f"a tool:? ?{said}"):
        crosscheck.run_tool(failing, load)


def test_the_page_has_a_column_for_each_and_its_words(load: CrosscheckLoad) -> None:
    text = crosscheck.page([(each, Figures(32, 4.0, 400.0, (5.0, 6.0), (2.0, 3.0))) for each in TOOLS])
    assert text.splitlines()[0].count("|") == len(TOOLS) + 2
    assert all(each.tpot in text for each in TOOLS)
