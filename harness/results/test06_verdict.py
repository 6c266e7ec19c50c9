"""The verdict of MLPerf's compliance test TEST06."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from harness.config import run
from harness.core import reading
from harness.core.errors import LoadGenError
from harness.core.file_limits import LARGEST_ACCURACY_LOG
from harness.core.formatting import plural
from harness.core.schema import FrozenModel
from harness.loadgen.requests import ANSWERS_FILE
from harness.results.accuracy import GateResult
from harness.results.scoring import decode_hex


class Compliance(FrozenModel):
    """result.json of a compliance test, with the verdict of each check: null if the check does not apply."""

    test: str
    passed: bool
    checks: dict[str, bool | None]
    facts: dict[str, JsonValue]

    @property
    def verdict(self) -> GateResult:
        return "PASS" if self.passed else "FAIL"

    @property
    def headline(self) -> str:
        """The test and its verdict in a line, with the names of the checks that failed."""
        text = f"{self.test.upper()}: {self.verdict}"
        failed = [name for name, passed in self.checks.items() if passed is False]
        if failed:
            text += f" ({', '.join(failed)})"
        return text


# MLPerf's compliance test TEST06: one more LoadGen test with audit settings on the same engine, and its verdict.
LOGGED_SAMPLES = 100  # samples of the run, all of them logged


def read_answers(path: Path) -> tuple[list[Any], list[list[int]], list[int]]:
    """Return the entries of the accuracy log of a TEST06 run, and the tokens and the reported token count of each.

    Raises LoadGenError if the log is damaged or has too few samples.
    """
    answers, reported_counts = [], []
    try:
        entries = reading.parse_json(reading.read_text(path, LARGEST_ACCURACY_LOG))
        if not isinstance(entries, list):
            raise TypeError("it is not a list")
        for number, entry in enumerate(entries):
            answers.append(decode_hex(entry["data"], 4, f"{path}: entry {number}"))
            reported_counts.append(entry["token_count"])
    except (OSError, *reading.DAMAGED) as error:
        raise LoadGenError(f"{path}: not the log of a TEST06 run: {type(error).__name__}: {error}.") from None
    if len(entries) < LOGGED_SAMPLES:
        raise LoadGenError(f"{path}: {plural(len(entries), 'sample')} logged; TEST06 asks for {LOGGED_SAMPLES}.")
    return entries, answers, reported_counts


def judge_test06(folder: Path, eos: int, config: run.RunConfig) -> tuple[Compliance, str]:
    """Judge the accuracy log of a TEST06 run in `folder`: whether its answers are those reported to LoadGen.

    Returns the verdict and the text for the submission checker. `eos` is the token that ends a text. Raises
    LoadGenError for a damaged log or too few samples.
    """
    entries, answers, reported_counts = read_answers(folder / ANSWERS_FILE)
    is_first_as_reported = None  # Only some scenarios report the first token.
    if config.scenario_rules.pattern.is_streamed:
        is_first_as_reported = all(map(begins_as_reported, entries, answers))
    checks = {
        "first token": is_first_as_reported,
        # As in MLPerf's check, only the end of an answer is looked at.
        "end of text at most once": all(answer[-2:] != [eos, eos] for answer in answers),
        "token count": [len(answer) for answer in answers] == reported_counts,
    }
    passed = False not in checks.values()  # None, a check that does not apply, is no failure.
    compliance = Compliance(test="test06", passed=passed, checks=checks, facts={"samples": len(entries), "eos": eos})
    return compliance, checker_text(compliance)


def checker_text(compliance: Compliance) -> str:
    """Return the verdict as the text that the submission checker reads, under the checker's names for the checks.

    A check that does not apply is called skipped.
    """
    lines = []
    names = ("First token check", "EOS check", "Sample length check")  # in the order of `checks`
    for name, verdict in zip(names, compliance.checks.values(), strict=True):
        outcome = "Skipped" if verdict is None else str(verdict)
        lines.append(f"{name} pass: {outcome}")
    ending = "complete" if compliance.passed else "failed"
    return "\n".join([*lines, f"TEST06 verification {ending}\n"])


def begins_as_reported(entry: Mapping[str, object], answer: Sequence[int]) -> bool:
    """Tell whether an answer begins with the tokens that were reported as its first (one or more) while it was made.

    The log's entry has them as `token_data`. False if the entry has none, or if they are damaged.
    """
    try:
        reported = decode_hex(entry.get("token_data"), width=4, where="")  # The message is not shown.
    except LoadGenError:
        return False
    return bool(reported) and answer[: len(reported)] == reported


TEST06_FILE = "result.json"
