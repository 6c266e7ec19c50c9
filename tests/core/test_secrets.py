"""What must not be written down, by its name and by its look."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.config.server_addresses import check_addresses
from harness.core import files, secrets, system, vllm_source
from harness.core.errors import UsageError
from harness.core.secrets import hide_word
from harness.sweep import file as sweep_file
from tests.conftest import ROOT, ended

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
    files.write_json(tmp_path / "config.json", NESTED)
    assert "neverwritethisdown" not in (tmp_path / "config.json").read_text()
    assert "neverwritethisdown" not in secrets.hide_word(f"additional_config={json.dumps(NESTED)}")


NAMES = """HF_TOKEN token api_key apiKey Authorization x-bearer credential private-key Set-Cookie signature
    aws_access_key_id db_password passwd client_secret authToken hfToken accessToken auth x-auth pass pwd pin jwt
    session_key encryption_key ssh_key dsn sig pat cred AccountKey connection_string basic_auth AUTH_TOKEN"""


@pytest.mark.parametrize("name", NAMES.split())
def test_names_of_secrets(name: str) -> None:
    assert secrets.is_secret(name)
    assert secrets.hide({name: "x"}) == {name: "***"}


@pytest.mark.parametrize(
    "name",
    [
        "max_num_batched_tokens",
        "tokens_per_sec",
        "tokenizer",
        "eos_token_id",
        "keep_all",
        "monkey",
        "key",
        "pass_config",
        "author",
    ],
)
def test_names_of_what_is_none(name: str) -> None:
    assert not secrets.is_secret(name)


LOOKS = """https://hf0123456789abcdef@host/model https://h/v1?access_token=0123456789 glpat-0123456789abcdefghij
    github_pat_0123456789abcdefghij AKIA0123456789ABCDEF eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ
    Server=db;Password=0123456789"""


@pytest.mark.parametrize("text", LOOKS.split())
def test_looks_of_secrets(text: str) -> None:
    assert "***" in secrets.hide_text(text)
    assert not any(part in secrets.hide_text(text) for part in ("0123456789", "SflKxwRJ"))


@pytest.mark.parametrize("name", ["x", "model_loader_extra_config", "additional_config", "hf_overrides"])
def test_texts_under_names_that_nobody_knows_are_not_shown(name: str) -> None:
    given = {name: {"anything": "hunter2 of mine", "size": 3, "deep": [{"on": True, "y": "correct horse"}]}}
    hidden = {name: {"anything": "***", "size": 3, "deep": [{"on": True, "y": "***"}]}}
    assert secrets.hide(given, foreign=True) == hidden
    assert secrets.hide_word(f"{name}={json.dumps(given[name])}") == f"{name}={json.dumps(hidden[name])}"
    assert secrets.hide_word(f"--engine-arg={name}=hunter2") == f"--engine-arg={name}=***"


def test_variables_of_engines_show_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"VLLM_MINE": "hunter2", "NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8", "TORCH_X": "A B"}.items():
        monkeypatch.setenv(name, value)
    found = system.variables()
    assert (found["VLLM_MINE"], found["TORCH_X"]) == ("***", "***")
    assert (found["NCCL_DEBUG"], found["OMP_NUM_THREADS"]) == ("INFO", "8")


@pytest.mark.parametrize(
    "word",
    [
        *("async_scheduling=false", "block_size=32", "data_parallel_backend=ray", "kv_cache_dtype=fp8_e4m3"),
        *("compilation_config={mode: 3, cudagraph_mode: FULL}", "--engine-arg=max_num_seqs=8", "--mode", "a"),
        'speculative_config={"method": "ngram", "num_speculative_tokens": 4}',
    ],
)
def test_settings_that_are_known_stay_as_they_are(word: str) -> None:
    assert secrets.hide_word(word) == word


def shipped_arguments() -> Iterator[str]:
    """Each engine argument of each shipped config and sweep, as it is typed."""
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        yield from yaml.safe_load(path.read_text()).get("engine_arg") or []
    for path in sorted((ROOT / "sweeps").glob("*.yaml")):
        if yaml.safe_load(path.read_text()).get("extends") is None:
            for item in sweep_file.load_sweep(path).experiments:
                yield from (f"{name}={json.dumps(value)}" for name, value in item.engine.items())


@pytest.mark.parametrize("word", sorted(set(shipped_arguments())))
def test_an_engine_argument_that_is_shipped_is_recorded_whole(word: str) -> None:
    assert secrets.hide_word(word) == word


def test_an_enumeration_of_vllm_is_shown_under_any_name_and_nothing_else() -> None:
    assert {"torch", "marlin"} <= vllm_source.enumerations()
    assert secrets.hide_word("linear_backend=torch") == "linear_backend=torch"
    assert secrets.hide_word("linear_backend=s3cr3tw0rd") == "linear_backend=***"
    assert secrets.hide_word("hf_token=torch") == "hf_token=***"


@pytest.mark.parametrize("word", ["hf_token:SECRETWORD", "x.password=SECRETWORD", "api_key=SECRETWORD"])
def test_a_refused_engine_argument_is_not_echoed(word: str) -> None:
    done = ended("run.py", "--model", "demo", "--dry-run", "--engine-arg", word)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "SECRETWORD" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["run.py", "mmlu.py"])
def test_whoever_a_models_address_names_is_not_shown(command: str, tmp_path: Path) -> None:
    words = ("--model", "https://user:SECRETWORD@127.0.0.1:9/m", "--results-dir", str(tmp_path))
    done = ended(command, *words)
    assert done.returncode == 2 and "SECRETWORD" not in done.stdout + done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "SECRETWORD" in path.read_text()]


def test_a_key_in_the_path_of_an_endpoint_is_not_shown(tmp_path: Path) -> None:
    address = "http://127.0.0.1:9/p/S3cretW0rd/v1"
    done = ended("run.py", "--model", "demo", "--endpoint", address, "--results-dir", str(tmp_path))
    assert done.returncode == 2 and "http://127.0.0.1:9/p/***/v1" in done.stderr
    assert "S3cretW0rd" not in done.stdout + done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "S3cretW0rd" in path.read_text()]


@given(st.dictionaries(st.sampled_from(["token", "x", "creds"]), st.one_of(st.integers(), st.none(), st.booleans())))
def test_numbers_stay(data: dict[str, Any]) -> None:
    assert secrets.hide(data) == data


def test_a_log_is_scrubbed_of_what_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(f"args: {NESTED}\nneverwritethisdown2 again \xff".encode("latin-1"))
    monkeypatch.setattr(secrets, "noted_secrets", secrets.secrets_in(NESTED))
    secrets.scrub(log)
    assert b"neverwritethisdown" not in log.read_bytes()
    secrets.scrub(tmp_path / "none.log")


def test_a_clean_log_is_left_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_bytes(b"tokens/s: 12 \xff")
    secrets.scrub(log)
    assert log.read_bytes() == b"tokens/s: 12 \xff"


def test_the_working_folder_is_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PWD", "OLDPWD"):
        monkeypatch.setenv(name, "/home/somebody/bench")
    assert secrets.hide_text("/home/somebody/bench/demo") == "/home/somebody/bench/demo"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("hf_token=hf_abcDEF1234567890", "hf_token=***"),
        ("HF_TOKEN=xyz", "HF_TOKEN=***"),
        ("password=a", "password=***"),
        ("api_key=a", "api_key=***"),
        ("apikey=a", "apikey=***"),
        ("client_secret=a", "client_secret=***"),
        ("--engine-arg=hf_token=a", "--engine-arg=hf_token=***"),
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=***"),
        ("--engine-arg=tokenizer=/m/tok", "--engine-arg=tokenizer=/m/tok"),
        ("hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567", "***"),
        ("http://user:pw@host/x", "http://***@host/x"),
        ("https://user:hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567@host", "https://***@host"),
    ],
)
def test_secrets_are_hidden(word: str, shown: str):
    assert hide_word(word) == shown


@pytest.mark.parametrize(
    "word",
    [
        "--max-new-tokens",
        "max_num_batched_tokens=8192",
        "tokenizer=demo/model",
        "enable_prefix_caching=false",
        "hf_overrides={}",
        "hf_config_path=/models",
        "models/hf_llama_8b_instruct",
    ],
)
def test_what_is_no_secret_stays(word: str):
    assert hide_word(word) == word


@pytest.mark.parametrize("word", ["--x=mypassword=hunter22", "dbpasswd: hunter22", "token-of-mine=hunter22"])
def test_a_secret_within_a_longer_name_is_hidden(word: str) -> None:
    assert secrets.hide_word(word).endswith("***") and "hunter22" not in secrets.hide_word(word)


KEY = "neverwritethisdown"


@pytest.mark.parametrize(
    "query",
    [KEY, f"key={KEY}", f"x={KEY}", f"api-version=1&{KEY}", f"api-version=1;code={KEY}", f"gpu=0&a={KEY}"],
)
def test_what_follows_a_question_mark_is_hidden_but_for_plain_keys(query: str) -> None:
    shown = secrets.hide_text(f"--endpoint=http://h:8000/v1?{query} beside")
    assert KEY not in shown and shown.startswith("--endpoint=http://h:8000/v1?") and shown.endswith(" beside")
    with pytest.raises(UsageError) as error:
        check_addresses([f"http://h:8000/v1?{query}"])
    assert KEY not in secrets.hide_text(str(error.value))


def test_plain_keys_of_an_address_are_shown() -> None:
    for text in ("http://h/v1?api-version=2024-06-01", "http://h:9400/metrics?gpu=0,1&host=n1", "why? because"):
        assert secrets.hide_text(text) == text


def test_a_secret_that_begins_another_leaves_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = "begins-with-the-same-words"
    for length in range(8, len(whole) + 1):
        monkeypatch.setenv(f"N{length}_TOKEN", whole[:length])
    assert secrets.hide_known(f"key {whole}.") == f"key {secrets.MASK}."


PASSWORDS = st.text(st.characters(codec="utf-8", exclude_characters="@"), max_size=20).map(
    lambda text: f"{text}S3cr3tW0rd"
)
SCHEMES = st.sampled_from(["http://", "https://", "HTTP://", "http:/", "ftp://", "redis+tls://", "hf://", "", "//"])


@given(
    SCHEMES,
    st.sampled_from(["user:", "", ":", "user:8/", "[", "a.b:1/v1?x="]),
    PASSWORDS,
    st.sampled_from(["@", "x@y@"]),
)
def test_no_line_about_an_address_shows_whoever_it_names(scheme: str, user: str, password: str, at: str) -> None:
    """A password may hold what ends the other parts of an address: a slash, a question mark, a number sign."""
    address = f"{scheme}{user}{password}{at}host:8000/v1"
    with pytest.raises(UsageError) as caught:
        check_addresses((address,))
    assert "S3cr3tW0rd" not in str(caught.value)
    if scheme not in ("", "//"):
        for word in (address, f"--endpoint={address}"):
            assert "S3cr3tW0rd" not in hide_word(word)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"], exclude_characters="@\"'<>|"), max_size=20))
def test_in_a_text_an_address_ends_where_a_word_does(password: str) -> None:
    text = f"tried http://user:{password}S3cr3tW0rd@host:8000/v1, and gave up"
    hidden = secrets.hide_text(text)
    assert "S3cr3tW0rd" not in hidden and hidden.startswith("tried http") and hidden.endswith(", and gave up")


@pytest.mark.parametrize(
    "text",
    [
        "https://github.com/vllm-project/vllm",
        "http://host:8000/v1",
        "me@example.org",
        "hf:org/name@3.0.0:test",
        "a // b @ c",
    ],
)
def test_addresses_that_name_nobody_stay(text: str) -> None:
    assert secrets.hide_text(text) == text


def test_a_package_named_like_a_secret_keeps_its_version() -> None:
    facts = {"system": {"packages": {"google-auth": "2.63.0", "jwt": "1.2"}}, "auth": "opensesame"}
    assert secrets.hide(facts) == {"system": facts["system"], "auth": "***"}
    assert secrets.secrets_in(facts) == {"opensesame"}
