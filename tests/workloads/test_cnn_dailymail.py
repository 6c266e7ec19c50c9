"""The sample library: three sources, one library; what cannot serve is named."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.config import mlperf
from harness.config.mlperf import PROMPT
from harness.config.models import DEMO
from harness.config.pretrained import load_tokenizer
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.core.locations import ROOT
from harness.workloads import cnn_dailymail
from harness.workloads.cnn_dailymail import articles_from_json, check_lengths, is_official, load
from harness.workloads.sample_library import Library
from tests.conftest import tells

RECORDS: list[dict[str, Any]] = json.loads((DEMO / "cnn_eval.json").read_text())
ENGLISH = {"article": [r["input"] for r in RECORDS], "highlights": [r["output"] for r in RECORDS]}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(RunConfig(model="demo"))


@pytest.fixture
def file(tmp_path: Path):
    """Writes a data set as JSON."""

    def write(data: Any) -> Path:
        path = tmp_path / "data.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write


def config(path: Path | None = None, category: str = "datacenter") -> RunConfig:
    return RunConfig(model="demo", category=category, dataset_path=path)


def content(library: Library) -> tuple[list[list[int]], list[str], list[str]]:
    return library.prompts, library.references, library.articles


def changed(**fields: Any) -> list[dict[str, Any]]:
    """Five records, number 3 with other fields; None takes a field away."""
    records = [dict(record) for record in RECORDS[:5]]
    records[3] = {key: value for key, value in (records[3] | fields).items() if value is not None}
    return records


def refusal(path: Path, tokenizer: Any, count: int = 5) -> str:
    with pytest.raises(UsageError) as error:
        load(config(path), tokenizer, count)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders saved by `datasets`: one split; several; without a validation split; with other columns."""
    from datasets import Dataset, DatasetDict

    articles = Dataset.from_dict(ENGLISH)
    other = Dataset.from_dict({"text": ["a"]})
    data = {
        "split": articles,
        "dictionary": DatasetDict({"train": other, "validation": articles}),
        "train only": DatasetDict({"train": articles}),
        "columns": other,
    }
    folders = {name: tmp_path_factory.mktemp("saved") / name for name in data}
    for name, folder in folders.items():
        data[name].save_to_disk(str(folder))
    return folders


@pytest.mark.parametrize("category", ["datacenter", "edge"])
def test_every_source_gives_the_same_library(tokenizer: Any, saved: dict[str, Path], file, category: str):
    count = config(category=category).task.samples
    default = load(config(category=category), tokenizer, count)
    bare = file([{"input": record["input"], "output": record["output"]} for record in RECORDS])
    for path in (DEMO / "cnn_eval.json", bare, saved["split"], saved["dictionary"]):
        library = load(config(path, category), tokenizer, count)
        assert content(library) == content(default)
        assert library.source == str(path)
    assert len(default) == count == {"datacenter": 256, "edge": 100}[category]


def test_prompts_are_the_fixed_instruction_around_the_article(tokenizer: Any):
    library = load(config(), tokenizer, 3)
    for prompt, article in zip(library.prompts, library.articles, strict=True):
        text = tokenizer.decode(prompt, skip_special_tokens=True)
        assert text.startswith("Summarize the following news article in 128 tokens. Please output the summary only, ")
        assert text.endswith(f"without any other text.\n\nArticle:\n{article}\n\nSummary:")


def test_tokens_that_come_with_the_data_are_used_as_they_are(tokenizer: Any, file):
    whole = RECORDS[3]["tok_input"]
    for tokens in (whole, whole[1:], [*whole, 7], whole[: len(whole) // 2]):  # another beginning or end, cut
        library = load(config(file(changed(tok_input=tokens))), tokenizer, 5)
        assert library.prompts[3] == tokens and library.notes == ()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_token_ids_of_another_tokenizer_are_refused_with_both_texts(tokenizer: Any, file, count: int):
    """A file of another model has the same name, the same keys, and ids of the same vocabulary."""
    shifted = [record | {"tok_input": [(token + 7) % 700 for token in record["tok_input"]]} for record in RECORDS[:5]]
    path = file(shifted)
    line = refusal(path, tokenizer, count)
    read, article = tokenizer.decode(shifted[0]["tok_input"], skip_special_tokens=True), shifted[0]["input"]
    assert line.startswith(f"{path}: record 0: tok_input") and repr(read[:60]) in line and repr(article[:60]) in line


def test_of_many_records_a_few_are_enough_to_find_another_tokenizer(tokenizer: Any, file):
    records = [record | {"tok_input": [9, 8, 7]} for record in RECORDS]
    assert "tok_input" in refusal(file(records), tokenizer, 256)
    bare = [{key: value for key, value in record.items() if key != "tok_input"} for record in RECORDS]
    path = file([*bare[:100], records[100], *bare[101:]])
    assert load(config(path), tokenizer, 100).notes == ()
    assert "record 100:" in refusal(path, tokenizer, 101)


def test_what_is_not_read_of_the_data_is_named(tokenizer: Any, file):
    records = [
        {"input": record["input"], "output": record["output"], "prompt_style": "x", "id": 1} for record in RECORDS[:5]
    ]
    assert load(config(file(records)), tokenizer, 5).notes == ("not read: 'prompt_style' in 5 records",)
    other = [record | {"instruction": "Summarize the news:"} for record in records]
    assert any("Summarize the news:" in note for note in load(config(file(other)), tokenizer, 5).notes)
    same = [record | {"instruction": PROMPT} for record in RECORDS[:5]]
    assert load(config(file(same)), tokenizer, 5).notes == ()


def test_datacenter_keeps_the_order_of_the_data(tokenizer: Any):
    library = load(config(), tokenizer, 10)
    assert library.references == ENGLISH["highlights"][:10]


def test_edge_takes_the_first_of_the_shuffled_data(tokenizer: Any):
    from datasets import Dataset

    shuffled = Dataset.from_dict(ENGLISH).shuffle(seed=42)
    library = load(config(category="edge"), tokenizer, 100)
    assert library.references == shuffled["highlights"][:100]
    assert library.articles == shuffled["article"][:100]
    assert load(config(category="edge"), tokenizer, 7).references == shuffled["highlights"][:7]


def test_edge_takes_a_sample_file_of_its_size_as_it_is(tokenizer: Any, file):
    library = load(config(file(RECORDS[:100]), "edge"), tokenizer, 100)
    assert library.references == ENGLISH["highlights"][:100]


def test_too_few_samples_says_what_to_do(tokenizer: Any, file):
    message = refusal(file(RECORDS[:5]), tokenizer, 6)
    assert tells(message, "has 5 samples", "needs 6: use --total-sample-count")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": None}, "no text under 'input'"),
        ({"input": 5}, "no text under 'input'"),
        ({"output": None}, "no text under 'output'"),
        ({"output": ["text"]}, "no text under 'output'"),
        ({"tok_input": []}, "'tok_input' is not a list"),
        ({"input": "\ud800"}, "lone surrogate"),
        ({"output": "x \ud83d"}, "lone surrogate"),
        ({"tok_input": "1 2"}, "'tok_input' is not a list"),
        ({"tok_input": [1, 2.5]}, "'tok_input' is not a list"),
        ({"tok_input": [1, True]}, "'tok_input' is not a list"),
        ({"tok_input": [1, None]}, "'tok_input' is not a list"),
    ],
    ids=str,
)
def test_a_malformed_record_is_named(tokenizer: Any, file, fields: dict[str, Any], message: str):
    path = file(changed(**fields))
    line = refusal(path, tokenizer)
    assert line.startswith(f"{path}: record 3") and message in line


def test_a_record_that_is_no_object_is_named(file):
    with pytest.raises(UsageError, match="record 1 is not an object"):
        articles_from_json(file([RECORDS[0], "text"]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "not JSON"),
        ('[{"input": "a"', "not JSON"),
        ({"input": "a", "output": "b"}, "expected a JSON array"),
        ([], "expected a JSON array"),
        (5, "expected a JSON array"),
    ],
)
def test_a_file_that_is_no_data_set_is_named(tokenizer: Any, file, data: Any, message: str):
    path = file(data)
    line = refusal(path, tokenizer)
    assert line.startswith(f"--dataset-path {path}: ") and message in line


def test_files_that_cannot_be_read_are_named(tokenizer: Any, tmp_path: Path):
    assert "No such file" in refusal(tmp_path / "none.json", tokenizer)
    (tmp_path / "binary.json").write_bytes(b"\x80\x81[]")
    assert "not text in UTF-8" in refusal(tmp_path / "binary.json", tokenizer)


def test_folders_that_cannot_serve_are_named(tokenizer: Any, tmp_path: Path, saved: dict[str, Path]):
    assert "folder saved by `datasets`" in refusal(tmp_path, tokenizer)
    assert "validation split; it has train" in refusal(saved["train only"], tokenizer)
    assert "'article'; it has text" in refusal(saved["columns"], tokenizer)


def test_a_missing_text_in_a_folder_is_named(tokenizer: Any, tmp_path: Path):
    from datasets import Dataset

    articles = [*ENGLISH["article"][:3], None, ENGLISH["article"][4]]
    Dataset.from_dict({"article": articles, "highlights": ENGLISH["highlights"][:5]}).save_to_disk(str(tmp_path / "d"))
    assert "3" in refusal(tmp_path / "d", tokenizer)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_token_ids_outside_the_vocabulary_name_the_sample(tokenizer: Any, file, token: int):
    message = refusal(file(changed(tok_input=[1, token])), tokenizer)
    assert tells(message, "sample 3 has token ids ", f"vocabulary of {len(tokenizer):,}")


def test_the_last_token_of_the_vocabulary_is_inside(tokenizer: Any, file):
    last = [*RECORDS[3]["tok_input"], len(tokenizer) - 1]
    library = load(config(file(changed(tok_input=last))), tokenizer, 5)
    assert library.prompts[3] == last
    assert "vocabulary" in refusal(file(changed(tok_input=[len(tokenizer)])), tokenizer)


def test_prompts_that_do_not_fit_name_the_longest_and_what_it_needs():
    library = Library([[1] * length for length in (10, 30, 20)], "data")
    check_lengths(library, max_model_len=38, max_new_tokens=8)
    with pytest.raises(
        UsageError, match=r"--max-model-len 27 is too short for 2 of 3 samples: sample 1 needs 38\. "
    ) as error:
        check_lengths(library, max_model_len=27, max_new_tokens=8)
    assert "--max-model-len 38 or more" in str(error.value)


def test_the_demo_fits_its_own_model(tokenizer: Any):
    check_lengths(load(config(), tokenizer, 256), 1024, mlperf.MAX_NEW_TOKENS)


OFFLINE = """
from functools import partial
from harness.config import pretrained as model
from harness.workloads.cnn_dailymail import CNN_DATASET
from harness.workloads.hub import download
from harness.config.run import RunConfig
from harness.core.errors import UsageError
configs = (RunConfig(), RunConfig(model="no/such"))
tokenizers = (partial(model.load_tokenizer, config) for config in configs)
for get in (partial(download, *CNN_DATASET, "validation"), *tokenizers):
    try:
        print("got", get())
    except UsageError as error:
        print(error)
"""


@pytest.mark.slow
def test_without_a_network_one_line_says_what_to_do(tmp_path: Path):
    home = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", OFFLINE], cwd=ROOT, env=os.environ | home, capture_output=True, text=True, check=True
    )
    data, model, unknown = ended.stdout.splitlines()
    assert data.startswith("cannot download abisee/cnn_dailymail") and "pass --dataset-path" in data
    assert model.startswith("cannot load meta-llama/Llama-3.1-8B-Instruct") and "--model demo" in model
    assert unknown.startswith("cannot load no/such") and tells(unknown, "HF_HUB_OFFLINE", str(tmp_path))


@pytest.mark.parametrize(
    ("mode", "end"), [("performance", ", or --workload chat, which needs no data."), ("both", " --dataset-path FILE.")]
)
def test_without_data_the_last_words_say_what_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, end: str
) -> None:
    def refused(*args: object, **named: object) -> None:
        raise ConnectionError

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(cnn_dailymail.hub_environment, "is_hub_reachable", lambda: False)
    monkeypatch.setattr("datasets.load_dataset", refused)
    config = RunConfig(mode=mode)
    for look in (lambda: cnn_dailymail.location(config), lambda: load(config, None, 1)):
        with pytest.raises(UsageError) as error:
            look()
        assert str(error.value).endswith(end) and tells(str(error.value), "make data", "--dataset-path")


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=f"--model {tmp_path}: no config.json in it") as error:
        load_tokenizer(RunConfig(model=str(tmp_path)))
    assert "\n" not in str(error.value)


def lengths_of(count: int, mean: int, longest: int) -> Library:
    """A library with so many prompts, of such lengths."""
    prompts = [[1] * longest, *([[1] * mean] * (count - 1))]
    return Library(prompts, "a file")


@pytest.mark.parametrize(
    ("library", "stored", "category", "official"),
    [
        (lengths_of(13368, 778, 2540), 13368, "datacenter", True),
        (lengths_of(13368, 1, 2540), 13368, "datacenter", False),
        (lengths_of(13368, 778, 778), 13368, "datacenter", False),
        (lengths_of(5000, 778, 2540), 5000, "edge", True),
        (lengths_of(5000, 778, 2400), 13368, "edge", True),
        (lengths_of(5000, 600, 2400), 5000, "edge", False),
        (lengths_of(100, 600, 700), 13368, "datacenter", True),  # a part, and said to be one
        (lengths_of(100, 778, 2540), 400, "datacenter", False),
    ],
)
def test_data_of_ones_own_are_not_mlperfs(library: Library, stored: int, category: str, official: bool) -> None:
    assert is_official(library, stored, category) is official


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ("{sum}  cnn_eval.json\n", ""),
        ("{sum} *datasets/cnn_eval.json\n", ""),
        ("00000000000000000000000000000000  cnn_eval.json\n", "is damaged"),
        ("00000000000000000000000000000000  another.json\n", ""),
    ],
)
def test_a_file_is_held_against_the_checksum_beside_it(listed: str, said: str, tmp_path: Path) -> None:
    data = tmp_path / "cnn_eval.json"
    data.write_text("[]")
    found = hashlib.md5(data.read_bytes()).hexdigest()
    (tmp_path / "cnn_eval.md5").write_text(listed.format(sum=found))
    if said:
        with pytest.raises(UsageError, match=said):
            cnn_dailymail.check_md5(data)
    else:
        cnn_dailymail.check_md5(data)
