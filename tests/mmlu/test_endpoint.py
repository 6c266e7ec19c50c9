"""MMLU on a server: by the log-probabilities that it gives of the four letters, or refused in one line."""

import math
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.engines.completions import choice_logprobs, choice_request
from harness.mmlu.mmlu_config import MMLUConfig
from harness.mmlu.question_data import LETTERS
from tests.conftest import launch, tells
from tests.mmlu.conftest import samples_of
from tests.support.fake_servers import Fake, serving, serving_vllm

PART = ("--subjects", "anatomy,virology", "--num-fewshot", "1")


def evaluate(to: Path, *flags: str) -> tuple[int, str, Path]:
    code, output, _ = launch("mmlu.py", to, *PART, *flags)
    return code, output, max(to.glob("mmlu/2*"))


def test_a_servers_log_probabilities_are_scaled_to_the_four_letters() -> None:
    page = b'{"choices": [{"logprobs": {"top_logprobs": [{"token_id:5": -1, "token_id:6": -3, "token_id:9": -9}]}}]}'
    found = choice_logprobs(page, [6, 5])
    assert found and found.cached_tokens is None
    assert found.logprobs[1] - found.logprobs[0] == pytest.approx(2)
    assert sum(map(math.exp, found.logprobs)) == pytest.approx(1)
    for lacking in (
        b"",
        b"[]",
        b'{"choices": [{"text": " A"}]}',
        page.replace(b"id:6", b"id:7"),
        page.replace(b"-3", b"NaN"),
    ):
        assert choice_logprobs(lacking, [6, 5]) is None
    far = choice_logprobs(page.replace(b"-1", b"-1001").replace(b"-3", b"-1003"), [6, 5])
    assert far and far.logprobs == pytest.approx(found.logprobs)
    assert b'"logprob_token_ids":[6,5]' in choice_request([1, 2], "demo", [6, 5])


@pytest.mark.slow
@pytest.mark.parametrize("cached", [None, 4])
def test_an_evaluation_by_a_server(tmp_path: Path, cached: int | None) -> None:
    with serving(Fake(scores=(-3.0, -1.0, -5.0, -9.0), cached=cached)) as fake:
        code, output, folder = evaluate(tmp_path, "--endpoint", fake.address)
    assert code == 0, output
    rows = samples_of(folder)
    assert {row["prediction"] for row in rows} == {"B"}
    assert {row["cached_tokens"] for row in rows} == {"" if cached is None else cached}
    assert len(fake.asked) == len(rows) + 1  # and one to warm up
    page = (folder / "report.md").read_text()
    assert ("| prefix cache | unknown of" in page) == (cached is None)
    assert f"the client of vLLM 9.9.9 at {fake.address}" in (folder / "config.json").read_text()


@pytest.mark.slow
def test_a_server_without_log_probabilities_is_refused_in_one_line(tmp_path: Path) -> None:
    with serving(Fake()) as fake:
        code, output, _ = evaluate(tmp_path, "--endpoint", fake.address)
    assert code == 2 and tells(output, f"error: --endpoint {fake.address} ", "log-probabilities")


def test_an_evaluation_takes_no_flag_that_plays_no_part() -> None:
    for flags in ({"backend": "echo"}, {"max_in_flight": 8}, {"endpoint": ("http://h/v1",), "precision": "fp32"}):
        with pytest.raises(UsageError, match=f"--{next(reversed(flags)).replace('_', '-')}"):
            MMLUConfig(**flags)
    at: dict[str, Any] = {"endpoint": ("http://h/v1/",), "max_in_flight": 8, "model": "demo"}
    asked = MMLUConfig(**at).engine_run
    assert (asked.backend, asked.max_model_len) == ("openai", 1024)


@pytest.mark.engine
def test_real_vllms_server_chooses_as_the_engine_in_this_process(tmp_path: Path) -> None:
    with serving_vllm("--dtype", "float32", "--block-size", "32") as address:
        code, output, folder = evaluate(tmp_path, "--endpoint", address)
    assert code == 0, output
    here, output, own = evaluate(tmp_path / "own", "--precision", "fp32")
    assert here == 0, output
    pairs = list(zip(samples_of(folder), samples_of(own), strict=True))
    assert [a["prediction"] for a, _ in pairs] == [b["prediction"] for _, b in pairs]
    assert max(abs(a[f"logprob_{letter}"] - b[f"logprob_{letter}"]) for a, b in pairs for letter in LETTERS) < 1e-3
