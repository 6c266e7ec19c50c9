"""Models and data sets of the Hugging Face hub, or of a folder that `datasets` reads."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

from harness.config import engine, pretrained
from harness.config.run import RunConfig
from harness.core.errors import UsageError, one_line_errors
from harness.core.message_text import first_line, say
from harness.workloads.prompt_tables import RequestRow, RequestRows
from harness.workloads.requests_file import CHATS, REQUEST_KINDS, StoredRequests, read_rows

HUB_PREFIX = "hf:"
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
    """Return the requests of a data set, one for each row or one for each turn of a conversation. Raises UsageError."""
    data = load_rows(config.workload)
    if most := config.sample_limit:
        data = data.select(range(min(most, len(data))))
    column = config.prompt_column or ""
    columns = [column] if column else [*REQUEST_KINDS, *CHATS]
    if not set(columns) & set(data.column_names):
        wanted = "" if column else "; --prompt-column names the one with the prompt"
        raise UsageError(
            f"{config.workload}: no column {' or '.join(columns)}; it has {', '.join(data.column_names)}{wanted}.",
            flag="--workload",
        )
    rows = [RequestRow(*row) for row in enumerate(data, start=1)]
    return read_rows(Path(config.workload), RequestRows(rows, "row"), column)


def load_rows(workload: str) -> Rows:
    """Return the rows of hf:NAME, hf:NAME@CONFIG, hf:NAME:SPLIT or hf:NAME@CONFIG:SPLIT.

    Raises UsageError if they cannot be loaded, or if there are several splits and none is named.
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
            raise UsageError(
                f"{workload}: name a split: {', '.join(f'{workload}:{split_name}' for split_name in data)}.",
                flag="--workload",
            )
        (data,) = data.values()
    return data


def download_model(name: str) -> None:
    """Download a model's files into the cache, with a progress bar.

    Ends the command with one line on an error. Files that came before a download broke are kept.
    """
    from huggingface_hub import snapshot_download

    with one_line_errors():
        try:
            say(snapshot_download(name, ignore_patterns=["original/*"]))
        except Exception as error:  # the library raises many kinds of errors about networks, names and tokens
            raise UsageError(
                f"{pretrained.load_failure_text(engine.EngineConfig(model=name), error)} Try again: what came is kept."
            ) from None


def download(name: str, version: str, split: str, instead: str = "check the network, or pass --dataset-path") -> Rows:
    """Return a split of a data set from the Hugging Face hub or its local cache.

    Raises UsageError, which ends with `instead`.
    """
    from datasets import load_dataset

    try:
        rows: Rows = load_dataset(name, version, split=split)
    except Exception as error:
        raise UsageError(f"cannot download {name} ({first_line(error).rstrip('.')}): {instead}.") from None
    return rows


def read_saved(folder: Path, split: str) -> Rows:
    """Return a split of the data that `datasets` saved in a folder.

    If it saved only one data set, return that. Raises UsageError if the folder cannot be read or does not have the
    split.
    """
    from datasets import load_from_disk

    try:
        data: Rows | dict[str, Rows] = load_from_disk(str(folder))
    except Exception as error:
        raise UsageError(f"{folder}: not a folder saved by `datasets`: {error}", flag="--dataset-path") from None
    splits = data if isinstance(data, dict) else {split: data}
    if split not in splits:
        raise UsageError(f"{folder}: no {split} split; it has {', '.join(splits)}.", flag="--dataset-path")
    return splits[split]
