"""Sweep files: what they hold, and each mistake at its line."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.core.locations import ROOT
from harness.sweep import file as sweep_file
from harness.sweep.file import BASELINE
from tests.support.example_sweeps import SHORT, written


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_sweep_is_sound(path: Path) -> None:
    found = sweep_file.load_sweep(path)
    assert len(found.experiments) > 5
    assert all(item.about for item in found.experiments)
    assert all(item.changes or item.name.startswith("len-2668") for item in found.experiments[1:])


def test_the_three_kinds(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        SHORT
        + "  engine: {stream_interval: 1}\n"
        + "isolation:\n  - {name: one, set: {max-num-seqs: 8}}\n"
        + "stacked:\n  - {name: two, set: {max_num_seqs: 16}}\n"
        + "  - {name: three, engine: {stream_interval: null}, env: {A: 1}}\n"
        + "grid:\n  set: {max_num_seqs: [4, 8]}\n  engine: {block_size: [16, 32]}\n",
    )
    found = {item.name: item for item in sweep_file.load_sweep(path).experiments}
    assert list(found)[:4] == [BASELINE, "one", "two", "three"]
    assert len(found) == 8
    assert found["one"].settings["max_num_seqs"] == 8
    assert "max_num_seqs" not in found[BASELINE].settings
    assert found["three"].settings["max_num_seqs"] == 16
    assert "engine_arg" not in found["three"].settings
    assert found["three"].env == {"A": "1"}
    assert found["three"].changes == ("max_num_seqs=16", "no stream_interval", "A=1")
    assert found["max_num_seqs-8+block_size-32"].settings["engine_arg"] == ["stream_interval=1", "block_size=32"]


def test_a_file_extends_another(tmp_path: Path) -> None:
    theirs = "isolation:\n  - {name: a, set: {max_num_seqs: 8}}\n  - {name: b, set: {seed: 1}}\n"
    written(tmp_path, SHORT + theirs, "x.yaml")
    path = written(tmp_path, "extends: x.yaml\nbaseline: {set: {seed: 3}}\nisolation:\n  - {name: a, set: {seed: 4}}\n")
    found = {item.name: item.settings for item in sweep_file.load_sweep(path).experiments}
    assert list(found) == [BASELINE, "a", "b"]
    assert (found[BASELINE]["seed"], found["a"]["seed"], found["b"]["seed"]) == (3, 4, 1)
    assert "max_num_seqs" not in found["a"]
    assert all(settings["model"] == "demo" for settings in found.values())


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("isolation:\n  - {name: a, set: {max_num_sex: 1}}\n", 2, "did you mean max_num_seqs"),
        ("isolation:\n  - name: a\n    sett: {seed: 1}\n", 3, "did you mean set"),
        ("name: mine\nbaseline: {}\n", 1, "unknown key 'name'."),
        ("baseline: {set: {dry_run: true}}\n", 1, "--dry-run is set by the sweep itself"),
        ("isolation:\n  - name: a\n    set:\n      seed: -1\n", 2, "--seed"),
        ("isolation:\n  - {name: a}\n  - {name: a}\n", 3, "second experiment"),
        ("isolation:\n  - {set: {seed: 1}}\n", 2, "name"),
        ("isolation:\n  - name: a\n    set: {results_dir: x}\n", 3, "sweep itself"),
        ("isolation:\n  - name: a\n    set: {engine_arg: [x=1]}\n", 3, "under `engine:`"),
        ("baseline:\n  set:\n    seed: 1\n    seed: 2\n", 4, "twice"),
        ("baseline: {}\n", 1, "no experiments"),
        ("baseline: {\n\n", 3, "not YAML"),
        ("about: 2024-13-45\n", 1, "not YAML"),
        (
            "baseline: {engine: {quantization: fp8}}\nisolation:\n  - {name: a}\n",
            1,
            "use --quantization",
        ),
        ("about: x\nextends: nowhere.yaml\n", 2, "nowhere.yaml"),
        ("extends: mine.yaml\n", 1, "extends itself"),
        ("- a\n", 1, "baseline"),
        ("isolation:\n  - {name: report.md}\n", 2, "choose another"),
        ("isolation:\n  - {name: max_num_seqs-8}\ngrid: {set: {max_num_seqs: [8]}}\n", 3, "second experiment"),
        ("grid: {set: {max_num_seqs: []}}\n", 1, "grid.set.max_num_seqs takes"),
        ("isolation:\n  - name: a\n    env:\n      HF_TOKEN: x\n", 4, "no secrets"),
        ("isolation:\n  - name: a\n    engine: {hf_token: x}\n", 3, "no secrets"),
        ("isolation:\n  - name: a\n    engine:\n      deep: [{api_key: x}]\n", 4, "no secrets"),
        ("isolation:\n  - name: a\n    env: {A=B: x}\n", 3, "isolation.0.env.A=B takes letters"),
        ("isolation:\n  - name: a\n    env: {A: [x]}\n", 3, "isolation.0.env.A takes"),
        ("isolation:\n  - name: b 1 ü\n", 2, "isolation.0.name takes letters"),
        ("isolation:\n  - {name: a, set: {label: ' '}}\n", 2, "--label"),
        ("baseline: 3\n", 1, "baseline takes lines"),
        ("isolation:\n  - name: a\n    set: {max-num-seqs: 1, max_num_seqs: 2}\n", 3, "twice"),
        ("baseline: {engine: &e {c: *e}}\n", 1, "recursive"),
        ("baseline: {set: {scenario: server}}\nisolation:\n  - {name: a}\n", 1, "server_target_qps"),
        ("baseline: {set: {seed: -1}}\nisolation:\n  - {name: a}\n", 1, "baseline: --seed"),
    ],
)
def test_a_mistake_has_its_line(tmp_path: Path, text: str, line: int, word: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        sweep_file.load_sweep(path)
    assert f"{path}:{line}:" in str(caught.value)
    assert word in str(caught.value)


@given(st.dictionaries(st.text(max_size=8), st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists)))
def test_no_file_is_a_stack_trace(tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]) -> None:
    path = written(tmp_path_factory.mktemp("any"), json.dumps(data))
    with pytest.raises(UsageError):
        sweep_file.load_sweep(path)
