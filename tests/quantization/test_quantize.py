"""Quantizing: arguments, calibration data, messages, and what a quantized folder is to run.py. No llm-compressor."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from harness.common import files
from harness.common.errors import BAD_INPUT, UsageError
from harness.common.paths import ROOT
from harness.common.schema import SCHEMA
from harness.config import mlperf, models
from harness.config.checkpoint import is_reference, load_shape, load_tokenizer
from harness.config.engine import EngineConfig
from harness.config.plan import resolve
from harness.config.run import RunConfig
from harness.quantization import calibration, quantize
from harness.reporting import report as rendering
from harness.workloads.cnn_dailymail import Library
from tests import made
from tests.conftest import called, tells

DEMO = ROOT / "demo" / "model"
PACKAGE = "Metadata-Version: 2.1\nName: llmcompressor\nVersion: 1.0\n"
QUANTIZED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
MADE = {
    **{"schema_version": SCHEMA, "model": "demo", "scheme": quantize.SCHEME, "data": "demo/cnn_eval.json"},
    **{"samples": 16, "versions": {"llmcompressor": "0.14.0.1"}, "date": "2026-11-22T10:00:00+0000"},
}


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    """Rows of models are remembered by name; folders of tests change."""
    yield
    models.model.cache_clear()
    load_shape.cache_clear()


def refusal(*words: str | Path | int) -> str:
    """The one line that a command line ends with, before it says what it begins with."""
    done = called("quantize", "quantize", *map(str, words))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (BAD_INPUT, "", 1), done.stderr
    return done.stderr


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of llm-compressor's name, where Python finds it."""
    place = tmp_path_factory.mktemp("packages")
    for path, text in (("llmcompressor/__init__.py", ""), ("llmcompressor-1.0.dist-info/METADATA", PACKAGE)):
        (place / path).parent.mkdir()
        (place / path).write_text(text)
    monkeypatch.syspath_prepend(place)


def demo_copy(folder: Path, **more: Any) -> Path:
    shutil.copytree(DEMO, folder)
    config = json.loads((folder / "config.json").read_text()) | more
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.skipif(find_spec("llmcompressor") is not None, reason="it is installed here")
def test_without_llm_compressor_it_says_what_to_install(tmp_path: Path) -> None:
    assert "pip install -r requirements-quantize.txt" in refusal("--model", "demo", "--out", tmp_path / "out")


def test_wrong_arguments_end_in_one_line(installed: None, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = ("--out", tmp_path / "new")
    assert "not empty; choose another folder" in refusal("--model", "demo", "--out", tmp_path)
    assert "file: not a folder" in refusal("--model", "demo", "--out", tmp_path / "file")
    assert "cannot write there" in refusal("--model", "demo", "--out", tmp_path / "file" / "out")
    assert "--total-sample-count" in refusal("--model", "demo", "--samples", 0, *out)  # by an older name
    assert "--total-sample-count 999: demo/cnn_eval.json has 256" in refusal("--model", "demo", "--samples", 999, *out)
    assert "--dataset-path nothing.json: no such" in refusal("--model", "demo", "--data", "nothing.json", *out)
    assert "not JSON" in refusal("--model", "demo", "--data", tmp_path / "file", *out)
    quantized = demo_copy(tmp_path / "quantized", quantization_config=QUANTIZED)
    assert "already quantized" in refusal("--model", quantized, "--data", "demo/cnn_eval.json", *out)


def test_an_unknown_model_ends_in_one_line(installed: None, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    words = ("--model", tmp_path / "model", "--data", "demo/cnn_eval.json", "--out", tmp_path / "out")
    assert "no usable tokenizer" in refusal(*words)


def test_without_the_submodule_it_says_how_to_get_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "LIST", ROOT / "third_party" / "nothing.txt")
    with pytest.raises(UsageError, match=r"nothing\.txt .*git submodule update --init third_party/inference`.*--data"):
        calibration.find(None)


IDS = [f"{number:040x}" for number in range(5)]


def train(rows: Sequence[int]) -> Any:
    from datasets import Dataset

    columns = {"id": [IDS[row] for row in rows], "article": [f"article {row}" for row in rows]}
    return Dataset.from_dict(columns | {"highlights": ["summary"] * len(rows)})


def test_the_list_is_read_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calibration-list.txt"
    path.write_text("\n".join([IDS[3], IDS[1], IDS[4]]) + "\n")
    monkeypatch.setattr(calibration, "LIST", path)
    splits = {"train": train(range(5))}
    monkeypatch.setattr(calibration.hub, "download", lambda *name: splits[name[-1]])
    assert calibration.find(None) == path
    tokenizer = load_tokenizer(EngineConfig(model="demo"))
    library = calibration.load(path, tokenizer, 2)
    assert library.articles == ["article 3", "article 1"]
    assert library.prompts[0] == tokenizer.encode(mlperf.PROMPT.format(input="article 3"))
    assert tells(library.source, "MLPerf's calibration list", "train split")
    splits["train"] = train([0, 1, 3])
    with pytest.raises(UsageError, match=f"1 articles of the calibration list, .*{IDS[4]}"):
        calibration.load(path, tokenizer, None)


@pytest.mark.parametrize("text", ["", "\n", "eceaa658\n", IDS[0] + "\n<!doctype html>", IDS[0].upper() + "G"])
def test_what_is_no_list_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(UsageError, match=r"list\.txt: .* not an article id"):
        calibration.from_list(tmp_path / "list.txt")


def fake_compress(path: str, prompts: list[list[int]], out: Path) -> None:
    """What llm-compressor leaves, with a config in another transformers' words."""
    (out / "model.safetensors").write_bytes(b"weights")
    (out / "model.safetensors").chmod(0o600)
    (out / "config.json").write_text(json.dumps({"torch_dtype": "x", "quantization_config": QUANTIZED}))


@pytest.fixture
def folder(installed: None, tmp_path: Path) -> Path:
    """The demo, quantized but for the weights."""
    config = EngineConfig(model="demo")
    library = calibration.load(Path("demo/cnn_eval.json"), load_tokenizer(config), 16)
    quantize.make(config, library, tmp_path / "fp8", fake_compress)
    return tmp_path / "fp8"


def test_the_command_hands_on_model_samples_and_folder(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[Any] = []
    monkeypatch.setattr(quantize, "make", lambda *given: handed.append(given))
    done = called("quantize", "quantize", "--model", "demo", "--out", str(tmp_path / "fp8"), "--samples", "3")
    ((config, library, out),) = handed
    assert (done.returncode, config.model, len(library), out) == (0, "demo", 3, tmp_path / "fp8")


def test_the_folder_holds_all_that_an_engine_needs(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    own = {path.name for path in DEMO.iterdir()}
    assert names == own | {models.QUANTIZE_JSON}
    assert json.loads((folder / "config.json").read_text()) == {
        **json.loads((DEMO / "config.json").read_text()),
        "quantization_config": QUANTIZED,
    }
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in folder.iterdir())
    about = files.read(folder / models.QUANTIZE_JSON, quantize.Quantized)
    assert (about.model, about.samples, about.data) == ("demo", 16, "demo/cnn_eval.json")
    assert set(about.versions) == set(quantize.PACKAGES) and about.versions["llmcompressor"] == "1.0"
    assert list(folder.parent.glob(".fp8-*")) == []


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fails(path: str, prompts: list[list[int]], out: Path) -> None:
        (out / "half").touch()
        raise MemoryError

    with pytest.raises(MemoryError):
        quantize.make(EngineConfig(model="demo"), Library([[1]], [""], [""], "data"), tmp_path / "out", fails)
    assert list(tmp_path.iterdir()) == []


def test_a_quantized_demo_is_the_demo_with_other_weights(folder: Path) -> None:
    row = models.model(str(folder))
    assert row == replace(models.MODELS["demo"], path=str(folder))
    plan = resolve(RunConfig(model=str(folder)), [], 0, is_reference(EngineConfig(model=str(folder))))
    assert plan.deviations[0] == "the demo model"
    assert (plan.samples, plan.max_model_len) == (256, 1024)


@pytest.mark.parametrize("text", ["", "[]", '{"model": 3}', '{"model": "nothing known"}', "{}"])
def test_any_other_folder_is_a_model_of_its_own(tmp_path: Path, text: str) -> None:
    (tmp_path / models.QUANTIZE_JSON).write_text(text)
    assert models.model(str(tmp_path)) == models.ModelSpec(str(tmp_path))


@pytest.mark.parametrize("name", models.QUANTIZED)
def test_published_checkpoints_are_named_as_what_they_are(name: str) -> None:
    assert quantize.title(EngineConfig(model=name)) == (
        f"quantized checkpoint {name} (of Llama-3.1-8B-Instruct, published)"
    )


def test_a_checkpoint_with_the_references_shape_is_the_reference_model(tmp_path: Path) -> None:
    config = EngineConfig(model=str(demo_copy(tmp_path / "model", quantization_config=QUANTIZED, **models.SHAPE)))
    assert is_reference(config)
    assert quantize.title(config) == f"quantized checkpoint {tmp_path}/model"
    plan = resolve(RunConfig(model=config.model), [], 0, is_reference(config))
    assert plan.deviations == []


def test_the_report_names_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    title = quantize.title(EngineConfig(model=str(folder)))
    assert tells(
        title, f"quantized checkpoint {folder} (of demo: {quantize.SCHEME}; ", "16 samples of demo/cnn_eval.json)"
    )
    run = made.run(tmp_path / "run")
    facts = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(facts | {"checkpoint": title}))
    assert rendering.build(run).meta.checkpoint == title
    assert f"Model: {title}." in (run / "report.md").read_text()
    assert "quantized checkpoint" not in made_report(tmp_path / "plain")


def made_report(folder: Path) -> str:
    made.rendered(folder)
    return (folder / "report.md").read_text()


def test_a_damaged_quantize_json_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / models.QUANTIZE_JSON).write_text(json.dumps(MADE | {"samples": "many"}))
    with pytest.raises(UsageError, match=r"quantize\.json: samples"):
        quantize.title(EngineConfig(model=str(tmp_path)))


def test_special_tokens_of_the_model_stay_in_its_config(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    tokens = {"bos_token": "<s>", "pad_token": "<pad>", "image_token": "<image>"}
    for folder, config in ((source, tokens), (out, {"quantization_config": QUANTIZED})):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    quantize.finish(source, out)
    assert json.loads((out / "config.json").read_text()) == tokens | {"quantization_config": QUANTIZED}
