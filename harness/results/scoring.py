"""Score answers: mlperf_log_accuracy.json, to token ids, to text, to ROUGE."""

import contextlib
import re
import zlib
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from math import ceil
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

from harness.config.mlperf import ROUGE, ReferenceScores
from harness.core import reading, system
from harness.core.errors import LoadGenError
from harness.core.file_limits import LARGEST_ACCURACY_LOG
from harness.core.formatting import plural
from harness.core.message_text import system_reason
from harness.core.tokenizer import Tokenizer

Row = tuple[float, ...]  # a sample's scores, and the characters of its answer
Splitter = Literal["nltk punkt_tab", "built-in"]
CUT_MARK = "\n\n...\n\n"  # between the two ends that MLPerf's truncate_accuracy_log leaves of a log


def read_log(path: Path, samples: int, width: int = 4) -> list[list[int]]:
    """Return the token ids of each sample's answer in a LoadGen accuracy log, in the order of the samples.

    A token id has `width` bytes: 4 for int32, 8 for int64. Raises LoadGenError if the log is damaged, or a sample is
    unknown or has no answer.
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
        if index not in answers:  # The first entry of a sample counts, as in MLPerf's evaluation.
            answers[index] = decode_hex(data, width, where)
    missing = [index for index in range(samples) if index not in answers]
    if missing:
        raise LoadGenError(
            f"{path}: no answer for {len(missing):,} of {plural(samples, 'sample')}, the first {missing[0]}."
        )
    return [answers[index] for index in range(samples)]


def read_entries(path: Path) -> list[Any]:
    """Return the entries of a LoadGen accuracy log. Raises LoadGenError if it cannot be read, is cut or has none."""
    text = ""
    try:
        text = reading.read_text(path, LARGEST_ACCURACY_LOG)
        entries = reading.parse_json(text)
    except OSError as error:
        raise LoadGenError(f"{path}: {system_reason(error)}.") from None
    except (ValueError, RecursionError) as error:
        problem = str(error)
        if CUT_MARK in text:
            problem += "; it was cut for a submission, so take the run's own"
        raise LoadGenError(f"{path}: not a whole JSON file: {problem}.") from None
    if not isinstance(entries, list) or not entries:
        raise LoadGenError(f"{path} contains no answers.")
    return entries


def decode_hex(data: Any, width: int, where: str) -> list[int]:
    """Return token ids from LoadGen's hex text of little-endian integers of `width` bytes, which is 4 or 8.

    Raises LoadGenError if `data` is no such text. `where` names the entry in the message.
    """
    tokens = array({4: "i", 8: "q"}[width])
    try:
        tokens.frombytes(bytes.fromhex(data))
    except (TypeError, ValueError) as error:
        raise LoadGenError(f"{where}: its data are not int{8 * width} token ids: {error}.") from None
    return tokens.tolist()


def to_text(answers: Sequence[list[int]], tokenizer: Tokenizer) -> list[str]:
    """Return the answers as text without special tokens and without spaces at the ends.

    Raises LoadGenError for ids outside the vocabulary.
    """
    size = len(tokenizer)
    for index, answer in enumerate(answers):
        for token in answer:
            if not 0 <= token < size:
                raise LoadGenError(f"the answer to sample {index} has token id {token}, outside the vocabulary.")
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    # MLPerf's reference removes spaces before punctuation with transformers 4.46.2. Later versions ignore the setting
    # for byte-pair encodings.
    if tokenizer.clean_up_tokenization_spaces:
        texts = [tokenizer.clean_up_tokenization(text) for text in texts]
    return [text.strip() for text in texts]


def sentence_splitter() -> tuple[Splitter, Callable[[str], list[str]]]:
    """Return the name of the sentence splitter and the splitter, a function from a text to its sentences.

    The splitter is NLTK's if NLTK's punkt_tab data are installed and whole, else the built-in one.
    """
    from nltk.tokenize.punkt import PunktTokenizer

    # NLTK raises these errors for data that are missing, half unpacked, or in a zip that was cut.
    with contextlib.suppress(OSError, RuntimeError, BadZipFile, zlib.error, *reading.DAMAGED):
        punkt = PunktTokenizer("english")
        if punkt._params.abbrev_types and punkt._params.ortho_context:  # Both are filled in whole data.
            return "nltk punkt_tab", punkt.tokenize
    # The built-in splitter: after an end mark and a space, before a capital or a digit, which a quote may precede.
    return "built-in", lambda text: re.split(r"(?<=[.!?])\s+(?=[\"'(\[]?[A-Z0-9])", text)


def rouge_rows(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """Return ROUGE-1, -2, -L and -Lsum (F1 x100) and the answer's characters for each pair of answer and reference.

    As in the official evaluation, each sentence is a line and words are stemmed by Porter's method. The characters
    (gen_len) include the line ends.
    """
    from rouge_score import rouge_scorer, tokenizers

    word_tokenizer = tokenizers.DefaultTokenizer(use_stemmer=True)
    # Words recur, so their stems are cached.
    word_tokenizer._stemmer.stem = lru_cache(maxsize=None)(word_tokenizer._stemmer.stem)
    scorer = rouge_scorer.RougeScorer(list(ROUGE), tokenizer=word_tokenizer)
    _name, split = sentence_splitter()

    def sentence_lines(text: str) -> str:
        return "\n".join(split(text.strip()))

    rows = []
    for answer, reference in pairs:
        text = sentence_lines(answer)
        scores = scorer.score(sentence_lines(reference), text)
        percents = [100 * scores[name].fmeasure for name in ROUGE]
        rows.append((*percents, len(text)))
    return rows


def score_answers(texts: Sequence[str], references: Sequence[str]) -> list[Row]:
    """Return for every sample the four ROUGE scores of its answer and the answer's number of characters.

    Large sets are computed by several processes.
    """
    pairs = list(zip(texts, references, strict=True))
    workers = min(system.core_count(), 1 + len(pairs) // 1000)  # For fewer samples, starting a process takes longer.
    if workers == 1:
        return rouge_rows(pairs)
    chunk_count = 4 * workers  # several for each process, so that none idles for long at the end
    size = ceil(len(pairs) / chunk_count)
    chunks = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    all_rows = list[Row]()
    spawn = get_context("spawn")  # A fork of this process, which has threads, might hang.
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        for rows in pool.map(rouge_rows, chunks):
            all_rows += rows
    return all_rows


def totals(rows: Sequence[Row]) -> ReferenceScores:
    """Return the scores of a set from those of its samples: means, rounded as in the official
    evaluation, and the sum of characters.
    """
    *columns, characters = zip(*rows, strict=True)
    means = {name: round(sum(column) / len(rows), 4) for name, column in zip(ROUGE, columns, strict=True)}
    return ReferenceScores(**means, gen_len=sum(characters))
