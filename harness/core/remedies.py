"""The commands that install what is missing: make's where this is a checkout, else pip's for the installed package."""

import sys
from shlex import quote
from typing import Literal

from harness.core.locations import IS_CHECKOUT

Extra = Literal["gpu", "cpu", "mlflow"]
DISTRIBUTION = "llama31-mlperf"  # the name of the installed package
MAKE_COMMANDS: dict[Extra, str] = {
    "gpu": "make setup",
    "cpu": "make setup",
    "mlflow": "pip install --no-deps -r requirements/mlflow.txt",
}


def install_command(extra: Extra) -> str:
    """Return the command that installs an engine or MLflow beside this program."""
    if IS_CHECKOUT:
        return MAKE_COMMANDS[extra]
    return f"{quote(sys.executable)} -m pip install '{DISTRIBUTION}[{extra}]'"


def splitter_command() -> str:
    """Return the command that fetches NLTK's punkt_tab, by which answers are split into sentences."""
    if IS_CHECKOUT:
        return "make punkt"
    return f"{quote(sys.executable)} -m nltk.downloader punkt_tab"


def fetch_words() -> str:
    """Return how to fetch the articles, as the beginning of a sentence that goes on with "where there is a network"."""
    return "run `make data`" if IS_CHECKOUT else "run this"
