"""Why the hub did not give a model: each error of its library has its own line, and no line has two causes."""

import httpx
import pytest
from huggingface_hub import constants, errors

from harness.config import hub_refusals
from harness.config.hub_refusals import hub_refusal
from harness.config.pretrained import DEMO_HINT

NAME = "org/name"


def refused(kind: type[errors.HfHubHTTPError], status: int) -> Exception:
    """An error as transformers raises it, around the hub's."""
    response = httpx.Response(status, request=httpx.Request("GET", "https://hub.example/x"))
    outer = OSError("There was a specific connection error; check your internet connection")
    outer.__cause__ = kind(f"{status} Client Error.", response=response)
    return outer


def around(inner: Exception) -> Exception:
    outer = OSError("is not a local folder and is not a valid model identifier")
    outer.__cause__ = inner
    return outer


GONE = around(errors.LocalEntryNotFoundError("not in the cache"))
CASES = {
    "gated, no token": (refused(errors.GatedRepoError, 401), "", "is gated: ", "set HF_TOKEN"),
    "gated, no access": (refused(errors.GatedRepoError, 403), "hf_x", "has no access", "and wait"),
    "token refused": (refused(errors.HfHubHTTPError, 401), "hf_x", "refuses HF_TOKEN", "make a new one"),
    "gated, token refused": (refused(errors.GatedRepoError, 401), "hf_x", "refuses HF_TOKEN", "make a new one"),
    "no such name": (refused(errors.RepositoryNotFoundError, 401), "", "has this name", "HF_TOKEN"),
    "no such name, with a token": (refused(errors.RepositoryNotFoundError, 404), "hf_x", "has this name", "HF_TOKEN"),
    "no name": (around(errors.HFValidationError("Repo id must ...")), "", "not a valid name", "--model demo"),
    "the hub is broken": (refused(errors.HfHubHTTPError, 503), "", "503 Client Error", "--model demo"),
    "a limit": (refused(errors.HfHubHTTPError, 429), "hf_x", "429 Client Error", "--model demo"),
    "a full disk": (around(OSError(28, "No space left on device")), "", "No space left on device", "--model demo"),
}


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(hub_refusals, "is_hub_reachable", lambda: True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return monkeypatch


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_has_its_own_cause_and_remedy(name: str, token: pytest.MonkeyPatch) -> None:
    error, value, cause, remedy = CASES[name]
    token.setattr("huggingface_hub.get_token", lambda: value or None)
    line = hub_refusal(NAME, error, DEMO_HINT)
    assert cause in line and remedy in line and NAME in line and "\n" not in line
    others = {other for _, _, other, _ in CASES.values()} - {cause}
    assert not any(other in line for other in others), line


def test_without_a_way_to_the_hub_the_line_says_which(token: pytest.MonkeyPatch) -> None:
    token.setattr("huggingface_hub.get_token", lambda: None)
    token.setattr(hub_refusals, "is_hub_reachable", lambda: False)
    assert "huggingface.co cannot be reached" in hub_refusal(NAME, GONE, DEMO_HINT)
    token.setattr(constants, "HF_HUB_OFFLINE", True)
    line = hub_refusal(NAME, GONE, DEMO_HINT)
    assert "HF_HUB_OFFLINE is set" in line and "reached" not in line


def test_a_name_with_a_status_in_it_is_not_taken_for_one(token: pytest.MonkeyPatch) -> None:
    token.setattr("huggingface_hub.get_token", lambda: None)
    line = hub_refusal("org/gated-401", around(OSError("gated-401: 403 bytes are missing")), DEMO_HINT)
    assert "is gated" not in line and "refuses" not in line
