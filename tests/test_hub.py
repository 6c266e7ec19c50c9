"""From the hub to a run, on a stand-in of its API: a gated model, tokens, downloads that break, a full cache."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, tells
from tests.support.fake_hub import APPROVED, MODEL, STRANGER, Hub, serving

pytestmark = pytest.mark.slow
RUN = [sys.executable, "run.py", "--model", MODEL, "--backend", "echo", "--max-model-len", "1024", "--dry-run"]
RUN += ["--total-sample-count", "64"]
OWN_DATA = ["--dataset-path", "demo/cnn_eval.json"]
UNKNOWN = "hf_" + "w" * 34


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(ROOT / "demo" / "model")) as served:
        yield served


def done(hub: Hub, home: Path, words: list[str], token: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env = kept | {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_TOKEN": token} | more
    return subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)


def make(target: str) -> list[str]:
    """As README has it, with the environment that runs this test."""
    return ["make", target, f"MODEL={MODEL}", f"VENV={Path(sys.prefix)}"]


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", ("is gated", f"huggingface.co/{MODEL}", "set HF_TOKEN")),
        (UNKNOWN, ("refuses HF_TOKEN", "settings/tokens")),
        (STRANGER, ("is gated", "the account of HF_TOKEN has no access")),
    ],
    ids=["no token", "a wrong token", "no approval"],
)
def test_why_a_gated_model_is_not_given_is_one_line(
    token: str, words: tuple[str, ...], hub: Hub, tmp_path: Path
) -> None:
    found = done(hub, tmp_path, RUN + OWN_DATA, token)
    assert found.returncode == 2 and found.stderr.count("\n") == 1, found.stderr
    assert tells(found.stderr, *words) and (not token or token not in found.stderr)


def test_from_the_hub_to_a_run_and_offline_again(hub: Hub, tmp_path: Path) -> None:
    refused = done(hub, tmp_path, make("model"), STRANGER)
    assert refused.returncode == 2 and "Traceback" not in refused.stderr and MODEL in refused.stderr
    hub.breaks = 1
    assert done(hub, tmp_path, make("model"), APPROVED).returncode == 0  # and goes on where it broke
    assert hub.breaks == 0
    data = done(hub, tmp_path, make("data"))
    assert data.returncode == 0 and "64 articles" in data.stdout
    hub.asked.clear()
    offline = done(hub, tmp_path, RUN, HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    assert "samples: 64 of abisee/cnn_dailymail" in offline.stdout and hub.asked == []


def test_a_download_that_breaks_again_and_again_ends_in_words_and_goes_on_next_time(hub: Hub, tmp_path: Path) -> None:
    hub.breaks = 50
    broken = done(hub, tmp_path, make("model"), APPROVED)
    assert broken.returncode == 2 and "Traceback" not in broken.stderr
    hub.breaks = 0
    assert done(hub, tmp_path, make("model"), APPROVED).returncode == 0


def test_a_cache_without_the_data_says_so_offline(hub: Hub, tmp_path: Path) -> None:
    assert done(hub, tmp_path, make("model"), APPROVED).returncode == 0
    found = done(hub, tmp_path, RUN, HF_HUB_OFFLINE="1")
    assert found.returncode == 2 and found.stderr.count("\n") == 1, found.stderr
    assert tells(found.stderr, "abisee/cnn_dailymail", "--dataset-path")
