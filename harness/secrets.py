"""What must not be written down, found by its name or by its look. The one place that hides it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HIDDEN = "***"
SHORTEST = 8  # characters of a secret in the environment: shorter ones are words, such as EMPTY
WORDS = (
    r"token(?![\w])|secret|passw(?:or)?d|passphrase|api[_-]?key|authorization|bearer|credential|creds\b|private[_-]?key"
    r"|access[_-]?key|cookie|signature"
)
NAME = re.compile(rf"(?i)(?:^|[_\W])(?:token$)|(?:{WORDS.partition('|')[2]})")
ASSIGNED = re.compile(rf"(?is)((?:{WORDS})[\w-]*[\"']?\s*[:=]\s*).*")
LOOKS = (
    (re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.S), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|(?:sk-|ghp_|xox[bp]-)[\w-]{16,})"), HIDDEN),
    (re.compile(r"(//[^/@\s:]*):[^/@\s]+@"), rf"\1:{HIDDEN}@"),
)


def is_secret(name: str) -> bool:
    """Whether a name says that its value is secret."""
    return NAME.search(name) is not None


def hide_text(text: str) -> str:
    """A text without what looks like a secret: keys of known makers, credentials in an address, PEM blocks; and without
    those of this process's environment."""
    for look, shown in LOOKS:
        text = look.sub(shown, text)
    return hide_known(text)


def hide_known(text: str) -> str:
    """A text without the secrets of this process's environment, such as a server's key that it echoes."""
    for secret in in_environment():
        text = text.replace(secret, HIDDEN)
    return text


def in_environment() -> set[str]:
    """The values of environment variables whose names say that they are secret."""
    return {value for name, value in os.environ.items() if len(value) >= SHORTEST and is_secret(name)}


def hide_word(word: str) -> str:
    """A command-line word (KEY=VALUE) without the value of anything named, or looking, like a secret."""
    return hide_text(ASSIGNED.sub(rf"\1{HIDDEN}", word))


def hide(settings: Any) -> Any:
    """Settings as they may be written down: `***` for what a name or a look says is secret, however deep."""
    if isinstance(settings, str):
        return hide_text(settings)
    if isinstance(settings, list | tuple):
        return [hide(item) for item in settings]
    if isinstance(settings, Mapping):
        return {
            key: HIDDEN if value and is_secret(str(key)) and not isinstance(value, int | float) else hide(value)
            for key, value in settings.items()
        }
    return settings


def values(settings: Any) -> set[str]:
    """The texts that `hide` would leave out of `settings`, and those of this process's environment."""
    return in_environment() | set(_values(settings))


def _values(settings: Any, secret: bool = False) -> list[str]:
    if isinstance(settings, Mapping):
        pairs = settings.items()
        return [text for key, value in pairs for text in _values(value, secret or is_secret(str(key)))]
    if isinstance(settings, list | tuple):
        return [text for item in settings for text in _values(item, secret)]
    if isinstance(settings, str) and (secret or hide_text(settings) != settings):
        return [settings] if len(settings) >= 4 else []
    return []


def scrub(path: Path, secrets: set[str]) -> None:
    """Hides the given texts, and whatever looks secret, in a log that other programs wrote."""
    try:
        before = path.read_bytes()
    except OSError:
        return
    text = hide_text(before.decode(errors="surrogateescape"))
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    after = text.encode(errors="surrogateescape")
    if after != before:
        path.write_bytes(after)
