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
from harness.runs.status import ending_text


def folders(words: Sequence[str], results_dir: Path, with_failed: bool = False) -> list[Path]:
    """Return the folders of the runs that the words name, each once, in the order of the words.

    A word is a path, a run's id, `latest` or a label. Raises UsageError if a word names no run.
    """
    folder_by_real_path = dict[Path, Path]()
    for word in words:
        for folder in find_runs(word, results_dir, with_failed):
            folder_by_real_path[folder.resolve()] = folder
    return list(folder_by_real_path.values())


def find_run(words: Sequence[str], results_dir: Path, rule: str) -> Path:
    """Return the one run folder that the words name. Raises UsageError if they name none or several.

    `rule` is the end of the message on several runs, such as "one is checked at a time.".
    """
    named_folders = folders(words, results_dir)
    if len(named_folders) > 1:
        raise UsageError(f"{' '.join(words)}: {len(named_folders)} runs; {rule}")
    return named_folders[0]


def find_runs(word: str, results_dir: Path, with_failed: bool = False) -> list[Path]:
    """Return the folders that a word names: a path, a run's id or `latest` in `results_dir`, or a label.

    A label names its complete runs, oldest first, or else its runs with results; all of its runs `with_failed`. Raises
    UsageError if the word names no run.
    """
    if not word.strip():
        raise UsageError("no run is named: a RUN is empty; give a path, the name of a run's folder, latest or a label.")
    with suppress(OSError):
        mend_latest(results_dir)
    for path in (Path(word), results_dir / word):
        if path.exists():
            return [path]
    all_runs_of_label = labelled_runs(results_dir).get(word, [])
    if with_failed and all_runs_of_label:
        return all_runs_of_label
    runs_with_results = runs_by_label(results_dir)
    if word in runs_with_results:
        complete = [folder for folder in runs_with_results[word] if ended_early(folder) is None]
        return complete or runs_with_results[word]
    if "/" in word:  # The word is a path. Whoever reads the folder reports that it is missing.
        return [Path(word)]
    if all_runs_of_label:  # The label is known, but none of its runs has results.
        raise no_results_error(word, example=all_runs_of_label[0])
    run_names = [path.parent.name for path in results_dir.glob("*/config.json")]
    hint = spelling_hint(word, ["latest", *runs_with_results, *run_names])
    raise UsageError(f"{word}: no such path, and no run or label of this name in {results_dir}{hint}")


def no_results_error(label: str, example: Path) -> UsageError:
    """Return the error that no run of a label has results. It says how one of them, the example, ended."""
    status = readable_status(example)
    ending = ending_text(status.status, status.reason) if status else "without a readable status"
    return UsageError(f"{label}: no run of this label has results; {example.name} is {ending}.")


def runs_by_label(results_dir: Path) -> dict[str, list[Path]]:
    """Return the runs that are complete or have a summary, by label and oldest first."""
    by_label = {}
    for label, labelled in labelled_runs(results_dir).items():
        runs_with_results = []
        for folder in labelled:
            status = readable_status(folder)
            if status and (status.status == "complete" or (folder / "summary.json").exists()):
                runs_with_results.append(folder)
        if runs_with_results:
            by_label[label] = runs_with_results
    return by_label


def labelled_runs(results_dir: Path) -> dict[str, list[Path]]:
    """Return all runs that have a label, by label and oldest first. Unreadable runs and links are left out."""
    by_label = dict[str, list[Path]]()
    run_folders = [path.parent for path in results_dir.glob("*/config.json")]
    for folder in sorted(run_folders, key=start_of):
        if not folder.is_symlink():  # `latest` is a link to one of the runs.
            with suppress(UsageError):  # config.json cannot be read
                match read_json(folder / "config.json"):
                    case {"plan": {"config": {"label": str(label)}}} if label:
                        by_label.setdefault(label, []).append(folder)
    return by_label
