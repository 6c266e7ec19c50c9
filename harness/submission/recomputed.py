"""What an entry's own logs come to when they are scored again.

A closed submission does not rest on what a run once wrote of itself.
"""

from collections.abc import Iterator
from typing import Any

from harness.common.errors import BenchmarkError
from harness.config.checkpoint import load_tokenizer
from harness.evaluation import accuracy
from harness.submission.entries import Entry, SubmittedRun
from harness.workloads import cnn_dailymail

SCORE_TOLERANCE = 1e-3  # by which scores may differ, which are rounded to four digits


def differences(entry: Entry) -> Iterator[str]:
    """Where scores, verdict or TEST06's end-of-text token are not what model, data and logs come to."""
    try:
        tokenizer = load_tokenizer(entry.config)
        yield from other_scores(entry.accuracy, tokenizer)
    except BenchmarkError as error:
        yield f"its scores cannot be computed again: {str(error).rstrip('.')}"
        return
    if entry.test06 and entry.test06.test06[1] != tokenizer.eos_token_id:
        yield f"TEST06 was judged with the end-of-text token {entry.test06.test06[1]}, not {tokenizer.eos_token_id}"


def other_scores(run: SubmittedRun, tokenizer: Any) -> Iterator[str]:
    """Where rouge.json says something else than the accuracy log, decoded and scored against the data set."""
    kept = run.scores
    splitter = accuracy.sentence_splitter()[0]
    if kept.splitter != splitter:
        yield f"its scores were made with {kept.splitter} sentences, and here is {splitter}: `make punkt` on both"
        return
    library = cnn_dailymail.load(run.config, tokenizer, kept.samples)
    answers = accuracy.read_log(run.folder("accuracy") / "mlperf_log_accuracy.json", kept.samples)
    rows = accuracy.score(accuracy.to_text(answers, tokenizer), library.references)
    checks = accuracy.judge(rows, run.config.task, run.config.high_accuracy)
    for check in checks:
        if abs(check.score - kept.scores.get(check.name, float("nan"))) <= SCORE_TOLERANCE:
            continue
        yield f"rouge.json says {check.name} {kept.scores.get(check.name)}, its log comes to {check.score:g}"
    if (verdict := accuracy.overall(checks)) != "PASS":
        yield f"the accuracy gate on its log says {verdict}"
