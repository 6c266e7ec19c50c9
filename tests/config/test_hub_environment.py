"""The hub's variables, as the libraries read them: mirrors with ports, proxies in every form, folders."""

import inspect
import itertools
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.config import hub_environment
from harness.core import startup
from harness.core.errors import UsageError
from harness.core.startup import FOLDER_VARIABLES
from tests.conftest import ROOT, ended

PROXY_NAMES = [f"{kind}_proxy" for kind in ("http", "https", "all", "no")]
PROXY_NAMES += [name.upper() for name in PROXY_NAMES]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*PROXY_NAMES, "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    hub_environment.is_hub_reachable.cache_clear()
    yield
    hub_environment.is_hub_reachable.cache_clear()


SCHEMES = ("http", "https")
BYPASSES = {
    "": False,
    "*": True,
    "mirror.example": True,
    ".example": True,
    "example": True,
    "other.example": False,
    "a, mirror.example ,b": True,
    "mirror.example:8443": True,
    "mirror.example:9": False,
}


@pytest.mark.parametrize("is_upper", [True, False])
@pytest.mark.parametrize(("scheme", "kind"), [*itertools.product(SCHEMES, ("http", "https", "all"))])
@pytest.mark.parametrize("bypass", BYPASSES)
def test_a_proxy_counts_as_the_library_takes_it(
    scheme: str, kind: str, bypass: str, is_upper: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests reads these variables as httpx does, and can be asked."""
    utils = pytest.importorskip("requests").utils
    for name, value in ((f"{kind}_proxy", "http://proxy:3128"), ("no_proxy", bypass)):
        monkeypatch.setenv(name.upper() if is_upper else name, value)
    url = f"{scheme}://mirror.example:8443/x"
    found = hub_environment.proxy_of(urlsplit(url))
    asked = utils.get_environ_proxies(url)
    assert found == (asked.get(scheme) or asked.get("all") or "")
    assert bool(found) == (kind in (scheme, "all") and not BYPASSES[bypass])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("port", [None, 0])
def test_a_mirror_is_asked_at_its_own_port(scheme: str, port: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        hub_environment.socket, "create_connection", lambda place, limit: asked.append(place) or socket.socket()
    )
    number = 8443 if port == 0 else None
    monkeypatch.setenv("HF_ENDPOINT", f"{scheme}://mirror.example{f':{number}' if number else ''}/sub/")
    assert hub_environment.is_hub_reachable()
    assert asked == [("mirror.example", number or {"http": 80, "https": 443}[scheme])]


NO_ADDRESSES = [
    "mirror",
    "mirror:443",
    "http://",
    "http://mirror:port",
    "http://mirror:99999",
    "ftp://mirror",
    "http://m:-1",
]
NO_ADDRESSES += [
    "http://mirror:0",
    "http://mirror:\u0663",
    "http://user:SECRETWORD@mirror:99999",
    "//mirror",
    "http://[::1",
]


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_a_mirror_that_is_no_address_is_named_by_its_variable(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", text)
    with pytest.raises(UsageError, match=r"^HF_ENDPOINT must be an address") as caught:
        startup.read_environment()
    assert "SECRETWORD" not in str(caught.value)


COMMANDS = [
    ("run.py", "--model", "org/name", "--dry-run"),
    ("run.py", "--model", "demo", "--workload", "hf:org/data", "--mode", "performance", "--dry-run"),
    ("-m", "harness", "doctor", "--model", "org/name"),
    ("mmlu.py", "--model", "org/name"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_bad_port_of_the_mirror_ends_a_command_with_code_2(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:port")
    done = ended(*words)
    assert done.returncode == 2 and "HF_ENDPOINT must be an address" in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr


def test_offline_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub_environment.socket, "create_connection", lambda *_: pytest.fail("asked"))
    assert not hub_environment.is_hub_reachable()


def folders_of_libraries() -> set[str]:
    """Every variable that the libraries of the hub take for a folder, by their own sources."""
    from datasets import config
    from huggingface_hub import constants

    text = inspect.getsource(constants) + inspect.getsource(config)
    names = set(re.findall(r"[\"']((?:HF|HUGGINGFACE|XDG)_\w*(?:CACHE|HOME|PATH)\w*)[\"']", text))
    assert {"HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"} <= names
    return names


@pytest.mark.parametrize("name", sorted(folders_of_libraries()))
def test_an_address_for_a_folder_of_the_libraries_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name in FOLDER_VARIABLES
    monkeypatch.setenv(name, "https://user:SECRETWORD@host/x")
    done = ended("run.py", "--model", "demo", "--dry-run")
    assert done.returncode == 2 and name in done.stderr and "SECRETWORD" not in done.stderr


@pytest.mark.parametrize("name", ["HF_HOME", "HF_DATASETS_CACHE"])
def test_articles_are_where_the_library_keeps_them(name: str, tmp_path: Path) -> None:
    folder = tmp_path if name == "HF_DATASETS_CACHE" else tmp_path / "datasets"
    kept = folder / "abisee___cnn_dailymail" / "3.0.0"
    kept.mkdir(parents=True)
    code = (
        "from harness.workloads import cnn_dailymail as c; from harness.config.run import RunConfig; "
        "print(c.location(RunConfig()))"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env | {name: str(tmp_path)}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(kept), done.stderr
