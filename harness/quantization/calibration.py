"""Calibration data: MLPerf's list of CNN/DailyMail articles, or a data file as run.py reads it."""

import re
from pathlib import Path
from typing import Any

from harness.common.coerce import read_given
from harness.common.errors import UsageError
from harness.common.paths import INFERENCE, in_submodule
from harness.workloads import cnn_dailymail, hub
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
    if path == LIST:
        source, records = f"MLPerf's calibration list ({SPLIT} split of CNN/DailyMail)", from_list(path)
    else:
        whole = path.resolve()  # no more of this machine is shown than needed
        source = str(whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else path)
        records = cnn_dailymail.read_articles(path)
    if count is not None and count > len(records):
        raise UsageError(f"--total-sample-count {count}: {source} has {len(records):,}.")
    return cnn_dailymail.encode_articles(records[:count], tokenizer, source)


def from_list(path: Path) -> list[Article]:
    """The articles of MLPerf's list, in its order, from the Hugging Face hub (or its local cache). Raises UsageError
    where one is missing."""
    ids = read_given("--dataset-path", path, "a list of ids", ids_in)
    data = hub.download(*cnn_dailymail.HUB_DATASET, SPLIT)
    rows = {id: index for index, id in enumerate(data["id"])}
    if missing := [id for id in ids if id not in rows]:
        raise UsageError(f"the data set lacks {len(missing):,} articles of the calibration list, such as {missing[0]}.")
    return cnn_dailymail.from_columns(data.select([rows[id] for id in ids]), cnn_dailymail.HUB_DATASET[0])


def ids_in(text: str) -> list[str]:
    """One id a line, 40 hexadecimal digits each. Raises ValueError for anything else."""
    ids = text.split()
    wrong = next((id for id in ids if not re.fullmatch("[0-9a-f]{40}", id)), "nothing" if not ids else None)
    if wrong:
        raise ValueError(f"{wrong!r} is not an article id")
    return ids
