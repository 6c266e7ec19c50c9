"""Run MLPerf's compliance test TEST06: one more LoadGen test with audit settings on the same engine."""

from harness.config.plan import Plan
from harness.core.files import write_json, write_text
from harness.loadgen.session import LoadGenSession
from harness.results.test06_verdict import LOGGED_SAMPLES, TEST06_FILE, Compliance, judge_test06

SETTINGS = {  # a fixed number of samples, each of them logged, without a minimum duration or whole permutations
    "mode": 2,  # performance
    "accuracy_log_rng_seed": 720381539243781796,
    "accuracy_log_sampling_target": LOGGED_SAMPLES,
    "min_query_count": LOGGED_SAMPLES,
    "min_duration": 0,
    "sample_concatenate_permutation": 0,
}
# The audit.config, which LoadGen reads over all other settings, for any model and scenario.
AUDIT_CONFIG = "".join(f"*.*.{key} = {value}\n" for key, value in SETTINGS.items())


def run_test06(session: LoadGenSession, plan: Plan, eos: int) -> Compliance:
    """Run MLPerf's compliance test TEST06 on the session's engine, and return its verdict.

    `eos` is the id of the tokenizer's end-of-text token. Two files are written beside the logs: the verdict, and the
    text that MLPerf's submission checker reads.
    """
    folder = session.test("test06", plan, AUDIT_CONFIG)
    outcome, text = judge_test06(folder, eos, plan.config)
    write_text(folder / "verify_accuracy.txt", text)
    write_json(folder / TEST06_FILE, outcome.model_dump())
    return outcome
