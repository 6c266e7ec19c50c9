"""The scores of another program's accuracy log: `python -m harness accuracy LOG DATASET`."""

from pathlib import Path
from typing import Literal

from harness.config.models import DEFAULT_MODEL
from harness.core.command import argument, make_command, option
from harness.core.message_text import say, warn
from harness.results.accuracy import score_log
from harness.results.scoring import sentence_splitter

TOKEN_BYTES = {"int32": 4, "int64": 8}


def accuracy(
    log: Path = argument(..., "mlperf_log_accuracy.json.", "LOG"),
    dataset: Path = argument(..., "The MLCommons JSON with the references.", "DATASET"),
    model: str = option(DEFAULT_MODEL, "Model whose tokenizer decodes the answers.", "MODEL"),
    dtype: Literal["int32", "int64"] = option("int32", "The number format of the token ids in the log.", "int32|int64"),
) -> None:
    """Score another program's accuracy log against a data set, and write accuracy.txt beside the log."""
    text = score_log(log, dataset, model, TOKEN_BYTES[dtype])
    splitter_name, _ = sentence_splitter()
    if splitter_name != "nltk punkt_tab":  # MLPerf splits sentences by these data.
        warn("NLTK's punkt_tab data are missing or damaged: rougeLsum is approximate.")
    say(text.strip())


command = make_command(accuracy)
