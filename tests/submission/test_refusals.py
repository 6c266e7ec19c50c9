"""Every refusal of a submission, tried on kept runs of the demo that say what runs of the real model would say."""

import inspect
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from harness.config import mlperf, models
from harness.results.benchmark_run import facts_of
from harness.submission import refusals
from harness.submission.entries import Entry, SubmittedRun
from tests.submission.test_submission import (
    FAST,
    OFFICIAL,
    VALID,
    change,
    in_log,
    of_config,
    of_facts,
    of_log,
    of_rouge,
    retell,
    rewrite,
)

KEPT = Path(__file__).parents[1] / "kept"
PARTS = (
    refusals.entry_refusals,
    refusals.settings_refusals,
    refusals.accuracy_refusals,
    refusals.performance_refusals,
    refusals.test06_refusals,
)
# What these yield one after the other is compared, or judged, by functions with tests of their own.
FIRST_TOKEN, OUTPUT_TOKEN = (
    "result_first_token_99.00_percentile_latency_ns",
    "result_time_per_output_token_99.00_percentile_ns",
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The kept runs by scenario."""
    runs = {}
    for name in ("offline", "server", "singlestream"):
        place = tmp_path_factory.mktemp(name)
        with tarfile.open(KEPT / f"{name}.tar.xz") as archive:
            archive.extractall(place, filter="data")
        runs[name] = next(place.glob("2*"))
    return runs


@contextmanager
def demo_under_the_real_name() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.MODELS, "llama3.1-8b-instruct", models.MODELS["demo"]._replace(deviation=""))
        models.model.cache_clear()
        yield patch
    models.model.cache_clear()


def acceptable(kept: dict[str, Path], scenario: str, place: Path) -> Path:
    """A copy of a kept run, with the accuracy test of the Offline one, as a run of the real model would leave it."""
    run = Path(shutil.copytree(kept[scenario], place / scenario))
    if scenario != "offline":
        shutil.copytree(kept["offline"] / "Accuracy", run / "Accuracy", dirs_exist_ok=True)
        for path in (run / "Accuracy").glob("mlperf_log_*.txt"):
            path.write_text(path.read_text().replace("Offline", mlperf.SCENARIOS[scenario].loadgen))
    of_facts(deviations=[])(run)
    of_config(model="llama3.1-8b-instruct", engine_arg=[], seed=None)(run)
    official = mlperf.OFFICIAL_TASKS["edge" if scenario == "singlestream" else "datacenter"].samples
    plan = {"samples": official, "min_duration_s": 600.0, "reference_model": True}
    change(run / "config.json", lambda facts: facts["plan"].update(plan))
    of_rouge(approximate=[], full_set=True, verdict="PASS")(run)
    seeds = vars(mlperf.SEEDS_BY_ROUND[facts_of(run).config.round])
    logged_seeds = {f"effective_{name}_rng_seed": seed for name, seed in seeds.items()}
    change(run / "config.json", lambda facts: facts["plan"].update(seeds=seeds))
    rewrite(run / "Accuracy", effective_accuracy_sample_count=official, **logged_seeds)
    summary = run / "Performance" / "mlperf_log_summary.txt"
    summary.write_text(summary.read_text().replace("INVALID", "VALID"))
    rewrite(
        run / "Performance",
        **VALID,
        **(FAST if scenario == "server" else {}),
        **logged_seeds,
        effective_performance_sample_count=official,
        effective_min_duration_ms=600_000,
    )
    if scenario == "offline":
        rewrite(run / "Performance", effective_samples_per_query=official)
    retell(run / "Performance")
    retell(run / "Accuracy")
    return run


def entry_of(run: Path) -> Entry:
    submitted = SubmittedRun(run, facts_of(run))
    return Entry(submitted, submitted, None)


def reasons_of(entry: Entry) -> list[str]:
    return [reason for part in PARTS for reason in part(entry)]


def told_again(spoil: Callable[[Path], None]) -> Callable[[Path], None]:
    """A change of a log that its summary for people follows."""

    def edit(run: Path) -> None:
        spoil(run)
        retell(run / "Performance")

    return edit


def performance(**values: Any) -> Callable[[Path], None]:
    return told_again(of_log("Performance", **values))


def as_multistream(run: Path) -> None:
    of_config(scenario="multistream")(run)
    for folder in ("Accuracy", "Performance"):
        in_log(folder, "SingleStream", "MultiStream")(run)


def with_summary_of_performance(run: Path) -> None:
    shutil.copy(run / "Performance" / "mlperf_log_summary.txt", run / "Accuracy")


NO_TEST06 = "no TEST06"
INVALID = performance(result_validity="INVALID", early_stopping_met=False)
CASES: list[tuple[str, Callable[[Path], None], str]] = [
    ("offline", in_log("Accuracy", '"is_error": false', '"is_error": true'), "LoadGen errors in the accuracy test"),
    ("offline", of_log("Accuracy", effective_accuracy_sample_count=256), "256 samples in the accuracy test"),
    ("offline", performance(effective_performance_sample_count=256), "a set of 256 samples"),
    ("offline", performance(effective_min_duration_ms=599_999), "a minimum duration of 599.999 s"),
    ("server", performance(effective_min_duration_ms=10_000), "a minimum duration of 10 s"),
    ("offline", performance(effective_schedule_rng_seed=7), "seeds other than those"),
    ("offline", of_log("Accuracy", effective_qsl_rng_seed=7), "seeds other than those"),
    ("server", INVALID, "too few queries for its percentile"),
    ("server", INVALID, "LoadGen calls the performance test INVALID"),
    ("offline", performance(result_tokens_per_second=0), "no tokens/s"),
    ("offline", performance(result_samples_per_second=0), "no samples/s"),
    ("singlestream", performance(early_stopping_latency_ss=0), "no early_stopping_latency_ss"),
    ("singlestream", performance(**{"result_90.00_percentile_latency_ns": 0}), "no latency p90"),
    ("offline", performance(requested_use_token_latencies=False), "use_token_latencies is off"),
    ("server", performance(effective_target_latency_ns=21_000_000_000), "a target_latency of 21 s"),
    ("server", performance(**{FIRST_TOKEN: 2_000_000_000}), "TTFT p99 of 2,000 ms is not below 2,000 ms"),
    ("server", performance(**{OUTPUT_TOKEN: 100_000_000}), "TPOT p99 of 100 ms is not below 100 ms"),
    ("server", told_again(in_log("Performance", FIRST_TOKEN, "result_of_nobody")), "no TTFT"),
    ("singlestream", as_multistream, "MultiStream is not a scenario"),
    ("offline", lambda run: (run / "Performance" / "user.conf").write_text("") and None, "an empty user.conf"),
    ("offline", of_facts(deviations=["dummy weights"]), "dummy weights"),
    ("offline", of_config(model="demo/model"), "the demo model"),
    ("offline", of_rouge(verdict="FAIL"), "the accuracy gate says FAIL"),
    ("offline", of_rouge(approximate=["rougeLsum"]), "are approximate"),
    ("offline", of_rouge(full_set=False), "a part of the set was scored"),
    ("offline", with_summary_of_performance, "mlperf_log_summary.txt of Accuracy"),
    ("offline", of_log("Performance", effective_min_duration_ms=700_000), "mlperf_log_summary.txt of Performance"),
    ("offline", in_log("Performance", '"is_error": false', '"is_error": true'), "LoadGen error: "),
    ("server", performance(result_query_count=2), "requests.csv has"),
    ("offline", performance(effective_target_latency_percentile=0.9), "a target_latency_percentile of 0.9"),
    ("singlestream", performance(effective_target_latency_percentile=0.99), "MLPerf's is 0.9"),
    ("offline", performance(effective_performance_issue_same=True), "one sample again and again"),
    ("offline", performance(effective_performance_issue_unique=True), "one sample again and again"),
    ("offline", performance(effective_samples_per_query=OFFICIAL - 1), "a query of 13,367 samples"),
]
# Of TEST06: what the run recorded, what judging it again gives, the text beside it, and the refusal.
TEST06_CASES: list[tuple[bool, bool, str | None, str | None]] = [
    (True, True, "as judged", None),
    (False, True, "as judged", "TEST06 failed"),
    (True, False, "as judged", "TEST06 failed"),
    (True, True, "another", "verify_accuracy.txt does not match"),
    (True, True, None, "verify_accuracy.txt does not match"),
]
TRACED = (*PARTS, refusals.size_refusals)
CODES = {part.__code__ for part in TRACED}


class Tried:
    """The refusals of every case, and the lines of the parts that were reached."""

    def __init__(self) -> None:
        self.reasons: list[list[str]] = []
        self.of_test06: list[list[str]] = []
        self.lines: set[int] = set()

    def follow(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code not in CODES:
            return None
        if event == "line":
            self.lines.add(frame.f_lineno)
        return self.follow

    def call(self, function: Callable[[], list[str]]) -> list[str]:
        before = sys.gettrace()
        sys.settrace(self.follow)
        try:
            return function()
        finally:
            sys.settrace(before)


@pytest.fixture(scope="module")
def tried(kept: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Tried:
    tried = Tried()
    with demo_under_the_real_name() as patch:
        for scenario, spoil, _ in CASES:
            run = acceptable(kept, scenario, tmp_path_factory.mktemp("case"))
            spoil(run)
            tried.reasons.append(tried.call(partial(reasons_of, entry_of(run))))
        patch.setattr(refusals.test06_verdict, "judge_test06", lambda folder, *_: (OUTCOMES[folder], "as judged"))
        for recorded, judged, text, _ in TEST06_CASES:
            place = tmp_path_factory.mktemp("test06")
            OUTCOMES[place] = SimpleNamespace(passed=judged)
            if text is not None:
                (place / "verify_accuracy.txt").write_text(text)
            test: Any = SimpleNamespace(
                folder=partial(same, place), recorded_test06=(SimpleNamespace(passed=recorded), 2)
            )
            entry = entry_of(acceptable(kept, "offline", place))._replace(test06=test)
            tried.of_test06.append(tried.call(lambda entry=entry: list(refusals.test06_refusals(entry))))
    return tried


OUTCOMES: dict[Path, SimpleNamespace] = {}


def same(value: Path, _: object) -> Path:
    return value


@pytest.mark.parametrize("scenario", ["offline", "server", "singlestream"])
def test_a_run_of_the_real_model_and_length_is_refused_for_nothing(
    scenario: str, kept: dict[str, Path], tmp_path: Path
) -> None:
    with demo_under_the_real_name():
        entry = entry_of(acceptable(kept, scenario, tmp_path))
        assert [reason for reason in reasons_of(entry) if not reason.startswith(NO_TEST06)] == []


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{name} {text}" for name, _, text in CASES])
def test_what_was_changed_is_the_reason(number: int, tried: Tried) -> None:
    _, _, reason = CASES[number]
    assert any(reason in text for text in tried.reasons[number]), tried.reasons[number]


@pytest.mark.parametrize("number", range(len(TEST06_CASES)))
def test_what_test06_came_to_is_judged_again(number: int, tried: Tried) -> None:
    *_, reason = TEST06_CASES[number]
    found = tried.of_test06[number]
    assert found == [] if reason is None else len(found) == 1 and reason in found[0]


def test_each_refusal_is_tried(tried: Tried) -> None:
    """A refusal that is written next has no case yet, and is found here."""
    missing = []
    for part in TRACED:
        lines, first = inspect.getsourcelines(part)
        for number, line in enumerate(lines, start=first):
            if line.strip().startswith("yield ") and number not in tried.lines:
                missing.append(f"{part.__name__}: {line.strip()[:80]}")
    assert missing == []
