"""MLPerf's compliance test TEST06: one more LoadGen test with audit settings on the same engine, and its verdict.

It logs 100 outputs of a performance test and compares each with what was reported to LoadGen. Settings and rules:
compliance/ in mlcommons/inference, which asks for no other test of this model.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import files, reading
from harness.core.errors import LoadGenError
from harness.loadgen.session import LoadGenSession
from harness.results.accuracy import LARGEST_LOG, decode_hex
from harness.results.verdicts import Compliance

LOGGED_SAMPLES = 100  # samples of the run, all of them logged
SETTINGS = {  # so many samples, each logged, whatever time they take, and no whole permutations
    "mode": 2,  # performance
    "accuracy_log_rng_seed": 720381539243781796,
    "accuracy_log_sampling_target": LOGGED_SAMPLES,
    "min_query_count": LOGGED_SAMPLES,
    "min_duration": 0,
    "sample_concatenate_permutation": 0,
}
# The audit.config, which LoadGen reads over all other settings, for any model and scenario.
AUDIT = "".join(f"*.*.{key} = {value}\n" for key, value in SETTINGS.items())
RESULT = "result.json"


def run_test06(session: LoadGenSession, plan: Plan, eos: int) -> Compliance:
    """Runs the test on the session's engine and judges it. `eos` is the id of the tokenizer's end-of-text token.

    Leaves result.json and the verification's text beside the logs.
    """
    folder = session.test("test06", plan, AUDIT)
    outcome, text = judge_test06(folder, eos, plan.config)
    files.write_text(folder / "verify_accuracy.txt", text)
    files.write_json(folder / RESULT, outcome.model_dump())
    return outcome


def judge_test06(folder: Path, eos: int, config: RunConfig) -> tuple[Compliance, str]:
    """TEST06's verdict on the accuracy log in `folder`, and the text that the submission checker reads.

    Raises LoadGenError where the log holds other than the samples asked for.
    """
    path = folder / "mlperf_log_accuracy.json"
    try:
        entries = json.loads(reading.read_text(path, LARGEST_LOG))
        answers = [decode_hex(entry["data"], 4, f"{path}: entry {n}") for n, entry in enumerate(entries)]
        counts = [entry["token_count"] for entry in entries]
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
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
    names = ("First token check", "EOS check", "Sample length check")
    pairs = zip(names, checks.values(), strict=True)
    lines = [f"{name} pass: {'Skipped' if verdict is None else verdict}" for name, verdict in pairs]
    lines.append(f"TEST06 verification {'complete' if passed else 'failed'}")
    found = Compliance(test="test06", passed=passed, checks=checks, facts={"samples": len(entries), "eos": eos})
    return found, "\n".join(lines) + "\n"


def is_as_reported(entry: Mapping[str, object], answer: Sequence[int]) -> bool:
    """Whether an answer begins with the tokens that were reported when the first was there: one or more."""
    try:
        reported = decode_hex(entry.get("token_data"), 4, "")
    except LoadGenError:
        return False
    return bool(reported) and answer[: len(reported)] == reported
