"""Models and data sets of the Hugging Face hub, or of a folder that `datasets` reads."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

from harness.config import engine, pretrained
from harness.config.run import RunConfig
from harness.config.workload import HUB_PREFIX
from harness.core.errors import UsageError, one_line_errors
from harness.core.formatting import alternatives
from harness.core.message_text import first_line, say
from harness.workloads.prompt_tables import RequestRows, numbered_rows
from harness.workloads.requests_file import StoredRequests, prompt_columns, read_rows

DESCRIPTION = "a data set, as `datasets` loads it"


class Rows(Protocol):
    """The rows of a data set, as `datasets` holds them."""

    column_names: Sequence[str]

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, object]]: ...

    def select(self, indices: Iterable[int]) -> Self: ...

    def select_columns(self, column_names: list[str]) -> Self: ...

    def to_list(self) -> list[dict[str, object]]: ...


def read(config: RunConfig) -> StoredRequests:
    """Return the requests of the data set that --workload names, one for each row or for each turn of a conversation.

    Raises UsageError if the data set cannot be used.
    """
    data = load_rows(config.workload)
    if config.sample_limit:
        data = data.select(range(min(config.sample_limit, len(data))))
    column = config.prompt_column or ""  # empty: a column with one of the usual names has the prompts
    check_columns(config.workload, data.column_names, column)
    return read_rows(Path(config.workload), RequestRows(numbered_rows(data), "row"), column)


def check_columns(workload: str, names: Sequence[str], prompt_column: str) -> None:
    """Raise UsageError if none of a data set's columns `names` can hold prompts.

    `prompt_column` is the column that the user named. If it is empty, any of the usual columns will do.
    """
    columns = prompt_columns(prompt_column)
    if not set(columns).isdisjoint(names):
        return
    remedy = ""
    if not prompt_column:
        remedy = "; --prompt-column names the one with the prompt"
    raise UsageError(
        f"{workload}: no column {alternatives(columns)}; it has {', '.join(names)}{remedy}.", flag="--workload"
    )


def load_rows(workload: str) -> Rows:
    """Return the rows of hf:NAME, hf:NAME@CONFIG, hf:NAME:SPLIT or hf:NAME@CONFIG:SPLIT.

    Raises UsageError if the rows cannot be loaded, if NAME is a format of `datasets` such as "json", or if there are
    several splits and none is named.
    """
    from datasets import load_dataset
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FORMATS

    place, _, split = workload.removeprefix(HUB_PREFIX).partition(":")
    name, _, settings = place.partition("@")
    if not name:
        raise UsageError(f"{workload}: must be hf:NAME, hf:NAME:SPLIT or hf:NAME@CONFIG:SPLIT.", flag="--workload")
    if name in FORMATS:
        raise UsageError(
            f"{workload}: {name} is a format of files, not a data set; name the file itself.", flag="--workload"
        )
    try:
        data: Rows | dict[str, Rows] = load_dataset(name, settings or None, split=split or None)
    except Exception as error:  # the library raises many kinds of errors about networks, names and files
        raise UsageError(f"{workload}: `datasets` cannot load it: {first_line(error)}.", flag="--workload") from None
    if isinstance(data, dict):
        if len(data) > 1:
            choices = ", ".join([f"{workload}:{split_name}" for split_name in data])
            raise UsageError(f"{workload}: name a split: {choices}.", flag="--workload")
        (data,) = data.values()  # the only split
    return data


def download_model(name: str) -> None:
    """Download a model's files into the cache, with a progress bar, and print the folder.

    An error ends the command with one line. Files that came before the error are kept.
    """
    from huggingface_hub import snapshot_download

    with one_line_errors():
        try:
            # The folder `original` has Meta's models a second time, in another format.
            say(snapshot_download(name, ignore_patterns=["original/*"]))
        except Exception as error:  # the library raises many kinds of errors about networks, names and tokens
            reason = pretrained.load_failure_text(engine.EngineConfig(model=name), error)
            raise UsageError(f"{reason} Try again: what came is kept.") from None


def download(name: str, version: str, split: str, remedy: str = "check the network, or pass --dataset-path") -> Rows:
    """Return a split of a data set from the Hugging Face hub or its local cache.

    Raises UsageError if the split cannot be loaded. The message ends with `remedy`.
    """
    from datasets import load_dataset

    try:
        rows: Rows = load_dataset(name, version, split=split)
    except Exception as error:
        reason = first_line(error).rstrip(".")
        raise UsageError(f"cannot download {name} ({reason}): {remedy}.") from None
    return rows


def read_saved(folder: Path, split: str) -> Rows:
    """Return a split of the data that `datasets` saved in a folder.

    If the folder holds a single data set without splits, return that. Raises UsageError if the folder cannot be read or
    does not have the split.
    """
    from datasets import load_from_disk

    try:
        data: Rows | dict[str, Rows] = load_from_disk(str(folder))
    except Exception as error:
        raise UsageError(f"{folder}: not a folder saved by `datasets`: {error}", flag="--dataset-path") from None
    if not isinstance(data, dict):
        return data
    if split not in data:
        raise UsageError(f"{folder}: no {split} split; it has {', '.join(data)}.", flag="--dataset-path")
    return data[split]
