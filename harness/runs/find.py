"""Find runs by the words that name them: a path, `latest`, a run's id, or a label."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.files import read_json
from harness.core.given_values import spelling_hint
from harness.runs.history import mend_latest
from harness.runs.run_folder import ended_early, readable_status
from harness.runs.run_order import start_of


def folders(words: Sequence[str], results_dir: Path) -> list[Path]:
    """Return the folders of the runs that the words name, each once, in the order of the words.

    A word is a path, a run's id, `latest` or a label. Raises UsageError if a word names no run.
    """
    folder_by_real_path = dict[Path, Path]()
    for word in words:
        for folder in find_runs(word, results_dir):
            folder_by_real_path[folder.resolve()] = folder
    return list(folder_by_real_path.values())


def find_run(words: Sequence[str], results_dir: Path, rule: str) -> Path:
    """Return the one run folder that the words name. Raises UsageError if they name none or several.

    `rule` is the end of the message on several runs.
    """
    (first, *more) = folders(words, results_dir)
    if more:
        raise UsageError(f"{' '.join(words)}: {1 + len(more)} runs; {rule}")
    return first


def find_runs(word: str, results_dir: Path) -> list[Path]:
    """Return the folders that a word names: a path, a run's id or `latest` in `results_dir`, or a label.

    A label names all of its runs, oldest first, but runs that ended early only if there are no others. A word with a
    slash that names nothing is returned as a path, so that a later error is about the path. A link `latest` that leads
    nowhere is mended first. Raises UsageError if the word names no run.
    """
    with suppress(OSError):
        mend_latest(results_dir)
    for path in (Path(word), results_dir / word):
        if path.exists():
            return [path]
    labels = runs_by_label(results_dir)
    runs_of_label = labels.get(word)
    if runs_of_label:
        complete = [folder for folder in runs_of_label if ended_early(folder) is None]
        return complete or runs_of_label
    if "/" in word:
        return [Path(word)]
    run_names = [path.parent.name for path in results_dir.glob("*/config.json")]
    hint = spelling_hint(word, ["latest", *labels, *run_names])
    raise UsageError(f"{word}: no path, and no run or label in {results_dir}{hint}")


def runs_by_label(results_dir: Path) -> dict[str, list[Path]]:
    """Return the runs that are complete or have a summary, by label and oldest first.

    Runs without a label, unreadable runs and links are left out.
    """
    by_label = dict[str, list[Path]]()
    for folder in sorted((path.parent for path in results_dir.glob("*/config.json")), key=start_of):
        status = readable_status(folder)
        has_results = status and (status.status == "complete" or (folder / "summary.json").exists())
        if has_results and not folder.is_symlink():  # `latest` is a link to one of the runs.
            with suppress(UsageError):
                match read_json(folder / "config.json"):
                    case {"plan": {"config": {"label": str(label)}}} if label:
                        by_label.setdefault(label, []).append(folder)
    return by_label
