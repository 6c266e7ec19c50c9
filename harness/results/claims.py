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
from harness.core.stored_text import is_litter
from harness.loadgen import log, log_entries, requests
from harness.loadgen.test_run import TestRun
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

        If one of the two is a float, they may differ by the source's tolerance. Everything else must be the same.
        """
        if not self.source:
            return "cannot be recomputed"
        if self.stated == self.recomputed:
            return "equal"
        relative, absolute = TOLERANCES.get(self.source, (1e-9, 0.0))
        types = {type(self.stated), type(self.recomputed)}
        are_numbers = float in types and types <= {float, int}
        if are_numbers and isclose(self.stated, self.recomputed, rel_tol=relative, abs_tol=absolute):
            return "equal"
        return "differs"

    def __str__(self) -> str:
        """Return the claim as a line: name, stated figure and source, with the recomputed figure if it differs."""
        source = self.source
        if self.verdict == "differs":
            source += f": {self.recomputed}"[:200]
        return f"{self.name}: {self.stated!s:.200}; {source}".rstrip("; ")  # A claim may have no source.


def differing(claims: Iterable[Claim]) -> list[Claim]:
    return [claim for claim in claims if claim.verdict == "differs"]


def report_claims(folder: Path) -> tuple[list[str], bool]:
    """Check the claims of a run, or of LoadGen logs without a run.

    A claim is a figure as it is stated, beside the same figure recomputed from its source. Returns the lines to print,
    and whether no claim differs. For bare logs, the lines begin with notes on how to read them. Raises LogError or
    UsageError if the files cannot be read.
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
        return [*claims_of(folder)]
    except reading.DAMAGED as error:
        raise errors.UsageError(f"{folder}: not as a run leaves it: {error!r}.") from None


def claims_of(folder: Path) -> Iterator[Claim]:
    """Yield the claims of a run: its parts, the order of its times, its rates, figures recomputed from its logs, its
    files, and LoadGen's summaries.

    A test whose logs cannot be read is a claim that differs. An older summary has no digests, so its files are not
    claimed.
    """
    summary: Any = files.read_json(folder / SUMMARY_FILE)
    config: Any = files.read_json(folder / "config.json")
    status: Any = files.read_json(folder / "status.json")
    run, settings = summary["run"], config["plan"]["config"]
    if status["status"] == "complete" and not settings.get("quick"):  # A quick estimate has no performance test.
        yield from missing_parts(run, settings)
    limits_ms = (run.get("performance") or {}).get("limits_ms")
    limits = LatencyLimits(**limits_ms) if limits_ms else None
    recomputed = list[tuple[str, dict[str, Any]]]()
    for name, test_folder, concurrency in tests_of(folder, run, config):
        try:
            test = TestRun.from_logs(test_folder, limits, int(concurrency) if concurrency else None)
        except errors.BenchmarkError as error:
            yield Claim(name=f"{name}, its logs", stated="of one test", source="as they are", recomputed=str(error))
            continue
        times = [config["started"], test.result.started, status["time"]]
        beginnings = f"{test_folder.name}, beginning of the run and of the test, end of the run"
        in_order = sorted(times, key=datetime.fromisoformat)
        yield Claim(name=beginnings, stated=times, source="in order", recomputed=in_order)
        yield from rate_claims(test)
        figures_by_source = figures_of_sources(test, is_whole=name == "performance")
        if (run.get(name) or {}).get("steady"):  # The run then states the queries of the steady part, not of all.
            figures_by_source["requests.csv"].pop("queries", None)
        for source, figures in figures_by_source.items():
            recomputed.append((source, dict(leaves(figures, name))))
    for name, value in leaves(run):
        if isinstance(value, int | float):
            yield from figure_claims(name, value, recomputed)
    stored_digests = summary.get("digests")
    if stored_digests:
        yield from digest_claims(folder, stored_digests)
    for path in sorted(folder.rglob(log_entries.DETAIL)):
        yield from summary_claims(path.parent)


def figure_claims(name: str, value: float, recomputed: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[Claim]:
    """Claim a figure once for each source that gives it. If no source gives it, claim it once without a source.

    `name` is the path of the figure in the summary, and `recomputed` has the figures of each source, by their paths.
    """
    has_source = False
    for source, figures in recomputed:
        if figures.get(name) is not None:
            has_source = True
            yield Claim(name, value, source, figures[name])
    if not has_source:
        yield Claim(name, value)


def missing_parts(run: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[Claim]:
    """Yield a failed claim for each test that the user asked for and that a complete run does not have.

    A performance test is not missing after a failed accuracy gate, which ends the run unless --no-exit-on-accuracy-fail
    was given.
    """
    has_failed = (run.get("accuracy") or {}).get("verdict") == "FAIL"
    is_ended_by_gate = has_failed and not settings.get("no_exit_on_accuracy_fail")
    for part in ("accuracy", "performance"):
        if part == "performance" and is_ended_by_gate:
            continue
        if settings["mode"] in (part, "both") and not run.get(part):
            yield Claim(name=part, stated="complete", source="its logs", recomputed="missing")


def tests_of(folder: Path, run: Any, config: Any) -> Iterator[tuple[str, Path, Any]]:
    """Yield the name in the summary, the log folder and the concurrency of each test.

    `folder` is the run folder, `run` is that part of summary.json, and `config` is the content of config.json. The
    concurrency says from which requests on the steady part begins; it is None for figures of a whole test. A
    performance test with a steady part comes twice, as a whole and as that part. If it has no concurrency of its own
    (Offline), it has that of the engine.
    """
    performance = run.get("performance")
    if performance:
        place = folder / performance["folder"]
        yield "performance", place, None
        if performance.get("steady"):
            yield "performance.steady", place, performance.get("concurrency") or config["concurrency"]
    for kind in ("search", "attempts"):
        for number, test in enumerate(run.get(kind) or ()):
            concurrency = None
            if test["unit"] == ClosedLoop.unit:  # Its load is the concurrency, and its figures are of the steady part.
                concurrency = test["load"]
            yield f"{kind}.{number}", folder / test["folder"], concurrency


def compare_data(name: str, stated: object, source: str, recomputed: object) -> Iterator[Claim]:
    """Claim that each value in the stated data equals the value that a source gives at the same path.

    A value that only one of the two has counts as None in the other. `name` stands before each path in the claims.
    """
    stated_values, recomputed_values = dict(leaves(stated)), dict(leaves(recomputed))
    for path in stated_values | recomputed_values:
        yield Claim(f"{name}{path}", stated_values.get(path), source, recomputed_values.get(path))


def digest_claims(folder: Path, stored: Mapping[str, str]) -> Iterator[Claim]:
    """Claim that the files are as the run left them, by the SHA-256 that it stored of each file.

    Files that macOS or Windows add do not count. Files whose text is the same but is stored in another way, such as
    with other line ends, are one claim for each way, whatever their number.
    """
    current = file_digests(folder)
    stored_otherwise: dict[str, list[str]] = {}
    for name, digest in stored.items():
        if is_litter(Path(name)):
            current[name] = digest  # as if it were unchanged
            continue
        is_changed = name in current and current[name] != digest
        form = form_of(folder / name, digest) if is_changed else ""
        if form:
            stored_otherwise.setdefault(form, []).append(name)
            current[name] = digest  # It has its own claim below.
    for form, names in stored_otherwise.items():
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
    """Yield each way in which a program may have changed how a text is stored, in words.

    With it come the bytes that the run would have written: the text without this change.
    """
    content = path.read_bytes()
    without_mark = content.removeprefix(codecs.BOM_UTF8)
    yield WINDOWS_LINES, content.replace(b"\r\n", b"\n")
    yield EDITORS_MARK, without_mark
    yield f"{EDITORS_MARK}, and {WINDOWS_LINES}", without_mark.replace(b"\r\n", b"\n")


def as_written(path: Path, digest: str | None) -> bytes | None:
    """Return the bytes that the run wrote, if the file has the same text but is stored in another way.

    None if the file is unchanged, if its text differs, or if it has no digest, as a large file.
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
    """Claim that LoadGen's rates agree with the requests: rate times time is the number of samples or tokens.

    The time is from the first request to the last answer. LoadGen may count one sample less over its time, and its
    clock begins with its own first query, so two requests more or less are allowed. Nothing is claimed if a request's
    times are not known, or if this program timed the requests: LoadGen's time then also includes the reports of
    requests that were never sent.
    """
    answered = test.answered_requests
    if any(request.clock == "client" for request in answered):
        return
    if not answered or any(request.issued_s is None or request.done_s is None for request in answered):
        return
    begin_s = min(request.begin_s for request in answered)
    end_s = max(request.end_s for request in answered)
    tokens = sum(request.output_tokens for request in answered)
    allowed = RATE_TOLERANCE + 2 / len(answered)
    for name, rate, count in (
        ("samples/s", test.result.samples_per_sec, len(answered)),
        ("tokens/s", test.result.tokens_per_sec, tokens),
    ):
        if not rate or not count or end_s <= begin_s:
            continue
        by_rate = rate * (end_s - begin_s)
        by_requests: float = count
        # The tolerance of a claim is stricter than what is allowed here, so a claim that agrees gets one number twice.
        if isclose(by_rate, count, rel_tol=allowed):
            by_requests = by_rate
        claim_name = f"{test.folder.name}, {name} times its time"
        yield Claim(name=claim_name, stated=by_rate, source="requests.csv", recomputed=by_requests)


def figures_of_sources(test: TestRun, is_whole: bool) -> dict[str, dict[str, Any]]:
    """Return the figures of a test by source and name. A figure that a source does not give is None.

    For a test with a steady part that counts, the figures are of that part, and LoadGen's log gives only the verdict.
    `is_whole` tells that the figures are those of the run's own test as a whole, not of a test of a search.
    """
    result, joules = test.result, test.recording.joules
    # Only in Server is the target rate what LoadGen sent; elsewhere it is an estimate.
    rate = result.target_qps if result.scenario == "Server" else None
    # The rate has a source of its own, with its own tolerance. The queries are counted in requests.csv.
    logged = vars(result) | {"target_qps": None, "sent": result.scheduled_qps, "queries": None}
    if test.window:
        logged = {"valid": result.valid}
    elif not is_whole:  # The summary gives a test of a search the time in which its queries were issued, not LoadGen's.
        logged["duration_s"] = None
    counted: dict[str, Any] = {name: getattr(test.window or test, name, None) for name in REQUEST_FIGURES}
    counted["requests"] = len(test.counted_requests)
    if result.scenario != "MultiStream":  # LoadGen's latencies in MultiStream are of whole queries, not of requests.
        counted |= requests.times_of(test.counted_requests)._asdict()
        counted["queries"] = len(test.counted_requests)
    joules_per_token = None
    if joules:
        joules_per_token = joules / (test.total_new_tokens or nan)
    return {
        "LoadGen's log": logged,
        "target_qps": {"target_qps": rate, "load": rate},
        "requests.csv": counted,
        "machine.csv": {"gpu_joules": joules, "joules_per_output_token": joules_per_token},
    }


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
    """Yield notes on how to read the result of bare LoadGen logs: what they are, and
    known ways in which they mislead.
    """
    result = log.read(folder)
    yield f"LoadGen {result.loadgen_version}, {result.scenario}, {result.mode}: {len(result.errors)} errors"
    rate, first = result.samples_per_sec or nan, result.ttft_ms
    if result.scenario == "Server" and isclose(rate, result.target_qps or nan, rel_tol=SAME_RATE_RATIO):
        yield f"note: the result is the configured rate, {rate:g}; what the system can do at most is not known from it"
    # Latencies that came one by one are never the same in half of all requests.
    if first and first.p50 == first.p97:
        yield f"note: TTFT p50 = p97, {first.p50:g} ms: first tokens were reported together, not as they came"
    tokens_per_sample = f"{(result.tokens_per_sec or nan) / rate:.1f}"
    if tokens_per_sample in ("128.0", "129.0"):  # the limit of an answer, without and with the end token
        token_count = tokens_per_sample.removesuffix(".0")
        yield f"note: every sample counts as {token_count} tokens: the rate is not of the tokens that were written"


def summary_claims(folder: Path) -> Iterator[Claim]:
    """Claim that LoadGen's summary for people agrees with its detail log. Raises LogError if the log is damaged.

    A figure that the log does not have is not claimed. A summary that lacks one of SUMMARY_HEAD, or is empty, is a
    claim that differs.
    """
    path, logged = folder / LOADGEN_SUMMARY_FILE, dict[frozenset[str], Any]()
    for key, value, _metadata in log_entries.log_records(folder / log_entries.DETAIL):
        logged.setdefault(label_words(key), value)
    text = ""
    if path.is_file():
        text = reading.read_text(path, errors="replace")
    lines = SUMMARY_LINE.findall(text)
    if label_words("Result is") in logged:  # The summary of an accuracy test has no SUMMARY_HEAD.
        labels = [label for label, _value in lines]
        lines += [(head, "") for head in SUMMARY_HEAD if head not in labels]  # an empty value, which differs
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
    """Return the words that tell which figure a LoadGen label or key is of, so that labels and keys can be matched.

    Their order does not matter. Synonyms are replaced, and words that only labels or only keys have are left out.
    """
    split_name = re.split(r"[\s_()]+", name.lower())
    usual_words = [SYNONYMS.get(word, word) for word in split_name]
    return frozenset(usual_words).difference(IGNORED_WORDS, [""])
