"""What must not be written down, by its name and by its look."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import results, secrets

PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END PRIVATE KEY-----"
NESTED = {
    "nested": {
        "Authorization": "Bearer neverwritethisdown1",
        "creds": "neverwritethisdown2",
        "private_key": "neverwritethisdown3",
        "list": [{"session_cookie": "neverwritethisdown4"}, "http://me:neverwritethisdown5@host/x"],
        "plain": "Bearer neverwritethisdown6, " + PEM.replace("MIIE", "neverwritethisdown7"),
        "keys": "sk-neverwritethisdown8",
    }
}


def test_nothing_named_or_looking_secret_is_written(tmp_path: Path) -> None:
    results.write_json(tmp_path / "config.json", NESTED)
    assert "neverwritethisdown" not in (tmp_path / "config.json").read_text()
    assert "neverwritethisdown" not in secrets.hide_word(f"additional_config={json.dumps(NESTED)}")


NAMES = """HF_TOKEN token api_key apiKey Authorization x-bearer credential private-key Set-Cookie signature
    aws_access_key_id db_password passwd client_secret"""


@pytest.mark.parametrize("name", NAMES.split())
def test_names_of_secrets(name: str) -> None:
    assert secrets.is_secret(name)
    assert secrets.hide({name: "x"}) == {name: "***"}


@pytest.mark.parametrize(
    "name", ["max_num_batched_tokens", "tokens_per_sec", "tokenizer", "eos_token_id", "keep_all", "monkey", "key"]
)
def test_names_of_what_is_none(name: str) -> None:
    assert not secrets.is_secret(name)


@given(st.dictionaries(st.sampled_from(["token", "x", "creds"]), st.one_of(st.integers(), st.none(), st.booleans())))
def test_numbers_stay(data: dict[str, Any]) -> None:
    assert secrets.hide(data) == data


def test_a_log_is_scrubbed_of_what_was_given(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(f"args: {NESTED}\nneverwritethisdown2 again \xff".encode("latin-1"))
    secrets.scrub(log, secrets.values(NESTED))
    assert b"neverwritethisdown" not in log.read_bytes()
    secrets.scrub(tmp_path / "none.log", set())


def test_a_clean_log_is_left_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"tokens/s: 12 \xff")
    secrets.scrub(log, {"longsecret"})
    assert log.read_bytes() == b"tokens/s: 12 \xff"
