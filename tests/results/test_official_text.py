"""The text that is scored is the one that the reference's transformers 4.46.2 makes of the same tokens."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

from harness.results.scoring import to_text
from tests.conftest import ROOT

REFERENCE = ("transformers==4.46.2", "tokenizers==0.20.3", "huggingface-hub==0.26.2")
LLAMA_3 = "llama-models==0.3.0"  # Llama-3's own tokenizer is in it
SPECIAL_TOKENS = 256
ANSWER = 128  # tokens
DECODE = """
import json, sys
from transformers import AutoTokenizer
answers = json.load(open(sys.argv[2]))
texts = AutoTokenizer.from_pretrained(sys.argv[1], use_fast=False).batch_decode(answers, skip_special_tokens=True)
json.dump([text.strip() for text in texts], open(sys.argv[3], "w"))
"""


def test_spaces_before_punctuation_go_where_the_tokenizer_asks_for_it(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "demo" / "model", tmp_path / "model")
    config = tmp_path / "model" / "tokenizer_config.json"
    text = "A dog , a cat . They 're here !"
    found = []
    for asks in (True, False):
        config.write_text(json.dumps(json.loads(config.read_text()) | {"clean_up_tokenization_spaces": asks}))
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
        found += to_text([tokenizer.encode(text, add_special_tokens=False)], tokenizer)
    assert found == ["A dog, a cat. They're here!", text]


def install(folder: Path, *packages: str) -> Path:
    """The packages alone in a folder; skips where no index can be reached."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages]
    if (ended := subprocess.run(command, capture_output=True, text=True)).returncode:
        pytest.skip(f"{packages[0]} cannot be installed: {ended.stderr.strip()[-200:]}")
    return folder


@pytest.fixture(scope="module")
def llama_3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama-3's tokenizer in a folder, with the config that Llama-3.1-8B-Instruct's has."""
    pytest.importorskip("tiktoken")
    package = install(tmp_path_factory.mktemp("llama"), LLAMA_3)
    vocabulary = next(package.rglob("llama3/tokenizer.model"))
    special = [f"<|special_{number}|>" for number in range(SPECIAL_TOKENS)]
    backend = TikTokenConverter(vocab_file=str(vocabulary), extra_special_tokens=special).converted()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=True)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def answers(tokenizer: Any) -> list[list[int]]:
    """Texts of installed packages as answers of 128 tokens, each ended by a special token."""
    site = Path(pytest.__file__).parents[1]
    texts = (path.read_text(errors="replace") for path in sorted(site.rglob("*")) if path.suffix in (".md", ".rst"))
    tokens = [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False)]
    end = len(tokenizer) - 1
    return [[*tokens[start : start + ANSWER], end] for start in range(0, len(tokens) - ANSWER, ANSWER)]


@pytest.mark.slow
def test_llama_3s_answers_are_the_text_of_the_reference(llama_3: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(llama_3)
    tokens = answers(tokenizer)
    (tmp_path / "answers.json").write_text(json.dumps(tokens))
    library = install(tmp_path / "reference", *REFERENCE)
    files = [str(llama_3), str(tmp_path / "answers.json"), str(tmp_path / "texts.json")]
    subprocess.run([sys.executable, "-c", DECODE, *files], env={"PYTHONPATH": str(library)}, check=True)
    theirs = json.loads((tmp_path / "texts.json").read_text())
    ours = to_text(tokens, tokenizer)
    unclean = [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
    assert ours == theirs
    assert sum(text != other for text, other in zip(unclean, theirs, strict=True)) > len(theirs) / 100
