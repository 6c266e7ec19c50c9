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
from harness.core.formatting import plural
from harness.core.remedies import fetch_words
from harness.core.stored_text import data_files
from harness.core.tokenizer import Tokenizer
from harness.workloads.hub import Rows, download, read_saved
from harness.workloads.request_keys import unread_keys, unread_note
from harness.workloads.requests_file import SURROGATES, TokenIds, is_in_vocabulary, token_ids
from harness.workloads.sample_library import Library

CNN_DATASET, CNN_SPLIT = ("abisee/cnn_dailymail", "3.0.0"), "validation"
CNN_COLUMNS = ("article", "highlights")  # article and summary in the data set
JSON_KEYS = ("input", "output")  # article and summary in MLCommons' file
OPTIONAL_KEYS = ("tok_input", "instruction")  # keys of MLCommons' records, beside article and summary
CHECKED_RECORDS = 8  # roughly how many records' token ids are compared with their articles
CHECKED_CHARACTERS = 100  # characters of each article that are compared; its end may have been cut off
SHOWN_CHARACTERS = 60  # characters of a text that a message shows
MEAN_PROMPT_TOLERANCE = 0.02  # how far the mean length of official prompts may be from MLPerf's, as a share


class Article(NamedTuple):
    """One sample as it is stored."""

    article: str
    reference: str  # the summary to match
    tokens: TokenIds | None  # the prompt as token ids, if the data have it
    instruction: str = ""  # the instruction that the data put around the article
    unread: tuple[str, ...] = ()  # the record's keys that this program does not read


def load(config: RunConfig, tokenizer: Tokenizer, count: int) -> Library:
    """Return the first `count` samples of the run's category. Raises UsageError if the data cannot be used.

    Samples of the user's data are `official` only if their number and lengths are MLPerf's.
    """
    records, source = stored_articles(config)
    category_samples = config.task.samples
    if config.category == "edge" and len(records) > category_samples:  # Edge has only some articles, in another order.
        records = shuffle_articles(records)[:category_samples]  # Data with fewer records are taken as they are.
    if len(records) < count:
        raise UsageError(
            f"{source} has {plural(len(records), 'sample')}; this run needs {count:,}: use --total-sample-count."
        )
    first_records = records[:count]
    prompts = encoded_articles(first_records, tokenizer, source)
    check_tokenizer(first_records, tokenizer, source)
    library = Library(
        prompts,
        source,
        references=[record.reference for record in first_records],
        articles=[record.article for record in first_records],
        notes=tuple(data_notes(first_records)),
    )
    if config.dataset_path:
        library = replace(library, official=is_official(library, len(records), config.category))
    return library


def stored_articles(config: RunConfig) -> tuple[list[Article], str]:
    """Return all articles of the run's data, and their source. Raises UsageError if the data cannot be read.

    The data are the user's, else those that come with the model (the demo has some), else MLPerf's, which are
    downloaded.
    """
    path = config.dataset_path or config.model_spec.data
    if not path:
        rows = download(*CNN_DATASET, CNN_SPLIT, alternative_source(config))
        source = "/".join((*CNN_DATASET, CNN_SPLIT))
        return articles_from_columns(rows, CNN_DATASET[0]), source
    if path.is_dir():
        return articles_from_columns(read_saved(path, CNN_SPLIT), str(path)), str(path)
    return articles_from_json(path), str(path)


def encoded_articles(records: Sequence[Article], tokenizer: Tokenizer, source: str) -> list[TokenIds]:
    """Return the prompt of each record as token ids: those in the data, or else MLPerf's instruction with the article.

    Raises UsageError if the model does not have one of the tokens.
    """
    token_count = len(tokenizer)
    prompts = []
    for number, record in enumerate(records):
        prompt = record.tokens or tokenizer.encode(PROMPT.format(input=record.article))
        if not is_in_vocabulary(prompt, token_count):
            raise UsageError(
                f"{source}: sample {number} has token ids outside the model's vocabulary of {token_count:,}."
            )
        prompts.append(prompt)
    return prompts


def shuffle_articles(records: Sequence[Article]) -> list[Article]:
    """Return the articles in the order of the edge category.

    MLPerf's reference implementation shuffles them by the package `datasets` with a fixed seed.
    """
    from datasets import Dataset

    indices = list(range(len(records)))
    shuffled = Dataset.from_dict({"index": indices}).shuffle(seed=EDGE_SHUFFLE_SEED)
    return [records[index] for index in shuffled["index"]]


def check_tokenizer(records: Sequence[Article], tokenizer: Tokenizer, source: str) -> None:
    """Raise UsageError if token ids in the data do not stand for their articles with this tokenizer.

    The ids may be another model's, since MLCommons' files for other models have the same name and the same keys.
    """
    with_tokens = [number for number, record in enumerate(records) if record.tokens]
    step = max(1, len(with_tokens) // CHECKED_RECORDS)  # so that the checked records are spread over the data
    for number in with_tokens[::step]:
        record = records[number]
        text = tokenizer.decode(record.tokens or (), skip_special_tokens=True)
        article_start = joined_words(record.article)[:CHECKED_CHARACTERS]
        if article_start not in joined_words(text):
            raise UsageError(
                f"{source}: record {number}: tok_input is not its article by this model's tokenizer: it reads "
                f"{text[:SHOWN_CHARACTERS]!r}, the article {record.article[:SHOWN_CHARACTERS]!r}: take the file that "
                "was made for this model, or remove tok_input."
            )


def joined_words(text: str) -> str:
    """Return a text without its white space, which tokenizers may change."""
    return "".join(text.split())


def data_notes(records: Sequence[Article]) -> Iterator[str]:
    """Yield notes on what this program did not use of the data: instructions for the model, and keys of records."""
    unused_instructions = set()
    unread_counts = Counter[str]()
    for record in records:
        unread_counts.update(record.unread)
        # If a record has token ids, they contain its instruction, so the instruction is used.
        if not record.tokens and record.instruction not in ("", PROMPT):
            unused_instructions.add(record.instruction)
    if unused_instructions:
        shown_text = min(unused_instructions)[:SHOWN_CHARACTERS]  # one of them, always the same for the same data
        # PROMPT, MLPerf's own instruction, is put around each article in its place.
        yield f"not read: 'instruction' {shown_text!r}; MLPerf's stands around each article"
    if unread_counts:
        yield unread_note(unread_counts, "record")


def location(config: RunConfig) -> str:
    """Return where the articles are, without reading them: a path, the cache of `datasets`, or the hub.

    Raises UsageError if the file is damaged or missing, or if the articles would be downloaded but the hub cannot be
    reached.
    """
    path = config.dataset_path or config.model_spec.data
    if path:
        check_md5(path)  # Nothing is checked if the file does not exist.
        if not path.exists():
            raise UsageError(f"{path}: {os.strerror(errno.ENOENT)}.", flag="--dataset-path")
        return str(path)
    name, version = CNN_DATASET
    from datasets import config as datasets_config

    # `datasets` writes a slash in a name as three underscores.
    cache = Path(datasets_config.HF_DATASETS_CACHE) / name.replace("/", "___") / version
    if cache.exists():
        return str(cache)
    if not hub_environment.is_hub_reachable():
        raise UsageError(f"{name} not found, and the Hugging Face Hub is not reachable: {alternative_source(config)}.")
    return f"{name}, to be downloaded"


def alternative_source(config: RunConfig) -> str:
    """Return what the user can do if the hub does not give the articles, as the end of a message.

    A run that only measures speed may also use a workload that needs no data.
    """
    sources = f"{fetch_words()} where there is a network, or pass --dataset-path FILE"
    if config.mode == "performance":
        sources += ", or --workload chat, which needs no data"
    return sources


def check_md5(path: Path) -> None:
    """Raise UsageError if a data file does not have the checksum that MLCommons' downloader left beside it.

    A folder is not checked, and neither is a file without a checksum.
    """
    if not path.is_file():
        return
    for md5_file in data_files(path.parent, "*.md5"):
        for line in reading.read_text(md5_file, LARGEST_LIST).splitlines():
            expected, _, name = line.partition(" ")
            if PurePath(name.strip(" *")).name != path.name:  # md5sum writes " " or "*" before a name.
                continue
            with path.open("rb") as file:
                md5 = hashlib.file_digest(file, "md5").hexdigest()
            if md5 != expected.lower():
                raise UsageError(
                    f"{path} is damaged: its MD5 is {md5}, {md5_file.name} has {expected}; download it again."
                )


def is_official(library: Library, stored: int, category: str) -> bool:
    """Return whether data that the user gave are MLPerf's samples, judged by their number and lengths.

    `stored` is the number of records in the data. `library` has only the samples that the run uses.
    """
    category_samples = OFFICIAL_TASKS[category].samples
    all_samples = OFFICIAL_TASKS["datacenter"].samples
    if stored not in (category_samples, all_samples):
        return False
    if len(library) < category_samples:  # The lengths of a part show nothing.
        return True
    longest = max(map(len, library.prompts))
    if longest > LONGEST_PROMPT:
        return False
    # The longest prompt of all samples need not be among edge's samples.
    if len(library) >= all_samples and longest != LONGEST_PROMPT:
        return False
    return abs(library.mean_prompt_tokens / MEAN_PROMPT - 1) < MEAN_PROMPT_TOLERANCE


def check_lengths(library: Library, max_model_len: int, max_new_tokens: int) -> None:
    """Raise UsageError if a prompt with its answer of `max_new_tokens` is longer than `max_model_len` tokens.

    Prompts are not shortened, since the run would then be another benchmark.
    """
    lengths = [len(prompt) + max_new_tokens for prompt in library.prompts]
    longest = max(lengths)
    if longest <= max_model_len:
        return
    too_long = sum(length > max_model_len for length in lengths)
    raise UsageError(
        f"--max-model-len {max_model_len} is too short for {too_long:,} of {plural(len(library), 'sample')}: sample "
        f"{lengths.index(longest)} needs {longest}. Use --max-model-len {longest} or more, if the model knows "
        "contexts as long, or fewer new tokens."
    )


def articles_from_json(path: Path) -> list[Article]:
    """Return the records of MLCommons' file, a JSON array of records with `input`, `tok_input` and `output`.

    Raises UsageError.
    """
    data = given_values.read_given("--dataset-path", path, "JSON", reading.parse_json, most=LARGEST_ARTICLES)
    if not isinstance(data, list) or not data:
        raise UsageError(
            f"{path}: expected a JSON array of records, as in MLCommons' cnn_eval.json.", flag="--dataset-path"
        )
    return checked_articles(data, str(path), JSON_KEYS)


def checked_articles(items: Sequence[object], source: str, keys: tuple[str, str]) -> list[Article]:
    """Return the records of a source, whose name is `source` in errors.

    `keys` are those of the article and of the summary. Raises UsageError for the first record that cannot be used.
    """
    articles = []
    for number, item in enumerate(items):
        articles.append(checked_article(item, f"{source}: record {number}", keys))
    return articles


def checked_article(item: object, where: str, keys: tuple[str, str]) -> Article:
    """Return the article of a record. `keys` are those of the article and the summary.

    Raises UsageError if article or summary is no valid text, or if `tok_input` is no list of token ids.
    """
    if not isinstance(item, dict):
        raise UsageError(f"{where} is not an object.")
    for key in keys:
        if not isinstance(item.get(key), str):
            raise UsageError(f"{where} has no text under {key!r}.")
        if SURROGATES.search(item[key]):
            raise UsageError(f"{where}: invalid text (a lone surrogate) under {key!r}.")
    tokens = item.get("tok_input")
    if tokens is not None:
        token_ids(tokens, where, "'tok_input'")  # raises an error for anything but token ids
    article_key, summary_key = keys
    return Article(
        article=item[article_key],
        reference=item[summary_key],
        tokens=tokens,
        instruction=str(item.get("instruction") or ""),
        unread=tuple(unread_keys(item, (*keys, *OPTIONAL_KEYS))),
    )


def articles_from_columns(data: Rows, source: str) -> list[Article]:
    """Return the records of a data set that `datasets` loaded. Raises UsageError if a column is missing."""
    for column in CNN_COLUMNS:
        if column not in data.column_names:
            raise UsageError(f"{source}: no column {column!r}; it has {', '.join(data.column_names)}.")
    return checked_articles(data.select_columns(list(CNN_COLUMNS)).to_list(), source, CNN_COLUMNS)
