"""Check that a run's claims follow from LoadGen's log, requests.csv and machine.csv. Needs no package."""

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime
from math import isclose, nan
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.config.mlperf import LatencyLimits
from harness.config.patterns import ClosedLoop
from harness.core import errors, files, reading, word_list
from harness.core.buffering import is_buffered
from harness.core.formatting import Measured, plural
from harness.core.stored_text import is_litter
from harness.loadgen import log, log_entries, requests
from harness.loadgen.test_run import SERVER_FILE, TestRun
from harness.results.level_figures import mean_by_time, seconds_of, speed_range, timed_requests
from harness.runs.run_lock import LOCK_FILE

LOADGEN_SUMMARY_FILE, SUMMARY_FILE = "mlperf_log_summary.txt", "summary.json"
DERIVED_FILES = (SUMMARY_FILE, "report.md", "report.html", "plots")  # files and a folder made from a run's logs
WITHOUT_DIGEST = (*DERIVED_FILES, "status.json", "engine.log", LOCK_FILE)  # written after the digests
SUMMARY_LINE = re.compile(r"^\s*(\S.*?)\s*:\s*(\S+)\s*$", re.M)  # a label and a value of LoadGen's summary
SUMMARY_HEAD = ("Scenario", "Mode", "Result is")
# Words that only the labels of LoadGen's summary have, or only the keys of its log, for the same figure.
IGNORED_WORDS = word_list.names_in("result effective test query per to ns ms")
# Words of the summary's labels, and the words of the log's keys for the same.
SYNONYMS = {
    "sec": "second",
    "w/": "with",
    "w/o": "without",
    "perf": "performance",
    "satisfied": "met",
    "is": "validity",
}
# The figures that requests.csv gives.
REQUEST_FIGURES = word_list.names_in(
    """
    total_new_tokens total_input_tokens input_lengths output_lengths input_tokens_per_sec total_tokens_per_sec
    tokens_per_sec samples_per_sec begin_s seconds trend
    """
)
# The figures of a level that are means over its tests.
MEAN_FIGURES = word_list.names_in("tokens_per_sec input_tokens_per_sec samples_per_sec trend")
# The folder of the performance test's logs, as in run_folder.TEST_FOLDERS. That module needs pydantic, and util_logs.py
# checks a run with Python alone.
PERFORMANCE_FOLDER = "Performance"
ROUNDING = (1e-9, 0.0)  # the relative and absolute tolerance of a figure without one in TOLERANCES
TOLERANCES = {  # relative and absolute tolerance of a figure, by its source
    "requests.csv": (1e-9, 2.5e-6),  # LoadGen truncates its times to whole nanoseconds, and a mean of TPOT twice
    # The claimed energy is that of a counter, the source sums up power read once a second: on an H200, they differed by
    # 2.2 % over 45 s.
    "machine.csv": (0.05, 0.0),
    "target_qps": (1e-5, 0.0),  # the log has six digits of a rate
    log_entries.DETAIL: (1e-5, 0.006),  # LoadGen's summary has two decimals of some figures
}
RATE_TOLERANCE = 0.03  # relative tolerance of a rate over a whole test; two requests at its ends are added
SAME_RATE_RATIO = 0.005  # relative tolerance within which a rate counts as the configured rate
# Ways in which a program may change how a text is stored.
WINDOWS_LINES = (
    "the line ends of Windows (CRLF), as git may leave them: `git config core.autocrlf false`, and check out again"
)
EDITORS_MARK = "a byte order mark, as an editor may add it"
LARGEST_DIGESTED_BYTES = 2**30  # larger files have no digest


class Claim(NamedTuple):
    """A figure as the run states it, and as recomputed from `source`, which is empty if no source gives the figure."""

    name: str
    stated: Any
    source: str = ""
    recomputed: Any = None

    @property
    def verdict(self) -> Literal["equal", "differs", "cannot be recomputed"]:
        """Tell whether the stated figure equals the recomputed one, or that no source gives it.

        Two numbers may differ by the source's tolerance, unless both are counts (int). Anything else must be the same.
        """
        if not self.source:
            return "cannot be recomputed"
        if self.stated == self.recomputed:
            return "equal"
        types = {type(self.stated), type(self.recomputed)}
        are_numbers = types <= {float, int}
        are_counts = types == {int}
        if not are_numbers or are_counts:
            return "differs"
        relative, absolute = TOLERANCES.get(self.source, ROUNDING)
        are_close = isclose(self.stated, self.recomputed, rel_tol=relative, abs_tol=absolute)
        return "equal" if are_close else "differs"

    def __str__(self) -> str:
        """Return the claim as a line: name, stated figure and source, with the recomputed figure if it differs."""
        source = self.source
        if self.verdict == "differs":
            source += f": {self.recomputed}"[:200]
        return f"{self.name}: {self.stated!s:.200}; {source}".rstrip("; ")  # A claim may have no source.


class SourceFigures(NamedTuple):
    """The figures of a test that a source gives, by their paths in the field "run" of summary.json."""

    source: str
    figures: Mapping[str, Any]


def differing(claims: Iterable[Claim]) -> list[Claim]:
    return [claim for claim in claims if claim.verdict == "differs"]


def report_claims(folder: Path) -> tuple[list[str], bool]:
    """Check the claims of a run, or of LoadGen logs without a run.

    A claim is a figure as it is stated, beside the same figure recomputed. Returns the lines to print, and whether no
    claim differs. Raises LogError or UsageError.
    """
    lines = list[str]()
    if (folder / SUMMARY_FILE).is_file():
        claims = verify_run(folder)
    else:
        lines += remarks(folder)
        claims = [*summary_claims(folder)]
    counts = Counter(claim.verdict for claim in claims)
    lines += [f"{claim.verdict:<20}  {claim}" for claim in claims]
    lines.append(
        f"{counts['equal']} equal, {counts['differs']} differ, {counts['cannot be recomputed']} cannot be recomputed"
    )
    return lines, not counts["differs"]


def verify_run(folder: Path) -> list[Claim]:
    """Return all claims of a run: what it states of its tests and files, beside what its logs and files give.

    Raises UsageError if the content of a file is not as a run leaves it, and LogError if a log of LoadGen is damaged.
    """
    try:
        return [*claims_of(folder)]  # All claims are made here, so that damage in any file raises its error here.
    except reading.DAMAGED as error:
        raise errors.UsageError(f"{folder}: not as a run leaves it: {error!r}.") from None


def claims_of(folder: Path) -> Iterator[Claim]:
    """Yield the claims of a run: its parts, its times, its rates, its figures, its files, and LoadGen's summaries."""
    summary: Any = files.read_json(folder / SUMMARY_FILE)
    config: Any = files.read_json(folder / "config.json")
    status: Any = files.read_json(folder / "status.json")
    run, settings = summary["run"], config["plan"]["config"]
    if status["status"] == "complete" and not settings.get("quick"):  # A quick estimate has no performance test.
        yield from missing_parts(folder, run, settings)
    limits_ms = (run.get("performance") or {}).get("limits_ms")
    limits = LatencyLimits(**limits_ms) if limits_ms else None
    recomputed = list[SourceFigures]()
    for name, test_folders, concurrency in tests_of(folder, run, config):
        tests = list[TestRun]()
        for test_folder in test_folders:
            try:
                tests.append(TestRun.from_logs(test_folder, limits, int(concurrency) if concurrency else None))
            except errors.BenchmarkError as error:  # The logs cannot be read, or are not all of one test.
                yield Claim(name=f"{name}, its logs", stated="of one test", source="as they are", recomputed=str(error))
        yield from claims_of_tests(tests, begin=config["started"], end=status["time"])
        if len(tests) == len(test_folders):
            recomputed += recomputed_figures(tests, name, run)
    for path_in_run, value in leaves(run):
        if isinstance(value, int | float):
            yield from figure_claims(path_in_run, value, recomputed)
    stored_digests = summary.get("digests")
    if stored_digests:  # An older summary has none.
        yield from digest_claims(folder, stored_digests)
    for log_path in sorted(folder.rglob(log_entries.DETAIL)):
        yield from summary_claims(log_path.parent)


def claims_of_tests(tests: Iterable[TestRun], begin: str, end: str) -> Iterator[Claim]:
    """Yield the claims of each test by itself: its place among the times of the run (`begin`, `end`), and its rates."""
    for test in tests:
        yield order_claim(test, begin, end)
        yield from rate_claims(test)


def recomputed_figures(tests: Sequence[TestRun], name: str, run: Mapping[str, Any]) -> list[SourceFigures]:
    """Return the figures that each source of a load gives, which has one test or several.

    `name` is the load's name in the summary, and `run` is the field "run" of summary.json.
    """
    if len(tests) > 1:
        figures_by_source = figures_of_level(tests)
    else:
        is_runs_own = name == "performance"  # and not a test of a search
        figures_by_source = figures_of_sources(tests[0], is_runs_own)
    has_steady_part = bool((run.get(name) or {}).get("steady"))
    if has_steady_part:  # The run then states the number of queries of the steady part, not of the whole test.
        figures_by_source["requests.csv"].pop("queries", None)
    return [SourceFigures(source, dict(leaves(figures, name))) for source, figures in figures_by_source.items()]


def order_claim(test: TestRun, begin: str, end: str) -> Claim:
    """Return the claim that a run began before its test, and the test before the end of the run.

    `begin` and `end` are the times of the run, in ISO format.
    """
    times: list[Any] = [begin, test.result.started, end]
    name = f"{test.folder.name}, beginning of the run and of the test, end of the run"
    in_order = sorted(times, key=datetime.fromisoformat)
    return Claim(name=name, stated=times, source="in order", recomputed=in_order)


def figure_claims(name: str, value: float, recomputed: Sequence[SourceFigures]) -> Iterator[Claim]:
    """Yield a claim of the figure for each source that gives it. If no source gives it, yield one claim without source.

    `name` is the path of the figure in the field "run" of summary.json.
    """
    has_source = False
    for source, figures in recomputed:
        if figures.get(name) is not None:
            has_source = True
            yield Claim(name, value, source, figures[name])
    if not has_source:
        yield Claim(name, value)


def missing_parts(folder: Path, run: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[Claim]:
    """Yield a failed claim for each test that the user asked for and that a complete run does not have.

    `folder` is the run folder, `run` is the field "run" of summary.json.
    """
    # A summary may have a result although the last performance test is gone: that of an earlier level of a curve. So
    # the test's folder counts as well.
    has_part = {
        "accuracy": bool(run.get("accuracy")),
        "performance": bool(run.get("performance")) and (folder / PERFORMANCE_FOLDER).is_dir(),
    }
    has_failed = (run.get("accuracy") or {}).get("verdict") == "FAIL"
    is_ended_by_gate = has_failed and not settings.get("no_exit_on_accuracy_fail")
    for part in ("accuracy", "performance"):
        if part == "performance" and is_ended_by_gate:
            continue
        if settings["mode"] in (part, "both") and not has_part[part]:
            yield Claim(name=part, stated="complete", source="its logs", recomputed="missing")


def tests_of(folder: Path, run: Any, config: Any) -> Iterator[tuple[str, list[Path], Any]]:
    """Yield the name in the summary, the log folders and the concurrency of each load that was tested.

    A level of concurrency that was tested several times has several log folders. `run` is the field "run" of
    summary.json, `config` is config.json. The concurrency is None if the figures are of the whole test, not of its
    steady part.
    """
    performance = run.get("performance")
    if performance:
        test_folder = folder / performance["folder"]
        yield "performance", [test_folder], None
        if performance.get("steady"):  # The summary then has the figures of the steady part, too.
            # Offline sets no concurrency, so that of the engine counts.
            concurrency = performance.get("concurrency") or config["concurrency"]
            yield "performance.steady", [test_folder], concurrency
    for kind in ("search", "attempts"):
        for number, test in enumerate(run.get(kind) or ()):
            concurrency = None
            if test["unit"] == ClosedLoop.unit:  # Its load is the concurrency, and its figures are of the steady part.
                concurrency = test["load"]
            test_folders = test.get("repeats") or [test["folder"]]
            yield f"{kind}.{number}", [folder / name for name in test_folders], concurrency


def compare_data(name: str, stated: object, source: str, recomputed: object) -> Iterator[Claim]:
    """Yield a claim for each value in the stated or the recomputed data, with the values of both at the same path.

    A value that only one of the two has counts as None in the other. `source` names what the recomputed data come from.
    `name` stands before each path in the claims.
    """
    stated_values, recomputed_values = dict(leaves(stated)), dict(leaves(recomputed))
    for path in stated_values | recomputed_values:
        yield Claim(f"{name}{path}", stated_values.get(path), source, recomputed_values.get(path))


def digest_claims(folder: Path, stored: Mapping[str, str]) -> Iterator[Claim]:
    """Yield the claims that the files are as the run left them, by the SHA-256 of each file (`stored`).

    A file that was saved in another form, such as with other line ends, counts as unchanged. One more claim, which
    never agrees, names the form.
    """
    current = file_digests(folder)
    names_by_form: dict[str, list[str]] = {}
    for name, digest in stored.items():
        is_changed = name in current and current[name] != digest
        if is_litter(Path(name)):  # macOS or Windows added this file, so it counts as unchanged.
            current[name] = digest
        elif is_changed:
            form = form_of(folder / name, digest)
            if form:  # The text itself is the same, so this file counts as unchanged, too.
                names_by_form.setdefault(form, []).append(name)
                current[name] = digest
    for form, names in names_by_form.items():
        yield Claim(name=f"{len(names):,} files", stated="as the run wrote them", source="now with", recomputed=form)
    yield from compare_data(name="", stated=stored, source="SHA-256", recomputed=current)


def form_of(path: Path, digest: str) -> str:
    """Return in words how a file is stored differently from how the run wrote it; empty if the text itself differs.

    `digest` is the SHA-256 of what the run wrote.
    """
    for form, content in original_forms(path):
        if hashlib.sha256(content).hexdigest() == digest:
            return form
    return ""


def original_forms(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the contents that a file may have had before a program saved it anew, each with what that program changed.

    The change, in words, comes first. An editor may write other line ends, a mark at the beginning, or both.
    """
    content = path.read_bytes()
    without_mark = content.removeprefix(codecs.BOM_UTF8)
    yield WINDOWS_LINES, content.replace(b"\r\n", b"\n")
    yield EDITORS_MARK, without_mark
    yield f"{EDITORS_MARK}, and {WINDOWS_LINES}", without_mark.replace(b"\r\n", b"\n")


def as_written(path: Path, digest: str | None) -> bytes | None:
    """Return the bytes that the run wrote, if the file has the same text but is stored in another way.

    None if the file has no digest, as a large file, if it is unchanged, or if its text differs.
    """
    if digest is None or path.stat().st_size > LARGEST_DIGESTED_BYTES:
        return None
    if hashlib.sha256(path.read_bytes()).hexdigest() == digest:
        return None
    for _form, content in original_forms(path):
        if hashlib.sha256(content).hexdigest() == digest:
            return content
    return None


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in a run folder, by its path in the folder.

    Left out are files that are too large, files made from other files or written after the digests, and files that
    macOS or Windows add.
    """
    digests_by_name = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not path.is_file() or name.parts[0] in WITHOUT_DIGEST or is_litter(path):
            continue
        if path.stat().st_size > LARGEST_DIGESTED_BYTES:
            continue
        digests_by_name[str(name)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests_by_name


def rate_claims(test: TestRun) -> Iterator[Claim]:
    """Yield the claims that LoadGen's rates agree with the requests: rate x time is the number of samples or tokens.

    The time is from the first request to the last answer. Nothing is claimed if a request's times are not known.
    """
    answered = test.answered_requests
    # If this program timed the requests, LoadGen's time also includes requests that were never sent.
    if any(request.clock == "client" for request in answered):
        return
    if not answered or any(request.issued_s is None or request.done_s is None for request in answered):
        return
    begin_s = min(request.begin_s for request in answered)
    end_s = max(request.end_s for request in answered)
    tokens = sum(request.output_tokens for request in answered)
    # LoadGen may count one sample less over its time, and its clock begins with its own first query. So the number may
    # differ by two requests.
    tolerance = RATE_TOLERANCE + 2 / len(answered)
    for name, rate, count in (
        ("samples/s", test.result.samples_per_sec, len(answered)),
        ("tokens/s", test.result.tokens_per_sec, tokens),
    ):
        if not rate or not count or end_s <= begin_s:  # One side of the claim is not known.
            continue
        count_by_rate = rate * (end_s - begin_s)
        # Claim is stricter than `tolerance`. So if the two values agree within `tolerance`, it gets one value for both.
        agrees = isclose(count_by_rate, count, rel_tol=tolerance)
        recomputed = count_by_rate if agrees else count
        claim_name = f"{test.folder.name}, {name} times its time"
        yield Claim(name=claim_name, stated=count_by_rate, source="requests.csv", recomputed=recomputed)


def figures_of_sources(test: TestRun, is_runs_own: bool) -> dict[str, dict[str, Any]]:
    """Return the figures of a test by source and name. A figure that a source does not give is None or left out.

    `is_runs_own` tells that the test is the run's own, not a test of a search.
    """
    result = test.result
    # Only in Server is the target rate what LoadGen sent; elsewhere it is an estimate.
    target_qps = result.target_qps if result.scenario == "Server" else None
    return {
        "LoadGen's log": figures_of_log(test, is_runs_own),
        "target_qps": {"target_qps": target_qps, "load": target_qps},  # a source of its own, for its own tolerance
        "requests.csv": figures_of_requests(test),
        "machine.csv": {"gpu_joules": test.recording.joules, "joules_per_output_token": joules_per_token(test)},
    }


def figures_of_level(tests: Sequence[TestRun]) -> dict[str, dict[str, Any]]:
    """Return the figures of a level of concurrency that was tested several times, by source and name.

    Speeds are means over the tests, and latencies are of all requests together, as `level.level_of` makes them.
    """
    seconds = [seconds_of(test) for test in tests]
    figures_of_tests = [figures_of_requests(test) for test in tests]
    figures: dict[str, Any] = {}
    for name in MEAN_FIGURES:
        figures[name] = mean_by_time([figures_of_test[name] for figures_of_test in figures_of_tests], seconds)
    counted_requests = timed_requests(tests, [was_buffered(test.folder) for test in tests])
    figures |= requests.times_of(counted_requests)._asdict()
    figures["queries"] = len(counted_requests)
    speeds = [figures_of_test["tokens_per_sec"] for figures_of_test in figures_of_tests]
    figures["speed_range"] = list(speed_range(speeds) or ())
    joules_of_tests = [joules_per_token(test) for test in tests]
    return {
        "LoadGen's log": {"valid": all(test.result.valid for test in tests)},
        "requests.csv": figures,
        "machine.csv": {"joules_per_output_token": mean_by_time(joules_of_tests, seconds)},
    }


def joules_per_token(test: TestRun) -> Measured:
    """Return the energy of a test's output tokens in joules a token; None if it was not recorded.

    Without tokens, it is nan, which equals no stated figure.
    """
    joules = test.recording.joules
    if not joules:
        return None
    return joules / (test.total_new_tokens or nan)


def was_buffered(folder: Path) -> bool:
    """Tell whether a buffer held the answers of a test back, by the counts in its server.json, if it has one."""
    path = folder / SERVER_FILE
    if not path.is_file():
        return False
    counts: Any = files.read_json(path)
    return is_buffered(counts["messages"], counts["bundled"], counts["answers"])


def figures_of_log(test: TestRun, is_runs_own: bool) -> dict[str, Any]:
    """Return the figures of a test that LoadGen's log gives, by name. None for one that another source gives.

    `is_runs_own` tells that the test is the run's own, not a test of a search.
    """
    result = test.result
    counts_steady_part = test.window is not None
    if counts_steady_part:  # The log's figures include the ramps, so that only its verdict can be compared.
        return {"valid": result.valid}
    # The target rate and the queries have other sources.
    figures = vars(result) | {"target_qps": None, "sent": result.scheduled_qps, "queries": None}
    if not is_runs_own:  # `duration_s` of a test of a search is the time in which its queries were issued.
        figures["duration_s"] = None
    return figures


def figures_of_requests(test: TestRun) -> dict[str, Any]:
    """Return the figures of a test that requests.csv gives, by name."""
    counted_part = test.window or test  # the steady part if only that counts
    figures: dict[str, Any] = {name: getattr(counted_part, name, None) for name in REQUEST_FIGURES}
    figures["requests"] = len(test.counted_requests)
    if test.result.scenario != "MultiStream":  # A query of MultiStream has several requests and one latency.
        figures |= requests.times_of(test.counted_requests)._asdict()
        figures["queries"] = len(test.counted_requests)
    return figures


def leaves(data: object, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every single value in nested data with its dotted path. `name` is the path of `data` itself.

    Fields of a dataclass and keys of a mapping are parts of the path, and so are the places in a list.
    """
    if is_dataclass(data):
        data = vars(data)
    elif isinstance(data, list):
        data = dict(enumerate(data))
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from leaves(value, f"{name}.{key}".lstrip("."))
    else:
        yield name, data


def remarks(folder: Path) -> Iterator[str]:
    """Yield notes on LoadGen's logs that came without the files of this program: which test they are of, and known ways
    in which their figures mislead.
    """
    result = log.read(folder)
    yield f"LoadGen {result.loadgen_version}, {result.scenario}, {result.mode}: {plural(len(result.errors), 'error')}"
    rate = result.samples_per_sec or nan  # An unknown rate is nan: no comparison with it holds.
    if result.scenario == "Server" and isclose(rate, result.target_qps or nan, rel_tol=SAME_RATE_RATIO):
        yield f"note: the result is the configured rate, {rate:g}; what the system can do at most is not known from it"
    # Latencies that came one by one are never the same in half of all requests.
    ttft = result.ttft_ms
    if ttft and ttft.p50 == ttft.p97:
        yield f"note: TTFT p50 = p97, {ttft.p50:g} ms: first tokens were reported together, not as they came"
    tokens_per_sample = f"{(result.tokens_per_sec or nan) / rate:.1f}"
    # MLPerf's limit of an answer is 128 tokens. A mean of just this, or of 129 with the end token, is no real mean.
    if tokens_per_sample in ("128.0", "129.0"):
        token_count = tokens_per_sample.removesuffix(".0")
        yield f"note: every sample counts as {token_count} tokens: the rate is not of the tokens that were written"


def summary_claims(folder: Path) -> Iterator[Claim]:
    """Yield the claims that LoadGen's summary for people agrees with its detail log.

    A label that the summary lacks, and an empty summary, make a claim that fails. A figure that the log does not have
    is not claimed. Raises LogError if the log is damaged.
    """
    logged = dict[frozenset[str], Any]()  # the first value of each label in the detail log
    for key, value, _metadata in log_entries.log_records(folder / log_entries.DETAIL):
        logged.setdefault(label_words(key), value)
    path, text = folder / LOADGEN_SUMMARY_FILE, ""
    if path.is_file():
        text = reading.read_text(path, errors="replace")
    lines = SUMMARY_LINE.findall(text)  # pairs of a label and a value
    is_performance_test = label_words("Result is") in logged
    if is_performance_test:  # The summary of an accuracy test has no labels of SUMMARY_HEAD.
        labels = [label for label, _value in lines]
        lines += [(head, "") for head in SUMMARY_HEAD if head not in labels]  # The empty value differs from the log's.
    elif not text.strip():
        name = f"{LOADGEN_SUMMARY_FILE} of {folder.name}"
        yield Claim(name=name, stated=text, source=log_entries.DETAIL, recomputed="not empty")
    for label, value in lines:
        entry = logged.get(label_words(label))
        if entry is not None:
            name = f"{LOADGEN_SUMMARY_FILE} of {folder.name}, {label}"
            yield Claim(name=name, stated=figure_of(value), source=log_entries.DETAIL, recomputed=entry)


def figure_of(text: str) -> object:
    """Return a value of LoadGen's summary as a number, as a boolean for Yes and NO, or else as the text itself."""
    try:
        return json.loads({"Yes": "true", "NO": "false"}.get(text, text))
    except ValueError:
        return text


def label_words(name: str) -> frozenset[str]:
    """Return the words of a label of LoadGen's summary, or of a key of its log, so that the two can be matched.

    The order of the words does not matter. Synonyms are replaced. Words that only labels have, or only keys, are left
    out.
    """
    split_name = re.split(r"[\s_()]+", name.lower())
    usual_words = [SYNONYMS.get(word, word) for word in split_name]
    return frozenset(usual_words).difference(IGNORED_WORDS, [""])
