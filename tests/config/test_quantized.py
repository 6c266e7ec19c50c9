"""A quantized checkpoint: the lines of docs/quantization.md that make one, its quantize.json, what it is to run.py."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.config import models
from harness.config.checkpoint import is_reference, title
from harness.config.engine import EngineConfig
from harness.config.pretrained import load_shape
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.core.locations import ROOT
from harness.core.schema import SCHEMA
from harness.report import report as rendering
from tests.conftest import tells
from tests.support import example_runs

DEMO = ROOT / "demo" / "model"
SCHEME = "fp8, static scales; fp8 KV scales"
QUANTIZED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
MADE = {  # as earlier versions wrote it, with more than is read
    **{"schema_version": SCHEMA, "model": "demo", "scheme": SCHEME, "data": "demo/cnn_eval.json"},
    **{"samples": 16, "versions": {"llmcompressor": "0.14.0.1"}, "date": "2026-11-22T10:00:00+0000"},
}


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    """Rows of models are remembered by name; folders of tests change."""
    yield
    models.model.cache_clear()
    load_shape.cache_clear()


def demo_copy(folder: Path, **more: Any) -> Path:
    shutil.copytree(DEMO, folder)
    config = json.loads((folder / "config.json").read_text()) | more
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The demo, quantized but for the weights."""
    folder = demo_copy(tmp_path / "fp8", quantization_config=QUANTIZED)
    (folder / models.QUANTIZE_JSON).write_text(json.dumps(MADE))
    return folder


def test_the_lines_of_the_page_leave_what_reports_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: dict[str, Any] = {}
    stub = SimpleNamespace(oneshot=handed.update, QuantizationModifier=dict)
    for name in ("llmcompressor", "llmcompressor.modifiers", "llmcompressor.modifiers.quantization"):
        monkeypatch.setitem(sys.modules, name, stub)
    (lines,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "quantization.md").read_text(), re.M | re.S)
    given = f'model, out, data, samples = "demo", {str(tmp_path)!r}, {str(ROOT / "demo" / "cnn_eval.json")!r}, 16\n'
    exec(re.sub(r"^model, out = .*\n^data, samples = .*\n", lambda _: given, lines, flags=re.M), {})
    assert (handed["model"], handed["output_dir"], len(handed["dataset"])) == ("demo", str(tmp_path), 16)
    assert handed["max_seq_length"] == max(map(len, handed["dataset"]["input_ids"]))
    assert tells(title(EngineConfig(model=str(tmp_path))), f"(of demo: {SCHEME}; calibrated on 16 samples of ")


def test_a_quantized_demo_is_the_demo_with_other_weights(folder: Path) -> None:
    row = models.model(str(folder))
    assert row == models.MODELS["demo"]._replace(path=str(folder))
    plan = resolve(RunConfig(model=str(folder)), [], 0, is_reference(EngineConfig(model=str(folder))))
    assert str(plan.deviations[0]) == "the demo model"
    assert (plan.samples, plan.max_model_len) == (256, 1024)


@pytest.mark.parametrize("text", ["", "[]", '{"model": 3}', '{"model": "nothing known"}', "{}"])
def test_any_other_folder_is_a_model_of_its_own(tmp_path: Path, text: str) -> None:
    (tmp_path / models.QUANTIZE_JSON).write_text(text)
    assert models.model(str(tmp_path)) == models.ModelSpec(str(tmp_path))


@pytest.mark.parametrize("name", models.QUANTIZED)
def test_published_checkpoints_are_named_as_what_they_are(name: str) -> None:
    assert title(EngineConfig(model=name)) == (f"quantized checkpoint {name} (of Llama-3.1-8B-Instruct, published)")


def test_a_checkpoint_with_the_references_shape_is_the_reference_model(tmp_path: Path) -> None:
    config = EngineConfig(model=str(demo_copy(tmp_path / "model", quantization_config=QUANTIZED, **models.SHAPE)))
    assert is_reference(config)
    assert title(config) == f"quantized checkpoint {tmp_path}/model"
    plan = resolve(RunConfig(model=config.model), [], 0, is_reference(config))
    assert plan.deviations == []


def test_the_report_names_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    named = title(EngineConfig(model=str(folder)))
    assert tells(named, f"quantized checkpoint {folder} (of demo: {SCHEME}; ", "16 samples of demo/cnn_eval.json)")
    run = example_runs.run(tmp_path / "run")
    facts = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(facts | {"checkpoint": named}))
    assert rendering.build_report(run).meta.checkpoint == named
    assert f"| checkpoint | {named} |" in (run / "report.md").read_text()
    assert "quantized checkpoint" not in made_report(tmp_path / "plain")


def made_report(folder: Path) -> str:
    example_runs.rendered(folder)
    return (folder / "report.md").read_text()


def test_a_damaged_quantize_json_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / models.QUANTIZE_JSON).write_text(json.dumps(MADE | {"samples": "many"}))
    with pytest.raises(UsageError, match=r"quantize\.json: samples"):
        title(EngineConfig(model=str(tmp_path)))
