"""MLPerf's articles, and other data sets of the Hugging Face hub or of a folder that `datasets` reads."""

import errno
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from random import Random
from typing import Any, NamedTuple, Self

from huggingface_hub import constants

from harness.config import checkpoint, engine
from harness.config.mlperf import EDGE_SHUFFLE_SEED, LONGEST_PROMPT, MEAN_PROMPT, OFFICIAL, PROMPT
from harness.config.run import RunConfig
from harness.config.workload import SALT_TOKENS, RequestSet, Shared
from harness.core import files, reading
from harness.core.errors import UsageError, ends_in_one_line, first_line
from harness.workloads.requests_file import CHATS, KINDS, SURROGATES, StoredRequests, Tokens, read_rows, token_ids

MARK = "hf:"
DESCRIPTION = "a data set, as `datasets` loads it"


def read(config: RunConfig) -> StoredRequests:
    """The requests of a data set: one a row, or one a turn of a conversation. Raises UsageError in one line."""
    data = load_rows(config.workload)
    if most := config.sample_limit:
        data = data.select(range(min(most, len(data))))
    column = config.prompt_column or ""
    columns = [column] if column else [*KINDS, *CHATS]
    if not set(columns) & set(data.column_names):
        wanted = "" if column else "; --prompt-column names the one with the prompt"
        raise UsageError(
            f"--workload {config.workload}: no column {' or '.join(columns)}; it has "
            f"{', '.join(data.column_names)}{wanted}."
        )
    return read_rows(Path(config.workload), list(data), "row", column)


def load_rows(workload: str) -> Any:
    """The rows of hf:NAME, hf:NAME@CONFIG, hf:NAME:SPLIT or hf:NAME@CONFIG:SPLIT. Raises UsageError where they cannot
    be had, or the split is one of several and none is named."""
    from datasets import DatasetDict, load_dataset
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FORMATS

    place, _, split = workload.removeprefix(MARK).partition(":")
    name, _, settings = place.partition("@")
    if not name:
        raise UsageError(f"--workload {workload}: must be hf:NAME, hf:NAME:SPLIT or hf:NAME@CONFIG:SPLIT.")
    if name in FORMATS:
        raise UsageError(f"--workload {workload}: {name} is a format of files, not a data set; name the file itself.")
    try:
        data = load_dataset(name, settings or None, split=split or None)
    except Exception as error:  # whatever the library raises of a network, a name, a file
        raise UsageError(f"--workload {workload}: `datasets` cannot load it: {first_line(error)}.") from None
    if isinstance(data, DatasetDict):
        if len(data) > 1:
            raise UsageError(f"--workload {workload}: name a split: {', '.join(f'{workload}:{one}' for one in data)}.")
        (data,) = data.values()
    return data


def download_model(name: str) -> None:
    """A model's files into the cache, with a progress bar, or one line; what came before a download broke is kept."""
    from huggingface_hub import snapshot_download

    with ends_in_one_line():
        try:
            print(snapshot_download(name, ignore_patterns=["original/*"]))
        except Exception as error:  # whatever the library raises of a network, a name, a token
            raise UsageError(
                f"{checkpoint.why_not_loaded(engine.EngineConfig(model=name), error)} Try again: what came is kept."
            ) from None


def download(name: str, version: str, split: str, instead: str = "check the network, or pass --dataset-path") -> Any:
    """A split of a data set from the Hugging Face hub (or its local cache). Raises UsageError."""
    from datasets import load_dataset

    try:
        return load_dataset(name, version, split=split)
    except Exception as error:
        raise UsageError(f"cannot download {name} ({type(error).__name__}): {instead}.") from None


def read_saved(folder: Path, split: str) -> Any:
    """A split of what `datasets` saved in a folder, or the one that was saved alone. Raises UsageError."""
    from datasets import DatasetDict, load_from_disk

    try:
        data = load_from_disk(str(folder))
    except Exception as error:
        raise UsageError(f"--dataset-path {folder}: not a folder saved by `datasets`: {error}") from None
    splits = data if isinstance(data, DatasetDict) else {split: data}
    if split not in splits:
        raise UsageError(f"--dataset-path {folder}: no {split} split; it has {', '.join(splits)}.")
    return splits[split]


# The sample library: CNN/DailyMail articles as prompts (token ids) with their reference summaries.
# Tokens that make each prompt another one, so that a prefix cache finds what it is meant to find, or nothing.
class Salt(NamedTuple):
    """Random tokens of `words`, put in after the first `after` tokens of a prompt; the same for the turns of a
    conversation where that is not the start. `test` tells the tests of all runs apart.

    Of random prompts without salt, which LoadGen asks again, it `replaces` as many of their tokens, from the second
    round on, so that nothing but the prefix is shared with the rounds before.
    """

    words: Sequence[int]
    after: int
    start: bool
    replaces: bool = False
    test: str = ""

    @classmethod
    def of(cls, sharing: Shared, words: Sequence[int]) -> Self:
        start = sharing.salt == "start"
        return cls(words, 0 if start else sharing.prefix_len, start, replaces=sharing.salt == "none")

    def add_to(self, prompt: Sequence[int], order: int, conversation: int, round: int) -> Tokens:
        """A prompt with its salt: `order` tells requests apart, `conversation` and `round` what belongs together."""
        if self.replaces and not round:
            return [*prompt]
        key = f"request {order}" if self.start else f"conversation {conversation}, round {round}"
        tokens = Random(f"{self.test} {key}").choices(self.words, k=SALT_TOKENS)
        rest = self.after + SALT_TOKENS if self.replaces else self.after
        salted = [*prompt[: self.after], *tokens, *prompt[rest:]]
        return salted[: len(prompt)] if self.replaces else salted


HUB_DATASET, SPLIT = ("abisee/cnn_dailymail", "3.0.0"), "validation"
COLUMNS = ("article", "highlights")


Prompt = tuple[Tokens, int | None]  # token ids, and the most tokens of the answer; None: as many as in every answer


@dataclass(frozen=True)
class Library:
    """Samples in the order of the category; `prompts[i]` holds token ids, `references[i]` the summary to match.

    A workload has no references; `new_tokens[i]` is then the length of an answer, at most or exactly.
    """

    prompts: list[Tokens]
    source: str
    new_tokens: list[int] | None = None
    request_set: RequestSet | None = None
    official: bool = True  # MLPerf's own samples, as far as their number and lengths tell
    conversations: list[int] | None = None  # of each sample, where several are turns of one: consecutive, in order
    salt: Salt | None = None
    arrivals: list[float] | None = None  # seconds to each request of a trace, in order
    words: Sequence[int] = ()  # the token ids of which random prompts are made
    references: Sequence[str] = ()
    articles: Sequence[str] = ()

    def request(self, index: int, order: int, round: int = 0) -> Prompt:
        """A sample's prompt, salted, and the most tokens of its answer; `order` and `round` are those of the request
        for it."""
        prompt = self.prompts[index]
        if self.salt:
            talk = self.conversations[index] if self.conversations else index
            prompt = self.salt.add_to(prompt, order, talk, round)
        return prompt, self.new_tokens[index] if self.new_tokens else None

    @property
    def requests(self) -> list[Prompt]:
        """Each sample once, in order."""
        return [self.request(index, index) for index in range(len(self))]

    def salted(self, test: str, redraw: bool) -> Self:
        """The samples with the salt of one test, named as no other is; with `redraw`, random prompts are drawn anew."""
        salt = self.salt._replace(test=test) if self.salt else None
        if not (redraw and self.words):
            return replace(self, salt=salt)
        # Each token stands for another: the lengths of prompts, and what they share, stay.
        other = dict(zip(self.words, Random(test).sample(self.words, len(self.words)), strict=True))
        return replace(self, prompts=[[other[token] for token in prompt] for prompt in self.prompts], salt=salt)

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def mean_prompt_tokens(self) -> float:
        return sum(map(len, self.prompts)) / len(self)


class Article(NamedTuple):
    """One sample as it is stored; `tokens` only where the prompt came encoded."""

    article: str
    reference: str
    tokens: Tokens | None


def load(config: RunConfig, tokenizer: Any, count: int) -> Library:
    """The first `count` samples of the run's category. Raises UsageError where the data cannot serve."""
    path = config.dataset_path or config.model_spec.data
    if not path:
        source = "/".join((*HUB_DATASET, SPLIT))
        records = from_columns(download(*HUB_DATASET, SPLIT, instead(config)), HUB_DATASET[0])
    else:
        source = str(path)
        records = from_columns(read_saved(path, SPLIT), source) if path.is_dir() else from_json(path)
    whole = config.task.samples
    if config.category == "edge" and len(records) > whole:
        from datasets import Dataset  # in the order that its seed gives, as the reference has it

        order = Dataset.from_dict({"index": list(range(len(records)))}).shuffle(seed=EDGE_SHUFFLE_SEED)
        records = [records[index] for index in order["index"][:whole]]
    if len(records) < count:
        raise UsageError(f"{source} has {len(records):,} samples; this run needs {count:,}: use --total-sample-count.")
    prompts = [record.tokens or tokenizer.encode(PROMPT.format(input=record.article)) for record in records[:count]]
    limit = len(tokenizer)
    for number, prompt in enumerate(prompts):
        if not all(0 <= token < limit for token in prompt):
            raise UsageError(f"{source}: sample {number} has token ids outside the model's vocabulary of {limit:,}.")
    articles, references, _ = map(list, zip(*records[:count], strict=True))
    library = Library(prompts, source, references=references, articles=articles)
    return replace(library, official=not config.dataset_path or is_official(library, len(records), config.category))


def find(config: RunConfig) -> str:
    """Where the articles are, which are not read. Raises UsageError for a damaged file, none, and no way to the hub."""
    path = config.dataset_path or config.model_spec.data
    if path:
        check_sum(path)
        if not path.exists():
            raise UsageError(f"--dataset-path {path}: {os.strerror(errno.ENOENT)}.")
        return str(path)
    name, version = HUB_DATASET
    kept = Path(constants.HF_HOME) / "datasets" / name.replace("/", "___") / version
    if kept.exists():
        return str(kept)
    if not checkpoint.is_hub_reachable():
        raise UsageError(f"{name} not found, and the hub not reachable: {instead(config)}.")
    return f"{name}, to be downloaded"


def instead(config: RunConfig) -> str:
    """What serves where the hub does not give the articles."""
    chat = ", or --workload chat, which needs no data" if config.mode == "performance" else ""
    fetch = "run `make data`" if reading.IS_CHECKOUT else "run this"
    return f"{fetch} where there is a network, or pass --dataset-path FILE{chat}"


def check_sum(path: Path) -> None:
    """Holds a data file against the checksum that MLCommons' downloader left beside it, if it did: lines of an MD5 and
    a name, in a file that ends in .md5. Raises UsageError where they differ."""
    for listed in sorted(path.parent.glob("*.md5")) if path.is_file() else ():
        for line in reading.read_text(listed).splitlines():
            wanted, _, name = line.partition(" ")
            if PurePath(name.strip(" *")).name != path.name:
                continue
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "md5").hexdigest()
            if found != wanted.lower():
                raise UsageError(
                    f"{path} is damaged: its MD5 is {found}, {listed.name} has {wanted}; download it again."
                )


def is_official(library: Library, stored: int, category: str) -> bool:
    """Whether a file of the user's own holds MLPerf's samples, by their number and, where all are used, the lengths of
    the prompts."""
    official = OFFICIAL[category].samples
    if stored not in (official, OFFICIAL["datacenter"].samples):
        return False
    if len(library) < official:
        return True
    longest = max(map(len, library.prompts))
    whole = len(library) < OFFICIAL["datacenter"].samples or longest == LONGEST_PROMPT
    return whole and longest <= LONGEST_PROMPT and abs(library.mean_prompt_tokens / MEAN_PROMPT - 1) < 0.02


def check_lengths(library: Library, max_model_len: int, max_new_tokens: int) -> None:
    """Raises UsageError when a prompt and its answer do not fit: a cut prompt would be another benchmark."""
    lengths = [len(prompt) + max_new_tokens for prompt in library.prompts]
    if (needed := max(lengths)) > max_model_len:
        over = sum(length > max_model_len for length in lengths)
        raise UsageError(
            f"{over:,} of {len(library):,} samples do not fit --max-model-len {max_model_len}: sample "
            f"{lengths.index(needed)} needs {needed}. Use --max-model-len {needed} or more, if the model knows "
            "contexts as long, or fewer new tokens."
        )


def from_json(path: Path) -> list[Article]:
    """The MLCommons file: a JSON array of records with `input`, `tok_input` and `output`."""
    data = files.read_given("--dataset-path", path, "JSON", json.loads)
    if not isinstance(data, list) or not data:
        raise UsageError(f"--dataset-path {path}: expected a JSON array of records, as in MLCommons' cnn_eval.json.")
    return [checked_article(item, f"{path}: record {number}") for number, item in enumerate(data)]


def checked_article(item: Any, where: str, names: Sequence[str] = ("input", "output")) -> Article:
    """A record with article and summary under these names. Raises UsageError."""
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
    return Article(article, reference, tokens)


def from_columns(data: Any, source: str) -> list[Article]:
    """The records of a data set as `datasets` holds it. Raises UsageError."""
    for column in COLUMNS:
        if column not in data.column_names:
            raise UsageError(f"{source}: no column {column!r}; it has {', '.join(data.column_names)}.")
    rows = data.select_columns(list(COLUMNS)).to_list()
    return [checked_article(row, f"{source}: record {number}", COLUMNS) for number, row in enumerate(rows)]
