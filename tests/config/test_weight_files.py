"""The files of a checkpoint: those of its index count, once each, and one that is missing or cut short is named."""

import json
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.config import checkpoint
from harness.config.models import DEMO
from harness.config.run import RunConfig
from harness.config.weight_files import weight_files
from harness.core.errors import UsageError
from harness.runner import doctor
from tests.conftest import called

KIB = 1024
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
SHARDS = {f"model-0000{number}-of-00002.safetensors": 4 * KIB for number in (1, 2)}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 4\n"


def folder_of(place: Path, files: dict[str, int], index: dict[str, str] | None = None, name: str = "model") -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for file, size in files.items():
        (place / file).write_bytes(b"\0" * size)
    if index is not None:
        suffix = "safetensors" if name == "model" else "bin"
        (place / f"{name}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return place


def index_of(*names: str) -> dict[str, str]:
    return {f"layer.{number}": name for number, name in enumerate([*names, *names])}


@pytest.mark.parametrize(
    ("files", "index", "loaded"),
    [
        (SHARDS, index_of(*SHARDS), [*SHARDS]),
        (SHARDS, None, [*SHARDS]),
        ({**SHARDS, "consolidated.safetensors": 9}, index_of(*SHARDS), [*SHARDS]),
        ({**SHARDS, "consolidated.safetensors": 9}, None, [*SHARDS]),
        ({**SHARDS, "model.safetensors": 9}, None, ["model.safetensors"]),
        ({**SHARDS, "model.safetensors": 9}, index_of(*SHARDS), [*SHARDS]),
        ({**SHARDS, "adapter_model.safetensors": 9, "adapter_model.bin": 9}, None, [*SHARDS]),
        ({**SHARDS, "pytorch_model.bin": 9, "model.pt": 9}, None, [*SHARDS]),
        ({**SHARDS, "model.fp16-00001-of-00001.safetensors": 9}, index_of(*SHARDS), [*SHARDS]),
        ({"model.safetensors": 9, "model.fp16.safetensors": 5, "._model.safetensors": 3}, None, ["model.safetensors"]),
        ({"consolidated.safetensors": 9}, None, ["consolidated.safetensors"]),
        ({"pytorch_model.bin": 9, "training_args.bin": 1, "optimizer.bin": 7}, None, ["pytorch_model.bin"]),
        ({"adapter_model.safetensors": 9}, None, []),
        ({"tokenizer.json": 9}, None, []),
    ],
    ids=str,
)
def test_the_files_that_an_engine_loads_count(
    files: dict[str, int], index: dict[str, str] | None, loaded: list[str], tmp_path: Path
) -> None:
    found = weight_files(folder_of(tmp_path, files, index), "m", is_loaded=True)
    assert [path.name for path in found] == sorted(loaded)


@pytest.mark.parametrize("missing", [*SHARDS])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_shard_that_is_missing_is_named(missing: str, has_index: bool, tmp_path: Path) -> None:
    files = {name: size for name, size in SHARDS.items() if name != missing}
    folder = folder_of(tmp_path, files, index_of(*SHARDS) if has_index else None)
    with pytest.raises(UsageError, match=f"{missing} is missing, 1 of 2 files"):
        weight_files(folder, "m", is_loaded=True)
    assert [path.name for path in weight_files(folder, "m", is_loaded=False)] == [*files]


@given(count=st.integers(2, 40), gone=st.sets(st.integers(1, 40), min_size=1, max_size=5), has_index=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_shard_that_is_missing_is_found(
    count: int, gone: set[int], has_index: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    kept = {name: 1 for number, name in enumerate(names, start=1) if number not in gone}
    folder = folder_of(tmp_path_factory.mktemp("m"), kept, index_of(*names) if has_index else None)
    if len(kept) == count:
        assert len(weight_files(folder, "m", is_loaded=True)) == count
    elif kept or has_index:
        with pytest.raises(UsageError, match=f"{count - len(kept)} of {count} files"):
            weight_files(folder, "m", is_loaded=True)


def safetensors(size: int, stored: int | None = None) -> bytes:
    """A file of one tensor of so many bytes, of which fewer may be there."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}, "__metadata__": {}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * (size if stored is None else stored)


@pytest.mark.parametrize(
    ("content", "is_whole"),
    [
        (safetensors(100), True),
        (safetensors(100, 99), False),
        (safetensors(100, 0), False),
        (safetensors(100)[:30], False),
        (safetensors(0), True),
        (b"", True),  # no header: what it is, its library says
        (b"\xff" * 40, True),
    ],
)
def test_a_shard_that_is_cut_short_is_named(content: bytes, is_whole: bool, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    if is_whole:
        assert len(weight_files(tmp_path, "m", is_loaded=True)) == 1
        return
    with pytest.raises(UsageError, match=r"model\.safetensors is cut short"):
        weight_files(tmp_path, "m", is_loaded=True)


@pytest.mark.parametrize("index", ["{", "{}", '{"weight_map": {}}', '{"weight_map": []}', "[]", POINTER])
def test_a_damaged_index_is_named(index: str, tmp_path: Path) -> None:
    folder_of(tmp_path, SHARDS)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UsageError, match=r"model\.safetensors\.index\.json") as caught:
        weight_files(tmp_path, "m", is_loaded=True)
    assert "\n" not in str(caught.value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An fp8 checkpoint whose second shard is not there."""
    folder = folder_of(tmp_path / "m", {next(iter(SHARDS)): 4 * KIB}, index_of(*SHARDS))
    quantized = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
    (folder / "config.json").write_text(json.dumps(LLAMA | quantized))
    return folder


def test_who_does_not_load_the_weights_needs_no_shard(model: Path) -> None:
    with pytest.raises(UsageError, match="00002-of-00002"):
        checkpoint.weight_bytes(RunConfig(model=str(model)))
    for flags in ({"endpoint": ("http://h/v1",)}, {"load_format": "dummy"}, {"backend": "echo"}):
        assert checkpoint.weight_bytes(RunConfig(model=str(model), **flags)) == 4 * KIB  # type: ignore[arg-type]


def test_doctor_names_the_shard_that_is_missing(model: Path) -> None:
    for path in (DEMO / "model").glob("*token*"):
        shutil.copy(path, model)
    done = called("doctor", "doctor", "--model", str(model))
    assert done.returncode == 2 and "00002-of-00002.safetensors is missing" in " ".join(done.stdout.split())
    assert not doctor.has_all_weights(model, RunConfig(model=str(model)))
