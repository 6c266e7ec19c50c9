"""The names of runs: a path, `latest`, a run's id, or a label that one run or several were given."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from harness.common.errors import UsageError
from harness.common.files import read_json
from harness.runs.folder import readable_status


def folders(words: Sequence[str], results_dir: Path) -> list[Path]:
    """The folders that the words name, in their order. Raises UsageError for a word that names none."""
    return [folder for word in words for folder in find_runs(word, results_dir)]


def find_runs(word: str, results_dir: Path) -> list[Path]:
    """The folder at a path; or in `results_dir` the run with this id, or `latest`; or all finished runs with this
    label, oldest first. Raises UsageError where there is none."""
    for path in (Path(word), results_dir / word):
        if path.exists():
            return [path]
    if "/" in word:
        return [Path(word)]
    labels = runs_by_label(results_dir)
    if found := labels.get(word):
        return found
    words = ["latest", *labels, *(path.parent.name for path in results_dir.glob("*/config.json"))]
    near = difflib.get_close_matches(word, words, n=1)
    meant = f"; did you mean {near[0]}?" if near else "; --results-dir names the folder with the runs."
    raise UsageError(f"{word}: no path, and no run or label in {results_dir}{meant}")


def runs_by_label(results_dir: Path) -> dict[str, list[Path]]:
    """The finished runs by their label, oldest first; those that cannot be read are left out."""
    found: dict[str, list[Path]] = {}
    for path in sorted(results_dir.glob("*/config.json")):
        status = readable_status(path.parent)
        if path.parent.is_symlink() or status is None or status.status != "complete":
            continue
        if label := label_of(path):
            found.setdefault(label, []).append(path.parent)
    return found


def label_of(path: Path) -> str:
    """The label in a config.json; empty where there is none, or it cannot be read."""
    try:
        label = read_json(path)["plan"]["config"]["label"]
    except (UsageError, KeyError, TypeError):
        return ""
    return label if isinstance(label, str) else ""
