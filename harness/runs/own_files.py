"""The files that the report of a run is written to, in a folder that somebody else may have sent."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.core.message_text import warn

PLOTS = "plots"
RENDERED_FILES = ("summary.json", "report.md", "report.html", "changes.csv")


def replace_links(folder: Path) -> None:
    """Remove links, and folders or the like in place of files, from the paths that a run's report is written to.

    In a folder from somebody else, a link would make the report overwrite files elsewhere.
    """
    for path in rendered_paths(folder):
        if path.is_symlink():
            warn(f"{path}: a link to {os.readlink(path)}: it is replaced, and nothing is written there")
            path.unlink()
        elif path.exists() and not path.is_file() and path != folder / PLOTS:  # PLOTS is meant to be a folder.
            warn(f"{path}: not a file: it is replaced")
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def rendered_paths(folder: Path) -> Iterator[Path]:
    """Yield the paths that the report of a run is written to.

    The pictures' folder comes before its files: a caller that removes links as it goes then removes a linked folder
    first, and the files behind the link are never listed.
    """
    for name in RENDERED_FILES:
        yield folder / name
    plots = folder / PLOTS
    yield plots
    if plots.is_dir():
        yield from sorted(plots.iterdir())
