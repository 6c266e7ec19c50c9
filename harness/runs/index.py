"""results/index.md, from the lines of the history."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.common.files import write_text
from harness.common.markdown import render
from harness.common.schema import File
from harness.runs.folder import history


def write_index(results_dir: Path, template: str, kind: type[File], **more: Any) -> None:
    """Renders results_dir/index.md, newest run first, from the lines of the history that are of this `kind`."""
    lines = []
    for line in history(results_dir):
        with suppress(ValidationError):
            lines.append((kind.model_validate(line), os.path.isdir(results_dir / str(line["run"]))))
    write_text(results_dir / "index.md", f"{render(template, runs=lines[::-1], **more)}\n")
