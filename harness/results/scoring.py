"""Score answers: mlperf_log_accuracy.json, to token ids, to text, to ROUGE."""

import contextlib
import re
import zlib
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

from harness.config.mlperf import ROUGE, ReferenceScores
from harness.core import reading, system
from harness.core.errors import LoadGenError
from harness.core.file_limits import LARGEST_ACCURACY_LOG
from harness.core.message_text import system_reason
from harness.core.tokenizer import Tokenizer

# mlperf_log_accuracy.json -> token ids -> text -> ROUGE -> gate.
Row = tuple[float, ...]  # a sample's scores, and the characters of its answer
Splitter = Literal["nltk punkt_tab", "built-in"]
CUT = "\n\n...\n\n"  # between the two ends that MLPerf's truncate_accuracy_log leaves of a log


def read_log(path: Path, samples: int, width: int = 4) -> list[list[int]]:
    """Return the token ids of each sample's answer in a LoadGen accuracy log.

    If a sample has several entries, the first counts, as in MLPerf's evaluation. `width` is the size of a token id in
    bytes: 4 for int32, 8 for int64. Raises LoadGenError if an entry is damaged, has an unknown sample, or a sample has
    no answer.
    """
    answers: dict[int, list[int]] = {}
    for number, entry in enumerate(read_entries(path)):
        where = f"{path}: entry {number}"
        try:
            index, data = entry["qsl_idx"], entry["data"]
        except reading.DAMAGED:
            raise LoadGenError(f"{where} has no qsl_idx and data.") from None
        if type(index) is not int or not 0 <= index < samples:
            raise LoadGenError(f"{where}: sample index {index!r:.40} is not one of 0..{samples - 1}.")
        if index not in answers:
            answers[index] = decode_hex(data, width, where)
    missing = [index for index in range(samples) if index not in answers]
    if missing:
        raise LoadGenError(f"{path}: no answer for {len(missing):,} of {samples:,} samples, the first {missing[0]}.")
    return [answers[index] for index in range(samples)]


def read_entries(path: Path) -> list[Any]:
    """Return the entries of a LoadGen accuracy log. Raises LoadGenError if the log has none or is cut."""
    text = ""
    try:
        text = reading.read_text(path, LARGEST_ACCURACY_LOG)
        entries = reading.parse_json(text)
    except OSError as error:
        raise LoadGenError(f"{path}: {system_reason(error)}.") from None
    except (ValueError, RecursionError) as error:
        problem = str(error)
        if CUT in text:
            problem += "; it was cut for a submission, so take the run's own"
        raise LoadGenError(f"{path}: not a whole JSON file: {problem}.") from None
    if not isinstance(entries, list) or not entries:
        raise LoadGenError(f"{path} contains no answers.")
    return entries


def decode_hex(data: Any, width: int, where: str) -> list[int]:
    """Return token ids from LoadGen's hex text of little-endian integers of `width` bytes. Raises LoadGenError."""
    tokens = array({4: "i", 8: "q"}[width])
    try:
        tokens.frombytes(bytes.fromhex(data))
    except (TypeError, ValueError) as error:
        raise LoadGenError(f"{where}: its data are not int{8 * width} token ids: {error}.") from None
    return tokens.tolist()


def to_text(answers: Sequence[list[int]], tokenizer: Tokenizer) -> list[str]:
    """Return the answers as text without special tokens. Raises LoadGenError for ids outside the vocabulary.

    Spaces before punctuation are removed if the tokenizer's config asks for that, as Llama-3.1's does. The reference's
    transformers 4.46.2 does so; later versions ignore the setting for byte-pair encodings.
    """
    size = len(tokenizer)
    for index, answer in enumerate(answers):
        if bad := [token for token in answer if not 0 <= token < size]:
            raise LoadGenError(f"the answer to sample {index} has token id {bad[0]}, outside the vocabulary.")
    clean = tokenizer.clean_up_tokenization if tokenizer.clean_up_tokenization_spaces else str
    as_they_are = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return [clean(text).strip() for text in tokenizer.batch_decode(answers, **as_they_are)]


def sentence_splitter() -> tuple[Splitter, Callable[[str], list[str]]]:
    """Return the sentence splitter and its name: NLTK's if its punkt_tab data are installed and whole, else the
    built-in one.
    """
    from nltk.tokenize.punkt import PunktTokenizer

    # Errors of NLTK for data that are not there, half unpacked, or in a zip that was cut.
    with contextlib.suppress(OSError, RuntimeError, BadZipFile, zlib.error, *reading.DAMAGED):
        punkt = PunktTokenizer("english")
        if punkt._params.abbrev_types and punkt._params.ortho_context:
            return "nltk punkt_tab", punkt.tokenize
    return "built-in", lambda text: re.split(r"(?<=[.!?])\s+(?=[\"'(\[]?[A-Z0-9])", text)


def rouge_rows(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """Return a row for each (answer, reference): ROUGE-1, -2, -L and -Lsum (F1 x100), and the answer's characters
    (gen_len).

    As in the official evaluation, each sentence is a line and words are stemmed by Porter's method. Here each word is
    stemmed only once.
    """
    from rouge_score import rouge_scorer, tokenizers

    default = tokenizers.DefaultTokenizer(use_stemmer=True)
    default._stemmer.stem = lru_cache(maxsize=None)(default._stemmer.stem)
    scorer = rouge_scorer.RougeScorer(list(ROUGE), tokenizer=default)
    _, split = sentence_splitter()

    def lines(text: str) -> str:
        return "\n".join(split(text.strip()))

    rows = []
    for answer, reference in pairs:
        text = lines(answer)
        scores = scorer.score(lines(reference), text)
        shares = [100 * scores[name].fmeasure for name in ROUGE]
        rows.append((*shares, len(text)))
    return rows


def score_answers(texts: Sequence[str], references: Sequence[str]) -> list[Row]:
    """Return the ROUGE scores and characters of every sample, shape [samples, 5].

    Large sets are spread over the cores.
    """
    pairs = list(zip(texts, references, strict=True))
    workers = min(system.core_count(), 1 + len(pairs) // 1000)
    if workers == 1:
        return rouge_rows(pairs)
    size = -(-len(pairs) // (4 * workers))
    chunks = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return [scores for rows in pool.map(rouge_rows, chunks) for scores in rows]


def totals(rows: Sequence[Row]) -> ReferenceScores:
    """Return the mean scores, rounded as in the official evaluation, and the sum of the characters."""
    *columns, characters = zip(*rows, strict=True)
    means = {name: round(sum(column) / len(rows), 4) for name, column in zip(ROUGE, columns, strict=True)}
    return ReferenceScores(**means, gen_len=sum(characters))
