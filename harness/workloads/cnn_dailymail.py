"""MLPerf's articles, and other data sets of the Hugging Face hub or of a folder that `datasets` reads."""

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import NamedTuple

from harness.config import hub_environment
from harness.config.mlperf import EDGE_SHUFFLE_SEED, LONGEST_PROMPT, MEAN_PROMPT, OFFICIAL_TASKS, PROMPT
from harness.config.run import RunConfig
from harness.core import given_values, reading
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_ARTICLES, LARGEST_LIST
from harness.core.remedies import fetch_words
from harness.core.stored_text import data_files
from harness.core.tokenizer import Tokenizer
from harness.workloads.hub import Rows, download, read_saved
from harness.workloads.request_keys import unread_keys, unread_note
from harness.workloads.requests_file import SURROGATES, TokenIds, token_ids
from harness.workloads.sample_library import Library

CNN_DATASET, CNN_SPLIT = ("abisee/cnn_dailymail", "3.0.0"), "validation"
CNN_COLUMNS = ("article", "highlights")
READ_KEYS = ("tok_input", "instruction")  # keys of MLCommons' records, beside article and summary
CHECKED_RECORDS = 8  # records whose token ids are compared with their articles
CHECKED_CHARACTERS = 100  # characters of each article that are compared; its end may have been cut off
SHOWN_CHARACTERS = 60  # characters of a text that a message shows


class Article(NamedTuple):
    """One sample as it is stored; `tokens` only where the prompt came encoded."""

    article: str
    reference: str
    tokens: TokenIds | None
    instruction: str = ""  # the instruction that the data have around it
    unread: tuple[str, ...] = ()  # the names of the keys that nobody reads


def load(config: RunConfig, tokenizer: Tokenizer, count: int) -> Library:
    """Return the first `count` samples of the run's category. Raises UsageError if the data cannot be used."""
    path = config.dataset_path or config.model_spec.data
    if not path:
        source = "/".join((*CNN_DATASET, CNN_SPLIT))
        records = from_columns(download(*CNN_DATASET, CNN_SPLIT, alternative_source(config)), CNN_DATASET[0])
    else:
        source = str(path)
        records = from_columns(read_saved(path, CNN_SPLIT), source) if path.is_dir() else from_json(path)
    whole = config.task.samples
    if config.category == "edge" and len(records) > whole:
        records = shuffle_articles(records)[:whole]
    if len(records) < count:
        raise UsageError(f"{source} has {len(records):,} samples; this run needs {count:,}: use --total-sample-count.")
    used = records[:count]
    prompts = [record.tokens or tokenizer.encode(PROMPT.format(input=record.article)) for record in used]
    limit = len(tokenizer)
    for number, prompt in enumerate(prompts):
        if not all(0 <= token < limit for token in prompt):
            raise UsageError(f"{source}: sample {number} has token ids outside the model's vocabulary of {limit:,}.")
    check_tokenizer(used, tokenizer, source)
    articles = [record.article for record in used]
    references = [record.reference for record in used]
    library = Library(prompts, source, references=references, articles=articles, notes=tuple(data_notes(used)))
    return replace(library, official=not config.dataset_path or is_official(library, len(records), config.category))


def shuffle_articles(records: Sequence[Article]) -> list[Article]:
    """Return the articles in the order of the edge category, which follows from the reference's seed."""
    from datasets import Dataset

    order = Dataset.from_dict({"index": list(range(len(records)))}).shuffle(seed=EDGE_SHUFFLE_SEED)
    return [records[index] for index in order["index"]]


def check_tokenizer(records: Sequence[Article], tokenizer: Tokenizer, source: str) -> None:
    """Raise UsageError if token ids in the data do not stand for their articles with this tokenizer.

    A few records are decoded. Files for other models have the same name and the same keys.
    """
    encoded = [number for number, record in enumerate(records) if record.tokens]
    step = max(1, len(encoded) // CHECKED_RECORDS)
    for number in encoded[::step]:
        record = records[number]
        text = tokenizer.decode(record.tokens or (), skip_special_tokens=True)
        if without_spaces(record.article)[:CHECKED_CHARACTERS] not in without_spaces(text):
            raise UsageError(
                f"{source}: record {number}: tok_input is not its article by this model's tokenizer: it reads "
                f"{text[:SHOWN_CHARACTERS]!r}, the article {record.article[:SHOWN_CHARACTERS]!r}: take the file that "
                "was made for this model, or remove tok_input."
            )


def without_spaces(text: str) -> str:
    return "".join(text.split())


def data_notes(records: Sequence[Article]) -> Iterator[str]:
    """Yield what a reader must know about how the prompts were made from the data."""
    instructions = {record.instruction for record in records if not record.tokens} - {"", PROMPT}
    if instructions:
        shown_text = min(instructions)[:SHOWN_CHARACTERS]
        yield f"not read: 'instruction' {shown_text!r}; MLPerf's stands around each article"
    unread = Counter[str]()
    for record in records:
        unread.update(record.unread)
    if unread:
        yield unread_note(unread, "record")


def find(config: RunConfig) -> str:
    """Return where the articles are, without reading them.

    Raises UsageError if the file is damaged or missing, or if the articles would be downloaded but the hub cannot be
    reached.
    """
    path = config.dataset_path or config.model_spec.data
    if path:
        check_sum(path)
        if not path.exists():
            raise UsageError(f"{path}: {os.strerror(errno.ENOENT)}.", flag="--dataset-path")
        return str(path)
    name, version = CNN_DATASET
    from datasets import config as libraries_folders

    cached = Path(libraries_folders.HF_DATASETS_CACHE) / name.replace("/", "___") / version
    if cached.exists():
        return str(cached)
    if not hub_environment.is_hub_reachable():
        raise UsageError(f"{name} not found, and the hub not reachable: {alternative_source(config)}.")
    return f"{name}, to be downloaded"


def alternative_source(config: RunConfig) -> str:
    """Return what the user can do if the hub does not give the articles."""
    chat = ", or --workload chat, which needs no data" if config.mode == "performance" else ""
    return f"{fetch_words()} where there is a network, or pass --dataset-path FILE{chat}"


def check_sum(path: Path) -> None:
    """Compare a data file with the checksum that MLCommons' downloader left beside it, if any.

    A file that ends in .md5 has lines of a checksum and a name. Raises UsageError if they differ.
    """
    for listed in data_files(path.parent, "*.md5") if path.is_file() else ():
        for line in reading.read_text(listed, LARGEST_LIST).splitlines():
            wanted, _, name = line.partition(" ")
            if PurePath(name.strip(" *")).name != path.name:
                continue
            with path.open("rb") as file:
                md5 = hashlib.file_digest(file, "md5").hexdigest()
            if md5 != wanted.lower():
                raise UsageError(f"{path} is damaged: its MD5 is {md5}, {listed.name} has {wanted}; download it again.")


def is_official(library: Library, stored: int, category: str) -> bool:
    """Return whether a file of the user's own holds MLPerf's samples.

    This is judged by their number and, if all samples are used, by the lengths of the prompts.
    """
    official = OFFICIAL_TASKS[category].samples
    if stored not in (official, OFFICIAL_TASKS["datacenter"].samples):
        return False
    if len(library) < official:
        return True
    longest = max(map(len, library.prompts))
    whole = len(library) < OFFICIAL_TASKS["datacenter"].samples or longest == LONGEST_PROMPT
    return whole and longest <= LONGEST_PROMPT and abs(library.mean_prompt_tokens / MEAN_PROMPT - 1) < 0.02


def check_lengths(library: Library, max_model_len: int, max_new_tokens: int) -> None:
    """Raise UsageError if a prompt and its answer do not fit. A shortened prompt would make it another benchmark."""
    lengths = [len(prompt) + max_new_tokens for prompt in library.prompts]
    if (needed := max(lengths)) > max_model_len:
        over = sum(length > max_model_len for length in lengths)
        raise UsageError(
            f"{over:,} of {len(library):,} samples do not fit --max-model-len {max_model_len}: sample "
            f"{lengths.index(needed)} needs {needed}. Use --max-model-len {needed} or more, if the model knows "
            "contexts as long, or fewer new tokens."
        )


def from_json(path: Path) -> list[Article]:
    """Return the records of MLCommons' file, a JSON array of records with `input`, `tok_input` and `output`."""
    data = given_values.read_given("--dataset-path", path, "JSON", reading.parse_json, most=LARGEST_ARTICLES)
    if not isinstance(data, list) or not data:
        raise UsageError(
            f"{path}: expected a JSON array of records, as in MLCommons' cnn_eval.json.", flag="--dataset-path"
        )
    return [checked_article(item, f"{path}: record {number}") for number, item in enumerate(data)]


def checked_article(item: object, where: str, names: Sequence[str] = ("input", "output")) -> Article:
    """Return a record whose article and summary are under these names. Raises UsageError if one is missing."""
    if not isinstance(item, dict):
        raise UsageError(f"{where} is not an object.")
    for key in names:
        if not isinstance(item.get(key), str):
            raise UsageError(f"{where} has no text under {key!r}.")
        if SURROGATES.search(item[key]):
            raise UsageError(f"{where}: invalid text (a lone surrogate) under {key!r}.")
    tokens = item.get("tok_input")
    if tokens is not None:
        token_ids(tokens, where, "'tok_input'")
    article, reference = (item[key] for key in names)
    unread = unread_keys(item, (*names, *READ_KEYS))
    return Article(article, reference, tokens, str(item.get("instruction") or ""), tuple(unread))


def from_columns(data: Rows, source: str) -> list[Article]:
    """Return the records of a data set as `datasets` holds it. Raises UsageError if a column is missing."""
    for column in CNN_COLUMNS:
        if column not in data.column_names:
            raise UsageError(f"{source}: no column {column!r}; it has {', '.join(data.column_names)}.")
    rows = data.select_columns(list(CNN_COLUMNS)).to_list()
    return [checked_article(row, f"{source}: record {number}", CNN_COLUMNS) for number, row in enumerate(rows)]
