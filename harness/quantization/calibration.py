"""Calibration data: MLPerf's list of CNN/DailyMail articles, or a data file as run.py reads it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.common.coerce import read_given
from harness.common.errors import UsageError
from harness.common.paths import INFERENCE, in_submodule
from harness.workloads import cnn_dailymail
from harness.workloads.cnn_dailymail import Article, Library

# 1,000 ids of CNN/DailyMail 3.0.0's training split, one a line; in the submodule.
LIST = INFERENCE / "calibration" / "CNNDailyMail" / "calibration-list.txt"
SPLIT = "train"


def find(data: Path | None) -> Path:
    """The file or folder that calibration begins with. Raises UsageError where it is missing."""
    if data is not None and not data.exists():
        raise UsageError(f"--dataset-path {data}: no such file or folder.")
    return data or in_submodule(LIST, ", or --dataset-path FILE")


def load(path: Path, tokenizer: Any, count: int | None) -> Library:
    """The first `count` prompts, all without. Raises UsageError where the data cannot serve."""
    records, source = (
        from_list(path) if path == LIST else (cnn_dailymail.read_articles(path, "--dataset-path"), near_path(path))
    )
    if count is not None and count > len(records):
        raise UsageError(f"--total-sample-count {count}: {source} has {len(records):,}.")
    return cnn_dailymail.encode_articles(records[:count], tokenizer, source)


def near_path(path: Path) -> str:
    """The path from here, where it lies below; so that no more of this machine is told than needed."""
    whole = path.resolve()
    return str(whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else path)


def from_list(path: Path) -> tuple[list[Article], str]:
    """The articles of MLPerf's list, in its order, from the Hugging Face hub (or its local cache)."""
    ids = read_given("--dataset-path", path, "a list of ids", ids_in)
    articles = pick_articles(cnn_dailymail.from_hub(SPLIT, "--dataset-path"), ids)
    return articles, f"MLPerf's calibration list ({SPLIT} split of CNN/DailyMail)"


def ids_in(text: str) -> list[str]:
    """One id a line, 40 hexadecimal digits each. Raises ValueError for anything else."""
    ids = text.split()
    wrong = next((id for id in ids if not re.fullmatch("[0-9a-f]{40}", id)), "nothing" if not ids else None)
    if wrong:
        raise ValueError(f"{wrong!r} is no id of an article")
    return ids


def pick_articles(data: Any, ids: Sequence[str]) -> list[Article]:
    """The records of a data set with these ids. Raises UsageError where one is missing."""
    rows = {id: index for index, id in enumerate(data["id"])}
    if missing := [id for id in ids if id not in rows]:
        raise UsageError(f"{len(missing):,} articles of the calibration list are not in the data set: {missing[0]} ...")
    chosen = data.select([rows[id] for id in ids])
    return cnn_dailymail.from_columns(chosen, cnn_dailymail.HUB_DATASET[0])
