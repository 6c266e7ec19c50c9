"""Configs and sweeps that come with the program, which a user calls by name."""

from pathlib import Path
from typing import Literal

from harness.core.given_values import unknown_file_error
from harness.core.locations import ROOT

ShippedFolder = Literal["configs", "sweeps"]


def shipped_names(folder: ShippedFolder) -> list[str]:
    """Return the names of the files of one kind that come with the program."""
    return sorted(path.stem for path in (ROOT / folder).glob("*.yaml"))


def user_or_shipped_file(flag: str, path: Path, folder: ShippedFolder) -> Path:
    """Return the user's file, or the file of that name that comes with the program if the user has none.

    `flag` names the file in errors. Raises UsageError for a missing file that probably was to be a shipped one.
    """
    if path.exists() and not path.is_dir():
        return path
    names = shipped_names(folder)
    is_bare_name = len(path.parts) == 1 and not path.suffix
    if is_bare_name and path.name in names:
        return ROOT / folder / f"{path.name}.yaml"
    resembles_shipped_file = path.stem.lower() in names and not path.exists()  # such as NAME.yaml or folder/NAME
    if is_bare_name or resembles_shipped_file:
        raise unknown_file_error(flag, str(path), names)
    return path  # If the file is missing, reading it raises the error.
