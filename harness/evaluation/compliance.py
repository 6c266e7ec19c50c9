"""MLPerf's compliance tests: one more LoadGen test with audit settings on the same engine, and its verdict.

TEST06 logs 100 outputs of a performance test and compares each with what was reported to LoadGen. TEST04 repeats one
sample, which an engine answers faster than ordinary samples only if it keeps answers or parts of them. Settings and
rules: compliance/ in mlcommons/inference. Its TEST04 exempts benchmarks whose samples differ in length, as these do,
so here the sample that is repeated is one of mean length. What is compared is what its verify_performance.py compares:
samples per second, and where queries are sent one by one LoadGen's estimate of the latency percentile.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from harness.common.errors import LoadGenError
from harness.common.files import write_json, write_text
from harness.common.reading import read_text
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.evaluation.accuracy import LARGEST_LOG, decode_hex
from harness.loadgen import log as loadgen_log
from harness.loadgen.requests import read_requests
from harness.results.verdicts import Audit, Compliance
from harness.runs.folder import FOLDER

if TYPE_CHECKING:
    from harness.loadgen.session import LoadGenSession

LOGGED_SAMPLES = 100  # samples of a TEST06 run, all of them logged
PERFORMANCE_MODE = 2
CONSISTENCY = {  # of TEST06: so many samples, each logged, whatever time they take, and no whole permutations
    "accuracy_log_rng_seed": 720381539243781796,
    "accuracy_log_sampling_target": LOGGED_SAMPLES,
    "min_query_count": LOGGED_SAMPLES,
    "min_duration": 0,
    "sample_concatenate_permutation": 0,
}
NOISE = 0.1  # TEST04: how much faster than ordinary samples the repeated one may be
LATENCY_NOISE = 0.2  # the same of latencies
ESTIMATES = {"SingleStream": "early_stopping_latency_ss", "MultiStream": "early_stopping_latency_ms"}  # nanoseconds
RESULT = "result.json"


def run_compliance(session: "LoadGenSession", plan: Plan, test: Audit, eos: int, loaded: Sequence[int]) -> Compliance:
    """Runs the test on the session's engine and judges it. `eos` is the id of the tokenizer's end-of-text token.

    TEST04 needs the performance test before it, whose samples LoadGen `loaded` in this order. Leaves result.json and
    the verification's text beside the logs.
    """
    if test == "test06":
        folder = session.test(test, plan, audit(CONSISTENCY)).folder
        outcome, text = judge_test06(folder, eos, plan.config)
        name = "verify_accuracy.txt"
    else:
        reference = session.folder.path / FOLDER["performance"]
        sample = typical_sample(reference, [len(prompt) for prompt in session.library.prompts])
        repeated = {"performance_issue_same": 1, "performance_issue_same_index": loaded.index(sample)}
        folder = session.test(test, plan, audit({"performance_issue_unique": 0} | repeated)).folder
        outcome, text = judge_test04(folder, reference, sample)
        name = "verify_performance.txt"
    folder = session.folder.path / FOLDER[test]
    write_text(folder / name, text)
    write_json(folder / RESULT, outcome.model_dump())
    return outcome


def audit(settings: dict[str, int]) -> str:
    """The text of an audit.config, which LoadGen reads over all other settings, for any model and scenario."""
    settings = {"mode": PERFORMANCE_MODE} | settings
    return "".join(f"*.*.{key} = {value}\n" for key, value in settings.items())


def judge_test06(folder: Path, eos: int, config: RunConfig) -> tuple[Compliance, str]:
    """TEST06's verdict on the accuracy log in `folder`, and the text that the submission checker reads.

    Raises LoadGenError where the log holds other than the samples asked for.
    """
    path = folder / "mlperf_log_accuracy.json"
    try:
        entries = json.loads(read_text(path, LARGEST_LOG))
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
    said = ["Skipped" if verdict is None else str(verdict) for verdict in checks.values()]
    names = ("First token check", "EOS check", "Sample length check")
    lines = [f"{name} pass: {verdict}" for name, verdict in zip(names, said, strict=True)]
    lines.append(f"TEST06 verification {'complete' if passed else 'failed'}")
    facts: dict[str, JsonValue] = {"samples": len(entries), "eos": eos}
    return Compliance(test="test06", passed=passed, checks=checks, facts=facts), "\n".join(lines) + "\n"


def is_as_reported(entry: Mapping[str, object], answer: Sequence[int]) -> bool:
    """Whether an answer begins with the tokens that were reported when the first was there: one or more."""
    try:
        reported = decode_hex(entry.get("token_data"), 4, "")
    except LoadGenError:
        return False
    return bool(reported) and answer[: len(reported)] == reported


def typical_sample(folder: Path, prompts: Sequence[int]) -> int:
    """The sample whose prompt and answer are nearest to the mean lengths of the performance test in `folder`.

    `prompts` holds each sample's prompt length, in tokens.
    """
    answers = {request.sample: request.output_tokens for request in read_requests(folder)}
    mean_prompt = sum(prompts[index] for index in answers) / len(answers)
    mean_answer = sum(answers.values()) / len(answers)

    def distance(index: int) -> float:
        return abs(prompts[index] - mean_prompt) / mean_prompt + abs(answers[index] - mean_answer) / mean_answer

    return min(answers, key=distance)


def judge_test04(folder: Path, reference: Path, sample: int) -> tuple[Compliance, str]:
    """TEST04's verdict on the logs in `folder` against those of the performance test, and its text.

    As officially, an INVALID result proves nothing and fails. Raises LogError for logs of two scenarios.
    """
    ordinary = loadgen_log.read(reference)
    repeated = loadgen_log.read(folder, ordinary.scenario, ordinary.mode)
    before, after = speed(ordinary), speed(repeated)
    noise = LATENCY_NOISE if ordinary.scenario in ESTIMATES else NOISE
    checks: dict[str, bool | None] = {
        "performance test is VALID": bool(ordinary.valid),
        "test of the repeated sample is VALID": bool(repeated.valid),
        "no faster than ordinary samples": 0 < after < before * (1 + noise),
    }
    passed = all(checks.values())
    text = f"reference score = {before}\ntest score = {after}\nTEST {'PASS' if passed else 'FAIL'}\n"
    rates: dict[str, JsonValue] = {"samples_per_sec": after, "reference_samples_per_sec": before}
    facts = {"sample": sample} | rates | {"allowed": 1 + noise}
    return Compliance(test="test04", passed=passed, checks=checks, facts=facts), text


def speed(result: loadgen_log.TestResult) -> float:
    """What TEST04 compares, a second: samples, or queries as long as LoadGen's estimate of the slow ones; 0 if none."""
    if entry := ESTIMATES.get(result.scenario):
        latency = result.early_stopping.get(entry)
        return 1e9 / latency if isinstance(latency, int | float) and latency > 0 else 0.0
    return result.samples_per_sec or 0.0
