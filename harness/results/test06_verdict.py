"""The verdict of MLPerf's compliance test TEST06."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from harness.config import run
from harness.core import reading
from harness.core.errors import LoadGenError
from harness.core.file_limits import LARGEST_ACCURACY_LOG
from harness.core.schema import FrozenModel
from harness.loadgen.requests import ANSWERS
from harness.results.accuracy import GateResult
from harness.results.scoring import decode_hex


class Compliance(FrozenModel):
    """result.json of a compliance test; each check's verdict, null where it has none."""

    test: str
    passed: bool
    checks: dict[str, bool | None]
    facts: dict[str, JsonValue]

    @property
    def verdict(self) -> GateResult:
        return "PASS" if self.passed else "FAIL"

    @property
    def headline(self) -> str:
        failed = ", ".join(name for name, passed in self.checks.items() if passed is False)
        return f"{self.test.upper()}: {self.verdict}{f' ({failed})' if failed else ''}"


# MLPerf's compliance test TEST06: one more LoadGen test with audit settings on the same engine, and its verdict.
LOGGED_SAMPLES = 100  # samples of the run, all of them logged


def judge_test06(folder: Path, eos: int, config: run.RunConfig) -> tuple[Compliance, str]:
    """TEST06's verdict on the accuracy log in `folder`, and the text that the submission checker reads.

    Raises LoadGenError where the log holds other than the samples asked for.
    """
    path = folder / ANSWERS
    try:
        entries = reading.parse_json(reading.read_text(path, LARGEST_ACCURACY_LOG))
        if not isinstance(entries, list):
            raise TypeError("it is not a list")
        answers = [decode_hex(entry["data"], 4, f"{path}: entry {n}") for n, entry in enumerate(entries)]
        counts = [entry["token_count"] for entry in entries]
    except (OSError, *reading.DAMAGED) as error:
        raise LoadGenError(f"{path}: not the log of a TEST06 run: {type(error).__name__}: {error}.") from None
    if len(entries) < LOGGED_SAMPLES:
        raise LoadGenError(f"{path}: {len(entries)} samples logged; TEST06 asks for {LOGGED_SAMPLES}.")
    checks = {
        "first token": all(map(is_as_reported, entries, answers))
        if config.scenario_rules.pattern.is_streamed
        else None,
        "end of text at most once": all(answer[-2:] != [eos, eos] for answer in answers),
        "token count": [len(answer) for answer in answers] == counts,
    }
    passed = False not in checks.values()
    pairs = zip(("First token check", "EOS check", "Sample length check"), checks.values(), strict=True)
    lines = [f"{name} pass: {'Skipped' if verdict is None else verdict}" for name, verdict in pairs]
    lines.append(f"TEST06 verification {'complete' if passed else 'failed'}")
    compliance = Compliance(test="test06", passed=passed, checks=checks, facts={"samples": len(entries), "eos": eos})
    return compliance, "\n".join(lines) + "\n"


def is_as_reported(entry: Mapping[str, object], answer: Sequence[int]) -> bool:
    """Tell whether an answer begins with the tokens that were reported when the first was there: one or more."""
    try:
        reported = decode_hex(entry.get("token_data"), 4, "")
    except LoadGenError:
        return False
    return bool(reported) and answer[: len(reported)] == reported


TEST06_FILE = "result.json"
